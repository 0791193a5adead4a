"""What time-sharing costs a program that is alone on a GPU: nanoseconds for each submission.

The driver is in host memory and handles a submission quickly; on a real one a launch takes 2 to 5 µs. The worker and
the driver are the same in all rows, so the differences are the interposer's.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from measuring import report

ROOT = Path(__file__).parent.parent
TARGET_NS = 50


def main() -> None:
    command = ["cargo", "bench", "--quiet", "--locked", "-p", "baton-gpu-tests", "--bench", "gate"]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    times = json.loads(said.splitlines()[-1])
    rows = {
        "the driver alone": {"ns": times["bare_ns"]},
        "with the interposer, without a worker": {"ns": times["without_a_worker_ns"]},
        "with the interposer and the lease": {"ns": times["gated_ns"]},
    }
    extra = round(times["gated_ns"] - times["bare_ns"], 1)
    verdict = {"the gate": f"{extra} ns (target: at most {TARGET_NS} ns)", "target met": extra <= TARGET_NS}
    report("gpu-gate", rows, verdict)


if __name__ == "__main__":
    main()
