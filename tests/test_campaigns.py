"""Random faults while random cells run: whatever fails, the model allows what notebooks see.

`benches/chaos.py` runs such campaigns for any length of time.
"""

from __future__ import annotations

import pytest
from end_to_end.campaign import Campaign, run
from end_to_end.campaign.cells import CellPlan, Step
from end_to_end.campaign.model import Model, World, look_of
from end_to_end.campaign.outcome import Kind, Outcome, Unclear, read
from end_to_end.results import Result

WORDS = 10


@pytest.mark.root("fill disks and lose packets")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_campaign(seed: int) -> None:
    findings = run(Campaign(seed, cells=32))
    assert not findings.violations, "\n".join([findings.plan, *findings.violations])
    assert findings.cells.total() >= 32
    assert findings.faults


# ---- the model finds errors

CELL = CellPlan(
    "one",
    True,
    [Step("count += 1"), Step("items.append(2)"), Step("put('a', 'x')", ("a",), "put('a', '')")],
    [0] * 3,
    False,
)
BEFORE: tuple[str, ...] = ()
AFTER = ("count += 1", "items.append(2)")


def model_after(kind: Kind, *, lines: int = 3, presses: int = 0, mirrored: bool = True) -> Model:
    model = Model(WORDS, {"kept": "text"}, mirrored=mirrored)
    model.ran(CELL, Outcome(kind, 1, lines, presses))
    return model


@pytest.mark.parametrize(
    ("kind", "lines", "done", "files", "allowed"),
    [
        (Kind.OK, 3, AFTER, {"a": "x"}, True),
        (Kind.OK, 3, AFTER, {}, False),
        (Kind.OK, 3, BEFORE, {"a": "x"}, False),
        (Kind.UNCHANGED, 3, BEFORE, {}, True),
        (Kind.UNCHANGED, 3, AFTER, {}, False),
        (Kind.UNCHANGED, 3, BEFORE, {"a": "x"}, False),
        (Kind.INTERRUPTED, 1, AFTER[:1], {}, True),
        (Kind.INTERRUPTED, 1, AFTER, {}, True),
        (Kind.INTERRUPTED, 1, BEFORE, {}, False),
        (Kind.INTERRUPTED, 1, AFTER, {"a": "x"}, False),
        (Kind.INTERRUPTED, 2, AFTER, {"a": ""}, True),
    ],
)
def test_the_model_knows_what_a_cell_leaves(
    kind: Kind, lines: int, done: tuple[str, ...], files: dict[str, str], allowed: bool
) -> None:
    model = model_after(kind, lines=lines, presses=int(kind is Kind.INTERRUPTED))
    wrong = [model.saw_variables(look_of(WORDS, done)), model.saw_files({"kept": "text"} | files)]
    assert (wrong == [None, None]) is allowed, wrong


def test_the_model_misses_a_file_that_no_cell_touched() -> None:
    assert model_after(Kind.OK).saw_files({"a": "x"}) is not None


def test_in_a_shared_folder_the_model_follows_only_what_a_lost_cell_did_not_touch() -> None:
    model = model_after(Kind.UNCHANGED, mirrored=False)
    assert model.saw_files({"kept": "text", "a": "half"}) is None
    assert model.saw_files({"a": "half"}) is not None


def test_cells_that_are_taken_back_leave_their_files() -> None:
    world = World((), ()).in_cell(1).after(CELL.steps).in_cell(2).after([Step("count += 5")])
    assert world.taken_back(1) == World((), (("a", "x"),))
    assert world.taken_back(2) == World(AFTER, (("a", "x"),))


def result(stdout: str, **reply: object) -> Result:
    stream = {"msg_type": "stream", "content": {"name": "stdout", "text": stdout}}
    return Result("", {"status": "ok"} | reply, [stream])


@pytest.mark.parametrize(
    "seen",
    [
        result("one line 0\none line 1\n"),
        result("one line 0\none line 1\none line 1\none line 2\n"),
        result("one line 1\none line 0\none line 2\n"),
        result("one line 0\n", status="error", ename="ConnectionError", evalue="reset", traceback=["reset"]),
        result("one line 0\n", status="error", ename="OSError", evalue="", traceback=["no space"]),
    ],
)
def test_a_client_may_not_see_everything(seen: Result) -> None:
    with pytest.raises(Unclear):
        read(CELL, seen, presses=0, short=False)
