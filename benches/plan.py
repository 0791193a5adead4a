"""How fast `baton plan` answers, compared with its targets: the exact chain on one core, simulated cells on all."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from measuring import report

ROOT = Path(__file__).parent.parent
BUILD = ("cargo", "build", "--quiet", "--locked", "--release", "--package", "baton-plan", "--example", "speed")
CHAIN_SECONDS = 5.0
CELLS_A_SECOND = {"first_come": 2_000_000, "arbiter_in_order": 200_000, "arbiter_in_turn": 200_000, "arbiter": 200_000}
NAMES = {
    "first_come": "first come, first served",
    "arbiter_in_order": "the arbiter, in order of arrival",
    "arbiter_in_turn": "the arbiter, in turn",
    "arbiter": "the arbiter, as on a worker",
}


def main() -> None:
    subprocess.run(BUILD, cwd=ROOT, check=True)
    folder = subprocess.run(
        ("cargo", "metadata", "--format-version", "1", "--no-deps"), cwd=ROOT, check=True, capture_output=True
    )
    program = Path(json.loads(folder.stdout)["target_directory"]) / "release/examples/speed"
    speed = json.loads(subprocess.run(program, check=True, capture_output=True).stdout)
    rows = {
        f"500 people, one GPU {100 * busy:.0f} % busy, exactly": {
            "measured": f"{seconds} s",
            "target": f"below {CHAIN_SECONDS} s",
            "ratio": round(CHAIN_SECONDS / seconds, 2),
        }
        for busy, seconds in speed["chain"]
    }
    for key, target in CELLS_A_SECOND.items():
        rows[f"simulated: {NAMES[key]}"] = {
            "measured": f"{speed[key]:,} cells/s",
            "target": f"at least {target:,} cells/s",
            "ratio": round(speed[key] / target, 2),
        }
    met = {what: seconds <= CHAIN_SECONDS for what, (_, seconds) in zip(rows, speed["chain"], strict=False)}
    met |= {f"simulated: {NAMES[key]}": speed[key] >= target for key, target in CELLS_A_SECOND.items()}
    report("plan", rows, {what: "met" if is_met else "missed" for what, is_met in met.items()})


if __name__ == "__main__":
    main()
