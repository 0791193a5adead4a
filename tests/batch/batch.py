"""A small batch system for tests: it starts jobs on this machine, and allows queries and cancellation.

Files in its folder control it: `refuse` (it accepts no job), `hold` (jobs wait until the file is removed), `broken`
(jobs end at once), `stall` (it answers no query about jobs until the file is removed; `stalled` shows that it was
queried), `state` (what it prints as the state of each job), `keep` (it cancels no job), `mute` (it does not answer
submissions until the file is removed), `expected` (when it says that jobs begin). `environment.json` is the environment
of jobs. Each submission is a line of `submitted`, and each cancelled job of `cancelled`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.05


def submit(folder: Path, command: str) -> None:
    if (folder / "refuse").exists():
        sys.exit("Batch job submission failed: Job violates the policy")
    with (folder / "submitted").open("a+") as submitted:
        fcntl.flock(submitted, fcntl.LOCK_EX)
        submitted.seek(0)
        number = str(100 + len(submitted.readlines()))
        submitted.write(json.dumps({"job": number, "command": command, "environment": dict(os.environ)}) + "\n")
    with (folder / f"{number}.log").open("ab") as log:
        job = subprocess.Popen(
            [sys.executable, __file__, str(folder), "run", number, command],
            env=json.loads((folder / "environment.json").read_text()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    written = folder / f"{number}.written"
    written.write_text(str(job.pid))
    written.rename(folder / f"{number}.pid")
    while (folder / "mute").exists():
        time.sleep(POLL_SECONDS)
    print(number)


def find(folder: Path, name: str) -> None:
    for job in submissions(folder):
        if name in job["command"].split():
            print(job["job"])


def submissions(folder: Path) -> list[dict[str, Any]]:
    """Those that are completely written."""
    with (folder / "submitted").open() as submitted:
        fcntl.flock(submitted, fcntl.LOCK_SH)
        return [json.loads(line) for line in submitted]


def run(folder: Path, number: str, command: str) -> None:
    while (folder / "hold").exists():
        time.sleep(POLL_SECONDS)
    (folder / f"{number}.started").touch()
    if (folder / "broken").exists():
        sys.exit("The node is broken")
    os.execvp("sh", ["sh", "-c", f"exec {command}"])


def status(folder: Path, number: str) -> None:
    while (folder / "stall").exists():
        (folder / "stalled").touch()
        time.sleep(POLL_SECONDS)
    if (folder / "state").exists():
        print((folder / "state").read_text())
        return
    if not (folder / f"{number}.pid").exists():
        sys.exit("Invalid job id specified")
    if is_alive(int((folder / f"{number}.pid").read_text())):
        print("RUNNING" if (folder / f"{number}.started").exists() else "PENDING")


def is_alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between opening and reading
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def expected(folder: Path, number: str) -> None:
    del number
    if (folder / "expected").exists():
        print((folder / "expected").read_text())


def cancel(folder: Path, number: str) -> None:
    if (folder / "keep").exists():
        sys.exit("Unable to contact the controller")
    with (folder / "cancelled").open("a") as cancelled:
        cancelled.write(f"{number}\n")
    os.killpg(int((folder / f"{number}.pid").read_text()), signal.SIGTERM)


if __name__ == "__main__":
    at, name, *arguments = sys.argv[1:]
    commands = {"submit": submit, "find": find, "run": run, "status": status, "cancel": cancel, "expected": expected}
    commands[name](Path(at), *arguments)
