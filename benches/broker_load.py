"""A full course on one broker, on SQLite and on PostgreSQL: 500 scripted notebooks, 16 workers, 20 cells a second.

2,000 more notebooks are connected and do nothing. It fails if a line of output or a cell is lost or duplicated.
Everything, including PostgreSQL, shares the processors of this machine, and the disk with its other users. So beside
each run it measures how long a small write takes until it is safe, and which slow cells waited during such a write.
Each engine runs twice at the same time: with its files on the disk, and with its files in memory. The second run shows
the broker's own time, on half of the machine.
Fairness is measured on a simulated clock, for equal students who submit without a pause for an hour.
`broker_load.py SECONDS` sets the duration; the issue's ten minutes are `broker_load.py 600`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

from measuring import report

# isort: split
from end_to_end.service import BINARY

ROOT = Path(__file__).parent.parent
SECONDS = 60
TARGET_MS = 100
TARGET_MB = 200
TARGET_FAIRNESS = 0.95
PLACES = {"on the disk": None, "in memory": "/dev/shm"}
CARGO = ("cargo", "run", "--quiet", "--release", "--locked", "--package")


def main() -> None:
    seconds = sys.argv[1] if len(sys.argv) > 1 else str(SECONDS)
    baton = os.environ.get("BATON_PROGRAM", BINARY)
    rows = {}
    for engine in ("sqlite", "postgres"):
        runs = {
            where: asked(folder, "baton-load", "--", str(baton), engine, seconds) for where, folder in PLACES.items()
        }
        rows |= {f"{engine}, {where}": said(run) for where, run in runs.items()}
    fairness = said(asked(None, "baton-scheduling", "--example", "fairness"))
    verdict = (
        {
            f"assigned within {TARGET_MS} ms (p99), {where}": all(
                row["assigned p99 ms"] < TARGET_MS for name, row in rows.items() if name.endswith(where)
            )
            for where in PLACES
        }
        | {
            f"below {TARGET_MB} MB": all(row["broker MB"] < TARGET_MB for row in rows.values()),
            "each cell started and ended once": all(
                row["cells"] == row["started"] == row["finished"] for row in rows.values()
            ),
            f"Jain's index of a saturated hour at least {TARGET_FAIRNESS}": min(fairness.values()) >= TARGET_FAIRNESS,
        }
        | {f"Jain's index of {which}": index for which, index in fairness.items()}
    )
    report("broker-load", rows, verdict)


def asked(folder: str | None, package: str, *arguments: str) -> subprocess.Popen[str]:
    place = {"TMPDIR": folder} if folder else {}
    return subprocess.Popen([*CARGO, package, *arguments], cwd=ROOT, env=os.environ | place, stdout=PIPE, text=True)


def said(run: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = run.communicate()
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, run.args)
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
