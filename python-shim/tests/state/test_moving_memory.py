"""Memory that changes its owner or is given back: `resize`, `.data = …`, storages that tensors share.

Whatever a cell wrote arrives, and no kernel reads or writes memory that belongs to something else by now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from baton_shim.state import Refused
from baton_shim.state.segments import Segments
from harness import Pair


@pytest.fixture
def pair(processes: Pair) -> Iterator[Pair]:
    processes.start_anew()
    yield processes
    processes.all_deferred = False


SMALL, LARGE = 100, 100_000
"""Elements of a received array that owns its memory, and of one whose memory is a page of the message."""


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
def test_a_write_counts_although_the_tensor_then_gets_other_memory(pair: Pair, deferred: bool, size: int) -> None:
    pair.all_deferred = deferred
    pair.local(f"import torch; x = torch.ones({size}); view = x.view({size // 10}, -1)")
    assert pair.remote("pass", "x", "torch") == {"error": None}
    assert pair.remote("x.mul_(3)", "x", "torch") == {"error": None}
    assert pair.remote("x.mul_(2); x.data = torch.zeros(5)", "x", "torch") == {"error": None}
    pair.local("")
    assert pair.namespace["view"].unique().tolist() == [6]
    assert pair.namespace["x"].tolist() == [0] * 5
    assert pair.remote("x.add_(1)", "x") == {"error": None}
    pair.local("")
    assert pair.namespace["view"].unique().tolist() == [6]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_array_of_a_tensor_keeps_its_memory(pair: Pair, size: int) -> None:
    """`tensor.numpy()` in a cell; then the tensor gets other memory, and nothing else has the array any more."""
    pair.local(f"import torch; t = torch.ones({size})")
    assert pair.remote("n = t.numpy()", "t", "torch") == {"error": None}
    assert pair.remote("t.data = torch.zeros(5); n += 1", "t", "torch", "n") == {"error": None}
    pair.local("view = n[:]; del n")
    for _ in range(2):
        assert pair.remote("pass", "torch", deleted=("n",)) == {"error": None}
    pair.local(f"others = [torch.full(({size},), -1.) for _ in range(20)]")
    assert set(pair.namespace["view"].tolist()) == {2}


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_tensor_cannot_be_resized_while_an_array_uses_its_memory(pair: Pair, size: int) -> None:
    """As in one process."""
    pair.local(f"import torch; t = torch.ones({size})")
    assert pair.remote("n = t.numpy()", "t", "torch") == {"error": None}
    with pytest.raises(RuntimeError, match="resiz"):
        pair.local("t.resize_(1_000_000)")
    assert pair.remote("n += float(t.sum()) / len(t)", "n", "t", "torch") == {"error": None}  # as it was before
    pair.local(f"t.resize_({size})")
    assert set(pair.namespace["t"].tolist()) == {2}
    assert pair.remote("t += 1", "n", "t", "torch") == {"error": None}
    assert set(pair.namespace["n"].tolist()) == {3}


def test_a_new_tensor_that_a_failed_resize_has_left_too_large_is_refused(pair: Pair) -> None:
    pair.local("import torch; t = torch.ones(5); n = t.numpy()")
    with pytest.raises(RuntimeError, match="resiz"):
        pair.local("t.resize_(1_000_000)")
    with pytest.raises(Refused, match="is larger than its memory, because a resize failed"):
        pair.remote("pass", "t", "torch")


def test_what_lies_behind_a_shortened_array_is_not_taken_for_a_view_of_it(pair: Pair) -> None:
    """The array has no name in the message, so that the message does not visit it."""
    pair.local("import numpy as np; a = np.ones(100); holder = [a]")
    assert pair.remote("pass", "a") == {"error": None}
    (segment,) = pair.table._segments.by_number.values()
    behind = segment.address + 200
    assert pair.table._segments.find(behind, 80) is segment
    pair.local("holder[0].resize(10, refcheck=False)")
    assert pair.table._segments.find(behind, 80) is None


OVERLAPS = {
    "two parts": ["t.mul_(2)", "u.add_(1)", "t.add_(u[0, 0].item())"],
    "two parts, then the whole": [("tu", "t.mul_(2); u.add_(1)"), ("tu", "u.mul_(3)"), ("atu", "a -= 2; t.add_(1)")],
    "the whole, then parts": [("a", "a += 1"), ("tu", "u.mul_(3); t.add_(1)"), ("a", "a -= 2")],
    "a part, then the whole": [("t", "t.mul_(2)"), ("at", "a -= 2; t.add_(1)"), ("tu", "u.mul_(3); t.add_(1)")],
    "parts, one later than the other": [
        ("u", "u.add_(1); v = u[1:]"),
        ("t", "t.mul_(2)"),
        ("tuv", "t.mul_(2); v.add_(1); u.mul_(2)"),
        ("av", "a += 1; v.mul_(2)"),
    ],
    "an array of a part, then the whole": [
        ("t", "n = t.numpy()[1:]; v = t[1:3]"),
        ("n", "n *= 2"),
        ("anv", "n += 1; a *= 2; v.add_(1)"),
        ("at", "t.add_(1); a *= 2"),
    ],
    "a parameter of a part, then the whole": [
        ("t", "t = torch.nn.Parameter(t); t.grad = v = torch.ones_like(t)"),
        ("a", "a += 1"),
        ("atv", "t.data.mul_(2); a += 1; v.add_(1)"),
    ],
    "a part of a part": ["v = torch.from_numpy(a[3:5])", "v.mul_(2)", "t.add_(v[0, 0].item())", "u.add_(1)"],
    "a part that only its session knows": ["v = torch.from_numpy(u.numpy()[1:]); del u", "v.add_(1)", "t.mul_(2)"],
}


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
@pytest.mark.parametrize("size", [2, 20_000])
@pytest.mark.parametrize("case", OVERLAPS)
def test_memory_that_is_shared_in_part(pair: Pair, case: str, size: int, deferred: bool) -> None:
    setup = f"""
import numpy as np, torch
a = np.arange(6. * {size}).reshape(6, {size}); t = torch.from_numpy(a[:4]); u = torch.from_numpy(a[2:])
"""
    control: dict[str, Any] = {}
    exec(setup, control)
    pair.local(setup)
    pair.all_deferred = deferred
    for step in OVERLAPS[case]:
        names, code = step if isinstance(step, tuple) else ("atuv", step)
        exec(code, control)
        if deferred and case == "a part, then the whole":
            pair.unsent(*names)
        known = [name for name in names if name in pair.namespace]
        gone = tuple(name for name in names if name not in pair.namespace)
        assert pair.remote(code, *known, "np", "torch", deleted=gone) == {"error": None}
        pair.local("")
        for name in set("atuvn") & control.keys():
            assert pair.namespace[name].tolist() == control[name].tolist(), (step, name)


@pytest.mark.parametrize("size", [8, 80_000])
@pytest.mark.parametrize("array", ["t.numpy()", "t.numpy()[1:]", "np.asarray(memoryview(t.numpy()[::2]))"])
def test_an_array_of_a_tensor_shares_its_memory_in_the_next_session(pair: Pair, array: str, size: int) -> None:
    for make, cell in ((f"t = torch.ones({size})", f"n = {array}"), ("t = 0", f"t = torch.ones({size}); n = {array}")):
        control: dict[str, Any] = {}
        exec(f"import numpy as np, torch; {make}; {cell}; t += 1; n *= 3", control)
        pair.start_anew()
        pair.local(f"import numpy as np, torch; {make}")
        assert pair.remote(cell, "t", "np", "torch") == {"error": None}
        pair.lose_session()
        assert pair.remote("t += 1; n *= 3", "t", "n") == {"error": None}
        assert all(pair.namespace[name].tolist() == control[name].tolist() for name in "tn")


@pytest.mark.parametrize("size", [9, 9000])
def test_a_tensor_keeps_memory_that_another_has_left(pair: Pair, size: int) -> None:
    pair.local(
        f"import numpy as np, torch; a = np.arange({size}.); t = torch.from_numpy(a[:6]); u = torch.from_numpy(a[2:8]); del a"
    )
    assert pair.remote("u.data = t.data", "t", "u", "torch") == {"error": None}
    assert pair.remote("t.data = torch.zeros(2)", "t", "u", "torch") == {"error": None}
    assert pair.remote("pass", "torch") == {"error": None}
    pair.local(f"others = [np.full({size}, -1.) for _ in range(100)]")
    assert pair.namespace["u"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_longer_array_at_the_same_place_does_not_hide_a_tensor_for_good(pair: Pair) -> None:
    """A refused message adds it, and takes it back."""
    pair.local("import numpy as np, torch; a = np.arange(6.); t = torch.from_numpy(a[:4])")
    assert pair.remote("pass", "t") == {"error": None}
    pair.local("class Never:\n    def __reduce__(self): raise ValueError('never')\nnever = Never()")
    with pytest.raises(Refused):
        pair.remote("pass", "a", "never")
    pair.local("square = t.view(2, 2)")
    assert pair.remote("t += 1", "t", "square") == {"error": None}
    assert pair.remote("square += 1", "t", "square") == {"error": None}
    assert pair.namespace["a"].tolist() == [2, 3, 4, 5, 4, 5]


@pytest.mark.parametrize("size", [1, 9000])
def test_a_tensor_does_not_hide_one_that_contains_it(pair: Pair, size: int) -> None:
    make = f"import numpy as np, torch; a = np.arange(12. * {size}).reshape(12, -1)\n"
    make += "inner = torch.from_numpy(a[3:6]); t = torch.from_numpy(a[1:9])"
    view, change = "u = torch.from_numpy(a[4:8]); del a", "u += 1; t *= 2; u += 1"
    control: dict[str, Any] = {}
    exec(f"{make}\n{view}\n{change}", control)
    pair.local(make)
    assert pair.remote("pass", "inner", "torch") == {"error": None}
    assert pair.remote("pass", "t") == {"error": None}
    pair.local(view)
    assert pair.remote(change, "t", "u") == {"error": None}
    assert all(pair.namespace[name].tolist() == control[name].tolist() for name in "tu")
    assert pair.up[1] < 9 * 8 * size  # the session has the memory of `t`


def test_segments_within_others_are_found() -> None:
    segments = Segments(lambda _: None)
    whole, *inner = (segments.add(*place) for place in ((1000, 900), (1000, 100), (1200, 100), (1250, 10)))
    shorter = segments.add(1000, 800)
    assert segments.find(1210, 10) is inner[1]
    assert segments.find(1255, 300) is whole
    segments.hide(whole)
    assert segments.find(1255, 300) is shorter
    assert segments.find(1900, 1) is None
    segments.show([whole])
    segments.drop([shorter.number])
    assert segments.find(1500, 400) is whole


def test_an_undo_with_tensors_of_parts_of_an_array(pair: Pair) -> None:
    pair.local("import numpy as np, torch; a = np.arange(900_000.); t = torch.from_numpy(a[:600_000])")
    pair.local("u = torch.from_numpy(a[200_000:]); del a")
    assert pair.remote("t += 1", "t", "u", "torch") == {"error": None}
    pair.local("t.data = torch.zeros(1); u.data = torch.zeros(1)")
    undo = pair.table.last_undo
    assert undo is not None
    undo.take_back()


def test_a_write_is_seen_through_an_array_that_the_session_does_not_have(pair: Pair) -> None:
    """Another tensor there still uses the memory, and no name leads to it."""
    pair.local("import numpy as np, torch; a = np.arange(12.); t = torch.from_numpy(a[2:8])")
    assert pair.remote("u = t[2:]", "t", "torch") == {"error": None}
    assert pair.remote("del t", "t") == {"error": None}
    assert pair.remote("u += 3; u.data = torch.ones(7)", "u", "torch") == {"error": None}
    assert pair.namespace["a"].tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 8, 9, 10, 11]


def test_a_tensor_in_the_middle_of_a_number_of_another(pair: Pair) -> None:
    """The content of a file with a header of four bytes."""
    pair.local("import numpy as np, torch; raw = np.zeros(24, 'u1'); body = raw[4:20].view('f8'); body[:] = 1.5, 2.5")
    pair.local("head = torch.from_numpy(raw[:8]); t = torch.from_numpy(body)")
    assert pair.remote("seen = t.tolist(); t += 1", "head", "t") == {"error": None}
    assert (pair.namespace["seen"], pair.namespace["t"].tolist()) == ([1.5, 2.5], [2.5, 3.5])


def test_results_arrive_although_the_notebook_has_freed_some_memory(pair: Pair) -> None:
    pair.local("import torch; a = torch.ones(100)")
    assert pair.remote("pass", "a") == {"error": None}
    pair.local("a.resize_(100_000).fill_(2)")
    assert pair.remote("globals()['a'][:] = 5; result = 1") == {"error": None}
    assert (pair.namespace["result"], pair.namespace["a"].sum().item()) == (1, 200_000)


RESIZES = {
    "tensor": ("torch.ones(100)", "h.resize_(200)", "len(x)"),
    "storage": ("torch.ones(100)", "h.untyped_storage().resize_(800)", "x.untyped_storage().nbytes()"),
    "array": ("np.ones(100)", "h.resize(200, refcheck=False)", "0"),  # the notebook gets another array
}


@pytest.mark.parametrize("case", RESIZES)
@pytest.mark.filterwarnings("ignore:'box")
def test_an_object_that_only_something_unseen_holds_is_resized(pair: Pair, case: str) -> None:
    """Such as a global variable of a module."""
    make, resize, size = RESIZES[case]
    control: dict[str, Any] = {"hidden": [], "__name__": "__main__"}
    cells = [
        (f"import numpy as np, sys, torch; x = {make}; box = [x]", None),
        ("import sys; sys.hidden = [x]; del x", ("x", "torch", "np")),
        (f"h = sys.hidden[0]; {resize}; del h", ("sys",)),
        ("x = box[0]; x[:3] = 5", None),
        (f"seen = x[:5].tolist(), {size}", ("box", "x")),
        ("del sys.hidden, x", ("x", "sys")),
        (f"x = box[0]; found = x[:5].tolist(), {size}", None),
    ]
    for code, names in cells:
        exec(code, control)
        if names is None:
            pair.local(code)
        else:
            assert pair.remote(code, *names) == {"error": None}
    assert pair.namespace["seen"] == control["seen"]
    assert pair.namespace["found"] == control["found"]


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
def test_memory_that_a_storage_has_freed_is_not_read(pair: Pair, deferred: bool, size: int) -> None:
    """The tensors that show it are larger than their memory, so they remain as they were."""
    pair.local("import torch; kept = []")
    assert pair.remote(f"x = torch.ones({size}); kept = [x.view(2, -1)]", "torch", "kept") == {"error": None}
    pair.local("")
    pair.all_deferred = deferred
    code = f"x.untyped_storage().resize_(0); others = [torch.full(({size},), -1.) for _ in range(20)]"
    for step in (code, "others.clear()", "others.append(1)"):
        assert pair.remote(step, "x", "torch") == {"error": None}
    pair.local("")
    assert set(pair.namespace["kept"][0].flatten().tolist()) == {1}


def test_memory_that_a_storage_has_left_is_not_taken_for_it() -> None:
    """Other objects may get this memory before a message visits the tensors that share the storage."""
    segments = Segments(lambda _: None)
    storage = torch.ones(6).untyped_storage()
    segment = segments.add(storage.data_ptr(), storage.nbytes())
    segment.storage = storage
    former = segment.address
    assert segments.find(former, 8) is segment
    storage.resize_(1 << 20)
    assert segments.find(former, 8) is None


@pytest.mark.parametrize(
    ("make", "resize"),
    [
        ("import torch; x = torch.ones(5_000_000)", "x.resize_(100_000_000)"),
        ("import torch; x = torch.ones(5_000_000)", "x.untyped_storage().resize_(0)"),
        ("import numpy as np; x = np.ones(2_500_000)", "x.resize(50_000_000, refcheck=False)"),
    ],
    ids=["tensor", "storage", "array"],
)
def test_an_undo_leaves_memory_alone_that_was_given_back(pair: Pair, make: str, resize: str) -> None:
    pair.local(make)
    assert pair.remote("x += 1", "x") == {"error": None}
    undo = pair.table.last_undo
    assert undo is not None
    undo.seal()
    assert not undo.overwritten()
    pair.local(resize)
    assert undo.overwritten()
    undo.take_back()


def test_a_tensor_leaves_the_memory_that_it_no_longer_uses(pair: Pair) -> None:
    """Otherwise a message reads it when it is free."""
    pair.local("import torch, numpy as np\na = np.arange(2_000_000.); t = torch.from_numpy(a[1_000_000:])")
    assert pair.remote("pass", "a", "t") == {"error": None}
    pair.local("t.data = torch.empty(0); del a")
    assert pair.remote("pass", "t", deleted=("a",)) == {"error": None}
    assert pair.remote("pass", "t") == {"error": None}
    assert pair.up[1] == 0


class Device:
    """As a storage on a GPU, whose allocator gives memory that is free to the next one."""

    def __init__(self, place: int, size: int) -> None:
        self.place, self.size = place, size

    def data_ptr(self) -> int:
        return self.place

    def nbytes(self) -> int:
        return self.size

    def cpu(self) -> Any:
        return torch.zeros(self.size, dtype=torch.uint8).untyped_storage()


def test_memory_on_a_gpu_that_a_storage_has_left_is_not_taken_for_it() -> None:
    segments = Segments(lambda _: None)
    first = Device(1000, 400)
    former = segments.add_device(first)
    first.place, first.size = 5000, 4000
    second = Device(1000, 400)
    assert segments.find_device(second) is None
    new = segments.add_device(first)
    segments.drop((former.number,))
    assert segments.find_device(first) is new
