"""Sessions that are forked from a zygote behave like those that start Python, and nothing of the zygote remains."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.place import has_words, lives

ZYGOTE = "baton_shim.session.zygote"
LIBRARIES = ("numpy", "pandas", "torch")
PRELOADED = ["numpy", "torch", "torch._dynamo", "pandas"]

WITHOUT_IMPORT = {"_cyutility", "_remote_module_non_scriptable"}
"""Entries of `sys.modules` that libraries create themselves, and that are not looked up there."""

LOOK = """
def look():
    import atexit, gc, locale, logging, os, resource, signal, sys, tempfile, threading, warnings
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    same = "CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters Uid Gid Groups Umask".split()
    same += "SigBlk SigIgn SigCgt".split()
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            pass
    namespaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    return dict(
        modules=" ".join(sorted(sys.modules)),
        path=sys.path,
        argv=[sys.argv, sys.orig_argv[1:]],
        python=[sys.executable, sys.prefix, sys.base_prefix, repr(sys.flags)],
        program=os.readlink("/proc/self/exe"),
        environment=sorted(item for item in os.environ.items() if item[0] != "JPY_PARENT_PID"),
        folder=os.getcwd(),
        temporary=tempfile.gettempdir(),
        status={name: status[name].strip() for name in same},
        numbers=len(status["NSpid"].split()),
        limits={name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:6] == "RLIMIT"},
        priority=[os.nice(0), sorted(os.sched_getaffinity(0)), open("/proc/self/oom_score_adj").read()],
        handlers={int(number): repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        files=sorted(files),
        threads=sorted(thread.name for thread in threading.enumerate()),
        main=threading.main_thread() is threading.current_thread() and threading.get_native_id() == os.getpid(),
        leads=os.getpgrp() == os.getpid(),
        parent=os.environ["JPY_PARENT_PID"] == str(os.getppid()),
        group=open("/proc/self/cgroup").read(),
        mounts=sorted(line.split()[4] for line in open("/proc/self/mountinfo")),
        filters=[repr(found) for found in warnings.filters],
        finders=[getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
        hooks=len(sys.path_hooks),
        loggers=[repr(handler) for handler in logging.getLogger().handlers],
        locale=locale.getlocale(),
        gc=[gc.isenabled(), gc.get_threshold()],
        plain_import=repr(__builtins__["__import__"] if isinstance(__builtins__, dict) else __builtins__.__import__),
    )
"""
DRAWS = """
import os, random, secrets, tempfile, uuid
import numpy, torch
found = [random.random(), random.Random().random(), numpy.random.rand(), float(numpy.random.default_rng().random())]
found += [uuid.uuid4().hex, secrets.token_hex(), os.path.basename(tempfile.mktemp()), os.urandom(8).hex()]
found += [torch.rand(1, dtype=torch.float64).item(), torch.initial_seed()]
"""
TRAINING = """
def train():
    import io, pickle, numpy, pandas, torch
    torch.manual_seed(1)
    layer = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.ones(8, 4)).pow(2).sum().backward()
        optimizer.step()
    frame = pandas.read_csv(io.StringIO("a,b\\n1,2\\n3,4\\n"))
    again = pickle.loads(pickle.dumps((layer.state_dict(), frame)))
    inverse = numpy.linalg.inv(numpy.eye(600) * 2)
    modules = (numpy, pandas, torch, torch.nn)
    specs = [(type(module.__loader__).__name__, module.__spec__.loader is module.__loader__) for module in modules]
    return [again[0]["weight"].tolist(), again[1].sum().tolist(), float(inverse.sum()), specs]
"""

NOTES = """
def of_thread():
    import decimal, locale, threading
    import numpy, torch
    return [
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled(),
        torch.get_num_threads(), numpy.geterr(), repr(numpy.geterrcall()), repr(decimal.getcontext()),
        sorted(vars(threading.local())), locale.localeconv()["decimal_point"],
    ]
def in_thread():
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(of_thread).result()
def caches():
    import functools, platform, re, socket
    import torch
    counted = functools.lru_cache(len)
    counted(())
    return [
        platform.node() == socket.gethostname(), platform.python_version(), re.compile("a").flags,
        counted.cache_info()[:2], torch.get_default_dtype().__repr__(), torch.get_num_interop_threads(),
    ]
def notes():
    import logging, multiprocessing.spawn, multiprocessing.process, sys
    import dill, pandas, torch, tqdm.auto
    handler = logging.StreamHandler
    handlers = [one for logger in (logging.getLogger("torch"), logging.getLogger()) for one in logger.handlers]
    wide = pandas.DataFrame([range(30)] * 2, columns=[f"column {number}" for number in range(30)])
    return dict(
        frame=repr(wide),
        options=[pandas.get_option(f"display.{name}") for name in ("encoding", "max_columns", "width")],
        bar=tqdm.auto.tqdm.__module__,
        program=multiprocessing.spawn.get_executable() in (sys.executable, sys.executable.encode()),
        children=multiprocessing.process.ORIGINAL_DIR,
        dill=dill.loads(dill.dumps(notes, recurse=False)).__module__,
        main=dill._dill._main_module is sys.modules["__main__"],
        key=len(multiprocessing.current_process().authkey),
        handlers=len(handlers),
        of_thread=of_thread(),
        in_thread=in_thread(),
        caches=caches(),
    )
def log():
    import logging, torch
    [handler] = logging.getLogger("torch").handlers
    handler.stream.write("seen\\n")
def in_child():
    import multiprocessing, own
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(own.double, (21,))
"""


@pytest.fixture
def services() -> Iterator[list[Service]]:
    services: list[Service] = []
    yield services
    left = [process for service in services for process in service.close()]
    assert not left, f"Processes left behind: {left}"


def start(services: list[Service], **environment: str) -> Service:
    service = Service.create()
    services.append(service)
    service.start_broker()
    service.start_worker(BATON_WORKER_PYTHON=sys.executable, BATON_WORKER_FILES="mirror", **environment)
    return service


def start_warm(services: list[Service], libraries: list[str], **environment: str) -> Service:
    service = start(services, BATON_WORKER_PRELOAD=",".join(libraries), **environment)
    if libraries:
        said = "Sessions start with these libraries loaded"
        wait_until(lambda: said in service.log("worker-0"), "the libraries are loaded")
    return service


def is_forked(kernel: Kernel) -> bool:
    return ZYGOTE in psutil.Process(kernel.session_pid).cmdline()


def plain(found: Any, service: Service) -> Any:
    """Without names that differ between any two sessions."""
    if isinstance(found, dict):
        return {name: plain(value, service) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return type(found)(plain(value, service) for value in found)
    if not isinstance(found, str):
        return found
    text = found.replace(str(service.place.folder), "PLACE")
    text = re.sub(r"0x[0-9a-f]+|[0-9a-f]{32}", "NUMBER", text)
    text = re.sub(r"(baton-\w+|packages-[\w-]*?)(-[0-9a-f]{8,})+", r"\1", text)
    return re.sub(r"(socket|pipe|anon_inode|memfd):\[?\w*\]?", r"\1", text)


def is_in_advance(name: str) -> bool:
    """Baton's modules, and modules that no import created: C code shares types in one of them."""
    return name.startswith(("baton_shim.", "_cython_")) or name == "pwd"


def differences(fresh: dict[str, Any], forked: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name in fresh:
        one, other = fresh[name], forked[name]
        if name == "modules":  # IPython shows at most a thousand elements of a list
            one, other = list(set(one.split()) - set(other.split())), list(set(other.split()) - set(one.split()))
        elif isinstance(one, list):
            one, other = [x for x in one if x not in forked[name]], [x for x in other if x not in fresh[name]]
        if one != other:
            found[name] = (one, other)
    return found


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_a_forked_session_is_like_a_fresh_one(
    sandbox: str, services: list[Service], new_kernel: Callable[..., Kernel]
) -> None:
    before, after, results = {}, {}, {}
    for way in ("fresh", "forked"):
        choices = {"BATON_WORKER_SANDBOX": sandbox, "BATON_WORKER_WARM_STARTS": str(way == "forked").lower()}
        service = start_warm(services, PRELOADED if way == "forked" else [], **choices)
        kernel = service.kernel(new_kernel)
        kernel.run(LOOK + TRAINING).ok()
        kernel.gpu("found = look()").ok()
        seen = kernel.evaluate("found")
        kernel.gpu("result = train()\nfound = look()").ok()
        seen_after = kernel.evaluate("found")
        assert is_forked(kernel) is (way == "forked")
        before[way] = plain(seen, service)
        after[way] = plain(seen_after, service)
        results[way] = kernel.evaluate("result")
        kernel.shutdown()
    found = differences(before["fresh"], before["forked"])
    found |= {f"{name} afterwards": value for name, value in differences(after["fresh"], after["forked"]).items()}
    assert found.pop("finders") == found.pop("finders afterwards") == ([], ["Preloaded"])
    early = [name for name in found.pop("modules")[1] if not is_in_advance(name)]
    missing, more = found.pop("modules afterwards")
    assert not early
    assert set(missing) <= WITHOUT_IMPORT
    assert not [name for name in more if not is_in_advance(name)]
    assert found == {}
    assert results["fresh"] == results["forked"]


def test_what_libraries_note_when_they_are_loaded_is_the_session(
    services: list[Service], new_kernel: Callable[..., Kernel]
) -> None:
    """pandas records that it is in a kernel, multiprocessing its program and folder, dill the main module."""
    seen, keys = [], []
    for libraries in ([], ["torch", "pandas", "tqdm.auto", "dill"]):
        service = start_warm(services, libraries, BATON_WORKER_WARM_STARTS=str(bool(libraries)).lower())
        (service.place.work / "own.py").write_text("def double(number):\n    return 2 * number\n")
        kernel = service.kernel(new_kernel)
        kernel.run(NOTES).ok()
        kernel.gpu("found = notes()").ok()
        assert is_forked(kernel) is bool(libraries)
        seen.append(plain(kernel.evaluate("found"), service))
        kernel.gpu("import multiprocessing\nkey = multiprocessing.current_process().authkey.hex()").ok()
        keys.append(kernel.evaluate("key"))
        assert kernel.gpu("log()").ok().stderr == "seen\n"
        assert kernel.gpu("in_child()").ok().value == "42"
        kernel.shutdown()
    assert seen[0] == seen[1]
    assert keys[0] != keys[1]


def test_a_package_has_those_parts_that_the_session_has_imported(
    services: list[Service], new_kernel: Callable[..., Kernel]
) -> None:
    """pandas has loaded `numpy.ma`, which NumPy itself imports only when it is used."""
    seen = []
    for libraries in ([], ["pandas"]):
        service = start_warm(services, libraries)
        kernel = service.kernel(new_kernel)
        kernel.gpu(
            "import numpy, types\n"
            "parts = [name for name, part in vars(numpy).items() if type(part) is types.ModuleType]"
        ).ok()
        kernel.gpu("masked = numpy.ma.array([1.0, 2.0], mask=[0, 1])").ok()
        assert is_forked(kernel) or not libraries
        seen.append(sorted(kernel.evaluate("parts")))
        assert kernel.run("masked.mask.tolist()").ok().value == "[False, True]"
        kernel.shutdown()
    assert seen[0] == seen[1]


def test_two_forks_draw_different_numbers(services: list[Service], new_kernel: Callable[..., Kernel]) -> None:
    service = start_warm(services, ["numpy", "torch"])
    draws = []
    for _ in range(2):
        kernel = service.kernel(new_kernel)
        kernel.gpu(DRAWS).ok()
        assert is_forked(kernel)
        draws.append(kernel.evaluate("found"))
        kernel.shutdown()
    assert not [one for one, other in zip(*draws, strict=True) if one == other]


def test_a_module_of_the_student_comes_first(services: list[Service], new_kernel: Callable[..., Kernel]) -> None:
    """Also if it has the name of something that a library itself needs."""
    service = start_warm(services, ["numpy", "pandas"])
    for name in ("pandas", "pytz"):
        (service.place.work / f"{name}.py").write_text("name = 'mine'\n")
    kernel = service.kernel(new_kernel)
    said = kernel.gpu("import pandas\nimport numpy\nfound = pandas.name, numpy.ones(2).sum().item()").ok().stderr
    assert kernel.evaluate("found") == ("mine", 2.0)
    assert "This session had already loaded a different pandas" in said
    assert is_forked(kernel)
    kernel.shutdown()
    (service.place.work / "pandas.py").unlink()
    kernel = service.kernel(new_kernel)
    code = "def go():\n    import pandas, pytz\n    return pytz.name, int(pandas.Series([1, 2]).sum())\nfound = go()"
    kernel.gpu(code).ok()
    assert kernel.evaluate("found") == ("mine", 3)
    assert is_forked(kernel)
    kernel.shutdown()


def test_a_library_that_cannot_be_prepared_is_left_out(
    services: list[Service], new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    (tmp_path / "course_threads.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "course_end.py").write_text("import os\nos._exit(1)\n")
    (tmp_path / "course_error.py").write_text("raise ValueError('no data')\n")
    (tmp_path / "course_good.py").write_text("loads = []\n")
    names = ["course_threads", "course_end", "course_error", "course_good"]
    service = start_warm(services, names, PYTHONPATH=str(tmp_path), BATON_WORKER_READABLE=str(tmp_path))
    log = service.log("worker-0")
    for said in ("course_threads: it leaves threads behind", "course_end: it ended", "course_error: ValueError"):
        assert f"Sessions cannot be prepared with {said}" in log
    kernel = service.kernel(new_kernel)
    kernel.gpu("import course_good, course_threads, threading\nfound = threading.active_count()").ok()
    assert is_forked(kernel)
    kernel.shutdown()


def test_a_fork_leaves_the_objects_of_its_zygote_alone(
    services: list[Service], new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """Counting them takes as long as half of the start."""
    (tmp_path / "course_watch.py").write_text(
        "import gc\n"
        "calls, freeze_count = [], gc.get_freeze_count\n"
        "for name in ('get_freeze_count', 'unfreeze'):\n"
        "    setattr(gc, name, lambda name=name: calls.append(name))\n"
    )
    service = start_warm(services, ["course_watch"], PYTHONPATH=str(tmp_path), BATON_WORKER_READABLE=str(tmp_path))
    kernel = service.kernel(new_kernel)
    kernel.gpu("import course_watch\nfound = course_watch.calls, course_watch.freeze_count() > 10_000").ok()
    assert is_forked(kernel)
    assert kernel.evaluate("found") == ([], True)
    kernel.shutdown()


def test_with_too_little_memory_no_library_is_prepared(
    services: list[Service], new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """The worker sees another file in `/proc`, so the system would let no sandbox below it have a `/proc`."""
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 16000000 kB\nMemAvailable: 1000000 kB\n")
    service = Service.create()
    services.append(service)
    service.start_broker()
    service.start_worker(
        prefix=["bwrap", "--dev-bind", "/", "/", "--bind", str(memory), "/proc/meminfo", "--die-with-parent"],
        BATON_WORKER_PYTHON=sys.executable,
        BATON_WORKER_PRELOAD="numpy",
        BATON_WORKER_SANDBOX="none",
    )
    said = "Sessions start without prepared libraries, because too little memory is available"
    wait_until(lambda: said in service.log("worker-0"), "the worker says that there is too little memory")
    kernel = service.kernel(new_kernel)
    kernel.gpu("import numpy").ok()
    assert is_forked(kernel)
    assert "Sessions start with these libraries loaded" not in service.log("worker-0")
    kernel.shutdown()


def test_what_sessions_use_is_prepared_also_by_the_next_worker(
    services: list[Service], new_kernel: Callable[..., Kernel]
) -> None:
    service = start(services)
    kernel = service.kernel(new_kernel)
    kernel.gpu("import numpy").ok()
    kernel.shutdown()
    said = "Sessions start with these libraries loaded: numpy"
    wait_until(lambda: said in service.log("worker-0"), "the library is loaded")
    service.start_worker("worker-1", BATON_WORKER_PYTHON=sys.executable)
    wait_until(lambda: said in service.log("worker-1"), "the library is loaded")


def test_a_variable_that_comes_too_late_is_announced(
    services: list[Service], new_kernel: Callable[..., Kernel]
) -> None:
    service = start_warm(services, ["numpy"])
    kernel = service.kernel(new_kernel)
    kernel.run("import os\nos.environ['OMP_NUM_THREADS'] = '1'").ok()
    said = kernel.gpu("import numpy").ok().stderr
    assert "numpy was loaded before this session knew OMP_NUM_THREADS" in said
    kernel.shutdown()


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_a_killed_worker_leaves_no_zygote(
    sandbox: str, services: list[Service], new_kernel: Callable[..., Kernel]
) -> None:
    service = start_warm(services, [], BATON_WORKER_SANDBOX=sandbox)
    kernel = service.kernel(new_kernel)
    assert is_forked(kernel)
    worker = service.process("worker-0")
    processes = worker.children(recursive=True)
    session = psutil.Process(kernel.session_pid)
    session.send_signal(signal.SIGSTOP)  # it cannot notice that its worker is gone
    worker.kill()
    for process in [*processes, session]:
        wait_until(lambda process=process: not process.is_running(), f"{process} has ended")  # type: ignore[misc]
    kernel.shutdown()


def zygotes(service: Service) -> list[psutil.Process]:
    return [child for child in service.process("worker-0").children() if has_words(child, (ZYGOTE,))]


def test_sessions_outlive_their_zygote(services: list[Service], new_kernel: Callable[..., Kernel]) -> None:
    service = start_warm(services, [])
    kernel = service.kernel(new_kernel)
    kernel.gpu("x = 1").ok()
    (zygote,) = zygotes(service)
    zygote.kill()
    assert kernel.gpu("x + 1").ok().value == "2"
    other = service.kernel(new_kernel)
    assert other.gpu("1 + 1").ok().value == "2"
    wait_until(lambda: zygotes(service), "there is another one")
    other.shutdown()
    kernel.shutdown()


@pytest.mark.parametrize("which", ["the fork", "the sandbox"])
def test_what_was_prepared_for_the_next_session_may_be_gone(
    which: str, services: list[Service], new_kernel: Callable[..., Kernel]
) -> None:
    service = start_warm(services, [], BATON_WORKER_SANDBOX="bubblewrap")
    prepared = wait_until(lambda: prepared_by(service), "the next session is prepared")
    prepared[which].kill()
    wait_until(lambda: not lives(prepared[which]), f"{which} is gone")
    kernel = service.kernel(new_kernel)
    assert kernel.gpu("1 + 1").ok().value == "2"
    assert is_forked(kernel)
    wait_until(lambda: prepared_by(service), "there is another one")
    kernel.shutdown()


def test_a_session_is_what_was_prepared(services: list[Service], new_kernel: Callable[..., Kernel]) -> None:
    service = start_warm(services, [], BATON_WORKER_SANDBOX="bubblewrap")
    prepared = wait_until(lambda: prepared_by(service), "the next session is prepared")
    kernel = service.kernel(new_kernel)
    session = psutil.Process(kernel.session_pid)
    wait_until(lambda: not lives(prepared["the fork"]), "it has led the session into its sandbox")
    mounts = Path(f"/proc/{session.pid}/ns/mnt").readlink()
    assert mounts in {Path(f"/proc/{inside.pid}/ns/mnt").readlink() for inside in below(prepared["the sandbox"])}
    kernel.shutdown()


def prepared_by(service: Service) -> dict[str, psutil.Process] | None:
    """A fork that waits for its order, and bubblewrap, which waits for its arguments."""
    try:
        forks = [child for zygote in zygotes(service) for child in zygote.children() if not child.children()]
    except psutil.NoSuchProcess:  # one of them has just ended
        return None
    rooms = [child for child in service.process("worker-0").children() if has_words(child, ("bwrap", "--args"))]
    rooms = [room for room in rooms if waits_for_arguments(room)]
    return {"the fork": forks[0], "the sandbox": rooms[0]} if len(forks) == len(rooms) == 1 else None


def waits_for_arguments(bubblewrap: psutil.Process) -> bool:
    """It reads them from a descriptor, which it then closes."""
    try:
        words = bubblewrap.cmdline()
        return Path(f"/proc/{bubblewrap.pid}/fd/{words[words.index('--args') + 1]}").exists()
    except (psutil.NoSuchProcess, ValueError):  # it has ended
        return False


def below(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)
