"""Modules beside the notebook: what a student sees where the two kernels differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Baton

IN_SESSION = "import sys\nif 'baton_shim.session.kernel' in sys.modules:\n    raise ImportError('no tkinter')\n"


def ok(baton: Baton, code: str) -> str | None:
    cell = baton.run(code)
    assert cell.reply["status"] == "ok", cell.traceback
    return cell.result


def test_a_cell_that_handles_the_error_of_an_import(baton: Baton) -> None:
    (baton.folder / "own_gui.py").write_text(
        f"{IN_SESSION}class Window: pass\nwindow = Window()\ndef show(): return window"
    )
    ok(baton, "import own_gui\ndef step(show=False):\n    if show:\n        own_gui.show()\n    return 1")
    tried = "try:\n    import own_gui\n    text = 'shown'\nexcept ImportError as error:\n    text = str(error)"
    ok(baton, f"%%gpu\n{tried}")
    assert baton.value("text, own_gui.show() is own_gui.window") == "('no tkinter', True)"
    ok(baton, "def step(show=False):\n    if show:\n        import own_gui\n        own_gui.show()\n    return 1")
    assert ok(baton, "%%gpu\nstep()") == "1"
    assert baton.run("%%gpu\nstep(True)").error == "ImportError: no tkinter"


def test_a_variable_that_stays_is_reported_once(baton: Baton) -> None:
    (baton.folder / "own_course.py").write_text(
        "class Trainer:\n    def __init__(self): self.weights, self.batches = [0], (n for n in range(9))\n"
        "trainer = Trainer()\ndef train(): trainer.weights[0] += next(trainer.batches) + 1"
    )
    ok(baton, "import own_course")
    cell = baton.run("%%gpu\nown_course.train()")
    reason = "it holds something that is a generator"
    assert cell.text("stderr") == f"warning: own_course.trainer stays as it is in each kernel: {reason}\n"
    assert baton.run("%%gpu\nown_course.train()").text("stderr") == ""
