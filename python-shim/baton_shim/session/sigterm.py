"""Keeps a session alive when a batch system sends SIGTERM to all processes of its worker's job.

The worker starts a session with the signal ignored. Programs that cells start would inherit that, but not a handler. So
the session has a handler that does nothing.

**Invariant:** processes that cells start react to SIGTERM as usual, and the handler is not an object of the notebook,
which would get it with the cell's changes.
"""

from __future__ import annotations

import os
import signal


def outlive_sigterm() -> None:
    masks: list[set[int]] = []

    def ignore(*_: object) -> None:
        pass

    def block() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) is ignore:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    signal.signal(signal.SIGTERM, ignore)
    # A fork inherits the handler, so it gets the usual behaviour back. Until then the signal waits.
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)
