"""What `with gpu:` and `@gpu` cost compared with an empty `%%gpu` cell, alternating, with warm sessions.

In one kernel, and in a plain program, which has its own session.
"""

from __future__ import annotations

import operator
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from measuring import Place, kernels, milliseconds, private_place, report, spread

ROUNDS = 300
TARGET_MORE_MS = 1.0
CELLS = {
    "`%%gpu` cell `pass`": "%%gpu\npass",
    "`with gpu: pass` in a cell": "with gpu:\n    pass",
    "`with gpu: pass` in a function": "block()",
    "empty `@gpu` function": "call()",
}
PREPARE = "from baton import gpu\ndef block():\n    with gpu:\n        pass\n@gpu\ndef call():\n    pass"


IN_PROGRAM = "empty `@gpu` function in a plain program"
PROGRAM = """
import sys
from baton import gpu
@gpu
def call():
    pass
for line in sys.stdin:
    call()
    print(flush=True)
"""


@contextmanager
def program(place: Place) -> Iterator[subprocess.Popen[str]]:
    """Makes a call for each line, and answers with a line."""
    path = place.work / "program.py"
    path.write_text(PROGRAM)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, path], env=place.environment, cwd=place.work, text=True, **pipes) as process:
        yield process


def call(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    if not process.stdout.readline():
        raise RuntimeError(f"The program ended with {process.wait()}")


def main() -> None:
    with private_place() as place, kernels(place, "baton") as (kernel,), program(place) as process:
        kernel.run(PREPARE).ok()
        for _ in range(20):
            for code in CELLS.values():
                kernel.run(code).ok()
            call(process)
        times: dict[str, list[float]] = {name: [] for name in (*CELLS, IN_PROGRAM)}
        for _ in range(ROUNDS):
            for name, code in CELLS.items():
                times[name].append(milliseconds(lambda code=code: kernel.run(code)))
            times[IN_PROGRAM].append(milliseconds(lambda: call(process)))
    cell, *others = times.values()
    more = [statistics.median(map(operator.sub, other, cell)) for other in others]
    report(
        "with-gpu",
        {name: spread(measured) for name, measured in times.items()},
        {
            "more than the cell of the same round, p50": ", ".join(f"{median:.2f} ms" for median in more),
            "target met": f"{max(more) < TARGET_MORE_MS} (below {TARGET_MORE_MS} ms)",
        },
    )


if __name__ == "__main__":
    main()
