"""Names that a cell binds before reading them are not sent, and only names that it certainly reads may stop it."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import types
from typing import Any

import pytest
from baton_shim.notebook import analysis
from baton_shim.notebook.first_uses import FirstUses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

transform = TransformerManager().transform_cell


@pytest.mark.parametrize(
    ("source", "needed", "certain"),
    [
        ("with a() as b: c = b.read()", "a", "a"),
        ("b = a(b)", "a b", "a b"),
        ("b = a()\nb.c()", "a", "a"),
        ("for b in a: b", "a", "a"),
        ("for b in a: pass\nb", "a b", "a"),
        ("for b in a:\n    c = b\n    c", "a", "a"),
        ("for b in a: break\nelse: b = 1\nb", "a", "a"),
        ("while a: b = 1\nb", "a b", "a"),
        ("while True:\n    b = 1\n    if b: break\nb", "", ""),
        ("import a as b\nb.c", "", ""),
        ("from a import b, c\nb, c", "", ""),
        ("from a import *\nb", "b", ""),
        ("if a: b = 1\nelse: b = 2\nb", "a", "a"),
        ("if a: b = 1\nb", "a b", "a"),
        ("if a: b", "a b", "a"),
        ("a and b", "a b", "a"),
        ("b if a else c", "a b c", "a"),
        ("a < b < c", "a b c", "a b"),
        ("try: b = a()\nexcept OSError: b = None\nb", "a", "a"),
        ("try: b = a()\nfinally: b", "a b", "a"),
        ("try: b = a()\nfinally: c = 1\nb, c", "a", "a"),
        ("try: b = a()\nexcept OSError: raise\nb", "a", "a"),
        ("with a: b = 1\nb", "a b", "a"),  # it may swallow an error before the binding
        ("with a as b, b.c as d: d", "a", "a"),
        ("try: import x; a.b()\nexcept ImportError: pass\nc", "a c", "c"),
        ("try:\n    a(b)\n    c\nexcept OSError: pass", "a b c", "a"),
        ("try:\n    x = 1\n    a\nexcept OSError: pass", "a", "a"),
        ("try: a(b)\nexcept OSError: raise", "a b", "a b"),
        ("try: a(b)\nfinally: c", "a b c", "a b c"),
        ("try: a + 1\nexcept OSError: b\nelse: c", "a b c", "a"),
        ("try:\n    try: a()\n    finally: b\nexcept OSError: pass\nc", "a b c", "a c"),
        ("with suppress(a):\n    b()\n    c", "a b c", "a b"),
        ("with a.no_grad(): b(c)", "a b c", "a b c"),
        ("with open(a) as x: b(x, c)", "a b c", "a b c"),
        ("match a:\n    case 1: b = 1\n    case _: b = 2\nb", "a", "a"),
        ("match a:\n    case 1: b = 1\n    case c: b = c\nb, c", "a c", "a"),
        ("match a:\n    case 1: b = 1\n    case _ if c: b = 2\nb", "a b c", "a"),
        ("match a:\n    case [b, *c]: b, c\n    case {'d': 1, **d}: d", "a", "a"),
        ("match a:\n    case b if c: b", "a c", "a"),
        ("b += 1", "b", "b"),
        ("del b", "", ""),
        ("b = 1\ndel b", "", ""),
        ("del b\nb", "b", ""),
        ("del b\neval(a)", "a b", ""),
        ("%time del b", "b", ""),
        ("try: a\nexcept OSError as b: b", "a", "a"),
        ("try: a\nexcept OSError as b: b\nb", "a b", "a"),
        ("[b for b in a]", "a", "a"),
        ("[c for b in a]", "a c", "a"),
        ("b = 1\n[b for c in a]", "a", "a"),
        ("[(b := c) for c in a]\nb", "a b", "a"),
        ("(b := a)\nb", "a", "a"),
        ("a or (b := 1)\nb", "a b", "a"),
        ("def c():\n    return b\nb = 1\nc()", "b", ""),
        ("b = 1\ndef c():\n    return b\nc()", "", ""),
        ("def c():\n    global b\n    b = 1\nc()\nb", "b", ""),
        ("lambda c=a: b", "a b", "a"),
        ("class c(a):\n    b = b", "a b", "a"),
        ("b: a = 1\nb", "a", ""),
        ("b: a\nb", "a b", "b"),
        ("assert a, b", "a b", "a"),
        ("if a: raise b\nc", "a b c", "a"),
        ("exec('b = 1')\nb", "b", ""),
        ("%time b = a\nb", "a b", ""),
        ("%%time\nb = a\nb", "a", ""),
        ("x[a] = b", "a b", "a b"),
        ("b, c = a\nb[c]", "a", "a"),
        ("(a)(*b, **c)", "a b c", "a b c"),
        ("f'{a:{b}}'", "a b", "a b"),
    ],
)
def test_what_a_cell_does_first(source: str, needed: str, certain: str) -> None:
    namespace: dict[str, Any] = {name: [object()] for name in "abcd"}
    found = needed_by(source, namespace)
    assert (" ".join(sorted(found.names | found.wished)), " ".join(sorted(found.certain))) == (needed, certain)


def test_what_functions_of_the_notebook_bind_is_not_certain() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "file": object()}
    exec("def begin():\n    global file\n    file = []", namespace)
    assert needed_by("begin()\nfile.append(1)", namespace).certain == {"begin"}


NOTEBOOK = """
import contextlib, os
def reads(): return a
def binds():
    global b
    b = 1
def fails(): raise ValueError
a, b, c = 0, 1, 2
"""
OLD_VALUES = ("[3]", "(n for n in (3, 4))", "open(os.devnull)")
"""Of `d`: some of them cannot be sent, so the cell is refused if it is certain to read `d`."""
NAMES = ("a", "b", "c", "d", "e")
names = st.sampled_from(NAMES)


def expressions() -> Any:
    plain = st.one_of(names, st.sampled_from(("0", "1", "[2]", "reads()", "binds()", "fails()", "next(d, 0)")))
    return st.recursive(
        plain,
        lambda inner: st.one_of(
            st.builds("({} + {})".format, inner, inner),
            st.builds("({} and {})".format, inner, inner),
            st.builds("({} if {} else {})".format, inner, inner, inner),
            st.builds("(0 < {} < {})".format, inner, inner),
            st.builds("({} := {})".format, names, inner),
            st.builds("[{} for {} in [{}] if {}]".format, inner, names, inner, inner).filter(is_python),
            st.builds("list({} for {} in [{}])".format, inner, names, inner).filter(is_python),
            st.builds("(lambda {}={}: {})()".format, names, inner, inner),
            st.builds("eval('{}')".format, names),
        ),
        max_leaves=4,
    )


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
        compile(text, "<text>", "exec")
    except SyntaxError:
        return False
    return True


def blocks(depth: int) -> Any:
    return st.lists(statements(depth), min_size=1, max_size=3).map("\n".join)


def indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def statements(depth: int = 2) -> Any:
    value = expressions()
    simple = [
        st.builds("{} = {}".format, names, value),
        st.builds("{} = {}".format, names, value),
        st.builds("{}, {} = 1, {}".format, names, names, value),
        st.builds("{} += {}".format, names, value),
        st.builds("{}: {} = {}".format, names, value, value),
        st.builds("del {}".format, names),
        st.builds("import math as {}".format, names),
        st.builds("assert {}".format, value),
        st.builds("exec('{} = 1')".format, names),
        st.sampled_from(("raise ValueError", "pass")),
        value,
    ]
    if not depth:
        return st.one_of(simple)
    body = blocks(depth - 1).map(indented)
    nested = [
        st.builds("if {}:\n{}\nelse:\n{}".format, value, body, body),
        st.builds("for {} in [{}][:{}]:\n{}".format, names, value, value, body),
        st.builds("for {} in [1, 2]:\n{}\n    if {}: {}\nelse:\n{}".format, names, body, value, LEAVE, body),
        st.builds("while {}:\n{}\n    break\nelse:\n{}".format, value, body, body),
        st.builds("while True:\n{}\n    if {}: continue_ = 1\n    break".format, body, value),
        st.builds("try:\n{}\nexcept (ValueError, NameError) as {}:\n{}".format, body, names, body),
        st.builds("try:\n{}\nexcept ZeroDivisionError:\n{}\nelse:\n{}\nfinally:\n{}".format, body, body, body, body),
        st.builds("with contextlib.suppress(Exception) as {}:\n{}".format, names, body),
        st.builds("def {}():\n    global {}\n{}\n{}()".format, names, names, body, names),
        st.builds("def {}(e={}):\n{}".format, names, value, body),
        st.builds("class {}:\n{}".format, names, body),
        st.builds("match {}:\n    case [{}]:\n{}\n    case 1:\n        pass".format, value, names, body.map(indented)),
        st.builds("match {}:\n    case 1:\n{}\n    case _:\n{}".format, value, *[body.map(indented)] * 2),
    ]
    return st.one_of([*simple, *nested])


LEAVE = st.sampled_from(("break", "continue"))


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@settings(
    max_examples=int(os.environ.get("BATON_TEST_EXAMPLES", "200")),
    derandomize="BATON_TEST_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(blocks(2).filter(is_python), st.sampled_from(OLD_VALUES))
def test_a_cell_runs_the_same_with_the_names_that_it_needs_alone(source: str, old: str) -> None:
    plain, home = notebook(old), notebook(old)
    error = run(source, plain)
    found = needed_by(source, home)
    marks = {name: object() for name in found.deleted}
    session = {name: home[name] for name in found.names | found.wished} | marks
    for value in session.values():
        if isinstance(value, types.FunctionType):
            session[value.__name__] = types.FunctionType(value.__code__, session, value.__name__)
    before = set(session)
    assert run(source, session) == error
    for name in [name for name, mark in marks.items() if session.get(name) is mark]:
        del session[name]
        before.discard(name)
    for name in before - session.keys():
        del home[name]
    home.update((name, value) for name, value in session.items() if not name.startswith("__"))
    assert drawn(home) == drawn(plain)
    if error is None:
        first = first_uses(source, old)
        assert {name: first.get(name) for name in found.certain} == dict.fromkeys(found.certain, "read")


class Watched(dict[str, Any]):
    """The names of a module's code: records what is done first with each."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__()
        self.namespace = namespace
        self.first: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        self.first.setdefault(name, "read")
        return self.namespace[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.first.setdefault(name, "bind")
        self.namespace[name] = value

    def __delitem__(self, name: str) -> None:
        self.first.setdefault(name, "delete")
        del self.namespace[name]


def first_uses(source: str, old: str) -> dict[str, str]:
    watched = Watched(notebook(old))
    exec(compile(source, "<cell>", "exec", dont_inherit=True), watched.namespace, watched)
    return watched.first


def needed_by(source: str, namespace: dict[str, Any]) -> analysis.Needed:
    found = analysis.of_cell(source, transform)
    return analysis.needed(found, namespace, analysis.visible_names(namespace, {}))


def notebook(old: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(f"{NOTEBOOK}d = {old}", namespace)
    return namespace


def run(source: str, namespace: dict[str, Any]) -> str | None:
    namespace.setdefault("__name__", "__main__")
    namespace.setdefault("contextlib", contextlib)
    try:
        exec(compile(source, "<cell>", "exec", dont_inherit=True), namespace)
    except Exception as error:
        return type(error).__name__
    return None


def drawn(namespace: dict[str, Any]) -> dict[str, str]:
    return {
        name: type(value).__name__
        if callable(value) or isinstance(value, types.ModuleType)
        else re.sub(" at 0x[0-9a-f]+", "", repr(value))
        for name, value in namespace.items()
        if not name.startswith("__")
    }


def test_each_kind_of_syntax_is_followed() -> None:
    """`FirstUses` handles everything in the grammar, because it reads each child in order."""
    tree = ast.parse("async def f():\n    async with a as b: pass\n    async for c in d: await b\n    yield c")
    assert FirstUses(tree).read >= {"a", "d"}
