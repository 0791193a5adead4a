"""Whether cells start when students were told they would, in twenty simulated lectures, against the best estimate."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from measuring import report

ROOT = Path(__file__).parent.parent
BUILD = ("cargo", "build", "--quiet", "--locked", "--release", "--package", "baton-scheduling", "--examples")
WHEN = {"first": "told first", "later": "told later", "best": "best possible, told first"}


def main() -> None:
    subprocess.run(BUILD, cwd=ROOT, check=True)
    folder = subprocess.run(
        ("cargo", "metadata", "--format-version", "1", "--no-deps"), cwd=ROOT, check=True, capture_output=True
    )
    programs = Path(json.loads(folder.stdout)["target_directory"]) / "release/examples"
    seen = printed_by(programs / "estimates")
    rows = {name: row(seen[key]) for key, name in WHEN.items()}
    rows[WHEN["first"]]["median_width_s"] = round(seen["width_ms"] / 1000, 1)
    rows[WHEN["best"]]["median_width_s"] = round(seen["best_width_ms"] / 1000, 1)
    calibrated = all(0.75 <= seen[key]["part"] <= 0.85 for key in ("first", "later"))
    narrow = seen["width_ms"] <= 2 * seen["best_width_ms"]
    cells, back = seen["cells"], seen["back"]
    verdict = {
        "between 75 and 85 of 100 ranges hold the start, told first and later": "met" if calibrated else "missed",
        "the median range is at most twice as wide as the best possible one": "met" if narrow else "missed",
        "cells whose place or range of places moved back": f"{back['cells']} of {cells}, {back['tellings']} times",
        "of these times, the place fell behind the range that was told before": back["beyond"],
        "of these times, without a reason": back["without_reason"],
    }
    for cost in printed_by(programs / "long_queue"):
        took = f"{cost['all_ms']:.1f} ms, the longest step {cost['longest_step_ms']:.1f} ms"
        verdict[f"an estimate for {cost['waiting']} waiting cells"] = took
    report("estimates", rows, verdict)


def printed_by(program: Path) -> Any:
    return json.loads(subprocess.run(program, check=True, capture_output=True).stdout)


def row(held: dict[str, Any]) -> dict[str, Any]:
    ranges = held["before"] + held["within"] + held["after"]
    parts = {name: f"{100 * held[name] / ranges:.1f} %" for name in ("before", "within", "after")}
    return {"ranges": ranges, "without_a_range": held["none"]} | parts | {"median_width_s": ""}


if __name__ == "__main__":
    main()
