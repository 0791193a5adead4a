"""Runs every benchmark, one after the other, each in a separate process, and writes the page of this release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = (
    "ordinary_cell",
    "client_speed",
    "warm_gpu_cell",
    "with_gpu",
    "interrupt",
    "notebook_run",
    "sandbox",
    "cold_start",
    "large_array",
    "moving_state",
    "transports",
    "peers",
    "virtual_cuda",
    "widgets",
    "gpu_gate",
    "latency",
    "plan",
    "class_of_30",
    "estimates",
    "broker_chaos",
    "chaos",
    "under_attack",
    "broker_load",
    "page",
)


def main() -> int:
    for name in NAMES:
        code = subprocess.run([sys.executable, Path(__file__).parent / f"{name}.py"], check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
