"""Attaching to an IPython and an ipykernel that may have moved what Baton knows.

Each part of Baton attaches by itself. One that cannot is left out: the log has the whole error, and the first cell of
the notebook one line that says what is missing.

**Invariant:** whatever these versions have moved, the kernel starts, and what cells do without that part is untouched.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PACKAGE = "baton-jupyter"


class Fitting:
    def __init__(self) -> None:
        self.missing: list[str] = []
        """What the student has to do without, and why, in a few words each."""

    @contextmanager
    def part(self, without: str) -> Iterator[None]:
        """A stretch that attaches one part. `without`: how it is if that fails, as in "%%gpu cells do not run"."""
        try:
            yield
        except Exception as error:
            traceback.print_exc(file=sys.__stderr__)
            self.missing.append(f"{without} ({type(error).__name__}: {error})")

    def text(self) -> str:
        return (
            f"Baton does not fit the installed {versions()}: {'; '.join(self.missing)}\n"
            f"hint: update it with: python -m pip install --upgrade {PACKAGE}"
        )

    def tell(self, shell: Any) -> None:
        """With the next cell, because nothing is shown of what a kernel says before."""
        if not self.missing:
            return

        def say() -> None:
            shell.events.unregister("pre_execute", say)
            sys.stderr.write(f"warning: {self.text()}\n")

        shell.events.register("pre_execute", say)


def versions() -> str:
    import ipykernel
    import IPython

    return f"IPython {IPython.__version__} and ipykernel {ipykernel.__version__}"
