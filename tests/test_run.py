"""`baton run`: notebooks and scripts as jobs, for a user who configured nothing, and in a course."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end import Place, Service, wait_until
from end_to_end.disks import Disk
from end_to_end.runs import HELD, Runs, fetched, held, printed, read, row_of, wait_for_log, write
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell

SHOWS_EVERYTHING = [
    "import sys\nfrom IPython.display import HTML, Markdown, clear_output, display, update_display",
    "print('a')\nprint('b', file=sys.stderr)\nprint('c')\n'value'",
    "for step in range(3):\n    print(f'{step} %', end='\\r')\nprint()",
    "display(HTML('<b>one</b>\\n<i>two</i>'), Markdown('*three*'))\n4; 5;",
    "handle = display('first', display_id='shared')\nprint('between')\nhandle.update('second')",
    "update_display('third', display_id='shared')\nclear_output()\ndisplay('again', display_id='shared')",
    "print('gone')\nclear_output(wait=True)\nprint('stays')\nclear_output(wait=True)",
    "display({'application/json': {'a': [1, None]}, 'text/plain': 'json'}, raw=True, metadata={'x': {'y': 1}})",
    "import matplotlib\nmatplotlib.use('module://matplotlib_inline.backend_inline')\n"
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "%%time_is_not_compared\n1",
    "_, Out[2], In[1][:10]",
    "def f():\n    raise ValueError('no\\nmore')\nf()",
    "print?",
    "!echo from the shell",
]


@pytest.fixture
def run(place: Place, tmp_path: Path) -> Runs:
    return Runs(place, tmp_path)


# ---- notebooks


def test_outputs_are_those_that_a_front_end_stores(run: Runs, tmp_path: Path) -> None:
    tagged = [new_code_cell(cell, metadata={"tags": ["raises-exception"]}) for cell in SHOWS_EVERYTHING]
    file = write(tmp_path / "all.ipynb", new_markdown_cell("# Title"), *tagged)
    expected = read(file)
    patience = {"startup_timeout": 120, "iopub_timeout": 120}
    NotebookClient(expected, kernel_name="python3", coalesce_streams=True, **patience).execute()
    said = run("all.ipynb", "-o", "ran.ipynb")
    assert said.returncode == 0, said.stderr
    assert said.stdout == "ran.ipynb\n"
    ran = read(tmp_path / "ran.ipynb")
    for cell, own in zip(expected.cells, ran.cells, strict=True):
        assert own.get("outputs") == cell.get("outputs"), cell.source
        assert own.get("execution_count") == cell.get("execution_count")
        assert (own.source, own.id) == (cell.source, cell.id)
    assert ran.metadata.mine == {"kept": True}
    assert ran.metadata.baton.outcome == "ok"
    assert read(file).cells[1].get("outputs") == []


def test_parameters_come_after_the_cell_that_is_tagged(run: Runs, tmp_path: Path) -> None:
    defaults = new_code_cell("epochs, name = 1, 'a'", metadata={"tags": ["parameters"]})
    write(tmp_path / "train.ipynb", defaults, "print(epochs, repr(name), extra)")
    said = run("train.ipynb", "-p", "epochs=5", "--parameter", "name=resnet", "-p", 'extra={"x": [true, null]}')
    assert said.returncode == 0, said.stderr
    ran = read(tmp_path / "train.out.ipynb")
    assert printed(ran.cells[2]) == "5 'resnet' {'x': [True, None]}\n"
    assert ran.cells[1].metadata.tags == ["injected-parameters"]
    again = run("train.out.ipynb", "-p", "epochs=7", "-p", "extra=1", "-o", "train.out.ipynb")
    assert again.returncode == 0, again.stderr
    ran = read(tmp_path / "train.out.ipynb")
    assert printed(ran.cells[2]) == "7 'a' 1\n"
    assert len(ran.cells) == 3


def test_the_first_error_ends_the_run(run: Runs, tmp_path: Path) -> None:
    write(tmp_path / "bad.ipynb", "print('before')", "def f():\n    return 1 / 0\nf()", "print('never')")
    said = run("bad.ipynb")
    assert said.returncode == 1
    assert "ZeroDivisionError" in said.stderr
    assert said.stderr.endswith("Cell 2: ZeroDivisionError: division by zero\nThe notebook so far: bad.out.ipynb\n")
    ran = read(tmp_path / "bad.out.ipynb")
    assert printed(ran.cells[0]) == "before\n"
    assert ran.cells[1].outputs[0].ename == "ZeroDivisionError"
    assert ran.cells[2].outputs == []
    told = json.loads(run("bad.ipynb", "--json").stdout)
    assert (told["ended"]["outcome"], told["ended"]["cell"]) == ("failed", 2)
    assert run(told["job"][-8:], command="explain").returncode == 0


def test_marks_of_gpu_cells_mean_nothing_in_a_job(run: Runs, tmp_path: Path) -> None:
    write(
        tmp_path / "marked.ipynb",
        "import torch\nx = torch.ones(2, device='cuda')",
        "%%gpu --timeout 5m\nx += 1\nprint(x.device.type, x.tolist())",
        "# first\n\n%%cpu\nprint(x.sum().item())",
        "%gpu_status",
        "from baton import gpu\n@gpu\ndef double(y):\n    return 2 * y\nwith gpu:\n    print(double(4))",
        "# trains\n%%gpu --background job\ny = 5\ny * 2",
        "print(job.result(), job)\n%gpu_jobs",
        "%%gpu\n1 / 0",
    )
    said = run("marked.ipynb")
    assert said.returncode == 1
    ran = read(tmp_path / "marked.out.ipynb")
    assert printed(ran.cells[1]) == "cuda [2.0, 2.0]\n"
    assert printed(ran.cells[2]) == "4.0\n"
    assert printed(ran.cells[3]).startswith("This notebook runs as a job")
    assert printed(ran.cells[4]) == "8\n"
    assert printed(ran.cells[6]).startswith("10 <background cell In[6]: done>\nThis notebook runs as a job")
    assert "----> 2 1 / 0" in strip_colours("\n".join(ran.cells[7].outputs[0].traceback))


def strip_colours(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_large_outputs_and_many_cells_arrive_whole(run: Runs, tmp_path: Path) -> None:
    numbers = [f"x = {number}\nprint(x)" for number in range(200)]
    large = ["display({'text/plain': 'x' * 20_000_000}, raw=True)", "for i in range(100_000): print(i)"]
    write(tmp_path / "large.ipynb", *numbers, *large)
    said = run("large.ipynb")
    assert said.returncode == 0, said.stderr
    *cells, display, lines = read(tmp_path / "large.out.ipynb").cells
    assert [printed(cell) for cell in cells] == [f"{number}\n" for number in range(200)]
    assert len(display.outputs[0].data["text/plain"]) == 20_000_000
    assert printed(lines) == "".join(f"{number}\n" for number in range(100_000))


def test_a_kernel_that_ends(run: Runs, tmp_path: Path) -> None:
    write(tmp_path / "quits.ipynb", "print('a')", "exit()", "print('never')")
    assert run("quits.ipynb").returncode == 0
    assert read(tmp_path / "quits.out.ipynb").cells[2].execution_count is None
    write(tmp_path / "dies.ipynb", "print('a')", "import os; os._exit(7)", "print('never')")
    said = run("dies.ipynb")
    assert said.returncode == 1
    assert "The notebook's kernel ended (exit status 7)" in said.stderr
    assert printed(read(tmp_path / "dies.out.ipynb").cells[0]) == "a\n"


def test_what_cannot_run_is_told_before(run: Runs, tmp_path: Path) -> None:
    (tmp_path / "text.ipynb").write_text("no notebook")
    write(tmp_path / "good.ipynb", "1")
    os.mkfifo(tmp_path / "pipe")
    for arguments, code, told in [
        (["missing.ipynb"], 3, "Failed to read missing.ipynb"),
        (["text.ipynb"], 3, "text.ipynb is not a notebook"),
        (["missing.py"], 3, "There is no script missing.py"),
        (["good.ipynb", "an argument"], 2, "A notebook takes no arguments"),
        (["good.ipynb", "-p", "5"], 2, "`5` is not a parameter"),
        (["good.ipynb", "-o", "no/such/folder.ipynb"], 3, "no/such/folder.ipynb cannot be written"),
        (["--detach", "good.ipynb", "-o", "no/such/folder.ipynb"], 3, "no/such/folder.ipynb cannot be written"),
        (["good.ipynb", "-o", "pipe"], 3, "pipe cannot be written"),
        (["good.ipynb", "--timeout", "soon"], 2, "that is not a duration"),
    ]:
        said = run(*arguments)
        assert said.returncode == code
        assert told in said.stderr, said.stderr


def test_a_run_that_does_not_begin_leaves_the_former_notebook(run: Runs, tmp_path: Path) -> None:
    write(tmp_path / "good.ipynb", "print('result')")
    assert run("good.ipynb").returncode == 0
    before = (tmp_path / "good.out.ipynb").read_bytes()
    said = run("good.ipynb", "--gpu", "h100")
    assert said.returncode == 3
    assert "NoGpu: This run asks for the GPU h100, but the connected workers have no GPU\nhint: leave --gpu out" in (
        said.stderr
    )
    assert "Your variables" not in said.stderr
    assert "notebook so far" not in said.stderr
    assert (tmp_path / "good.out.ipynb").read_bytes() == before


def test_a_notebook_that_cannot_be_written_is_fetched_to_another_place(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, sign = held(place, "held")
    write(tmp_path / "good.ipynb", cell, "print('result')")
    folder = tmp_path / "results"
    folder.mkdir()
    process = run.begin("good.ipynb", "-o", "results/good.ipynb", "--json")
    wait_until((folder / "good.ipynb").exists, "the run has begun")
    folder.rename(tmp_path / "moved")
    sign.touch()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3
    job = json.loads(output)
    assert "Failed to write results/good.ipynb" in job["ended"]["error"]
    assert "hint: `baton fetch" in job["ended"]["error"]
    assert run(job["job"], "-o", "fetched.ipynb", command="fetch").returncode == 3
    assert printed(read(tmp_path / "fetched.ipynb").cells[1]) == "result\n"


def test_cells_marked_to_be_skipped_do_not_run(run: Runs, tmp_path: Path) -> None:
    skipped = new_code_cell("print('skipped')", metadata={"tags": ["skip-execution"]})
    write(tmp_path / "skips.ipynb", "print('a')", skipped, "print('b')")
    assert run("skips.ipynb").returncode == 0
    assert [printed(cell) for cell in read(tmp_path / "skips.out.ipynb").cells] == ["a\n", "", "b\n"]


def test_a_run_goes_on_when_nobody_reads_its_output(run: Runs, tmp_path: Path) -> None:
    write(tmp_path / "train.ipynb", "print(seed)")
    reader, writer = os.pipe()
    os.close(reader)
    process = run.begin("train.ipynb", "-p", "seed=1..3", stdout=writer, stderr=writer)
    os.close(writer)
    assert process.wait(timeout=300) == 0
    for seed in (1, 2, 3):
        assert printed(read(tmp_path / f"train.seed={seed}.out.ipynb").cells[-1]) == f"{seed}\n"


@pytest.mark.parametrize("full", ["stdout", "stderr"])
def test_output_of_a_script_that_cannot_be_written_is_an_error(run: Runs, tmp_path: Path, full: str) -> None:
    (tmp_path / "train.py").write_text(f"import sys\nprint('result', file=sys.{full})\n")
    with open("/dev/full", "w") as full_disk:
        script = run.begin("train.py", **{full: full_disk.fileno()})
        _, said = script.communicate(timeout=300)
    assert script.returncode == 3
    if full == "stdout":
        assert "Error: The output could not be written\n  because: No space left on device" in said


def test_a_time_limit(run: Runs, tmp_path: Path) -> None:
    write(tmp_path / "long.ipynb", "print('begun')", "import time\nwhile True:\n    time.sleep(0.1)")
    said = run("long.ipynb", "--timeout", "30s")  # long enough for the kernel to start on any machine
    assert said.returncode == 124
    assert "Stopped at the time limit of the run" in said.stderr
    assert printed(read(tmp_path / "long.out.ipynb").cells[0]) == "begun\n"


# ---- scripts


def test_a_script_runs_as_python_runs_it(run: Runs, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "helper.py").write_text("value = 42\n")
    (folder / "glob.py").write_text("raise ImportError('the standard library asks for the wrong file')\n")
    (folder / "script.py").write_text(
        "import helper, os, pickle, sys, __main__\n"
        "from baton import gpu\n"
        "with gpu: pass\n"
        "class Thing: pass\n"
        "print(sys.argv, __name__, helper.value, os.getcwd() == sys.argv[2], os.path.relpath(__file__))\n"
        "print(type(pickle.loads(pickle.dumps(Thing()))).__module__, sorted(vars(__main__))[:1])\n"
        "print('to stderr', file=sys.stderr)\n"
        "open('written.txt', 'w').write('here')\n"
        "raise SystemExit(int(sys.argv[3]))\n"
    )
    arguments = ["code/script.py", "--json", str(tmp_path), "0", "-o", "x"]
    said = run(*arguments)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[0] == f"{arguments} __main__ 42 True code/script.py"
    assert said.stdout.splitlines()[1] == "__main__ ['Thing']"
    assert "to stderr\n" in said.stderr
    assert (tmp_path / "written.txt").read_text() == "here"
    assert run("code/script.py", "--option", str(tmp_path), "5").returncode == 5


def test_a_scripts_traceback_is_its_own(run: Runs, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def f():\n    raise ValueError('no')\nf()\n")
    (tmp_path / "wrong.py").write_text("x = = 1\n")
    said = run("fails.py")
    plain = subprocess.run([sys.executable, "fails.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == plain.returncode == 1
    assert said.stderr == f"{plain.stderr}fails.py ended with status 1\n"
    assert f'File "{tmp_path}/wrong.py", line 1' in run("wrong.py").stderr


def test_a_script_that_a_signal_ends_has_the_status_that_a_shell_gives_it(run: Runs, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import os, sys\nos.kill(os.getpid(), int(sys.argv[1]))\n")
    said = run("ends.py", "9")
    assert (said.returncode, said.stderr) == (137, "ends.py was killed; often the machine's memory ran out\n")
    said = run("ends.py", "11")
    assert (said.returncode, said.stderr) == (139, "ends.py was ended by signal 11\n")


# ---- in the background


def test_a_detached_run_is_followed_and_fetched(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, sign = held(place, "detached")
    write(tmp_path / "long.ipynb", "print('first')", cell, "print('last')\n7 * 6")
    job = run.detach("long.ipynb")
    wait_until(lambda: printed(fetched(run, job, "now.ipynb").cells[1]) == "begun\n", "what it has shown is there")
    assert "this is the notebook so far" in run(job, command="fetch").stderr
    (jobs,) = [
        row
        for row in json.loads(run("--json", command="jobs").stdout)
        if row["job"].replace("-", "") == job.replace("-", "")
    ]
    assert (jobs["state"], jobs["notebook"]) == ("started", "long.ipynb")
    assert (row_of(run, job)["notebook"], row_of(run, job)["kind"]) == ("long.ipynb", "notebook")
    sign.touch()
    followed = run("--follow", job, command="logs")
    assert followed.returncode == 0
    assert followed.stdout.index("first") < followed.stdout.index("begun") < followed.stdout.index("last")
    assert "42\n" in followed.stdout
    assert run(job, command="fetch").returncode == 0
    assert [run("123456", command=command).returncode for command in ("logs", "fetch")] == [3, 3]
    assert printed(read(tmp_path / "long.out.ipynb").cells[2]) == "last\n"


def test_a_detached_run_is_cancelled_by_its_job(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, _ = held(place, "cancelled")
    write(tmp_path / "long.ipynb", cell, "print('never')")
    job = run.detach("long.ipynb")
    wait_for_log(run, job, "begun")
    assert run(job[-8:], command="cancel").returncode == 0
    followed = run("-f", job, command="logs")
    assert followed.returncode == 130
    ran = read(tmp_path / "long.out.ipynb")
    assert printed(ran.cells[0]) == "begun\n"
    assert ran.metadata.baton.outcome == "interrupted"


def test_a_detached_run_is_cancelled_before_it_is_submitted(place: Place, tmp_path: Path) -> None:
    """Its broker does not answer, so it is not submitted, however late it is cancelled."""
    run = Runs(place, tmp_path, BATON_BROKER_ADDRESS=f"unix:{tmp_path}/away.sock")
    write(tmp_path / "long.ipynb", "print('never')")
    job = run.detach("long.ipynb")
    said = run(job, command="cancel")
    assert (said.returncode, said.stderr) == (0, "The run that was started here ends\n")
    assert run("-f", job, command="logs").returncode == 130
    assert not (tmp_path / "long.out.ipynb").exists()


def test_a_run_that_was_killed_says_so_and_leaves_what_it_had(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, _ = held(place, "killed")
    write(tmp_path / "long.ipynb", "print('kept')", cell)
    job = run.detach("long.ipynb")
    output = tmp_path / "long.out.ipynb"
    wait_until(lambda: output.exists() and printed(read(output).cells[0]) == "kept\n", "what it has shown is written")
    place.process("baton", "run", f"--in-background={job}").kill()
    followed = run("-f", job, command="logs")
    assert followed.returncode == 3
    assert "The process of the run was killed" in followed.stderr
    output.unlink()
    assert run(job, command="fetch").returncode == 3
    assert printed(read(output).cells[0]) == "kept\n"
    wait_until(lambda: row_of(run, job)["state"] == "finished", "its job has ended, too")


def test_ctrl_c_stops_the_cell_and_writes_the_notebook(run: Runs, place: Place, tmp_path: Path) -> None:
    cell, _ = held(place, "interrupted")
    write(tmp_path / "long.ipynb", cell, "print('never')")
    running = run.begin("long.ipynb")
    output = tmp_path / "long.out.ipynb"
    wait_until(lambda: output.exists() and printed(read(output).cells[0]) == "begun\n", "the cell runs")
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=300)
    assert running.returncode == 130, stderr
    assert "The run was interrupted" in stderr
    assert read(output).metadata.baton.outcome == "interrupted"


# ---- on a worker of a course, in a sandbox


@pytest.fixture
def course(service: Service, tmp_path: Path) -> tuple[Service, Runs]:
    service.start_broker()
    service.start_worker()
    folder = service.place.work
    return service, Runs(service.place, folder, **service.access)


def test_files_come_and_go(course: tuple[Service, Runs]) -> None:
    _, run = course
    (run.folder / "data.txt").write_text("from home")
    (run.folder / "own.py").write_text("def double(x):\n    return 2 * x\n")
    write(
        run.folder / "files.ipynb",
        "import own\nprint(open('data.txt').read(), own.double(4))",
        "!cat data.txt && echo made by a child > child.txt",
        "open('result.txt', 'w').write('back')",
    )
    said = run("files.ipynb")
    assert said.returncode == 0, said.stderr
    ran = read(run.folder / "files.out.ipynb")
    assert printed(ran.cells[0]) == "from home 8\n"
    assert "from home" in printed(ran.cells[1])
    assert (run.folder / "result.txt").read_text() == "back"
    assert (run.folder / "child.txt").read_text() == "made by a child\n"


def test_a_cell_that_saves_when_it_is_stopped_returns_what_it_saved(service: Service, tmp_path: Path) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    run = Runs(service.place, tmp_path, **service.access)
    waits = "import time\nprint('begun', flush=True)\ntry:\n    time.sleep(600)\n"
    saves = "except KeyboardInterrupt:\n    print('saves')\n    open('checkpoint.txt', 'w').write('saved')"
    write(tmp_path / "train.ipynb", waits + saves, "print('never')")
    running = run.begin("train.ipynb")
    output = tmp_path / "train.out.ipynb"
    wait_until(lambda: output.exists() and printed(read(output).cells[0]) == "begun\n", "the cell runs")
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=300)
    assert running.returncode == 130, stderr
    assert (tmp_path / "checkpoint.txt").read_text() == "saved"
    assert [printed(cell) for cell in read(output).cells] == ["begun\nsaves\n", ""]


def test_a_script_that_the_worker_cannot_read_is_not_said_to_have_failed(service: Service) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    folder = service.place.work / "results"
    folder.mkdir()
    (service.place.work / "outside.py").write_text("print(1)\n")
    said = Runs(service.place, folder, **service.access)("../outside.py")
    assert said.returncode == 3, said.stderr
    assert "../outside.py cannot be read on the worker: No such file or directory\nhint: " in said.stderr
    assert "Your variables" not in said.stderr


def test_a_run_fails_if_its_files_cannot_be_written_here(service: Service, tmp_path: Path) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror")
    run = Runs(service.place, tmp_path, **service.access)
    (tmp_path / "train.py").write_text("open('model.bin', 'w').write('trained')\nprint('done')")
    tmp_path.chmod(0o500)
    said = run("train.py")
    tmp_path.chmod(0o700)
    assert (said.returncode, said.stdout) == (3, "done\n")
    assert "FilesLost: The program ran, but the files that it wrote are lost: they could not be written" in said.stderr
    assert "Permission denied" in said.stderr
    assert "hint: make room, or change the permissions of the folder, then run it again" in said.stderr


def test_a_run_fails_if_its_files_are_too_large_to_return(service: Service, tmp_path: Path) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_FILES="mirror", BATON_WORKER_FILES_LIMIT="1MB")
    run = Runs(service.place, tmp_path, **service.access)
    write(tmp_path / "train.ipynb", "open('log.txt', 'w').write('fits')\nopen('model.bin', 'wb').write(bytes(3 << 20))")
    said = run("train.ipynb")
    assert said.returncode == 3
    assert "FilesLost: The program ran, but one file that it wrote is lost. A warning in its output" in said.stderr
    assert (tmp_path / "log.txt").read_text() == "fits"
    assert not (tmp_path / "model.bin").exists()
    ran = read(tmp_path / "train.out.ipynb")
    assert "warning: 'model.bin' (3 MiB) stays on the GPU machine" in printed(ran.cells[0])
    assert ran.metadata.baton.outcome == "service_failed"


@pytest.mark.root("fill a disk")
@pytest.mark.parametrize("printed", [0, 100_000])
def test_a_run_whose_disk_is_full_tells_how_it_ended(
    course: tuple[Service, Runs], tmp_path: Path, printed: int
) -> None:
    service, run = course
    cell, sign = held(service.place, f"full-{printed}")
    (run.folder / "train.py").write_text(cell + f"\nprint('x' * {printed})")
    disk = Disk(tmp_path / "state", "2m")
    try:
        run = Runs(service.place, run.folder, XDG_STATE_HOME=str(disk.folder), **service.access)
        job = run.detach("train.py")
        wait_for_log(run, job, "begun")
        disk.fill()
        sign.touch()
        said = run("-f", job, command="logs")
        if printed:
            assert said.returncode == 3
            assert "The log lacks some of the output: No space left on device" in said.stderr
        else:
            assert said.returncode == 0, said.stderr
    finally:
        disk.close()


def test_who_stopped_a_run_is_said(course: tuple[Service, Runs], tmp_path: Path) -> None:
    service, run = course
    cell, _ = held(service.place, "stopped")
    write(run.folder / "long.ipynb", cell)
    running = run.begin("long.ipynb")
    staff = Runs(service.place, run.folder, XDG_STATE_HOME=str(tmp_path), **service.access)
    [job] = wait_until(lambda: json.loads(staff("--json", "--state", "started", command="jobs").stdout), "it runs")
    assert staff(job["job"], "--reason", "it takes too long", command="cancel").returncode == 0
    _, stderr = running.communicate(timeout=300)
    assert running.returncode == 130
    line = "Your course staff stopped this run (it takes too long)\n"
    assert line in stderr
    assert line in run(job["job"], command="logs").stderr


def test_each_cell_runs_once_though_the_broker_is_killed_again_and_again(course: tuple[Service, Runs]) -> None:
    service, run = course
    signs = service.place.signs
    cells = 12
    turns = (HELD.format(sign=signs / f"turn-{n}") + f"\nprint({n})" for n in range(cells))
    write(run.folder / "long.ipynb", *turns)
    running = run.begin("long.ipynb")
    output = run.folder / "long.out.ipynb"
    for n in range(cells):
        if n % 2 == 1:
            service.kill("broker")
            service.start_broker()
        (signs / f"turn-{n}").touch()
    _, stderr = running.communicate(timeout=300)
    assert running.returncode == 0, stderr
    ran = read(output)
    assert [printed(cell) for cell in ran.cells] == [f"begun\n{n}\n" for n in range(cells)]
    assert [cell.execution_count for cell in ran.cells] == list(range(1, cells + 1))


def test_a_worker_that_dies_is_named(course: tuple[Service, Runs]) -> None:
    service, run = course
    cell, _ = held(service.place, "worker")
    write(run.folder / "long.ipynb", "print('kept')", cell)
    running = run.begin("long.ipynb")
    output = run.folder / "long.out.ipynb"
    wait_until(lambda: output.exists() and printed(read(output).cells[0]) == "kept\n", "the cell runs")
    service.kill("worker-0")
    _, stderr = running.communicate(timeout=300)
    assert running.returncode == 3, stderr
    assert "worker" in stderr.lower()
    assert printed(read(output).cells[0]) == "kept\n"
