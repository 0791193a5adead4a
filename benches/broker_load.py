"""A full course on one broker, on SQLite and on PostgreSQL: 500 scripted notebooks, 16 workers, 20 cells a second.

2,000 more notebooks are connected and do nothing. It fails when a cell or a line of output is lost or doubled.
All of it, the PostgreSQL too, shares the processors of this machine.
`broker_load.py SECONDS` says how long; the issue's ten minutes are `broker_load.py 600`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from measuring import report

ROOT = Path(__file__).parent.parent
SECONDS = 60
TARGET_MS = 100
TARGET_MB = 200


def main() -> None:
    seconds = sys.argv[1] if len(sys.argv) > 1 else str(SECONDS)
    baton = os.environ.get("BATON_PROGRAM") or shutil.which("baton")
    command = ["cargo", "run", "--quiet", "--release", "--locked", "-p", "baton-load", "--", str(baton)]
    rows = {}
    for engine in ("sqlite", "postgres"):
        said = subprocess.run([*command, engine, seconds], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(said.stdout.splitlines()[-1])
        rows[row.pop("engine")] = row
    verdict = {
        f"assigned within {TARGET_MS} ms (p99)": all(row["assigned p99 ms"] < TARGET_MS for row in rows.values()),
        f"below {TARGET_MB} MB": all(row["broker MB"] < TARGET_MB for row in rows.values()),
        "cells and lines lost, doubled or out of order": 0,
    }
    report("broker-load", rows, verdict)


if __name__ == "__main__":
    main()
