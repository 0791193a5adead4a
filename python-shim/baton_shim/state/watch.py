"""Pages of this process that were written to since the last query, if the system tracks this.

Linux 6.7 and newer can write-protect pages and remove the protection itself at the first write to each page
(`userfaultfd` with asynchronous write protection). One query (`PAGEMAP_SCAN`) returns the pages that were written to,
and protects them again if requested. A query then costs almost nothing, and the first write to a page about a
microsecond. See `Documentation/admin-guide/mm/userfaultfd.rst` and `pagemap.rst` of Linux.

Writes by another process that shares the memory, or by a device that bypasses the processor, are not noticed. So only
private memory is watched, and none if there is a GPU.

**Invariant:** if unsure, the answer is "unknown".
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import functools
import mmap
import os
import platform
import struct
import sys

Ranges = list[tuple[int, int]]
"""Pairs of begin and end."""

_GPU = "/dev/nvidiactl"
_SYSTEM_CALL = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1  # allowed for any user; writes by the system are noticed all the same

_API = 0xAA
_WRITE_PROTECT_UNPOPULATED, _WRITE_PROTECT_ASYNC = 1 << 13, 1 << 15
_MODE_WRITE_PROTECT = 1 << 1
_PROTECT = 1 << 0

_SCAN_PROTECTS, _SCAN_CHECKS = 1 << 0, 1 << 1
_WRITTEN = 1 << 1
_MOST_RANGES = 4096
_REGION = struct.Struct("=QQQ")
_SCAN = struct.Struct("=12Q")
_PAGE = mmap.PAGESIZE


def _request(direction: int, kind: int, number: int, size: int) -> int:
    """The macro `_IOC` of C."""
    return direction << 30 | size << 16 | kind << 8 | number


_BEGIN_API = _request(3, _API, 0x3F, 24)
_REGISTER = _request(3, _API, 0x00, 32)
_UNREGISTER = _request(2, _API, 0x01, 16)
_WRITEPROTECT = _request(3, _API, 0x06, 24)
_PAGEMAP_SCAN = _request(3, ord("f"), 16, _SCAN.size)


class Watch:
    """Tracks writes in this process."""

    def __init__(self, faults: int, pages: int) -> None:
        self._faults, self._pages = faults, pages
        self._regions = bytearray(_MOST_RANGES * _REGION.size)

    def begin(self, address: int, size: int, private: Ranges) -> bool:
        """Tracks writes from now on; False if that is impossible. `private`: a new result of `private_memory()`."""
        start, end = _pages_of(address, size)
        at = bisect.bisect_right(private, (start, sys.maxsize)) - 1
        if at < 0 or private[at][1] < end:
            return False
        size = end - start
        try:
            fcntl.ioctl(self._faults, _REGISTER, bytearray(struct.pack("=4Q", start, size, _MODE_WRITE_PROTECT, 0)))
            fcntl.ioctl(self._faults, _WRITEPROTECT, bytearray(struct.pack("=3Q", start, size, _PROTECT)))
        except OSError:  # special pages
            return False
        return True

    def written(self, address: int, size: int, *, protect: bool) -> Ranges | None:
        """Ranges of whole pages that were written to since `begin`, or since the last call with `protect`.

        None: unknown, or too many ranges to be worth distinguishing.
        """
        start, end = _pages_of(address, size)
        place = ctypes.addressof(ctypes.c_char.from_buffer(self._regions))
        flags = _SCAN_CHECKS | (_SCAN_PROTECTS if protect else 0)
        found: Ranges = []
        while start < end:
            question = bytearray(
                _SCAN.pack(_SCAN.size, flags, start, end, 0, place, _MOST_RANGES, 0, 0, _WRITTEN, 0, _WRITTEN)
            )
            try:
                count = fcntl.ioctl(self._pages, _PAGEMAP_SCAN, question)
            except OSError:  # other memory is mapped there now
                return None
            if count == _MOST_RANGES:
                return None
            regions = memoryview(self._regions)[: count * _REGION.size]
            # With many regions, it may return a place before its own end, and repeat the results from there.
            known = found[-1][1] if found else start
            for begin, finish, _ in _REGION.iter_unpack(regions):
                if finish > known:
                    found.append((max(begin, known), finish))
            start = _SCAN.unpack(question)[4]
        return found

    def end(self, address: int, size: int) -> None:
        start, end = _pages_of(address, size)
        try:
            fcntl.ioctl(self._faults, _UNREGISTER, bytearray(struct.pack("=2Q", start, end - start)))
        except OSError:  # it is not watched any more
            pass


def private_memory() -> Ranges:
    """All memory that is not shared with another process or a file, in order."""
    found: Ranges = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            place, permissions, _, _, inode = line.split(maxsplit=5)[:5]
            if permissions[3] != "p" or inode != "0":
                continue
            begin, end = (int(text, 16) for text in place.split("-"))
            if found and found[-1][1] == begin:
                begin, _ = found.pop()
            found.append((begin, end))
    return found


def _pages_of(address: int, size: int) -> tuple[int, int]:
    return address // _PAGE * _PAGE, -(-(address + size) // _PAGE) * _PAGE


@functools.cache
def watch() -> Watch | None:
    """None if the system does not track writes, or not those of every writer."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None or os.path.exists(_GPU):
        return None
    faults = ctypes.CDLL(None).syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
    if faults < 0:
        return None
    try:
        features = _WRITE_PROTECT_ASYNC | _WRITE_PROTECT_UNPOPULATED
        fcntl.ioctl(faults, _BEGIN_API, bytearray(struct.pack("=3Q", _API, features, 0)))
        return Watch(faults, os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:  # an older system
        os.close(faults)
        return None
