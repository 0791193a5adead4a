"""`with gpu:` and `@gpu` in real kernels, through a broker and a worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from end_to_end import Kernel
from end_to_end.results import is_notice, plain_text
from test_interrupt import interrupt

IMPORTED = "from baton import gpu\nimport os\nhome = os.getpid()"


@pytest.fixture
def kernel(kernel: Kernel) -> Kernel:
    kernel.run(IMPORTED).ok()
    return kernel


def test_output_stands_where_it_was_written(kernel: Kernel) -> None:
    kernel.run("with gpu:\n    pass").ok()  # starts the session
    cell = kernel.run(
        "print('a')\nfor n in range(2):\n    with gpu:\n        print('block', n, os.getpid() != home)\n"
        "    print('b', n)\n'end'"
    ).ok()
    assert cell.stdout == "a\nblock 0 True\nb 0\nblock 1 True\nb 1\n"
    assert cell.value == "'end'"
    *earlier, _ = [plain_text(content) for content in cell.of("display_data") if is_notice(content)]
    # On a slow machine, a line may stand while an earlier block waits or runs. It then stays.
    assert not [line for line in earlier if line.startswith(("CPU: ", "GPU: "))], "the line of the last block"
    assert cell.summary.startswith(("CPU: ", "GPU: "))
    assert kernel.run("%%capture got\nwith gpu:\n    print('hidden')").ok().stdout == ""
    assert kernel.evaluate("got.stdout") == "hidden\n"


def test_magics_around_it(kernel: Kernel) -> None:
    cell = kernel.run("%%time\nwith gpu:\n    far = os.getpid() != home\nfar").ok()
    assert cell.value == "True"
    assert "Wall time" in cell.stdout
    assert kernel.run("%%gpu\nwith gpu:\n    far = os.getpid() != home\nfar").ok().value == "True"


def test_figures_are_shown_once_at_the_end(kernel: Kernel) -> None:
    kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt").ok()
    plain = kernel.run("plt.plot([1, 2])\nplt.title('t')\nprint('x')").ok()
    cell = kernel.run("with gpu:\n    plt.plot([1, 2])\nplt.title('t')\nprint('x')").ok()
    assert len(plain.displays) == 1
    assert [kind for kind, _ in cell.outputs] == [kind for kind, _ in plain.outputs]
    assert kernel.evaluate("plt.get_fignums()") == []


def test_an_interrupt_ends_the_block(kernel: Kernel) -> None:
    kernel.run(
        "def f(rows):\n    with gpu:\n        rows.append(1)\n        print('begun')\n        while True: pass"
    ).ok()
    cell = kernel.begin("rows = []\ntry:\n    f(rows)\nfinally:\n    rows.append(2)")
    cell.wait_for_text("begun")
    interrupt(cell)
    assert kernel.evaluate("rows") == [1, 2]


def test_a_lost_session_is_an_error_that_a_cell_can_catch(kernel: Kernel) -> None:
    cell = kernel.run(
        "rows = [1]\ntry:\n    with gpu:\n        rows.append(2)\n        os.kill(os.getpid(), 9)\n"
        "except RuntimeError as error:\n    kept = str(error)\nwith gpu:\n    rows.append(3)\nrows"
    ).ok()
    assert cell.value == "[1, 3]"
    cell = kernel.run("with gpu:\n    os.kill(os.getpid(), 9)")
    assert "Your variables are as they were before the block" in cell.plain_traceback


def test_a_time_limit(kernel: Kernel) -> None:
    kernel.run("try:\n    with gpu(timeout='200ms'):\n        while True: pass\nexcept TimeoutError:\n    pass").ok()
    kernel.run("with gpu:\n    pass").ok()  # the limit includes the start of a session
    cell = kernel.run("rows = []\nwith gpu(timeout='15s', quiet=True):\n    rows.append(1)\n    while True: pass")
    assert cell.error is not None
    assert cell.error[0] == "CellTimeout"
    assert kernel.evaluate("rows") == [1]


def test_output_of_all_blocks_again(kernel: Kernel) -> None:
    number = kernel.run("for n in range(2):\n    with gpu:\n        print('block', n)").ok().reply["execution_count"]
    assert kernel.run(f"%gpu_output {number}").ok().stdout == "block 0\nblock 1\n"


def test_cells_without_it_compile_as_ever(new_kernel: Callable[..., Kernel]) -> None:
    kernel = new_kernel()
    kernel.run("def f(gpu):\n    with gpu: return 1\nimport dis, sys").ok()
    assert "__baton" not in str(kernel.evaluate("f.__code__.co_names"))
    assert kernel.evaluate("'baton' in sys.modules, len(get_ipython().ast_transformers)") == (False, 0)


def test_undo(kernel: Kernel) -> None:
    kernel.run(
        "import numpy as np, random\nx = np.arange(5); rows = [x]; random.seed(3); first = random.getstate()"
    ).ok()
    kernel.gpu("x += 1; rows.append(random.random())").ok()
    assert kernel.run("%gpu_undo").ok().stdout.startswith("Undone: In[")
    assert kernel.evaluate("x.tolist(), len(rows), rows[0] is x, random.getstate() == first") == (
        [0, 1, 2, 3, 4],
        1,
        True,
        True,
    )
    assert kernel.gpu("x += 2; x.tolist(), len(rows), rows[0] is x").ok().value == "([2, 3, 4, 5, 6], 1, True)"
    assert kernel.evaluate("rows[0].tolist()") == [2, 3, 4, 5, 6]


def test_training_is_undone_step_by_step_and_repeats(kernel: Kernel) -> None:
    kernel.run(
        "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\nx = torch.randn(64, 4)\n"
        "def state():\n"
        "    tensors = [parameter.detach().clone() for parameter in model.parameters()]\n"
        "    return tensors, repr(optimizer.state_dict()), [p.grad is None for p in model.parameters()]\n"
        "def same(one, other): return all(map(torch.equal, one[0], other[0])) and one[1:] == other[1:]\n"
        "def train():\n    for _ in range(3):\n        with gpu:\n"
        "            loss = (model(x + torch.randn(64, 4)) - x.sum(1, keepdim=True)).square().mean()\n"
        "            optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
        "before = state(); train(); after = state()"
    ).ok()
    assert kernel.evaluate("same(before, after)") is False
    for _ in range(3):
        assert "model, optimizer are as before" in kernel.run("%gpu_undo").ok().stdout
    assert kernel.evaluate("same(before, state())") is True
    kernel.run("train()").ok()
    assert kernel.evaluate("same(after, state())") is True
