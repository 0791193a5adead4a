"""What the package `baton` uses in a plain Python program.

Blocks are taken out of modules that the program imports after this. The program's own file has already been compiled,
so its blocks need `python -m baton` (`run.py`).
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from typing import TYPE_CHECKING, Any

from baton_shim.base.local_modules import LocalModules
from baton_shim.base.packages import Packages
from baton_shim.program.home import ProgramHome
from baton_shim.program.words import reworded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton_shim.base.blocks import Work
    from baton_shim.base.job import Job
    from baton_shim.notebook.options import Options

BACKGROUND = (
    "f.background() works in a notebook only; nothing has run\n"
    "hint: call the function itself, or use gpu.map for several calls at once"
)


class ProgramBlocks:
    remote = True

    def __init__(self) -> None:
        modules = LocalModules(Packages())
        modules.note_loaded()
        modules.watch()
        self._home = ProgramHome(modules)

    @property
    def not_transformed(self) -> str:
        program = sys.argv[0] if sys.argv else ""
        if program in ("", "-", "-c"):
            start = "save the program in a file and start it with `python -m baton FILE`"
        else:
            start = f"start the program with `python -m baton {shlex.quote(program)}`"
        return (
            "This 'with gpu:' was compiled before Baton was imported, so its block cannot move to a GPU; "
            "none of it has run\n"
            f"hint: {start}, import baton before the module with the block, "
            "or put the block into a function under @gpu"
        )

    def options(self, given: dict[str, Any]) -> Options:
        from baton_shim.notebook.gpu_line import of_arguments

        return of_arguments(given)

    def run_in_background(self, work: Work, given: dict[str, Any]) -> Job:
        raise RuntimeError(BACKGROUND)

    def run(self, work: Work, given: dict[str, Any]) -> tuple[int, Any]:
        with in_words_of(work.unit):
            return self._home.run_block(work, self.options(given))

    def map(
        self, function: Callable[..., Any], items: list[tuple[Any, ...]], chunk: int, most: int | None, given: Any
    ) -> list[Any]:
        with in_words_of("call"):
            return self._home.map(function, items, chunk, most, self.options(given))


@contextlib.contextmanager
def in_words_of(unit: str) -> Iterator[None]:
    from baton_shim.state import errors

    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "'with gpu:' and '@gpu' do not work in threads\n"
            "hint: use them in the main thread, and start the threads inside the block"
        )
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()  # otherwise the block's output would come first
    try:
        yield
    except errors.GpuServiceError as error:
        error.unit = unit
        error.message = reworded(error.message, unit)
        error.hint = reworded(error.hint, unit) if error.hint is not None else None
        for line in error._render_traceback_()[1:]:
            error.add_note(line)
        raise
    except KeyboardInterrupt as error:
        for line in errors.rendered(error) or ():  # it was interrupted before its state was applied
            error.add_note(line.removeprefix("KeyboardInterrupt: "))
        raise
