"""`python -P -m baton_shim.session.programs.script_start script.py …`: as `python script.py …`, in a job.

Without a GPU `cuda` is virtual, as in a session. The script finds nothing else of this module: not in `sys.argv`, the
path, `__main__` or its tracebacks.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType


def main() -> None:
    from baton_shim.base.blocks import RUNTIME, OnGpuMachine
    from baton_shim.base.launch import end_with_parent
    from baton_shim.virtual import SWITCH

    RUNTIME.kernel = OnGpuMachine()
    end_with_parent("SIGKILL")
    sys.argv = sys.argv[1:]
    script = os.path.abspath(sys.argv[0])
    sys.path.insert(0, os.path.dirname(script))  # `-P` left it out
    SWITCH.begin(session=True)
    sys.excepthook = show
    run(read(script), script)


def read(script: str) -> CodeType:
    try:
        with open(script, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.exit(f"{script} cannot be read on the worker: {error.strerror}")
    return compile(source, script, "exec", dont_inherit=True)


def run(code: CodeType, script: str) -> None:
    """In `__main__`, where pickles look for the script's classes."""
    namespace = sys.modules["__main__"].__dict__
    own = {"__name__", "__builtins__", "__doc__", "__loader__", "__package__"}
    for name in set(namespace) - own:
        del namespace[name]
    namespace.update(__file__=script, __spec__=None, __cached__=None, __doc__=None, __package__=None)
    exec(code, namespace)


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Without the frames that stand above the script's."""
    own = trace
    while own is not None and own.tb_frame.f_code is not run.__code__:
        own = own.tb_next
    trace = own.tb_next if own is not None else None
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    from baton_shim.session.programs import script_start

    # Not this copy, whose names would be the script's.
    script_start.main()
