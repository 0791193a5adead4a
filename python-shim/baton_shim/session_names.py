"""Which names of a session's namespace are live in a cell, and which of them changed.

A session is warm: it holds what earlier cells brought. A value that the present cell did not bring up to date is
put aside for the time of the cell, so that a look-up that the analysis missed is a NameError and never an old value.

**Invariant:** what a cell reports is what it was sent or what it bound; an old value never goes home.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# What IPython itself puts into a namespace.
OF_IPYTHON = re.compile(
    r"_{1,3}|_i{1,3}|_i?\d+|_ih|_oh|_dh|In|Out|exit|quit|open|get_ipython|__(?:builtin|builtins|name|doc|"
    r"package|loader|spec|annotations|session)__"
)


def of_ipython(name: str) -> bool:
    return OF_IPYTHON.fullmatch(name) is not None


class SessionNames:
    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._aside: dict[str, Any] = {}
        self._known: set[str] = set()
        """Names of the notebook that have been here."""
        self._sent: set[str] = set()
        self._before: dict[str, Any] = {}

    def whole(self) -> None:
        """Before a message of the other table is applied."""
        for name, value in self._aside.items():
            self._namespace.setdefault(name, value)  # the last cell may have made a new one of that name
        self._aside.clear()

    def begin(self, sent: Iterable[str]) -> None:
        """Right after the message: `sent` are the names that the cell may use."""
        self._sent = set(sent)
        self._known |= self._sent
        for name in self._known - self._sent:
            if name in self._namespace:
                self._aside[name] = self._namespace.pop(name)
        self._before = dict(self._namespace)

    def changed(self, stored: Iterable[str], dropped: Iterable[str] = ()) -> tuple[list[str], list[str]]:
        """Names to report and names that are gone.

        `stored` are IPython's own names that the cell's code assigns, `dropped` those that stay here in any case.
        """
        namespace, before = self._namespace, self._before
        own = set(stored)
        missing = object()
        bound = {name for name, value in namespace.items() if before.get(name, missing) is not value}
        report = {name for name in bound | self._sent if name in namespace}
        gone = {name for name in before if name not in namespace}
        self._before = {}
        report -= set(dropped)
        gone -= set(dropped)
        return (
            sorted(name for name in report if is_name(name) and (name in own or not of_ipython(name))),
            sorted(name for name in gone if is_name(name) and (name in own or not of_ipython(name))),
        )

    def went_home(self, names: Iterable[str], gone: Iterable[str]) -> None:
        self._known |= set(names)
        self._known -= set(gone)


def is_name(name: object) -> bool:
    return isinstance(name, str)
