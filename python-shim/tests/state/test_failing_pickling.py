"""Objects whose own pickling fails for a while: a stand-in replaces them, and later the object itself."""

from __future__ import annotations

from baton_shim.state import StandIn
from harness import Pair

_BUSY = """\
class S:
    def __init__(self): self.busy, self.n = False, 0
    def __getstate__(self):
        assert not self.busy, "busy"
        return self.__dict__.copy()
    def __setstate__(self, state): self.__dict__.update(state)
s = S()
held = [s]
"""


def test_a_failed_cell_leaves_it(pair: Pair) -> None:
    pair.local(_BUSY)
    pair.remote("s.busy, s.n = True, 5; 1 / 0", "s", "held")
    assert type(pair.namespace["s"]) is StandIn
    pair.remote("s.n += 1; s.busy = False; extra = 1", "s")
    assert pair.namespace["extra"] == 1
    assert vars(pair.namespace["s"]) == {"busy": False, "n": 6}
