"""Run the end-to-end tests in `tests/`; arguments, such as a file or `-k NAME`, are passed to pytest.

If root runs this, most tests run as an ordinary user, because most people who use Baton are ordinary users. Root itself
runs only the tests that need root (marker `root`), those that change files of the repository (`owner`), and those of
the sandbox, which both users run (`every_user`). Tests that compare times (`alone`) run first, one at a time.

An ordinary user who runs this runs everything; pytest's summary lists what only root can test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from end_to_end.gpu_programs import BUILT, gpu_programs  # noqa: E402
from end_to_end.restricted import USER, as_ordinary_user  # noqa: E402

SELECTED = "not gpu and not cuda_libraries"
OF_ROOT = f"{SELECTED} and (root or owner or every_user) and not alone"
ALONE = f"{SELECTED} and alone"
OF_OTHERS = f"{SELECTED} and not root and not owner"
# The tests of whole systems wait more than they compute, so five processes suit two processors. They run in the order
# of the folder, because the longest files have a single test and would come last.
PROCESSES = ["-n", "5", "--dist", "loadfile", "--no-loadscope-reorder"]
WRITTEN = [ROOT / "tests/artefacts", ROOT / ".hypothesis"]
"""Folders in which tests leave files."""
OK, NO_TESTS = 0, 5


def main() -> int:
    os.environ[BUILT] = str(gpu_programs())
    if os.geteuid() != 0:
        return pytest([], SELECTED)
    statuses = [pytest([], ALONE, "-n", "0"), pytest([], OF_ROOT), as_other_user(OF_OTHERS)]
    # The arguments may select no tests of some of them.
    failed = [status for status in statuses if status not in (OK, NO_TESTS)]
    return 1 if failed else min(statuses)


def as_other_user(selected: str) -> int:
    for folder in WRITTEN:
        folder.mkdir(exist_ok=True)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER, follow_symlinks=False)
    with tempfile.TemporaryDirectory(prefix="baton-user-") as folder:
        return pytest(as_ordinary_user(Path(folder)), selected)


def pytest(prefix: list[str], selected: str, *options: str) -> int:
    print(f"As {'an ordinary user' if prefix or os.geteuid() else 'root'}: {selected}", flush=True)
    tests = [] if any(Path(argument.partition("::")[0]).exists() for argument in sys.argv[1:]) else ["tests"]
    command = [sys.executable, "-m", "pytest", "-m", selected, *(options or PROCESSES), *sys.argv[1:], *tests]
    return subprocess.run([*prefix, *command], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
