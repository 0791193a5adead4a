"""What may follow `%%gpu`, and the line magics about the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from baton_shim.notebook.gpu_line import read
from baton_shim.notebook.options import milliseconds, names
from baton_shim.notebook.status import size
from IPython.core.error import UsageError

if TYPE_CHECKING:
    from conftest import Baton


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90_000), ("5m", 300_000), ("1h30m", 5_400_000), ("1.5h", 5_400_000), ("250ms", 250), ("2min", 120_000)],
)
def test_durations(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize("text", ["", "5", "five", "5x", "-5m", "0s", "5m x", "99999999h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="write it as 90s, 5m or 1h30m"):
        milliseconds(text)


def test_names_and_sizes() -> None:
    assert names(["a,b", "c"], "--keep") == {"a", "b", "c"}
    with pytest.raises(UsageError, match=r"--keep a\.b: that is not the name"):
        names(["a.b"], "--keep")
    assert [size(count) for count in (0, 1023, 1536, 200 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "200 MiB",
        "3.0 TiB",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--keep 'a b", "No closing quotation in the options of %%gpu"),
        ("--background 1bad", "hint: write --background training"),
    ],
)
def test_mistakes(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read(line)


def test_keep(baton: Baton) -> None:
    baton.run("hidden = [1]\nimport sys")
    dynamic = "getattr(sys.modules['__main__'], 'hid' + 'den', None)"
    assert baton.run(f"%%gpu --keep hidden,sys\n{dynamic}.append(2)\n{dynamic}").result == "[1, 2]"
    assert baton.value("hidden") == "[1, 2]"
    assert baton.asked == []
    cell = baton.run("%%gpu --keep nobody\n1")
    assert "--keep nobody: the notebook has no such variable" in cell.text("stderr")


def test_drop(baton: Baton) -> None:
    baton.run("x = 1\nsteps = (n for n in [])")
    assert baton.run("%%gpu --drop x\nx").error == "NameError: name 'x' is not defined"
    cell = baton.run("%%gpu --drop x big\nx = 5\nbig = [1]\nsmall = len(big) + x")
    assert cell.reply["status"] == "ok", cell.traceback
    assert baton.value("x, small, 'big' in globals()") == "(1, 6, False)"
    assert baton.run("%%gpu\nbig, x").result == "([1], 1)"
    assert baton.value("'big' in globals()") == "False"


def test_a_dropped_name_keeps_the_value_of_the_notebook(baton: Baton) -> None:
    baton.run("x = 1")
    assert baton.run("%%gpu\nx").result == "1"
    baton.run("%%gpu --drop x\nx = 5")
    assert baton.run("%%gpu\nx").result == "1"
    assert baton.value("x") == "1"


def test_no_return(baton: Baton) -> None:
    baton.run("x = [1]\nimport os; os.environ['COURSE'] = '1'")
    cell = baton.run("%%gpu --no-return\nx.append(2)\nnew = 1\nos.environ['COURSE'] = '2'\nprint('out')\nx")
    assert cell.reply["status"] == "ok", cell.traceback
    assert cell.text() == "out\n"
    assert [content["data"]["text/plain"] for content in cell.all("display_data")] == ["[1, 2]"]
    assert baton.value("x, 'new' in globals(), os.environ['COURSE']") == "([1], False, '1')"
    assert baton.run("%%gpu\nx, 'new' in globals()").result == "([1], False)"
    assert baton.run("%%gpu --no-return\nx.append(2)\n1 / 0").error == "ZeroDivisionError: division by zero"
    assert baton.value("x") == "[1]"


def test_status_and_reset(baton: Baton) -> None:
    assert "Session: none" in baton.run("%gpu_status").text()
    assert "No %%gpu cell has run yet" in baton.run("%gpu_status").text()
    baton.run("small = [1]\nlarge = bytes(3 << 20)")
    pid = baton.run("%%gpu\nimport os\nlen(large), small.append(2)\nos.getpid()").result
    said = baton.run("%gpu_status").text()
    assert f"Session: warm, process {pid} on " in said
    assert said.index("large (3.0 MiB): new to the session") < said.index("small (0 B): new to the session")
    assert baton.run("%gpu_reset").reply["status"] == "ok"
    assert "Session: none" in baton.run("%gpu_status").text()
    assert baton.run("%%gpu\nimport os\nsmall").result == "[1, 2]"
    assert baton.run("%%gpu\nos.getpid()").result != pid


def test_config(baton: Baton) -> None:
    assert baton.run("%gpu_config").text() == "status_line=on virtual=on\n"
    assert baton.run("%gpu_config status_line=off").text() == "status_line=off virtual=on\n"
    baton.run("%%gpu --timeout 5m\n1")
    baton.run("%%gpu --priority low\n1")
    said = [(call["quiet"], call["timeout_ms"], call["priority"]) for call in baton.calls]
    assert said == [(True, 300_000, "normal"), (True, None, "low")]
    assert "write status_line=on or status_line=off" in baton.run("%gpu_config status_line=loud").text("stderr")
    help_text = str(baton.run("%%gpu?").reply["payload"])
    assert all(
        option in help_text for option in ("--timeout", "--keep", "--drop", "--no-return", "--quiet", "--priority")
    )
