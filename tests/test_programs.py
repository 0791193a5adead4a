"""`with gpu:` and `@gpu` in plain Python programs, through this user's broker."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from end_to_end import Kernel, Place, Service, wait_until
from end_to_end.place import lives
from end_to_end.programs import HERE, Programs, helper_of, private_folders
from end_to_end.service import BINARY, run_binary

# ---- a program behaves as without Baton, apart from where its blocks run

ORDINARY = {
    "functions": """
        import sys
        from baton import gpu
        rows = [1]; same = rows
        class Model:
            def __init__(self): self.rows = rows
            @gpu
            def fit(self, n, *, key=2):
                print("fit", n); print("note", file=sys.stderr)
                self.rows.append(n * key)
                return self
        model = Model()
        print("before")
        print(model.fit(3) is model, rows is same is model.rows, rows)
        print(model.fit(4, key=5).rows, file=sys.stderr)
        """,
    "blocks": '''
        """Its own text."""
        from __future__ import annotations
        from baton import gpu
        total, names = 0, {"a": []}
        for n in range(5):
            with gpu:
                total += n
                names["a"].append(n)
                if n == 3: break
        with gpu: lines = open(__file__).read().splitlines()
        print(total, names, __name__, __doc__, len(lines))
        def train(n, *more):
            y = 1
            def closed(): return y
            for _ in range(n):
                with gpu(timeout="5m"):
                    y += closed()
                    if y > 8: return y, more
            return y
        print(train(1), train(9, 7))
        ''',
    "errors": """
        import traceback
        from baton import gpu
        rows = []
        class Mine(Exception):
            def __init__(self, a, b): super().__init__(f"{a} {b}"); self.a = a
        def fails(x):
            with gpu:
                rows.append(x)
                raise Mine(x, rows)
        try: fails(1)
        except Mine as error: print("caught", error.a, rows)
        fails(2)
        """,
    "an exit": """
        import sys, atexit
        from baton import gpu
        atexit.register(print, "at the end")
        try:
            with gpu: sys.exit("no")
        except SystemExit as error: print(error.code)
        with gpu: sys.exit(3)
        """,
    "state around it": """
        import os, random, warnings
        os.environ["BEFORE"] = "1"
        from baton import gpu
        os.environ["AFTER"] = "2"
        random.seed(5)
        @gpu
        def draw():
            os.environ["THERE"] = os.environ["BEFORE"] + os.environ["AFTER"]
            return random.random()
        print(draw(), random.random(), os.environ["THERE"])
        """,
    "coroutines": """
        import asyncio
        from baton import gpu
        @gpu
        async def add(a, b):
            await asyncio.sleep(0)
            return a + b
        async def main():
            with gpu:
                await asyncio.sleep(0)
                x = 1
            return await add(x, 2)
        print(asyncio.run(main()))
        """,
    "a patched library": """
        import json
        from baton import gpu
        class Shouting(json.JSONEncoder):
            def encode(self, o): return super().encode(o).upper()
        json.JSONEncoder.shout = lambda self: "shouted"
        @gpu
        def text(x): return json.dumps(x, cls=Shouting), json.JSONEncoder().shout()
        print(text({"a": 1}))
        """,
}


@pytest.mark.parametrize("program", ORDINARY)
def test_a_program_is_as_without_baton(programs: Programs, program: str) -> None:
    name = programs.write(ORDINARY[program])
    assert programs.run("-m", "baton", name) == programs.run(name, environment=HERE)


def test_it_runs_elsewhere(programs: Programs) -> None:
    name = programs.write(
        """
        import os, sys
        from baton import gpu
        with gpu: there = os.getpid()
        print(there != os.getpid(), sys.argv, sys.path[0] == os.getcwd())
        """
    )
    assert programs.run("-m", "baton", name, "--epochs", "3") == (f"True ['{name}', '--epochs', '3'] True\n", 0)
    output, code = programs.run(name)
    assert code == 1
    assert "RuntimeError: This 'with gpu:' was compiled before Baton was imported" in output
    assert "none of it has run" in output
    assert f"hint: start the program with `python -m baton {name}`" in output
    block = "from baton import gpu\nwith gpu: pass\n"
    assert "with `python -m baton 'a folder/of it.py'`" in programs.run(programs.write(block, "a folder/of it.py"))[0]
    assert "save the program in a file and start it with `python -m baton FILE`" in programs.run("-c", block)[0]


def test_an_error_of_a_call_has_the_frames_of_the_program(programs: Programs) -> None:
    name = programs.write("from baton import gpu\n@gpu\ndef f(x):\n    z = 0\n    return x / z\nf(1)")
    output, code = programs.run(name)
    assert code == 1
    assert re.findall(r"line (\d+), in (\S+)", output) == [("6", "<module>"), ("5", "f")]
    assert "baton_shim" not in output


def test_own_modules(programs: Programs) -> None:
    """Modules beside the program, wherever it is started, imported before baton, after it, or only in a block."""
    programs.write("from baton import gpu\ndef f(x):\n    with gpu: x.append(1)\n    return x", "scripts/after.py")
    programs.write("def g(x): return [*x, 2]", "scripts/early.py")
    programs.write("def h(x): return [*x, 3]", "scripts/there.py")
    source = """
        import early
        from baton import gpu
        import after
        @gpu
        def call(x):
            import there
            return there.h(early.g(x))
        print(call(after.f([0])))
        """
    name = programs.write(source, "scripts/main.py")
    assert programs.run(name) == ("[0, 1, 2, 3]\n", 0)
    as_module = programs.run("-m", "baton", "-m", "scripts.main", environment={"PYTHONPATH": "scripts"})
    assert as_module == ("[0, 1, 2, 3]\n", 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.py"], "can't open file"),
        (["-m", "missing"], "No module named missing"),
        ([], "Usage: python -m baton"),
        (["-x"], "Usage: python -m baton"),
    ],
)
def test_what_cannot_be_run(programs: Programs, arguments: list[str], says: str) -> None:
    output, code = programs.run("-m", "baton", *arguments)
    assert says in output
    assert code != 0


@pytest.mark.parametrize("source", ["x = (", "from baton import gpu\nclass A:\n    with gpu: pass", "await x"])
def test_what_does_not_compile(programs: Programs, source: str) -> None:
    name = programs.write(source)
    output, code = programs.run("-m", "baton", name)
    assert code == 1
    assert f'{name}", line ' in output
    assert "SyntaxError" in output
    assert "baton_shim" not in output


# ---- events during a block

SLOW = """
import os, time
from baton import gpu
rows = []
@gpu
def slow():
    rows.append(1)
    print("begun")
    while True: time.sleep(0.01)
"""


def test_an_interrupt(programs: Programs) -> None:
    name = programs.write(SLOW + "try: slow()\nexcept KeyboardInterrupt: print('first', rows, flush=True)\nslow()\n")
    program = programs.begin(name)
    assert program.stdout is not None
    for line in ("begun\n", "first [1]\n", "begun\n"):
        assert program.stdout.readline() == line
        if line == "begun\n":
            program.send_signal(signal.SIGINT)
    rest = program.stdout.read()
    assert "in slow\n    while True: time.sleep(0.01)" in rest
    assert rest.rstrip().endswith("KeyboardInterrupt")
    assert program.wait(60) == -signal.SIGINT


def test_an_ignored_interrupt(programs: Programs, place: Place) -> None:
    """As in the background of a shell script."""
    sign = place.signs / "ignored"
    name = programs.write(
        f"""
        import os, signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from baton import gpu
        @gpu
        def slow():
            print("begun")
            while not os.path.exists({str(sign)!r}): time.sleep(0.01)
            return "done"
        print(slow())
        """
    )
    program = programs.begin(name)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    program.send_signal(signal.SIGINT)
    sign.touch()
    assert program.stdout.read() == "done\n"
    assert program.wait(60) == 0


def test_the_handler_of_interrupts_stays(programs: Programs) -> None:
    name = programs.write(
        """
        import signal
        from baton import gpu
        @gpu
        def f(): pass
        def own(*of): pass
        for handler in (signal.SIG_DFL, signal.SIG_IGN, own, signal.default_int_handler):
            signal.signal(signal.SIGINT, handler)
            f()
            print(signal.getsignal(signal.SIGINT) == handler)
        """
    )
    assert programs.run(name) == ("True\n" * 4, 0)


def test_a_helper_that_is_killed(programs: Programs, place: Place) -> None:
    name = programs.write(
        SLOW
        + "try: slow()\nexcept RuntimeError as error: print(error, rows); print(*error.__notes__, flush=True)\n"
        + "@gpu\ndef fine(): return [*rows, 2]\nprint(fine())\n"
    )
    program = programs.begin(name)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    helper_of(program.pid).kill()
    assert program.stdout.readline().endswith("has ended []\n")
    assert "hint: run it again" in (said := program.stdout.readline())
    assert "Your variables are as they were before the call" in said
    assert program.stdout.readline() == "[2]\n"
    assert program.wait(60) == 0
    assert private_folders(place) == []


def test_a_session_that_is_killed_changes_nothing(programs: Programs) -> None:
    name = programs.write(
        """
        import os
        from baton import gpu
        rows = [1]
        try:
            with gpu: rows.append(2); os.kill(os.getpid(), 9)
        except RuntimeError as error: print(error, rows, *error.__notes__)
        with gpu: rows.append(3)
        print(rows)
        """
    )
    output, code = programs.run("-m", "baton", name)
    assert code == 0, output
    assert " [1] hint: " in output
    assert "the block worked in the current folder itself" in output
    assert "Your variables are as they were before the block" in output
    assert output.endswith("[1, 3]\n")


def test_a_program_that_is_killed(programs: Programs, place: Place) -> None:
    program = programs.begin(programs.write(SLOW + "slow()\n", "killed.py"))
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    helper = helper_of(program.pid)
    program.kill()
    wait_until(lambda: not lives(helper), "the helper has ended")
    assert private_folders(place) == []
    wait_until(lambda: "cancelled" in job_line(place, "killed.py"), "the job is cancelled")
    assert " call " in job_line(place, "killed.py")


def job_line(place: Place, program: str) -> str:
    said = run_binary(place, "jobs")
    assert said.returncode == 0, said.stderr
    return next(line for line in said.stdout.splitlines() if program in line)


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, subprocess.PIPE])
def test_the_helper_serves_the_program_that_started_it_only(place: Place, stdin: int) -> None:
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, "env": place.environment}
    options |= {"input": "hello"} if stdin == subprocess.PIPE else {"stdin": stdin}
    said = subprocess.run([BINARY, "program"], **options)
    assert said.returncode == 1
    assert "hint: do not run this command yourself; the Python package `baton` starts it" in said.stderr
    assert private_folders(place) == []


def test_nothing_begins_before_the_first_block(programs: Programs) -> None:
    name = programs.write(
        """
        import os
        import psutil
        from baton import gpu
        @gpu(timeout="5m", mem="1G")
        def f(): pass
        print(psutil.Process().children())
        """
    )
    assert programs.run(name) == ("[]\n", 0)


def test_changed_memory_is_found_as_in_a_kernel(programs: Programs) -> None:
    name = programs.write(
        """
        import os
        import numpy as np
        from baton import gpu
        data = np.zeros(1_000_000)
        for n in range(3):
            with gpu: data[n] += 1
            data[-1] += 1
        with open("/proc/self/maps") as maps: found = "/scanner.so" in maps.read()
        print(data[:4], data[-1], found, [name for name in os.environ if "SCANNER" in name])
        """
    )
    assert programs.run("-m", "baton", name) == ("[1. 1. 1. 0.] 3.0 True []\n", 0)


def test_children(programs: Programs) -> None:
    """Children of both kinds: each has its own helper and session, and the parent keeps its own."""
    name = programs.write(
        """
        import multiprocessing, os
        from baton import gpu
        rows = []
        @gpu
        def there():
            rows.append(1)
            return os.environ["BATON_SESSION"], len(rows)
        def child(answers): answers.put(there())
        if __name__ == "__main__":
            own = there()
            for method in ("fork", "spawn"):
                context = multiprocessing.get_context(method)
                answers = context.Queue()
                process = context.Process(target=child, args=(answers,))
                process.start()
                session, count = answers.get()
                process.join()
                print(method, session != own[0], count, process.exitcode)
            print(there() == (own[0], 2))
        """
    )
    assert programs.run(name) == ("fork True 2 0\nspawn True 1 0\nTrue\n", 0)


def test_threads_are_refused(programs: Programs) -> None:
    name = programs.write(
        """
        import threading
        from baton import gpu
        @gpu
        def f(): pass
        def call():
            try: f()
            except RuntimeError as error: print(error)
        thread = threading.Thread(target=call); thread.start(); thread.join()
        try: f.background()
        except RuntimeError as error: print(error)
        """
    )
    output, code = programs.run(name)
    assert code == 0
    assert "do not work in threads\nhint: " in output
    assert "f.background() works in a notebook only" in output


def test_a_pipe_that_closes(programs: Programs) -> None:
    name = programs.write(
        """
        from baton import gpu
        rows = []
        with gpu:
            rows.append(1)
            for n in range(10 ** 9): print(n)
        """
    )
    program = programs.begin("-m", "baton", name, stderr=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stderr is not None
    assert program.stdout.readline() == "0\n"
    program.stdout.close()
    assert "BrokenPipeError" in program.stderr.read()
    assert program.wait(60) != 0


def test_a_status_line_on_a_terminal_only(programs: Programs, place: Place) -> None:
    sign = place.signs / "go-on"
    name = programs.write(
        f"""
        import os, time
        from baton import gpu
        with gpu:
            while not os.path.exists({str(sign)!r}): time.sleep(0.01)
        print("done")
        """
    )
    main, other = pty.openpty()
    program = programs.begin("-m", "baton", name, stderr=other)
    os.close(other)
    said = read_until(main, "Running on ")
    assert "\r\x1b[K" in said
    sign.touch()
    said = read_until(main, " waited ")
    assert re.search(r"[CG]PU: [\d.]+ s on ", said)
    assert program.communicate(timeout=60)[0] == "done\n"
    os.close(main)
    assert programs.run("-m", "baton", name) == ("done\n", 0)


def read_until(terminal: int, text: str) -> str:
    said = ""
    while text not in said:
        said += os.read(terminal, 4096).decode(errors="replace")  # it may end within a letter
    return said


# ---- without a broker, or on the GPU machine

CALLS = """
    from baton import gpu
    rows = [1]
    @gpu
    def f(): rows.append(2)
    try: f()
    except RuntimeError as error: print(error, rows); print(*error.__notes__)
    """


@pytest.mark.parametrize(
    ("environment", "happened", "hint"),
    [
        (
            {"BATON_AUTOSTART": "false"},
            "This program cannot use the GPU service: no broker",
            "`baton up`",
        ),
        ({"BATON_BROKER_ADDRESS": "nowhere"}, "Wrong value for broker_address", "then start the program again"),
        ({"BATON_BROKER_ADDRESS": "unix:/nowhere/b.sock"}, "The GPU service does not answer", "run the call again"),
        ({"BATON_BINARY": "/nowhere/baton"}, "Baton's helper process", "BATON_BINARY"),
    ],
)
def test_without_a_broker(tmp_path: Path, environment: dict[str, str], happened: str, hint: str) -> None:
    place = Place.create()
    programs = Programs(place, tmp_path)
    output, code = programs.run(programs.write(CALLS), environment=environment)
    assert code == 0, output
    assert happened in output
    assert "[1]\n" in output
    assert hint in output
    assert "Your variables are as they were before the call" in output
    assert not re.search(r"\b(cell|notebook|kernel)s?\b", output)
    programs.close()
    assert place.close() == []


def test_a_lost_broker_is_an_error_and_its_return_is_found(programs: Programs, tmp_path: Path) -> None:
    service = Service.create()
    service.start_broker()
    service.start_worker()
    own = Programs(service.place, tmp_path)
    sign = service.place.signs / "on"
    name = own.write(
        f"""
        import os, time
        from baton import gpu
        @gpu
        def f(): return 5
        print(f(), flush=True)
        while not os.path.exists({str(sign)!r}): time.sleep(0.01)
        try: f()
        except RuntimeError as error: print(error, flush=True)
        while os.path.exists({str(sign)!r}): time.sleep(0.01)
        print(f())
        """
    )
    program = own.begin(name, environment=service.access)
    assert program.stdout is not None
    assert program.stdout.readline() == "5\n"
    service.kill("broker")
    sign.touch()
    assert "The GPU service does not answer" in program.stdout.readline()
    service.start_broker()
    sign.unlink()
    assert program.stdout.read() == "5\n"
    assert program.wait(60) == 0
    own.close()
    assert service.close() == []


def test_in_a_session_it_changes_nothing(programs: Programs, new_kernel: Callable[..., Kernel]) -> None:
    source = "import os\nfrom baton import gpu\nown = os.getpid()\nwith gpu: print(os.getpid() == own)\n"
    name = programs.write(source)
    kernel = new_kernel(folder=programs.folder)
    assert kernel.run(f"%%gpu\n!python {name}").ok().stdout.split() == ["True"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300}
    ran = subprocess.run([BINARY, "run", name], env=programs.environment, cwd=programs.folder, **options)
    assert ran.stdout == "True\n", ran.stderr


def test_an_ipython_that_does_not_fit_costs_blocks_only(programs: Programs) -> None:
    name = programs.write(
        """
        from IPython.core.interactiveshell import InteractiveShell
        del InteractiveShell.init_magics
        from baton import gpu
        @gpu(timeout="1m")
        def f(): pass
        print("works", flush=True)
        f()
        """
    )
    output, code = programs.run(name)
    assert code == 1
    assert output.startswith("works\n")
    assert "RuntimeError: Baton is not compatible with the installed IPython" in output
    assert "Nothing has run\nhint: update Baton as you installed it" in output


@pytest.mark.parametrize(("setting", "there"), [("", True), ("virtual_cuda = false\n", False)])
@pytest.mark.parametrize("first", ["import torch", "from baton import gpu"])
def test_virtual_cuda(tmp_path: Path, setting: str, there: bool, first: str) -> None:
    place = Place.create()
    folder = place.folder / "home/.config/baton"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(setting)
    programs = Programs(place, tmp_path)
    name = programs.write(f"{first}\nfrom baton import gpu\nimport torch\nprint(torch.cuda.is_available())")
    assert programs.run(name) == (f"{there}\n", 0)
    assert place.close() == []
