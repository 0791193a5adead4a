"""State bypasses the broker if notebook and worker are on one machine, and passes through it otherwise.

With each transport, the notebook sees the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until

LANES = ("auto", "http")

MAKE = """
import numpy as np
base = np.arange(1_000_000, dtype="float32")
view = base[::2]
frame = {"small": np.ones(5), "text": "x" * 300_000, "again": view}
"""


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def running(service: Service) -> Service:
    service.start_broker()
    service.start_worker()
    return service


def chunks(service: Service) -> int:
    """The number of chunks on the broker."""
    return sum(path.is_file() for path in (service.data / "chunks").glob("??/*"))


def test_both_lanes_give_the_same(running: Service, new_kernel: Callable[..., Kernel], lane: str) -> None:
    kernel = running.kernel(new_kernel, BATON_TRANSPORT=lane)
    kernel.run(MAKE).ok()
    kernel.gpu("base[3] = -1\nnew = base * 2\nframe['small'] += 1\nframe['more'] = view[:3]").ok()
    seen = kernel.evaluate(
        "float(base[3]), float(new[5]), new.nbytes, frame['small'].tolist(), frame['again'] is view, "
        "np.shares_memory(frame['more'], base), float(base.sum())"
    )
    total = kernel.evaluate("float(np.arange(1_000_000, dtype='float32').sum())")
    assert seen[:6] == (-1.0, 10.0, 4_000_000, [2.0] * 5, True, True)
    assert seen[6] == pytest.approx(total - 4, rel=1e-6)
    # An array that was created there is changed in place on both sides.
    kernel.run("new[10] = 7").ok()
    assert kernel.gpu("new[11] = 8\nfloat(new[10])").ok().value == "7.0"
    assert kernel.evaluate("new[10:12].tolist()") == [7.0, 8.0]
    assert (chunks(running) == 0) == (lane == "auto")


def test_a_worker_may_refuse_the_memory_lane(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_TRANSPORT="http")
    kernel = service.kernel(new_kernel)
    kernel.run(MAKE).ok()
    kernel.gpu("base[0] = 5").ok()
    kernel.gpu("base[1] = 6").ok()
    assert kernel.evaluate("base[:2].tolist()") == [5.0, 6.0]
    assert chunks(service) > 0


def test_without_its_socket_a_notebook_falls_back_to_chunks(
    running: Service, new_kernel: Callable[..., Kernel]
) -> None:
    kernel = running.kernel(new_kernel)
    kernel.run(MAKE).ok()
    kernel.gpu("base[0] = 5").ok()
    assert chunks(running) == 0
    [socket] = Path(kernel.place.folder / "run").glob("baton-*/state")
    socket.unlink()
    kernel.run("base[:] = 5").ok()  # more than fits into a message
    kernel.gpu("base[1] = 6").ok()
    kernel.gpu("base[2] = 7").ok()
    assert kernel.evaluate("base[:3].tolist()") == [5.0, 6.0, 7.0]
    assert chunks(running) > 0


def test_a_cell_waits_in_memory_while_the_broker_is_restarted(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    kernel = service.kernel(new_kernel)
    kernel.run(MAKE).ok()
    cell = kernel.begin("%%gpu\nbase[0] = 5")
    cell.wait_for(lambda result: "no GPU worker" in str(result.notices), "the cell waits")
    service.kill("broker")
    service.start_broker()
    service.start_worker()
    cell.finish().ok()
    assert kernel.evaluate("float(base[0])") == 5.0
    assert chunks(service) == 0


@pytest.mark.root("see the descriptors of a hardened process")
def test_nothing_is_left_open(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_WARM_STARTS="false")  # a new zygote would have its own descriptors
    kernel = service.kernel(new_kernel)
    kernel.run(MAKE).ok()
    kernel.gpu("base[0] = 5").ok()
    kernel.gpu("base[0] += 1").ok()
    processes = [kernel.proxy, service.process("worker-0"), psutil.Process(kernel.session_pid)]

    def opened() -> list[Counter[str]]:
        return [open_files(process) for process in processes]

    # What a cell needs is closed after its reply.
    wait_until(lambda: opened() == opened(), "nothing changes any more")
    before = opened()
    for _ in range(20):
        kernel.gpu("base[0] += 1\nnew = base + 1").ok()
    assert kernel.gpu("1/0").error is not None
    kernel.gpu("base[0] += 1").ok()
    wait_until(lambda: all(map(Counter.__le__, opened(), before)), "nothing more is open than before")


def open_files(process: psutil.Process) -> Counter[str]:
    """Files in memory and sockets, by kind."""
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith(("socket:", "/memfd:")):
            kinds[target.split(":")[0]] += 1
    return kinds
