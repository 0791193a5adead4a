"""Thirty people on one GPU, some of whom train, simulated under three rules: how long short cells take.

The simulation calls the broker's queue order and the workers' arbiter, so it uses the real rules.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from measuring import report

# isort: split
from end_to_end.service import BINARY

CLASS = "--users 30 --edit 90s --session-memory 4GB --gpu-memory 140GB --link 50GB".split()
OURS = "Baton's own rules"
# Seconds from submission to end: the mean and the 99th percentile.
TARGETS = {"short_mean_seconds": 2.0, "short_p99_seconds": 12.0}


def main() -> None:
    command = (BINARY, "plan", "--policies", *CLASS, "--json")
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    policies = {told["policy"]: told for told in json.loads(said.stdout)}
    verdict = {
        f"{OURS}, {name.split('_')[1]} at most {target:.0f} s": "met"
        if policies[OURS][name]["mean"] <= target
        else "missed"
        for name, target in TARGETS.items()
    }
    report("class-of-30", {policy: row(told) for policy, told in policies.items()}, verdict)


def row(told: dict[str, Any]) -> dict[str, Any]:
    times = {f"short_{part}": told[f"short_{part}_seconds"] for part in ("mean", "p50", "p95", "p99")}
    return {f"{name}_s": f"{time['mean']:.1f} ± {time['margin']:.1f}" for name, time in times.items()} | {
        "medium_slowdown": f"{told['medium_slowdown']['mean']:.1f}",
        "long_slowdown": f"{told['long_slowdown']['mean']:.1f}",
        "gpu_busy": f"{100 * told['utilisation']['mean']:.0f} %",
        "cells": told["cells"],
    }


if __name__ == "__main__":
    main()
