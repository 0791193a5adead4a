"""`%%gpu` in IPython: the cell magic, a line magic that explains it, and a transformer that finds it.

**Invariant:** importing and registering are cheap and silent; everything else is loaded with the first `%%gpu` cell.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

from baton_shim.base import compat, tested
from baton_shim.base.compat import FIT
from baton_shim.base.source import GPU_LINE
from baton_shim.notebook import both
from baton_shim.notebook.gpu_line import read, with_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_shim.notebook.home import Home
    from baton_shim.notebook.options import Options

CONFIG = re.compile(r"notices=(?P<notices>quiet|normal)|virtual=(?P<virtual>on|off)")
JOB = re.compile(r"[0-9a-f-]+")
"""The last digits of a job, or the number of its cell."""
WORDS = {
    "gpu_config": ("notices=quiet", "notices=normal", "virtual=on", "virtual=off"),
    "gpu_reset": ("--lose",),
    "gpu_undo": ("--list",),
    "gpu_save": ("--strict",),
    "gpu_states": ("--delete",),
    "gpu_jobs": ("--cancel",),
}
"""The words that may follow the line magics."""
EXPLANATION = (
    "Put %%gpu (two percent signs) on the first line of a cell: the whole cell then runs on a GPU, with your "
    "variables, and its changes are here when it ends. '%%gpu?' shows the options"
)
EMPTY = "%%gpu applies to the cell it is in\nhint: write your code on the lines below it, in the same cell"
NEAR_MISSES = ("GPU", "Gpu", "gpu:", "GPU:", "Gpu:")
NO_PROXY = (
    "This kernel was started without Baton, so there is no GPU to send the cell to\n"
    "hint: select the kernel 'Python (shared GPU)' (Kernel > Change Kernel…)"
)


def register(shell: Any, home: Home | None, why_not: str) -> None:
    """Adds the magics. Without a `home` they fail with `why_not`."""

    @with_options
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpu(line: str, cell: str) -> Any:
        """Run this cell on a GPU, with the notebook's variables.

        The cell works as if it ran here: it sees the notebook's variables, and the notebook has its changes afterwards.
        It holds a GPU only while it runs. Interrupt works as for every cell.
        """
        if not {"-h", "--help"}.isdisjoint(line.split()):
            print(gpu.__doc__)
            return None
        options = parse(line)
        if not cell.strip():
            raise UsageError(EMPTY)
        if cell.lstrip().startswith("%%both"):
            raise UsageError("%%gpu is above %%both\nhint: write one of them; %%both runs here and in the session")
        if home is None:
            raise UsageError(why_not)
        if not options.quiet and (untested := tested.news()) is not None:
            sys.stderr.write(f"warning: {untested}\n")
        if options.background is None:
            return home.run_cell(cell, options)
        job = home.run_in_background(cell, options)
        if not options.background:
            return job
        home.namespace[options.background] = job
        return None

    def parse(line: str) -> Options:
        return read(line, quiet=home is not None and home.quiet, magic=gpu)

    @no_var_expand  # type: ignore[untyped-decorator]
    def explain(line: str) -> None:
        """Explain how to write `%%gpu`."""
        if line.strip():
            raise UsageError(f"%gpu does not run anything. {EXPLANATION}")
        print(EXPLANATION)

    @no_var_expand  # type: ignore[untyped-decorator]
    def misplaced(line: str) -> None:
        """`%%gpu` below other code: an error."""
        raise UsageError(
            "%%gpu must be on the first line; only comments, blank lines and other cell magics may come before it\n"
            "hint: make it the first line of its cell"
        )

    @no_var_expand  # type: ignore[untyped-decorator]
    def misspelt(line: str, cell: str) -> None:
        """`%%GPU` or `%%gpu:`: an error."""
        raise UsageError("This cell did not run\nhint: write %%gpu, in small letters and without a colon")

    shell.register_magic_function(gpu, "cell", "gpu")
    for name in NEAR_MISSES:
        shell.register_magic_function(misspelt, "cell", name)
    shell.register_magic_function(explain, "line", "gpu")
    shell.register_magic_function(misplaced, "line", "%gpu")
    register_line_magics(shell, home, why_not)
    both.register(shell, home)
    if home is not None:
        FIT.attach(compat.BLOCKS, take_out_blocks, home, parse)
    FIT.attach(compat.OPTIONS, complete, shell, gpu.parser)
    if hoist not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(hoist)


def take_out_blocks(home: Home, parse: Callable[[str], Options]) -> None:
    from baton_shim.notebook.blocks import NotebookBlocks

    NotebookBlocks(home, parse)


def complete(shell: Any, parser: Any) -> None:
    from baton_shim.notebook import completion

    completion.register(shell, parser, WORDS)


def register_line_magics(shell: Any, home: Home | None, why_not: str) -> None:
    """The line magics about the session."""

    def needed(*, alone: bool = False) -> Home:
        """`alone`: wait until no cell runs in the background."""
        if home is None:
            raise UsageError(why_not)
        if alone:
            home.wait_for_background()
        return home

    def status(line: str) -> None:
        """Show which session runs this notebook's `%%gpu` cells, what it holds, and what the last cell transferred."""
        from baton_shim.notebook.status import text

        print(text(needed()))

    def output(line: str) -> None:
        """Show the output of the last `%%gpu` cell again, or that of In[N]: `%gpu_output N`.

        For a cell whose output arrived while the notebook's page was closed.
        """
        home, number = needed(), line.strip()
        if number and not number.isdecimal():
            raise UsageError(f"%gpu_output {number}: not a number\nhint: write %gpu_output 3 for what In[3] showed")
        home.show_again(int(number) if number else None)

    def reset(line: str) -> None:
        """Drop the session: the next `%%gpu` cell starts from the notebook's variables.

        Waits first for results that have not arrived. `--lose` gives them up: the variables are as before those cells.
        """
        home = needed(alone=True)
        if line.strip() not in ("", "--lose"):
            raise UsageError(f"%gpu_reset {line.strip()}: unknown\nhint: write %gpu_reset or %gpu_reset --lose")
        if line.strip():
            home.deferred.give_up()
        home.deferred.fetch()
        home.void()
        print("The next %%gpu cell starts a new session from the notebook's variables")

    def undo(line: str) -> None:
        """Undo what the last `%%gpu` cell changed: variables, and settings of libraries.

        Used again, it undoes the cell before that. `--list` shows which cells can be undone. Files, packages and output
        are not undone.
        """
        home = needed(alone=True)
        if line.strip() not in ("", "--list"):
            raise UsageError(f"%gpu_undo {line.strip()}: unknown\nhint: write %gpu_undo or %gpu_undo --list")
        print(home.undo_log.text() if line.strip() else home.undo_log.run())

    def save(line: str) -> None:
        """Save the notebook's variables under a name, beyond the end of this kernel: `%gpu_save NAME`.

        With names of variables after NAME, saves only those. Variables that cannot be saved are reported and left out;
        with `--strict`, nothing is saved in that case. `%gpu_load NAME` restores them in any later kernel of yours.
        """
        words = line.split()
        strict = "--strict" in words
        name, *variables = [word for word in words if word != "--strict"] or [""]
        if not name or name.startswith("-") or any(word.startswith("-") for word in variables):
            raise UsageError("hint: write %gpu_save NAME, or %gpu_save NAME variable another --strict")
        print(needed(alone=True).saved_states.save(name, variables, strict=strict))

    def load(line: str) -> None:
        """Restore variables that `%gpu_save` saved: `%gpu_load NAME`, or only some: `%gpu_load NAME variable`.

        Variables of the same names are replaced. `%gpu_undo` undoes it.
        """
        name, *variables = line.split() or [""]
        if not name or any(word.startswith("-") for word in (name, *variables)):
            raise UsageError("hint: write %gpu_load NAME; %gpu_states lists the names")
        print(needed(alone=True).saved_states.load(name, variables))

    def states(line: str) -> None:
        """List what `%gpu_save` has saved, or delete one state: `%gpu_states --delete NAME`."""
        words = line.split()
        if words and (words[0] != "--delete" or len(words) != 2):
            raise UsageError("hint: write %gpu_states or %gpu_states --delete NAME")
        kept = needed(alone=True).saved_states
        print(kept.delete(words[1]) if words else kept.text())

    def jobs(line: str) -> None:
        """List the cells that `%%gpu --background` has run, and those of your earlier kernels that continue.

        `%gpu_jobs --cancel N` cancels that of In[N]. `%gpu_jobs --cancel 8f62a1b3` cancels one of an earlier kernel and
        deletes its results.
        """
        words, home = line.split(), needed()
        if words and (words[0] != "--cancel" or len(words) != 2 or not JOB.fullmatch(words[1])):
            raise UsageError("hint: write %gpu_jobs, or %gpu_jobs --cancel 3 to cancel In[3]")
        background = home.background
        if words and background is not None and background.has_number(words[1]):
            print(background.cancel_number(int(words[1])))
        elif words:
            print(home.earlier_jobs.discard(words[1]))
        else:
            own = background.text() if background is not None else ""
            earlier = home.earlier_jobs.text() if background is None or background.is_empty else ""
            print("\n".join(filter(None, [own, earlier])) or "No cell has run in the background")

    def attach(line: str) -> Any:
        """Get the results of a background cell of an earlier kernel: `%gpu_attach 8f62a1b3`.

        Waits until the cell has ended, and shows its output meanwhile. Its variables are bound as by `%gpu_load`. Its
        value is the value of the magic. `%gpu_jobs` lists the cells.
        """
        words = line.split()
        if len(words) > 1 or not all(map(JOB.fullmatch, words)):
            raise UsageError("hint: write %gpu_attach 8f62a1b3, with the digits that %gpu_jobs shows")
        return needed(alone=True).earlier_jobs.attach(words[0] if words else "")

    def config(line: str) -> None:
        """Change settings of this notebook: notices=quiet or normal, virtual=on or off."""
        from baton_shim.virtual import SWITCH

        home = needed()
        for part in line.split():
            found = CONFIG.fullmatch(part)
            if not found:
                known = "notices=quiet or notices=normal, virtual=on or virtual=off"
                raise UsageError(f"%gpu_config {part}: unknown\nhint: write {known}")
            if found["notices"]:
                home.quiet = found["notices"] == "quiet"
            else:
                SWITCH.turn(found["virtual"] == "on")
        print(f"notices={'quiet' if home.quiet else 'normal'} virtual={'on' if SWITCH.on else 'off'}")

    magics = {
        "gpu_status": status,
        "gpu_output": output,
        "gpu_reset": reset,
        "gpu_undo": undo,
        "gpu_save": save,
        "gpu_load": load,
        "gpu_states": states,
        "gpu_jobs": jobs,
        "gpu_attach": attach,
        "gpu_config": config,
    }
    for name, function in magics.items():
        shell.register_magic_function(function, "line", name)


def hoist(lines: list[str]) -> list[str]:
    """Moves a `%%gpu` that follows comments or blank lines to the first line.

    Only comments and blank lines may precede it, so it is neither inside a string nor below code. A line is added if
    nothing follows, because IPython does not call a magic whose cell is empty.
    """
    for number, line in enumerate(lines):
        text = line.strip()
        if GPU_LINE.match(line):
            if not "".join(lines[number + 1 :]).strip():
                return [f"{text}\n", "\n"]
            return lines if number == 0 else [line.lstrip(), *lines[:number], *lines[number + 1 :]]
        if text and not text.startswith("#"):
            return lines
    return lines
