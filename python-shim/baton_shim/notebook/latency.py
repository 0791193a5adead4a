"""Measures what a `%%gpu` cell adds on this installation, part by part: `baton bench latency`.

Real notebook kernels run real cells on NumPy arrays. Three functions of the shim are watched in the notebook kernel,
the cell itself reports its begin and end, and the broker reports whether another job was in the way. If the session is
on another machine, the clocks are compared with empty cells: both directions are assumed to take equally long on
average.
"""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

MEGABYTE = 1_000_000
SIZES = (0, 1, 10, 100, 1000)
PARTS = ("snapshot", "move", "wait", "run", "return")
# Typical size of a course's cells when a GPU is handed over to the next person.
HAND_OVER_MEGABYTES = 100

# Run silently in the notebook kernel. The table is asked for new names as always, but none of these is the student's.
WATCH = """
import baton_shim.notebook.call as _call, time as _time
def _watched(name, holder, key):
    function = getattr(holder, key)
    def watched(*arguments, **options):
        begin = _time.time()
        try:
            return function(*arguments, **options)
        finally:
            _call.seen[name] = (begin, _time.time())
    setattr(holder, key, watched)
_call.seen = {}
_watched("snapshot", _call, "depart")
_watched("wait", _call.Call, "_wait")
_watched("apply", _call.Call, "land")
del _watched
"""
FRESH = """
import numpy as baton_numpy
baton_data = baton_numpy.random.default_rng().integers(0, 256, {bytes}, 'uint8')
"""
CHANGE = "baton_data[:{bytes}] += 1"
TOUCH = "baton_sum = int(baton_data[::4096].sum())"
CELL = """%%gpu
import time as baton_time, socket as baton_socket
baton_begin = baton_time.time()
{body}
baton_span = (baton_begin, baton_time.time(), baton_socket.gethostname())
"""


@dataclass
class Measured:
    """Times of one cell, in seconds."""

    total: float
    snapshot: float
    out: float
    run: float
    back: float
    wait: float
    elsewhere: bool

    def parts(self, clock: float) -> dict[str, float]:
        """`clock`: seconds by which the session's clock is ahead of the notebook's."""
        move = max(self.out - clock - self.wait, 0.0)
        parts = (self.snapshot, move, self.wait, self.run, max(self.back + clock, 0.0))
        return dict(zip(PARTS, parts, strict=True)) | {"total": self.total, "adds": self.total - self.run}


class Notebook:
    """A kernel as Jupyter starts it, and its client."""

    def __init__(self, folder: str) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager()
        command = [sys.executable, "-m", "baton_shim", "-f", "{connection_file}"]
        self.manager.kernel_spec.argv = command
        self.manager.start_kernel(cwd=folder)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)
        self.run(WATCH)

    def run(self, code: str) -> dict[str, Any]:
        """Returns the reply's content; ends this program with the cell's own message if the cell fails."""
        options = {"stop_on_error": False, "store_history": False, "allow_stdin": False}
        reply = self.client.execute_interactive(code, output_hook=lambda _: None, timeout=None, **options)
        content: dict[str, Any] = reply["content"]
        if content["status"] != "ok":
            raise SystemExit(f"Error: The cell did not run: {content.get('evalue', content['status'])}")
        return content

    def value(self, expression: str) -> Any:
        reply = self.client.execute_interactive(
            "", silent=True, store_history=False, user_expressions={"value": expression}, timeout=None
        )
        return ast.literal_eval(reply["content"]["user_expressions"]["value"]["data"]["text/plain"])

    def measure(self, body: str) -> Measured:
        self.run(CELL.format(body=body))
        seen = self.value("__import__('baton_shim.notebook.call').notebook.call.seen")
        begin, end, host = self.value("baton_span")
        snapshot, wait, apply = seen["snapshot"], seen["wait"], seen["apply"]
        return Measured(
            total=apply[1] - snapshot[0],
            snapshot=snapshot[1] - snapshot[0],
            out=begin - snapshot[1],
            run=end - begin,
            back=apply[1] - end,
            wait=in_line(wait[0], wait[1]),
            elsewhere=host != os.uname().nodename,
        )

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()


def in_line(begin: float, end: float) -> float:
    """Seconds that the last cell waited in the queue: until the end of the last job that was ahead of it."""
    command = [os.environ["BATON_BINARY"], "jobs", "--json", "--limit", "20"]
    answer = subprocess.run(command, capture_output=True, check=False)
    if answer.returncode:
        return 0.0  # this person may not see other people's jobs
    jobs = json.loads(answer.stdout)
    if not jobs or jobs[0]["started_ms"] is None:
        return 0.0
    own, others = jobs[0], jobs[1:]
    ends = [job["finished_ms"] for job in others if job["finished_ms"] is not None]
    last = max((ms for ms in ends if own["submitted_ms"] < ms <= own["started_ms"]), default=own["submitted_ms"])
    return float(min((last - own["submitted_ms"]) / 1000, end - begin))


def measure(most_bytes: int, runs: int) -> list[dict[str, Any]]:
    cells: list[tuple[int, str, list[Measured]]] = []
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        for size in (size for size in SIZES if size * MEGABYTE <= most_bytes):
            notebook = Notebook(folder)
            try:
                cells += of_size(notebook, size, runs)
            finally:
                notebook.close()
    clock = clock_difference([one for size, state, seen in cells if size == 0 and state == "warm" for one in seen])
    rows = []
    for size, state, seen in cells:
        parts = [one.parts(clock) for one in seen]
        median = {name: statistics.median(one[name] for one in parts) for name in parts[0]}
        rows.append({"megabytes": size, "state": state, "runs": len(seen)} | median)
    return rows


def of_size(notebook: Notebook, size: int, runs: int) -> list[tuple[int, str, list[Measured]]]:
    if size == 0:
        return [(0, "cold", [notebook.measure("pass")]), (0, "warm", [notebook.measure("pass") for _ in range(runs)])]
    data = size * MEGABYTE
    notebook.run(FRESH.format(bytes=data))
    rows = [(size, "cold", [notebook.measure(TOUCH)]), (size, "warm", [notebook.measure(TOUCH) for _ in range(runs)])]
    change = CHANGE.format(bytes=data // 100)
    changed = []
    for _ in range(runs):
        notebook.run(change)
        changed.append(notebook.measure(f"{TOUCH}\n{change}"))
    return [*rows, (size, "1 % changed", changed)]


def clock_difference(empty: list[Measured]) -> float:
    """Seconds by which the session's clock is ahead; on one machine the two are the same."""
    if not any(one.elsewhere for one in empty):
        return 0.0
    return statistics.median((one.out - one.back) / 2 for one in empty)


def hand_over(rows: list[dict[str, Any]]) -> float:
    """Seconds for which a GPU waits for the next person's cell: what a cell adds if 1 % of the usual data changed."""
    changed = [row for row in rows if row["state"] == "1 % changed" and row["megabytes"] <= HAND_OVER_MEGABYTES]
    row = max(changed or [row for row in rows if row["state"] == "warm"], key=lambda row: int(row["megabytes"]))
    return float(row["move"] + row["return"])


def cold(rows: list[dict[str, Any]]) -> float:
    """Seconds that a notebook's first cell adds if its session has not started."""
    rows = [row for row in rows if row["state"] == "cold" and row["megabytes"] <= HAND_OVER_MEGABYTES]
    return float(max(rows, key=lambda row: int(row["megabytes"]))["adds"])


def text(rows: list[dict[str, Any]]) -> str:
    columns = (*PARTS, "total", "adds")
    lines = [f"{'data':>7}  {'state':<12}" + "".join(f"{column:>11}" for column in columns)]
    for row in rows:
        size = f"{row['megabytes']} MB" if row["megabytes"] else "none"
        lines.append(f"{size:>7}  {row['state']:<12}" + "".join(f"{shown(row[column]):>11}" for column in columns))
    seconds = hand_over(rows)
    lines += [
        "",
        "Cold: the first cell of a notebook, including the start of its session. All other rows show medians.",
        "What a cell adds: its total time without its run time.",
        f"hint: baton plan --hand-over {max(round(seconds * 1000), 1)}ms",
    ]
    return "\n".join(lines)


def shown(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def main(arguments: list[str]) -> None:
    most_bytes, runs = int(arguments[0]), int(arguments[1])
    rows = measure(most_bytes, runs)
    result = {"rows": rows, "hand_over_seconds": hand_over(rows), "cold_seconds": cold(rows)}
    sys.stdout.write((json.dumps(result) if "--json" in arguments else text(rows)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
