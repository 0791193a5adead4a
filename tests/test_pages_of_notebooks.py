"""What a kernel sends to a new page about `%%gpu` cells of an earlier page. For JupyterLab see test_browser.py."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from end_to_end import Gate, Kernel, wait_until
from end_to_end.kernel import Cell


def begin(kernel: Kernel, cell_id: str | None, code: str) -> Cell:
    """Requests a cell as JupyterLab does."""
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True, "stop_on_error": False}
    metadata = {"cellId": cell_id} if cell_id else {}
    return kernel.send(kernel.client.session.msg("execute_request", content, metadata=metadata))


def open_page(kernel: Kernel, saved: float) -> Cell:
    """Opens a page on another connection. `saved`: when its file was written."""
    kernel.client.session.session = str(uuid.uuid4())
    content = {"comm_id": str(uuid.uuid4()), "target_name": "baton.output", "data": {"saved": saved}}
    page = kernel.send(kernel.client.session.msg("comm_open", content))
    page.speaks_after_idle = True
    return page


def told(page: Cell, what: str) -> list[dict[str, Any]]:
    said = [message["content"]["data"] for message in page.published if message["msg_type"] == "comm_msg"]
    return [one[what] for one in said if what in one]


def cells_of(kernel: Kernel, page: Cell) -> dict[str, Any]:
    """The cells that the page was sent, after running a cell before which the page is answered."""
    page.wait_for_idle()
    kernel.run("pass").ok()
    return {cell["id"]: cell for cell in told(page, "cell")}


def test_what_ended_after_the_file_was_saved(kernel: Kernel) -> None:
    early = begin(kernel, "early", "%%gpu\nprint('early')").finish()
    saved = time.time()
    late = begin(kernel, "late", "%%gpu\nprint('late')\n[7]").finish()
    begin(kernel, None, "%%gpu\nprint('a console asks so')").finish()
    begin(kernel, "ordinary", "print('ordinary')").finish()
    assert early.ok().stdout == "early\n"
    cells = cells_of(kernel, open_page(kernel, saved))
    assert list(cells) == ["late"]
    cell = cells["late"]
    assert cell["execution_count"] == late.ok().reply["execution_count"]
    assert cell["outputs"][:2] == [
        {"output_type": "stream", "name": "stdout", "text": "late\n"},
        {
            "output_type": "execute_result",
            "data": {"text/plain": "[7]"},
            "metadata": {},
            "execution_count": cell["execution_count"],
        },
    ]
    line = cell["outputs"][2]
    assert line["output_type"] == "display_data"
    assert " on cpu-" in line["data"]["text/plain"]


def test_a_page_shows_its_own_cells_itself(kernel: Kernel) -> None:
    page = open_page(kernel, time.time())
    page.wait_for_idle()
    begin(kernel, "own", "%%gpu\nprint('own')").finish()
    assert cells_of(kernel, page) == {}


def test_a_background_cell_that_ended_after_the_page_was_opened(kernel: Kernel, gate: Gate) -> None:
    cell = begin(kernel, "back", f"%%gpu --background job\nprint('begun')\n{gate.closed()}print('end')\n[7]")
    cell.speaks_after_idle = True
    cell.finish().ok()
    begin(kernel, "front", "1").finish().ok()
    page = open_page(kernel, time.time())
    page.wait_for_idle()
    assert [running["id"] for running in told(page, "running")] == ["back"]
    ended = kernel.begin("print('asks', flush=True)\njob.result()")
    ended.speaks_after_idle = True
    ended.wait_for_text("asks")  # so what the page is told belongs to this cell
    gate.open()
    ended.wait_for(lambda _: told(ended, "cell"), "the page is told")
    (shown,) = told(ended, "cell")
    assert shown["id"] == "back"
    outputs = shown["outputs"]
    assert outputs[0] == {"output_type": "stream", "name": "stdout", "text": "begun\nend\n"}
    assert outputs[1]["data"] == {"text/plain": "[7]"}
    assert " on cpu-" in outputs[2]["data"]["text/plain"]


def test_cells_that_waited_when_the_page_was_closed(kernel: Kernel, gate: Gate) -> None:
    """The new page is sent the running cell when it ends, and the next one, too; each once."""
    running = begin(kernel, "running", f"%%gpu\nprint('begun', flush=True)\n{gate.closed()}print('over')")
    running.wait_for_text("begun")
    waiting = begin(kernel, "waiting", "%%gpu\nfrom IPython.display import display, clear_output\nprint('waited')\n1/0")
    page = open_page(kernel, time.time())
    gate.open()
    waiting.finish()
    wait_until(lambda: cells_of(kernel, page).keys() == {"running", "waiting"}, "the page is told of both")
    kernel.gpu("pass").ok()
    kinds = [[output["output_type"] for output in cell["outputs"]] for cell in told(page, "cell")]
    assert kinds == [["stream", "display_data"], ["stream", "error", "display_data"]]


@pytest.mark.parametrize("content", [{}, {"saved": None}, {"saved": "yesterday"}])
def test_a_page_that_says_nothing_of_its_file(kernel: Kernel, content: dict[str, Any]) -> None:
    """Another extension with the same target does not disturb cells."""
    begin(kernel, "cell", "%%gpu\nprint('shown')").finish()
    message = {"comm_id": str(uuid.uuid4()), "target_name": "baton.output", "data": content}
    page = kernel.send(kernel.client.session.msg("comm_open", message))
    page.wait_for_idle()
    assert kernel.gpu("print('on')").ok().stdout == "on\n"
