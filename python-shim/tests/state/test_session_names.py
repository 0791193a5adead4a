"""What a cell of a session reports, while a thread of an earlier cell binds further names."""

from __future__ import annotations

from typing import Any

import pytest
from baton_shim.state import Table
from baton_shim.state.numbering import Numbering
from baton_shim.state.session_names import SessionNames
from harness import Pair


class Racing(str):
    """A name at whose look-up a thread binds another."""

    namespace: dict[str, Any] | None = None

    def __hash__(self) -> int:
        if self.namespace is not None:
            self.namespace[f"of_a_thread_{len(self.namespace)}"] = 1
        return super().__hash__()


def test_a_thread_that_binds_names_at_the_end_of_a_cell() -> None:
    name = Racing("a")
    namespace: dict[str, Any] = {name: 1, "b": 2}
    names = SessionNames(namespace)
    names.begin(["b"], [], [])
    namespace["b"] = 3
    name.namespace = namespace
    report, gone = names.changed([])
    assert "b" in report and not gone


def test_a_thread_that_binds_names_while_memory_is_chosen(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.local("import numpy as np\na = np.zeros(3)")
    pair.remote("a += 1", "a")

    def number(_: Numbering, value: object) -> None:
        pair.namespace[f"of_a_thread_{len(pair.namespace)}"] = value

    monkeypatch.setattr(Numbering, "number", number)
    assert pair.table.deferred.names([]) == []
    assert pair.table.deferred._unnamed_views(set())


def test_a_thread_that_deletes_a_name_at_the_end_of_a_cell(pair: Pair) -> None:
    """It does so at the first look-up of the name."""

    class Deleting(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            found = super().__contains__(name)
            self.pop("a", None)
            return found

    table = Table(Deleting(a=[1], b=[2]))
    table.snapshot(["a", "b"])
    assert table.knows(table.namespace["b"])
