"""First steps of a student and a TA: `baton doctor`, the first `%%gpu` cell and what the worker's trial of time-sharing
found, a cell in a warm session, two notebooks.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from programs import arguments, environment, say

from measuring import Kernel, Place, kernels, private_place  # isort: skip

DOCTOR_SECONDS = 60
TRAIN = """
import torch
model = torch.nn.Linear(64, 1).to("cuda")
x, y = torch.randn(256, 64, device="cuda"), torch.zeros(256, 1, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
before = torch.nn.functional.mse_loss(model(x), y).item()
"""
STEPS = """
for _ in range(100):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
where = str(loss.device), torch.cuda.get_device_name(), torch._C._cuda_getDeviceCount()
"""


def main() -> None:
    options = arguments(__doc__).parse_args()
    rows: dict[str, dict[str, Any]] = {}

    def arm(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        begin = time.monotonic()
        try:
            row = measure()
        except Exception as error:  # after any error, the other arms still run
            row = {"result": f"failed: {error}"}
        rows[name] = {"seconds": round(time.monotonic() - begin, 2)} | row
        say(rows, {})

    # A driver in host memory; its card is a file that sessions write.
    machine = {name: value for name, value in environment(options).items() if name.startswith("BATON_TEST_GPU")}
    machine |= {"BATON_WORKER_SANDBOX": "none"} if machine else {}
    with private_place() as place:
        around = environment(options)
        arm("baton doctor", lambda: doctor(place.environment | around))
        with kernels(place, "baton", "baton", **machine) as (mine, other):
            arm("first %%gpu cell", lambda: counts(mine))
            arm("worker's trial", lambda: trial(place))
            arm("in a warm session", lambda: counts(mine))
            arm("a model trained in a cell", lambda: trained(mine))
            arm("two notebooks at once", lambda: both(mine, other))


def doctor(around: dict[str, str]) -> dict[str, Any]:
    program = Path(sys.executable).with_name("baton")
    told = subprocess.run(
        [program, "doctor", "--json"], env=around, stdout=subprocess.PIPE, text=True, timeout=DOCTOR_SECONDS
    )
    wrong = [finding["what"] for finding in json.loads(told.stdout) if not finding["ok"]]
    return {"result": f"wrong: {'; '.join(wrong)}" if wrong else "right"}


def trial(place: Place) -> dict[str, Any]:
    """Cells also compute if the trial fails, but then sessions do not time-share."""
    (log,) = place.folder.rglob("up.log")
    found = re.findall(r"Sessions .*time-shar.*", log.read_text())
    wrong = [line for line in found if not line.startswith("Sessions time-share")]
    if not found:
        wrong = ["the worker's log does not say whether sessions time-share"]
    return {"result": f"failed: {'; '.join(wrong)}" if wrong else "right"}


def counts(kernel: Kernel) -> dict[str, Any]:
    kernel.run("numbers = [1, 2]").ok()
    result = kernel.gpu("numbers.append(sum(numbers))", seconds=120).ok()
    right = kernel.evaluate("numbers") == [1, 2, 3]
    return {"result": "right" if right else "wrong numbers", "line": result.summary}


def trained(kernel: Kernel) -> dict[str, Any]:
    """The model is created in an ordinary cell, on the virtual GPU."""
    made = kernel.run(TRAIN, seconds=120)
    if made.error and made.error[0] == "ModuleNotFoundError":
        return {"result": "not run: no torch is installed"}
    made.ok()
    result = kernel.gpu(STEPS, seconds=120).ok()
    right = kernel.evaluate("loss.item() < 0.9 * before and torch.nn.functional.mse_loss(model(x), y).item() < before")
    return {"result": "right" if right else "wrong numbers", "line": f"{result.summary} {kernel.evaluate('where')}"}


def both(*two: Kernel) -> dict[str, Any]:
    cells = [kernel.begin(f"%%gpu\nanswer = sum(range({number}))") for number, kernel in enumerate(two, 100)]
    for cell in cells:
        cell.finish().ok()
    found = [kernel.evaluate("answer") for kernel in two]
    return {"result": "right" if found == [sum(range(100)), sum(range(101))] else f"wrong numbers: {found}"}


if __name__ == "__main__":
    main()
