"""`cuda` in ordinary cells and under `%%gpu`, through all of Baton, on a worker without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import Kernel

MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(8, 4, device="cuda")
def step():
    optimizer.zero_grad()
    loss = model(data).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""


def test_nothing_is_imported_before_the_student_does(kernel: Kernel) -> None:
    seen = "[name for name in ('torch', 'jax', 'numba', 'baton_shim.virtual.pytorch') if name in sys.modules]"
    kernel.restart()
    kernel.run("import sys").ok()
    assert kernel.evaluate(seen) == []


def test_ordinary_cells_and_gpu_cells_train_one_model(kernel: Kernel) -> None:
    kernel.run(MODEL).ok()
    kernel.run("weight = model.weight; first = step()").ok()
    there = kernel.gpu("second = step(); str(data.device), model.weight.is_cuda, torch.cuda.is_available()").ok()
    assert there.value == "('cuda:0', True, True)"
    kernel.run("third = step()").ok()
    assert kernel.evaluate("weight is model.weight, weight.is_cuda, str(weight.grad.device)") == (True, True, "cuda:0")
    kernel.run(f"{MODEL}\nalone = [step() for _ in range(3)]").ok()
    assert kernel.evaluate("[first, second, third] == alone")


def test_a_mistake_is_found_before_a_gpu_is_asked_for(kernel: Kernel) -> None:
    kernel.run(MODEL).ok()
    failed = kernel.run("model(torch.zeros(1, 4))")
    assert failed.error is not None
    assert "Expected all tensors to be on the same device" in failed.error[1]


def test_the_random_numbers_of_the_gpu_go_on(kernel: Kernel) -> None:
    kernel.run("import torch; torch.manual_seed(5); whole = torch.rand(2, 3, device='cuda').tolist()").ok()
    kernel.run("rest = torch.rand(3, device='cuda').tolist(); torch.manual_seed(5); cpu = torch.rand(2).tolist()").ok()
    kernel.run("torch.manual_seed(5)").ok()
    kernel.gpu("again = torch.rand(2, 3, device='cuda').tolist()").ok()
    kernel.run("more = torch.rand(3, device='cuda').tolist()").ok()
    kernel.gpu("still = torch.rand(2).tolist()").ok()
    assert kernel.evaluate("(again == whole, more == rest, still == cpu)") == (True, True, True)
    kernel.run("torch.cuda.manual_seed(9); here = torch.rand(3, device='cuda').tolist()").ok()
    assert kernel.gpu("torch.cuda.manual_seed(9); torch.rand(3, device='cuda').tolist() == here").ok().value == "True"
    kernel.gpu("torch.cuda.manual_seed(9)").ok()
    assert kernel.evaluate("torch.rand(3, device='cuda').tolist() == here, torch.cuda.initial_seed()") == (True, 9)


def test_the_default_device_is_the_same_everywhere(kernel: Kernel) -> None:
    kernel.run("import torch; torch.set_default_device('cuda')").ok()
    assert kernel.gpu("y = torch.zeros(2); torch.get_default_device()").ok().value == "device(type='cuda', index=0)"
    assert kernel.evaluate("y.is_cuda, torch.zeros(1).is_cuda") == (True, True)
    kernel.gpu("torch.set_default_device('cpu')").ok()
    assert kernel.evaluate("torch.zeros(1).is_cuda, str(torch.get_default_device())") == (False, "cpu")


def test_it_can_be_switched_off_and_on(kernel: Kernel) -> None:
    kernel.run("import torch; x = torch.ones(2, device='cuda')").ok()
    assert kernel.run("%gpu_config virtual=off").ok().stdout.endswith("virtual=off\n")
    assert kernel.run("torch.ones(1, device='cuda')").error is not None
    assert kernel.evaluate("torch.cuda.is_available(), x.is_cuda, torch.cuda.device_count()") == (False, False, 0)
    assert kernel.gpu("torch.cuda.is_available()").ok().value == "False"
    assert kernel.run("%gpu_config virtual=on").ok().stdout.endswith("virtual=on\n")
    assert kernel.evaluate("torch.cuda.is_available(), x.is_cuda, (x + 1).is_cuda") == (True, True, True)
    assert kernel.gpu("torch.cuda.is_available(), x.is_cuda").ok().value == "(True, True)"


def test_the_environment_and_the_settings_switch_it_off(new_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text("virtual_cuda = false\n")
    for environment in ({"BATON_VIRTUAL_CUDA": "0"}, {"BATON_CONFIG": str(settings)}):
        kernel = new_kernel(**environment)
        kernel.run("import torch").ok()
        assert kernel.evaluate("torch.cuda.is_available()") is False
        assert kernel.gpu("torch.cuda.is_available()").ok().value == "False"


def test_the_hint_comes_once(kernel: Kernel) -> None:
    kernel.restart()
    kernel.run("import torch; import baton_shim.virtual.hint as hint; hint.LONG_SECONDS = 0").ok()
    work = "x = torch.ones(2, device='cuda')\nfor _ in range(100): x = x * 1"
    there = kernel.gpu(work).ok()
    assert "hint" not in there.stderr
    assert "write %%gpu on its first line" in kernel.run(work).ok().stderr
    assert kernel.run(work).ok().stderr == ""


def test_what_needs_a_real_gpu_says_so(kernel: Kernel) -> None:
    kernel.run("import torch, numpy as np\nfrom numba import cuda\n@cuda.jit\ndef fill(a): a[0] = 1").ok()
    launched = kernel.run("fill[1, 1](np.zeros(3))")
    assert launched.error is not None
    assert "hint: Numba's CUDA computes on a GPU only; write %%gpu on the first line" in launched.stderr
    kernel.run("import cupy\nassert not cupy.cuda.is_available() and cupy.get_array_module(np.ones(1)) is np").ok()
    for use in ("cupy.arange(3)", "cupy.random.seed(0)", "cupy.cuda.Device(0).use()"):
        made = kernel.run(use)
        assert made.error is not None
        assert made.error[0] == "CUDARuntimeError"
        assert "hint: CuPy computes on a GPU only; write %%gpu on the first line" in made.stderr
    missing = kernel.run("import cudf")
    assert missing.error == ("ModuleNotFoundError", "No module named 'cudf'")
    assert "hint: cudf is not installed on this machine" in missing.stderr
    listed = kernel.run("!nvidia-smi")
    assert listed.stderr.endswith(
        "hint: nvidia-smi is on the GPU machines; write %%gpu on the first line of this cell\n"
    )
    graph = kernel.run("torch.cuda.CUDAGraph()")
    assert graph.error is not None
    assert "hint: use it in a %%gpu cell" in graph.error[1]
    there = kernel.gpu("fill[1, 1](np.zeros(3))")
    assert there.error is not None
    assert "hint: Numba" not in there.stderr


def test_jax_finds_a_gpu_and_its_device_travels(kernel: Kernel) -> None:
    kernel.run("import jax, jax.numpy as jnp\ndevice = jax.devices('gpu')[0]").ok()
    kernel.run("x = jax.device_put(jnp.arange(3.0), device)").ok()
    kernel.gpu("y = jax.device_put(x * 2, device); where = jax.default_backend(), len(jax.devices('gpu'))").ok()
    assert kernel.evaluate("where, y.tolist(), y.devices() == {device}") == (("gpu", 1), [0.0, 2.0, 4.0], True)


def test_an_unknown_version_is_left_as_it_is(kernel: Kernel) -> None:
    kernel.restart()
    kernel.run("import os; os.makedirs('other', exist_ok=True)\nopen('other/tensorflow.py', 'w').write('one = 1')").ok()
    said = kernel.run("import sys; sys.path.insert(0, 'other')\nimport tensorflow\nprint(tensorflow.one)")
    assert said.stdout == "1\n"
    assert "warning: tensorflow gets no virtual GPU in this kernel" in said.stderr
    kernel.run("import shutil; shutil.rmtree('other')").ok()
    kernel.restart()


COMPILED = "[name for name in globals() if name.startswith(('__compiled', '__builtins_dict'))]"


def test_what_torch_compiles_stays_in_the_session(kernel: Kernel) -> None:
    """torch puts it into the notebook's namespace, under names with two underscores."""
    kernel.run("%gpu_config virtual=off\nimport torch; seen = []").ok()
    cell = (
        "f = torch.compile(lambda a: a.sin() * 2, backend='eager')\n"
        "seen.append(f(torch.zeros(9)).sum().item()); __mine = len(seen)"
    )
    for _ in range(2):
        result = kernel.gpu(f"{cell}\nprint(len({COMPILED}) > 0)").ok()
        assert result.stdout == "True\n"
        assert "warning" not in result.stderr
    assert kernel.evaluate(f"seen, __mine, {COMPILED}") == ([0.0, 0.0], 2, [])
    assert kernel.run("f(torch.zeros(3)).tolist()").ok().value == "[0.0, 0.0, 0.0]"
    kernel.restart()


@pytest.mark.gpu
def test_a_session_with_a_gpu_has_real_tensors(kernel: Kernel) -> None:
    kernel.run(MODEL).ok()
    kernel.gpu(
        "step(); pointer = torch.cuda.memory_allocated(); kind = type(torch.cuda.Stream()).__mro__[1].__name__"
    ).ok()
    assert kernel.evaluate("pointer > 0, kind == 'object', model.weight.is_cuda") == (True, False, True)
    assert kernel.evaluate("torch.cuda.get_device_name() != 'Shared GPU (used by %%gpu cells)'")
    modes = "torch._C._len_torch_function_stack()"
    assert (kernel.gpu(modes).ok().value, kernel.evaluate(modes)) == ("0", 1)
