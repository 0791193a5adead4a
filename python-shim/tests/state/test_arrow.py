"""Arrow's memory: a text column is sent once, and shared memory remains shared."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from harness import Pair

TEXTS = "import pandas as pd, pyarrow as pa\nx = {}"
MANY = "['text number %d' % n for n in range(20_000)]"
IDLE_BYTES = 200

HOLDERS = {
    "frame": f"pd.DataFrame({{'t': pd.array({MANY}, dtype='string[pyarrow]'), 'n': range(20_000)}})",
    "series": f"pd.Series({MANY}, dtype='string[pyarrow]')",
    "index": f"pd.Index({MANY}, dtype='string[pyarrow]')",
    "of numbers": "pd.Series(range(50_000), dtype='int64[pyarrow]')",
    "array": f"pa.array({MANY})",
    "in chunks": f"pa.chunked_array([{MANY}, {MANY}])",
    "table": f"pa.table({{'t': {MANY}, 'n': list(range(20_000))}})",
    "batch": f"pa.record_batch({{'t': {MANY}}})",
    "nested": f"pa.array([{{'a': [t], 'b': None}} for t in {MANY}])",
    "dictionary": f"pa.array({MANY}).dictionary_encode()",
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_did_not_change_does_not_move(pair: Pair, holder: str) -> None:
    pair.local(TEXTS.format(HOLDERS[holder]))
    pair.remote("same = str(x)", "x")
    assert pair.up[1] > 100_000
    assert pair.down[1] < 100_000
    assert pair.namespace["same"] == str(pair.namespace["x"])
    for _ in range(3):
        pair.remote("n = len(x)", "x")
        assert pair.up < (IDLE_BYTES, 1), pair.up
        assert pair.down < (IDLE_BYTES, 1), pair.down


def test_what_is_made_there_moves_once(pair: Pair) -> None:
    pair.local(TEXTS.format(HOLDERS["frame"]))
    pair.remote("x['u'] = x['t'].str.upper()", "x")
    assert 300_000 < pair.down[1] < 600_000
    assert pair.namespace["x"]["u"].iloc[-1] == "TEXT NUMBER 19999"
    for _ in range(2):
        pair.remote("n = len(x)", "x")
        assert pair.up[1] == pair.down[1] == 0


def test_a_slice_shares_the_memory(pair: Pair) -> None:
    pair.local(TEXTS.format(HOLDERS["table"]))
    pair.remote("y = x.slice(3, 4)", "x")
    assert pair.down[1] < 5_000
    assert pair.namespace["y"]["t"].to_pylist() == [f"text number {n}" for n in range(3, 7)]
    assert (
        pair.namespace["y"]["t"].chunk(0).buffers()[2].address == pair.namespace["x"]["t"].chunk(0).buffers()[2].address
    )


@pytest.mark.parametrize("here", [True, False])
def test_a_changed_text_arrives(pair: Pair, here: bool) -> None:
    pair.local(TEXTS.format(HOLDERS["frame"]))
    pair.remote("pass", "x")
    change = "x.loc[3, 't'] = 'another'"
    if here:
        pair.local(change)
        pair.remote("found = x.loc[3, 't']", "x")
    else:
        pair.remote(change, "x")
        pair.local("found = x.loc[3, 't']")
    assert pair.namespace["found"] == "another"


def test_memory_goes_with_its_last_holder(pair: Pair) -> None:
    pair.local(TEXTS.format(HOLDERS["array"]) + "\ny = 1")
    pair.remote("pass", "x", "y")
    assert pair.table._segments.by_number
    pair.local("del x")
    for _ in range(4):
        pair.remote("globals().pop('x', None)", "y", deleted=("x",))
    assert not pair.table._segments.by_number
