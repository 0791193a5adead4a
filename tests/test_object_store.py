"""State that is transferred through an object store, not through the broker."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from end_to_end import Cell, Kernel, Service
from end_to_end.disks import Disk
from end_to_end.object_store import KINDS, Azurite, FakeGcs, ObjectStore, SeaweedFS
from end_to_end.service import run_binary
from end_to_end.waiting import wait_until

MAKE = """
import numpy as np
x = np.random.default_rng(7).integers(0, 256, 64 << 20, dtype="uint8")
"""
SUM = "int(x.sum(dtype='int64'))"


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    store: ObjectStore = request.param(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def running(service: Service, store: ObjectStore) -> Service:
    service.start_broker(**store.settings)
    service.start_worker()
    return service


def objects(service: Service, stored: bool = True) -> int:
    """The number of objects that the broker has seen in the store, or has issued grants for."""
    with closing(sqlite3.connect(service.data / "broker.db")) as database:
        count = "SELECT COUNT(*) FROM chunks WHERE object IS NOT NULL AND stored = ?"
        return int(database.execute(count, [stored]).fetchone()[0])


def files(service: Service) -> list[Path]:
    """Files that were transferred through the broker."""
    return [path for path in service.data.rglob("chunks/**/*") if path.is_file()]


def test_a_cells_state_goes_through_the_store_once(
    running: Service, store: ObjectStore, new_kernel: Callable[..., Kernel]
) -> None:
    kernel = running.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run(MAKE).ok()
    total = kernel.evaluate(SUM)
    cell = kernel.gpu(f"seen = {SUM}\nx[5] = 7\ny = x[::-1].copy()\nseen").ok()
    assert cell.value == str(total)
    assert kernel.evaluate("int(x[5]), bool((y == x[::-1]).all())") == (7, True)
    sent = objects(running)
    assert sent >= 128
    # Objects that the store already has are not sent again.
    kernel.run("again = x.copy()").ok()
    assert kernel.gpu("int(again[5])").ok().value == "7"
    assert objects(running) - sent < 8
    assert files(running) == []
    log = running.log("broker")
    assert store.secret not in log
    assert not [name for name in ("Signature", "sig=") if name in log]


WRONG = {
    SeaweedFS: ({"AWS_SECRET_ACCESS_KEY": "another"}, "SignatureDoesNotMatch", "check AWS_ENDPOINT_URL"),
    Azurite: ({"AZURE_STORAGE_ACCOUNT_KEY": "YW5vdGhlcg=="}, "403", "check AZURE_STORAGE_ACCOUNT_NAME"),
    FakeGcs: ({"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere"}, "/nowhere", "check GOOGLE_APPLICATION_CREDENTIALS"),
}
"""The fault, what `baton doctor` says about it, and its hint."""


def test_doctor_tries_the_store(service: Service, store: SeaweedFS | Azurite | FakeGcs) -> None:
    def said(**changed: str) -> str:
        return run_binary(service.place, "doctor", **(store.settings | changed)).stdout

    assert f"ok     The broker can use {store.address}" in said()
    changed, reason, advice = WRONG[type(store)]
    refused = said(**changed)
    assert f"wrong  The broker cannot use {store.address}" in refused
    assert reason in refused
    assert advice in refused
    store.kill()
    assert "Connection refused" in said()


@pytest.mark.parametrize("store", [SeaweedFS], indirect=True)
def test_on_one_machine_nothing_goes_through_the_store(running: Service, new_kernel: Callable[..., Kernel]) -> None:
    kernel = running.kernel(new_kernel)
    kernel.run(MAKE).ok()
    assert kernel.gpu(SUM).ok().value == str(kernel.evaluate(SUM))
    assert objects(running) == 0


@pytest.mark.parametrize("store", [SeaweedFS], indirect=True)
def test_a_saved_state_is_in_the_store(running: Service, new_kernel: Callable[..., Kernel]) -> None:
    first = running.kernel(new_kernel)
    first.run(MAKE).ok()
    total = first.evaluate(SUM)
    first.run("%gpu_save all").ok()
    first.shutdown()
    assert objects(running) >= 64
    assert files(running) == []
    second = running.kernel(new_kernel)
    second.run("%gpu_load all").ok()
    assert second.evaluate(SUM) == total


def inside(kernel: Kernel, go: Path) -> Cell:
    """A running cell, which changes everything once a file exists."""
    cell = kernel.begin(
        "%%gpu\nimport os, time\nprint('inside', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "y = x ^ 255"
    )
    cell.wait_for_text("inside")
    return cell


def test_a_result_waits_for_a_store_that_is_killed(
    running: Service, store: ObjectStore, new_kernel: Callable[..., Kernel]
) -> None:
    kernel = running.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run(MAKE).ok()
    total = kernel.evaluate(SUM)
    go = running.place.signs / "go"
    cell = inside(kernel, go)
    store.kill()
    go.touch()
    store.start()
    cell.finish().ok()
    assert kernel.evaluate("int(y.sum(dtype='int64'))") == 255 * (64 << 20) - total


def test_a_result_waits_for_a_store_that_answers_late(
    running: Service, store: ObjectStore, new_kernel: Callable[..., Kernel]
) -> None:
    kernel = running.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run(MAKE).ok()
    go = running.place.signs / "go"
    cell = inside(kernel, go)
    store.stop()
    go.touch()
    wait_until(lambda: objects(running, stored=False) > 0, "the worker has grants")
    store.resume()
    cell.finish().ok()
    assert kernel.evaluate("bool((y == x ^ 255).all())") is True


def test_a_cell_that_waits_for_the_store_can_be_interrupted(
    running: Service, store: ObjectStore, new_kernel: Callable[..., Kernel]
) -> None:
    kernel = running.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run(MAKE).ok()
    total = kernel.evaluate(SUM)
    store.kill()
    cell = kernel.begin("%%gpu\nx[:] = 0")
    cell.wait_for(lambda _: objects(running, stored=False), "the notebook has grants")
    kernel.interrupt()
    assert cell.finish().error is not None
    assert kernel.evaluate(SUM) == total
    store.start()
    kernel.gpu("x[:] = 0").ok()
    assert kernel.evaluate(SUM) == 0


@pytest.mark.root("mount a small disk")
def test_a_full_store_leaves_the_variables_as_they_were(
    service: Service, tmp_path: Path, new_kernel: Callable[..., Kernel]
) -> None:
    """Azurite answers 500, as SeaweedFS does. The transport's tests have the answers that name the cause."""
    disk = Disk(tmp_path / "store/data", "8m")
    store = Azurite(tmp_path / "store")
    try:
        service.start_broker(**store.settings)
        service.start_worker()
        kernel = service.kernel(new_kernel, BATON_TRANSPORT="http")
        kernel.run(MAKE).ok()
        total = kernel.evaluate(SUM)
        cell = kernel.begin("%%gpu\nx[:] = 0")
        wait_until(lambda: '" 500 ' in (store.folder / "log").read_text(), "the store is full")
        kernel.interrupt()
        assert cell.finish().error is not None
        assert kernel.evaluate(SUM) == total
        disk.resize("512m")
        kernel.gpu("x[:] = 0").ok()
        assert kernel.evaluate(SUM) == 0
    finally:
        store.close()
        disk.close()
