"""The states and cells that benchmarks transfer, and the least time that the hardware allows for each.

A workload's cell reads and writes the names in it; `before` runs in the notebook, unmeasured, before each cell.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GIGABYTE = 1_000_000_000
SPREAD = 1000
"""The number of places over which the change of 1 % is spread."""

MODEL_BYTES = 10_489_896
"""The size of the parameters below. Gradients and Adam's two moments are of the same size, each."""


@dataclass(frozen=True)
class Work:
    """What a cell must at least read and transfer: bytes, and small objects (numbers and strings)."""

    reached: int = 0
    new: int = 0
    up: int = 0
    home: int = 0
    objects_up: int = 0
    objects_home: int = 0

    def floor_ms(self) -> float:
        """Two round trips, one read of each byte on each side, one copy of the changes, one pickle of the small
        objects.

        Rates of a 2-core machine, in bytes per second: reading 33e9, another process's memory 9e9, memcpy 20e9, memory
        that is new to the process 10e9; 64 ns to pickle and 43 ns to unpickle a small object.
        """
        seconds = 0.1e-3
        seconds += 2 * self.reached / 33e9 + self.new / 10e9
        seconds += (self.up + self.home) * (1 / 9e9 + 1 / 20e9)
        seconds += (self.objects_up + self.objects_home) * (64e-9 + 43e-9)
        return seconds * 1e3


@dataclass(frozen=True)
class Workload:
    name: str
    work: Work
    cell: str
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    setup: str = "pass"
    before: str = "pass"
    runs: int = 5
    warm_up: int = 0
    """The number of cells before the measured ones: shows what a state costs once it is known."""
    state: int = 0
    """Bytes of the state that a session holds with this workload."""
    tidy: tuple[str, ...] = field(default=())
    """Names that are not needed afterwards."""


def numbers(variable: str = "x") -> str:
    return f"{variable} = np.random.default_rng().random({GIGABYTE // 4}, dtype='float32')"


CHANGE = f"""
step = len(x) // {SPREAD}
for start in range(0, len(x) - step, step):
    x[start : start + step // 100] += 1
"""

TRAINING = """
import torch
torch.manual_seed(0)
data = torch.randn(50_000, 1000)
target = torch.randint(0, 10, (50_000,))
model = torch.nn.Sequential(torch.nn.Linear(1000, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 278), torch.nn.ReLU(),
    torch.nn.Linear(278, 10))
optimizer = torch.optim.Adam(model.parameters())
place = 0
"""

STEP = """
import torch
chosen = slice(place, place + 32)
optimizer.zero_grad()
loss = torch.nn.functional.cross_entropy(model(data[chosen]), target[chosen])
loss.backward()
optimizer.step()
loss = loss.item()
place = (place + 32) % 50_000
"""

EMPTY = Workload("empty cell", Work(), "pass", runs=40, warm_up=5)

COLD = Workload(
    "1 GB of float32, new",
    Work(reached=GIGABYTE, new=GIGABYTE, up=GIGABYTE),
    "first = x[0]",
    takes=("x",),
    gives=("first",),
    before=numbers(),
    runs=9,
    state=GIGABYTE,
)

DIRTY = Workload(
    "1 GB, of it 1 % changed in 1000 places",
    # A change of 10 KB begins and ends inside 4 KiB blocks.
    Work(reached=GIGABYTE, up=GIGABYTE // 100 + SPREAD * 4096),
    "first = x[0]",
    takes=("x",),
    gives=("first",),
    before=CHANGE,
    warm_up=1,
    state=GIGABYTE,
)

SAME = Workload(
    "1 GB, unchanged",
    Work(reached=GIGABYTE),
    "first = x[0]",
    takes=("x",),
    gives=("first",),
    warm_up=1,
    state=GIGABYTE,
    tidy=("x",),
)

HELD = Workload(
    "1 MB changed beside 4 GB",
    Work(reached=1 << 20, home=1 << 20),
    "small[0] += 1",
    takes=("small",),
    gives=("small",),
    setup="large = [np.ones(125_000_000) for _ in range(4)]\nsmall = np.ones(131_072)",
    runs=20,
    warm_up=1,
    state=1 << 20,
    tidy=("large",),
)

SMALL_NEW = Workload(
    "dict of a million ints and strings, new",
    Work(objects_up=2_000_000),
    "count = len(table)",
    takes=("table",),
    gives=("count",),
    before="table = {number: f'name {number}' for number in range(1_000_000)}",
    state=138_000_000,
)

SMALL_SAME = Workload(
    "dict of a million ints and strings, unchanged",
    Work(reached=20_000_000),
    "count = len(table)",
    takes=("table",),
    gives=("count",),
    warm_up=1,
    state=138_000_000,
    tidy=("table",),
)

TRAINING_NEW = Workload(
    "200 MB of data, an MLP and Adam: first step",
    Work(reached=242_000_000, new=242_000_000, up=210_900_000, home=4 * MODEL_BYTES),
    STEP,
    takes=("data", "target", "model", "optimizer", "place"),
    gives=("model", "optimizer", "place", "loss"),
    before=TRAINING,
    runs=3,
    state=242_000_000,
)

TRAINING_STEP = Workload(
    "200 MB of data, an MLP and Adam: next steps",
    Work(reached=242_000_000, home=4 * MODEL_BYTES),
    STEP,
    takes=TRAINING_NEW.takes,
    gives=TRAINING_NEW.gives,
    warm_up=2,
    state=242_000_000,
)

ALL = (EMPTY, COLD, DIRTY, SAME, SMALL_NEW, SMALL_SAME, TRAINING_NEW, TRAINING_STEP, HELD)
