"""Programs of `tests/gpu/`: a CUDA driver in host memory, what runs on it, and the worker's end of time-sharing."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from end_to_end.place import OUTER_ENVIRONMENT

ROOT = Path(__file__).parents[2]
BUILT = "BATON_TEST_GPU_PROGRAMS"
"""The folder of the programs, for users and machines that cannot build them."""


def gpu_program(name: str) -> str:
    """The path of a program, such as `gpu-machine`."""
    return str(gpu_programs() / name)


@cache
def gpu_programs() -> Path:
    """The folder of the programs. They are built once, because cargo waits for other builds each time."""
    if BUILT in OUTER_ENVIRONMENT:
        return Path(OUTER_ENVIRONMENT[BUILT])
    profile = OUTER_ENVIRONMENT.get("PROFILE", "dev")
    command = ["cargo", "build", "--quiet", "--locked", "--profile", profile, "--message-format=json"]
    # The tests' own home folder has no compiler.
    options: dict[str, Any] = {"cwd": ROOT, "env": OUTER_ENVIRONMENT, "check": True, "stdout": subprocess.PIPE}
    built = subprocess.run([*command, "-p", "baton-gpu-tests", "--bins"], text=True, **options).stdout.splitlines()
    programs = [Path(program) for line in built if (program := json.loads(line).get("executable"))]
    return programs[0].parent
