"""`python -m baton_shim.session.zygote DESCRIPTOR LIBRARY...`: a process that forks sessions.

It loads the modules that every session needs and the named libraries, reports that, and forks whenever the worker asks.
The request for a session goes only to the fork, over a separate connection. It contains the program to run, the
environment, the descriptors, and the sandbox to enter first (`confinement.py`). A fork joins its control groups at
once, and may then wait for its request.

**Invariant:** the zygote has one thread, never uses a GPU, and reads no byte of a request.
"""

from __future__ import annotations

import os
import sys

from baton_shim.base.launch import end_with_parent, leave_notebook_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from baton_shim.session.preload import Preloaded

MARK = "BATON_SESSION"
"""The variable by which the worker recognizes the processes of a session."""
UNFIT = 3
"""The exit status of a zygote whose forks would differ from a fresh Python."""
OF_SESSIONS = (
    "baton_shim.base.gpu_facts",
    "baton_shim.base.streams",
    "baton_shim.session.kernel",
    "baton_shim.session.sigterm",
    "baton_shim.session.sockets",
    "baton_shim.state.keeper",
    "baton_shim.surroundings.figures",
    "baton_shim.surroundings.handlers",
    "baton_shim.surroundings.hooks",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "ipykernel.debugger",
    "ipykernel.kernelapp",
    "sqlite3",
    "tornado.platform.asyncio",
    "tornado.queues",
)
"""Modules that a session imports before its first cell."""


def main() -> None:
    leave_notebook_folder()
    end_with_parent("SIGKILL")
    import socket

    control = socket.socket(fileno=int(sys.argv[1]))

    def report(line: str) -> None:
        control.sendall(f"{line}\n".encode())

    for path in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if not os.path.isabs(path):
            report(f"unfit PYTHONPATH has the relative path {path}")
            sys.exit(UNFIT)
    preloaded = load(sys.argv[2:], report)
    serve(control, preloaded)()


def load(libraries: list[str], report: Callable[[str], None]) -> Preloaded:
    from baton_shim.session.start import leave_out_debugger

    leave_out_debugger()
    from importlib import import_module

    for module in OF_SESSIONS:
        import_module(module)
    from baton_shim.session.preload import Preloaded
    from baton_shim.virtual import LIBRARIES, machine_has_gpu

    # pyarrow, which pandas imports, brings a jemalloc that would clean up in a thread of its own.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    preloaded = Preloaded()
    if not machine_has_gpu():
        libraries = [part for library in libraries for part in (library, LIBRARIES.get(library)) if part]
    for library in libraries:
        report(f"loading {library}")
        try:
            preloaded.load(library)
        except BaseException as error:  # exits too
            report(f"failed {library} {type(error).__name__}: {str(error).splitlines()[:1]}")
        else:
            if (trouble := unfit()) is not None:
                report(f"unfit {library} {trouble}")
                sys.exit(UNFIT)
    report("ready")
    return preloaded


def unfit() -> str | None:
    """The reason why no session may be forked from this process any more; `None` if there is none."""
    child = os.fork()  # libraries that support forking end their threads here
    if child == 0:
        os._exit(0)
    threads = len(os.listdir("/proc/self/task"))
    os.waitpid(child, 0)
    if threads > 1:
        return "leaves threads behind"
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            return "opens the GPU"
    return None


def serve(control: socket.socket, preloaded: Preloaded) -> Callable[[], None]:
    """Forks whenever the worker asks. Returns only in a fork, with the function that the fork has to run."""
    import gc
    import signal
    import socket

    from baton_shim.session.confinement import adopt_orphans

    adopt_orphans()  # a fork that enters a sandbox continues in a child, and its parent ends
    gc.collect()
    gc.freeze()  # a collection in a fork would write to the memory pages of all these objects
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps ended children
    while True:
        said, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not said:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return begin(descriptors[0], preloaded)
        os.close(descriptors[0])


def begin(connection: int, preloaded: Preloaded) -> Callable[[], None]:
    """Makes a fork the process that its request describes. Returns the function that it has to run."""
    from baton_shim.session import confinement

    join_groups(connection)
    request, descriptors = receive(connection)
    numbers = request["descriptors"]
    named, others = descriptors[: len(numbers)], descriptors[len(numbers) :]
    if request["namespaces"]:
        confinement.enter(others.pop(0), request["namespaces"])
        os.setsid()
    else:
        os.setpgid(0, 0)
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in request["environment"]}
    is_confined = environment.get(confinement.CONFINEMENT, confinement.INSIDE) != confinement.INSIDE
    os.chdir("/" if is_confined else request["folder"])  # `confinement.confine` changes to the folder once it is safe
    confinement.rename(MARK, environment[MARK])
    os.environ.clear()
    os.environ.update(environment)
    others = keep(dict(zip(numbers, named, strict=True)), others)
    if request["filter"]:
        confinement.give_up_rights()
    if request["watched"]:
        confinement.let_worker_watch(request["watched"], others[0])
    if request["filter"]:
        confinement.filter_calls(request["filter"])
    arguments = [os.fsdecode(argument) for argument in request["arguments"]]
    if request["program"]:
        sys.argv = ["-c", *arguments]

        def run() -> None:
            confinement.confine()
            exec(request["program"], {"__name__": "__main__"})

        return run
    from functools import partial

    from baton_shim.session import start
    from baton_shim.session.preload import make_anew

    make_anew()
    sys.argv = [start.__file__, *arguments]
    sys.orig_argv[1:] = ["-m", "baton_shim.session.start", *arguments]
    preloaded.watch()
    return partial(start.main, is_fork=True)


def join_groups(connection: int) -> None:
    """Joins the control groups whose files arrive first, then sends the process id.

    After that, the worker may let this process wait.
    """
    import socket

    with socket.socket(fileno=os.dup(connection)) as worker:
        _, groups, _, _ = socket.recv_fds(worker, 1, 64)
        for group in groups:
            os.write(group, b"0")
            os.close(group)
        worker.sendall(os.getpid().to_bytes(4, "little"))


def receive(connection: int) -> tuple[dict[str, Any], list[int]]:
    """Waits for the request and its descriptors. Ends this process if the worker closes the connection."""
    import socket

    import msgpack

    with socket.socket(fileno=connection) as requests:
        text, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 64)
        if not text:
            os._exit(0)
        while more := requests.recv(1 << 16):
            text += more
    return msgpack.unpackb(text), descriptors


def keep(places: dict[int, int], others: list[int]) -> list[int]:
    """Moves the descriptors in `places` to the numbers that are the keys, and closes all except these and the `others`.

    Returns the new numbers of the others.
    """
    import fcntl

    above = max([*places, 2]) + 1
    moved = {number: fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, above) for number, found in places.items()}
    others = [fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, above) for found in others]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, found in moved.items():
        os.dup2(found, number, inheritable=number <= 2)
    kept = sorted({0, *places, *others})
    for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)
    return others


if __name__ == "__main__":
    main()
