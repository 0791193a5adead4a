"""Cells in the background, and a gate at which they wait."""

from __future__ import annotations

from pathlib import Path

from end_to_end.kernel import Cell, Kernel


class Gate:
    """Lets background cells continue: they wait for a file that they may read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    def closed(self) -> str:
        """Code that waits at the gate."""
        self.number += 1
        return f"import os, time\nwhile not os.path.exists({str(self.path)!r}): time.sleep(0.01)\n"

    @property
    def path(self) -> Path:
        return self._path(self.number)

    def open(self) -> None:
        self.path.touch()

    def open_all(self) -> None:
        for number in range(self.number + 1):
            self._path(number).touch()

    def _path(self, number: int) -> Path:
        return self.folder / f"gate-{number}"


def background(kernel: Kernel, body: str, options: str = "job") -> Cell:
    """Starts a background cell; returns when its own cell has ended in the notebook."""
    return speaking(kernel, f"%%gpu --background {options}\n{body}")


def speaking(kernel: Kernel, code: str) -> Cell:
    """A cell that shows something after its end."""
    cell = kernel.begin(code)
    cell.speaks_after_idle = True
    cell.finish().ok()
    return cell
