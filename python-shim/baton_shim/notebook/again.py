"""`%gpu_output`: what a `%%gpu` cell showed, once more, for a page that was not open meanwhile.

What the session published the proxy keeps for a while; a cell's value, its error and what IPython shows after the cell
came through this kernel and are kept here.

**Invariant:** bounded: the oldest cells go first.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from baton_shim.base.interrupts import Interrupts
from baton_shim.notebook import outputs
from baton_shim.state import errors

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home
    from baton_shim.notebook.landing import Result

MOST_CELLS = 32
MOST_BYTES = 16 << 20
TICK_SECONDS = 1.0


@dataclass
class Cell:
    number: int
    calls: range
    """Those that were made for it. All but the last one ran anew."""
    value: tuple[dict[str, Any], dict[str, Any]] | None
    error: dict[str, Any] | None
    after: list[tuple[str, str]]

    def bytes(self) -> int:
        shown = self.value[0].values() if self.value else ()
        return sum(len(part) for part in shown if isinstance(part, (str, bytes))) + sum(len(c) for _, c in self.after)


@dataclass
class Again:
    cells: deque[Cell] = field(default_factory=deque)

    def note(
        self,
        number: int,
        calls: range,
        result: Result | None,
        error: BaseException | None,
        after: list[tuple[str, str]],
    ) -> None:
        value = result[1:] if result is not None else None
        self.cells.append(Cell(number, calls, value, described(error), after))
        while len(self.cells) > 1 and (len(self.cells) > MOST_CELLS or self._bytes() > MOST_BYTES):
            self.cells.popleft()

    def show(self, home: Home, number: int | None) -> None:
        if not self.cells:
            raise UsageError("No %%gpu cell has run yet")
        number = self.cells[-1].number if number is None else number
        cells = [cell for cell in self.cells if cell.number == number]
        if not cells:
            kept = ", ".join(f"In[{kept}]" for kept in sorted({cell.number for cell in self.cells}))
            raise UsageError(f"In[{number}] is not one of the last %%gpu cells\nhint: these are {kept}")
        for cell in cells:
            self._show(home, cell)

    def _bytes(self) -> int:
        return sum(cell.bytes() for cell in self.cells)

    def _show(self, home: Home, cell: Cell) -> None:
        for call in cell.calls:
            self._show_published(home, cell, call)
        if cell.value is not None:
            home.shell.display_pub.publish(*cell.value)
        if cell.error is not None:
            error = {"kind": "error", "content": json.dumps(cell.error), "metadata": b"", "buffers": []}
            outputs.publish(home.shell, error)
        for kind, content in cell.after:
            outputs.publish(home.shell, {"kind": kind, "content": content})

    def _show_published(self, home: Home, cell: Cell, call: int) -> None:
        """What the session published, which the proxy says output by output."""
        with Interrupts() as interrupts:
            home.link.send("output_wanted", call=call)
            while True:
                message = home.link.receive(interrupts, TICK_SECONDS)
                if message is None:
                    continue
                if message.name == "publish":
                    outputs.publish(home.shell, message.body["output"])
                elif message.name == "output_given":
                    break
                else:
                    home.overdue(message)
        if missing := message.body["missing"]:
            print(f"({missing} earlier outputs of In[{cell.number}] are no longer kept)")
        if interrupts.count:
            raise KeyboardInterrupt


def described(error: BaseException | None) -> dict[str, Any] | None:
    """As kernels publish it."""
    if error is None:
        return None
    name, value = type(error).__name__, str(error)
    return {"ename": name, "evalue": value, "traceback": errors.rendered(error) or [f"{name}: {value}"]}
