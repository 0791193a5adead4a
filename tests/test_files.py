"""Files of the notebook's folder in `%%gpu` cells whose session cannot access the folder.

The worker is made to mirror the folder although it could access it. So a file that a test reads in the session by a
relative path can only have arrived through the mirror.
"""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.restricted import WITHOUT_USER_NAMESPACES

WAYS = {
    "memory": {"BATON_TRANSPORT": "auto", "BATON_WORKER_FILES": "mirror"},
    "chunks": {"BATON_TRANSPORT": "http", "BATON_WORKER_FILES": "mirror"},
    "copied": {"BATON_TRANSPORT": "auto", "BATON_WORKER_FILES": "copy"},
}


@pytest.fixture(scope="module", params=WAYS)
def mirroring(request: pytest.FixtureRequest) -> Iterator[tuple[Service, dict[str, str]]]:
    service = Service.create()
    service.start_broker()
    way = WAYS[request.param]
    service.start_worker(slots=4, BATON_WORKER_FILES_LIMIT="2MiB", **way)
    yield service, way
    left = service.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture
def folder(mirroring: tuple[Service, dict[str, str]]) -> Iterator[Path]:
    """The notebook's folder, empty."""
    folder = mirroring[0].place.work
    yield folder
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.fixture
def kernel(mirroring: tuple[Service, dict[str, str]], folder: Path, new_kernel: Callable[..., Kernel]) -> Kernel:
    service, way = mirroring
    return service.kernel(new_kernel, BATON_TRANSPORT=way["BATON_TRANSPORT"])


when_opened = pytest.mark.parametrize("mirroring", ["memory"], indirect=True)


def test_files_are_read_in_every_way(kernel: Kernel, folder: Path) -> None:
    (folder / "data").mkdir()
    for number in range(6):
        (folder / f"data/{number}.csv").write_text(f"a,b\n{number},2\n")
    (folder / "notes größe.txt").write_text("hello")
    kernel.run("name = 'data/{}.csv'.format").ok()
    kernel.gpu(
        "import os, pathlib, subprocess, numpy as np, pandas as pd, polars as pl\n"
        "seen = [open(name(0)).read(), pathlib.Path(name(1)).read_text(), pd.read_csv(name(2)).a[0].item(),\n"
        "    pl.read_csv(name(3))['a'][0], np.loadtxt(name(4), delimiter=',', skiprows=1).tolist(),\n"
        "    subprocess.check_output(['cat', name(5)], text=True)]\n"
        "there = os.path.exists(name(0)), os.path.getsize('notes größe.txt'), sorted(os.listdir('data'))"
    ).ok()
    assert kernel.evaluate("seen") == ["a,b\n0,2\n", "a,b\n1,2\n", 2, 3, [4.0, 2.0], "a,b\n5,2\n"]
    assert kernel.evaluate("there") == (True, 5, [f"{number}.csv" for number in range(6)])
    shell = kernel.gpu("!cat notes*.txt data/5.csv\nimport glob; print(sorted(glob.glob('data/*'))[0])").ok()
    assert shell.stdout.replace("\r", "") == "helloa,b\n5,2\ndata/0.csv\n"


def test_paths_below_the_folder_may_be_absolute(kernel: Kernel, folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data/a.txt").write_text("text")
    kernel.run(f"from pathlib import Path\nhere = Path({str(folder)!r})").ok()
    kernel.gpu(
        "import os, shutil\n"
        "seen = (here / 'data/a.txt').read_text(), os.getcwd() == str(here), (here / 'missing').exists(),\\\n"
        "    [entry.path for entry in os.scandir(here / 'data')], sorted(map(str, here.rglob('*.txt'))),\\\n"
        "    str(Path('data').resolve()), os.path.realpath('data'), open('data/a.txt').name\n"
        "(here / 'made/deep').mkdir(parents=True)\n"
        "shutil.copy(here / 'data/a.txt', here / 'made/deep/b.txt')\n"
        "os.rename(str(here / 'data/a.txt'), str(here / 'c.txt'))\n"
        "try: open(here / 'missing')\n"
        "except OSError as error: missing = error.filename"
    ).ok()
    path = str(folder / "data")
    expected = ("text", True, False, [f"{path}/a.txt"], [f"{path}/a.txt"], path, path, "data/a.txt")
    assert kernel.evaluate("seen") == expected
    assert kernel.evaluate("missing") == str(folder / "missing")
    assert (folder / "made/deep/b.txt").read_text() == "text" == (folder / "c.txt").read_text()
    assert kernel.gpu("%cd made\nopen('here.txt', 'w').write('x')").ok()
    assert kernel.evaluate("__import__('os').getcwd()") == str(folder / "made")
    assert (folder / "made/here.txt").read_text() == "x"


def test_a_library_that_the_notebook_compiles_is_opened_on_both_sides(kernel: Kernel, folder: Path) -> None:
    (folder / "own.c").write_text("int calls;\nint add(int a, int b) { return a + b + 0 * calls++; }\n")
    kernel.run(
        "!gcc -shared -fPIC -o own.so own.c\nimport ctypes, os\nlib = ctypes.CDLL('./own.so'); add = lib.add"
    ).ok()
    kernel.run("whole = ctypes.CDLL(os.path.abspath('own.so')); here = add(1, 2)").ok()
    kernel.gpu("there = add(3, 4), whole.add(5, 6), lib.add is add\nadd.restype = ctypes.c_long").ok()
    assert kernel.evaluate("here, there, add.restype is ctypes.c_long") == (3, (7, 11, True), True)
    kernel.gpu(
        "!gcc -shared -fPIC -o made.so own.c\nmade = ctypes.CDLL('./made.so')\n"
        "also = ctypes.CDLL(os.path.abspath('made.so')).add\nthere = made.add(7, 8), also(9, 10)"
    ).ok()
    assert kernel.evaluate("there, made.add(1, 1), also(2, 2)") == ((15, 19), 2, 4)


def test_what_a_cell_does_to_files_is_done_here(kernel: Kernel, folder: Path) -> None:
    (folder / "old").mkdir()
    for name in ("changed", "grown", "deleted", "renamed", "old/a", "old/b", "script.sh", "cut"):
        (folder / name).write_text("before")
    kernel.gpu(
        "import os, shutil, numpy as np\n"
        "open('changed', 'w').write('after')\nopen('grown', 'a').write(' after')\n"
        "os.truncate('cut', 3)\nos.remove('deleted')\nos.rename('renamed', 'new name')\nshutil.rmtree('old')\n"
        "os.makedirs('made/deep')\nnp.save('made/deep/array.npy', np.arange(5))\nos.mkdir('empty')\n"
        "os.chmod('script.sh', 0o755)\nos.symlink('changed', 'link')\n!echo shell > by_shell.txt"
    ).ok()
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["changed", "grown", "cut", "new name", "made", "empty", "script.sh", "link", "by_shell.txt"]
    )
    texts = {name: (folder / name).read_text() for name in ("changed", "grown", "cut", "new name", "link")}
    assert texts == {
        "changed": "after",
        "grown": "before after",
        "cut": "bef",
        "new name": "before",
        "link": "after",
    }
    assert (folder / "script.sh").stat().st_mode & 0o777 == 0o755
    assert kernel.evaluate("__import__('numpy').load('made/deep/array.npy').tolist()") == [0, 1, 2, 3, 4]
    # In alternation: each side sees what the other one wrote last.
    for number in range(3):
        kernel.run(f"open('changed', 'w').write('here {number}')").ok()
        assert kernel.gpu("open('changed').read()").ok().value == f"'here {number}'"
        kernel.gpu(f"open('changed', 'w').write('away {number}')").ok()
        assert kernel.run("open('changed').read()").ok().value == f"'away {number}'"


def test_files_come_home_with_an_error_and_an_interrupt(kernel: Kernel, folder: Path) -> None:
    assert kernel.gpu("open('a', 'w').write('kept')\n1/0").error is not None
    assert (folder / "a").read_text() == "kept"
    cell = kernel.begin("%%gpu\nopen('b', 'w').write('kept')\nprint('ready', flush=True)\nwhile True: pass")
    cell.wait_for_text("ready")
    kernel.interrupt()
    assert cell.finish().reply["ename"] == "KeyboardInterrupt"
    assert (folder / "b").read_text() == "kept"


def test_large_files_go_in_parts(kernel: Kernel, folder: Path) -> None:
    import numpy as np

    size = (1 << 20) + 12345
    np.arange(size, dtype=np.uint8).tofile(folder / "large.bin")
    kernel.gpu(
        "import numpy as np\ndata = np.memmap('large.bin', dtype='uint8', mode='r+')\n"
        "total = int(data.astype('int64').sum())\ndata[-1] = 0\ndata.flush(); del data"
    ).ok()
    found = np.fromfile(folder / "large.bin", dtype=np.uint8)
    expected = np.arange(size, dtype=np.uint8)
    assert kernel.evaluate("total") == int(expected.astype("int64").sum())
    expected[-1] = 0
    assert (found == expected).all()


def test_writes_through_a_mapping_come_back_after_every_cell(kernel: Kernel, folder: Path) -> None:
    kernel.gpu("import numpy as np\nmapped = np.memmap('mapped.bin', dtype='uint8', mode='w+', shape=100)").ok()
    for value in (1, 2, 3):
        kernel.gpu(f"import time\nmapped[:] = {value}\ntime.sleep(0.1)").ok()
        assert (folder / "mapped.bin").read_bytes() == bytes([value]) * 100


def test_too_large_a_file_stays_and_is_named(kernel: Kernel, folder: Path) -> None:
    (folder / "kept.bin").write_bytes(b"before")
    result = kernel.gpu(
        "open('small.txt', 'w').write('x')\nopen('kept.bin', 'wb').write(bytes(3 << 20))\n"
        "with open('grows.bin', 'wb') as file:\n    for _ in range(5): file.write(b'1' * (1 << 20))"
    ).ok()
    assert "warning: 'grows.bin' (5 MiB) stays on the GPU machine" in result.stderr
    assert "worker.files_limit" in result.stderr
    assert "'kept.bin' (3 MiB)" in result.stderr
    assert (folder / "small.txt").read_text() == "x"
    assert (folder / "kept.bin").read_bytes() == b"before"
    assert not (folder / "grows.bin").exists()
    # It is still there for the next cell.
    assert kernel.gpu("import os; os.path.getsize('grows.bin')").ok().value == str(5 << 20)


@when_opened
@pytest.mark.parametrize("name", ["'huge' + '.bin'", "'huge.bin'"])
def test_too_large_a_file_is_not_opened(kernel: Kernel, folder: Path, name: str) -> None:
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(3 << 20)
    result = kernel.gpu(f"try: open({name})\nexcept OSError as error: found = error.strerror")
    assert kernel.evaluate("found") == "File too large"
    assert "'huge.bin' (3 MiB) is larger than the limit of" in result.ok().stderr


def test_both_versions_stay_when_two_write(kernel: Kernel, folder: Path) -> None:
    (folder / "shared.txt").write_text("before")
    cell = kernel.begin("%%gpu\nopen('shared.txt', 'w').write('of the cell')\ninput()")
    cell.wait_for_question()
    (folder / "shared.txt").write_text("of somebody else")
    kernel.client.input("go")
    result = cell.finish().ok()
    assert "warning: 'shared.txt' was written by the cell" in result.stderr
    assert (folder / "shared.txt").read_text() == "of somebody else"
    assert (folder / "shared (from the GPU).txt").read_text() == "of the cell"


def test_a_killed_session_changes_no_file(kernel: Kernel, folder: Path) -> None:
    (folder / "a").write_text("before")
    result = kernel.gpu("import os, signal\nopen('a', 'w').write('lost')\nopen('b', 'w').write('lost')\nos._exit(1)")
    assert result.error is not None
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a", "before")]
    assert kernel.gpu("open('a').read()").ok().value == "'before'"


def test_own_modules(kernel: Kernel, folder: Path) -> None:
    (folder / "own.py").write_text("def version():\n    return 1\n")
    (folder / "package").mkdir()
    (folder / "package/__init__.py").write_text("from .part import number\n")
    (folder / "package/part.py").write_text("number = 7\n")
    kernel.gpu("import own, package\nfound = own.version(), package.number").ok()
    assert kernel.evaluate("found, own.version()") == ((1, 7), 1)
    (folder / "own.py").write_text("def version():\n    return 22\n")
    assert kernel.gpu("own.version()").ok().value == "1"
    kernel.run("import importlib; importlib.reload(own)").ok()
    assert kernel.gpu("own.version()").ok().value == "22"
    assert kernel.run("own.__file__").ok().value == repr(str(folder / "own.py"))


@when_opened
def test_only_what_is_opened_moves(kernel: Kernel, folder: Path, mirroring: tuple[Service, dict[str, str]]) -> None:
    secret = "unused " + "x" * 100_000
    (folder / "unused.txt").write_text(secret)
    (folder / "used.txt").write_text("used")
    kernel.gpu("open('used.txt').read()").ok()
    service = mirroring[0]
    mirrors = service.place.find("mirror/work/unused.txt")
    assert mirrors
    assert all(path.stat().st_blocks == 0 for path in mirrors)


@when_opened
def test_many_threads_open_files_at_once(kernel: Kernel, folder: Path) -> None:
    """More than a job may have questions."""
    for number in range(200):
        (folder / f"{number}.txt").write_text(str(number))
    kernel.gpu(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "read = lambda number: int(open(f'{number}.txt').read())\n"
        "with ThreadPoolExecutor(200) as pool: total = sum(pool.map(read, range(200)))"
    ).ok()
    assert kernel.evaluate("total") == sum(range(200))


@when_opened
def test_children_of_the_session_open_files(kernel: Kernel, folder: Path) -> None:
    for number in range(20):
        (folder / f"{number}.txt").write_text(str(number))
    kernel.gpu(
        "import multiprocessing, threading\n"
        "def read(number): return open(f'{number}.txt').read()\n"
        "with multiprocessing.get_context('fork').Pool(3) as pool: found = pool.map(read, range(10))\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: found += pool.map(read, range(10, 20))"
    ).ok()
    assert kernel.evaluate("found") == [str(number) for number in range(20)]


@when_opened
def test_hidden_files_stay_here_unless_a_rule_lets_them_travel(kernel: Kernel, folder: Path) -> None:
    (folder / ".ssh").mkdir()
    for name in (".ssh/id", ".env", "a"):
        (folder / name).write_text("mine")
    seen = "import os\nseen = sorted(os.listdir()), os.path.exists('.ssh/id')"
    kernel.gpu(seen).ok()
    assert kernel.evaluate("seen") == (["a"], False)
    opened = kernel.gpu("open('.env')")
    assert opened.error is not None
    assert opened.error[0] == "FileNotFoundError"
    assert "add the line '!.env' to the file .batonignore" in opened.plain_traceback
    assert "hint" not in kernel.gpu("open('b')").plain_traceback
    written = kernel.gpu("open('.env', 'w').write('new'); open('.made', 'w').write('new')").ok()
    assert "'.env (from the GPU)'" in written.stderr
    assert [(folder / name).read_text() for name in (".env", ".env (from the GPU)", ".made")] == ["mine", "new", "new"]
    (folder / ".batonignore").write_text("!.env\n")
    kernel.gpu(seen + "; text = open('.env').read(), open('.made').read()").ok()
    assert kernel.evaluate("seen, text") == (([".env", ".made", "a"], False), ("mine", "new"))


# ---- a separate worker


def test_a_notebook_in_the_home_folder_says_what_stays(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    work = service.place.work
    for name in (".bashrc", ".profile", ".vimrc", ".zshrc", "a"):
        (work / name).write_text("x")
    kernel = service.kernel(new_kernel, HOME=str(work))
    first = kernel.gpu("open('a').read()").ok()
    lines = [line for line in first.stderr.splitlines() if "home folder" in line]
    assert len(lines) == 1
    assert ".batonignore" in lines[0]
    assert "are not copied to the GPU machine" in lines[0]
    assert "home folder" not in kernel.gpu("1").ok().stderr


def test_a_worker_that_sees_the_folder_works_in_it(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker()
    kernel = service.kernel(new_kernel)
    assert kernel.gpu("!pwd").ok().stdout.strip() == str(service.place.work)
    assert service.place.find("mirror") == []
    assert list(service.place.work.glob(".baton-*")) == []


@pytest.mark.root("give a folder to another user")
def test_a_root_worker_works_in_no_folder_of_somebody_elses(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker()
    work = service.place.work
    (work / "a").write_text("text")
    os.chown(work, 12345, -1)
    kernel = service.kernel(new_kernel)
    # In a sandbox, a mirror is at the path of the folder.
    kernel.gpu("import os\nfolder = os.stat('.').st_dev, os.stat('.').st_ino\ntext = open('a').read()").ok()
    there = work.stat()
    assert kernel.evaluate("folder") != (there.st_dev, there.st_ino)
    assert kernel.evaluate("text") == "text"


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_no_link_takes_the_place_of_the_folder_while_the_session_starts(
    service: Service, new_kernel: Callable[..., Kernel], sandbox: str
) -> None:
    """Whether the session starts in the folder or not at all depends on how it starts. It is never in another one."""
    service.start_broker()
    service.start_worker(prefix=WITHOUT_USER_NAMESPACES if sandbox == "landlock" else [], BATON_WORKER_SANDBOX=sandbox)
    work = service.place.work
    private = work.with_name("private")
    private.mkdir()
    (private / "secret").write_text("of another person")
    kernel = service.kernel(new_kernel)
    replace = threading.Thread(target=replace_when_proven, args=(work, private))
    replace.start()
    result = kernel.gpu("import os\nprint(os.listdir('.'))\nprint(open('secret').read())")
    replace.join(30)
    assert work.is_symlink()
    assert "secret" not in result.stdout
    assert "of another person" not in result.stdout


def replace_when_proven(folder: Path, other: Path) -> None:
    """Puts a link at the path of `folder` once the file with which the notebook proves its access has come and gone."""
    deadline = time.monotonic() + 60
    while not list(folder.glob(".baton-*")) and time.monotonic() < deadline:
        time.sleep(0.0005)
    while list(folder.glob(".baton-*")) and time.monotonic() < deadline:
        pass
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(other)


def test_a_worker_killed_in_the_middle_changes_no_file(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    worker = service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    work = service.place.work
    (work / "a").write_text("before")
    cell = kernel.begin("%%gpu\nopen('a', 'w').write('lost')\nprint('ready', flush=True)\nwhile True: pass")
    cell.wait_for_text("ready")
    service.kill(worker)
    assert cell.finish().error is not None
    assert [(path.name, path.read_text()) for path in work.iterdir()] == [("a", "before")]
    service.start_worker(BATON_WORKER_FILES="mirror")
    assert kernel.gpu("open('a', 'a').write(' and after')").ok().value == "10"
    assert (work / "a").read_text() == "before and after"
    # The mirror of the dead worker is removed when another one is created there.
    assert len(service.place.find("mirror/work")) == 1


def test_the_broker_killed_while_a_file_is_on_its_way(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    for number in range(30):
        (service.place.work / f"{number}.bin").write_bytes(os.urandom(200_000))
    cell = kernel.begin(
        "%%gpu\ntotal = 0\nfor number in range(30):\n    total += len(open(f'{number}.bin', 'rb').read())\n"
        "    print(number, flush=True)"
    )
    cell.wait_for_text("3")
    service.kill("broker")
    service.start_broker()
    cell.finish().ok()
    assert kernel.evaluate("total") == 30 * 200_000


def test_an_interrupt_while_a_file_is_on_its_way(
    service: Service, new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    (service.place.work / "a.bin").write_bytes(bytes(1000))
    kernel.run(f"gate = {str(service.place.signs / 'gate')!r}").ok()
    cell = kernel.begin(
        "%%gpu\nimport os\nopen('written', 'w').write('x')\nprint('ready', flush=True)\n"
        "while not os.path.exists(gate): pass\nopen('a' + '.bin').read()"
    )
    cell.wait_for_text("ready")
    broker = service.broker
    broker.suspend()
    service.wait_until_stopped(broker)
    (service.place.signs / "gate").touch()
    kernel.interrupt()
    assert cell.finish().reply["ename"] == "KeyboardInterrupt"
    assert not (service.place.work / "written").exists()
    broker.resume()
    assert kernel.gpu("len(open('a' + '.bin').read())").ok().value == "1000"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_notebook_folder_that_is_gone_is_unknown_and_takes_nothing(
    service: Service, new_kernel: Callable[..., Kernel], replaced: bool
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    folder = service.place.work / "course"
    folder.mkdir()
    (folder / "a").write_text("text")
    kernel = service.kernel(new_kernel, folder)
    assert kernel.gpu("open('a').read()").ok().value == "'text'"
    shutil.rmtree(folder)
    if replaced:
        folder.mkdir()
    result = kernel.gpu("import os\nfound = open('a').read()\nopen('b', 'w').write('new')").ok()
    assert kernel.evaluate("found") == "text"
    assert "warning: Some files cannot be read here" in result.stderr
    assert "warning: The cell's file changes could not be applied here" in result.stderr
    result = kernel.gpu("open('b').read()").ok()
    assert result.value == "'new'"
    assert "Some files cannot be read" not in result.stderr
    assert list(folder.iterdir()) == [] if replaced else not folder.exists()


@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
def test_the_python_of_sessions_may_be_installed_below_the_folder(
    service: Service, new_kernel: Callable[..., Kernel], sandbox: str
) -> None:
    """As where students use the same account on several machines, with Baton in `~/baton` and notebooks in `~`."""
    environment = service.place.work / ".venv"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "those-of-the-tests.pth").write_text(sysconfig.get_path("purelib"))
    (packages / "tool.txt").write_text("of the worker")
    service.start_broker()
    python = {"BATON_WORKER_PYTHON": str(environment / "bin" / "python")}
    service.start_worker(BATON_WORKER_FILES="mirror", BATON_WORKER_SANDBOX=sandbox, **python)
    kernel = service.kernel(new_kernel)
    (service.place.work / "data.txt").write_text("of the notebook")
    both = f"[open(path).read() for path in ({str(packages / 'tool.txt')!r}, {str(service.place.work / 'data.txt')!r})]"
    assert kernel.gpu(both).ok().value == "['of the worker', 'of the notebook']"


def test_files_come_home_where_variables_do_not(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    kernel.run("%%gpu --no-return\nopen('a', 'w').write('kept'); x = 1").ok()
    assert (service.place.work / "a").read_text() == "kept"
    assert kernel.gpu("open('a').read(), 'x' in dir()").ok().value == "('kept', False)"


def test_nothing_is_left_behind(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    worker = service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    kernel.gpu("open('a', 'w').write('x')").ok()
    session = psutil.Process(kernel.session_pid)
    kernel.shutdown()
    wait_until(lambda: not session.is_running(), "the session ends")
    wait_until(lambda: not service.place.find("mirror"), "its mirror is removed")
    service.end(worker, signal.SIGTERM)
    assert [path.name for path in service.place.work.iterdir()] == ["a"]
