"""Frameworks with time-sharing: two programs of each kind, of 3 GiB each, that may use 4 GiB of the GPU together.

Each checks its memory after every time slice, and a profiler counts submissions that bypass the gate.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any

from programs import arguments, say

from end_to_end.frameworks import WORK, take_turns  # isort: skip

GIBIBYTES = 3
LIBRARIES = {"cupy": "cupy", "jax": "jax", "triton": "triton"}


def main() -> None:
    options = arguments(__doc__).parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for name in WORK:
        library = LIBRARIES.get(name, "torch")
        what = f"{name}, two at a time"
        if options.machine:
            rows[what] = {"result": "not run: a framework needs a real driver"}
        elif importlib.util.find_spec(library) is None:
            rows[what] = {"result": f"not run: no {library} is installed"}
        else:
            rows[what] = measured(name)
        say(rows, {})


def measured(name: str) -> dict[str, Any]:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            swaps = take_turns(Path(folder), name, GIBIBYTES, {})
        except Exception as error:  # after any error, the other frameworks still run
            return {"result": f"failed: {error}"}
    return {"result": "right", "seconds": round(time.monotonic() - begin, 1), "swaps": swaps}


if __name__ == "__main__":
    main()
