"""Which names a cell needs, in many one-line cases."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from baton_shim.notebook import analysis
from baton_shim.notebook.lent import uses_of
from IPython.core.inputtransformer2 import TransformerManager

transform = TransformerManager().transform_cell


def names_of(source: str, definitions: str = "", **values: Any) -> tuple[str, str]:
    """The names that the cell needs, and those that it may use, in a notebook with `definitions` and `values`."""
    namespace: dict[str, Any] = {"__name__": "__main__", **values}
    exec(compile(definitions, "<notebook>", "exec"), namespace)
    found = analysis.of_cell(source, transform)
    needed = analysis.needed(found, namespace, analysis.visible_names(namespace, {}))
    return " ".join(sorted(needed.names)), " ".join(sorted(needed.wished))


def check(source: str, needed: str, wished: str = "", definitions: str = "") -> None:
    values = {name: object() for name in "a b c d".split() if name not in definitions.split()}
    values = {name: [value] for name, value in values.items()}
    assert names_of(source, definitions, **values) == (needed, wished)


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("x = a", "a"),
        ("a = 1", ""),
        ("a = 1\nb = a", ""),
        ("a += 1", "a"),
        ("del a", ""),
        ("a.x = b", "a b"),
        ("a[b] = c", "a b c"),
        ("print(missing)", ""),
        ("for a in b: c", "b c"),
        ("[a for a in b]", "b"),
        ("[b for a in c if d]", "b c d"),
        ("sum(x * a for x in b)", "a b"),
        ("lambda a: a + b", "b"),
        ("def f(a, x=b): return a + c", "b c"),
        ("def f():\n    a = 1\n    return a", ""),
        ("def f():\n    global a\n    a = 1", ""),
        ("def f():\n    def g():\n        return a\n    return g", "a"),
        ("@a\ndef f(): pass", "a"),
        ("class A(a):\n    x = b\n    def m(self): return c", "a b c"),
        ("f'{a!r:>{b}}'", "a b"),
        ("with a as b: c", "a c"),
        ("try:\n    a\nexcept ValueError as b:\n    c", "a c"),
        ("import a\nimport b.c as d", ""),
        ("(a := 1)", ""),
        ("a, *b = c", "c"),
        ("match a:\n    case [b, *_]: c", "a c"),
        ("await a", "a"),
        ("async for x in a: b", "a b"),
        ("async with a as x: pass", "a"),
        ("x: a = b", "a b"),
        ("print('a')", ""),
        ("x.a", ""),
        ("f(a=1)", ""),
        ("# a", ""),
        ("!ls", ""),
        ("%time a", "a"),
        ("%timeit -n 10 -r 2 a + b", "a b"),
        ("%timeit a = 1", ""),
        ("%%time\na", "a"),
        ("%%timeit b\na", "a b"),
        ("%%capture out\nprint(a)", "a"),
        ("%%time\n%%capture out\n!echo\na", "a"),
        ("if a:\n    %time b", "a b"),
        ("if True:\n    import b\n    a", "a"),
    ],
)
def test_names_that_a_cell_uses(source: str, needed: str) -> None:
    values = {name: [object()] for name in "abcd"}
    assert names_of(source, **values)[0] == needed


@pytest.mark.parametrize(
    ("source", "wished"),
    [
        ("!echo {a} $b ${c}", "a b c"),
        ("x = !echo {a[0]} $b", "a b"),
        ("%cd $a", "a"),
        ("a?", "a"),
        ("%load_ext a", "a"),
        ("%%bash\necho $a", ""),
        ("%%writefile a.txt\nb", "a"),
        ("c.query('x > @a')", "a"),
        ("c.query(f'x > @a and y < {d}')", "a"),
        ("c.query('x > @a ' + 'and y < @b')", "a b"),
        ("c.query('x > @a and y < {}'.format(d))", "a"),
        ("q = 'x > @a'\nc.query(q)", "a"),
        ("x.evaluate(f'a + {b}')", "a"),
        ("c.eval('a + ' + 'b')", "a b"),
        ("eval('a + ' + 'b')", ""),
        ("print('me@a.edu')", ""),
        ("eval_of.formula('a ~ b')", "a b"),
        ("eval_of.formula(f'a ~ b + {c}')", "a b"),
        ("print('a b')", ""),
        ("jobs.new('a(b, n=c.d)')", "a b c"),
        ("print('a (b)')", "a b"),
        ("print('a(b) is called')", ""),
        ("try:\n    pass\nexcept ValueError as a:\n    b", ""),  # the message says that `a` exists
    ],
)
def test_names_that_a_cell_may_use(source: str, wished: str) -> None:
    values = {name: [object()] for name in "abcd"}
    needed, found = names_of(source, **values)
    assert " ".join(name for name in found.split() if name not in needed) == wished


@pytest.mark.parametrize(
    "source", ["import __main__", "get_ipython().user_ns", "f.__globals__", "sys._getframe().f_globals"]
)
def test_code_that_looks_into_a_namespace_wishes_for_everything(source: str) -> None:
    assert names_of(source, a=[1], b=[2]) == ("", "a b")


@pytest.mark.parametrize("source", ["eval(x)", "globals()", "dir()", "%who", "vars(x)", "x.eval()", "%run -i x.py"])
def test_what_code_looks_up_dynamically_is_left_to_the_session(source: str) -> None:
    assert names_of(source, a=[1], b=[2]) == ("", "")


@pytest.mark.parametrize(
    ("source", "needed"),
    [("eval('a + 1')", "a"), ("exec('a = b')", "b"), ("exec('del a')", ""), ("eval('not Python')", "")],
)
def test_text_that_is_evaluated(source: str, needed: str) -> None:
    assert names_of(source, a=[1], b=[2])[0] == needed


@pytest.mark.parametrize(
    ("source", "definitions", "needed"),
    [
        ("f()", "def f(): return x\nx = 1", "f x"),
        ("f()", "def f(): return g()\ndef g(): return x\nx = 1", "f g x"),
        ("f()", "def f():\n    def inner(): return x\n    return inner\nx = 1", "f x"),
        ("f()", "def f():\n    global x\n    x += 1\nx = 1", "f x"),
        ("f()", "def f(): return f()\n", "f"),
        ("f()", "def f(y=lambda: x): return y()\nx = 1", "f x"),
        ("f()", "def make():\n    def g(): return x\n    return lambda: g()\nf = make()\nx = 1", "f x"),
        ("f()", "def f(): return y.x\nx = 1\ny = 2", "f y"),
        ("A()", "class A:\n    def m(self): return x\nx = 1", "A x"),
        ("o.m()", "class A:\n    def m(self): return x\no = A()\nx = 1", "o x"),
        ("o.m", "class A:\n    @property\n    def m(self): return x\no = A()\nx = 1", "o x"),
        ("o", "class B:\n    def m(self): return x\nclass A(B): pass\no = A()\nx = 1", "o x"),
        ("o", "class A:\n    @staticmethod\n    def m(): return x\no = [A()]\nx = 1", "o x"),
        ("handlers[0]()", "handlers = [lambda: x]\nx = 1", "handlers x"),
        ("table['f']()", "table = {'f': lambda: x}\nx = 1", "table x"),
        ("p()", "import functools\ndef f(): return x\np = functools.partial(f)\nx = 1", "p x"),
        ("p()", "import functools\n@functools.lru_cache\ndef p(): return x\nx = 1", "p x"),
        (
            "when",
            "import datetime as d\nclass Z(d.tzinfo):\n    def utcoffset(self, _): return x\n"
            "when = d.datetime(2026, 1, 1, tzinfo=Z())\nx = 1",
            "when x",
        ),
        ("f()", "def f(): return table.query('a > @x')\ntable = 1\nx = 1", "f table x"),
        ("f()", "def f(k): return [table.query(f'a > @x + {k}') for _ in k]\ntable = 1\nx = 1", "f table x"),
        ("bound()", "class A:\n    def m(self): return x\nbound = A().m\nx = 1", "bound x"),
    ],
)
def test_what_called_things_use(source: str, definitions: str, needed: str) -> None:
    assert names_of(source, definitions)[0] == needed


@pytest.mark.parametrize(
    ("source", "dynamic"),
    [
        ("eval(x)", True),
        ("def f(): return vars()", True),
        ("exec('a = b')", True),
        ("builtins.eval(x)", True),
        ("get_ipython().ev(x)", True),
        ("%run -i x.py", True),
        ("%time eval(x)", True),
        ("%time $x", True),
        ("get_ipython().run_line_magic('time', x)", True),
        ("evaluate()", True),
        ("b", False),
        ("x.eval()", False),
        ("%matplotlib inline\n!ls", False),
    ],
)
def test_whether_names_may_be_in_text_only(source: str, dynamic: bool) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "b": 1}
    exec("def evaluate(): return eval('b')", namespace)
    found = analysis.of_cell(source, transform)
    assert analysis.needed(found, namespace, analysis.visible_names(namespace, {})).dynamic is dynamic


def test_a_function_that_looks_into_the_namespace_wishes_for_everything() -> None:
    assert names_of("f()", "def f(): return globals()['x']\nx = 1\ng = f") == ("f", "g x")


def test_results_are_sent_when_they_are_named() -> None:
    namespace = {"_": 1, "_3": 2, "Out": {}, "exit": print, "a": [1]}
    hidden = {"_": 1, "_3": 2, "Out": namespace["Out"], "exit": print}
    found = analysis.of_cell("_, _3, Out, exit, a", transform)
    assert analysis.needed(found, namespace, analysis.visible_names(namespace, hidden)).names == {"_", "_3", "Out", "a"}


def test_a_name_of_the_namespace_itself_is_the_student_s() -> None:
    namespace: dict[str, Any] = {"a": 1}
    namespace["everything"] = namespace
    found = analysis.of_cell("everything['a']", transform)
    needed = analysis.needed(found, namespace, analysis.visible_names(namespace, {}))
    assert (needed.names, needed.wished) == ({"everything"}, {"a"})


def test_everything_leaves_out_what_ipython_made() -> None:
    namespace = {"_": 1, "_i3": "", "In": [], "exit": print, "a": [1], "_mine": [2]}
    found = analysis.of_cell("import __main__", transform)
    assert analysis.needed(found, namespace, analysis.visible_names(namespace, {"exit": print})).wished == {
        "a",
        "_mine",
    }


@pytest.mark.parametrize(
    ("source", "anything"),
    [
        ("from math import *", True),
        ("if a:\n    from math import *", True),
        ("exec('from math import *')", True),
        ("%time from math import *", True),
        ("from math import pi", False),
        ("import math", False),
    ],
)
def test_whether_a_cell_may_use_anything(source: str, anything: bool) -> None:
    assert uses_of(analysis.of_cell(source, transform), {}, set()).anything is anything


def test_stores() -> None:
    assert analysis.of_cell("for _ in a: pass\nimport b\nc: int = 1", transform).stores >= {"_", "b", "c"}


def test_a_cell_without_code_is_empty() -> None:
    assert analysis.of_cell("# only this\n\n", transform).empty
    assert not analysis.of_cell("pass", transform).empty


def test_code_that_does_not_compile() -> None:
    with pytest.raises(SyntaxError):
        analysis.of_cell("a b", transform)
    with pytest.raises(SyntaxError):
        analysis.of_cell("return 1", transform)


def test_long_data_is_not_walked_to_its_end() -> None:
    data = [[number] for number in range(300_000)]
    assert names_of("data", data=data)[0] == "data"


DEEP = """
from types import SimpleNamespace
def tree(depth): return [tree(depth - 1), tree(depth - 1)] if depth else [held]
def objects(depth): return SimpleNamespace(a=objects(depth - 1), b=objects(depth - 1)) if depth else held
def held(): return a
"""


@pytest.mark.parametrize(
    "data",
    [
        "[[[w, w + 1] for w in range(20)] for _ in range(5000)]",
        "[{'spans': [[1, 2], [3, 4]], 'words': [['a'], ['b']]} for _ in range(9900)]",
        "{n: [[w] for w in range(20)] for n in range(9900)}",
    ],
)
def test_code_is_found_beside_large_data(data: str) -> None:
    runner = "class Model:\n    def forward(self): return a\nclass Runner: pass\nr = Runner()"
    assert names_of("r", f"{runner}\nr.data = {data}\nr.parts = {{'model': [[Model()]]}}", a=[1])[0] == "a r"


def test_code_behind_more_objects_than_are_searched() -> None:
    """Then it may be any function of the notebook."""
    assert names_of("x", f"{DEEP}\nx = objects(16)", a=[1])[0] == "SimpleNamespace a held objects tree x"
    assert names_of("x", f"{DEEP}\nx = tree(8); x[:] = [x[:]]", a=[1])[0] == "a x"
    assert names_of("x", f"{DEEP}\nx = [[]]", a=[1])[0] == "x"


def test_nested_data_does_not_count_as_code() -> None:
    assert names_of("x", f"{DEEP}\nx = tree(16)", a=[1])[0] == "a x"
    records = "[{'box': [[n], [n]], 'words': [['a'], ['b']]} for n in range(9900)]"
    assert names_of("x", f"x = {records}\ndef unrelated(): return a", a=[1])[0] == "x"


def test_records_of_several_arrays() -> None:
    """An array makes its records when it is examined, so those of the next array may be where earlier ones were."""
    arrays = (
        "import numpy as np\nclass C:\n    def m(self): return a\nx, record = [], [('n', int), ('one', object)]\n"
        "for n in range(9): x = [np.array([(n, [n] if n else C())], dtype=record), x]"
    )
    assert names_of("x", arrays, a=[1])[0] == "a x"


@pytest.mark.parametrize("name", [None, [], 1])
def test_functions_in_a_dictionary_with_any_name(name: object) -> None:
    definitions = "own = {'__name__': name, 'g': lambda: a}\nexec('def f(): return g()', own)\nf = own.pop('f')"
    assert names_of("f()", definitions, name=name, a=[1])[0] == "a f"


HOLDERS = {
    "array": "np.array([C(), C()], dtype=object)",
    "array of functions beside texts": "[np.array(['a'], dtype=STRINGS()), np.array([f], dtype=object)]",
    "array of functions": "np.array([[f, len]], dtype=object)",
    "array in an array": "np.array([np.array([C(), None], dtype=object), 1], dtype=object)",
    "long array": "np.array([C()] * 20_000, dtype=object)",
    "records": "np.array([(1, C())], dtype=[('n', int), ('one', object)])",
    "array of an own class": "np.array([C(), C()], dtype=object).view(Own)",
    "frame": "pd.DataFrame({'n': [1], 'one': [C()]})",
    "series": "pd.Series([f], index=['f'])",
    "weak reference": "[weakref.ref(kept)]",
    "weak reference to a method": "weakref.WeakMethod(kept.m)",
    "weak set": "weakref.WeakSet([kept])",
    "weak dict": "weakref.WeakValueDictionary(one=kept)",
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_code_in_what_the_garbage_collector_does_not_show(holder: str) -> None:
    classes = "class C:\n    def m(self): return f()\nclass Own(np.ndarray): pass\ndef f(): return a\nkept = C()"
    texts = "STRINGS = getattr(np.dtypes, 'StringDType', str)"  # NumPy 2 has them
    imports = f"import weakref, numpy as np, pandas as pd\n{texts}"
    names, _ = names_of("x", f"{imports}\n{classes}\nx = {HOLDERS[holder]}", a=[1])
    assert {"a", "x"} <= set(names.split())


def test_functions_of_other_modules_are_not_followed() -> None:
    assert names_of("reduce(f, [])", "def f(): pass\nreduce_ = 1", reduce=functools.reduce)[0] == "f reduce"
