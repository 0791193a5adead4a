"""Objects whose own pickling fails for a while: a stand-in replaces them, and later the object itself."""

from __future__ import annotations

import pytest
from baton_shim.state import StandIn
from harness import Pair

_BUSY = """\
class S:
    def __init__(self): self.busy, self.n = False, 0
    def __getstate__(self):
        assert not self.busy, "busy"
        return self.__dict__.copy()
s = S()
held = [s]
"""
_OWN_SETTER = _BUSY.replace("s = S()", "    def __setstate__(self, state): self.__dict__.update(state)\ns = S()")


@pytest.mark.parametrize("code", [_BUSY, _OWN_SETTER])
@pytest.mark.parametrize("end", ["", "; 1 / 0"])
def test_it_returns_when_it_can_be_pickled_again(pair: Pair, code: str, end: str) -> None:
    pair.local(code)
    pair.remote(f"s.busy, s.n = True, 5{end}", "s", "held")
    assert type(pair.namespace["s"]) is StandIn
    pair.remote("s.n += 1; s.busy = False; extra = 1", "s")
    assert pair.namespace["extra"] == 1
    assert vars(pair.namespace["s"]) == {"busy": False, "n": 6}
    assert pair.namespace["held"][0] is pair.namespace["s"]
    pair.local("s.n = 9")
    pair.remote("seen = held[0].n, held[0] is s", "s", "held")
    assert pair.namespace["seen"] == (9, True)


@pytest.mark.parametrize("code", [_BUSY, _OWN_SETTER])
def test_the_session_gets_it_when_it_can_be_pickled_again(pair: Pair, code: str) -> None:
    pair.local(f"{code}s.busy = True")
    pair.remote("seen = repr(held)", "held")
    assert "cannot be pickled (busy) and stayed in your notebook" in pair.namespace["seen"]
    pair.local("s.busy, s.n = False, 7")
    pair.remote("held[0].n += 1", "held")
    assert vars(pair.namespace["s"]) == {"busy": False, "n": 8}


def test_it_stays_while_its_pickling_fails(pair: Pair) -> None:
    pair.local(_BUSY)
    pair.remote("s.busy = True", "s", "held")
    before = pair.namespace["s"]
    pair.remote("s.n += 1; held.append(s.n)", "s", "held")
    assert pair.namespace["held"][0] is pair.namespace["s"] is before
    assert pair.namespace["held"][1] == 1
