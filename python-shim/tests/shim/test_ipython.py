"""IPython's own things around a cell: errors that it shows, and what the notebook hung on it or set in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Baton


def test_errors_that_do_not_end_the_cell_are_shown(baton: Baton) -> None:
    baton.run("class Bad:\n    def _repr_html_(self): raise ValueError('no html')")
    cell = baton.run("%%gpu\nBad()")
    assert cell.reply["status"] == "ok"
    assert "ValueError" in cell.text("stderr") and "no html" in cell.text("stderr")
    shown = baton.run(
        "%%gpu\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    get_ipython().showtraceback()\nprint('on')"
    )
    assert "division by zero" in shown.text("stderr")
    assert shown.text() == "on\n"


def test_the_last_error(baton: Baton) -> None:
    failing = "%%gpu\nimport json\njson.loads('{')"
    assert baton.run(failing).error.startswith("JSONDecodeError")
    look = "import sys, traceback\ntype(sys.last_value), sys.last_value.pos, traceback.extract_tb(sys.last_traceback)[-1].name"
    expected = "(json.decoder.JSONDecodeError, 1, 'raw_decode')"
    assert baton.run(look).result == expected
    assert baton.run(f"%%gpu\n{look}").result == expected
    assert "Expecting property name" in baton.run("%%gpu\n%tb").text("stderr")
