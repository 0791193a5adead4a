"""Pages of the notebook that were opened during or after a `%%gpu` cell of an earlier page.

JupyterLab shows output only to the page that ran the cell. When a page opens, Baton's extension (`labextension/`) opens
a comm here. The page is sent which cell is running, and the output of cells that it cannot know: those that an earlier
page requested and that ended after the notebook was last saved.

In: `comm_open` of `baton.output` with `{"saved": when the page's file was written, in seconds since the epoch}`.
Out: `{"cell": {...}}` between two cells, and `{"running": {...}}` when the next one begins. A page replies that it has
shown a cell's output. Then one page is asked to save the notebook; if several saved it, JupyterLab would ask which
version to keep.
A page that opens while a cell runs also opens `baton.running` on a subshell, and is sent which cell it is.

**Invariant:** each cell is sent to a page once. Nothing here needs an open page, and nothing waits for one.
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
"""The oldest is dropped first, because a page that is closed does not report it."""


@dataclass
class Page:
    """An open page of the notebook, which knows some of its cells."""

    comm: Any
    session: str
    """The session id of the front end's connection, which its requests carry."""
    opened: Any
    """By the front end's clock, like the dates of its requests."""
    saved: float
    """When the file that the page shows was written, in seconds since the epoch."""
    given: set[str] = field(default_factory=set)
    """The cells that were sent to it, by the id of their request."""

    def knows(self, request: dict[str, Any]) -> bool:
        """Whether the page shows the cell anyway, or the cell is not in a notebook."""
        header = request.get("header") or {}
        if not cell_id(request) or header.get("msg_id") in self.given:
            return True
        return bool(header["session"] == self.session or header["date"] >= self.opened)


class Pages:
    """All open pages of the notebook."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._pages: deque[Page] = deque(maxlen=MOST_PAGES)
        self._running: tuple[dict[str, Any], int] | None = None
        self._saving: dict[str, Any] = {}
        """By the request of a cell: when a page was asked to save it, by the front end's clock."""

    def listen(self) -> None:
        manager = self._home.shell.kernel.comm_manager
        manager.register_target(TARGET, self._page_opened)
        manager.register_target(RUNNING_TARGET, self._asked_what_runs)

    def cell_begins(self, number: int, request: dict[str, Any]) -> None:
        self._running = request, number
        for page in list(self._pages):
            self._send_running(page)

    def cell_ends(self) -> None:
        self._running = None
        if self._pages:
            self._soon()

    def _page_opened(self, comm: Any, message: dict[str, Any]) -> None:
        header, saved = message["header"], message["content"]["data"]["saved"]
        page = Page(comm, header["session"], header["date"], float(saved))
        comm.on_msg(partial(self._placed, page))
        self._pages.append(page)
        self._send_running(page)
        self._soon()

    def _asked_what_runs(self, comm: Any, message: dict[str, Any]) -> None:
        """Called on the thread of a subshell, while a cell runs."""
        asks = Page(comm, message["header"]["session"], message["header"]["date"], 0)
        if (running := self._running_for(asks)) is not None:
            comm.send(running)
        comm.close()

    def _placed(self, page: Page, message: dict[str, Any]) -> None:
        request = message["content"]["data"]["placed"]
        # A page that opened later has loaded a file without the cell, so the page that was asked must be closed.
        if request not in self._saving or page.opened > self._saving[request]:
            self._saving[request] = message["header"]["date"]
            page.comm.send({"save": request})

    def _send_running(self, page: Page) -> None:
        if (running := self._running_for(page)) is not None:
            page.comm.send({"running": running})

    def _running_for(self, page: Page) -> dict[str, Any] | None:
        running = self._running
        if running is None or page.knows(running[0]):
            return None
        request, number = running
        return {**named(request), "execution_count": number}

    def _soon(self) -> None:
        """Continues on the kernel's own thread, which may ask the proxy for the outputs."""
        self._home.shell.kernel.io_loop.add_callback(self._give)

    def _give(self) -> None:
        from baton_shim.base.link import LinkClosed

        with self._home.between_cells() as free:
            if not free:  # the end of the running cell calls this again
                return
            requests: dict[str, list[Cell]] = {}
            for cell in self._home.recent_outputs.cells:
                requests.setdefault(cell.request["header"]["msg_id"], []).append(cell)
            for page in list(self._pages):
                for cells in requests.values():
                    try:
                        self._give_cell(page, cells)
                    except (KeyboardInterrupt, LinkClosed):  # the next cell's end, or %gpu_output, tries again
                        return

    def _give_cell(self, page: Page, runs: list[Cell]) -> None:
        """`runs`: those of one cell of the notebook, which may have used `%%gpu` more than once."""
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
        cell = {**named(last.request), "execution_count": last.number, "outputs": file_outputs.outputs}
        page.comm.send({"cell": cell})
        page.given.add(last.request["header"]["msg_id"])


def named(request: dict[str, Any]) -> dict[str, Any]:
    return {"id": cell_id(request), "request": request["header"]["msg_id"]}


def cell_id(request: dict[str, Any]) -> str | None:
    """The id of the notebook's cell, which JupyterLab sends with a request."""
    found = (request.get("metadata") or {}).get("cellId")
    return found if isinstance(found, str) else None
