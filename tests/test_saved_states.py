"""`%gpu_save`, `%gpu_load` and `%gpu_states`: variables that outlive their kernel."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
from end_to_end import Kernel, Service

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
    """Kills a kernel with all that it has, and starts the next one of the same person."""

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
        "import threading\nlock = threading.Lock(); lock.acquire()\n"
        "holder = {'deep': [lock]}; number = 5; gen = (n for n in 'a')"
    ).ok()
    refused = first.run("%gpu_save partly --strict")
    assert "Nothing was saved" in refused.plain_traceback
    assert first.run("%gpu_states").ok().stdout.startswith("You have no saved states")
    said = first.run("%gpu_save partly").ok()
    for name in ("lock", "holder", "gen"):
        assert f"warning: {name} is not saved: " in said.stderr
    second = later(first)
    said = second.run("%gpu_load partly").ok()
    for name in ("lock", "holder", "gen"):
        assert f"Not in it, because it could not be saved: {name}" in said.stdout
    assert second.run("number, 'holder' in globals()").ok().value == "(5, False)"
    second.run("%gpu_states --delete partly").ok()


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
        assert "is no name for a state" in second.run(f"%gpu_save {name}").stderr
    second.run("%gpu_states --delete few").ok()


def test_what_came_from_a_session_or_a_state_is_saved_again(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    """Its memory is mapped, not Python's own."""
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
