"""The names of a session's namespace that a cell can use, and which of them changed.

A session is warm: it holds the values of earlier cells. Values that the present cell did not update are set aside
during the cell. So if the analysis missed a name, its look-up requests the value and never finds an old one.

**Invariant:** a cell reports only values that it was sent or that it bound; an old value is never returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# Names that IPython itself puts into a namespace.
OF_IPYTHON = re.compile(
    r"_{1,3}|_i{1,3}|_i?\d+|_ih|_oh|_dh|In|Out|exit|quit|open|get_ipython|__(?:builtin|builtins|name|doc|"
    r"package|loader|spec|annotations|session)__"
)


def of_ipython(name: str) -> bool:
    return OF_IPYTHON.fullmatch(name) is not None


def is_hidden(name: str) -> bool:
    """Whether it may come from IPython or a library: `torch.compile` adds names such as `__compiled_fn_1`."""
    return name.startswith("__") or of_ipython(name)


class SessionNames:
    """The names of one session, as the notebook knows them and as the running cell may use them."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._aside: dict[str, Any] = {}
        self._known: set[str] = set()
        """Names of the notebook that have been sent here."""
        self._sent: set[str] = set()
        self._before: dict[str, Any] = {}
        self._stand_ins: dict[str, Any] = {}
        self._marks: dict[str, object] = {}
        """Marks that are bound to names of the notebook that the cell may only delete."""
        self._refused: dict[str, tuple[str, str | None]] = {}
        """Names that were requested and cannot be sent, each with the reason and a hint."""
        self.missing: set[str] = set()
        """Names of the notebook that the cell was not given."""

    def whole(self) -> None:
        """Called before a message of the other table is applied."""
        for name, value in self._aside.items():
            self._namespace.setdefault(name, value)  # the last cell may have created a new one of that name
        self._aside.clear()
        for name, value in self._stand_ins.items():
            if self._namespace.get(name) is value:
                del self._namespace[name]
        self._stand_ins.clear()

    def begin(self, sent: Iterable[str], notebook: Iterable[str], deleted: Iterable[str]) -> None:
        """Called right after the message. `sent`: the names that the cell may use. `notebook`: all names of the
        notebook. `deleted`: those that the cell may delete and does not read.
        """
        self._sent = set(sent)
        self._refused.clear()
        self._known |= self._sent
        for name in self._known - self._sent:
            if name in self._namespace:
                self._aside[name] = self._namespace.pop(name)
        self._marks = {name: object() for name in deleted}
        self._namespace.update(self._marks)
        self.missing = set(notebook).difference(self._sent, self._namespace)
        self._before = dict(self._namespace)

    def bound(self) -> set[str]:
        return set(self._namespace)

    def on_supplement(
        self,
        names: Iterable[str],
        asked: Iterable[str],
        refused: Mapping[str, tuple[str, str | None]],
        bound: set[str],
    ) -> None:
        """Called right after the answer for `asked`. Names in `bound` were here before it, and remain as they are."""
        self.missing.difference_update(asked, names)
        self._refused.update(refused)
        for name in names:
            old = self._aside.pop(name, self)
            if name not in self._namespace and old is not self:
                self._namespace[name] = old
            if name not in bound and name in self._namespace:
                self._sent.add(name)
                self._before[name] = self._namespace[name]
            self._known.add(name)

    def stand_in(self, names: Iterable[str]) -> None:
        """Puts stand-ins for names that cannot be sent into the namespace."""
        from baton_shim.state import StandIn

        for name in self._refused.keys() & names:
            if name not in self._namespace:
                reason, _ = self._refused[name]
                self._stand_ins[name] = self._before[name] = self._namespace[name] = StandIn(reason)

    def explain(self, name: str) -> None:
        """Raises the reason if the name cannot be sent."""
        from baton_shim.state import StandInError

        if name in self._refused:
            raise StandInError(*self._refused[name])

    def elsewhere(self) -> set[str]:
        """Names of the notebook that the session does not have."""
        return self.missing.union(self._refused)

    def changed(self, stored: Iterable[str], dropped: Iterable[str] = ()) -> tuple[list[str], list[str]]:
        """Names to report, and names that are gone.

        `stored`: hidden names that the cell's code assigns or deletes. `dropped`: names that stay here in any case.
        """
        namespace, before = self._namespace, self._before
        for name, mark in self._marks.items():
            if namespace.get(name) is mark:
                del namespace[name], before[name]
        missing = object()
        now = tuple(namespace.items())  # a thread of an earlier cell may bind names meanwhile
        bound = {name for name, value in now if before.get(name, missing) is not value}
        report = {name for name in bound | self._sent if name in namespace}
        gone = {name for name in before if name not in namespace}
        self._before = {}
        own = {name for name in self._known if not of_ipython(name)}.union(stored)
        sent = {name for name in report | gone if is_name(name) and (name in own or not is_hidden(name))}
        sent.difference_update(dropped)
        return sorted(report & sent), sorted(gone & sent)

    def unsent(self, names: Iterable[str]) -> set[str]:
        """Those of these names that the notebook did not send for this cell."""
        return set(names) - self._sent

    def on_returned(self, names: Iterable[str], gone: Iterable[str]) -> None:
        """The notebook has been sent these names, and has been informed that others are gone."""
        self._known |= set(names)
        self._known -= set(gone)


def is_name(name: object) -> bool:
    return isinstance(name, str)
