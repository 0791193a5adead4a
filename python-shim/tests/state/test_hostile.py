"""Objects that fail or lie when they are examined: each is sent, or stays and is reported. All others are sent."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
from baton_shim.notebook import analysis
from harness import Pair, Refused
from IPython.core.inputtransformer2 import TransformerManager

METHODS = (
    *(
        "__class__",
        "__reduce_ex__",
        "__reduce__",
        "__getstate__",
        "__getattribute__",
        "__getattr__",
        "__eq__",
        "__hash__",
    ),
    *("__len__", "__bool__", "__iter__", "__dict__", "__module__", "__qualname__", "__name__", "__slots__", "__repr__"),
    *("__getnewargs__", "__getnewargs_ex__", "__setattr__", "__array__", "__dir__", "shape", "fileno"),
)
ANSWERS = {
    "raises": "raise {error}('hostile')",
    "nothing": "return None",
    "another": "return int",
    "itself": "return self",
    "text": "return 'no_such_name'",
    "tuple": "return (int,)",
    "wrong": "return int, 5, 'x', 7, 8, 9",
    "generator": "return list, (), None, (1 / 0 for n in [1])",
}
ERRORS = ("ValueError", "AttributeError", "KeyError", "RecursionError", "SystemError")
OTHERS = {
    "a type whose metaclass fails": "class Meta(type):\n    def __getattribute__(cls, name): raise ValueError(name)\n"
    "class Hostile(metaclass=Meta): pass\nx = type.__call__(Hostile)",
    "a metaclass that lies": "class Meta(type):\n    __instancecheck__ = lambda *_: 1 / 0\n    __eq__ = lambda *_: 1 / 0\n"
    "    __hash__ = type.__hash__\nclass Hostile(metaclass=Meta): pass\nx = Hostile()",
    "a proxy for what is gone": "import weakref\nclass A: pass\nx = weakref.proxy(A())",
    "a proxy by hand": "class Proxy:\n    def __init__(self, of): object.__setattr__(self, 'of', of)\n"
    "    def __getattribute__(self, name): return getattr(object.__getattribute__(self, 'of'), name)\nx = Proxy([1])",
    "a bag": "class Bag:\n    def __init__(self): self.n = 1\n    def __getattribute__(self, name): raise AttributeError(name)\n"
    "x = object.__new__(Bag)",
    "a list that fails": "class L(list):\n    def __iter__(self): raise ValueError\nx = L([1, 2])",
    "a dict that fails": "class D(dict):\n    def items(self): raise ValueError\n    def __iter__(self): raise ValueError\nx = D(a=1)",
}  # fmt: skip
OTHERS |= {
    f"{method} of {base} that says {wrong}": (
        f"class Hostile({base}):\n    def {method}(self): return {wrong}\n"
        f"    def __new__(cls, *arguments): return {base}.__new__(cls, *arguments[:1])\nx = Hostile()"
    )
    for method, wrongs in {
        "__getnewargs__": ("('x',)", "(object(), [])", "[1]", "((1 / 0) for _ in 'a')"),
        "__getnewargs_ex__": ("(('x',), {'no': 1})", "((), {1: 2})", "(1, 2)", "()"),
    }.items()
    for wrong in wrongs
    for base in ("int", "float", "str", "bytes", "tuple", "frozenset", "list", "dict", "complex", "object")
}


def classes() -> dict[str, str]:
    made = dict(OTHERS)
    for method in METHODS:
        for answer, body in ANSWERS.items():
            for error in ERRORS if answer == "raises" else ERRORS[:1]:
                decorator = (
                    "" if method.startswith("__") and method not in ("__class__", "__dict__") else "@property\n    "
                )
                code = (
                    f"class Hostile:\n    {decorator}def {method}(self, *_): {body.format(error=error)}\n"
                    "x = object.__new__(Hostile)"
                )
                made[f"{method} {answer} {error if answer == 'raises' else ''}"] = code
    return made


CLASSES = classes()


@pytest.mark.parametrize("held", ["x", "[x]", "{'k': x}", "(x, 1)", "Holder(x)"])
@pytest.mark.parametrize("answers", ["raises", ""])
def test_hostile_objects(processes: Pair, held: str, answers: str) -> None:
    """Used certainly, perhaps, or held: the cell's other names are sent, and a refusal names the variable."""
    wrong = []
    for name, code in CLASSES.items():
        if ("raises" in name) != bool(answers):
            continue
        try:
            check(processes, code, held)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            processes.lose_session()
    assert not wrong, "\n".join([str(len(wrong)), *wrong])


def check(pair: Pair, code: str, held: str) -> None:
    pair.start_anew()
    try:
        exec(
            f"class Holder:\n    def __init__(self, x): self.x = x\n{code}\nheld = {held}\nother = [1]", pair.namespace
        )
    except Exception:
        return  # there can be no such object
    certain = frozenset({"other"})
    for n in (2, 3):
        said = pair.remote("other.append(len(other) + 1)", "other", "held", certain=certain)
        assert said == {"error": None}, said
        assert pair.namespace["other"] == [*range(1, n + 1)]
    with contextlib.suppress(Refused), named("held"):
        said = pair.remote("other.append(4)", "other", "held")
        assert said == {"error": None}, said


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """A refusal inside is about this variable or a part of it."""
    try:
        yield
    except Refused as refused:
        if not refused.path.startswith(name):
            raise AssertionError(f"refused: {refused.path}") from None
        raise


@pytest.mark.parametrize("answers", ["raises", ""])
def test_hostile_objects_that_the_session_made(processes: Pair, answers: str) -> None:
    """The cell's other changes arrive, and the next cell continues from them."""
    wrong = []
    for name, code in CLASSES.items():
        if ("raises" in name) != bool(answers):
            continue
        processes.start_anew()
        processes.namespace["other"] = [1]
        try:
            said = processes.remote(f"{code}\nheld = [x]\nother.append(2)\nnew = 7", "other")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            processes.lose_session()
            continue
        if said["error"] is None:  # otherwise there can be no such object
            home = processes.namespace
            arrived = (home["other"], home["new"], processes.remote("other.append(3)", "other"), home["other"])
            if arrived != ([1, 2, 3], 7, {"error": None}, [1, 2, 3]):
                wrong.append(f"{name}: {arrived}")
    assert not wrong, "\n".join([str(len(wrong)), *wrong])


@pytest.mark.parametrize("cell", ["x", "len(held)", "f()"])
def test_hostile_objects_of_a_cell_are_analysed(cell: str) -> None:
    wrong = []
    for name, code in CLASSES.items():
        namespace: dict[str, object] = {"__name__": "__main__"}
        try:
            exec(f"{code}\nheld = [x]\ndef f(): return held, x", namespace)
        except Exception:
            continue  # there can be no such object
        try:
            found = analysis.of_cell(cell, TransformerManager().transform_cell)
            needed = analysis.needed(found, namespace, analysis.visible_names(namespace, {}))
            assert needed.names & {"x", "held"}
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join([str(len(wrong)), *wrong])


SLOW = """
asked = []
class Slow:
    @property
    def value(self): return asked.append("value") or 1
    shape = fileno = name = closed = tzinfo = dtype = value
    def __getattr__(self, name): asked.append(name); raise AttributeError(name)
x = Slow(); x.n = 1
held = [x, lambda: x]
"""


def test_properties_are_not_read(processes: Pair) -> None:
    processes.start_anew()
    processes.local(SLOW)
    home = processes.namespace
    for cell in ("x", "held"):
        found = analysis.of_cell(cell, TransformerManager().transform_cell)
        assert analysis.needed(found, home, {"x", "held"}).names >= {"x"}
    assert not home["asked"]
    for n in (2, 3):
        assert processes.remote(f"x.n = {n}", "x", "held") == {"error": None}
        assert home["held"][1]().n == n
    assert not [name for name in home["asked"] if not name.startswith("__")]


def test_a_library_that_a_test_has_replaced(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in place of its classes claims no object."""
    monkeypatch.setitem(sys.modules, "pyarrow", MagicMock())
    pair.local("class P: pass\np = P(); p.n = 1")
    for n in (1, 2):
        pair.local(f"p.n = {n}")
        assert pair.remote("seen = p.n", "p") == {"error": None}
        assert pair.namespace["seen"] == n


ARCHIVE = """
import numpy as np, os, tempfile
path = os.path.join(tempfile.mkdtemp(), "x.npz")
np.savez(path, a=np.arange(5), b=np.ones((300, 300)))
def look(z): return repr(z), z.files, int(z["a"].sum()), float(z["b"].sum()), z.f.a.tolist(), "a" in z
"""


def test_archives_of_numpy(pair: Pair) -> None:
    pair.local(ARCHIVE + "x = np.load(path)\nhere = look(x)")
    assert pair.remote("found = look(x); y = np.load(path); same = x", "x", "look", "np", "path") == {"error": None}
    pair.local("again = look(y)")
    home = pair.namespace
    assert home["found"] == home["here"] == home["again"]
    assert home["same"] is home["x"]
    assert pair.remote("x.close(); y.close()", "x", "y") == {"error": None}
    assert home["y"].zip is home["x"].zip is None
    pair.local("with np.load(path) as z: pass")
    assert pair.remote("closed = z.zip is None, z.files", "z") == {"error": None}
    assert home["closed"] == (True, ["a", "b"])
