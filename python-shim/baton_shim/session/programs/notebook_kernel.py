"""`python -m baton_shim.session.programs.notebook_kernel -f connection.json`: the kernel of a notebook that is a job.

It is ipykernel's plain kernel, on the machine that `%%gpu` cells ask for. So `%%gpu`, `with gpu:` and the like change
nothing here. Without a GPU, `cuda` is virtual, as in a session. An interrupt strikes only the code of a cell, as in the
notebook kernel.
"""

from __future__ import annotations

import re

from baton_shim.base.launch import end_with_parent, leave_notebook_folder, run_kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARKS = frozenset(("%%gpu", "%%cpu", "%%both"))
"""First lines that say where a cell runs. All cells of a job run here, so the lines are removed."""
ABOUT_THE_SESSION = tuple(
    "gpu gpu_config gpu_jobs gpu_load gpu_output gpu_reset gpu_save gpu_states gpu_status gpu_undo".split()
)
HANDLE = re.compile(r"(?:\s*#[^\n]*\n)*\s*%%gpu\s[^\n]*?--background[ =]([^\W\d]\w*)")
"""The variable that gets the handle of a background cell."""


def main() -> None:
    leave_notebook_folder()
    end_with_parent("SIGKILL")
    run_kernel(shell_ready)


def shell_ready(shell: Any) -> None:
    from baton_shim.base import compat
    from baton_shim.base.blocks import RUNTIME, OnGpuMachine
    from baton_shim.base.compat import FIT
    from baton_shim.base.interrupts import aim_interrupts
    from baton_shim.virtual import SWITCH

    FIT.attach(compat.INTERRUPTS, aim_interrupts, shell.kernel)
    RUNTIME.kernel = OnGpuMachine()
    SWITCH.begin(session=True)
    shell.input_transformers_cleanup.append(without_mark)
    shell.events.register("post_run_cell", lambda result: bind_handle(shell.user_ns, result))
    for name in ABOUT_THE_SESSION:
        shell.register_magic_function(no_session, "line", name)


def without_mark(lines: list[str]) -> list[str]:
    """Turns the line into a comment, so that line numbers in tracebacks remain those of the notebook."""
    for number, line in enumerate(lines):
        if MARKS.intersection(line.split(maxsplit=1)[:1]):
            return [*lines[:number], f"# {line.lstrip()}", *lines[number + 1 :]]
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return lines


def bind_handle(namespace: dict[str, Any], result: Any) -> None:
    """Binds the handle of a background cell, which here has ended before the next cell begins."""
    from baton_shim.base.job import Job

    if (found := HANDLE.match(result.info.raw_cell or "")) is not None:
        job = Job(result.execution_count or 0)
        job.ends(result.result, result.error_in_exec)
        namespace[found[1]] = job


def no_session(line: str) -> None:
    """Fails: there is no session besides the notebook's own kernel."""
    print("This notebook runs as a job: all of its cells run on the worker, in one kernel")


if __name__ == "__main__":
    main()
