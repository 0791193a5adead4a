"""All measurements that need a GPU: `make bench-gpu`. Parts that did not run are reported with the reason.

Each part is a separate process with a time limit; if one fails, that is reported and the next one runs. The result is
written after each part, so nothing is lost. The most informative parts come first, so `--minutes 10` is enough for a
first look at a GPU; `--seconds 15` makes programs shorter. `make gpu-first-day` is that first look.

`--machine FOLDER` runs everything on a driver in host memory, to test the programs; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from programs import FOLDER, arguments, environment

import measuring  # isort: skip
from end_to_end.gpu_programs import BUILT, gpu_programs  # isort: skip


class Part(NamedTuple):
    program: str
    arguments: tuple[str, ...]
    # For each second that a program takes alone.
    limit: float
    # Names of the targets that it is measured against.
    targets: tuple[str, ...] = ()


PARTS = {
    "notebooks": Part("notebooks.py", (), 10),
    "frameworks": Part("frameworks.py", (), 10),
    "probe": Part("probe.py", ("--max-gib", "8"), 10),
    "handover": Part("handover.py", (), 10, ("hand-over, both fit", "moves against the link", "a launch in turns")),
    "big_50": Part(
        "sharing.py",
        ("big_50",),
        30,
        ("big_50, alone in turns", "big_50, in turns of 20 s", "big_50, in turns of 5 s"),
    ),
    "classroom": Part("classroom.py", (), 30, ("30 students, mean", "30 students, p99")),
    "small_50": Part("sharing.py", ("small_50",), 30, ("small_50, alone in turns", "small_50, in turns, as cells")),
    "big_90": Part(
        "sharing.py",
        ("big_90",),
        30,
        ("big_90, alone in turns", "big_90, in turns of 20 s", "big_90, in turns of 5 s"),
    ),
    "small_90": Part("sharing.py", ("small_90",), 30, ("small_90, alone in turns",)),
}
LEAST_LIMIT_SECONDS = 300


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for all parts together")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas between")
    parser.add_argument("--longest", type=float, default=float("inf"), help="seconds that one part may take")
    parser.add_argument("--name", help="of the result")
    parser.add_argument("--students", default="30,10,5", help="sizes of the class")
    parser.add_argument("--nvshare", type=Path, help="the folder of nvshare's programs")
    parser.add_argument("--results", type=Path, default=measuring.RESULTS, help="the folder of the result")
    options = parser.parse_args()
    measuring.RESULTS = options.results
    name = options.name or ("gpu-tried" if options.machine else "gpu")
    hindrance = None
    if not options.machine and not Path("/dev/nvidia0").exists():
        hindrance = "this machine has no NVIDIA GPU (no /dev/nvidia0)"
    else:
        # A build does not count in a part's time.
        os.environ[BUILT] = str(gpu_programs())
    over = time.monotonic() + 60 * options.minutes
    rows: dict[str, dict[str, Any]] = {}
    facts: list[Any] = []
    verdict: dict[str, Any] = {target: "not run" for part in PARTS.values() for target in part.targets}
    for key, part in PARTS.items():
        left = over - time.monotonic()
        reason = hindrance or ("not asked for" if key not in options.parts.split(",") else None)
        reason = reason or ("no time was left" if left <= 0 else None)
        if reason:
            rows[key] = {"result": f"not run: {reason}"}
            continue
        result, found = run(part, options, left)
        rows[key] = {"result": result}
        rows |= found["rows"]
        verdict |= found["verdict"]
        facts += found.get("facts", [])
        measuring.report(name, in_columns(rows), verdict, facts)
    measuring.report(name, in_columns(rows), verdict, facts)


def run(part: Part, options: argparse.Namespace, left: float) -> tuple[str, dict[str, Any]]:
    """How it ended, and what it found."""
    command = [sys.executable, str(FOLDER / part.program), *part.arguments]
    if part.program != "probe.py":
        command += ["--seconds", str(options.seconds)]
        command += [] if options.gib is None else ["--gib", str(options.gib)]
        command += ["--machine", str(options.machine)] if options.machine else []
    if part.program == "classroom.py":
        command += ["--students", options.students]
    if part.program == "sharing.py" and options.nvshare:
        command += ["--nvshare", str(options.nvshare)]
    limit = min(left, options.longest, max(LEAST_LIMIT_SECONDS, part.limit * options.seconds))
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=environment(options), stdout=said, start_new_session=True)
        try:
            code = process.wait(timeout=limit)
            result = "done" if code == 0 else f"failed: it ended with {code}, see its messages"
        except subprocess.TimeoutExpired:
            end_group(process)
            result = "ended: its time was over"
        said.seek(0)
        lines = [json.loads(line) for line in said.read().splitlines() if line.startswith("{")]
    took = f"{result} ({time.monotonic() - begin:.0f} s)"
    if part.program == "probe.py":
        errors = [f"{one['part']}: {one['error']}" for one in lines if "error" in one]
        return took, {
            "rows": {},
            "verdict": {"probe": "; ".join(errors) or "see the facts in the JSON"},
            "facts": lines,
        }
    return took, lines[-1] if lines else {"rows": {}, "verdict": {}}


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the part and the programs that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def in_columns(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Gives all rows the same columns."""
    columns = dict.fromkeys(column for row in rows.values() for column in row)
    return {what: {column: row.get(column, "") for column in columns} for what, row in rows.items()}


if __name__ == "__main__":
    main()
