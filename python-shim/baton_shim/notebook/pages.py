"""Pages of the notebook that were opened while a `%%gpu` cell of an earlier page ran, or after it.

JupyterLab shows output only to the page that ran the cell. Baton's extension (`labextension/`) opens a comm here when a
page opens, and is told which cell runs and what the cells showed that the page can know nothing of. These are cells
that an earlier page asked for and that ended after the notebook was last saved.

In: `comm_open` of `baton.output` with `{"saved": when the page's file was written, in seconds since the epoch}`.
Out: `{"cell": {...}}` between two cells, and `{"running": {...}}` when the next one begins. A page answers that it has
put a cell in its place, and one of them is asked to save the notebook: if several did, JupyterLab would ask which to
keep.
A page that opens while a cell runs opens `baton.running` on a subshell, and is told which one.

**Invariant:** each cell is given to a page once. Nothing of this needs an open page, and nothing waits for one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton_shim.notebook.again import Cell
    from baton_shim.notebook.home import Home

TARGET = "baton.output"
RUNNING_TARGET = "baton.running"
MOST_PAGES = 32
"""The oldest goes first: a page that is closed says nothing."""


@dataclass
class Page:
    comm: Any
    session: str
    """The front-end's connection, which its requests name."""
    opened: Any
    """By the front-end's clock, as the dates of its requests."""
    saved: float
    given: set[str] = field(default_factory=set)
    """The cells that it was told of, by their request."""

    def knows(self, request: dict[str, Any]) -> bool:
        """Whether a page shows the cell by itself, or it is no notebook's cell."""
        header = request.get("header") or {}
        if not cell_id(request) or header.get("msg_id") in self.given:
            return True
        return bool(header["session"] == self.session or header["date"] >= self.opened)


class Pages:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._pages: deque[Page] = deque(maxlen=MOST_PAGES)
        self._running: tuple[dict[str, Any], int] | None = None
        self._saving: dict[str, Any] = {}
        """For each cell that a page was asked to save, by its request: when, by the front-end's clock."""

    def listen(self) -> None:
        manager = self._home.shell.kernel.comm_manager
        manager.register_target(TARGET, self._page_opened)
        manager.register_target(RUNNING_TARGET, self._asked_what_runs)

    def cell_begins(self, number: int, request: dict[str, Any]) -> None:
        self._running = request, number
        for page in list(self._pages):
            self._tell_running(page)

    def cell_ends(self) -> None:
        self._running = None
        if self._pages:
            self._soon()

    def _page_opened(self, comm: Any, message: dict[str, Any]) -> None:
        header, saved = message["header"], message["content"]["data"]["saved"]
        page = Page(comm, header["session"], header["date"], float(saved))
        comm.on_msg(partial(self._placed, page))
        self._pages.append(page)
        self._tell_running(page)
        self._soon()

    def _asked_what_runs(self, comm: Any, message: dict[str, Any]) -> None:
        """On the thread of a subshell, while a cell runs."""
        asks = Page(comm, message["header"]["session"], message["header"]["date"], 0)
        if (running := self._running_for(asks)) is not None:
            comm.send(running)
        comm.close()

    def _placed(self, page: Page, message: dict[str, Any]) -> None:
        request = message["content"]["data"]["placed"]
        # A page that opened later has found a file without the cell: the page that was asked is closed.
        if request not in self._saving or page.opened > self._saving[request]:
            self._saving[request] = message["header"]["date"]
            page.comm.send({"save": request})

    def _tell_running(self, page: Page) -> None:
        if (running := self._running_for(page)) is not None:
            page.comm.send({"running": running})

    def _running_for(self, page: Page) -> dict[str, Any] | None:
        running = self._running
        if running is None or page.knows(running[0]):
            return None
        request, number = running
        return {**named(request), "execution_count": number}

    def _soon(self) -> None:
        """On the kernel's own thread, where the proxy is asked for the outputs."""
        self._home.shell.kernel.io_loop.add_callback(self._give)

    def _give(self) -> None:
        from baton_shim.base.link import LinkClosed

        with self._home.between_cells() as free:
            if not free:  # its end calls again
                return
            requests: dict[str, list[Cell]] = {}
            for cell in self._home.again.cells:
                requests.setdefault(cell.request["header"]["msg_id"], []).append(cell)
            for page in list(self._pages):
                for cells in requests.values():
                    try:
                        self._give_cell(page, cells)
                    except (KeyboardInterrupt, LinkClosed):  # the next cell's end, or %gpu_output, tries again
                        return

    def _give_cell(self, page: Page, runs: list[Cell]) -> None:
        """`runs`: of the same cell of the notebook, which may have had `%%gpu` in it more than once."""
        from baton_shim.notebook.again import shown
        from baton_shim.notebook.file_outputs import FileOutputs

        last = runs[-1]
        if page.knows(last.request) or last.ended <= page.saved:
            return
        file_outputs = FileOutputs()
        for run in runs:
            for kind, content in shown(self._home, run):
                file_outputs.add(kind, content)
        for summary in last.summaries:
            file_outputs.add(summary["kind"], summary["content"])
        told = {**named(last.request), "execution_count": last.number, "outputs": file_outputs.outputs}
        page.comm.send({"cell": told})
        page.given.add(last.request["header"]["msg_id"])


def named(request: dict[str, Any]) -> dict[str, Any]:
    return {"id": cell_id(request), "request": request["header"]["msg_id"]}


def cell_id(request: dict[str, Any]) -> str | None:
    """As JupyterLab says it with a request."""
    found = (request.get("metadata") or {}).get("cellId")
    return found if isinstance(found, str) else None
