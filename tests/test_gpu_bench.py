"""The programs of `make bench-gpu` on a driver in host memory: tests the programs, not a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from end_to_end.gpu_programs import gpu_program

ROOT = Path(__file__).parent.parent
# The tests' own home folder has no compiler.
ENVIRONMENT = dict(os.environ)

CARD_MIB = 256
# Its programs have deadlines of their own.
pytestmark = pytest.mark.owner


def bench(results: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    command = [sys.executable, ROOT / "benches/gpu/run.py", "--results", results, *arguments]
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT | variables, check=True, timeout=300)
    (written,) = results.glob("gpu*.json")
    result: dict[str, Any] = json.loads(written.read_text())
    return result


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver in host memory."""
    folder = tmp_path_factory.mktemp("machine")
    subprocess.run([gpu_program("gpu-machine"), folder, str(CARD_MIB << 20)], check=True)
    return folder


def first_day(results: Path, *arguments: object) -> dict[str, Any]:
    """Its report."""
    command = [sys.executable, ROOT / "benches/gpu/first_day.py", "--results", results, *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, timeout=300)
    report: dict[str, Any] = json.loads((results / "gpu-first-day.json").read_text())
    assert (results / "gpu-first-day.md").read_text().startswith("# gpu-first-day")
    return report


def test_what_cannot_be_measured_is_said_not_to_have_run(tmp_path: Path) -> None:
    result = bench(tmp_path / "results", "--minutes", "0")
    assert {row["result"].partition(":")[0] for row in result["rows"].values()} == {"not run"}
    assert set(result["verdict"].values()) == {"not run"}


def test_each_part_measures_and_checks_what_it_moved(tmp_path: Path, machine: Path) -> None:
    result = bench(
        *(tmp_path / "results", "--machine", str(machine), "--parts", "handover,classroom"),
        *("--seconds", "0.2", "--students", "4"),
    )
    rows = result["rows"]
    results = {what: row["result"] for what, row in rows.items()}
    for part in ("probe", "notebooks", "frameworks"):
        assert results.pop(part) == "not run: not asked for"
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


def test_counts_meet_their_targets(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benches/gpu/counts.py", "--results", tmp_path]
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, timeout=300)
    verdict: dict[str, str] = json.loads((tmp_path / "gpu-counts.json").read_text())["verdict"]
    assert all(found.endswith("; met)") for found in verdict.values()), verdict


def test_times_are_measured_in_turns(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benches/gpu/times.py", "--results", tmp_path, "--rounds", "1"]
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, timeout=300)
    rows = json.loads((tmp_path / "gpu-times.json").read_text())["rows"]
    assert [row["of_the_first"] for row in rows.values()][::2] == [1.0] * 4
    assert all(row["p50_ms"] > 0 for row in rows.values()), rows


def test_counts_use_the_model_of_moves_that_plan_uses() -> None:
    plan = (ROOT / "plan/src/simulation/sharing.rs").read_text()
    (link,) = re.findall(r"\bbandwidth: (\d\S*),\n", plan)
    (seconds,) = re.findall(r"PINNING: f64 = \(1_u64 << 30\) as f64 / (\S+);\n", plan)
    counts = (ROOT / "benches/gpu/counts.py").read_text()
    assert f"\nLINK = {link}\nPINNING = 2**30 / {seconds}\n" in counts


def test_the_first_day_leaves_one_report_of_all_parts(tmp_path: Path, machine: Path) -> None:
    report = first_day(tmp_path, "--python", sys.executable, "--machine", machine, "--seconds", 0.2)
    rows = report["rows"]
    for part in ("notebooks", "frameworks", "probe", "handover", "big_50", "small_50"):
        assert rows[part]["result"].startswith("done"), rows
    for what in (
        "first %%gpu cell",
        "worker's trial",
        "in a warm session",
        "two notebooks at once",
        "hand-over, half moves",
    ):
        assert rows[what]["result"] == "right", rows
    for arm in ("alone", "alone in turns", "in turns of 5 s", "in turns, as cells"):
        assert rows[f"big_50, {arm}"]["result"] == "right", rows
    assert rows["big_50, in turns of 5 s"]["moved_gb"] > 0
    assert rows["big_50, two under nvshare, 20 s"]["result"].startswith("not run: no nvshare")
    assert rows["eager, two at a time"]["result"] == "not run: a framework needs a real driver"
    assert report["machine"]["date"]


def test_the_first_day_reports_parts_that_hang(tmp_path: Path, machine: Path) -> None:
    """With a time limit that no part can keep."""
    report = first_day(tmp_path, "--python", sys.executable, "--machine", machine, "--longest", 0.05)
    ended = {part: report["rows"][part]["result"] for part in ("notebooks", "frameworks", "probe", "handover")}
    assert all(result.startswith("ended: its time was over") for result in ended.values()), ended


def test_a_part_that_fails_is_reported(tmp_path: Path) -> None:
    """In the folder of the machine there is no driver."""
    result = bench(tmp_path / "results", "--machine", str(tmp_path), "--parts", "handover", "--seconds", "0.1")
    assert result["rows"]["handover"]["result"].startswith("failed: it ended with 1")


def test_a_failed_trial_of_time_sharing_is_reported_although_cells_compute(tmp_path: Path, machine: Path) -> None:
    result = bench(
        *(tmp_path / "results", "--machine", str(machine), "--parts", "notebooks"),
        BATON_TEST_GPU_FAULTS="cuModuleLoadData:1:222",
    )
    found = {what: row["result"] for what, row in result["rows"].items()}
    assert found["first %%gpu cell"] == "right"
    assert found["worker's trial"] == (
        "failed: Sessions do not time-share this machine's GPU, because two test programs failed: "
        "cuModuleLoadData answered 222"
    )


# Instead of measuring, it says what it finds.
PROBE = """
import json, os, sys
import in_the_kit, pytest
found = {"prefix": sys.prefix, "package": in_the_kit.__file__, "programs": os.environ["BATON_TEST_GPU_PROGRAMS"]}
open(sys.argv[sys.argv.index("--results") + 1] + ".json", "w").write(json.dumps(found))
"""


def test_the_first_day_installs_the_kit_that_make_packs(tmp_path: Path) -> None:
    """Without a compiler or a registry, and beside the packages of this Python."""
    packs = subprocess.run(["make", "-n", "gpu-kit"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    (folder,) = re.findall(r"^cp target/release/gpu-timeshare (\S+)/$", packs, re.MULTILINE)
    assert f"--wheel-dir {folder} ." in packs
    assert f"--dest {folder} " in packs

    bench, kit = tmp_path / "benches/gpu", tmp_path / folder
    bench.mkdir(parents=True)
    kit.mkdir(parents=True)
    shutil.copy(ROOT / "benches/gpu/first_day.py", bench)
    (bench / "run.py").write_text(PROBE)
    with zipfile.ZipFile(kit / "in_the_kit-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("in_the_kit.py", "")
        wheel.writestr("in_the_kit-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: in-the-kit\nVersion: 1.0\n")
        wheel.writestr(
            "in_the_kit-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("in_the_kit-1.0.dist-info/RECORD", "")
    results = tmp_path / "results"
    command = [sys.executable, bench / "first_day.py", "--results", results]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=300)
    found = json.loads(results.with_suffix(".json").read_text())
    installed = tmp_path / "target/gpu-first-day"
    assert Path(found["prefix"]) == installed
    assert Path(found["package"]).is_relative_to(installed)
    assert Path(found["programs"]) == kit


def test_the_first_day_reports_that_it_cannot_begin(tmp_path: Path) -> None:
    report = first_day(tmp_path, "--python", "/nowhere/python", "--minutes", 0.1)
    assert report["verdict"] == {"result": "failed before the first part: no Python is at /nowhere/python"}
