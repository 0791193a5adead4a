"""`%gpu_output`: a later cell shows the output of a `%%gpu` cell that ran while no page was open."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from baton_shim.base.link import Link
from baton_shim.notebook.again import Cell, RecentOutputs, published
from baton_shim.notebook.home import Home
from end_to_end import Kernel, wait_until

SHOWS = (
    "import sys\nfrom IPython.display import HTML, display\nprint('out')\nprint('err', file=sys.stderr)\n"
    "display(HTML('<b>bold</b>'), display_id='shown')\ndisplay({'a': 1})\n"
)
PLOT = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('plotted')"


def test_everything_that_a_cell_showed(kernel: Kernel) -> None:
    first = kernel.gpu(SHOWS + "[7]").ok()
    again = kernel.run("%gpu_output").ok()
    assert (again.stdout, again.stderr) == ("out\n", "err\n")
    value = [("display_data", text) for kind, text in first.outputs if kind == "execute_result"]
    assert value == [("display_data", "[7]")]
    displays = [output for output in again.outputs if output[0] == "display_data"]
    assert displays == [output for output in first.outputs if output[0] == "display_data"] + value


def test_a_page_that_was_closed_while_the_cell_ran(kernel: Kernel) -> None:
    begun, go_on = kernel.place.work / "begun", kernel.place.work / "go-on"
    kernel.begin(
        f"%%gpu\nimport pathlib, time\nprint('before', flush=True)\npathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(go_on)!r}).exists():\n    time.sleep(0.01)\nprint('after')\n'value'"
    )
    wait_until(begun.exists, "the cell runs")
    kernel.client.stop_channels()
    go_on.touch()
    kernel._connect()
    assert kernel.run("%gpu_output").ok().outputs == [
        ("stdout", "before\nafter\n"),
        ("display_data", "'value'"),
    ]


def test_errors_and_figures(kernel: Kernel) -> None:
    failed = kernel.gpu("print('x')\n1 / 0")
    again = kernel.run("%gpu_output").ok()
    assert [text for kind, text in again.outputs if kind != "error"] == ["x\n"]
    error = next(message["content"] for message in again.published if message["msg_type"] == "error")
    shown = next(message["content"] for message in failed.published if message["msg_type"] == "error")
    assert error == {"ename": "ZeroDivisionError", "evalue": "division by zero", "traceback": shown["traceback"]}
    kernel.gpu(PLOT).ok()
    plotted = kernel.run("%gpu_output").ok()
    assert plotted.stdout == "plotted\n"
    assert "image/png" in plotted.displays[-1]["data"]


def test_earlier_cells_by_their_number(kernel: Kernel) -> None:
    number = kernel.gpu("print('one')").ok().reply["execution_count"]
    kernel.gpu("print('two')").ok()
    assert kernel.run(f"%gpu_output {number}").ok().stdout == "one\n"
    assert kernel.run("%gpu_output").ok().stdout == "two\n"
    assert "is not one of the last %%gpu cells" in str(kernel.run("%gpu_output 9999").reply)
    assert "not a number" in str(kernel.run("%gpu_output last").reply)


def test_much_output_loses_its_beginning_and_says_so(kernel: Kernel) -> None:
    kernel.gpu(
        "from IPython.display import display\nfor number in range(20):\n    display(str(number) * 1_000_000)"
    ).ok()
    again = kernel.run("%gpu_output").ok()
    assert again.displays[-1]["data"]["text/plain"].startswith("'1919")
    count = len(again.displays)
    assert 0 < count < 20
    assert f"({20 - count} earlier outputs of In[" in again.stdout


@pytest.mark.parametrize("code", ["%gpu_output", "%gpu_output 3"])
def test_without_a_cell(new_kernel: Callable[[], Kernel], code: str) -> None:
    assert "No %%gpu cell has run yet" in str(new_kernel().run(code).reply)


@pytest.mark.parametrize(
    ("answer", "error"), [(None, KeyboardInterrupt), ("no JSON", json.JSONDecodeError)], ids=["interrupt", "no JSON"]
)
def test_an_answer_that_is_given_up_is_not_mixed_with_the_next(answer: str | None, error: type[BaseException]) -> None:
    ours, theirs = socket.socketpair()
    proxy = Link(theirs)
    home: Any = SimpleNamespace(link=Link(ours), recent_outputs=RecentOutputs(), background=None)
    home.overdue = lambda message: Home.overdue(home, message)
    cell = Cell(1, range(3, 4), {}, None, None, [], [])

    def publish(content: str) -> None:
        proxy.send("publish", call=3, output={"kind": "stream", "content": content})

    def begin_answer() -> None:
        assert proxy.receive() is not None
        if answer is None:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            publish(answer)

    thread = threading.Thread(target=begin_answer)
    thread.start()
    with pytest.raises(error):
        published(home, cell, 3)
    thread.join()
    for text in ("late", "next"):
        publish(f'{{"text": "{text}"}}')
        proxy.send("output_given", call=3, missing=0)
    assert published(home, cell, 3) == [("stream", {"text": "next"})]
    publish('{"text": "last"}')
    proxy.send("output_given", call=3, missing=0)
    assert published(home, cell, 3) == [("stream", {"text": "last"})]
