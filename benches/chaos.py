"""Campaigns of faults against real notebooks: every promise of docs/concepts/failures.md holds, whatever fails.

This is a test, not a measurement: it runs for the requested time, prints each violation with the command that repeats
its campaign, and fails if there was one.

    benches/chaos.py --minutes 10
    benches/chaos.py --cells 5000
    benches/chaos.py --seed 17 --campaigns 1
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import signal
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from measuring import report

# isort: split
from end_to_end.campaign import Campaign, Findings, run
from end_to_end.campaign.faults import FAULTS

CELLS_OF_A_CAMPAIGN = 120
AT_ONCE = 3
"""A campaign mostly waits for something that is frozen or unreachable."""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # running campaigns clean up first
    options = parsed()
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    total, campaigns, began = Findings(), 0, time.monotonic()
    running: dict[Future[Findings], int] = {}
    with ProcessPoolExecutor(options.at_once, multiprocessing.get_context("spawn")) as pool:
        while True:
            while len(running) < options.at_once and not enough(options, total, campaigns, time.monotonic() - began):
                seed = first + campaigns
                running[
                    pool.submit(run, Campaign(seed, CELLS_OF_A_CAMPAIGN, tuple(options.faults), logs=options.logs))
                ] = seed
                campaigns += 1
            if not running:
                break
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                findings = ended.result()
                tell(running.pop(ended), findings, options.faults)
                total.add(findings)
    if options.report:
        write_report(first, campaigns, total)
    return 1 if total.violations else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="stop after the campaign in which this time ends")
    parser.add_argument("--cells", type=int, help="stop after the campaign that reaches so many cells")
    parser.add_argument("--campaigns", type=int, help="stop after so many campaigns")
    parser.add_argument("--seed", type=int, help="of the first campaign; each further one has the next number")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS), help="only these")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="how many campaigns run side by side")
    parser.add_argument("--logs", type=Path, help="keep the logs of campaigns with violations in this folder")
    parser.add_argument("--report", action="store_true", help="write target/benches/chaos.{json,md}")
    options = parser.parse_args()
    if options.minutes is None and options.cells is None and options.campaigns is None:
        options.minutes, options.report = 10.0, True
    return options


def enough(options: argparse.Namespace, total: Findings, campaigns: int, seconds: float) -> bool:
    """Whether any of the given limits is reached."""
    return (
        (options.minutes is not None and seconds >= options.minutes * 60)
        or (options.cells is not None and total.cells.total() >= options.cells)
        or (options.campaigns is not None and campaigns >= options.campaigns)
    )


def tell(seed: int, findings: Findings, faults: list[str]) -> None:
    cells, broken = findings.cells.total(), findings.faults.total()
    sys.stdout.write(f"seed {seed}: {cells} cells, {broken} faults, {findings.seconds:.0f} s: {findings.plan}\n")
    chosen = "" if faults == list(FAULTS) else " --faults " + " ".join(f"'{name}'" for name in faults)
    for violation in findings.violations:
        sys.stdout.write(f"VIOLATION {violation}\n")
        sys.stdout.write(f"  repeat: benches/chaos.py --seed {seed} --campaigns 1{chosen}\n")
    sys.stdout.flush()


def write_report(first: int, campaigns: int, total: Findings) -> None:
    rows = {f"faults: {name}": {"number": count} for name, count in sorted(total.faults.items())}
    rows |= {f"cells: {how}": {"number": count} for how, count in sorted(total.cells.items())}
    verdict = {
        "campaigns": f"{campaigns}, seeds {first} to {first + campaigns - 1}",
        "cells": total.cells.total(),
        "faults": total.faults.total(),
        "minutes": round(total.seconds / 60, 1),
        "losses of finished cells that were announced": total.losses,
        "violations": len(total.violations),
    }
    report("chaos", rows, verdict)


if __name__ == "__main__":
    sys.exit(main())
