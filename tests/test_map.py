"""`gpu.map` in plain programs and in notebooks, through real brokers and workers."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from end_to_end import Kernel, Place, Service, wait_until
from end_to_end.place import has_words
from end_to_end.programs import HERE, Programs, private_folders
from end_to_end.service import run_binary
from test_interrupt import interrupt

IMPORTED = "from baton import gpu\nimport os\nhome = os.getpid()"


@pytest.fixture
def kernel(kernel: Kernel) -> Kernel:
    kernel.run(IMPORTED).ok()
    return kernel


# ---- results

AS_THE_BUILTIN = """
    import functools, operator
    from baton import gpu
    class Point:
        count = 0
        def __init__(self, x): self.x = x
        def scaled(self, by): return Point(self.x * by)
    scale = [3]
    def use(x): return Point(x * scale[0])
    points = gpu.map(use, range(5))
    print([point.x for point in points], {type(point) is Point for point in points})
    print(gpu.map(lambda a, b: (a, b), [1, 2, 3], "ab"), gpu.map(use, []))
    print(gpu.map(len, iter(["a", "bc"])), gpu.map(functools.partial(operator.add, 1), [1, 2]))
    print([point.x for point in gpu.map(Point(2).scaled, [1, 2, 3], chunksize=2)], gpu.map(gpu(use), [7])[0].x)
    def closed():
        seen = {"k": 1}
        return gpu.map(lambda x: (x, seen), [1, 2], max_workers=1)
    print(closed())
    """


def test_results_are_those_of_the_builtin(programs: Programs) -> None:
    name = programs.write(AS_THE_BUILTIN)
    output, code = programs.run(name)
    assert (output, code) == programs.run(name, environment=HERE)
    assert code == 0, output


def test_each_call_begins_with_what_was_there(kernel: Kernel) -> None:
    """Variables, memory, settings and random state; and only results are returned."""
    kernel.run(
        "import numpy as np, random, sys\n"
        "data = np.arange(200_000.); rows = []; random.seed(3); np.seterr(divide='ignore')\n"
        "class Config: rate = 1\n"
        "def call(n):\n"
        "    rows.append(n); data[:] = n; Config.rate += n; os.environ['OF_A_CALL'] = str(n); globals()['new'] = n\n"
        "    sys.setrecursionlimit(5000 + n); settings = np.geterr()['divide']; np.seterr(divide='raise')\n"
        "    return rows, float(data.sum()), Config.rate, random.random(), settings, os.getpid() != home\n"
        "before = random.getstate(), sys.getrecursionlimit()"
    ).ok()
    results: Any = kernel.evaluate("gpu.map(call, range(1, 7), max_workers=2)")
    assert [result[:3] for result in results] == [([n], 200_000.0 * n, 1 + n) for n in range(1, 7)]
    assert {result[3:] for result in results} == {(kernel.evaluate("random.Random(3).random()"), "ignore", True)}
    assert kernel.evaluate(
        "rows, float(data.sum()), Config.rate, 'new' in globals(), os.environ.get('OF_A_CALL'), "
        "np.geterr()['divide'], (random.getstate(), sys.getrecursionlimit()) == before"
    ) == ([], sum(map(float, range(200_000))), 1, False, None, "ignore", True)


def test_a_model_is_trained_with_each_setting(kernel: Kernel) -> None:
    kernel.run(
        "import torch\ntorch.manual_seed(0)\n"
        "model = torch.nn.Linear(4, 1).to('cuda'); x = torch.randn(64, 4, device='cuda'); y = x.sum(1, keepdim=True)\n"
        "def train(rate):\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=rate)\n"
        "    for _ in range(20):\n"
        "        loss = (model(x) - y).square().mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
        "    return float(loss.detach()), model\n"
        "first = model.weight.detach().clone()\n"
        "found = gpu.map(train, [0.0, 0.01, 0.1])"
    ).ok()
    losses: Any = kernel.evaluate("[loss for loss, _ in found]")
    assert losses[0] > losses[1] > losses[2]
    assert kernel.evaluate("[m is model for _, m in found], torch.equal(first, model.weight)") == ([False] * 3, True)
    assert kernel.evaluate("torch.equal(found[0][1].weight, first), str(found[2][1].weight.device)") == (True, "cuda:0")


def test_own_modules_and_the_folder(programs: Programs) -> None:
    programs.write("import pathlib\ndef lines(path): return pathlib.Path(path).read_text().split()", "mine.py")
    for n in range(3):
        programs.write(f"a b {n}", f"part-{n}.txt")
    name = programs.write(
        "import glob, mine\nfrom baton import gpu\nprint(gpu.map(mine.lines, sorted(glob.glob('part-*.txt'))))"
    )
    assert programs.run(name)[0] == "[['a', 'b', '0'], ['a', 'b', '1'], ['a', 'b', '2']]\n"


def test_what_the_session_of_the_notebook_made_is_used(kernel: Kernel) -> None:
    kernel.gpu("import numpy as np\nmade = np.ones(1_000_000)").ok()
    assert kernel.evaluate("gpu.map(lambda n: float(made.sum()) * n, [1, 2])") == [1e6, 2e6]
    assert kernel.gpu("made += 1; made[0]").ok().value == "np.float64(2.0)"
    assert kernel.evaluate("gpu.map(lambda n: float(made[0]) * n, [1, 2])") == [2.0, 4.0]


def test_output_and_questions(kernel: Kernel) -> None:
    cell = kernel.run("def call(n):\n    print('call', n)\n_ = gpu.map(call, range(3))").ok()
    assert sorted(cell.stdout.splitlines()) == ["call 0", "call 1", "call 2"]
    kernel.run("%%capture got\n_ = gpu.map(call, [5])").ok()
    assert kernel.evaluate("got.stdout") == "call 5\n"


# ---- errors


def test_the_first_error_names_its_item(kernel: Kernel) -> None:
    kernel.run(
        "def call(n):\n    if n > 1:\n        raise ValueError('no', n)\n    return n\n"
        "try:\n    gpu.map(call, range(9), max_workers=1)\nexcept ValueError as error:\n    kept = error"
    ).ok()
    assert kernel.evaluate("kept.args, kept.__notes__") == (
        ("no", 2),
        ["This is the error of item 2 of gpu.map: 2"],
    )
    cell = kernel.run("gpu.map(call, [5])")
    assert cell.error is not None
    assert cell.error[0] == "ValueError"
    assert "raise ValueError('no', n)" in cell.plain_traceback
    assert "baton_shim" not in cell.plain_traceback


NOT_PACKED = """
class Meta(type):
    def __eq__(self, other): return self is other
class Bad(metaclass=Meta): pass
held = [Bad()]
del Bad
def keep(n, default=held): return n
def use(n): return len(held) if n else [7]
"""


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("gpu.map(len, [held])", "items"),
        ("gpu.map(keep, [1])", "function"),
        ("gpu.map(use, [0, 1])", "held"),
    ],
)
def test_what_cannot_be_packed(kernel: Kernel, call: str, name: str) -> None:
    kernel.run(NOT_PACKED).ok()
    cell = kernel.run(call)
    assert cell.error is not None
    assert f"'{name}' cannot be packed (TypeError: unhashable type: 'Meta')" in cell.plain_traceback.replace("\n", " ")
    assert kernel.evaluate("gpu.map(use, [0])") == [[7]]


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        ("gpu.map(lambda n: [1, open('/dev/null')], [1])", "TypeError", "'result[1]' of item 0 of gpu.map is an open"),
        ("gpu.map(print, [open('/dev/null')])", "StateRefused", "An item of gpu.map is an open file"),
        ("gpu.map(lambda n: next(numbers), [1])", "StandInError", "'numbers' is a generator"),
        ("gpu.map(3, [1])", "TypeError", "gpu.map needs a function, not a int"),
        ("gpu.map(print)", "TypeError", "gpu.map needs the items"),
        ("async def f(n): pass\ngpu.map(f, [1])", "TypeError", "gpu.map cannot call a coroutine function"),
        ("gpu.map(print, [1], chunksize=0)", "ValueError", "chunksize must be at least 1, not 0"),
        ("gpu.map(print, [1], speed=3)", "ValueError", "speed"),
        ("gpu.map(print, [1], timeout='soon')", "ValueError", "that is not a duration"),
    ],
)
def test_what_cannot_be(kernel: Kernel, call: str, kind: str, says: str) -> None:
    kernel.run("numbers = (n for n in range(3))").ok()
    cell = kernel.run(call)
    assert cell.error is not None
    assert cell.error[0] == kind
    assert says in cell.plain_traceback.replace("\n", " ")
    assert kernel.evaluate("next(numbers)") == 0


def test_a_time_limit_is_that_of_each_job(kernel: Kernel) -> None:
    cell = kernel.run("def call(n):\n    while n: pass\ngpu(timeout='300ms').map(call, [0, 1])")
    assert cell.error is not None
    assert cell.error[0] == "CellTimeout"


def test_an_interrupt_cancels_all(kernel: Kernel, place: Place) -> None:
    cell = kernel.begin("def call(n):\n    print('begun')\n    while True: pass\ngpu.map(call, range(4))")
    cell.wait_for_text("begun")
    result = interrupt(cell)
    assert "gpu.map was interrupted, and its calls are cancelled" in result.plain_traceback
    wait_until(lambda: not running(place), "no job of it runs")
    assert not place.has("program")
    assert private_folders(place) == []
    assert kernel.evaluate("gpu.map(abs, [-1])") == [1]


def running(place: Place) -> list[Any]:
    said = run_binary(place, "jobs", "--state", "unfinished", "--json")
    jobs: list[Any] = json.loads(said.stdout)
    return jobs


def test_a_program_that_is_killed_leaves_nothing(programs: Programs, place: Place) -> None:
    name = programs.write(
        "from baton import gpu\ndef call(n):\n    print('begun')\n    while True: pass\ngpu.map(call, range(4))"
    )
    program = programs.begin(name)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    program.send_signal(signal.SIGKILL)
    wait_until(lambda: not place.has("program"), "its helpers have ended")
    assert private_folders(place) == []
    wait_until(lambda: not running(place), "no job of it runs")


# ---- how many at once


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service.create()
    service.start_broker()
    yield service
    assert service.close() == []


def test_several_run_at_once_where_there_is_room(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_worker(slots=3)
    kernel = service.kernel(new_kernel)
    signs = str(service.place.signs)
    kernel.run(IMPORTED).ok()
    together = (
        "import pathlib, time\n"
        f"folder = pathlib.Path({signs!r})\n"
        "def call(n):\n"
        "    print(n, flush=True)\n"
        "    while len(list(folder.iterdir())) < 3: time.sleep(0.01)\n"
        "    return os.environ['BATON_SESSION']\n"
        "sessions = gpu.map(call, range(3))"
    )
    cell = kernel.begin(together)
    for n in range(3):
        cell.wait_for_text(f"{n}\n")
        (service.place.signs / str(n)).touch()
    cell.finish().ok()
    assert kernel.evaluate("len(set(sessions))") == 3
    kinds = {(job["kind"], job["notebook"]) for job in service.jobs()}
    assert kinds == {("map", "notebook")}


def test_a_line_says_what_it_waits_for_and_how_many_are_done(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    kernel = service.kernel(new_kernel)
    kernel.run(IMPORTED).ok()
    cell = kernel.begin("gpu.map(abs, [-1, -2])")
    waits = "Waiting for a GPU: no GPU worker is connected at the moment"
    cell.wait_for(lambda result: any(line.startswith(waits) for line in result.notices), "the line is shown")
    service.start_worker(slots=1)
    done = cell.finish().ok()
    assert done.value == "[1, 2]"
    assert re.fullmatch(r"gpu.map: 2 of 2 calls done in [\d.]+ s, at most [01] at once", done.summary)


def test_with_one_slot_two_sessions_take_turns(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_worker(slots=1)
    kernel = service.kernel(new_kernel)
    kernel.run(IMPORTED).ok()
    assert kernel.evaluate("len(set(gpu.map(lambda n: os.environ['BATON_SESSION'], range(8))))") <= 2


def test_files_that_calls_write_are_in_the_folder(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_worker(slots=2)
    kernel = service.kernel(new_kernel)
    kernel.run(f"{IMPORTED}\nimport pathlib\npathlib.Path('given').write_text('7')").ok()
    kernel.run(
        "def call(n):\n"
        "    pathlib.Path(f'out-{n}').write_text(pathlib.Path('given').read_text() * n)\n"
        "_ = gpu.map(call, range(4))"
    ).ok()
    written: Any = kernel.evaluate("[pathlib.Path(f'out-{n}').read_text() for n in range(4)]")
    assert written == ["", "7", "77", "777"]


def test_results_that_have_arrived_survive_a_lost_worker(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    worker = service.start_worker(slots=1)
    kernel = service.kernel(new_kernel)
    kernel.run(IMPORTED).ok()
    cell = kernel.begin(
        "def call(n):\n"
        "    print(f'begun {n}', flush=True)\n"
        "    while n == 1: pass\n"
        "    return n * 10\n"
        "try:\n"
        "    gpu.map(call, range(5), max_workers=1)\n"
        "except RuntimeError as error:\n"
        "    results, text = error.results, str(error)"
    )
    cell.wait_for_text("begun 1")
    service.kill(worker)
    cell.finish().ok()
    assert kernel.evaluate("results") == {0: 0}
    assert "1 of 5 results have arrived" in kernel.evaluate("text")
    assert kernel.evaluate("text").endswith("Missing: 1 to 4")


def test_a_lost_worker_is_an_error(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    worker = service.start_worker(slots=1)
    kernel = service.kernel(new_kernel)
    kernel.run(IMPORTED).ok()
    cell = kernel.begin("rows = [1]\ndef call(n):\n    print('begun')\n    while True: pass\ngpu.map(call, range(3))")
    cell.wait_for_text("begun")
    service.kill(worker)
    result = cell.finish()
    assert result.error is not None
    assert "Your variables are as they were before the call" in result.plain_traceback
    assert kernel.evaluate("rows") == [1]
    assert not any(has_words(process, ("--kind=map",)) for process in service.place.processes())
