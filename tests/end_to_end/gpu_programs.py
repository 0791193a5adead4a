"""Programs of `tests/gpu/`: a CUDA driver in host memory, and what runs on it."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from end_to_end.place import OUTER_ENVIRONMENT

ROOT = Path(__file__).parents[2]
MACHINE = "BATON_TEST_GPU_MACHINE"
"""The path of `gpu_machine()`, for a user who cannot build it."""


@cache
def gpu_machine() -> str:
    """The program that creates machines with GPUs. It is built once, because cargo waits for other builds each time."""
    return OUTER_ENVIRONMENT.get(MACHINE) or built("--bin", "gpu-machine")


def built(kind: str, name: str) -> str:
    """The path of a program, which is built if it is not up to date. `kind`: `--bin` or `--example`."""
    command = ["cargo", "build", "--quiet", "--locked", "--message-format=json", "-p", "baton-gpu-tests", kind, name]
    # The tests' own home folder has no compiler.
    options: dict[str, Any] = {"cwd": ROOT, "env": OUTER_ENVIRONMENT, "check": True, "stdout": subprocess.PIPE}
    lines = subprocess.run(command, text=True, **options).stdout.splitlines()
    (program,) = filter(None, (json.loads(line).get("executable") for line in lines))
    return str(program)
