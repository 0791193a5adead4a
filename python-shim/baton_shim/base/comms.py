"""Comms and widgets that `%%gpu` cells open. A client's messages reach the notebook kernel, so there they are at home.

In: what a cell opened and closed in the session, with the objects that listen, which keep their ids. Out: the same
comms in the notebook kernel, where callbacks run like those of any other widget, with the notebook's variables.

**Invariant:** a message to a comm of the running cell waits until the comm is here; no copy of a comm closes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from comm.base_comm import BaseComm

KEPT_MESSAGES = 1000
"""For one running cell; what comes after these is lost, as a message to an unknown comm is."""


class SessionComms:
    """What is open in the session and what the notebook knows of it."""

    def __init__(self, kernel: Any) -> None:
        self._manager = kernel.comm_manager
        self._closed: list[str] = []
        self._told: set[str] = set()
        self._targets = dict(self._manager.targets)
        self._manager.unregister_comm = self._unregister
        keep_open()

    def depart(self) -> dict[str, Any] | None:
        """None where the cell did nothing of the kind."""
        comms, targets = self._manager.comms, self._manager.targets
        opened = {comm_id: comm for comm_id, comm in comms.items() if comm_id not in self._told}
        served = {name: call for name, call in targets.items() if self._targets.get(name) is not call}
        served = {name: call for name, call in served.items() if getattr(call, "__module__", "") == "__main__"}
        closed, self._closed = self._closed, []
        if not (opened or closed or served):
            return None
        self._told.update(opened)
        self._targets.update(served)
        return {"opened": opened, "closed": closed, "targets": served}

    def _unregister(self, comm: Any) -> None:
        """Also one that the notebook opened, which is not registered here."""
        self._manager.comms.pop(comm.comm_id, None)
        self._told.discard(comm.comm_id)
        self._closed.append(comm.comm_id)


class HomeComms:
    """The notebook kernel's comms."""

    def __init__(self, kernel: Any) -> None:
        self._manager = kernel.comm_manager
        self._early: list[Callable[[], Any]] = []
        self._waiting = False
        for kind in ("comm_msg", "comm_close"):
            kernel.shell_handlers[kind] = self._patiently(kernel.shell_handlers[kind])
        keep_open()

    def cell_begins(self) -> None:
        self._waiting = True

    def land(self, said: dict[str, Any] | None) -> None:
        if said is None:
            return
        for comm in said["opened"].values():
            self._manager.register_comm(comm)
            widgets()[comm.comm_id] = listener(comm)
        for comm_id in said["closed"]:
            self._manager.comms.pop(comm_id, None)
            widgets().pop(comm_id, None)
        self._manager.targets.update(said["targets"])

    def cell_ends(self) -> None:
        """Delivers what came for comms of the cell while it ran."""
        self._waiting = False
        early, self._early = self._early, []
        for deliver in early:
            deliver()

    def _patiently(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Messages come while a cell runs if the client uses a subshell for them."""

        def handle_or_keep(stream: Any, identity: Any, message: dict[str, Any]) -> Any:
            unknown = message["content"].get("comm_id") not in self._manager.comms
            if self._waiting and unknown and len(self._early) < KEPT_MESSAGES:
                self._early.append(lambda: handle(stream, identity, message))
                return None
            return handle(stream, identity, message)

        return handle_or_keep


def listener(comm: Any) -> Any:
    """The widget, where it is one."""
    return getattr(comm._msg_callback, "__self__", None)


def widgets() -> dict[str, Any]:
    """Where ipywidgets looks for the widget of a model."""
    found: dict[str, Any] = getattr(sys.modules.get("ipywidgets.widgets.widget"), "_instances", {})
    return found


def keep_open() -> None:
    """A comm says goodbye when its last reference goes; but the copy in the other kernel may be shown."""
    BaseComm.__del__ = lambda comm: None
