"""Blocks under `with gpu:` and calls of `@gpu` functions in the notebook kernel, where they are sent to the session.

**Invariant:** importing this module loads nothing that only remote cells need.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from baton_shim.base import cell_blocks
from baton_shim.base.blocks import NOT_TRANSFORMED
from baton_shim.notebook.gpu_line import of_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton_shim.base.blocks import Work
    from baton_shim.base.job import Job
    from baton_shim.notebook.home import Home
    from baton_shim.notebook.options import Options


class NotebookBlocks:
    """The kernel that the package `baton` uses in the notebook."""

    remote = True
    not_transformed = NOT_TRANSFORMED

    def __init__(self, home: Home, parse: Callable[[str], Options]) -> None:
        """`parse` reads the line after `%%gpu`."""
        self._home, self._parse = home, parse
        cell_blocks.begin(self, home.shell)

    def options(self, given: dict[str, Any]) -> Options:
        return of_arguments(given, self._parse)

    def run_in_background(self, work: Work, given: dict[str, Any]) -> Job:
        check_thread()
        return self._home.run_in_background(work, self.options(given)._replace(background=""))

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
    from baton_shim.state.errors import GpuServiceError, safe

    check_thread()
    try:
        yield
    except GpuServiceError as error:
        error.unit = unit
        error.message = error.message.replace(safe("cell"), safe(unit))
        raise


def check_thread() -> None:
    if not runs_cells(threading.current_thread()):
        raise RuntimeError(
            "'with gpu:' and '@gpu' do not work in threads\n"
            "hint: use them in the cell itself, and start the threads inside the block"
        )


def runs_cells(thread: threading.Thread) -> bool:
    """Whether it is the main thread or the thread of one of Jupyter's subshells."""
    return thread is threading.main_thread() or type(thread).__module__.startswith("ipykernel.")
