"""What fails, for how long, and how it is repaired.

Each fault is a function that breaks something, waits, and repairs it. When it returns, the service is healthy.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from end_to_end.campaign.stage import Stage
from end_to_end.network import Relay

Pause = Callable[[float], None]
Breaking = Callable[[Stage, random.Random, Pause], None]


@dataclass(frozen=True)
class Fault:
    name: str
    break_it: Breaking
    suits: Callable[[Stage], bool]
    bound_seconds: float
    """A cell ends at most this long after the repair."""
    ends: bool
    """Whether it ends sessions, so that their deferred state is lost; it may end services, too."""
    leaves_short: bool
    """Whether a cell's own code may lack a resource, then or later."""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    bound_seconds: float,
    suits: Callable[[Stage], bool],
    *,
    ends: bool = False,
    leaves_short: bool = False,
) -> Callable[[Breaking], Breaking]:
    def register(break_it: Breaking) -> Breaking:
        FAULTS[name] = Fault(name, break_it, suits, bound_seconds, ends, leaves_short)
        return break_it

    return register


def always(_: Stage) -> bool:
    return True


def separate(stage: Stage) -> bool:
    return not stage.plan.up


def up(stage: Stage) -> bool:
    return stage.plan.up


def over_tcp(stage: Stage) -> bool:
    return separate(stage) and stage.plan.tcp


def has_disks(stage: Stage) -> bool:
    return bool(stage.disks)


def has_clock(stage: Stage) -> bool:
    return stage.clock is not None


def has_wire(stage: Stage) -> bool:
    return stage.wire is not None


def mirrored(stage: Stage) -> bool:
    return stage.plan.files == "mirror"


# ---- kill -9


@fault("kill broker", 45, separate)
def kill_broker(stage: Stage, dice: random.Random, pause: Pause) -> None:
    stage.service.kill("broker")
    pause(dice.choice([0, dice.uniform(0, 1), dice.uniform(2, 6)]))
    stage.start_broker()


@fault("broker away for long", 45, separate)
def broker_away(stage: Stage, dice: random.Random, pause: Pause) -> None:
    stage.service.kill("broker")
    pause(dice.uniform(15, 35))
    stage.start_broker()


@fault("kill worker", 45, separate, ends=True)
def kill_worker(stage: Stage, dice: random.Random, pause: Pause) -> None:
    name = dice.choice(sorted(stage.worker_relays))
    stage.service.kill(name)
    pause(dice.choice([0, dice.uniform(0, 3), dice.uniform(5, 8)]))
    stage.start_worker(name)


@fault("kill up", 45, up, ends=True)
def kill_up(stage: Stage, dice: random.Random, _: Pause) -> None:
    for process in stage.services():
        with suppress(psutil.Error):
            process.kill()


@fault("kill session", 30, always, ends=True)
def kill_session(stage: Stage, dice: random.Random, _: Pause) -> None:
    for process in one_of(stage.sessions(), dice):
        with suppress(psutil.Error):
            process.kill()


# ---- freeze and thaw


@fault("freeze a service", 45, always)
def freeze_service(stage: Stage, dice: random.Random, pause: Pause) -> None:
    freeze(one_of(stage.services(), dice), dice, pause)


@fault("freeze a session", 45, always)
def freeze_session(stage: Stage, dice: random.Random, pause: Pause) -> None:
    freeze(one_of(stage.sessions(), dice), dice, pause)


@fault("freeze a notebook", 45, always)
def freeze_notebook(stage: Stage, dice: random.Random, pause: Pause) -> None:
    freeze(one_of(stage.kernels(), dice), dice, pause)


def freeze(processes: list[psutil.Process], dice: random.Random, pause: Pause) -> None:
    """Shorter and longer than the grace periods of broker, worker and proxy."""
    with suppress(psutil.Error):
        for process in processes:
            process.send_signal(signal.SIGSTOP)
    pause(sometimes_long(dice, 18))
    with suppress(psutil.Error):
        for process in processes:
            process.send_signal(signal.SIGCONT)


# ---- the network


@fault("cut", 45, separate)
def cut(stage: Stage, dice: random.Random, pause: Pause) -> None:
    broken = some_relays(stage, dice)
    for relay in broken:
        relay.cut()
    pause(dice.choice([dice.uniform(0, 0.3), dice.uniform(0.5, 3), dice.uniform(7, 10)]))
    for relay in broken:
        relay.mend()


@fault("reset", 30, over_tcp)
def reset(stage: Stage, dice: random.Random, pause: Pause) -> None:
    broken = some_relays(stage, dice)
    for _ in range(dice.choice([1, 1, 5])):
        for relay in broken:
            relay.reset()
        pause(dice.uniform(0, 0.5))


@fault("blackhole", 60, separate)
def blackhole(stage: Stage, dice: random.Random, pause: Pause) -> None:
    broken = some_relays(stage, dice)
    for relay in broken:
        relay.swallow()
    pause(sometimes_long(dice, 25))
    if dice.random() < 0.5:  # as if a router had forgotten the connections
        for relay in broken:
            relay.cut()
    for relay in broken:
        relay.mend()


@fault("delay", 45, separate)
def delay(stage: Stage, dice: random.Random, pause: Pause) -> None:
    broken = some_relays(stage, dice)
    for relay in broken:
        relay.delay(dice.uniform(0.02, 0.3))
    pause(dice.uniform(2, 6))
    for relay in broken:
        relay.mend()


@fault("loss", 60, has_wire)
def loss(stage: Stage, dice: random.Random, pause: Pause) -> None:
    assert stage.wire is not None
    stage.wire.loss = dice.choice([0.02, 0.1, 0.3, 1.0])
    seconds = sometimes_long(dice, 20)
    pause(seconds)
    stage.wire.mend()
    pause(seconds)  # TCP retries after at most as long as the connection was silent


@fault("late packets", 60, has_wire)
def late_packets(stage: Stage, dice: random.Random, pause: Pause) -> None:
    assert stage.wire is not None
    stage.wire.delay = dice.uniform(0.01, 0.2)
    stage.wire.loss = dice.choice([0, 0.02])
    pause(dice.uniform(2, 6))
    stage.wire.mend()


# ---- disks


@fault("full disk", 45, has_disks, leaves_short=True)
def full_disk(stage: Stage, dice: random.Random, pause: Pause) -> None:
    disk = stage.disks[dice.choice(sorted(stage.disks))]
    disk.fill()
    pause(sometimes_long(dice, 20))
    disk.free()


@fault("read-only disk", 45, has_disks, leaves_short=True)
def read_only_disk(stage: Stage, dice: random.Random, pause: Pause) -> None:
    disk = stage.disks[dice.choice(["cache", "notebooks"])]
    if disk.make_read_only():
        pause(sometimes_long(dice, 20))
        disk.make_writable()


@fault("spoiled chunks", 30, always)
def spoil_chunks(stage: Stage, dice: random.Random, _: Pause) -> None:
    """Changes, truncates or removes chunks."""
    chunks = stage.chunks()
    for path in dice.sample(chunks, min(len(chunks), 10)):
        how = dice.choice(["change", "cut", "remove"])
        with suppress(OSError):  # it has been removed since
            if how == "remove":
                path.unlink()
            else:
                path.chmod(0o600)
                content = path.read_bytes()
                path.write_bytes(content[: len(content) // 2] if how == "cut" else content[:-1] + b"?")


@fault("emptied caches", 30, always)
def empty_caches(stage: Stage, dice: random.Random, _: Pause) -> None:
    for folder in stage.caches():
        for path in sorted(folder.rglob("*"), reverse=True):
            with suppress(OSError):
                path.unlink() if path.is_file() else path.rmdir()


@fault("deleted mirrors", 30, mirrored, ends=True, leaves_short=True)
def delete_mirrors(stage: Stage, dice: random.Random, _: Pause) -> None:
    for folder in one_of(stage.mirrors(), dice):
        shutil.rmtree(folder, ignore_errors=True)


# ---- descriptors, memory, the clock


@fault("no descriptors", 45, always, leaves_short=True)
def no_descriptors(stage: Stage, dice: random.Random, pause: Pause) -> None:
    candidates = [*stage.services(), *stage.sessions()]
    for process in one_of(candidates, dice):
        with suppress(psutil.Error):
            limited(process, psutil.RLIMIT_NOFILE, process.num_fds() + dice.randrange(3), dice.uniform(0.5, 4), pause)


@fault("no memory", 45, always, ends=True, leaves_short=True)
def no_memory(stage: Stage, dice: random.Random, pause: Pause) -> None:
    """A process that cannot allocate memory ends, or reports that."""
    candidates = [*stage.services(), *stage.sessions()]
    for process in one_of(candidates, dice):
        with suppress(psutil.Error):
            room = dice.choice([0, 1 << 20, 10 << 20])
            limited(process, psutil.RLIMIT_AS, process.memory_info().vms + room, dice.uniform(0.5, 4), pause)


def limited(process: psutil.Process, resource: int, limit: int, seconds: float, pause: Pause) -> None:
    soft, hard = process.rlimit(resource)
    process.rlimit(resource, (limit, hard))
    pause(seconds)
    for one in [process, *process.children(recursive=True)]:  # new children have inherited the limit
        with suppress(psutil.Error):
            one.rlimit(resource, (soft, hard))


@fault("clock jump", 30, has_clock)
def clock_jump(stage: Stage, dice: random.Random, pause: Pause) -> None:
    assert stage.clock is not None
    stage.clock.move(dice.choice([-1, 1]) * dice.choice([30, 3600, 86400, 400 * 86400]))
    pause(dice.uniform(1, 5))
    stage.clock.move(0)


def sometimes_long(dice: random.Random, most: float) -> float:
    """Mostly within the grace periods, sometimes beyond them."""
    [span] = dice.choices([(0.1, 0.6), (1, 4), (6, 10), (15, most)], weights=[8, 6, 3, 1])
    return dice.uniform(*span)


def some_relays(stage: Stage, dice: random.Random) -> list[Relay]:
    workers, notebooks = list(stage.worker_relays.values()), list(stage.notebook_relays)
    kind = dice.choice(["worker", "workers", "notebooks", "all"])
    if kind == "worker":
        return one_of(workers, dice)
    return {"workers": workers, "notebooks": notebooks, "all": [*workers, *notebooks]}[kind]


def one_of(candidates: list, dice: random.Random) -> list:  # type: ignore[type-arg]
    """One candidate, or none if there are none."""
    return [dice.choice(candidates)] if candidates else []
