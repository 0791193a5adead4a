"""Search trees of SciPy and decision trees of scikit-learn: C objects with arrays that view their memory or own it."""

from __future__ import annotations

from typing import Any

from baton_shim.state.kinds.base import Kind, State, imported
from baton_shim.state.kinds.reduced import ReducedForm, ReducedKind, reduced_form

_OF_SEARCH_TREE = {1: "data", 5: "maxes", 6: "mins", 7: "indices"}
_OF_DECISION_TREE = ("nodes", "values")


def is_search_tree_type(kind: type) -> bool:
    return issubclass(kind, imported("scipy.spatial._ckdtree", "cKDTree"))


def is_decision_tree_type(kind: type) -> bool:
    return issubclass(kind, imported("sklearn.tree._tree", "Tree"))


class SearchTreeKind(ReducedKind):
    """`scipy.spatial.KDTree`. Its own pickling copies the points, which are the array that it was built from."""

    name = "search tree"

    def form(self, obj: Any) -> ReducedForm:
        form = reduced_form(obj)
        assert form is not None
        function, arguments, state, items, pairs = form
        if type(state) is tuple:
            state = tuple(getattr(obj, _OF_SEARCH_TREE.get(n, ""), part) for n, part in enumerate(state))
        return function, arguments, state, items, pairs

    def reduce(self, obj: Any) -> Any:
        return self.form(obj)[:3]  # type: ignore[index]


class DecisionTreeKind(Kind):
    """`sklearn.tree._tree.Tree`: two pieces of memory, which can be changed only through arrays that view them."""

    name = "decision tree"
    changes = True

    def reduce(self, obj: Any) -> Any:
        function, arguments, state = obj.__reduce__()
        return function, arguments, {**state, **{name: state[name].copy() for name in _OF_DECISION_TREE}}

    def read(self, obj: Any) -> State:
        return tuple(as_bytes(part).tobytes() for part in memory_of(obj))

    def same(self, obj: Any, state: State) -> bool:
        return all(as_bytes(part) == old for part, old in zip(memory_of(obj), state, strict=True))

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        return [part.nbytes for part in memory_of(obj)] != [len(part) for part in old]

    def apply(self, obj: Any, content: Any) -> None:
        for part, new in zip(memory_of(obj), content, strict=True):
            as_bytes(part)[:] = new


def memory_of(tree: Any) -> list[Any]:
    """An array for each piece of the tree's own memory."""
    state = tree.__getstate__()
    return [state[name] for name in _OF_DECISION_TREE]


def as_bytes(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view("u1"))
