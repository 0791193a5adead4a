"""Every common type, changed in place by the session: the notebook's own object shows the change.

Each case creates `x` in the notebook, puts it into `holder` (which is never sent), changes it remotely, and compares
the result with that of the same local change. The object must be the one in the holder.
"""

from __future__ import annotations

import sys

import pytest
from baton_shim.state import Refused
from harness import Pair

CASES: dict[str, tuple[str, str, str]] = {
    # name: (how x is created, the change, what must be equal afterwards)
    "list append": ("x = [1, 2]", "x.append([3])", "x"),
    "list nested": ("x = [[1], [2]]", "x[0].append(9)", "x"),
    "list sort": ("x = [3, 1, 2]", "x.sort()", "x"),
    "dict key": ("x = {'a': 1}", "x['b'] = [2]", "x"),
    "dict order": ("x = {'a': 1, 'b': 2}", "x['a'] = x.pop('a')", "list(x.items())"),
    "dict by float": ("x = {1: 2}", "x[1] = 2.0", "repr(x)"),
    "set add": ("x = {1, 2}", "x.add(3); x.discard(1)", "x"),
    "bytearray": ("x = bytearray(b'abc')", "x += b'def'; x[0] = 65", "bytes(x)"),
    "array.array": ("import array\nx = array.array('d', [1, 2])", "x.append(3.5)", "x.tolist()"),
    "deque": (
        "from collections import deque\nx = deque([1, 2], maxlen=3)",
        "x.append(3); x.append(4)",
        "(x, x.maxlen)",
    ),
    "Counter": ("from collections import Counter\nx = Counter('aab')", "x.update('bbb')", "x"),
    "OrderedDict": (
        "from collections import OrderedDict\nx = OrderedDict(a=1, b=2)",
        "x.move_to_end('a')",
        "list(x.items())",
    ),
    "defaultdict": (
        "from collections import defaultdict\nx = defaultdict(list)",
        "x['a'].append(1); x.default_factory = int",
        "(dict(x), x.default_factory)",
    ),
    "instance": ("class C: pass\nx = C(); x.a = 1", "x.a = 2; x.b = [3]; del x.a", "vars(x)"),
    "attributes in themselves": (
        "class C(dict):\n  def __init__(self): self.__dict__ = self\nx = C(); x.a = 1",
        "x.b = [2]; x['c'] = 3",
        "(dict(x), x.c, x.__dict__ is x)",
    ),
    "attributes of two": (
        "class C: pass\nx = C(); y = C(); y.__dict__ = x.__dict__; x.a = 1",
        "x.b = 2; del x.a",
        "(vars(y), vars(x) is vars(y))",
    ),
    "slots": ("class C:\n  __slots__ = ('a', 'b')\nx = C(); x.a = 1", "x.b = x.a; del x.a", "(hasattr(x, 'a'), x.b)"),
    "slots and dict": (
        "class C:\n  __slots__ = ('a', '__dict__')\nx = C(); x.a = 1; x.c = 1",
        "x.a = 2; x.c = [x.c]",
        "(x.a, x.c)",
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n@dataclass\nclass C:\n  a: int\n  b: list = field(default_factory=list)\nx = C(1)",
        "x.a += 1; x.b.append(x.a)",
        "x",
    ),
    "list subclass": ("class L(list): pass\nx = L([1]); x.tag = 'a'", "x.append(2); x.tag = 'b'", "(list(x), x.tag)"),
    "dict subclass": ("class D(dict): pass\nx = D(a=1)", "x['b'] = 2; x.t = 3", "(dict(x), x.t)"),
    "set subclass": ("class S(set): pass\nx = S([1])", "x.add(2); x.t = 3", "(set(x), x.t)"),
    "int subclass": ("class I(int): pass\nx = I(3)", "x.unit = 'm'", "(x + 0, x.unit)"),
    "changed class": ("class A: pass\nclass B: pass\nx = A()", "x.__class__ = B", "type(x).__name__"),
    "function attribute": ("def x(): return x.calls", "x.calls = 5", "(x(), x.calls)"),
    "function default": ("def x(a=[]): return a", "x().append(1)", "x()"),
    "function defaults": ("def x(a=1): return a", "x.__defaults__ = (7,)", "x()"),
    "function code": ("def x(): return 1\ndef y(): return 2", "x.__code__ = y.__code__", "x()"),
    "closure": (
        "def make():\n  n = 0\n  def up():\n    nonlocal n\n    n += 1\n    return n\n  return up, lambda: n\nx, get = make()",
        "x(); x()",
        "get()",
    ),
    "class attribute": ("class X: n = 1\nx = X", "x.n = 2; x.m = lambda self: self.n", "x.m(x())"),
    "class deletion": ("class X: n = 1\nx = X", "del x.n", "hasattr(x, 'n')"),
    "exception": ("x = ValueError('a')", "x.args = ('b', 2); x.add_note('n')", "(x.args, x.__notes__)"),
    "exception cause": ("x = ValueError('a')", "x.__cause__ = KeyError(1)", "repr(x.__cause__)"),
    "BytesIO": ("import io\nx = io.BytesIO(b'abc')", "x.read(1); x.write(b'X')", "(x.getvalue(), x.tell())"),
    "StringIO": ("import io\nx = io.StringIO('abc')", "x.read(1); x.write('X')", "(x.getvalue(), x.tell())"),
    "list iterator": ("l = [1, 2, 3]\nx = iter(l)", "next(x)", "next(x)"),
    "random": ("import random\nx = random.Random(3)", "x.random()", "x.random()"),
    "namespace": ("import types\nx = types.SimpleNamespace(a=1)", "x.b = 2; x.a = [x.a]", "x"),
    "partial": ("import functools\nx = functools.partial(max, 1)", "x.tag = 4", "(x(3), x.tag)"),
    "cycle": ("x = []; x.append(x)", "x.append(1)", "(x[0] is x, x[1], len(x))"),
    "tuple holding": ("x = ([], {})", "x[0].append(1); x[1]['k'] = x[0]", "(x, x[1]['k'] is x[0])"),
    "mapping proxy": ("d = {'a': 1}\nx = d", "x['b'] = 1", "d"),
    "dict view": ("d = {'a': 1}\nx = d.keys()", "d['b'] = 2", "sorted(x)"),
    "user dict": ("from collections import UserDict\nx = UserDict(a=1)", "x['b'] = 2", "dict(x)"),
    "chain map": ("from collections import ChainMap\nx = ChainMap({}, {'a': 1})", "x['b'] = 2", "dict(x)"),
    "simple queue": ("import queue\nx = queue.Queue(); x.put(1)", "x.put(2); x.get()", "list(x.queue)"),
    "logger": ("import logging\nx = [logging.getLogger('a.b')]", "x.append(1)", "len(x)"),
    "event": ("import threading\nx = threading.Event()", "x.set()", "x.is_set()"),
    "weak reference": (
        "class C: pass\nc = C(); import weakref\nx = [weakref.ref(c), c]",
        "x[0]().a = 1",
        "(c.a, x[0]() is c)",
    ),
    "heap": ("import heapq\nx = [5, 3, 1]; heapq.heapify(x)", "heapq.heappush(x, 0)", "x"),
    "property": ("class C:\n  @property\n  def p(self): return self._p\nx = C()", "x._p = 3", "x.p"),
    "large list": ("x = list(range(20_000))", "x[3] = 'a'; x.append(None)", "x"),
    "large dict": (
        "x = {n: str(n) for n in range(20_000)}",
        "x[3] = 'a'; x['b'] = x.pop(4); del x[5]",
        "list(x.items())",
    ),
    "large set": ("x = set(range(20_000))", "x.add('a'); x.remove(3)", "x"),
    "large dict of large tuples": (
        "x = {(n, 'a'): (n, 2.5) for n in range(20_000)}",
        "x.update({(n, 'b'): n for n in range(20_000)})",
        "list(x.items())",
    ),
    "large dict, no longer plain": (
        "x = dict.fromkeys(range(20_000), 'a')",
        "x[3] = [x]",
        "(x[3][0] is x, len(x), x[4])",
    ),
    "own pickling that leaves out and adds": (
        "class C:\n  def __init__(self): self.a = self.b = self.file = 1\n"
        "  def __getstate__(self): return {name: one for name, one in vars(self).items() if name != 'file'}\n"
        "  def __setstate__(self, state): self.__dict__.update(state)\nx = C()",
        "del x.a; x.b = 2",
        "vars(x)",
    ),
    "custom state": (
        "class C:\n  def __init__(self): self.a = [1]\n  def __getstate__(self): return {'b': self.a}\n"
        "  def __setstate__(self, s): self.a = s['b']\nx = C()",
        "x.a.append(2); x.a = x.a + [3]",
        "x.a",
    ),
    "custom reduce": (
        "class C:\n  def __init__(self, n): self.n = n; self.more = []\n"
        "  def __reduce__(self): return C, (self.n,), {'more': self.more}\nx = C(1)",
        "x.n = 2; x.more.append(3)",
        "(x.n, x.more)",
    ),
}

NUMPY: dict[str, tuple[str, str, str]] = {
    "many objects": (
        "x = np.array([f'{n}' for n in range(20_000)], dtype=object).reshape(100, 200)",
        "x[3, 4] = None; x[5, 6] = range(7)",
        "x.tolist()",
    ),
    "many objects, then others": (
        "x = np.array([f'{n}' for n in range(20_000)], dtype=object)",
        "x[3] = [1, x[4]]; x[5] = x",
        "(x[3], x[5] is x, x[6:].tolist())",
    ),
    "others, then many objects": (
        "x = np.array([[]] + [2.5] * 20_000, dtype=object)",
        "x[0] = ('a', 1)",
        "x.tolist()",
    ),
    "elements": ("x = np.arange(10)", "x[3] = 99", "x.tolist()"),
    "view": ("b = np.arange(10.); x = b[2:8:2]", "x += 1", "(b.tolist(), x.base is b)"),
    "reversed view": ("b = np.arange(10.); x = b[::-1]", "x[0] = -1", "b.tolist()"),
    "fortran": (
        "x = np.asfortranarray(np.arange(6.).reshape(2, 3))",
        "x[1, 2] = -1",
        "(x.tolist(), x.flags.f_contiguous)",
    ),
    "transposed": ("b = np.arange(6.).reshape(2, 3); x = b.T", "x[2, 1] = -1", "(b.tolist(), x.shape)"),
    "shape": ("x = np.arange(6)", "x.shape = (2, 3)", "x.tolist()"),
    "dtype": ("x = np.arange(6)", "x.dtype = 'i4'", "x.tolist()"),
    "flag": ("x = np.arange(3)", "x.flags.writeable = False", "x.flags.writeable"),
    "zero size": ("x = np.zeros((0, 3))", "y = x.shape", "(x.shape, y)"),
    "zero dimensions": ("x = np.array(3.0)", "x[()] = 4", "float(x)"),
    "objects": ("x = np.array([[1], 'a', None], object)", "x[0].append(2); x[1] = x[0]", "(x.tolist(), x[1] is x[0])"),
    "structured": ("x = np.zeros(3, [('a', 'i4'), ('b', 'f8')])", "x['b'][1] = 2.5", "x.tolist()"),
    "structured view": ("b = np.zeros(3, [('a', 'i4'), ('b', 'f8')]); x = b['b']", "x[1] = 2.5", "b.tolist()"),
    "record array": ("x = np.rec.array([(1, 2.)], dtype=[('a', 'i4'), ('b', 'f8')])", "x.a[0] = 5", "x.a.tolist()"),
    "masked": (
        "x = np.ma.array([1, 2, 3], mask=[0, 1, 0])",
        "x[0] = 9; x.mask[2] = True",
        "(x.tolist(), x.data.tolist())",
    ),
    "function of elements": (
        "n = []; x = np.vectorize(lambda one: n.append(one) or one + len(n), otypes=[int]); x([5])",
        "m = x([7]); y = np.frompyfunc(lambda a, b: a * b, 2, 1, identity=1)",
        "(m.tolist(), x([9]).tolist(), n, y.reduce([2, 3]), y.reduce([]), y.nin)",
    ),
    "matrix": ("x = np.matrix([[1, 2], [3, 4]])", "x[0, 0] = 9", "(x.tolist(), type(x).__name__)"),
    "subclass": ("class A(np.ndarray): pass\nx = np.arange(3).view(A)", "x.tag = 'k'; x[0] = 4", "(x.tolist(), x.tag)"),
    "datetime": ("x = np.array(['2020-01-01', 'NaT'], 'M8[D]')", "x[1] = '2021-05-05'", "x.tolist()"),
    "text": ("x = np.array(['ab', 'c'])", "x[1] = 'zz'", "x.tolist()"),
    "big endian": ("x = np.arange(3, dtype='>i4')", "x[1] = 7", "(x.tolist(), x.dtype.byteorder)"),
    "large": ("x = np.zeros((600, 600))", "x[5, 5] = 1", "(x.sum(), x[5, 5])"),
    "broadcast": ("b = np.arange(3.); x = np.broadcast_to(b, (2, 3))", "b[0] = 5", "x.tolist()"),
    "from bytes": ("x = np.frombuffer(b'abcd', 'u1')", "y = x.sum()", "(int(y), x.flags.writeable)"),
    "over bytearray": ("b = bytearray(8); x = np.frombuffer(b, 'u1')", "x[0] = 7", "b[0]"),
    "random generator": ("x = np.random.default_rng(1)", "x.random()", "x.random()"),
    "random state": ("x = np.random.RandomState(1)", "x.rand()", "x.rand()"),
    "twice": ("x = np.arange(4); y = [x, x]", "y[1][0] = 8", "(x.tolist(), y[0] is y[1])"),
}

PANDAS: dict[str, tuple[str, str, str]] = {
    "cell": ("x = pd.DataFrame({'a': [1, 2], 'b': [3., 4.]})", "x.loc[0, 'a'] = 9", "x.to_dict()"),
    "new column": ("x = pd.DataFrame({'a': [1, 2]})", "x['b'] = x.a * 2", "x.to_dict()"),
    "renamed": ("x = pd.DataFrame({'a': [1, 2]})", "x.columns = ['z']", "x.to_dict()"),
    "dtype": ("x = pd.DataFrame({'a': [1, 2]})", "x['a'] = x.a.astype('float32')", "x.dtypes.to_dict()"),
    "index": ("x = pd.DataFrame({'a': [1, 2]})", "x.index = ['p', 'q']", "x.to_dict()"),
    "dropped": ("x = pd.DataFrame({'a': [1, 2], 'b': [1, 2]})", "x.drop(columns='b', inplace=True)", "x.to_dict()"),
    "text": ("x = pd.DataFrame({'s': ['a', 'b']})", "x.loc[1, 's'] = 'zzz'", "x.to_dict()"),
    "series": ("x = pd.Series([1., 2.])", "x[0] = 5; x.name = 'n'", "(x.tolist(), x.name)"),
    "categories": ("x = pd.Series(['a', 'b', 'a'], dtype='category')", "x[1] = 'a'", "x.tolist()"),
    "attributes": ("x = pd.DataFrame({'a': [1]})", "x.attrs['k'] = 1", "x.attrs"),
    "time index": (
        "x = pd.DataFrame({'a': [1, 2]}, pd.date_range('2020', periods=2))",
        "x['b'] = x.index.year",
        "x.b.tolist()",
    ),
    "enlarged": ("x = pd.DataFrame({'a': [1, 2]})", "x.loc[2] = 7", "x.a.tolist()"),
}


def check(pair: Pair, make: str, change: str, compare: str, before: str = "") -> None:
    expected: dict[str, object] = {"__name__": "__main__"}
    for code in (before, make, change):
        exec(code, expected)
    wanted = eval(compare, expected)

    pair.local(before)
    pair.local(make)
    pair.local("holder = [x]")
    names = [name for name in pair.namespace if name not in ("holder", "__builtins__", "__name__")]
    outcome = pair.remote(change, *names)
    assert outcome == {"error": None}
    assert pair.namespace["holder"][0] is pair.namespace["x"], "another object took its place"
    found = eval(compare, pair.namespace)
    assert repr(found) == repr(wanted)
    outcome = pair.remote("pass", *names)
    assert outcome == {"error": None}
    assert pair.down[0] < 400 and pair.down[1] == 0, f"an idle cell sent {pair.down} bytes home"


@pytest.mark.parametrize("case", CASES)
def test_plain(pair: Pair, case: str) -> None:
    check(pair, *CASES[case])


@pytest.mark.parametrize("case", NUMPY)
def test_numpy(pair: Pair, case: str) -> None:
    check(pair, *NUMPY[case], before="import numpy as np")


def test_an_array_that_changes_in_many_places(pair: Pair) -> None:
    """In more places than the system reports at once, and at the end of the array."""
    pair.local("import numpy as np\nx = np.zeros(3001 * 1024 + 7, dtype='f4'); view = x[5:-5]")
    pair.remote("pass", "x", "view", "np")
    pair.local("x[::2048] += 1; x[-1] = 5; expected = 3 * x")
    assert pair.remote("x *= 3", "x", "view", "np") == {"error": None}
    home = pair.namespace
    assert (home["x"] == home["expected"]).all()
    assert home["view"].base is home["x"]
    pair.local("x += 1; x += 1")
    assert pair.remote("view[::1500] -= 1", "x", "view", "np") == {"error": None}
    pair.local("expected += 2; expected[5:-5:1500] -= 1")
    assert (home["x"] == home["expected"]).all()


@pytest.mark.parametrize("case", PANDAS)
def test_pandas(pair: Pair, case: str) -> None:
    check(pair, *PANDAS[case], before="import pandas as pd")


@pytest.mark.parametrize("lost", ["refused", "not received"])
def test_pandas_copies_before_it_writes_although_a_message_was_lost(pair: Pair, lost: str) -> None:
    """The other end then does not know that another frame uses the memory."""
    pair.local(
        "import pandas as pd\nx = pd.DataFrame({'a': [1., 2.], 'b': [3., 4.]})\n"
        "class Bad:\n    def __reduce__(self): raise TypeError('no')\nbad = Bad()"
    )
    assert pair.remote("pass", "x", "pd") == {"error": None}
    pair.local("y = x[:]")
    if lost == "refused":
        with pytest.raises(Refused):
            pair.remote("pass", "x", "bad", "pd")
    else:
        pair.unsent("x", "pd")
    assert pair.remote("x.iloc[0, 0] = 9", "x", "pd") == {"error": None}
    assert pair.namespace["y"].a.tolist() == [1, 2]


def test_a_class_whose_module_numpy_has_not_loaded_yet(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy.rec", raising=False)
    pair.local("import numpy as np; x = np.zeros(3, [('a', 'i4')]).view(np.recarray); one = x[1]")
    assert pair.remote("seen = type(x) is np.recarray, type(one) is np.record; one.a = 5", "x", "one", "np") == {
        "error": None
    }
    assert pair.namespace["seen"] == (True, True)
    assert pair.namespace["x"].a.tolist() == [0, 5, 0]


PARTLY = """
class Own:
    def __init__(self, held): self.held, self.n = held, 0
    def __getstate__(self): return self.held, self.n
    def __setstate__(self, state): self.held, self.n = state
class Whole:
    def __init__(self, held): self.held = held
    def __getstate__(self): return self.held
    def __setstate__(self, state): self.held = state
"""


@pytest.mark.parametrize(
    ("make", "held"),
    [
        ("partial(f, d)", "x.args[0]"),
        ("partial(f, (d, l))", "x.args[0][0]"),
        ("partial(f, one=d)", "x.keywords['one']"),
        ("Own(d)", "x.held"),
        ("Own((l, d))", "x.held[1]"),
        ("Whole(d)", "x.held"),
    ],
)
@pytest.mark.parametrize("first", ["here", "there"])
def test_a_dict_in_an_object_with_its_own_pickling(pair: Pair, make: str, held: str, first: str) -> None:
    pair.local(f"from functools import partial\ndef f(*given, one=None): pass\n{PARTLY}d = {{'n': 0}}; l = [d]")
    pair.local(f"x = {make}; parts = []")
    for number in range(4):
        change = f"d['n'] += 1; parts.append({held} is d); l.append({number})"
        if (number % 2 == 0) == (first == "here"):
            pair.local(change)
        else:
            assert pair.remote(change, "x", "d", "l", "parts") == {"error": None}
    pair.local(f"parts.append({held} is d and l[0] is d)")
    assert pair.namespace["parts"] == [True] * 5
    assert pair.namespace["d"] == {"n": 4}
    assert pair.remote(f"{held}['n'] = 7", "x") == {"error": None}
    assert pair.namespace["d"] == {"n": 7}
