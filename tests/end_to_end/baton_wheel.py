"""Baton's wheel, as `pip` builds it from the repository."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from end_to_end.place import OUTER_ENVIRONMENT

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 400


def build_baton_wheel(folder: Path) -> Path:
    """Build the wheel into this folder. If sources have changed since the installation, this compiles.

    Every build writes to the same place below `target` first, so that one runs at a time.
    """
    profile = OUTER_ENVIRONMENT.get("PROFILE", "dev")
    path = f"{Path(sys.executable).parent}:{OUTER_ENVIRONMENT['PATH']}"
    with (ROOT / "target/wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT],
            env=OUTER_ENVIRONMENT | {"MATURIN_PEP517_ARGS": f"--profile {profile} --locked", "PATH": path},
            check=True,
            timeout=PATIENCE_SECONDS,
        )
    (wheel,) = folder.glob("baton*.whl")
    return wheel
