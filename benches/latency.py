"""What a `%%gpu` cell adds, part by part, as reported by `baton bench latency`; and the hand-over for `baton plan`."""

from __future__ import annotations

import json
import subprocess

from measuring import report

# isort: split
from end_to_end import Service
from end_to_end.service import BINARY

PARTS = ("snapshot", "move", "wait", "run", "return", "total", "adds")


def main() -> None:
    service = Service.create()
    try:
        service.start_broker()
        service.start_worker()
        command = (BINARY, "bench", "latency", "--runs", "3", "--json")
        said = subprocess.run(command, env=service.environment, check=True, capture_output=True, text=True)
    finally:
        left = service.close()
    assert not left, left
    told = json.loads(said.stdout)
    rows = {
        f"{row['megabytes']} MB, {row['state']}": {f"{part}_ms": round(row[part] * 1e3, 1) for part in PARTS}
        | {"runs": row["runs"]}
        for row in told["rows"]
    }
    hand_over, cold = (f"{told[key] * 1e3:.0f} ms" for key in ("hand_over_seconds", "cold_seconds"))
    report("latency", rows, {"hand-over for `baton plan`": hand_over, "cold start for `baton plan`": cold})


if __name__ == "__main__":
    main()
