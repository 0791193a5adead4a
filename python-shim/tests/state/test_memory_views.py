"""Views of memory (`memoryview`): each arrives with the object behind it, and shows the same part of its memory."""

from __future__ import annotations

import pytest
from baton_shim.state import Refused
from harness import Pair

SAID = "(v.tolist() if v.nbytes else [], v.format, v.shape, v.strides, v.readonly, type(v.obj).__name__, bytes(v.obj))"
VIEWS = {
    "bytes": "memoryview(b'abcdefgh')",
    "an empty one": "memoryview(b'')",
    "a slice": "memoryview(b'abcdefgh')[2:5]",
    "an empty slice": "memoryview(b'abcdefgh').cast('i')[1:1:2]",
    "every second": "memoryview(b'abcdefgh')[1::2]",
    "backwards": "memoryview(b'abcdefgh')[6:1:-2]",
    "other items": "memoryview(b'abcdefgh').cast('h')",
    "other items between": "memoryview(b'abcdefgh')[1:7].cast('H')[::2]",
    "two dimensions": "memoryview(b'abcdefgh')[1:7].cast('B', (2, 3))",
    "no dimension": "memoryview(b'abcdefgh').cast('q', ())",
    "the native mark": "memoryview(b'abcdefgh').cast('@i')",
    "of a class of its own": "memoryview(Own(b'abc'))",
}


@pytest.mark.parametrize("case", VIEWS)
def test_a_view_arrives_as_it_was(pair: Pair, case: str) -> None:
    make = f"class Own(bytes): pass\nv = {VIEWS[case]}\n"
    pair.local(f"{make}said = {SAID}")
    assert pair.remote(f"got = {SAID}\n{make}", "v") == {"error": None}
    pair.local(f"back = {SAID}")
    assert pair.namespace["got"] == pair.namespace["back"] == pair.namespace["said"]


def test_views_keep_sharing_the_memory_of_their_object(pair: Pair) -> None:
    pair.local("o = b'abc' * 9\nv = memoryview(o)[2:]\nw = v\nu = memoryview(o)")
    cell = "got = v.obj is o, w is v, u.obj is o\nx = memoryview(o)\ny = [x, x]"
    assert pair.remote(cell, "o", "v", "w", "u") == {"error": None}
    home = pair.namespace
    assert home["got"] == (True, True, True)
    assert home["v"].obj is home["o"] is home["x"].obj and home["y"][0] is home["y"][1] is home["x"]


def test_a_view_that_is_released_arrives_released(pair: Pair) -> None:
    pair.local("v = memoryview(b'abc')\nkept = [v]")
    assert pair.remote("v.release()\nw = memoryview(b'')\nw.release()", "v", "kept") == {"error": None}
    home = pair.namespace
    assert home["kept"][0] is home["v"]
    for view in (home["v"], home["w"]):
        with pytest.raises(ValueError, match="released"):
            len(view)
    assert pair.remote("got = repr(v), repr(w)", "v", "w") == {"error": None}
    assert all(text.startswith("<released") for text in home["got"])


@pytest.mark.parametrize("memory", ["numpy.zeros(3)", "bytearray(3)", "numpy.zeros(3).data.toreadonly()"])
def test_a_view_of_memory_that_can_change_is_refused(pair: Pair, memory: str) -> None:
    pair.local(f"import numpy\nw = memoryview(b'abc')\nv = memoryview({memory})")
    assert pair.remote("got = bytes(w)", "w") == {"error": None}
    assert pair.namespace["got"] == b"abc"
    with pytest.raises(Refused, match="is a view of memory that can change"):
        pair.remote("v", "v")
