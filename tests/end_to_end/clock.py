"""The clock of the day of chosen processes, which a test moves while they run."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class Clock:
    """Compiled into the folder; `environment` is what the processes have to be started with."""

    def __init__(self, folder: Path) -> None:
        library, self._shift = folder / "clock.so", folder / "clock"
        self.move(0)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._shift)}

    @staticmethod
    def possible() -> bool:
        return shutil.which("cc") is not None

    def move(self, seconds: int) -> None:
        """So far from the machine's clock, at once."""
        with self._shift.open("r+b" if self._shift.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))
