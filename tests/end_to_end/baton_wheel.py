"""Baton's wheel, built with the command of the guide for Kubernetes."""

from __future__ import annotations

import fcntl
import shlex
import subprocess
import sys
from pathlib import Path

from end_to_end.guides import GUIDES, blocks
from end_to_end.place import OUTER_ENVIRONMENT

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 400


def build_baton_wheel(folder: Path) -> Path:
    """Build the wheel into this folder. If sources have changed since the installation, this compiles.

    Every build writes to the same place below `target` first, so that one runs at a time.
    """
    console = "".join(blocks(GUIDES / "kubernetes.md", "console"))
    [command] = [line for line in console.splitlines() if " pip wheel " in line.replace("/", " ")]
    programs = Path(sys.executable).parent
    for in_the_guide, here in {
        "$PWD/.venv/bin": str(programs),
        ".venv/bin/pip": shlex.join([sys.executable, "-m", "pip"]),
        "--profile release": f"--profile {OUTER_ENVIRONMENT.get('PROFILE', 'dev')}",
        "context/wheels": shlex.quote(str(folder)),
    }.items():
        assert in_the_guide in command
        command = command.replace(in_the_guide, here)
    # Programs beside this Python are on the path only if the command puts them there.
    path = [folder for folder in OUTER_ENVIRONMENT["PATH"].split(":") if Path(folder) != programs]
    with (ROOT / "target/wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            ["sh", "-c", command],
            cwd=ROOT,
            env=OUTER_ENVIRONMENT | {"PATH": ":".join(path)},
            check=True,
            timeout=PATIENCE_SECONDS,
        )
    (wheel,) = folder.glob("baton*.whl")
    return wheel
