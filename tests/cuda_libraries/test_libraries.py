"""Real CUDA libraries with time-sharing on a driver in host memory: programs with more memory together than there is.

The worker's end moves some of a program's memory whenever the program pauses, needed or not. A seed decides which
memory, and how much. Between moves, host memory is pinned ahead for all of it, and some is given back.

CUDA runtimes from 11.7 on start only on NVIDIA's driver, because they check a table of it that must not be imitated. So
PyTorch and CuPy are their last versions for CUDA 10.2. `cuda.core` and Numba call the driver without a runtime, and are
the newest versions for this Python; Numba needs the runtime's library only to ask for its version.
"""

from __future__ import annotations

import contextlib
import random
import subprocess

import pytest
from cuda_libraries.machines import SEED, Machine, check

pytestmark = pytest.mark.cuda_libraries

PARTS = {
    "torch": ("memory", "threads", "loader", "graphs", "cache"),
    "cupy": ("memory", "streams", "graphs", "pools"),
    "cuda_core": ("memory", "streams", "graphs", "nodes", "pools"),
    "numba": ("memory", "streams", "host_memory"),
}
KILLS = 6
# Longer than a program takes until it computes.
LONGEST_LIFE_SECONDS = 8.0


@pytest.mark.parametrize(("library", "part"), [(library, part) for library, parts in PARTS.items() for part in parts])
def test_two_programs_with_more_memory_than_fits_find_theirs_as_they_left_it(
    machine: Machine, library: str, part: str
) -> None:
    check([machine.start(library, part, 90, 3), machine.start(library, "memory", 90, 3)])
    assert machine.ends.usage(1)["moved_bytes"] > 0
    assert machine.ends.usage(2)["moved_bytes"] > 0


def test_four_programs_at_once(machine: Machine) -> None:
    check([machine.start("torch", part, 50, 2) for part in ("memory", "threads", "graphs", "cache")])


def test_four_libraries_at_once(machine: Machine) -> None:
    check([machine.start(library, "memory", 50, 2) for library in PARTS])


@pytest.mark.parametrize("library", ["torch", "cupy", "cuda_core"])
def test_launches_of_a_library_pass_the_gate(machine: Machine, library: str) -> None:
    check([machine.start(library, "calls", 0, 3)])


def test_a_program_that_is_killed_harms_no_other(machine: Machine) -> None:
    other = machine.start("torch", "memory", 90, KILLS)
    chance = random.Random(SEED)
    for _ in range(KILLS):
        other.go(1)
        library, parts = chance.choice(list(PARTS.items()))
        killed = machine.start(library, chance.choice(parts), 80, 50)
        killed.go(50)
        with contextlib.suppress(subprocess.TimeoutExpired):
            killed.process.wait(chance.uniform(0, LONGEST_LIFE_SECONDS))
        killed.process.kill()
        killed.process.wait()
    found = other.finds()
    assert found[0] == "ready"
    assert set(found[1:]) == {"right"}, found


def test_the_driver_s_monitoring_shows_a_session_its_own_memory(calm_machine: Machine) -> None:
    other = calm_machine.start("torch", "memory", 60, 1)
    check([calm_machine.start("torch", "monitor", 60, 3)])
    check([other])


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_what_a_library_holds_without_using_it_does_not_move(calm_machine: Machine, library: str) -> None:
    machine = calm_machine
    holding = machine.start(library, "trims", 80, 1)
    assert [holding.line() for _ in range(3)] == ["ready", "right", "right"]
    check([machine.start("torch", "memory", 120, 1)])
    holding.go(1)
    assert holding.finds() == ["right"]
    assert [machine.ends.usage(token)["moved_bytes"] for token in (1, 2)] == [0, 0]
