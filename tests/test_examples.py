"""The example notebooks run from top to bottom on the real kernel and show what they promise."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from end_to_end import Place
from end_to_end.results import Result
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "examples/notebooks"
NAMES = [
    "01-first-gpu-cell",
    "02-train-a-model",
    "03-plots-and-progress",
    "04-errors-and-interrupts",
    "05-pytorch-mnist",
    "06-jax",
    "07-two-students",
    "08-pytorch-from-data-to-model",
    "09-pytorch-in-an-hour",
    "10-your-first-hour",
    "11-with-gpu",
    "12-save-and-load",
    "13-background-cells",
    "14-many-calls",
]


GPU_CODE = re.compile(r"^%%gpu|^ *with gpu:|^@gpu", re.MULTILINE)
"""Code that runs on a GPU; its cell shows the line that says where it ran."""


OF_OTHERS = {
    "07-two-students": (
        "while time.time() - began < 6:\n    sum(range(10_000))",
        "import os\nwhile not os.path.exists('{sign}'):\n    sum(range(10_000))\ntime.sleep(1)",
    ),
    "10-your-first-hour": (
        "time.sleep(4)",
        r"import os\nwhile not os.path.exists('{sign}'): time.sleep(0.05)\ntime.sleep(1)",
    ),
}
"""How other students' cells of a notebook take a few seconds, and what they do here instead: they end one second after
a cell says that it waits."""


class Client(NotebookClient):
    """Makes a file once a cell behind those of other students says that it waits."""

    sign: Path
    others: float = float("inf")
    """The number of the cell that starts other students' cells."""

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        shown = msg["content"].get("data", {}).get("text/plain", "")
        if cell_index > self.others and shown.startswith("Waiting"):
            self.sign.touch()
        return super().process_message(msg, cell, cell_index)


@cache
def results_of(name: str, folder: Path, *, first_line: str = "", first: int = 0, step: int = 1) -> list[Result]:
    """The output of each code cell. `first_line` is added to cells from `first` on, in steps of `step`."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"][first::step]:
        if not cell.source.startswith("%%gpu"):
            cell.source = first_line + cell.source
    client = Client(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.sign = Place(folder.parent).signs / name
    if name in OF_OTHERS:
        old, new = OF_OTHERS[name]
        (client.others,) = [number for number, cell in enumerate(notebook.cells) if old in cell.source]
        cell = notebook.cells[client.others]
        cell.source = cell.source.replace(old, new.format(sign=client.sign))
    client.execute()
    return [
        Result(cell.source, {}, [{"msg_type": output.output_type, "content": output} for output in cell.outputs])
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_committed_without_outputs_for_this_kernel(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "baton"
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


def test_no_other_examples() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_gpu_cell_that_ran_says_where(name: str, place: Place) -> None:
    for result in results_of(name, place.work):
        ran_there = GPU_CODE.search(result.code) is not None and "is a generator" not in str(result.error)
        ran_there &= "--background" not in result.code  # nbclient no longer listens when the line arrives
        # On a slow machine, `gpu.map` shows how many calls are done.
        lines = [line for line in result.notices if not line.startswith("gpu.map: ")]
        assert [line[1:5] for line in lines] == (["PU: "] if ran_there else [])


def test_first_gpu_cell(place: Place) -> None:
    outputs = [result.outputs for result in results_of("01-first-gpu-cell", place.work)]
    assert outputs == [
        [("execute_result", "(1000, 64)")],
        [("stdout", "computed (64, 64) values\n")],
        [("stdout", "(64, 64) True True\n")],
        [],
        [("execute_result", "1000")],
        [("stdout", "True True\n")],
    ]


def test_train_a_model(place: Place) -> None:
    results = results_of("02-train-a-model", place.work)
    shown = [result.stdout for result in results]
    assert shown[0] == "1347 images to learn from, 450 to test with\n"
    first = float(matched(r"after 5 epochs: ([\d.]+)% right\n", shown[2]))
    matched(r"(\d+) of 450 images are still wrong\n", shown[3])
    last = float(matched(r"after 20 epochs: ([\d.]+)% right\n", shown[4]))
    assert first < last
    assert last > 90
    matched(rf"\d+ images are still wrong; it improved from [\d.]+% to ({last}%)\n", shown[5])


def matched(pattern: str, text: str) -> str:
    match = re.fullmatch(pattern, text)
    assert match is not None, f"{text!r} does not match {pattern!r}"
    return match[1]


def test_plots_and_progress(place: Place) -> None:
    figure, bar, widget, status, last = results_of("03-plots-and-progress", place.work)
    assert [sorted(content["data"]) for content in figure.displays] == [["image/png", "text/plain"]]
    assert "200/200" in bar.stderr
    assert bar.stdout == "total 19900\n"
    assert ["application/vnd.jupyter.widget-view+json" in content["data"] for content in widget.displays] == [True]
    assert widget.stdout == "the bar stands at 5\n"
    # nbclient applies an update to the output that it updates.
    assert status.outputs == [("display_data", "'seen in the notebook'")]
    assert last.stdout == "total is 19900\n"


def test_errors_and_interrupts(place: Place) -> None:
    _, failed, so_far, interrupted, steps, _, refused, _, listed = results_of("04-errors-and-interrupts", place.work)
    assert failed.error == ("ZeroDivisionError", "division by zero")
    assert "results.append(12 / number)" in failed.plain_traceback
    assert so_far.stdout == "so far: [3.0, 6.0]\n"
    assert interrupted.error is not None
    assert interrupted.error[0] == "KeyboardInterrupt"
    assert steps.stdout == "steps: 3\n"
    assert refused.error is not None
    assert "'numbers_to_come' is a generator" in refused.error[1]
    assert "hint: " in refused.plain_traceback
    assert listed.stdout == "to come: [0, 1, 2]\n"


def test_with_gpu(place: Place) -> None:
    outputs = [result.outputs for result in results_of("11-with-gpu", place.work)]
    undone = "Undone: the block of In[5]. weights is as before. The next %%gpu cell starts a new session\n"
    assert outputs == [
        [("execute_result", "(256, 20)")],
        [("stdout", "True True\n")],
        [("execute_result", "(4, False)")],
        [("stdout", "True 1.0\n")],
        [("stdout", "index 99 is out of bounds for axis 0 with size 20\n5.0\n")],
        [("stdout", undone)],
        [("execute_result", "True")],
    ]


def test_save_and_load(place: Place) -> None:
    outputs = [result.outputs for result in results_of("12-save-and-load", place.work)]
    (saved,), (loaded,), (kept,), (deleted,) = [found for found in outputs if found]
    assert matched(r"Saved (.*) as monday .*\n", saved[1]) == "first_layer, history, losses, weights"
    assert loaded[1].startswith("Loaded first_layer, history, losses, weights of monday")
    assert kept == ("execute_result", "(True, [0.9, 0.5, 0.4, 0.3], 7.0)")
    assert deleted[1].startswith("Deleted monday.")


def test_background_cells(place: Place) -> None:
    _, _, noted, listed, waited, ended = results_of("13-background-cells", place.work)
    matched(r"\(\['learning rate 0.1'\], '(running|done)'\)", str(noted.value))
    matched(r"In\[2\]: (running|done)\n", listed.stdout)
    assert waited.value == "(50, True)"
    assert ended.value == "(True, True)"


def test_pytorch_mnist(place: Place) -> None:
    check_pytorch_mnist(results_of("05-pytorch-mnist", place.work))


def check_pytorch_mnist(results: list[Result]) -> None:
    data, before, mistake, trained, halfway, _, after, plot, saved = results
    assert data.stdout == "1500 images to learn from, 297 to test with, on cuda:0\n"
    matched(r"before training: (\d+)% right\n", before.stdout)
    devices = "Expected all tensors to be on the same device, but got weight is on cuda:0, different from other tensors"
    assert mistake.stdout.startswith(f"{devices} on cpu")
    assert trained.stdout == "trained on cuda:0 in 45 steps\n"
    first = int(matched(r"after 45 steps: (\d+)% right\n", halfway.stdout))
    last = int(matched(r"after 120 steps: (\d+)% right\n", after.stdout))
    assert first > 50
    assert last > 90
    assert [sorted(content["data"]) for content in plot.displays] == [["image/png", "text/plain"]]
    assert saved.stdout == "cuda:0 cpu\n"


def test_jax(place: Place) -> None:
    devices, before, there, here = results_of("06-jax", place.work)
    assert devices.stdout == "gpu 1 (200,)\n"
    matched(r"loss before: ([\d.]+)\n", before.stdout)
    loss = matched(r"loss on the worker: ([\d.]+)\n", there.stdout)
    assert here.stdout == f"loss here: {loss}\n"


def test_two_students(place: Place) -> None:
    students, _, mine, told, left = results_of("07-two-students", place.work)
    assert students.stdout == "2 students are here: Ana Ben\n"
    assert mine.stdout == "my turn\n"
    assert float(matched(r"[CG]PU: .*, waited ([\d.]+) s, .*peak .*", mine.notices[-1])) > 0.5
    assert float(matched(r"asked at 0.0 s, began at ([\d.]+) s(?s:.*)", told.stdout)) > 0.5
    others = [re.search(rf"{name}: from (-[\d.]+) s to ([\d.]+) s", told.stdout) for name in ("Ana", "Ben")]
    assert all(others), told.stdout
    assert matched(r"(?s:.*)my cell began, (\d) of the others were still at work\n", told.stdout) in ("0", "1")
    assert left.stdout == "the others have left\n"


def test_your_first_hour(place: Place) -> None:
    data, before, trained, curve, plot, mistake, safe, others, waited, after, saved = results_of(
        "10-your-first-hour", place.work
    )
    assert data.stdout == "1500 images to learn from, 297 to test with\n"
    matched(r"before training: (\d+)% right\n", before.stdout)
    assert "20/20" in trained.stderr
    assert int(matched(r"after 20 epochs: (\d+)% right\n", trained.stdout)) > 90
    # nbclient applies an update to the output that it updates.
    assert [sorted(content["data"]) for content in curve.displays] == [["image/png", "text/plain"]]
    assert curve.stdout == "epochs: 40\n"
    assert [sorted(content["data"]) for content in plot.displays] == [["image/png", "text/plain"]]
    assert mistake.error is not None
    assert mistake.error[0] == "RuntimeError"
    right = matched(r"still (\d+)% right after 40 epochs\n", safe.stdout)
    assert int(right) > 90
    assert others.stdout == "2 classmates are at work\n"
    assert "10/10" in waited.stderr
    assert float(matched(r"[CG]PU: .*, waited ([\d.]+) s, .*peak .*", waited.notices[-1])) > 0.5
    matched(r"(\d+)% right after 50 epochs\n", after.stdout)
    assert saved.stdout == "saved and read: True\n"


def shown(result: Result) -> tuple[str, str, list[tuple[str, str]]]:
    """Everything visible. How standard output and error alternate depends on the speed of the machine."""
    others = [output for output in result.outputs if output[0] not in ("stdout", "stderr")]
    return result.stdout, result.stderr, sorted(others)


@pytest.mark.parametrize(
    ("name", "first", "step"),
    [
        pytest.param("08-pytorch-from-data-to-model", 0, 1, id="08 all"),
        pytest.param("08-pytorch-from-data-to-model", 0, 2, id="08 even"),
        pytest.param("09-pytorch-in-an-hour", 0, 1, id="09 all"),
        pytest.param("09-pytorch-in-an-hour", 1, 2, id="09 odd"),
    ],
)
def test_written_for_a_gpu_it_shows_the_same_here_and_under_gpu(name: str, first: int, step: int, place: Place) -> None:
    here = results_of(name, place.work)
    there = results_of(name, place.work, first_line="%%gpu\n", first=first, step=step)
    assert all(any(line[1:].startswith("PU: ") for line in result.notices) for result in there[first::step])
    assert [shown(result) for result in there] == [shown(result) for result in here]
    assert "cuda:0" in here[0].stdout + here[1].stdout
    assert not any("baton" in result.code.lower() or result.code[0] == "%" for result in here)


def test_a_model_of_a_first_course_learns(place: Place) -> None:
    *_, last, saved = results_of("08-pytorch-from-data-to-model", place.work)
    assert float(matched(r"(?s:.*)Right: ([\d.]+)%, mean loss: [\d.]+\n\n", last.stdout)) > 90
    matched(r'Predicted: "(\w+)", actual: "\w+"\n', saved.stdout)
    *_, tested = results_of("09-pytorch-in-an-hour", place.work)
    assert int(matched(r"(?s:.*)of all 120: (\d+)%\n", tested.stdout)) > 80


def test_many_calls(place: Place) -> None:
    _, _, losses, best, products, error = results_of("14-many-calls", place.work)
    shown = [float(number) for number in NUMBER.findall(losses.value or "")]
    assert len(shown) == 3
    assert shown[0] > shown[1] > shown[2]
    assert best.value == "(0.1, False, True)"
    assert products.value == "[0, 1, 4, 9, 16, 25, 36, 49]"
    assert error.stdout == "division by zero ['This is the error of item 2 of gpu.map: 0']\n"


# ---- with a real GPU: numbers are close to those of the CPU, unless the GPU drew them

NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
DRAWN_THERE = {"08-pytorch-from-data-to-model": (4, 5), "09-pytorch-in-an-hour": (4,)}
"""Cells, from 0."""


def texts(result: Result) -> list[str]:
    """The texts of each kind of output, joined; torch pads numbers, and breaks lines, by their width."""
    return [
        " ".join(text.replace("[ ", "[").split()) for _, text in sorted(result.outputs, key=lambda output: output[0])
    ]


def numbers(result: Result) -> list[float]:
    return [float(number) for text in texts(result) for number in NUMBER.findall(text)]


@pytest.mark.gpu
@pytest.mark.parametrize("name", DRAWN_THERE)
def test_a_real_gpu_shows_what_the_virtual_one_shows(name: str, place: Place) -> None:
    here, there = results_of(name, place.work), results_of(name, place.work, first_line="%%gpu\n")
    for number, (expected, found) in enumerate(zip(here, there, strict=True)):
        assert [NUMBER.sub("#", text) for text in texts(found)] == [NUMBER.sub("#", text) for text in texts(expected)]
        if number not in DRAWN_THERE[name]:
            assert numbers(found) == pytest.approx(numbers(expected), rel=0.2, abs=0.1), found.code


@pytest.mark.gpu
def test_pytorch_mnist_on_a_real_gpu(place: Place) -> None:
    check_pytorch_mnist(results_of("05-pytorch-mnist", place.work, first_line="%%gpu\n"))
