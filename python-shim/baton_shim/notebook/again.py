"""Output of the last `%%gpu` cells, kept for `%gpu_output` and for pages that were closed when it appeared.

In: each `%%gpu` cell that has ended. Out: its output, as iopub messages. The proxy keeps what the session published.
This kernel keeps what it published itself: the cell's value, its error, and what IPython shows after the cell.

**Invariant:** bounded: the oldest cells are dropped first.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from baton_shim.base.interrupts import Interrupts
from baton_shim.notebook import outputs
from baton_shim.state import errors

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home

MOST_CELLS = 32
MOST_BYTES = 16 << 20
TICK_SECONDS = 1.0


@dataclass
class Cell:
    """What a `%%gpu` cell has shown, apart from what the proxy keeps."""

    number: int
    calls: range
    """The numbers of its calls. There are several if a call had to be repeated."""
    request: dict[str, Any]
    """The front-end's `execute_request`."""
    value: tuple[dict[str, Any], dict[str, Any]] | None
    error: dict[str, Any] | None
    after: list[tuple[str, str]]
    """What IPython shows after the cell, with its contents as JSON."""
    summaries: list[dict[str, Any]]
    """The lines that say where the cell ran."""
    ended: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    def bytes(self) -> int:
        shown = self.value[0].values() if self.value else ()
        return sum(len(part) for part in shown if isinstance(part, (str, bytes))) + sum(len(c) for _, c in self.after)


@dataclass
class RecentOutputs:
    """The last `%%gpu` cells, the oldest one first."""

    cells: deque[Cell] = field(default_factory=deque)
    awaited: int = 0
    """How many requests to the proxy it has not answered. It answers in order, and all but the last were given up."""

    def note(self, cell: Cell) -> None:
        """Adds a cell, and drops the oldest ones above the limits."""
        self.cells.append(cell)
        while len(self.cells) > 1 and (len(self.cells) > MOST_CELLS or self._bytes() > MOST_BYTES):
            self.cells.popleft()

    def show(self, home: Home, number: int | None) -> None:
        """Publishes the output of In[number] again; None: of the last cell. Raises UsageError if it is not kept."""
        if not self.cells:
            raise UsageError("No %%gpu cell has run yet")
        number = self.cells[-1].number if number is None else number
        cells = [cell for cell in self.cells if cell.number == number]
        if not cells:
            kept = ", ".join(f"In[{kept}]" for kept in sorted({cell.number for cell in self.cells}))
            raise UsageError(f"In[{number}] is not one of the last %%gpu cells\nhint: the last ones are {kept}")
        for cell in cells:
            for kind, content in shown(home, cell):
                # This cell cannot have the value of an earlier one, so the value is displayed.
                kind = "display_data" if kind == "execute_result" else kind
                outputs.publish(home.shell, outputs.plain(kind, json.dumps(content)))

    def _bytes(self) -> int:
        return sum(cell.bytes() for cell in self.cells)


def shown(home: Home, cell: Cell) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything that the cell showed, as types and contents of iopub messages, in order."""
    for call in cell.calls:
        yield from published(home, cell, call)
    if cell.value is not None:
        data, metadata = cell.value
        yield "execute_result", {"data": data, "metadata": metadata, "execution_count": cell.number}
    if cell.error is not None:
        yield "error", cell.error
    for kind, content in cell.after:
        yield kind, json.loads(content)


def published(home: Home, cell: Cell, call: int) -> list[tuple[str, dict[str, Any]]]:
    """What the session published, as the proxy sends it. Raises `LinkClosed` if the proxy has ended."""
    found: list[tuple[str, dict[str, Any]]] = []
    recent = home.recent_outputs
    with Interrupts() as interrupts:
        home.link.send("output_wanted", call=call)
        recent.awaited += 1
        while True:
            message = home.link.receive(interrupts, TICK_SECONDS)
            if message is None:
                if interrupts.count:
                    raise KeyboardInterrupt
            elif recent.awaited > 1 or message.body.get("call") != call:
                home.overdue(message)
            elif message.name == "publish":
                output = message.body["output"]
                found.append((output["kind"], json.loads(output["content"])))
            elif message.name == "output_given":
                recent.awaited -= 1
                break
            else:
                home.overdue(message)
    if missing := message.body["missing"]:
        text = f"({missing} earlier outputs of In[{cell.number}] are no longer kept)\n"
        found.insert(0, ("stream", {"name": "stdout", "text": text}))
    if interrupts.count:
        raise KeyboardInterrupt
    return found


def described(error: BaseException | None) -> dict[str, Any] | None:
    """The error as kernels publish it."""
    if error is None:
        return None
    name, value = type(error).__name__, str(error)
    return {"ename": name, "evalue": value, "traceback": errors.rendered(error) or [f"{name}: {value}"]}
