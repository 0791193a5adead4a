"""`%gpu_save`, `%gpu_load` and `%gpu_states`: variables that outlive their kernel."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from end_to_end import Kernel, Service
from end_to_end.network import Network
from end_to_end.service import run_binary
from end_to_end.waiting import wait_until

MAKE = """
import collections, random
import numpy as np
np.random.seed(7); random.seed(7); np.random.rand(); random.random()
np.set_printoptions(precision=3)
x = np.arange(400_000.0)
view = x[100:200]
rows = [1, 2]; same = rows; nested = {'rows': rows, 'view': view}
cycle = []; cycle.append(cycle)
class Point:
    def __init__(self, at): self.at = at
    def far(self): return helper(self.at)
def helper(n): return n + offset
def counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
offset = 100
point = Point(3); step = counter(); step()
"""
LOOK = """(
    x.sum(), view.base is x, np.shares_memory(x, nested['view']), rows is same, nested['rows'] is rows,
    cycle[0] is cycle, point.far(), type(point) is Point, step(), np.random.rand(), random.random(),
    np.get_printoptions()['precision'])"""


@pytest.fixture
def later(new_kernel: Callable[..., Kernel]) -> Iterator[Callable[[Kernel], Kernel]]:
    """Kills a kernel with everything that it has, and starts the next one of the same person."""

    def start(kernel: Kernel) -> Kernel:
        kill(kernel)
        return new_kernel()

    return start


def kill(kernel: Kernel) -> None:
    kernel.proxy.send_signal(signal.SIGKILL)
    kernel.shutdown()


def test_everything_is_there_in_the_next_kernel(
    new_kernel: Callable[..., Kernel], later: Callable[[Kernel], Kernel]
) -> None:
    first = new_kernel()
    first.run(MAKE).ok()
    first.gpu("x[150] = -1; rows.append(3)").ok()
    said = first.run("%gpu_save all").ok()
    assert said.stdout.startswith("Saved Point, ")
    assert "warning" not in said.stderr
    expected = first.run(LOOK).ok().value
    second = later(first)
    assert second.run("%gpu_states").ok().stdout.startswith("all: ")
    said = second.run("x = 'mine'\n%gpu_load all").ok()
    assert "Replaced: x" in said.stdout
    assert second.run(LOOK).ok().value == expected
    assert second.gpu("view[0] = 5; float(x[100]), rows is same").ok().value == "(5.0, True)"
    assert second.run("float(x[100])").ok().value == "5.0"
    assert "Deleted all" in second.run("%gpu_states --delete all").ok().stdout
    missing = second.run("%gpu_load all")
    assert "You have no saved state all" in missing.plain_traceback
    assert "Your variables are as they were" in missing.plain_traceback


def test_what_cannot_be_saved_is_named(new_kernel: Callable[..., Kernel], later: Callable[[Kernel], Kernel]) -> None:
    first = new_kernel()
    first.run(
        "import threading\nown = threading.local()\nholder = {'deep': [own]}; number = 5; gen = (n for n in 'a')"
    ).ok()
    refused = first.run("%gpu_save partly --strict")
    assert "Nothing was saved" in refused.plain_traceback
    assert first.run("%gpu_states").ok().stdout.startswith("You have no saved states")
    said = first.run("%gpu_save partly").ok()
    for name in ("own", "holder", "gen"):
        assert f"warning: {name} is not saved: " in said.stderr
    second = later(first)
    said = second.run("%gpu_load partly").ok()
    for name in ("own", "holder", "gen"):
        assert f"Not included, because it could not be saved: {name}" in said.stdout
    assert second.run("number, 'holder' in globals()").ok().value == "(5, False)"
    second.run("%gpu_states --delete partly").ok()


def test_what_cannot_be_saved_is_named_at_any_depth(kernel: Kernel) -> None:
    kernel.run("large = [[n] for n in range(60_000)] + [(n for n in 'a')]; number = 5").ok()
    refused = kernel.run("%gpu_save partly --strict")
    assert "Nothing was saved" in refused.plain_traceback
    assert "large holds something that is a generator" in refused.plain_traceback
    said = kernel.run("%gpu_save partly").ok()
    assert "warning: large is not saved: " in said.stderr
    assert "Saved number as partly" in said.stdout
    kernel.run("%gpu_states --delete partly").ok()


def test_widgets_are_named_and_nothing_else_is_blamed_for_them(kernel: Kernel) -> None:
    kernel.run(
        "import ipywidgets as widgets\nslider = widgets.IntSlider()\nimage = widgets.Image(value=b'')\n"
        "holder = {'box': widgets.VBox([slider])}\nnumber = 5\nshell = get_ipython()\n"
        "@widgets.interact(n=3)\ndef shown(n): pass"
    ).ok()
    said = kernel.run("%gpu_save some").ok()
    assert said.stdout.startswith("Saved number, shell, widgets as some")
    assert [line for line in said.stderr.splitlines() if "is not saved" in line] == [
        "warning: holder is not saved: holds 'holder['box']', which is a widget, and widgets are not saved",
        "warning: image is not saved: is a widget, and widgets are not saved",
        "warning: shown is not saved: holds something that is a widget, and widgets are not saved",
        "warning: slider is not saved: is a widget, and widgets are not saved",
    ]


def test_computation_graphs_are_named(kernel: Kernel) -> None:
    kernel.run(
        "import torch\nweight = torch.ones(3, requires_grad=True)\nlosses = [(weight * 2).sum()]; plain = torch.ones(2)"
    ).ok()
    refused = kernel.run("%gpu_save graphs --strict")
    assert "the computation graph of losses" in refused.plain_traceback
    said = kernel.run("%gpu_save graphs").ok()
    assert "saved without the computation graph of losses." in said.stderr
    kernel.run("del losses\n%gpu_load graphs losses").ok()
    assert "compute it again" in kernel.run("losses[0].backward()").plain_traceback
    assert kernel.run("float(losses[0])").ok().value == "6.0"
    assert "graph" not in kernel.run("%gpu_save graphs weight plain --strict").ok().stderr
    kernel.run("%gpu_states --delete graphs").ok()


def test_a_function_brings_what_it_uses(new_kernel: Callable[..., Kernel], later: Callable[[Kernel], Kernel]) -> None:
    first = new_kernel()
    first.run(
        "import math\noffset = 1; scale = 10; unused = 2\n"
        "def inner(n): return math.floor(n) * scale\n"
        "def outer(n): return inner(n) + offset + len([n])\n%gpu_save functions"
    ).ok()
    said = first.run("%gpu_save alone outer").ok()
    assert "Not in alone: inner, math, offset, scale, which outer uses" in said.stderr
    second = later(first)
    said = second.run("offset = 5\n%gpu_load functions outer").ok()
    assert "Also loaded, because these use it: inner, math, scale" in said.stdout
    assert "Not in" not in said.stderr
    assert second.run("outer(2.5), 'unused' in globals()").ok().value == "(26, False)"
    second.run("%gpu_undo").ok()
    assert (
        second.run("offset, [n for n in ('outer', 'inner', 'math', 'scale') if n in globals()]").ok().value == "(5, [])"
    )
    said = second.run("%gpu_load alone").ok()
    assert "Not in alone or the notebook: inner, which outer uses" in said.stderr
    second.run("%gpu_states --delete functions").ok()
    second.run("%gpu_states --delete alone").ok()


def test_a_figure_is_there_in_the_next_kernel(
    new_kernel: Callable[..., Kernel], later: Callable[[Kernel], Kernel]
) -> None:
    first = new_kernel()
    first.run(
        "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\n"
        "figure, axes = plt.subplots(); [line] = axes.plot([1, 2, 4])\n%gpu_save figures"
    ).ok()
    second = later(first)
    second.run("%gpu_load figures").ok()
    look = "figure.axes[0] is axes, axes.lines[0] is line, line.get_ydata().tolist(), plt.gcf() is figure"
    assert second.run(look).ok().value == "(True, True, [1, 2, 4], True)"
    drawn = "import io; file = io.BytesIO(); figure.savefig(file); len(file.getvalue()) > 1000"
    assert second.run(drawn).ok().value == "True"
    second.run("%gpu_states --delete figures").ok()


def states(service: Service) -> list[dict[str, Any]]:
    said = run_binary(service.place, "states", "--json", **service.access)
    assert said.returncode == 0, said.stderr
    found: list[dict[str, Any]] = json.loads(said.stdout)
    return found


def test_an_interrupt_says_whether_something_was_done(
    service: Service, new_kernel: Callable[..., Kernel], network: Network
) -> None:
    service.start_broker()
    relay = network.relay(service.address, f"unix:{service.place.folder}/run/notebook.sock")
    kernel = service.kernel(new_kernel, BATON_BROKER_ADDRESS=relay.address)
    kernel.run("x = 1\n%gpu_save one x").ok()
    assert [state["name"] for state in states(service)] == ["one"]

    # The broker does it, but its answer is lost.
    relay.swallow("back")
    deleting = kernel.begin("%gpu_states --delete one")
    wait_until(lambda: states(service) == [], "the broker has done it")
    kernel.interrupt()
    stopped = deleting.finish()
    assert stopped.error is not None
    assert stopped.error[0] == "KeyboardInterrupt"
    assert "has not answered: %gpu_states shows whether it was done" in stopped.plain_traceback
    relay.mend()
    wait_until(lambda: "no saved states" in kernel.run("%gpu_states").ok().stdout, "it was done")

    # The broker cannot be reached, so it got no request.
    relay.cut()
    saving = kernel.begin("%gpu_save two x")
    saving.wait_for(lambda result: "Saving x ..." in result.stderr, "it waits for the broker")
    kernel.interrupt()
    stopped = saving.finish()
    assert stopped.error is not None
    assert stopped.error[0] == "KeyboardInterrupt"
    assert "Your variables and saved states are as they were" in stopped.plain_traceback


def test_a_full_disk_of_the_broker_leaves_the_older_state(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker(small_disk=True)
    kernel = service.kernel(new_kernel)
    kernel.run("import numpy as np\nx = np.arange(1000.0)\n%gpu_save mine").ok()
    kernel.run("x = np.random.rand(2_000_000)").ok()
    with service.full_disk():
        refused = kernel.run("%gpu_save mine")
        assert refused.error is not None
        assert "disk is full" in refused.plain_traceback
        assert "%gpu_states --delete NAME" in refused.plain_traceback
    assert kernel.run("%gpu_load mine\nfloat(x.sum())").ok().value == "499500.0"
    kernel.run("x = np.arange(2_000.0)\n%gpu_save mine\ndel x\n%gpu_load mine").ok()
    assert kernel.run("float(x.sum())").ok().value == "1999000.0"


def test_some_variables_and_undo(new_kernel: Callable[..., Kernel], later: Callable[[Kernel], Kernel]) -> None:
    first = new_kernel()
    first.run("a = [1]; b = a; c = 3; d = 4").ok()
    assert "Saved a, b, c as few" in first.run("%gpu_save few a b c").ok().stdout
    first.run("c = 33\n%gpu_save few a b c").ok()
    second = later(first)
    second.run("c = 'old'; kept = c").ok()
    said = second.run("%gpu_load few c").ok()
    assert "Replaced: c" in said.stdout
    assert second.run("c, 'a' in globals()").ok().value == "(33, False)"
    assert "Undone: the %gpu_load of In[" in second.run("%gpu_undo").ok().stdout
    assert second.run("c").ok().value == "'old'"
    assert "has no variable d" in second.run("%gpu_load few d").stderr
    for name in ("a/b", "..", "n" * 65):
        assert "is not a valid name for a state" in second.run(f"%gpu_save {name}").stderr
    second.run("%gpu_states --delete few").ok()


def test_what_came_from_a_session_or_a_state_is_saved_again(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    """Its memory is mapped, and not Python's own."""
    service.start_broker()
    service.start_worker()
    first = service.kernel(new_kernel)
    first.gpu("import torch\ntorch.manual_seed(1)\nmodel = torch.nn.Linear(300, 300).to('cuda')").ok()
    first.run("total = float(model.weight.sum())\n%gpu_save one").ok()
    kill(first)
    second = service.kernel(new_kernel)
    loaded = second.run("%gpu_load one").ok()
    saved = second.run("%gpu_save two").ok()
    assert "warning" not in loaded.stderr + saved.stderr
    kill(second)
    third = service.kernel(new_kernel)
    third.run("%gpu_load two").ok()
    look = "float(model.weight.sum()) == total, model.weight.device.type, model.weight.requires_grad"
    assert third.run(look).ok().value == "(True, 'cuda', True)"
    assert third.gpu(look).ok().value == "(True, 'cuda', True)"
    third.shutdown()


def test_a_broker_that_is_killed_keeps_what_was_saved(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    first = service.kernel(new_kernel)
    first.run("import numpy as np\nx = np.arange(3_000_000.0)\n%gpu_save big").ok()
    service.kill("broker")
    service.start_broker()
    kill(first)
    second = service.kernel(new_kernel)
    second.run("%gpu_load big").ok()
    assert second.run("float(x.sum())").ok().value == "4499998500000.0"


def test_the_command_lists_and_deletes(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    kernel = service.kernel(new_kernel)
    kernel.run("x = 1; y = 2\n%gpu_save one x\n%gpu_save two").ok()

    def says(*arguments: str) -> str:
        said = run_binary(service.place, "states", *arguments, **service.access)
        assert said.returncode == 0, said.stderr
        return said.stdout

    listed = json.loads(says("--json"))
    assert [(state["name"], state["variables"]) for state in listed] == [("one", 1), ("two", 2)]
    assert says().splitlines()[1].startswith("one ")
    assert "one" not in says("--delete", "one")
    assert kernel.run("%gpu_states").ok().stdout.startswith("two: ")


def test_a_full_quota_says_what_to_do(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker(BATON_BROKER_PERSON_CHUNK_LIMIT="4MiB")
    kernel = service.kernel(new_kernel)
    kernel.run("import numpy as np\nsmall = np.arange(1000)\nlarge = np.random.rand(1_000_000)").ok()
    kernel.run("%gpu_save one small").ok()
    refused = kernel.run("%gpu_save one large")
    assert "Quota exceeded" in refused.plain_traceback
    assert "%gpu_states --delete NAME" in refused.plain_traceback
    kernel.run("%gpu_load one").ok()
    assert kernel.evaluate("int(small.sum())") == 499500
