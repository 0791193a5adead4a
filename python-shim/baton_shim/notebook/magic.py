"""`%%gpu` in IPython: the cell magic, a line magic that explains it, and a transformer that finds it.

**Invariant:** importing and registering are cheap and silent; everything else is loaded with the first `%%gpu` cell.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

from baton_shim.base import compat, tested
from baton_shim.base.compat import FIT
from baton_shim.base.source import GPU_LINE
from baton_shim.notebook import both, line_magics
from baton_shim.notebook.gpu_line import read, with_options
from baton_shim.notebook.mistakes import catch

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_shim.notebook.home import Home
    from baton_shim.notebook.options import Options

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
    catch(shell, "cell", dict.fromkeys(NEAR_MISSES, misspelt))
    shell.register_magic_function(explain, "line", "gpu")
    catch(shell, "line", {"%gpu": misplaced})
    line_magics.register(shell, home, why_not)
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

    completion.register(shell, parser, line_magics.WORDS)


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
