"""A course of forty notebooks on a Slurm of four nodes: workers come and go, and a node and the broker die."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from end_to_end.ports import free_port
from end_to_end.waiting import wait_until
from slurm.cluster import SlurmCluster
from slurm.course import Course, Student
from slurm.slurm import is_installed

pytestmark = [
    pytest.mark.root("start slurmd"),
    pytest.mark.alone,
    pytest.mark.skipif(not is_installed(), reason="NOT TESTED: Slurm (slurm-wlm) is not installed"),
]

STUDENTS = 40
NODES = 4
IDLE = "6s"
WALLTIME = "1m"
TARGET_WAIT = "5s"
# Slurm's signal arrives up to 30 s early; with such a short lifetime, workers use their own clock.
SUBMIT = 'sbatch --parsable --no-requeue --gpus=1 --time={walltime} --signal=B:TERM@1 --wrap "exec {command}"'


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    # Slurm gives up a node after ten silent seconds, and remembers jobs that have ended.
    lines = {"SlurmdTimeout": 10, "MinJobAge": 600}
    # The test measures waits, and the sandboxes of a whole course would keep this one machine busy.
    cluster = SlurmCluster(free_port(), nodes=NODES, gpus=1, sandbox="none", **lines)
    yield cluster
    cluster.close()


@pytest.fixture
def course(cluster: SlurmCluster) -> Iterator[Course]:
    pool = {"max": NODES, "idle": IDLE, "walltime": WALLTIME, "target_wait": TARGET_WAIT, "submit": SUBMIT}
    cluster.start_broker(**pool, check="500ms")
    course = Course(cluster.service, STUDENTS)
    yield course
    course.close()


def test_a_course_on_a_pool(cluster: SlurmCluster, course: Course) -> None:
    course.all(lambda student: (student.run(0.5), student.work(4, edit_seconds=8)))
    cluster.wait_for(lambda pool: not pool["workers"], "the workers have left")
    assert course.failures == []
    predicts_the_pool(cluster)

    first = course.students[0]

    def begin(student: Student) -> None:
        student.run(60 if student is first else 1.0)
        student.work(2, edit_seconds=5)

    def break_it() -> None:
        wait_until(lambda: first.last_cell in course.processes, "the long cell runs")
        cluster.slurm.kill_node(cluster.slurm.node_of(course.processes[first.last_cell]))
        cluster.service.kill("broker")
        cluster.restart_broker()

    course.all(begin, beside=break_it)
    assert all(student.has_what_it_completed() for student in course.students)
    [lost] = course.failures
    assert "was lost while this cell ran. Your variables are as they were before the cell" in lost
    assert len(course.completed) == STUDENTS * (5 + 3)
    assert course.runs == Counter([*course.completed, f"{first.number}-5"])
    # Slurm writes the output of jobs into the broker's home.
    outputs = [path.read_text() for path in cluster.service.place.folder.glob("home/slurm-*.out")]
    assert any("This worker's time on its machine ends" in output for output in outputs)


def predicts_the_pool(cluster: SlurmCluster) -> None:
    """For the same cells, `baton plan` predicts what has happened: how long they waited, and how long machines ran.

    Within a quarter, and between its answers for the fastest and the slowest starts, because `--start` is one time for
    all machines: on a busy computer the first starts may take twice as long as the others, and one late machine delays
    all that wait.
    """
    starts = cluster.pool["start"]
    fastest, slowest = (plan_of(cluster, starts[name]) for name in ("lower_ms", "upper_ms"))
    jobs = cluster.slurm.runs("scontrol", "--oneliner", "show", "jobs").splitlines()
    hours = sum(seconds_of(job) for job in jobs) / 3600
    assert fastest["cells"] == STUDENTS * 5
    least, most = 0.75, 1.25
    assert least * fastest["wait"] < fastest["was"]["wait"] < most * slowest["wait"]
    assert least * fastest["machine_hours"] < hours < most * slowest["machine_hours"]


def plan_of(cluster: SlurmCluster, start_ms: int) -> dict[str, Any]:
    said = cluster.says(
        *("plan", "--pool", f"0-{NODES}", "--from-broker", "--json", "--start", f"{start_ms}ms"),
        *("--idle", IDLE, "--walltime", WALLTIME, "--target-wait", TARGET_WAIT),
    )
    plan: dict[str, Any] = json.loads(said)
    return plan


def seconds_of(job: str) -> float:
    """The time from its submission to its end."""
    times = dict(re.findall(r"\b(SubmitTime|EndTime)=(\S+)", job))
    begin, end = (datetime.fromisoformat(times[name]) for name in ("SubmitTime", "EndTime"))
    return (end - begin).total_seconds()
