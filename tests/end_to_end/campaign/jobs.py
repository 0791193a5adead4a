"""Whether the broker's list of jobs agrees with what notebooks saw."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from end_to_end.campaign.outcome import Kind
from end_to_end.campaign.stage import Stage
from end_to_end.campaign.student import Ran, busy
from end_to_end.service import run_binary
from end_to_end.waiting import wait_until

END_SECONDS = 45.0
"""A cell of a kernel that has ended ends within this time, on an idle machine."""
OUTCOMES = {
    Kind.OK: ["ok"],
    Kind.RAISED: ["error"],
    Kind.DISTURBED: ["error"],
    Kind.INTERRUPTED: ["cancelled", "error"],
    Kind.UNCHANGED: ["worker_lost", "refused", "cancelled", "out_of_memory", "timed_out"],
    Kind.NOT_RUN: ["cancelled"],
}
"""The statuses that a job may have if its cell ended like this."""
PERHAPS_NONE = (Kind.INTERRUPTED, Kind.UNCHANGED, Kind.NOT_RUN)
"""Outcomes of cells that the broker may not know, because they may never have been submitted."""


def disagreements(stage: Stage, ran: Iterable[Ran]) -> list[str]:
    if stage.clock is not None:  # then the times in the list mean nothing
        return []
    bound = busy() * END_SECONDS
    try:
        wait_until(lambda: all(job["state"] == "finished" for job in jobs(stage)), "all jobs ended", bound)
    except AssertionError:
        unfinished = [job for job in jobs(stage) if job["state"] != "finished"]
        return [f"the broker's list has jobs that do not end: {unfinished}"]
    listed = jobs(stage)
    return [wrong for one in ran for wrong in disagreement(one, listed)]


def jobs(stage: Stage) -> list[dict[str, Any]]:
    answer = run_binary(stage.place, "jobs", "--json", "--limit", "500", **stage.client_environment)
    assert answer.returncode == 0, answer.stderr
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def disagreement(one: Ran, listed: list[dict[str, Any]]) -> list[str]:
    if not one.plan.remote or one.outcome.kind is Kind.GONE:
        return []
    begin, end = (moment * 1000 for moment in one.when)
    outcomes = [
        job["outcome"]
        for job in listed
        if job["notebook"] == f"notebook-{one.notebook}.ipynb"
        and job["execution_count"] == one.outcome.number
        and begin - 1000 < job["submitted_ms"] < end + 1000
    ]
    allowed = OUTCOMES[one.outcome.kind]
    complete = len(outcomes) == 1 or (not outcomes and one.outcome.kind in PERHAPS_NONE)
    if complete and all(outcome in allowed for outcome in outcomes):
        return []
    return [f"the list of jobs says {outcomes} of {one.plan.name}: {one.outcome}"]
