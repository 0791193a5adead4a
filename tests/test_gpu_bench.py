"""The programs of `make bench-gpu`, tried on a driver in host memory: what they say of themselves, not of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# The tests' own home has no compiler.
ENVIRONMENT = dict(os.environ)

CARD_MIB = 256


def bench(results: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, ROOT / "benches/gpu/run.py", "--results", results, *arguments]
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, timeout=300)
    (written,) = results.glob("gpu*.json")
    result: dict[str, Any] = json.loads(written.read_text())
    return result


def test_what_cannot_be_measured_is_said_not_to_have_run(tmp_path: Path) -> None:
    result = bench(tmp_path / "results", "--minutes", "0")
    assert {row["result"].partition(":")[0] for row in result["rows"].values()} == {"not run"}
    assert set(result["verdict"].values()) == {"not run"}


def test_each_part_measures_and_checks_what_it_moved(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.mkdir()
    command = ["cargo", "run", "--quiet", "--locked", "-p", "baton-gpu-tests", "--bin", "gpu-machine", "--"]
    subprocess.run([*command, machine, str(CARD_MIB << 20)], cwd=ROOT, env=ENVIRONMENT, check=True)
    result = bench(
        *(tmp_path / "results", "--machine", str(machine), "--parts", "handover,classroom"),
        *("--seconds", "0.2", "--students", "4"),
    )
    rows = result["rows"]
    results = {what: row["result"] for what, row in rows.items()}
    assert results.pop("probe") == "not run: not asked for"
    for part in ("handover", "classroom"):
        assert results.pop(part).startswith("done"), rows
    for what in ("the link", "launches, alone", "launches, in turns"):
        assert results.pop(what) == "measured"
    for part in ("big_50", "small_50", "big_90", "small_90"):
        assert results.pop(part) == "not run: not asked for"
    assert len(results) == 6, results
    assert set(results.values()) == {"right"}, results
    assert rows["hand-over, half moves"]["gb_per_s"] > 0
    assert rows["4 students, as a worker's cells"]["moved_gb"] > 0
    assert result["verdict"]["big_50, in turns of 20 s"] == "not run"
