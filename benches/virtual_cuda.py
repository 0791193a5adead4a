"""Virtual CUDA compared with plain CPU PyTorch: the cost of the label, of notebooks without `cuda`, and of the import.

Four processes alternate: one without virtual CUDA; one with it and tensors on the CPU; one with it and tensors on the
GPU; and one without it in which every torch call goes through a function mode that does nothing: no label can cost less
than this `floor`. For each work, the result is the median of the fastest half.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from measuring import report

SHIM = Path(__file__).parent.parent / "python-shim"
ROUNDS = 5
IMPORTS = 12
# An installed package is compiled once, not at each import.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
# By the device of the tensors.
TARGETS = {
    "cpu": {
        "x + 1, 8 numbers": 1.05,
        "N[i, 3] += 1": 1.05,
        "torch.zeros(3)": 1.25,
        "MLP step, small": 1.05,
        "import torch": 1.05,
    },
    "cuda": {
        "x + 1, 8 numbers": 1.8,
        "N[i, 3] += 1": 2.0,
        "MLP step, small": 1.5,
        "MLP step": 1.5,
        "ResNet step": 1.05,
    },
}


def main() -> None:
    found: dict[str, dict[str, list[float]]] = {"plain": {}, "cpu": {}, "cuda": {}, "floor": {}}
    for kind in ["work"] * ROUNDS + ["import"] * IMPORTS:
        for where, times in found.items():
            if where == "floor" and kind == "import":
                continue
            command = (sys.executable, __file__, where, kind)
            done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, check=True)
            for work, took in json.loads(done.stdout).items():
                times.setdefault(work, []).append(took)
    rows = {}
    verdict = {}
    for where, targets in TARGETS.items():
        for work, target in targets.items():
            plain, virtual = (best(found[each][work]) for each in ("plain", where))
            ratio = round(virtual / plain, 2)
            name = f"{work}, tensors on {where}"
            rows[name] = {"plain_us": round(plain, 1), "virtual_us": round(virtual, 1)}
            floor = round(best(found["floor"][work]) / plain, 2) if where == "cuda" else None
            rows[name] |= {"ratio": ratio, "floor": floor, "target": target}
            verdict[name] = "met" if ratio <= target else "missed"
    report("virtual-cuda", rows, verdict)


def best(times: list[float]) -> float:
    """Microseconds. The median of the fastest half, because a single lucky run means nothing."""
    return statistics.median(sorted(times)[: (len(times) + 1) // 2])


def measure(where: str, kind: str) -> dict[str, float]:
    sys.path.insert(0, str(SHIM))
    device = "cuda" if where == "cuda" else "cpu"
    if where in TARGETS:
        from baton_shim.virtual import SWITCH

        SWITCH.begin(session=False)
    began = time.perf_counter()
    import torch

    if kind == "import":
        return {"import torch": (time.perf_counter() - began) * 1e6}
    if where == "floor":
        function_mode_that_does_nothing().__enter__()
    times = {}
    torch.set_num_threads(1)  # so that waiting for threads is not measured
    torch.manual_seed(0)
    small = torch.ones(8, device=device)
    times["x + 1, 8 numbers"] = fastest(lambda: small + 1, 10_000)
    times["N[i, 3] += 1"] = fastest(counting(device), 5_000)
    if device == "cpu":
        times["torch.zeros(3)"] = fastest(lambda: torch.zeros(3), 10_000)
    times["MLP step, small"] = fastest(training(mlp(16, 32, 4), (32, 16), 4, device), 200)
    times["MLP step"] = fastest(training(mlp(784, 512, 512, 10), (64, 784), 10, device), 20)
    times["ResNet step"] = fastest(training(resnet(), (8, 3, 32, 32), 10, device), 2)
    return times


def function_mode_that_does_nothing() -> Any:
    from torch.overrides import TorchFunctionMode

    class Passing(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **kwargs) if kwargs else function(*args)

    return Passing()


def fastest(work: Callable[[], object], count: int) -> float:
    """Microseconds for one call."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            work()
        times.append((time.perf_counter() - begin) / count * 1e6)
    return min(times)


def counting(device: str) -> Callable[[], object]:
    import torch

    counts = torch.zeros(27, 27, dtype=torch.int32, device=device)

    def step() -> None:
        counts[5, 3] += 1

    return step


def training(model: Any, shape: tuple[int, ...], classes: int, device: str) -> Callable[[], object]:
    import torch

    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, wanted = torch.randn(shape).to(device), torch.randint(0, classes, shape[:1]).to(device)
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> None:
        loss_of(model(inputs), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mlp(*widths: int) -> Any:
    from torch import nn

    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def resnet() -> Any:
    """The shape of ResNet-18: four stages of two blocks, 64 to 512 channels, 11 million parameters."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.main = nn.Sequential(
                nn.Conv2d(before, after, 3, stride, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, 1, 1, bias=False),
                nn.BatchNorm2d(after),
            )
            same = stride == 1 and before == after
            self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.main(x) + self.short(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    before = 64
    for number, after in enumerate((64, 128, 256, 512)):
        layers += [Block(before, after, 1 if number == 0 else 2), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
