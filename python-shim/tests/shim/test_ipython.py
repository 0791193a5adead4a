"""IPython's own things around a cell: errors that it shows, and what the notebook hung on it or set in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton

HERE_AND_THERE = pytest.mark.parametrize("magic", ["", "%%gpu\n"], ids=["here", "there"])


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


@HERE_AND_THERE
def test_magics_and_formatters_of_the_notebook(baton: Baton, magic: str) -> None:
    baton.run(
        f"{magic}from IPython.core.magic import register_line_magic\nrate = 2\n"
        "@register_line_magic\ndef times(line): return int(line) * rate\n"
        "class A: pass\ndef as_text(a, printer, cycle): printer.text(f'<A {rate}>')\n"
        "get_ipython().display_formatter.formatters['text/plain'].for_type(A, as_text)"
    )
    for rate in (2, 5):
        baton.run(f"rate = {rate}")
        for there in ("", "%%gpu\n"):
            assert baton.run(f"{there}%times 3").result == str(3 * rate)
            assert baton.run(f"{there}A()").result == f"<A {rate}>"
    baton.run(f"{magic}get_ipython().display_formatter.formatters['text/plain'].pop(A)")
    for there in ("", "%%gpu\n"):
        assert "A at 0x" in str(baton.run(f"{there}A()").result)


@HERE_AND_THERE
def test_callbacks_of_events_run_once_for_each_cell(baton: Baton, magic: str) -> None:
    baton.run(f"{magic}seen = []\ndef note(*_): seen.append(1)\nget_ipython().events.register('post_run_cell', note)")
    baton.run("%%gpu\nx = 1")
    baton.run("x = 2")
    assert baton.run("%%gpu\nget_ipython().events.unregister('post_run_cell', note); len(seen)").result == "3"
    assert baton.run("len(seen)").result == "3"


def test_the_source_of_earlier_cells(baton: Baton) -> None:
    baton.run("1 + 1")
    baton.run("2 + 2")
    assert baton.run("%%gpu\n_i, _ii, _i1").result == "('2 + 2', '1 + 1', '1 + 1')"


@HERE_AND_THERE
def test_what_is_set_on_classes_and_modules_of_libraries(baton: Baton, magic: str) -> None:
    baton.run(
        f"{magic}import fractions, statistics\nfrom collections import Counter\nunit = 'x'\n"
        "def most(self): return unit * max(self.values())\nCounter.most = most\n"
        "usual = statistics.mean\nstatistics.mean = lambda values: 'mine'"
    )
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}Counter('aab').most(), statistics.mean([1])").result == "('xx', 'mine')"
    baton.run(f"{magic}del Counter.most; statistics.mean = usual")
    for there in ("", "%%gpu\n"):
        assert baton.run(f"{there}hasattr(Counter, 'most'), statistics.mean([1])").result == "(False, 1)"
