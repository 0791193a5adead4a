"""Lessons: machines start before people arrive, stay while they work, and stop after the lesson."""

from __future__ import annotations

import json
import sysconfig
import venv
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from end_to_end import Kernel, wait_until
from end_to_end.cluster import Batch
from end_to_end.place import has_words
from end_to_end.ports import free_port
from end_to_end.service import run_binary

PEOPLE = 3


@pytest.fixture
def cluster() -> Iterator[Batch]:
    cluster = Batch(free_port())
    cluster.environment["BATON_BROKER_COURSES_FILE"] = str(cluster.service.place.folder / "courses.toml")
    write_courses(cluster, "")
    yield cluster
    cluster.close()


def write_courses(cluster: Batch, lesson: str) -> None:
    written = cluster.service.place.folder / "courses.new"
    written.write_text(f'time_zone = "UTC"\n\n[course.ml101]\n{lesson}')
    written.rename(cluster.service.place.folder / "courses.toml")


def prepared(cluster: Batch, words: tuple[str, ...]) -> int:
    """The number of processes with these words, without their forks, which have the same words."""
    found = [process for process in cluster.service.place.processes() if has_words(process, words)]
    return sum(not is_fork(process, words) for process in found)


def is_fork(process: psutil.Process, words: tuple[str, ...]) -> bool:
    try:
        parent = process.parent()
    except psutil.NoSuchProcess:  # a fork that has just ended
        return True
    return parent is not None and has_words(parent, words)


def now_and_for_two_hours() -> str:
    start = datetime.now(UTC) - timedelta(minutes=1)
    return f"{start:%Y-%m-%d %H:%M}-{start + timedelta(hours=2):%H:%M}"


def test_machines_come_for_a_lesson_and_stay_until_it_is_over(
    cluster: Batch, new_kernel: Callable[..., Kernel]
) -> None:
    lesson = f'\n[[course.ml101.lesson]]\nwhen = "{now_and_for_two_hours()}"\npeople = {PEOPLE}\n'
    write_courses(cluster, lesson)
    # On a busy machine, workers may find the restarted broker late. Nothing replaces them meanwhile.
    cluster.environment["BATON_BROKER_WORKER_GRACE"] = "60s"
    cluster.start_broker(idle="1s", max=5, worker=cluster.worker_command())
    [outlook] = json.loads(cluster.says("plan", "--timetable", "--json"))
    enough = outlook["enough_slots"]
    assert 1 < enough <= PEOPLE
    cluster.wait_for(lambda pool: pool["up"] == enough, "the workers have come, although nobody runs a cell")
    names = sorted(worker["name"] for worker in cluster.pool["workers"])
    # None of them has run a notebook. Still, the first cells of the lesson find the libraries of their Python loaded.
    words = ("baton_shim.session.zygote", "numpy", "pandas")
    wait_until(lambda: prepared(cluster, words) == enough, "they have loaded libraries")
    # Any other worker would have left after this time.
    kernel = cluster.service.kernel(new_kernel, BATON_COURSE="ml101")
    kernel.gpu("import time; time.sleep(2)").ok()
    assert sorted(worker["name"] for worker in cluster.pool["workers"]) == names
    assert {worker["state"] for worker in cluster.pool["workers"]} == {"connected"}
    # After a kill, the broker sends them again.
    cluster.service.kill("broker")
    cluster.restart_broker()
    kernel.gpu("time.sleep(2)").ok()
    assert sorted(worker["name"] for worker in cluster.pool["workers"]) == names
    write_courses(cluster, "")
    cluster.wait_for(lambda pool: not pool["workers"], "the workers have left")


def test_a_pool_that_is_slow_begins_early(cluster: Batch) -> None:
    # Five rounds of two workers, of up to half an hour each, because nothing is known about their starts.
    first_round = 2
    cluster.set("hold")
    start = datetime.now(UTC) + timedelta(minutes=100)
    when = f"{start:%Y-%m-%d %H:%M}-{start + timedelta(hours=2):%H:%M}"
    write_courses(cluster, f'\n[[course.ml101.lesson]]\nwhen = "{when}"\npeople = 350\n')
    cluster.start_broker(max=10, start_limit="30m")
    begun = cluster.wait_for(lambda pool: pool["pending"] >= first_round, "the first workers are requested")
    assert (begun["wanted"], begun["pending"]) == (10, first_round)


def test_a_lesson_finds_the_environment_of_its_course_loaded(cluster: Batch) -> None:
    environment = cluster.service.place.signs / "environment"
    venv.create(environment, symlinks=True)
    [packages] = environment.glob("lib/python3*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
    python = environment / "bin/python"
    settings = cluster.service.place.folder / "worker.toml"
    settings.write_text(f'[environment.one]\npython = "{python}"\n')
    lesson = f'\n[[course.ml101.lesson]]\nwhen = "{now_and_for_two_hours()}"\npeople = 1\n'
    write_courses(cluster, f'environment = "one"\n{lesson}')
    cluster.start_broker(idle="1s", max=1, worker=cluster.worker_command(BATON_CONFIG=str(settings)))

    def is_prepared(process: psutil.Process) -> bool:
        loaded = has_words(process, ("baton_shim.session.zygote", "numpy", "pandas"))
        with suppress(psutil.NoSuchProcess):
            return loaded and process.cmdline()[0] == str(python)
        return False

    def is_ready() -> bool:
        return any(is_prepared(process) for process in cluster.service.place.processes())

    # The worker loads them while it connects.
    wait_until(is_ready, "its Python has loaded libraries")
    cluster.wait_for(lambda pool: pool["up"] == 1, "the worker is connected")


def test_staff_enter_lessons_and_read_whether_there_are_enough_gpus(cluster: Batch) -> None:
    cluster.start_broker(max=2)
    said = cluster.says("course", "ml101", "--lesson", "Mon 17:00-18:30 350", "--lesson", "Tue,Thu 09:00-10:00 4")
    assert "ml101, Mon 17:00-18:30: 350 people: with all 2 that the pools may start 1 in 100 cells waits" in said
    assert "slots would be enough for a wait of at most a minute." in said
    assert "Tue,Thu 09:00-10:00: 4 people: " in said
    assert "ml101, Mon 17:00-18:30: 350 people" in cluster.says("plan", "--timetable")
    page = cluster.service.answers("/capacity")
    assert "350 people: with all 2 that the pools may start" in page
    assert "Mon 17:00-18:30 350\nTue,Thu 09:00-10:00 4" in cluster.service.answers("/course?name=ml101")
    assert "ml101" in cluster.says("audit")
    wrong = run_binary(
        cluster.service.place, "course", "ml101", "--lesson", "Monday 17:00-18:30 350", **cluster.service.access
    )
    assert wrong.returncode == 1
    assert "is not a time such as" in wrong.stderr
    cluster.says("course", "ml101", "--no-lessons")
    assert "No course has a lesson" in cluster.says("plan", "--timetable")
    page = cluster.service.answers("/capacity")
    assert page
    assert "Timetable" not in page
