"""Comms and widgets that `%%gpu` cells open. Messages from clients reach the notebook kernel, so comms live there.

In: the comms that a cell opened and closed in the session, with their listeners; all keep their ids. Out: the same
comms in the notebook kernel, where callbacks run like those of any other widget, with the notebook's variables.

**Invariant:** a message to a comm of the running cell waits until the comm has arrived; no copy of a comm closes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from comm.base_comm import BaseComm

from baton_shim.base.undoing import OnUndo, refill

KEPT_MESSAGES = 1000
"""For one running cell. Further messages are lost, like any message to an unknown comm."""


class SessionComms:
    """The comms that are open in the session, and which of them the notebook knows."""

    name, title = "comms", "Comms and widgets"

    def __init__(self, kernel: Any) -> None:
        self._manager = kernel.comm_manager
        self._closed: list[str] = []
        self._next: dict[str, Any] = {}
        self._sent: set[str] = set()
        self._targets = dict(self._manager.targets)
        self._manager.unregister_comm = self._unregister
        keep_open()

    def look(self) -> dict[str, Any] | None:
        """What cells have done with comms since the last commit."""
        comms, targets = self._manager.comms, self._manager.targets
        opened = {comm_id: comm for comm_id, comm in comms.items() if comm_id not in self._sent}
        served = {name: call for name, call in targets.items() if self._targets.get(name) is not call}
        served = {name: call for name, call in served.items() if getattr(call, "__module__", "") == "__main__"}
        self._next = {"opened": opened, "closed": list(self._closed), "targets": served}
        return self._next if any(self._next.values()) else None

    def commit(self, undo: OnUndo) -> None:
        self._sent.update(self._next["opened"])
        self._targets.update(self._next["targets"])
        del self._closed[: len(self._next["closed"])]

    def apply(self, said: dict[str, Any], undo: OnUndo) -> None:
        """The notebook sends nothing about comms."""

    def restart(self) -> None:
        """Nothing to do: a session has the same notebook all its life."""

    def _unregister(self, comm: Any) -> None:
        """Accepts comms that the notebook opened, too, which are not registered here."""
        self._manager.comms.pop(comm.comm_id, None)
        self._sent.discard(comm.comm_id)
        self._closed.append(comm.comm_id)


class HomeComms:
    """The notebook kernel's comms."""

    name, title = "comms", "Comms and widgets"

    def __init__(self, kernel: Any) -> None:
        self._manager = kernel.comm_manager
        self._early: list[Callable[[], Any]] = []
        self._waiting = False
        for kind in ("comm_msg", "comm_close"):
            kernel.shell_handlers[kind] = self._patiently(kernel.shell_handlers[kind])
        keep_open()

    def cell_begins(self) -> None:
        self._waiting = True

    def look(self) -> None:
        """The notebook's comms stay here, where clients reach them."""

    def commit(self, undo: OnUndo) -> None:
        pass

    def apply(self, said: dict[str, Any], undo: OnUndo) -> None:
        for table in (self._manager.comms, self._manager.targets, widgets()):
            undo(partial(refill, table, dict(table)))
        for comm in said["opened"].values():
            self._manager.register_comm(comm)
            widgets()[comm.comm_id] = listener(comm)
        for comm_id in said["closed"]:
            self._manager.comms.pop(comm_id, None)
            widgets().pop(comm_id, None)
        self._manager.targets.update(said["targets"])

    def restart(self) -> None:
        pass

    def cell_ends(self) -> None:
        """Delivers the messages that arrived for the cell's comms while it ran."""
        self._waiting = False
        early, self._early = self._early, []
        for deliver in early:
            deliver()

    def _patiently(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Keeps messages for the running cell's comms; they arrive if the client uses a subshell for them."""

        def handle_or_keep(stream: Any, identity: Any, message: dict[str, Any]) -> Any:
            unknown = message["content"].get("comm_id") not in self._manager.comms
            if self._waiting and unknown and len(self._early) < KEPT_MESSAGES:
                self._early.append(lambda: handle(stream, identity, message))
                return None
            return handle(stream, identity, message)

        return handle_or_keep


def listener(comm: Any) -> Any:
    """The comm's widget, if it has one."""
    return getattr(comm._msg_callback, "__self__", None)


def widgets() -> dict[str, Any]:
    """The table in which ipywidgets looks up the widget of a model."""
    found: dict[str, Any] = getattr(sys.modules.get("ipywidgets.widgets.widget"), "_instances", {})
    return found


def keep_open() -> None:
    """A comm closes when its last reference goes, but the copy in the other kernel may still be shown."""
    BaseComm.__del__ = lambda comm: None
