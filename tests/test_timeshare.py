"""Notebooks that share one GPU: a driver in host memory, with a card that is too small for all of them."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import Kernel, Service
from end_to_end.gpu_programs import gpu_program
from end_to_end.restricted import WITHOUT_USER_NAMESPACES
from end_to_end.service import BINARY, run_binary
from end_to_end.waiting import wait_until

CARD_MIB = 64

# A minimal GPU library.
LIBRARY = '''
"""Numbers on a GPU."""
import ctypes
import functools

module = ctypes.c_void_p()


@functools.cache
def cuda():
    """Opened where it is used: the notebook has none."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuModuleLoadData(ctypes.byref(module), b"image")
    return driver


def call(name, *arguments):
    code = getattr(cuda(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name}: {code}")


def word(value):
    return ctypes.c_uint64(value)


def allocate(count):
    address = word(0)
    call("cuMemAlloc_v2", ctypes.byref(address), word(8 * count))
    call("cuMemsetD8_v2", address, 0, word(8 * count))
    return address.value


def launch(name, *values):
    cuda()
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    words = [word(value) for value in values]
    addresses = (ctypes.c_void_p * 4)(*[ctypes.addressof(one) for one in words])
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, addresses, None)


def memory():
    free, total = word(0), word(0)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def values(address, count):
    numbers = (ctypes.c_uint64 * count)()
    call("cuMemcpyDtoH_v2", numbers, word(address), word(8 * count))
    return set(numbers)
'''


@pytest.fixture
def cards() -> list[int]:
    """The memory of each card, in MiB."""
    return [CARD_MIB]


@pytest.fixture
def machine(service: Service, cards: list[int]) -> Path:
    """The folder of a machine's cards. Sessions write these files, so they are in the notebooks' folder."""
    driver, folder = driver_of(service), service.place.work / "gpu"
    driver.mkdir()
    folder.mkdir()
    subprocess.run([gpu_program("gpu-machine"), driver, *(str(mebibytes << 20) for mebibytes in cards)], check=True)
    for card in list(driver.glob("card*")):
        card.symlink_to(card.rename(folder / card.name))  # the driver's monitoring looks for it here
    return folder


def driver_of(service: Service) -> Path:
    return service.place.folder / "machine"


# Offsets in the card's file.
LOST, SLICES, CONTEXT, HELD, PINNED = 3, 4, 5, 488, 492
GPU_IS_LOST = 15

CANCEL_GRACE_S = 1


def put(machine: Path, place: int, number: int) -> None:
    with (machine / "card").open("r+b") as card:
        card.seek(8 * place)
        card.write(struct.pack("<Q", number))


def look(machine: Path, place: int) -> int:
    card = (machine / "card").read_bytes()
    (number,) = struct.unpack_from("<Q", card, 8 * place)
    return int(number)


def start_worker(service: Service, machine: Path, **environment: str) -> str:
    driver = {"LD_LIBRARY_PATH": str(driver_of(service)), "BATON_TEST_GPU": str(machine / "card")}
    sandbox = environment.setdefault("BATON_WORKER_SANDBOX", "none")
    prefix = WITHOUT_USER_NAMESPACES if sandbox == "landlock" else []
    return service.start_worker(
        slots=4, prefix=prefix, BATON_WORKER_CANCEL_GRACE=f"{CANCEL_GRACE_S}s", **driver, **environment
    )


@pytest.fixture
def start() -> str:
    """The sandbox of sessions, and how they start. Most tests have no sandbox: a session in one has other process ids
    than the worker, and this driver finds the processes whose contexts it moves by the ids that they have themselves.
    """
    return "none-forked"


@pytest.fixture
def mode() -> str:
    """How sessions share the GPU."""
    return "timeshare"


@pytest.fixture
def faults() -> str:
    """Faults in the driver."""
    return ""


@pytest.fixture
def notebook(
    service: Service, machine: Path, mode: str, faults: str, start: str, new_kernel: Callable[..., Kernel]
) -> Callable[[], Kernel]:
    put(machine, SLICES, 1)
    service.start_broker()
    sandbox, _, way = start.partition("-")
    isolation = {"BATON_WORKER_SANDBOX": sandbox, "BATON_WORKER_WARM_STARTS": str(way == "forked").lower()}
    start_worker(service, machine, BATON_WORKER_GPU_MODE=mode, BATON_TEST_GPU_FAULTS=faults, **isolation)
    (machine / "card.py").write_text(LIBRARY)
    return lambda: service.kernel(new_kernel, folder=machine)


IN_ANY_SANDBOX = pytest.mark.parametrize(
    "start", ["none-forked", "bubblewrap-forked", "bubblewrap-fresh", "landlock-forked"]
)


@IN_ANY_SANDBOX
def test_each_notebook_has_most_of_the_card_and_finds_it_as_it_left_it(notebook: Callable[[], Kernel]) -> None:
    kernels = [notebook() for _ in range(2)]
    count = (40 << 20) // 8
    for number, kernel in enumerate(kernels, 1):
        kernel.gpu(
            f"import card\naddress = card.allocate({count})\ncard.launch('add', address, {count}, {number})"
        ).ok()
    for number, kernel in enumerate(kernels, 1):
        result = kernel.gpu(f"print(card.values(address, {count}))").ok()
        assert result.stdout == f"{{{number}}}\n"
        assert "held the GPU for" in result.notices[-1]


def test_memory_has_its_place_on_the_host_before_it_leaves_for_the_first_time(
    notebook: Callable[[], Kernel], machine: Path
) -> None:
    kernels = [notebook() for _ in range(2)]
    count = (40 << 20) // 8
    before = look(machine, PINNED)
    for kernel in kernels:
        kernel.gpu(f"import card\naddress = card.allocate({count})").ok()
    # The first one's has left, and the second one's will.
    wait_until(lambda: look(machine, PINNED) - before == 80 << 20, "both have their places")
    for kernel in kernels:
        assert kernel.gpu(f"print(card.values(address, {count}))").ok().stdout == "{0}\n"


SOCKETS = """
import os, socket
own = os.environ["BATON_GPU_SOCKET"]
with socket.socket(socket.AF_UNIX) as client:
    client.connect(own)

def refused(path):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
    except OSError as error:
        return type(error).__name__
"""


@pytest.mark.parametrize("start", ["bubblewrap-forked", "bubblewrap-fresh"])
def test_each_session_has_a_socket_of_its_own(notebook: Callable[[], Kernel]) -> None:
    first, second = notebook(), notebook()
    first.gpu(SOCKETS).ok()
    second.gpu(SOCKETS).ok()
    others = first.evaluate("own")
    assert others != second.evaluate("own")
    assert second.gpu(f"print(refused({others!r}))").ok().stdout == "FileNotFoundError\n"


FIRST, SECOND = (f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(2))
SHOW_GPU = "import os\nprint(os.environ.get('CUDA_VISIBLE_DEVICES'))"


@IN_ANY_SANDBOX
@pytest.mark.parametrize("cards", [[CARD_MIB, CARD_MIB]])
def test_a_session_has_one_of_several_gpus_and_waits_for_nobody_on_another(
    service: Service, notebook: Callable[[], Kernel]
) -> None:
    assert "Sessions time-share each of 2 GPUs" in service.log("worker-0")
    first, second = notebook(), notebook()
    assert first.gpu(SHOW_GPU).ok().stdout == f"{FIRST}\n"
    endless = first.begin(
        "%%gpu\nimport card\ncard.launch('forever')\nprint('begun')\ncard.call('cuCtxSynchronize')",
        stop_on_error=False,
    )
    endless.wait_for_text("begun")
    other = second.gpu(f"import card\nprint(card.values(card.allocate(8), 8))\n{SHOW_GPU}").ok()
    assert other.stdout == f"{{0}}\n{SECOND}\n"
    assert not endless.done
    first.interrupt()
    assert endless.finish().reply["status"] == "error"


@pytest.mark.parametrize("cards", [[CARD_MIB, 4]])
def test_a_gpu_on_which_turns_fail_is_left_out(service: Service, notebook: Callable[[], Kernel]) -> None:
    said = f"Sessions do not time-share {SECOND}, because two test programs failed: cuMemAlloc answered 2"
    assert said in service.log("worker-0")
    for kernel in (notebook(), notebook()):
        assert kernel.gpu(SHOW_GPU).ok().stdout == f"{FIRST}\n"


SAME, NEW = "c_void_p(256)", "c_void_p(None)"


@pytest.mark.parametrize(
    ("faults", "session"),
    [
        ("", SAME),
        ("cuCheckpointProcessLock:1:801", NEW),
        # The first call belongs to the trial.
        ("cuCheckpointProcessCheckpoint:2:801", NEW),
        ("cuCheckpointProcessRestore:2:999", NEW),
    ],
    ids=["it sleeps", "driver without checkpoints", "it cannot sleep", "it cannot wake"],
)
def test_a_notebook_without_a_cell_makes_room_when_contexts_fill_the_card(
    notebook: Callable[[], Kernel], machine: Path, faults: str, session: str
) -> None:
    put(machine, CONTEXT, 12 << 20)
    kernels = [notebook() for _ in range(3)]
    for kernel in kernels[:2]:
        kernel.gpu("import card\nkept = ['as it was']\naddress = card.allocate(1 << 19)").ok()
    # Beside three contexts, only 28 MiB are free, however much of the others' memory moves.
    count = (36 << 20) // 8
    large = kernels[2].gpu(f"import card\naddress = card.allocate({count})\ncard.launch('add', address, {count}, 7)")
    large.ok()
    assert kernels[2].gpu(f"print(card.values(address, {count}))").ok().stdout == "{7}\n"
    # The session of the most recent cell was not touched.
    assert kernels[1].gpu("print(card.values(address, 1 << 19), kept)").ok().stdout == "{0} ['as it was']\n"
    first = kernels[0].gpu("print(card.module, kept)").ok()
    assert first.stdout == f"{session} ['as it was']\n"
    could_not = "could not return" in first.stderr
    assert could_not == ("Restore" in faults)
    if session == SAME:
        assert kernels[0].gpu("print(card.values(address, 1 << 19))").ok().stdout == "{0}\n"
    else:
        # A new context needs memory, too.
        kernels[0].gpu("address = card.allocate(1 << 19)\nprint(card.values(address, 1 << 19))").ok()


def test_a_cell_that_waits_until_its_session_can_come_back_is_interrupted(
    service: Service, notebook: Callable[[], Kernel], machine: Path
) -> None:
    put(machine, CONTEXT, 12 << 20)
    asleep, large = notebook(), notebook()
    asleep.gpu("import card\nkept = ['as it was']\naddress = card.allocate(1 << 19)").ok()
    # Beside two contexts, there is no room for that.
    large.gpu(f"import card\naddress = card.allocate({(44 << 20) // 8})").ok()
    endless = large.begin(
        "%%gpu\ncard.launch('forever')\nprint('begun')\ncard.call('cuCtxSynchronize')", stop_on_error=False
    )
    endless.wait_for_text("begun")
    waits = asleep.begin("%%gpu\nkept.append('and not')", stop_on_error=False)
    wait_until(lambda: "1 cell runs, 1 cell starts" in service.answers("/"), "the worker has both")
    asleep.interrupt()
    interrupted = waits.finish()
    assert interrupted.reply["ename"] == "KeyboardInterrupt"
    large.interrupt()
    endless.finish()
    # If a cell never began, its session ends.
    assert asleep.gpu("print(card.module, kept)").ok().stdout == f"{NEW} ['as it was']\n"


def test_a_cell_that_is_interrupted_while_it_waits_for_the_gpu_keeps_its_session(
    notebook: Callable[[], Kernel], machine: Path
) -> None:
    put(machine, HELD, 1)
    waiting, holding = notebook(), notebook()
    waiting.gpu("import card\nkept = ['as it was']\naddress = card.allocate(8)").ok()
    holds = holding.begin("%%gpu\nimport card\ncard.launch('held')\nprint('begun')\ncard.call('cuCtxSynchronize')")
    holds.wait_for_text("begun")
    waits = waiting.begin(
        "%%gpu\nkept.append('and more')\nprint('begun')\ncard.launch('add', address, 8, 1)", stop_on_error=False
    )
    waits.wait_for_text("begun")
    waiting.interrupt()
    # Without the wait, its session would end.
    time.sleep(4 * CANCEL_GRACE_S)
    put(machine, HELD, 0)
    assert waits.finish().reply["ename"] == "KeyboardInterrupt"
    holds.finish().ok()
    assert waiting.gpu("print(card.module, kept)").ok().stdout == f"{SAME} ['as it was', 'and more']\n"


@pytest.mark.parametrize(
    ("faults", "found"),
    [
        ("", None),
        ("cuMemcpyDtoHAsync_v2:1:0", "the GPU returned wrong data"),
        ("cuMemcpyDtoHAsync_v2:1:999", "cuMemcpyDtoH answered 802"),
        ("cuModuleLoadData:1:222", "cuModuleLoadData answered 222"),
    ],
    ids=["right", "lost while it moved", "not moved", "too old a driver"],
)
def test_a_worker_tries_turns_before_its_sessions_take_them(
    service: Service, machine: Path, notebook: Callable[[], Kernel], found: str | None
) -> None:
    log = service.log("worker-0")
    assert ("Sessions time-share this machine's GPU" in log) is (found is None)
    if found is not None:
        said = "Sessions do not time-share this machine's GPU, because two test programs failed"
        assert f"{said}: {found}" in log
    kernel = notebook()
    result = kernel.gpu("import os\nprint('interposer' in os.environ.get('LD_PRELOAD', ''))").ok()
    assert result.stdout == f"{found is None}\n"


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "ok     Time-sharing works here"),
        (
            {"BATON_TEST_GPU_FAULTS": "cuModuleLoadData:1:222"},
            "wrong  Time-sharing does not work here, so sessions use the GPU without it: "
            "two test programs failed on this machine's GPU: cuModuleLoadData answered 222",
        ),
        ({"BATON_WORKER_GPU_MODE": "open"}, "ok     Sessions here do not time-share a GPU"),
    ],
    ids=["works", "too old a driver", "switched off"],
)
def test_the_doctor_tries_time_sharing(service: Service, machine: Path, environment: dict[str, str], what: str) -> None:
    driver = {"LD_LIBRARY_PATH": str(driver_of(service)), "BATON_TEST_GPU": str(machine / "card")}
    said = run_binary(service.place, "doctor", **service.access, **driver, **environment)
    assert what in said.stdout, said.stdout
    assert "A worker here has 1 GPU" in said.stdout


@IN_ANY_SANDBOX
def test_a_gpu_that_failed_is_said_and_the_next_cell_has_another_session(notebook: Callable[[], Kernel]) -> None:
    kernel = notebook()
    kernel.gpu("import card\nx = 5").ok()
    before = kernel.session_pid
    failed = kernel.gpu("x = 6\ncard.launch('touch_what_is_not_there')\ncard.call('cuCtxSynchronize')")
    assert failed.reply["ename"] == "RuntimeError"
    if not failed.stderr:  # the interposer notices slightly later than the cell: then the next cell reports it
        failed = kernel.gpu("pass")
    assert "CUDA error 700" in failed.stderr
    assert kernel.evaluate("x") == 6
    assert kernel.gpu("import card\nprint(x, card.values(card.allocate(8), 8))").ok().stdout == "6 {0}\n"
    assert kernel.session_pid != before


@IN_ANY_SANDBOX
def test_a_cell_may_be_given_less_of_the_card(notebook: Callable[[], Kernel]) -> None:
    kernel = notebook()
    mebibyte = (1 << 20) // 8
    kernel.gpu("import card").ok()
    refused = kernel.run(
        f"%%gpu --mem 16M\nprint(card.memory()[1] >> 20)\ncard.allocate({8 * mebibyte})\ncard.allocate({16 * mebibyte})"
    )
    assert refused.stdout == "16\n"
    assert refused.reply["evalue"] == "cuMemAlloc_v2: 2"
    assert kernel.gpu(f"_ = card.allocate({24 * mebibyte})\nprint(card.memory()[1] >> 20)").ok().stdout == "60\n"


@IN_ANY_SANDBOX
def test_a_kernel_that_never_ends_ends_with_its_cell_s_time(notebook: Callable[[], Kernel]) -> None:
    kernel = notebook()
    kernel.run("x = 5").ok()
    endless = kernel.run("%%gpu --timeout 1s\nimport card\ncard.launch('forever')\ncard.call('cuCtxSynchronize')")
    assert endless.reply["ename"] == "CellTimeout"
    assert kernel.gpu("import card\nprint(x, card.values(card.allocate(8), 8))").ok().stdout == "5 {0}\n"


def test_a_worker_whose_gpu_is_lost_takes_no_more_cells(
    service: Service, machine: Path, notebook: Callable[[], Kernel]
) -> None:
    kernel = notebook()
    kernel.gpu("import card\nx = 5\n_ = card.allocate(8)").ok()
    lost = service.process("worker-0")
    put(machine, LOST, GPU_IS_LOST)
    lost.wait(timeout=120)
    assert "The GPU is lost: GPU 0: device fell off the bus" in service.log("worker-0")
    put(machine, LOST, 0)
    start_worker(service, machine)
    assert kernel.gpu("import card\nprint(x, card.values(card.allocate(8), 8))").ok().stdout == "5 {0}\n"


@pytest.mark.parametrize("mode", ["mig", "exclusive"])
def test_a_notebook_has_a_part_for_itself_until_another_waits_for_it(notebook: Callable[[], Kernel], mode: str) -> None:
    show = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])"
    name = {"mig": "MIG-00000000-0000-0000-0000-000000000002", "exclusive": "GPU-00000000-0000-0000-0000-000000000000"}
    for kernel in (notebook(), notebook()):
        assert kernel.gpu(show).ok().stdout == f"{name[mode]}\n"


def listen(pipes: Path) -> socket.socket:
    """Listens like the MPS server."""
    control = socket.socket(socket.AF_UNIX)
    (pipes / "control").unlink(missing_ok=True)
    control.bind(str(pipes / "control"))
    control.listen()
    return control


def test_sessions_are_told_where_the_server_of_mps_is_and_its_end_is_said(
    service: Service, new_kernel: Callable[..., Kernel]
) -> None:
    pipes = service.place.folder / "mps"
    pipes.mkdir()
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes / "log")}
    mps = {"BATON_WORKER_GPU_MODE": "mps", "BATON_WORKER_GPU_MEMORY": "2GiB"} | places
    service.start_broker()
    with listen(pipes):
        service.start_worker(**mps)
        kernel = service.kernel(new_kernel)
        show = "import os\nx = {name: value for name, value in os.environ.items() if name.startswith('CUDA_MPS')}"
        kernel.gpu(show).ok()
        assert kernel.evaluate("x") == places | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M"}
    ended = service.process("worker-0")
    # A living session needs no answer of the server; a new one does.
    another = service.kernel(new_kernel)
    cell = another.begin("%%gpu\n1 + 1", stop_on_error=False)
    ended.wait(timeout=120)
    assert f"no MPS server listens in {pipes}: start it with `nvidia-cuda-mps-control -d`" in service.log("worker-0")
    # The next worker runs the cell, or it is reported as failed.
    with listen(pipes):
        service.start_worker(**mps)
        result = cell.finish()
        assert result.reply["status"] == "ok" or "Your variables are as they were" in result.reply["evalue"]
        assert kernel.gpu("len(x)").ok().value == "3"


def test_a_worker_and_the_doctor_say_that_cuda_does_not_start_in_sessions(service: Service) -> None:
    """A machine with the device file of a GPU, but without the driver's library."""
    device = service.place.folder / "nvidia0"
    device.touch()
    machine = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--ro-bind", str(device), "/dev/nvidia0"]
    prefix = [*machine, "--die-with-parent", "--"]
    said = (
        "CUDA does not start in sessions here, so %%gpu cells find no GPU: libcuda.so.1: cannot open shared object file"
    )
    service.start_broker()
    service.start_worker(prefix=prefix, BATON_WORKER_SANDBOX="none", BATON_WORKER_PYTHON=sys.executable)
    assert said in service.log("worker-0")
    doctor = [*prefix, BINARY, "doctor", "--json"]
    found = subprocess.run(doctor, env=service.environment, stdout=subprocess.PIPE, text=True, timeout=300)
    assert [one["ok"] for one in json.loads(found.stdout) if said in one["what"]] == [False]
