"""The running cell as Jupyter requested it: its source, its number, its request.

**Invariant:** reads IPython's state and changes nothing in it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from jupyter_client.jsonutil import json_default

from baton_shim.base import source
from baton_shim.notebook import analysis, outputs
from baton_shim.state.errors import short, with_lines

if TYPE_CHECKING:
    from baton_shim.base.blocks import Work


class NotebookCell:
    """A `%%gpu` cell. `body` is its text without the line of the magic."""

    block: Work | None = None
    """What the session runs instead of `code`."""
    unit = "cell"
    """What messages to the student call it: cell, block or call."""

    def __init__(self, shell: Any, body: str) -> None:
        self.shell = shell
        self.parent: dict[str, Any] = shell.kernel.get_parent("shell")
        self.content: dict[str, Any] = self.parent.get("content", {})
        self.code = source.numbered(spelled_out(shell, body), self.content.get("code", ""))
        self.number = cell_number(shell)
        self._transformed: dict[str, str] = {}

    def transform(self, source: str) -> str:
        """Transforms the source as IPython does before compiling; once for each text."""
        transformed = self._transformed.get(source)
        if transformed is None:
            transformed = self._transformed[source] = self.shell.transform_cell(source)
        return transformed

    def names(self) -> analysis.CellNames:
        """Raises the error of a cell that does not compile."""
        return analysis.of_cell(self.code, self.transform)

    def files(self) -> frozenset[str]:
        """Files that the session needs for tracebacks, besides those of functions."""
        return frozenset()

    def given(self) -> list[Any]:
        """The objects that a block or a call uses besides names."""
        block = self.block
        return [] if block is None else [block.function, block.arguments, *block.keywords.values()]

    def request(self) -> dict[str, Any]:
        """What the proxy must know about the cell, apart from its state."""
        header = self.parent["header"]
        return {
            "code": self.code,
            "parent_header": json.dumps(header, default=json_default).encode(),
            "message_id": header["msg_id"],
            "kernel_session": self.shell.kernel.session.session,
            "execution_count": self.number,
            "silent": bool(self.content.get("silent", False)),
            "allow_stdin": bool(self.content.get("allow_stdin", False)),
            "captured": outputs.captured(self.shell),
            "folder": folder(),
        }

    def not_compiled(self, error: Exception) -> BaseException:
        """The error with the lines that IPython would show for a cell without Baton."""
        if not isinstance(error, SyntaxError):  # a null byte, too many brackets
            return with_lines(error, [f"{type(error).__name__}: {short(error)}"])
        compiler = self.shell.compile
        transformed = self.transform(self.code) if error.filename == "<cell>" else self.code
        error.filename = compiler.cache(transformed, self.number, raw_code=self.code)
        return with_lines(error, self.shell.SyntaxTB.structured_traceback(type(error), error, []))


class BlockCell(NotebookCell):
    """A block of `with gpu:`, or a call of an `@gpu` function."""

    def __init__(self, shell: Any, work: Work) -> None:
        super().__init__(shell, work.text)
        self.code, self.block, self.unit = work.text, work, work.unit

    def transform(self, source: str) -> str:
        """A block is Python already."""
        return source

    def files(self) -> frozenset[str]:
        code = self.block.code if self.block is not None else None
        return frozenset(() if code is None else code[1:])

    def names(self) -> analysis.CellNames:
        function = self.block.function if self.block is not None else None
        return of_module(self.code) if function is None else analysis.of_function(function.__code__, self.code)


@functools.lru_cache(maxsize=64)
def of_module(text: str) -> analysis.CellNames:
    return analysis.of_cell(text, str)


def spelled_out(shell: Any, body: str) -> str:
    """Expands `ls`, `pwd` or an alias.

    IPython accepts them without a % only in a cell of one line, and the session's cell has more lines.
    """
    if len(body.strip().splitlines()) != 1 or shell.find_line_magic(body.split()[0]) is None:
        return body
    transformed: str = shell.transform_cell(body)
    whole: str = shell.prefilter_manager.prefilter_lines(transformed)
    return body if whole == transformed else whole


def folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return ""


def cell_number(shell: Any) -> int:
    """The n of `In [n]`: the number under which IPython compiled the frame of the cell that is running."""
    numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})
    frame = sys._getframe()
    number: int | None = None
    while frame is not None:
        number = numbers.get(frame.f_code.co_filename, number)
        frame = frame.f_back  # type: ignore[assignment]
    return number if number is not None else max(0, int(shell.displayhook.prompt_count))
