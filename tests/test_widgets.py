"""Widgets and other comms of `%%gpu` cells: shown at once, and live in the notebook after the cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from end_to_end import Cell, Gate, Kernel
from end_to_end.results import Result

IMPORTS = "import ipywidgets as widgets\n"
CLICK = {"method": "custom", "content": {"event": "click"}}


def comm_of(result: Result, model: str) -> str:
    """The id of the only comm that the cell opened for a widget of this model."""
    opened = result.of("comm_open")
    (comm_id,) = (each["comm_id"] for each in opened if each["data"]["state"].get("_model_name") == model)
    return str(comm_id)


def say(kernel: Kernel, comm_id: str, data: dict[str, Any]) -> None:
    """Sends a client's message to a comm; a cell that is sent later runs later."""
    kernel.client.shell_channel.send(
        kernel.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data | {"buffer_paths": []}})
    )


def move(kernel: Kernel, comm_id: str, value: int) -> None:
    say(kernel, comm_id, {"method": "update", "state": {"value": value}})


def click(kernel: Kernel, comm_id: str) -> None:
    say(kernel, comm_id, CLICK)


def click_on_subshell(kernel: Kernel, comm_id: str, subshell: str | None) -> Cell:
    request = kernel.client.session.msg("comm_msg", {"comm_id": comm_id, "data": CLICK})
    request["header"]["subshell_id"] = subshell
    return kernel.send(request)


def open_comms(kernel: Kernel) -> set[str]:
    return set(kernel.client.comm_info(reply=True, timeout=60)["content"]["comms"])


def check_slider(kernel: Kernel, make: Callable[..., Result]) -> None:
    """However the slider was created, it moves, its observers notice, and both kinds of cells read it."""
    made = make(
        IMPORTS + "seen = []\nslider = widgets.IntSlider(max=10)\n"
        "slider.observe(lambda change: seen.append(change['new']), 'value')\nslider"
    ).ok()
    comm_id = comm_of(made, "IntSliderModel")
    assert comm_id in open_comms(kernel)
    move(kernel, comm_id, 7)
    assert kernel.evaluate("(slider.value, seen)") == (7, [7])
    assert kernel.gpu("print(slider.value)").ok().stdout == "7\n"
    there = kernel.gpu("slider.value = 3").ok()
    assert [content["data"]["state"] for content in there.of("comm_msg")] == [{"value": 3}]
    move(kernel, comm_id, 4)
    assert kernel.evaluate("(slider.value, seen)") == (4, [7, 3, 4])
    here = kernel.run("slider.value = 5").ok()
    assert [content["comm_id"] for content in here.of("comm_msg")] == [comm_id]


def test_a_page_gets_all_widgets_although_a_part_of_one_stayed_in_the_session(kernel: Kernel) -> None:
    made = kernel.gpu(
        IMPORTS + "slider = widgets.IntSlider(3)\nimage = widgets.Image(value=bytearray(b'abc'), width=7)\nslider"
    ).ok()
    assert "memory that can change" in kernel.run("len(image.value)").plain_traceback
    content = {"comm_id": "control", "target_name": "jupyter.widget.control", "data": {}}
    opened = kernel.client.session.msg("comm_open", content, metadata={"version": "1.0.0"})
    kernel.client.shell_channel.send(opened)
    request = {"comm_id": "control", "data": {"method": "request_states"}}
    asked = kernel.send(kernel.client.session.msg("comm_msg", request))
    answer = asked.wait_for(lambda so_far: so_far.of("comm_msg"), "the states of the widgets")
    (states,) = (message["data"]["states"] for message in answer.of("comm_msg"))
    assert states[comm_of(made, "IntSliderModel")]["state"]["value"] == 3
    image = states[comm_of(made, "ImageModel")]["state"]
    assert image["width"] == "7"
    assert "value" not in image


def test_a_slider_of_a_gpu_cell(kernel: Kernel) -> None:
    check_slider(kernel, kernel.gpu)


def test_a_slider_of_an_ordinary_cell(kernel: Kernel) -> None:
    check_slider(kernel, kernel.run)


def test_a_button_that_no_variable_names(kernel: Kernel) -> None:
    made = kernel.gpu(
        IMPORTS + "clicks = []\n"
        "def show():\n    button = widgets.Button()\n    button.on_click(lambda _: clicks.append(1))\n"
        "    display(button)\n"
        "show()"
    ).ok()
    click(kernel, comm_of(made, "ButtonModel"))
    assert kernel.evaluate("clicks") == [1]


def test_interact(kernel: Kernel) -> None:
    """The function runs once in the cell, and again in the notebook whenever its slider moves."""
    made = kernel.gpu(
        "from ipywidgets import interact\nfactor = 10\nshown = []\n@interact(x=(0, 5))\ndef scaled(x=2):\n"
        "    shown.append(x * factor)\n    print(x * factor)"
    ).ok()
    assert made.stdout == "20\n"
    kernel.run("factor = 100").ok()
    move(kernel, comm_of(made, "IntSliderModel"), 4)
    assert kernel.evaluate("shown") == [20, 400]


def test_an_output_widget_catches_what_a_cell_prints(kernel: Kernel) -> None:
    """Clients put messages there that have the cell's message id."""
    made = kernel.gpu(IMPORTS + "out = widgets.Output()\nwith out:\n    print('inside')").ok()
    comm_id = comm_of(made, "OutputModel")
    (cell,) = {message["parent_header"]["msg_id"] for message in made.published}
    states = [content["data"]["state"] for content in made.of("comm_msg") if content["comm_id"] == comm_id]
    assert [state["msg_id"] for state in states] == [cell, ""]


def test_tqdm_notebook(kernel: Kernel) -> None:
    made = kernel.gpu("from tqdm.notebook import tqdm\nfor _ in (bar := tqdm(range(3))):\n    pass").ok()
    comm_id = comm_of(made, "FloatProgressModel")
    states = [content["data"]["state"] for content in made.of("comm_msg") if content["comm_id"] == comm_id]
    assert {"value": 3.0} in states
    assert states[-1] == {"bar_style": "success"}
    assert kernel.evaluate("bar.n") == 3


def test_a_widget_that_a_gpu_cell_closes(kernel: Kernel) -> None:
    made = kernel.run(IMPORTS + "box = widgets.HBox()\nbox").ok()
    comm_id = comm_of(made, "HBoxModel")
    closed = kernel.gpu("box.close()").ok()
    assert [content["comm_id"] for content in closed.of("comm_close")] == [comm_id]
    assert comm_id not in open_comms(kernel)


def test_a_widget_outlives_what_the_session_holds_of_it(kernel: Kernel) -> None:
    made = kernel.run(IMPORTS + "box = widgets.HBox()\nbox").ok()
    kernel.gpu("children = box.children").ok()
    kernel.run("del box").ok()
    later = kernel.gpu("import gc\n_ = gc.collect()").ok()
    assert later.of("comm_close") == []
    assert comm_of(made, "HBoxModel") in open_comms(kernel)


def test_a_comm_of_ones_own(kernel: Kernel) -> None:
    made = kernel.gpu(
        "from comm import create_comm\ngot = []\nmine = create_comm(target_name='mine', data={'a': 1})\n"
        "mine.on_msg(lambda message: got.append(message['content']['data']['value']))"
    ).ok()
    (opened,) = made.of("comm_open")
    assert (opened["target_name"], opened["data"]) == ("mine", {"a": 1})
    say(kernel, opened["comm_id"], {"value": 5})
    assert kernel.evaluate("got") == [5]


def test_buffers_of_comms(kernel: Kernel) -> None:
    for front in ("", "%%gpu\n"):
        result = kernel.run(
            f"{front}from comm import create_comm\nmine = create_comm(target_name='mine')\n"
            "mine.send({'a': 1}, buffers=[b'one', bytes(100_000)])"
        ).ok()
        (message,) = (each for each in result.published if each["msg_type"] == "comm_msg")
        assert [bytes(buffer) for buffer in message["buffers"]] == [b"one", bytes(100_000)]


def test_a_click_while_the_cell_runs_waits_for_its_end(kernel: Kernel) -> None:
    """JupyterLab sends messages of widgets on a subshell, which is free while a cell runs."""
    flag = kernel.place.work / "clicked"
    cell = kernel.begin(
        f"%%gpu\n{IMPORTS}import os, time\nclicks = []\nbutton = widgets.Button()\n"
        "button.on_click(lambda _: clicks.append(1))\ndisplay(button)\n"
        f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)"
    )
    made = cell.wait_for(lambda result: result.displays, "the button is shown")
    subshell = kernel.ask_control("create_subshell_request")["subshell_id"]
    clicked = click_on_subshell(kernel, comm_of(made, "ButtonModel"), subshell)
    clicked.wait_for_idle()
    assert not cell.done
    flag.touch()
    cell.finish().ok()
    assert kernel.evaluate("clicks") == [1]
    kernel.ask_control("delete_subshell_request", {"subshell_id": subshell})


def test_a_callback_that_needs_a_gpu(kernel: Kernel) -> None:
    """It runs a `%%gpu` cell itself, also on a subshell; the output belongs to the callback."""
    made = kernel.run(
        IMPORTS + "import os\nsessions = []\nbutton = widgets.Button()\n@button.on_click\ndef there(_):\n"
        "    code = 'sessions.append(os.environ[\"BATON_SESSION\"]); print(1)'\n"
        "    get_ipython().run_cell_magic('gpu', '', code)\nbutton"
    ).ok()
    subshell = kernel.ask_control("create_subshell_request")["subshell_id"]
    for place in (None, subshell):
        clicked = click_on_subshell(kernel, comm_of(made, "ButtonModel"), place)
        clicked.wait_for_idle()
        assert clicked.so_far.stdout == "1\n"
    kernel.ask_control("delete_subshell_request", {"subshell_id": subshell})
    own = kernel.gpu("os.environ['BATON_SESSION']").ok().value
    assert kernel.evaluate("sessions") == [own.strip("'")] * 2


def test_widgets_of_a_cell_that_came_to_nothing_are_closed(kernel: Kernel, gate: Gate) -> None:
    cell = kernel.begin(f"%%gpu\n{IMPORTS}button = widgets.Button()\ndisplay(button)\n{gate.closed()}os._exit(3)")
    cell.wait_for(lambda result: result.displays, "the button is shown")
    gate.open()
    lost = cell.finish()
    assert lost.reply["status"] == "error"
    opened = [content["comm_id"] for content in lost.of("comm_open")]
    assert opened
    assert [content["comm_id"] for content in lost.of("comm_close")] == opened
    assert not open_comms(kernel).intersection(opened)


def test_standard_streams_and_bars_are_values_like_others(kernel: Kernel) -> None:
    kernel.gpu("import sys\nfrom tqdm import tqdm\nstream = sys.stdout\nbar = tqdm(total=3)\nbar.update(1)").ok()
    assert kernel.run("import sys\nprint(stream is sys.stdout, bar.n)").ok().stdout == "True 1\n"
    there = kernel.gpu("import sys\nbar.update(1)\nprint(stream is sys.stdout, bar.n)").ok()
    assert there.stdout == "True 2\n"
    # If the bar were garbage-collected later, it would end its line in another test's cell.
    kernel.gpu("bar.close()").ok()
