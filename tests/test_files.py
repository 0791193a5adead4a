"""Files of the notebook's folder in `%%gpu` cells whose session does not see the folder.

The worker is made to mirror the folder although it could see it; so what a test reads in the session can only have
come through the mirror, as long as it is named by a relative path.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.service import run_binary

WAYS = {
    "memory": {"BATON_LANE": "auto", "BATON_WORKER_FILES": "mirror"},
    "chunks": {"BATON_LANE": "http", "BATON_WORKER_FILES": "mirror"},
    "copied": {"BATON_LANE": "auto", "BATON_WORKER_FILES": "copy"},
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
    return service.kernel(new_kernel, BATON_LANE=way["BATON_LANE"])


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
    # Back and forth: each side sees what the other one wrote last.
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


def test_too_large_a_file_stays_and_is_named(kernel: Kernel, folder: Path) -> None:
    (folder / "kept.bin").write_bytes(b"before")
    result = kernel.gpu(
        "open('small.txt', 'w').write('x')\nopen('kept.bin', 'wb').write(bytes(3 << 20))\n"
        "with open('grows.bin', 'wb') as file:\n    for _ in range(5): file.write(b'1' * (1 << 20))"
    ).ok()
    assert "warning: 'grows.bin' (5.0 MiB) stays on the GPU machine" in result.stderr
    assert "worker.files_limit" in result.stderr
    assert "'kept.bin' (3.0 MiB)" in result.stderr
    assert (folder / "small.txt").read_text() == "x"
    assert (folder / "kept.bin").read_bytes() == b"before"
    assert not (folder / "grows.bin").exists()
    # It is still there for the next cell.
    assert kernel.gpu("import os; os.path.getsize('grows.bin')").ok().value == str(5 << 20)


@when_opened
def test_too_large_a_file_is_not_opened(kernel: Kernel, folder: Path) -> None:
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(3 << 20)
    result = kernel.gpu("name = 'huge'\ntry: open(name + '.bin')\nexcept OSError as error: found = error.strerror")
    assert kernel.evaluate("found") == "File too large"
    assert "'huge.bin' (3.0 MiB) could not be opened" in result.ok().stderr


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
    mirrors = list(service.place.folder.rglob("mirror/work/unused.txt"))
    assert mirrors
    assert all(path.stat().st_blocks == 0 for path in mirrors)


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


# ---- one worker of the test's own


def test_a_worker_that_sees_the_folder_works_in_it(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker()
    kernel = service.kernel(new_kernel)
    assert kernel.gpu("!pwd").ok().stdout.strip() == str(service.place.work)
    assert not list(service.place.folder.rglob("mirror"))


def test_a_worker_killed_in_the_middle_changes_no_file(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    worker = service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    work = service.place.work
    (work / "a").write_text("before")
    cell = kernel.begin("%%gpu\nopen('a', 'w').write('lost')\nprint('ready', flush=True)\nwhile True: pass")
    cell.wait_for_text("ready")
    service.kill(worker)
    assert cell.finish(seconds=15).error is not None
    assert [(path.name, path.read_text()) for path in work.iterdir()] == [("a", "before")]
    service.start_worker(BATON_WORKER_FILES="mirror")
    assert kernel.gpu("open('a', 'a').write(' and after')").ok().value == "10"
    assert (work / "a").read_text() == "before and after"
    # The mirror of the dead worker is gone as soon as another one is made there.
    assert len(list(service.place.folder.rglob("mirror/work"))) == 1


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
    cell.finish(seconds=60).ok()
    assert kernel.evaluate("total") == 30 * 200_000


def test_an_interrupt_while_a_file_is_on_its_way(
    service: Service, new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    (service.place.work / "a.bin").write_bytes(bytes(1000))
    kernel.run(f"gate = {str(tmp_path / 'gate')!r}").ok()
    cell = kernel.begin(
        "%%gpu\nimport os\nopen('written', 'w').write('x')\nprint('ready', flush=True)\n"
        "while not os.path.exists(gate): pass\nopen('a' + '.bin').read()"
    )
    cell.wait_for_text("ready")
    broker = service.broker
    broker.suspend()
    service.wait_until_stopped(broker)
    (tmp_path / "gate").touch()
    kernel.interrupt()
    assert cell.finish(seconds=15).reply["ename"] == "KeyboardInterrupt"
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
    assert "warning: Not all files can be seen here" in result.stderr
    assert "warning: What the cell did to files could not be done here" in result.stderr
    result = kernel.gpu("open('b').read()").ok()
    assert result.value == "'new'"
    assert "Not all files" not in result.stderr
    assert list(folder.iterdir()) == [] if replaced else not folder.exists()


def test_files_come_home_where_variables_do_not(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    kernel.run("%%gpu --no-return\nopen('a', 'w').write('kept'); x = 1").ok()
    assert (service.place.work / "a").read_text() == "kept"
    assert kernel.gpu("open('a').read(), 'x' in dir()").ok().value == "('kept', False)"


def test_nothing_is_left_behind(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    worker = service.start_worker(BATON_WORKER_FILES="mirror", BATON_WORKER_SESSION_IDLE="1s")
    kernel = service.kernel(new_kernel)
    kernel.gpu("open('a', 'w').write('x')").ok()
    session = psutil.Process(kernel.session_pid)
    kernel.shutdown()
    wait_until(lambda: not session.is_running(), "the session ends")
    wait_until(lambda: not list(service.place.folder.rglob("mirror")), "its mirror is removed")
    service.end(worker, signal.SIGTERM)
    assert [path.name for path in service.place.work.iterdir()] == ["a"]


# ---- a mirror that is lost


def mirror_of(service: Service) -> Path:
    """The only one."""
    (mirror,) = service.place.folder.rglob("mirror/work")
    return mirror


def remove(mirror: Path) -> None:
    shutil.rmtree(mirror.parents[1])


def replace(mirror: Path) -> None:
    shutil.rmtree(mirror)
    mirror.mkdir()


LOSSES = pytest.mark.parametrize("lose", [remove, replace])


@LOSSES
def test_a_mirror_lost_between_two_cells_deletes_nothing(
    service: Service, new_kernel: Callable[..., Kernel], lose: Callable[[Path], None]
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    work = service.place.work
    (work / "data").mkdir()
    for name in ("a", "b", "data/c"):
        (work / name).write_text(name)
    kernel.gpu("import random; state = [open('a').read()]; kept = random.Random(1)").ok()
    before = contents(work)
    lose(mirror_of(service))
    result = kernel.gpu("x = 1").ok()
    assert contents(work) == before
    assert "this cell runs in a new session" in result.stderr
    assert kernel.evaluate("x, state") == (1, ["a"])
    assert kernel.gpu("open('b').read() + open('data/c').read()").ok().value == "'bdata/c'"


@LOSSES
def test_a_mirror_lost_while_a_cell_runs_changes_nothing(
    service: Service, new_kernel: Callable[..., Kernel], lose: Callable[[Path], None]
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    work = service.place.work
    for name in "abc":
        (work / name).write_text(name)
    kernel.run("x = 1").ok()
    before = contents(work)
    cell = kernel.begin("%%gpu\nx = 2\nopen('new', 'w').write('lost')\nopen('a', 'w').write('lost')\ninput()")
    cell.wait_for_question()
    lose(mirror_of(service))
    kernel.client.input("go")
    error = cell.finish().reply
    assert error["ename"] == "FilesLost"
    text = "\n".join(error["traceback"])
    assert "No file was changed here" in text
    assert "Your variables are as they were before the cell" in text
    assert "run the cell again" in text
    assert contents(work) == before
    assert kernel.evaluate("x") == 1
    assert kernel.gpu("open('new', 'w').write(open('a').read()); x").ok().value == "1"
    assert contents(work) == {**before, "new": "a"}


def test_what_no_cell_deleted_stays(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    work = service.place.work
    for number in range(20):
        (work / str(number)).write_text(str(number))
    before = contents(work)
    cell = kernel.begin("%%gpu\nimport os\nx = 2\nos.remove('0')\nopen('1', 'w').write('new')\ninput()")
    cell.wait_for_question()
    for number in range(10, 14):
        (mirror_of(service) / str(number)).unlink()
    kernel.client.input("go")
    result = cell.finish().ok()
    assert "nothing shows that the cell deleted them: '10', '11', '12' and 1 more. They stay here" in result.stderr
    del before["0"]
    before["1"] = "new"
    assert contents(work) == before
    result = kernel.gpu("open('10').read() + open('1').read(), x").ok()
    assert result.value == "('10new', 2)"
    assert "this cell runs in a new session" in result.stderr
    assert kernel.gpu("x").ok().stderr == ""


@pytest.mark.parametrize("files", ["mirror", "copy"])
def test_whatever_removes_files_in_a_cell_removes_them_here(
    service: Service, new_kernel: Callable[..., Kernel], files: str
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES=files)
    kernel = service.kernel(new_kernel)
    work = service.place.work
    for folder in ("by_python", "by_shell", "by_child", "renamed", "absolute", "by_find"):
        (work / folder / "deep").mkdir(parents=True)
        for number in range(30):
            (work / folder / "deep" / str(number)).write_text(folder)
    result = kernel.gpu(
        "import os, shutil, subprocess, sys\n"
        "shutil.rmtree('by_python')\n"
        "!rm -r by_shell; cd by_find/deep && find . -type f -delete; rmdir ../deep\n"
        "subprocess.run([sys.executable, '-c', 'import shutil; shutil.rmtree(\"by_child\")'], check=True)\n"
        f"os.rename('renamed', 'new'); shutil.rmtree({str(work / 'absolute')!r})\n"
        "os.rename('new/deep/1', 'one'); os.replace('one', 'new/deep/2')"
    ).ok()
    assert "missing" not in result.stderr
    assert sorted(path.name for path in work.iterdir()) == ["by_find", "new"]
    assert list((work / "by_find").iterdir()) == []
    assert len(list((work / "new/deep").iterdir())) == 29


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


# ---- what a cell deleted or replaced


def baton_files(service: Service, *arguments: str) -> str:
    said = run_binary(service.place, "files", *arguments)
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_what_a_cell_deleted_or_replaced_is_brought_back(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    work = service.place.work
    (work / "data").mkdir()
    for number in range(120):
        (work / f"data/{number}.csv").write_text(str(number))
    (work / "results.txt").write_text("before")
    before = contents(work)
    few = kernel.gpu("import os, shutil\nopen('results.txt', 'w').write('after')\nos.remove('data/1.csv')").ok()
    assert few.stderr == ""
    many = kernel.gpu("shutil.rmtree('data')").ok()
    expected = "warning: The cell deleted 119 files in the notebook's folder; `baton files restore` in a terminal"
    assert many.stderr.startswith(expected)
    assert contents(work) == {"results.txt": "after"}
    # Nothing of it is there for a cell, of either kind.
    assert kernel.gpu("sorted(os.listdir())").ok().value == "['results.txt']"
    assert kernel.run("import os; sorted(os.listdir())").ok().value == "['results.txt']"
    assert "results.txt" in baton_files(service, "list")
    baton_files(service, "restore")
    baton_files(service, "restore", "results.txt")
    assert contents(work) == before
    assert kernel.gpu("open('data/119.csv').read() + open('results.txt').read()").ok().value == "'119before'"


def test_what_a_cell_took_away_is_there_when_its_variables_cannot_come_home(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    work = service.place.work
    for name in "ab":
        (work / name).write_text(name)
    before = contents(work)
    kernel.run(REFUSES).ok()
    result = kernel.gpu(
        REFUSED + "import os\nos.remove('a'); open('b', 'w').write('lost'); open('c', 'w').write('lost')"
    )
    assert "could not be brought home" in result.plain_traceback
    assert "Files that the cell wrote stay" not in result.stderr
    assert contents(work) == before
    assert "No %%gpu cell" in baton_files(service, "list")


# ---- "as before the cell", in a mirror and in the notebook's folder itself

REFUSES = (
    "import os\nhome = os.getpid()\n"
    "class Refuses:\n    def __init__(self): self.x = 1\n"
    "    def __setstate__(self, state):\n        if os.getpid() == home: raise ValueError('not here')\n"
)
REFUSED = "made = Refuses()\n"
STAY = "warning: Files that the cell wrote stay: it worked in the notebook's folder itself"
ENDS = {
    "the session dies": "import os; os._exit(1)",
    "the change is refused": REFUSED,
}


@pytest.mark.parametrize("files", ["mirror", "auto"])
def test_as_before_the_cell_says_what_becomes_of_files(
    service: Service, new_kernel: Callable[..., Kernel], files: str
) -> None:
    service.start_broker()
    worker = service.start_worker(BATON_WORKER_FILES=files)
    kernel = service.kernel(new_kernel)
    work = service.place.work
    kernel.run(REFUSES + "x = 1").ok()
    stays = files == "auto"

    def check(name: str, stderr: str) -> None:
        assert (work / name).exists() == stays, name
        assert (STAY in stderr) == stays, name
        assert kernel.evaluate("x") == 1

    for number, code in enumerate(ENDS.values()):
        result = kernel.gpu(f"x = 2\nopen('{number}', 'w').write('x')\n{code}")
        assert "Your variables are as they were before the cell" in result.plain_traceback
        check(str(number), result.stderr)
    cell = kernel.begin("%%gpu\nx = 2\nopen('killed', 'w').write('x')\nprint('ready', flush=True)\nwhile True: pass")
    cell.wait_for_text("ready")
    service.kill(worker)
    killed = cell.finish(seconds=30)
    assert killed.error is not None
    check("killed", killed.stderr)


# ---- random cells, and faults


def act(random: Random, number: int) -> str:
    """A line of a cell, in which one thing happens to one file or folder."""
    names = ["a", "b", "c", "data", "data/a", "data/b", "data/deep", "data/deep/c"]
    one, other = random.choice(names), random.choice(names)
    return random.choice(
        [
            f"os.makedirs(os.path.dirname({one!r}) or '.', exist_ok=True); open({one!r}, 'w').write('{number}')",
            f"open({one!r}, 'a').write(' {number}')",
            f"open({one!r}).read()",
            f"os.remove({one!r})",
            f"os.rename({one!r}, {other!r})",
            f"shutil.rmtree({one!r})",
            f"os.makedirs({one!r})",
        ]
    )


def fault(name: str, mirror: Path, worker: psutil.Process) -> Callable[[], None]:
    """Makes it happen; what it returns ends it."""
    if name == "gone":
        remove(mirror)
    elif name == "replaced":
        replace(mirror)
    elif name == "covered":
        subprocess.run(["mount", "-t", "tmpfs", "none", mirror], check=True)
        return lambda: subprocess.run(["umount", "-l", mirror], check=True) and None
    elif name == "unmounted":
        subprocess.run(["umount", "-l", mirror.parents[2]], check=True)
    elif name == "full":
        filling = mirror.parents[2] / "filling"
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        return filling.unlink
    elif name == "without descriptors":
        limits = worker.rlimit(psutil.RLIMIT_NOFILE)
        worker.rlimit(psutil.RLIMIT_NOFILE, (worker.num_fds(), limits[1]))
        return lambda: worker.rlimit(psutil.RLIMIT_NOFILE, limits) and None
    elif name == "cleaned":
        for path in mirror.rglob("*"):
            if path.is_file():
                path.unlink()
    return lambda: None


@contextlib.contextmanager
def disk_of_its_own(folder: Path) -> Iterator[bool]:
    """Whether this process may mount one there."""
    folder.mkdir()
    yield subprocess.run([*SMALL_DISK, folder], check=False).returncode == 0
    while folder.is_mount():
        subprocess.run(["umount", "-l", folder], check=True)


SMALL_DISK = ["mount", "-t", "tmpfs", "-o", "size=4m", "none"]
FAULTS = ["nothing", "gone", "replaced", "covered", "unmounted", "full", "without descriptors", "cleaned"]


@pytest.mark.parametrize("name", FAULTS)
def test_random_cells_do_what_they_did_or_nothing(
    service: Service, new_kernel: Callable[..., Kernel], tmp_path: Path, name: str
) -> None:
    mirrors = service.place.folder / "mirrors"
    with disk_of_its_own(mirrors) as mounted:
        if name in ("covered", "unmounted", "full") and not mounted:
            pytest.skip(f"NOT TESTED ({name}): only root may mount file systems")
        try_random_cells(service, new_kernel, mirrors, tmp_path / "twin", name)


def try_random_cells(service: Service, new_kernel: Callable[..., Kernel], mirrors: Path, twin: Path, name: str) -> None:
    random = Random(seed := int(os.environ.get("BATON_TEST_SEED", "1")))
    service.start_broker()
    worker = service.process(service.start_worker(BATON_WORKER_FILES="mirror", BATON_WORKER_MIRRORS=str(mirrors)))
    kernel = service.kernel(new_kernel)
    work = service.place.work
    kernel.run("import os, shutil\nx = 0").ok()
    kernel.gpu("x").ok()
    for round_ in range(1, 5):
        where = f"seed {seed}, cell {round_}"
        lines = [act(random, 100 * round_ + number) for number in range(8)]
        before = contents(work)
        shutil.rmtree(twin, ignore_errors=True)
        shutil.copytree(work, twin)
        code = "\n".join(f"try: {line}\nexcept OSError: pass" for line in lines)
        subprocess.run([sys.executable, "-c", f"import os, shutil\n{code}"], cwd=twin, check=True)
        cell = kernel.begin(f"%%gpu\n{code}\nx = {round_}\ninput()")
        cell.wait_for_question()
        end = fault(name, next(mirrors.rglob("mirror/work")), worker) if round_ % 2 == 0 else lambda: None
        kernel.client.input("go")
        try:
            result = cell.finish(seconds=60)
        finally:
            end()
        now, done = contents(work), contents(twin)
        if result.error is None and name != "cleaned":
            assert now == done, where
        elif result.error is None:
            assert all(now.get(path) in (done.get(path), before.get(path)) for path in {*now, *done, *before}), where
        else:
            assert round_ % 2 == 0, (where, result.plain_traceback)
            assert now == before, (where, result.plain_traceback)
            assert kernel.evaluate("x") == round_ - 1, where
        if not mirrors.is_mount() and name == "unmounted":
            subprocess.run([*SMALL_DISK, mirrors], check=True)
    kernel.shutdown()
