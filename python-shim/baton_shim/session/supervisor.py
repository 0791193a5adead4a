"""The parent of the kernel in a session that is sandboxed or forked from a zygote.

It reports how the kernel ended. It then lives on and keeps the kernel's sandbox alive until the worker closes the
connection, because keepers of the session's memory may have to outlive the kernel.

Under Landlock no namespace ends with the session. So the supervisor does not confine itself, adopts the kernel's
orphans, and kills everything that is left when the worker closes its connection.

**Invariant:** the supervisor runs no code of a student. It ends with its worker, and the kernel ends with it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal

from baton_shim.session import confinement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SUPERVISOR = "BATON_SUPERVISOR_DESCRIPTOR"
"""The variable with the number of the supervisor's connection, if the session has a supervisor."""


PROCESS_LIMIT = "BATON_PROCESS_LIMIT"
"""The variable with the largest number of processes and threads, if no control group limits them.

The system counts the processes of a user in each user namespace separately, so in bubblewrap's sandbox the limit has to
be set inside. Under Landlock there is no such namespace: all processes of the worker's user count.
"""


def supervise() -> None:
    """Forks, and returns in the child, which becomes the kernel. If no supervisor is wanted, returns without a fork."""
    text = os.environ.pop(SUPERVISOR, "")
    if not text:
        return
    connection = int(text)
    limit = os.environ.pop(PROCESS_LIMIT, "")
    if limit:
        _limit_processes(int(limit))
    is_confined = os.environ.get(confinement.CONFINEMENT, confinement.INSIDE) != confinement.INSIDE
    if is_confined:
        confinement.adopt_orphans()
    kernel = os.fork()
    if kernel == 0:
        os.close(connection)
        # The worker interrupts the kernel's group. No process of another POSIX session can join this group and then
        # change its priority.
        os.setsid()
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
        return
    _keep_only(connection)
    # Opened now, because opening a file needs an answer from the worker, which will have ended.
    children = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY) if is_confined else None
    with contextlib.suppress(OSError):  # the worker may have ended
        _report(kernel, connection)
    if children is not None:
        _end_all(children)
    os._exit(0)


def _report(kernel: int, connection: int) -> None:
    """Reports how the kernel ended. Returns when the worker closes its end."""
    wakes, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.set_wakeup_fd(ends, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(wakes, select.POLLIN)
    poll.register(connection, select.POLLRDHUP)
    while True:
        for child, status in _ended_children():
            if child == kernel:
                os.write(connection, status.to_bytes(4, "little"))
        if any(descriptor == connection for descriptor, _ in poll.poll()):
            return
        os.read(wakes, 64)


def _ended_children() -> Iterator[tuple[int, int]]:
    """Yields the ended children, each with its status in the form of `waitpid`.

    A child is reaped only when the next one is requested, so the kernel disappears only after the report.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        core = 0x80 if ended.si_code == os.CLD_DUMPED else 0
        yield ended.si_pid, ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status | core
        os.waitpid(ended.si_pid, 0)


def _end_all(children: int) -> None:
    """Kills the children of this process until there are none. Orphans of killed processes become its children.

    `children`: the open file in `/proc` that lists the children.
    """
    while True:
        for child in os.pread(children, 1 << 20, 0).split():
            os.kill(int(child), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _limit_processes(wanted: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def _keep_only(connection: int) -> None:
    """Closes all other descriptors, so that the connection and output of the kernel close when the kernel ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.closerange(3, connection)
    os.closerange(connection + 1, os.sysconf("SC_OPEN_MAX"))
