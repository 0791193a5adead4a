"""The first measurements on a GPU that is new to Baton: `make gpu-first-day`. At most nine minutes, and one report.

The report, `target/benches/gpu-first-day.md` and `.json`, is written again after each part, so it exists whatever hangs
or fails. Baton comes from the kit that `make gpu-kit` packs on a machine without a GPU, which needs neither a compiler
nor a registry here. Without a kit it is built first, which does not count. In both cases the packages of this Python,
such as PyTorch, are found.

Needs only Python 3.11 or newer with pip, because it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KIT = ROOT / "dist/gpu-kit"
VENV = ROOT / "target/gpu-first-day"
# The most informative parts come first.
PARTS = "notebooks,frameworks,probe,handover,big_50,small_50"
LEFT_FOR_ENDING_SECONDS = 10


class NotReady(Exception):
    """The reason that nothing can be measured."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="for everything but building")
    parser.add_argument("--longest", type=float, default=150, help="seconds that one part may take")
    parser.add_argument("--seconds", type=float, default=8, help="how long a program takes alone")
    parser.add_argument("--gib", type=float, default=24, help="how much of the GPU's memory programs may use")
    parser.add_argument("--results", type=Path, default=ROOT / "target/benches", help="the folder of the report")
    parser.add_argument("--nvshare", type=Path, help="the folder of nvshare's programs")
    parser.add_argument("--python", type=Path, help="a Python that has Baton: nothing is installed")
    parser.add_argument("--machine", type=Path, help="the folder of a driver in host memory, whose times mean nothing")
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        python, around = given(options.python) if options.python else ready()
    except (NotReady, OSError, subprocess.SubprocessError) as error:
        tell_failure(options.results, f"failed before the first part: {error}")
        return 1
    if not options.python and not KIT.exists():  # the time of a build does not count
        begin = time.monotonic()
    left = 60 * options.minutes - (time.monotonic() - begin)
    return measure(python, around, options, left)


def measure(python: Path, around: dict[str, str], options: argparse.Namespace, left: float) -> int:
    command: list[object] = [python, ROOT / "benches/gpu/run.py", "--name", "gpu-first-day", "--parts", PARTS]
    for name in ("longest", "seconds", "gib", "results", "nvshare", "machine"):
        value = getattr(options, name)
        command += [f"--{name}", value] if value is not None else []
    command += ["--minutes", max(0, left - LEFT_FOR_ENDING_SECONDS) / 60]
    process = subprocess.Popen(list(map(str, command)), env=dict(os.environ) | around, start_new_session=True)
    try:
        return process.wait(timeout=max(left, LEFT_FOR_ENDING_SECONDS))
    except subprocess.TimeoutExpired:  # the parts' own limits failed; the results so far are written
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return 1


def given(python: Path) -> tuple[Path, dict[str, str]]:
    if not python.exists():
        raise NotReady(f"no Python is at {python}")
    return python, {}


def ready() -> tuple[Path, dict[str, str]]:
    """A Python with Baton, and the variables that name the kit's programs."""
    if not KIT.exists():
        built = ["make", "PROFILE=release", ".venv/.installed-release", ".venv/.requirements-test"]
        subprocess.run([*built, ".venv/.requirements-cuda"], cwd=ROOT, check=True)
        return ROOT / ".venv/bin/python", {"PROFILE": "release"}
    python = VENV / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", VENV], check=True)
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    # After the kit's own packages, so that those of this Python are found, too.
    Path(found.stdout.strip(), "this-python.pth").write_text(sysconfig.get_path("purelib") + "\n")
    wheels = sorted(KIT.glob("*.whl"))
    if not wheels:
        raise NotReady(f"there are no wheels in {KIT}")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*install, "--ignore-installed", *wheels], check=True)
    return python, {"BATON_TEST_GPU_PROGRAMS": str(KIT)}


def tell_failure(results: Path, what: str) -> None:
    print(what, file=sys.stderr)
    results.mkdir(parents=True, exist_ok=True)
    report = {"benchmark": "gpu-first-day", "rows": {}, "verdict": {"result": what}}
    (results / "gpu-first-day.json").write_text(json.dumps(report, indent=2) + "\n")
    (results / "gpu-first-day.md").write_text(f"# gpu-first-day\n\n* {what}\n")


if __name__ == "__main__":
    sys.exit(main())
