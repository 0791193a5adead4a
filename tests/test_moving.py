"""Only what the other side lacks is transferred: counted in the broker's chunks, not in seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from end_to_end import Kernel, Service

MAKE = "import numpy as np\nx = np.random.default_rng(1).random(1_048_576)"
CHUNKS_OF_X = 8


class Store:
    """The chunks that the broker has received so far."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._seen: set[str] = set()

    def new(self) -> int:
        """The number of new chunks since the last call."""
        before = self._seen
        files = (path for path in (self._service.data / "chunks").rglob("*") if path.is_file())
        self._seen = before | {path.name for path in files}
        return len(self._seen - before)


@pytest.fixture
def running(service: Service) -> Service:
    service.start_broker()
    service.start_worker(BATON_TRANSPORT="http")
    return service


@pytest.fixture
def store(running: Service) -> Store:
    store = Store(running)
    store.new()
    return store


@pytest.fixture
def notebook(running: Service, new_kernel: Callable[..., Kernel], store: Store) -> Kernel:
    kernel = running.kernel(new_kernel, BATON_TRANSPORT="http")
    kernel.run(MAKE).ok()
    kernel.gpu("first = float(x[0])").ok()
    assert store.new() == CHUNKS_OF_X
    return kernel


def test_what_is_there_already_does_not_move(notebook: Kernel, store: Store) -> None:
    notebook.gpu("second = float(x[1])").ok()
    assert store.new() == 0


def test_of_what_changed_here_only_the_changed_chunk_moves(notebook: Kernel, store: Store) -> None:
    notebook.run("x[500_000] = 7").ok()
    assert notebook.gpu("float(x[500_000])").ok().value == "7.0"
    assert store.new() == 1


def test_of_what_changed_there_only_the_changed_chunk_moves(notebook: Kernel, store: Store) -> None:
    notebook.gpu("x[0] = 8").ok()
    assert store.new() == 1
    assert notebook.evaluate("float(x[0])") == 8.0


def test_what_the_cell_does_not_use_does_not_move(notebook: Kernel, store: Store) -> None:
    notebook.run("y = np.random.default_rng(2).random(1_048_576)").ok()
    notebook.gpu("third = float(x[2])").ok()
    assert store.new() == 0


def test_the_same_data_of_another_notebook_is_not_stored_twice(
    running: Service, notebook: Kernel, new_kernel: Callable[..., Kernel], store: Store
) -> None:
    other = running.kernel(new_kernel, BATON_TRANSPORT="http")
    other.run(MAKE).ok()
    other.gpu("first = float(x[0])").ok()
    assert store.new() == 0
    assert other.evaluate("first") == notebook.evaluate("first")


def test_small_things_need_no_chunk(notebook: Kernel, store: Store) -> None:
    notebook.run("words = ['a'] * 100").ok()
    notebook.gpu("words.append('b')").ok()
    assert store.new() == 0
    assert notebook.evaluate("len(words)") == 101
