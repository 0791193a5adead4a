"""Test suites of other packages, with this kernel as `python3`: it causes no failure that plain ipykernel does not.

Tests that are left out are listed in `docs/reference/jupyter.md` with the reason, and read from there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from end_to_end import Place

ROOT = Path(__file__).parent.parent
ARCHIVES = Path(sys.prefix) / "suites"
LEFT_OUT = re.compile(r"^\| `(?P<package>\w+)` \| `(?P<test>[^`]+)` \| (?P<reason>.{20,}) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Suite:
    package: str
    scope: str
    """The folder whose tests are run or listed as left out."""
    least: int
    """The least number of tests that do not skip themselves."""

    @property
    def folder(self) -> Path:
        (folder,) = (path for path in ARCHIVES.glob(f"{self.package}-*") if path.is_dir())
        return folder

    @property
    def left_out(self) -> list[str]:
        page = (ROOT / "docs/reference/jupyter.md").read_text()
        return [row["test"] for row in LEFT_OUT.finditer(page) if row["package"] == self.package]

    @property
    def files(self) -> list[str]:
        found = sorted((self.folder / self.scope).rglob("test_*.py"))
        names = [str(path.relative_to(self.folder)) for path in found]
        return [name for name in names if not any(Path(name).is_relative_to(out) for out in self.left_out)]


SUITES = [
    Suite("ipykernel", "tests", 91),
    Suite("nbclient", "tests", 127),
    Suite("jupyter_server", "tests/services/kernels", 85),
]
OPTIONS = (
    "-q -r fE -p no:cacheprovider -W ignore -o asyncio_default_fixture_loop_scope=function -o addopts= --timeout 120 "
    # Plugins of our own tests; they take seconds to load.
    "-p no:nbval -p no:hypothesispytest -p no:cloudcoil"
).split()


class Run:
    """One pytest over a suite's tests."""

    def __init__(self, suite: Suite, place: Place, tests: list[str], kernels: Path | None, workers: int) -> None:
        environment = place.environment | {"PYTHONPATH": str(ARCHIVES / "plugins")}
        if kernels is not None:
            environment["JUPYTER_PATH"] = str(kernels)
        deselected = [f"--deselect={test}" for test in suite.left_out if "::" in test]
        # These tests are not ours, and some depend on the speed of the machine.
        command = [sys.executable, "-m", "pytest", *OPTIONS, "-n", str(workers), "--reruns", "1", *deselected, *tests]
        self._process = subprocess.Popen(
            command, cwd=suite.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def end(self) -> None:
        """Ends it, if a test gave up before."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate(timeout=120)

    def result(self) -> tuple[int, set[str], str]:
        """The number of passed tests, the failed ones, and the output."""
        said, _ = self._process.communicate(timeout=1500)
        passed = re.search(r"(\d+) passed", said.rsplit("\n", 2)[-2])
        failed = {line.split(" - ")[0].split(" ", 1)[1] for line in said.splitlines() if is_failure(line)}
        return int(passed[1]) if passed else 0, failed, said


def is_failure(line: str) -> bool:
    return line.startswith(("FAILED ", "ERROR ")) and "::" in line


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `python3` is this kernel; clients look there first."""
    folder = tmp_path_factory.mktemp("kernels")
    spec = folder / "kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "baton_shim", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    return folder


@pytest.fixture(scope="module")
def runs(place: Place, kernels: Path) -> Iterator[dict[str, Run]]:
    """All suites at once, because they mostly wait."""
    workers = max(2, (os.cpu_count() or 2) // 2)
    started = {suite.package: Run(suite, place, suite.files, kernels, workers) for suite in SUITES}
    yield started
    for run in started.values():
        run.end()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.package)
def test_suite(suite: Suite, runs: dict[str, Run], place: Place, kernels: Path) -> None:
    passed, failed, said = runs[suite.package].result()
    assert passed + len(failed) >= suite.least, said
    if failed:  # again with nothing in parallel, and then without Baton
        _, failed, said = Run(suite, place, sorted(failed), kernels, workers=0).result()
    if failed:
        failed -= Run(suite, place, sorted(failed), None, workers=0).result()[1]
    assert not failed, said


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.package)
def test_what_is_left_out_is_there(suite: Suite) -> None:
    for test in suite.left_out:
        path, _, name = test.partition("::")
        assert (suite.folder / path).exists(), test
        assert not name or f"def {name.partition('[')[0]}(" in (suite.folder / path).read_text(), test
