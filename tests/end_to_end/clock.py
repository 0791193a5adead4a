"""The wall clock of chosen processes, which a test moves while they run."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class Clock:
    """A library that is compiled into the folder; `environment` holds the variables with which to start processes."""

    def __init__(self, folder: Path) -> None:
        library, self._shift = folder / "clock.so", folder / "clock"
        self.move(0)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._shift)}

    @staticmethod
    def possible() -> bool:
        return shutil.which("cc") is not None

    def move(self, seconds: int) -> None:
        """Sets the clock to this many seconds from the machine's, at once."""
        with self._shift.open("r+b" if self._shift.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))
