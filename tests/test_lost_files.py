"""What happens to the files of a notebook's folder when something fails, and how they are restored."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
from end_to_end import Kernel, Service
from end_to_end.service import limit_descriptors, run_binary

# ---- a mirror that is lost


def mirror_of(service: Service) -> Path:
    """The only mirror."""
    (mirror,) = service.place.find("mirror/work")
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
    assert "nothing shows that the cell deleted them: '10', '11', '12' and 1 more. They remain here" in result.stderr
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


# ---- changes that cannot be applied here


def run_without_folder(service: Service, kernel: Kernel, code: str) -> None:
    """Runs a cell and takes the notebook's folder away before the cell ends."""
    work = service.place.work
    aside = work.with_name("aside")
    cell = kernel.begin(f"%%gpu\n{code}\ninput()")
    cell.wait_for_question()
    work.rename(aside)
    try:
        kernel.client.input("go")
        result = cell.finish().ok()
    finally:
        aside.rename(work)
    assert "The cell's file changes could not be applied here" in result.stderr
    assert "The next %%gpu cell tries again" in result.stderr


def test_changes_that_could_not_be_applied_arrive_with_the_next_cell(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    work = service.place.work
    for name in ("old", "gone"):
        (work / name).write_text(name)
    kernel.gpu("x = 1").ok()
    before = contents(work)
    run_without_folder(
        service,
        kernel,
        "import os\nx = 2\nopen('new', 'w').write('new')\nopen('old', 'a').write('er')\nos.remove('gone')",
    )
    assert kernel.evaluate("x") == 2
    assert contents(work) == before
    assert kernel.gpu("open('old', 'a').write('!')").ok().stderr == ""
    del before["gone"]
    assert contents(work) == {**before, "old": "older!", "new": "new"}
    assert kernel.gpu("open('old', 'a').write('!')").ok().stderr == ""
    assert (work / "old").read_text() == "older!!"


def test_changes_that_are_lost_with_their_session_are_named(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    kernel = service.kernel(new_kernel)
    kernel.gpu("x = 1").ok()
    run_without_folder(service, kernel, "open('new', 'w').write('new')")
    kernel.run("%gpu_reset").ok()
    said = kernel.gpu("x").ok().stderr
    assert "are lost: they could not be applied here before the session ended ('new')" in said
    assert not (service.place.work / "new").exists()
    assert kernel.gpu("x").ok().stderr == ""


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


# ---- files that a cell deleted or replaced


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
    expected = "warning: The cell deleted 119 files in the notebook's folder; run `baton files restore`"
    assert many.stderr.startswith(expected)
    assert contents(work) == {"results.txt": "after"}
    # Cells of either kind see none of it.
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
    assert "its changes could not be returned" in result.plain_traceback
    assert "Changes to files are not undone" not in result.stderr
    assert contents(work) == before
    assert "No %%gpu cell" in baton_files(service, "list")


# ---- "as before the cell", in a mirror and in the notebook's folder itself

REFUSES = (
    "import os\nhome = os.getpid()\n"
    "class Refuses:\n    def __init__(self): self.x = 1\n"
    "    def __setstate__(self, state):\n        if os.getpid() == home: raise SystemExit('not here')\n"
)
REFUSED = "made = Refuses()\n"
STAY = "warning: Changes to files are not undone: the cell worked in the notebook's folder itself"
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
    killed = cell.finish()
    assert killed.error is not None
    check("killed", killed.stderr)


# ---- random cells, and faults


def act(random: Random, number: int) -> str:
    """A line of a cell that does one thing to one file or folder."""
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
    """Causes the fault; the returned function ends it."""
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
        return limit_descriptors(worker, worker.num_fds())
    elif name == "cleaned":
        for path in mirror.rglob("*"):
            if path.is_file():
                path.unlink()
    return lambda: None


@contextlib.contextmanager
def disk_of_its_own(folder: Path) -> Iterator[None]:
    subprocess.run([*SMALL_DISK, folder], check=True)
    yield
    while folder.is_mount():
        subprocess.run(["umount", "-l", folder], check=True)


SMALL_DISK = ["mount", "-t", "tmpfs", "-o", "size=4m", "none"]
OF_ITS_DISK = ["covered", "unmounted", "full"]
FAULTS = [
    *("nothing", "gone", "replaced", "cleaned"),
    *(pytest.param(name, marks=pytest.mark.root("mount file systems")) for name in OF_ITS_DISK),
    pytest.param("without descriptors", marks=pytest.mark.root("count the descriptors of a hardened process")),
]


@pytest.mark.parametrize("name", FAULTS)
def test_random_cells_do_what_they_did_or_nothing(
    service: Service, new_kernel: Callable[..., Kernel], tmp_path: Path, name: str
) -> None:
    mirrors = service.place.folder / "mirrors"
    mirrors.mkdir()
    with disk_of_its_own(mirrors) if name in OF_ITS_DISK else contextlib.nullcontext():
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
            result = cell.finish()
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
