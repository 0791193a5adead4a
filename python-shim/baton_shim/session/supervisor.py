"""The parent of a sandboxed session's kernel.

It reports how the kernel ended and keeps the sandbox alive until the worker lets go, because keepers of the session's
memory may have to outlive the kernel.

**Invariant:** it runs none of the student's code, and ends with the sandbox.
"""

from __future__ import annotations

import os
import resource

SUPERVISOR = "BATON_SUPERVISOR_DESCRIPTOR"
"""Names the connection on which the supervisor reports, in a session that has one."""


PROCESS_LIMIT = "BATON_PROCESS_LIMIT"
"""How many processes and threads the sandbox may have, where no control group limits them.

The system counts them for each user namespace, so the limit has to be set inside.
"""


def supervise() -> None:
    """Returns in the kernel, which becomes a child of this process. Without a supervisor it does nothing."""
    text = os.environ.pop(SUPERVISOR, "")
    if not text:
        return
    connection = int(text)
    limit = os.environ.pop(PROCESS_LIMIT, "")
    if limit:
        _limit_processes(int(limit))
    kernel = os.fork()
    if kernel == 0:
        os.close(connection)
        os.setpgid(0, 0)  # an interrupt is for the kernel and what it starts
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
        return
    _keep_only(connection)
    ended = 0
    while ended != kernel:
        ended, status = os.waitpid(-1, 0)
    os.write(connection, status.to_bytes(4, "little"))
    os.read(connection, 1)  # ends when the worker closes its end
    os._exit(0)


def _limit_processes(wanted: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def _keep_only(connection: int) -> None:
    """The kernel alone holds its connection and its output, so that their ends are seen."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.closerange(3, connection)
    os.closerange(connection + 1, os.sysconf("SC_OPEN_MAX"))
