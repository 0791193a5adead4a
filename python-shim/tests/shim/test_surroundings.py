"""Interrupts, input, capture, nested magics, and a kernel that is like plain ipykernel otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import baton_shim
import pytest
from baton_shim.surroundings.imports import imported_by

if TYPE_CHECKING:
    from conftest import Baton

PACKAGE = Path(baton_shim.__file__).parents[1]


# ---- interrupt ----


def test_an_interrupt_brings_the_state_so_far_home(baton: Baton) -> None:
    baton.run("steps = []")
    # In one line, because it may be interrupted before `print` has returned.
    code = "%%gpu\nimport time\nsteps.append(1)\n\nprint('running', flush=True); time.sleep(60)\nsteps.append(2)"
    cell = baton.run(code, interrupt_when=lambda: "running" in baton.remote_text())
    assert cell.error.startswith("KeyboardInterrupt")
    assert "line 5" in cell.traceback
    assert "baton_shim" not in cell.traceback
    assert baton.value("steps") == "[1]"
    assert baton.run("%%gpu\nsteps").result == "[1]"
    assert len(baton.calls) == 2
    assert baton.calls[1]["state"]["messages"] == 2


def test_an_interrupt_of_an_await(baton: Baton) -> None:
    code = "%%gpu\nimport asyncio\nx = 1\nprint('running', flush=True)\nawait asyncio.sleep(60)"
    cell = baton.run(code, interrupt_when=lambda: "running" in baton.remote_text())
    assert cell.error.startswith("KeyboardInterrupt")
    assert baton.value("x") == "1"


def test_a_second_interrupt_leaves_at_once(baton: Baton) -> None:
    baton.run("x = [1]")
    baton.hold.set()
    pressed: list[int] = []

    def press_twice() -> bool:
        if not pressed and len(baton.calls) == 1:
            pressed.append(1)
            baton.interrupt()
        return getattr(baton, "held_cancels", 0) == 1

    cell = baton.run("%%gpu\nx.append(2)", interrupt_when=press_twice)
    assert cell.error.startswith("KeyboardInterrupt")
    baton.hold.clear()
    assert baton.run("%%gpu\nx").result == "[1]"
    assert baton.calls[-1]["state"]["messages"] == 0


# ---- input ----


def test_input_and_getpass(baton: Baton) -> None:
    cell = baton.run(
        "%%gpu\nfrom getpass import getpass\nname = input('Name? ')\nsecret = getpass('Secret? ')\nprint(name, secret)",
        answers=["Ada", "x1"],
    )
    assert cell.reply["status"] == "ok", cell.traceback
    assert cell.text() == "Ada x1\n"
    assert baton.questions == [
        {"prompt": "Name? ", "password": False},
        {"prompt": "Secret? ", "password": True},
    ]
    assert baton.value("name") == "'Ada'"


def test_input_that_the_client_does_not_offer(baton: Baton) -> None:
    assert baton.run("%%gpu\ninput()").reply["ename"] == "StdinNotImplementedError"


def test_an_end_of_file_as_input(baton: Baton) -> None:
    assert baton.run("%%gpu\ninput()", answers=["\x04"]).reply["ename"] == "EOFError"


def test_an_interrupt_of_input(baton: Baton) -> None:
    client = baton.notebook.client
    cell = baton.run("%%gpu\nx = 1\nx = input()", answers=[], interrupt_when=lambda: client.stdin_channel.msg_ready())
    assert cell.error.startswith("KeyboardInterrupt")
    assert baton.value("x") == "1"
    client.get_stdin_msg(timeout=5)
    assert baton.run("%%gpu\nx = input()", answers=["again"]).reply["status"] == "ok"
    assert baton.value("x") == "'again'"


# ---- capture and nesting ----


def test_capture_around(baton: Baton) -> None:
    cell = baton.run(
        "%%capture out\n%%gpu\nimport sys\nfrom IPython.display import display, HTML\n"
        "print('seen')\nprint('bad', file=sys.stderr)\ndisplay(HTML('<i>x</i>'))\n6 * 7"
    )
    assert cell.messages == [(kind, content) for kind, content in cell.messages if kind == "execute_input"]
    assert cell.remote == []
    assert baton.value("out.stdout, out.stderr") == r"('seen\n', 'bad\n')"
    assert baton.value("[sorted(o.data) for o in out.outputs]") == "[['text/html', 'text/plain'], ['text/plain']]"
    assert baton.value("out.outputs[1].data['text/plain']") == "'42'"


def test_redirected_streams(baton: Baton) -> None:
    code = (
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as text:\n"
        "    get_ipython().run_cell_magic('gpu', '', 'print(1)')"
    )
    assert baton.run(code).remote == []
    assert baton.value("text.getvalue()") == r"'1\n'"


@pytest.mark.parametrize("code", ["%%time\n%%gpu\n6 * 7", "%%gpu\n%%time\n6 * 7"])
def test_time_before_and_after(baton: Baton, code: str) -> None:
    cell = baton.run(code)
    assert cell.result == "42"
    assert "Wall time" in cell.text()


def test_ipython_syntax_inside(baton: Baton) -> None:
    baton.run("word = 'hello'\nn = 3")
    assert baton.run("%%gpu\n!echo {word} $n").text().split() == ["hello", "3"]
    assert baton.run("%%gpu\nlines = !echo {word}\nlines[0]").result == "'hello'"
    function = "def say():\n    inner = '{n}'\n    !echo {inner} $inner {n}\nsay()"
    assert baton.run(f"%%gpu\n{function}").text().split() == ["{n}", "{n}", "3"]
    assert "loop" in baton.run("%%gpu\n%timeit -n 1 -r 1 n * 2").text()
    assert baton.run("%%gpu\nimport asyncio\nasync def f(): return n\nawait f()").result == "3"
    assert baton.value("lines[0]") == "'hello'"


def test_payloads_come_home(baton: Baton) -> None:
    cell = baton.run("%%gpu\nget_ipython().set_next_input('next')")
    assert [payload["source"] for payload in cell.reply["payload"]] == ["set_next_input"]


def test_what_a_cell_imports() -> None:
    code = "import a.b as c, d\nfrom e.f import g\nx = 'import nothing'\nif x:\n    import h  # i"
    assert imported_by(code) == {"a", "d", "e", "h"}


# ---- the magic itself ----


def test_options(baton: Baton) -> None:
    baton.run("%%gpu --quiet\n1")
    baton.run("%%gpu\n1")
    assert [call["quiet"] for call in baton.calls] == [True, False]
    cell = baton.run("%%gpu --fast\n1")
    assert cell.reply["ename"] == "UsageError"
    assert "unrecognized arguments: --fast\nhint: '%%gpu?' lists the options" in cell.text("stderr")
    assert "--quiet" in str(baton.run("%%gpu?").reply["payload"])


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("%%gpu", "write your code on the lines below it, in the same cell"),
        ("# training\n%%gpu --quiet\n\n", "write your code on the lines below it, in the same cell"),
        ("%%gpu import math", "code goes on the lines below %%gpu"),
        ("%%gpu --quite\n1", "did you mean --quiet?"),
        ("%%gpu --gpu\n1", "'%%gpu?' lists the options"),
        ("%%GPU --quiet\n1", "write %%gpu, in small letters and without a colon"),
        ("%%gpu:\n1", "write %%gpu, in small letters and without a colon"),
    ],
)
def test_what_is_not_written_right(baton: Baton, code: str, hint: str) -> None:
    cell = baton.run(code)
    assert cell.reply["ename"] == "UsageError"
    assert f"hint: {hint}" in cell.text("stderr")
    assert not baton.calls


def test_help(baton: Baton) -> None:
    assert "--timeout" in baton.run("%%gpu -h").text()
    assert "--timeout" in baton.run("%%gpu --help\n1").text()
    assert not baton.calls


def test_misplaced_magics_explain_themselves(baton: Baton) -> None:
    assert "first line of a cell" in baton.run("%gpu").text()
    assert "first line of a cell" in baton.run("%gpu x = 1").text("stderr")
    assert "must be on the first line" in baton.run("x = 1\n%%gpu\ny = 2").text("stderr")


def test_what_the_proxy_hears(baton: Baton) -> None:
    baton.run("pass")
    baton.run("# why\n%%gpu\nx = 1")
    (call,) = baton.calls
    assert call["execution_count"] == 2
    assert call["code"] == "# %%gpu\n# why\nx = 1\n"
    assert call["folder"] == str(baton.folder)
    assert (call["silent"], call["captured"], call["allow_stdin"]) == (False, False, False)
    assert call["message_id"].encode() in call["parent_header"]
    assert baton.hello["version"] == baton_shim.__version__
    assert baton.hello["pid"] == baton.notebook.pid


def test_nothing_shows_before_the_first_gpu_cell(baton: Baton) -> None:
    cell = baton.run("get_ipython().execution_count, sorted(n for n in globals() if 'baton' in n.lower())")
    assert str(cell.result).endswith("[])")
    assert cell.reply["execution_count"] == 1
    assert baton.value("'BATON_SHIM_SOCKET' in __import__('os').environ") == "False"
    assert baton.value(f"[p for p in __import__('sys').path if p in ('', {str(baton.folder)!r})]") == "['']"
    assert baton.value("'IPKernelApp' in get_ipython().config") == "True"


def test_a_kernel_without_a_proxy(baton: Baton) -> None:
    baton.run("%load_ext baton_shim")  # registers the magic again, without a socket, as in a plain kernel
    cell = baton.run("%%gpu\n1")
    assert "select the kernel 'Python (shared GPU)'" in cell.text("stderr")


# ---- starting ----


def start(
    arguments: list[str], folder: Path, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "baton_shim", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def lonely_python(folder: Path) -> str:
    """A Python without the program `baton` beside it."""
    venv.create(folder / "venv", symlinks=True)
    return str(folder / "venv" / "bin" / "python")


def program(folder: Path) -> str:
    path = folder / "baton"
    path.write_text('#!/bin/sh\necho "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_the_module_becomes_the_binary(tmp_path: Path) -> None:
    done = start(["-f", "x.json", "--a"], tmp_path, BATON_BINARY=program(tmp_path))
    command = rf"kernel --python {re.escape(sys.executable)} --forked=\d+:\d+ -f x\.json --a\n"
    assert re.fullmatch(command, done.stdout)
    done = start(
        ["-f", "x.json"],
        tmp_path,
        lonely_python(tmp_path),
        PATH=f"{program(tmp_path).removesuffix('/baton')}:/usr/bin:/bin",
    )
    assert done.stdout.startswith("kernel --python")


def test_modules_of_the_student_do_not_get_in_the_way(tmp_path: Path) -> None:
    for name in ("socket", "signal", "threading", "select", "sysconfig", "typing", "enum"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    done = start(["-f", "x.json"], tmp_path, lonely_python(tmp_path), BATON_BINARY="", PATH="/nowhere")
    assert "The program 'baton' was not found" in done.stderr
    assert done.returncode == 1


def test_version(tmp_path: Path) -> None:
    assert start(["--version"], tmp_path).stdout == f"baton_shim {baton_shim.__version__}\n"


def test_binary_and_package_have_one_version() -> None:
    with (PACKAGE.parent / "Cargo.toml").open("rb") as file:
        assert tomllib.load(file)["workspace"]["package"]["version"] == baton_shim.__version__


def test_disabled(tmp_path: Path) -> None:
    done = start(["--version"], tmp_path, BATON_DISABLE="1")
    assert done.returncode == 0
    done = start(["--help"], tmp_path, BATON_DISABLE="1")
    assert "IPython" in done.stdout


def test_registering_loads_nothing_large() -> None:
    code = (
        "import sys; from ipykernel import kernelapp, zmqshell, ipkernel; before = set(sys.modules);"
        "import baton_shim.notebook.magic, baton_shim.notebook.home; print(*sorted({m.partition('.')[0] for m in sys.modules} - before))"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    loaded = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()
    assert set(loaded) <= {"baton_shim", "gc"}  # `gc` is a part of the interpreter


@pytest.mark.parametrize("first", ["", "%%gpu\n"])
def test_a_filter_of_warnings_that_becomes_the_first(baton: Baton, first: str) -> None:
    """Python has a filter like it, which moves; IPython's own is before it."""
    baton.run(f"{first}import warnings\nwarnings.filterwarnings('ignore', category=DeprecationWarning)\nimport sys")
    for magic in ("", "%%gpu\n"):
        assert baton.run(f"{magic}warnings.warn('old', DeprecationWarning)").text("stderr") == ""
    baton.run(f"{first}sys.path.append(sys.path.pop(0)); path = [*sys.path]")
    for magic in ("%%gpu\n", ""):
        assert baton.run(f"{magic}sys.path == path").result == "True"
