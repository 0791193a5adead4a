"""Raw memory: reading and writing at an address, and private mappings of a received file.

**Invariant:** the only module that knows addresses of memory that Python does not own.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

_library = ctypes.CDLL(None, use_errno=True)
_mmap = _library.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_munmap = _library.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
_memcmp = _library.memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
_preadv = _library.preadv
_preadv.restype = ctypes.c_ssize_t
_preadv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long)
_MOST_PARTS = 1024  # the limit for one call (`IOV_MAX`)


class _Mapping:
    """Pages of a file, private to this process; unmapped when no object uses them any more."""

    __slots__ = ("address", "size", "unmap")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size, self.unmap = address, size, _munmap

    def __del__(self) -> None:
        self.unmap(self.address, self.size)


def at_address(address: int, size: int, owner: Any) -> Any:
    """A writable buffer over this memory that keeps the owner alive. (A ctypes array can have attributes.)"""
    memory = (ctypes.c_ubyte * size).from_address(address)
    memory.baton_owner = owner  # type: ignore[attr-defined]
    return memory


def copied(data: bytes) -> Any:
    """A writable buffer of its own with these bytes."""
    memory = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
    memory.baton_owner = None  # type: ignore[attr-defined]
    return memory


def is_of_table(buffer: Any) -> bool:
    """Whether it was made here, over memory of a segment. It is then no object of the user's."""
    return hasattr(buffer, "baton_owner")


def map_private(file_descriptor: int, offset: int, size: int) -> Any:
    """The file's bytes as writable memory of this process, without a copy until a page is written to.

    The standard module would keep one descriptor open for each mapping.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _mmap(None, size, protection, mmap.MAP_PRIVATE, file_descriptor, offset)
    if address == _FAILED or address is None:
        number = ctypes.get_errno()
        raise OSError(number, f"Mapping {size} bytes of received state failed: {os.strerror(number)}")
    return at_address(address, size, _Mapping(address, size))


def zeros(size: int) -> Any:
    """New memory, for which the system provides pages only when they are touched."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def map_over(file_descriptor: int, offset: int, zeros: Any, size: int) -> None:
    """Replaces `zeros` by the file's bytes, page by page and without a copy."""
    protection, fixed = mmap.PROT_READ | mmap.PROT_WRITE, 0x10
    address = address_of(zeros)
    found = _mmap(address, size, protection, mmap.MAP_PRIVATE | fixed, file_descriptor, offset)
    if found != address:
        number = ctypes.get_errno()
        raise OSError(number, f"Mapping {size} bytes of received state failed: {os.strerror(number)}")


def address_of(buffer: Any) -> int:
    if isinstance(buffer, bytes):
        return ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class _Buffer(ctypes.Structure):
    """`Py_buffer` of Python's C interface."""

    _fields_ = (
        *(("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p)),
        *(("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t)),
        *(("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p)),
        *((name, ctypes.c_void_p) for name in ("shape", "strides", "suboffsets", "internal")),
    )


_ALL_READ_ONLY = 0x11C  # `PyBUF_FULL_RO`


def first_address(obj: Any) -> int:
    """The address of the first element of an object with a buffer, which may be read-only and have gaps."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(obj), ctypes.byref(buffer), _ALL_READ_ONLY)
    try:
        return buffer.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def holds(buffer: Any, data: bytes) -> bool:
    """Whether a writable buffer has these bytes. (`memoryview` compares element by element.)"""
    with memoryview(buffer) as view:
        size = view.nbytes
    return size == len(data) and (not size or _memcmp(address_of(buffer), data, size) == 0)


def write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


class Part(NamedTuple):
    """Bytes of a file, and the address that they belong to."""

    offset: int
    bytes: int
    address: int


def fill(file_descriptor: int, parts: Iterable[Part]) -> None:
    """Reads these parts of a file to their addresses, as many as possible in each call."""
    run: list[Part] = []
    for part in sorted(part for part in parts if part.bytes):
        if run and (run[-1].offset + run[-1].bytes != part.offset or len(run) == _MOST_PARTS):
            _fill_run(file_descriptor, run)
            run = []
        run.append(part)
    _fill_run(file_descriptor, run)


def _fill_run(file_descriptor: int, run: list[Part]) -> None:
    """Reads parts that are contiguous in the file."""
    while run:
        places = array("L", chain.from_iterable((part.address, part.bytes) for part in run))
        count = _preadv(file_descriptor, places.buffer_info()[0], len(run), run[0].offset)
        if count <= 0:
            number = ctypes.get_errno() if count else errno.EIO
            raise OSError(number, f"Reading received state failed: {os.strerror(number)}")
        run = _rest(run, count)


def _rest(run: list[Part], count: int) -> list[Part]:
    """The parts that remain after `count` bytes."""
    for index, (offset, size, address) in enumerate(run):
        if count < size:
            return [Part(offset + count, size - count, address + count), *run[index + 1 :]]
        count -= size
    return []
