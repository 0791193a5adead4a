"""The output of a `%%gpu` cell: that of an ordinary cell, plus one line that says where it ran."""

from __future__ import annotations

import re

import pytest
from end_to_end import Cell, Gate, Kernel, wait_until
from end_to_end.results import NOTICE, displayed


def check_same(kernel: Kernel, body: str) -> list[tuple[str, str]]:
    """Checks that the cell shows the same with and without `%%gpu`."""
    here = kernel.run(body).ok().outputs
    there = kernel.gpu(body).ok().outputs
    assert there == here
    return there


def test_it_runs_in_another_process_that_stays_warm(kernel: Kernel) -> None:
    here = kernel.evaluate("__import__('os').getpid()")
    assert kernel.session_pid != here
    assert kernel.session_pid == kernel.session_pid


def test_the_summary_line_says_where(kernel: Kernel) -> None:
    result = kernel.gpu("pass").ok()
    line = r"CPU: \d+\.\d s on \S+, waited \d+\.\d s(, started in \d+\.\d s)?, peak \S+ [KMG]iB of main memory"
    assert re.fullmatch(line, result.summary)
    assert result.outputs == []


@pytest.mark.parametrize("end", ["42", "1 / 0", "import matplotlib.pyplot as plt; plt.plot([1]); plt.show()"])
def test_the_line_stands_below_all_that_the_cell_shows(kernel: Kernel, end: str) -> None:
    """Also if the line has already said that the cell runs."""
    go_on = f"import time; began = time.monotonic()\nwhile time.monotonic() < began + 1.5: time.sleep(0.05)\n{end}"
    shown = displayed(kernel.gpu(go_on).published)
    assert re.match(r"CPU: \d", shown.pop())
    assert shown
    assert not [text for text in shown if NOTICE.match(text)]
    printed = displayed(kernel.gpu(f"print('first')\n{end}").published)
    assert (printed[0], printed[-1][:5]) == ("first\n", "CPU: ")


def wait_for_running(cell: Cell) -> None:
    cell.wait_for(lambda result: any(line.startswith("Running on") for line in result.notices), "it is said to run")


def test_a_cell_that_shows_nothing_is_said_to_run(kernel: Kernel, gate: Gate) -> None:
    cell = kernel.begin(f"%%gpu\n{gate.closed()}")
    wait_for_running(cell)
    gate.open()
    assert [text[:5] for text in displayed(cell.finish().ok().published)] == ["CPU: "]


def test_what_the_notebook_has_printed_stays(kernel: Kernel, gate: Gate) -> None:
    """There is no message that removes only Baton's line."""
    body = f"{gate.closed()}print('b')"
    cell = kernel.begin(f"print('a')\nget_ipython().run_cell_magic('gpu', '', {body!r})")
    wait_for_running(cell)
    gate.open()
    shown = displayed(cell.finish().ok().published)
    assert [shown[0], shown[1][:5], shown[2]] == ["a\n", "CPU: ", "b\n"]


def test_everything_comes_from_one_kernel(kernel: Kernel) -> None:
    """According to the header. JupyterLab drops a waiting message if one of another kernel session arrives."""
    shown = kernel.gpu("print('x')\ndisplay(1)\n2").ok().published
    kinds = {message["msg_type"] for message in shown}
    assert kinds >= {"execute_input", "stream", "display_data", "execute_result"}
    assert len({message["header"]["session"] for message in shown}) == 1


def test_memory_of_a_gpu_that_nobody_limits_is_said(kernel: Kernel) -> None:
    result = kernel.run("%%gpu --mem 1.5G\nprint('x')").ok()
    assert result.stdout == "x\n"
    assert result.stderr.startswith("warning: %%gpu --mem 1.5 GiB has no effect here: ")
    assert "hint: write it as 8G" in str(kernel.run("%%gpu --mem much\npass").reply)


def test_a_gpu_is_refused_where_there_is_none(kernel: Kernel) -> None:
    refused = str(kernel.run("%%gpu --gpu a100\nprint('x')").reply)
    assert "This cell asks for the GPU a100, but the connected workers have no GPU" in refused
    assert "leave --gpu out" in refused
    job = re.search(r"\(job ([0-9a-f]{8})\)", refused)
    assert job is not None
    status = kernel.run("%gpu_status").ok().stdout
    assert re.match(rf"Last cell: In\[\d+\], job {job[1]}, never started\n", status)
    kernel.gpu("pass").ok()
    assert re.match(r"Last cell: In\[\d+\], job [0-9a-f]{8}, on \w", kernel.run("%gpu_status").ok().stdout)
    assert "hint: write it as a100" in str(kernel.run("%%gpu --gpu ''\npass").reply)


def test_a_quiet_cell_has_no_summary_line(kernel: Kernel) -> None:
    assert kernel.run("%%gpu --quiet\nprint('x')").ok().notices == []


def test_streams_in_order(kernel: Kernel) -> None:
    body = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')"
    result = kernel.gpu(body).ok()
    assert result.stdout == "one\nthree\n"
    assert result.stderr == "two\n"


def test_a_line_without_end_and_an_empty_print(kernel: Kernel) -> None:
    check_same(kernel, "print('a', end='')\nprint()\nprint('', end='')")


def test_output_comes_while_the_cell_runs(kernel: Kernel) -> None:
    flag = kernel.place.work / "go-on"
    cell = kernel.begin(
        f"%%gpu\nimport os, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(flag)!r}):\n"
        "    time.sleep(0.01)\nprint('done')"
    )
    cell.wait_for_text("begun\n")
    assert not cell.done
    flag.touch()
    assert cell.finish().ok().stdout == "begun\ndone\n"


def test_what_is_said_while_the_state_arrives_is_not_lost(kernel: Kernel) -> None:
    """Before the session reports that the cell has started; because of the pause, the first line is sent alone."""
    define = (
        "class Loud:\n    def __setstate__(self, state):\n        import time\n"
        "        print('arrives', flush=True)\n        time.sleep(0.5)\n        self.__dict__ = state\n"
        "loud = Loud()\nloud.x = 1"
    )
    kernel.run(define).ok()
    assert kernel.gpu("print(loud.x)").ok().stdout == "arrives\n1\n"


def test_what_a_thread_prints_after_its_cell_is_not_shown(kernel: Kernel) -> None:
    go, done = (kernel.place.work / f"thread-{name}" for name in ("goes", "done"))
    kernel.gpu(
        f"import os, pathlib, threading, time\ndef late():\n    while not os.path.exists({str(go)!r}):\n"
        f"        time.sleep(0.01)\n    print('late', flush=True)\n    pathlib.Path({str(done)!r}).touch()\n"
        "threading.Thread(target=late).start()\nprint('begun')"
    ).ok()
    go.touch()
    wait_until(done.exists, "the thread has printed")
    assert kernel.gpu("print('next')").ok().stdout == "next\n"


def test_everything_is_there_when_the_cell_ends(kernel: Kernel) -> None:
    """Including the output of its threads, and output that was not flushed."""
    code = (
        "import threading\nfrom IPython.display import display\ndef speak():\n"
        "    thread = threading.Thread(target=lambda: display('by a thread'))\n    print('first', end='')\n"
        "    display('shown')\n    thread.start()\n    thread.join()\n    print('last', end='')\nspeak()"
    )
    expected = check_same(kernel, code)
    assert len(expected) == 4
    for _ in range(20):
        assert kernel.gpu(code).ok().outputs == expected


def test_much_output_is_complete(kernel: Kernel) -> None:
    lines = kernel.gpu("for number in range(20_000):\n    print(number)").ok().stdout.split()
    assert lines == [str(number) for number in range(20_000)]


def test_output_comes_between_execute_input_and_idle(kernel: Kernel) -> None:
    # `Cell.take` refuses output after idle.
    result = kernel.gpu("print('x')").ok()
    assert result.published[0]["msg_type"] == "execute_input"
    parents = {message["parent_header"]["msg_id"] for message in result.published}
    assert len(parents) == 1


def test_displays(kernel: Kernel) -> None:
    outputs = check_same(
        kernel,
        "from IPython.display import HTML, display\ndisplay(HTML('<b>bold</b>'))\ndisplay({'a': 1}, [2])",
    )
    assert len(outputs) == 3


def test_a_display_is_updated_by_its_cell_and_by_later_ones(kernel: Kernel) -> None:
    first = kernel.gpu(
        "from IPython.display import display\nhandle = display('old', display_id='shown')\nhandle.update('new')"
    ).ok()
    assert first.outputs == [("display_data", "'old'"), ("update_display_data", "'new'")]
    assert [content["transient"]["display_id"] for content in first.displays] == ["shown"]
    there = kernel.gpu("handle.update('later')").ok()
    assert there.outputs == [("update_display_data", "'later'")]
    here = kernel.run("from IPython.display import update_display\nupdate_display('here', display_id='shown')").ok()
    assert here.outputs == [("update_display_data", "'here'")]


def test_clear_output(kernel: Kernel) -> None:
    check_same(
        kernel,
        "from IPython.display import clear_output\nprint('old')\nclear_output(wait=True)\nprint('new')\nclear_output()",
    )


def test_a_matplotlib_figure(kernel: Kernel) -> None:
    result = kernel.gpu("import matplotlib.pyplot as plt\n_ = plt.plot([1, 3, 2])").ok()
    (figure,) = result.displays
    assert figure["data"]["image/png"].startswith("iVBOR")
    assert figure["data"]["text/plain"].startswith("<Figure size ")


def test_tqdm_as_text(kernel: Kernel) -> None:
    result = kernel.gpu("from tqdm import tqdm\nfor _ in tqdm(range(40), mininterval=0):\n    pass").ok()
    bar = result.stderr.split("\r")[-1]
    assert "100%" in bar
    assert "40/40" in bar


def test_a_widget_appears_and_moves(kernel: Kernel) -> None:
    result = kernel.gpu(
        "import ipywidgets\nbar = ipywidgets.IntProgress(max=3)\ndisplay(bar)\nfor step in range(1, 4):\n"
        "    bar.value = step"
    ).ok()
    opened = {content["comm_id"]: content["data"]["state"] for content in result.of("comm_open")}
    bar_id = next(comm for comm, state in opened.items() if state.get("_model_name") == "IntProgressModel")
    moves = [
        content["data"]["state"]["value"]
        for content in result.of("comm_msg")
        if content["comm_id"] == bar_id and "value" in content["data"].get("state", {})
    ]
    assert moves == [1, 2, 3]
    (shown,) = result.displays
    assert shown["data"]["application/vnd.jupyter.widget-view+json"]["model_id"] == bar_id


def test_capture_around_it(kernel: Kernel) -> None:
    result = kernel.run("%%capture got\n%%gpu\nprint('inside')\ndisplay('shown')").ok()
    assert result.outputs == []
    assert kernel.evaluate("got.stdout") == "inside\n"
    assert kernel.evaluate("[output.data['text/plain'] for output in got.outputs]") == ["'shown'"]


def test_silent_cells_have_no_value(kernel: Kernel) -> None:
    result = kernel.gpu("number = 5\nnumber", silent=True)
    assert result.published == []
    assert kernel.evaluate("number") == 5


def test_one_large_display_arrives(kernel: Kernel) -> None:
    cell = kernel.gpu("display({'text/plain': 'x' * 20_000_000}, raw=True)").ok()
    assert [(kind, len(text)) for kind, text in cell.outputs] == [("display_data", 20_000_000)]
