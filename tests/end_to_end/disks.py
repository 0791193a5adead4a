"""Folders on separate small file systems, which a test fills or makes read-only. Needs root."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

BALLAST = ".ballast"


class Disk:
    """A folder, possibly already in use, on a file system in memory."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(folder))

    @staticmethod
    def possible() -> bool:
        return os.geteuid() == 0

    def fill(self) -> None:
        """Afterwards not a single byte fits."""
        ballast = os.open(self.folder / BALLAST, os.O_CREAT | os.O_WRONLY)
        try:
            free = os.statvfs(self.folder)
            size = free.f_bavail * free.f_frsize
            while size >= free.f_frsize:
                try:
                    os.posix_fallocate(ballast, os.fstat(ballast).st_size, size)
                except OSError:  # another process took some of it
                    size //= 2
        finally:
            os.close(ballast)

    def free(self) -> None:
        with suppress(FileNotFoundError):
            (self.folder / BALLAST).unlink()

    def resize(self, size: str) -> None:
        mount("-o", f"remount,size={size}", str(self.folder))

    def make_read_only(self) -> bool:
        """False if a file is open for writing, because the system does not allow it then."""
        return mount("-o", "remount,ro", str(self.folder), check=False)

    def make_writable(self) -> None:
        mount("-o", "remount,rw", str(self.folder))

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def mount(*arguments: str, check: bool = True) -> bool:
    return subprocess.run(["mount", *arguments], check=check, capture_output=True).returncode == 0
