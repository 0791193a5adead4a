"""Digests of memory are right, whatever writes to it, and however little of it is scanned again."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from baton_shim.state import Table, scanner
from baton_shim.state.segments import Segment
from baton_shim.state.watch import watch
from hypothesis import given
from hypothesis import strategies as st

BLOCK = 4096
BYTES = 3 << 20


@pytest.fixture(scope="session")
def scanner_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).resolve().parents[3] / "crates/chunks/src/scanner/sys.rs"
    made = tmp_path_factory.mktemp("scanner") / "scanner.so"
    kind = ["--edition=2024", "--crate-name=scanner", "--crate-type=cdylib", "-Copt-level=3"]
    subprocess.run(["rustc", *kind, "-Cpanic=abort", "-Clink-arg=-nostdlib", source, "-o", made], check=True)
    return made


@pytest.fixture(autouse=True)
def library(scanner_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BATON_SCANNER", str(scanner_library))
    scanner.library.cache_clear()
    scanner._digest.cache_clear()
    yield
    scanner.library.cache_clear()
    scanner._digest.cache_clear()


class Looked:
    """An array, and the result of scanning it.

    It begins in the middle of a page, as most arrays do, but no other code writes to its pages. (The first and the
    last page of an array from `malloc` may also belong to other objects.)
    """

    def __init__(self) -> None:
        pages = mmap.mmap(-1, BYTES + 2 * BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array = np.frombuffer(pages, dtype="uint8", count=BYTES, offset=16)
        self.array[:] = np.arange(BYTES, dtype="uint8")
        self.segment = Segment(0, self.array.ctypes.data, self.array.nbytes)

    def look(self) -> list[bytes]:
        found = bytes(scanner.look([self.segment])[0].digests)
        return [found[start : start + 16] for start in range(0, len(found), 16)]

    def assert_right(self) -> None:
        """The digests are the same as those of a complete first scan."""
        found = self.look()
        seen, self.segment.seen = self.segment.seen, None
        assert found == self.look()
        self.segment.seen = seen


def watched() -> Looked:
    """Scanned until only written pages are scanned, if the system supports that."""
    looked = Looked()
    for _ in range(2):
        looked.look()
    assert looked.segment.seen.watched == (watch() is not None)
    return looked


@given(st.lists(st.tuples(st.integers(0, BYTES - 1), st.integers(1, 3 * BLOCK)), max_size=6), st.integers(1, 4))
def test_what_is_written_is_seen(writes: list[tuple[int, int]], rounds: int) -> None:
    looked = Looked()
    for number in range(rounds):
        looked.look()
        for start, count in writes:
            looked.array[start : start + count] += number + 1
    looked.assert_right()


def test_everything_may_be_written() -> None:
    looked = watched()
    looked.array += 1
    looked.assert_right()
    assert not looked.segment.seen.watched
    for _ in range(2):
        looked.look()
    looked.array[5] += 1
    looked.assert_right()


def test_many_places_may_be_written() -> None:
    """More than the system buffers before it reports them (512). No other code writes to these pages."""
    pages = mmap.mmap(-1, 16_384 * BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    looked = Looked()
    looked.array = np.frombuffer(pages, dtype="uint8")
    looked.segment = Segment(0, looked.array.ctypes.data, len(pages))
    looked.array += 1
    looked.look()
    looked.array[: 6000 * BLOCK : 10 * BLOCK] += 1
    looked.assert_right()
    if (watching := watch()) is not None:
        looked.array[: 6000 * BLOCK : 10 * BLOCK] += 1
        written = watching.written(looked.segment.address, looked.segment.bytes, protect=True)
        assert written is not None
        assert len(written) == 600
        looked.look()
        looked.array[: 6000 * BLOCK : 10 * BLOCK] += 1
        assert watching.written(looked.segment.address, looked.segment.bytes, protect=False) == written


def test_the_system_may_write(tmp_path: Path) -> None:
    """A read into the array is not an instruction of this process."""
    (tmp_path / "data").write_bytes(b"z" * 9000)
    looked = watched()
    with open(tmp_path / "data", "rb", buffering=0) as file:
        assert file.readinto(memoryview(looked.array)[100_000:109_000]) == 9000
    assert bytes(looked.array[100_000:100_003]) == b"zzz"
    looked.assert_right()


def test_other_processes_may_write() -> None:
    pages = mmap.mmap(-1, BYTES)  # shared with children
    looked = Looked()
    looked.array = np.frombuffer(pages, dtype="uint8")
    looked.segment = Segment(0, looked.array.ctypes.data, BYTES)
    for _ in range(3):
        looked.look()
    child = multiprocessing.get_context("fork").Process(target=pages.__setitem__, args=(70_000, 7))
    child.start()
    child.join()
    assert looked.array[70_000] == 7
    looked.assert_right()


def test_threads_may_write() -> None:
    looked = watched()
    thread = threading.Thread(target=looked.array.fill, args=(3,))
    thread.start()
    thread.join()
    looked.assert_right()


def test_a_child_that_writes_changes_nothing_here() -> None:
    looked = watched()
    before = looked.look()
    child = os.fork()
    if child == 0:
        looked.array += 1
        os._exit(0)
    os.waitpid(child, 0)
    assert looked.look() == before
    looked.array[0] += 1
    looked.assert_right()


def test_memory_that_was_given_back_is_zero() -> None:
    """Memory that the system takes away without a write."""
    pages = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    looked = Looked()
    looked.array = np.frombuffer(pages, dtype="uint8")
    looked.segment = Segment(0, looked.array.ctypes.data, BYTES)
    looked.array[:] = 9
    for _ in range(3):
        looked.look()
    pages.madvise(mmap.MADV_DONTNEED, 40 * BLOCK, 8 * BLOCK)
    assert looked.array[40 * BLOCK] == 0
    looked.assert_right()


def test_other_memory_at_the_same_address() -> None:
    library: Any = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = library.mmap(None, BYTES, 3, private, -1, 0)
    looked = Looked()
    looked.array = np.frombuffer((ctypes.c_ubyte * BYTES).from_address(address), dtype="uint8")
    looked.segment = Segment(0, address, BYTES)
    for _ in range(3):
        looked.look()
    assert library.mmap(address, BYTES, 3, private | 0x10, -1, 0) == address  # MAP_FIXED
    looked.array[:10] = 1
    looked.assert_right()


def test_memory_of_a_file_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(BYTES))
    looked = Looked()
    looked.array = np.memmap(tmp_path / "data", mode="r+")
    looked.segment = Segment(0, looked.array.ctypes.data, BYTES)
    for _ in range(3):
        looked.look()
    looked.array[123_456] = 5
    looked.assert_right()


def test_what_was_seen_lasts_until_the_message_is_read() -> None:
    """Even for an array that the notebook has dropped."""
    namespace: dict[str, Any] = {"x": np.arange(BYTES, dtype="uint8")}
    table = Table(namespace)
    table.snapshot(["x"], extra={})
    table.release()
    namespace["x"] = np.ones(BYTES, dtype="uint8")
    old, new = table.snapshot(["x"], extra={}).segments
    assert new.fresh
    assert old.seen is not None
    place = old.as_wire()["digests"]
    del old, new
    others = [bytearray(BYTES // BLOCK * 16) for _ in range(1000)]
    expected = Looked()
    assert ctypes.string_at(place, BYTES // BLOCK * 16) == b"".join(expected.look())
    assert others


def noted(looked: Looked, *, protect: bool = False) -> int:
    """The bytes that the system reported as written to."""
    watching = watch()
    if watching is None:
        pytest.skip("this system does not note which pages are written to (Linux 6.7 and newer do)")
    written = watching.written(looked.segment.address, BYTES, protect=protect)
    assert written is not None
    return sum(finish - begin for begin, finish in written)


def test_only_what_is_written_is_looked_at() -> None:
    """The purpose of tracking writes."""
    looked = watched()
    looked.array[100 * BLOCK] += 1
    assert noted(looked, protect=True) == BLOCK
    assert noted(looked) == 0


def test_what_changes_again_and_again_stays_noted() -> None:
    """Until it no longer changes."""
    looked = watched()
    for place in (100, 100, 107):
        looked.array[place * BLOCK] += 1
        before = looked.look()
        assert noted(looked) > 0
    for _ in range(2):
        assert looked.look() == before
    assert noted(looked) == 0
    looked.array[100 * BLOCK] += 1
    assert looked.look() != before
    looked.assert_right()


def test_nothing_is_watched_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU writes to memory directly, which is not noticed."""
    monkeypatch.setattr("baton_shim.state.watch._GPU", os.devnull)
    assert watch.__wrapped__() is None
