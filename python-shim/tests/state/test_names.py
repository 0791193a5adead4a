"""Names, aliases, code of the notebook, and what cannot be sent."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from baton_shim.state import Refused, StandInError, TableBroken, cycles, stand_in_text
from harness import Pair


def test_aliases_in_one_message_stay_aliases(pair: Pair) -> None:
    pair.local("a = [1]; b = {'a': a}")
    pair.remote("c = a; d = [c, b]", "a", "b")
    home = pair.namespace
    assert home["c"] is home["a"] is home["d"][0] is home["b"]["a"]
    assert home["d"][1] is home["b"]


def test_rebinding_replaces_the_name_and_leaves_the_old_object_alone(pair: Pair) -> None:
    pair.local("x = [1]; old = x")
    pair.remote("x = {'new': x}; y = 5; z = None", "x")
    home = pair.namespace
    assert home["x"] == {"new": [1]} and home["x"]["new"] is home["old"]
    assert (home["y"], home["z"]) == (5, None)


def test_a_name_that_changed_only_at_home_keeps_its_value(pair: Pair) -> None:
    pair.local("x = [1]; y = 1")
    pair.remote("pass", "x", "y")
    pair.local("x = 'home'; y = 2")
    pair.remote("z = 1")
    assert (pair.namespace["x"], pair.namespace["y"]) == ("home", 2)
    pair.remote("x += '!'; y += 1", "x", "y")
    assert (pair.namespace["x"], pair.namespace["y"]) == ("home!", 3)


def test_deletions_travel_both_ways(pair: Pair) -> None:
    pair.local("x = [1]; y = [2]")
    pair.remote("del x", "x", "y")
    assert "x" not in pair.namespace
    pair.local("del y")
    pair.remote("pass", deleted=("y",))
    assert pair.ask("'y' in globals()") is False


def test_functions_see_the_receiving_namespace(pair: Pair) -> None:
    pair.local("factor = 2\ndef f(n): return n * factor\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)")
    pair.remote("factor = 5; r = (f(2), fib(10))\ndef g(): return f(1)", "f", "factor", "fib")
    home = pair.namespace
    assert home["r"] == (10, 55)
    assert home["g"]() == 5
    pair.local("factor = 7")
    assert home["g"]() == 7
    assert home["g"].__globals__ is home


AS_BUILT = """
import math
scale = 2
def twice(number): return number * scale
class Base: pass
class Built(Base):
    def __setstate__(self, state): self.root = twice(math.isqrt(state['square'])); self.square = state['square']
    def __eq__(self, other): return isinstance(other, Base) and twice(self.square) == twice(other.square)
    def __hash__(self): return hash(math.sqrt(getattr(self, 'square', 0)))
def built(square):
    made = Built(); made.square = square; return made
"""


@pytest.mark.parametrize("made", ["a = built(9)", "a = {built(9): 1, built(16): 2}", "a = [1]; a.append(built(9))"])
def test_what_rebuilds_an_object_finds_the_names_that_it_uses(pair: Pair, made: str) -> None:
    """They arrive in the same message, in alphabetical order."""
    names = ("Base", "Built", "a", "built", "math", "scale", "twice")
    pair.local(AS_BUILT + made)
    look = "next(iter(a if isinstance(a, (list, dict)) else [a]))"
    roots = "[one.root for one in (a if isinstance(a, (list, dict)) else [a]) if isinstance(one, Built)]"
    pair.remote(f"found = {roots}; first = {look}", *names)
    assert pair.namespace["found"] == ([6, 8] if "16" in made else [6])
    assert pair.namespace["first"] is next(iter(a if isinstance(a := pair.namespace["a"], (list, dict)) else [a]))


def test_a_message_that_fails_takes_back_names_that_were_ahead_of_it(pair: Pair) -> None:
    pair.local("import math as other\nclass Picky:\n    def __setstate__(self, state):\n        raise SystemExit(here)")
    pair.local("here = 'home'; picky = 0")
    pair.remote("pass", "Picky", "picky", "here")
    with pytest.raises(SystemExit, match="session"):
        pair.remote("here, new = 'session', abs; picky = Picky(); picky.a = 1")
    assert (pair.namespace["here"], pair.namespace["picky"], "new" in pair.namespace) == ("home", 0, False)


def test_classes_keep_their_identity(pair: Pair) -> None:
    pair.local(
        "import enum, abc, collections\nfrom dataclasses import dataclass, field\n"
        "class Base(abc.ABC):\n  @abc.abstractmethod\n  def n(self): ...\n"
        "class C(Base):\n  def n(self): return 1\n"
        "class Colour(enum.Enum): RED = 1\n"
        "P = collections.namedtuple('P', 'a b')\n"
        "@dataclass(frozen=True)\nclass D:\n  a: int\n  b: list = field(default_factory=list)\n"
        "MISSING = object()\nc, red, p, d = C(), Colour.RED, P(1, 2), D(1)\n"
    )
    everything = ["Base", "C", "Colour", "P", "D", "MISSING", "c", "red", "p", "d"]
    pair.remote(
        "class E(C):\n  def n(self): return super().n() + 1\n"
        "c2, red2, p2, d2, e, m = C(), Colour.RED, P(3, 4), D(5), E(), MISSING\n"
        "ok = (isinstance(c, Base), red is Colour.RED, type(p) is P, D(1) == d)",
        *everything,
    )
    home = pair.namespace
    assert home["ok"] == (True, True, True, True)
    assert type(home["c2"]) is home["C"] and isinstance(home["e"], home["Base"]) and home["e"].n() == 2
    assert home["red2"] is home["Colour"].RED and type(home["p2"]) is home["P"]
    assert home["m"] is home["MISSING"] and home["d2"] == home["D"](5)
    pair.local("class C(Base):\n  def n(self): return 100\n")
    pair.remote("r = (c.n(), C().n())", "C", "c")
    assert home["r"] == (1, 100)


def test_cached_functions(pair: Pair) -> None:
    pair.local("import functools\n@functools.lru_cache(maxsize=None)\ndef f(n): return n + k\nk = 1")
    pair.remote("r = f(1); s = f.cache_info().hits", "f", "k")
    assert pair.namespace["r"] == 2 and pair.namespace["f"](1) == 2


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("x = (n for n in [1])", "is a generator"),
        ("x = open('/dev/null')", "is an open file ('/dev/null')"),
        (
            "import threading; x = threading.RLock(); t = threading.Thread(target=x.acquire); t.start(); t.join()",
            "is a lock that another thread may hold",
        ),
        ("import threading; x = threading.Thread()", "is a thread"),
        ("import socket; x = socket.socket()", "is a network connection"),
        ("import sqlite3; x = sqlite3.connect(':memory:')", "is a database connection"),
        ("import re; b = bytearray(b'a'); x = re.match(b'a', b); b[0] = 98", "searching again does not find it"),
        ("class C:\n  def __reduce__(self): raise ValueError('no way')\nx = C()", "cannot be pickled (no way)"),
        ("from unittest import mock; x = mock.MagicMock(spec=list)", "is a mock"),
        ("import concurrent.futures as f; x = f.ThreadPoolExecutor(1)", "is a pool of workers"),
        ("import concurrent.futures as f; x = f.Future()", "is the result of a pool of workers"),
    ],
)
def test_a_named_object_that_cannot_travel_is_refused_and_harms_nothing(pair: Pair, make: str, reason: str) -> None:
    pair.local("y = [1]")
    pair.remote("y.append(2)", "y")
    pair.local(make)
    with pytest.raises(Refused) as caught:
        pair.remote("pass", "y", "x")
    assert caught.value.path == "x" and reason in caught.value.reason and caught.value.hint
    pair.remote("y.append(3)", "y")
    assert pair.namespace["y"] == [1, 2, 3]


def test_an_engine_of_sqlalchemy_is_refused(pair: Pair) -> None:
    pytest.importorskip("sqlalchemy")
    pair.local("import sqlalchemy; x = sqlalchemy.create_engine('sqlite://')")
    with pytest.raises(Refused, match="'x' is a database engine"):
        pair.remote("pass", "x")


def test_a_class_that_sqlalchemy_maps_is_refused(pair: Pair) -> None:
    pytest.importorskip("sqlalchemy")
    pair.local(
        "import sqlalchemy as sa; from sqlalchemy.orm import declarative_base; Base = declarative_base()\n"
        "class User(Base): __tablename__ = 'users'; id = sa.Column(sa.Integer, primary_key=True)\n"
        "user = User(id=1); users = [user]"
    )
    with pytest.raises(Refused, match="'User' is a class that SQLAlchemy maps to a table and") as caught:
        pair.remote("pass", "User")
    assert caught.value.hint == "define the class inside the cell that uses it"
    with pytest.raises(Refused, match="'user' is a 'User' object, whose class is one that SQLAlchemy maps to a table"):
        pair.remote("pass", "user")
    outcome = pair.remote("users[0].id", "users")
    assert str(outcome["error"]).startswith("'users[0]' is a 'User' object")


def test_what_is_merely_reachable_explains_itself_and_comes_back(pair: Pair) -> None:
    pair.local("class T: pass\nt = T(); t.log = open('/dev/null'); t.steps = [(n for n in [1])]; log = t.log; n = 0")
    outcome = pair.remote("n = 1\nt.log.write('x')", "t", "n")
    assert isinstance(outcome["error"], StandInError)
    assert str(outcome["error"]) == "'t.log' is an open file ('/dev/null') and stayed in your notebook"
    outcome = pair.remote("t.steps.append(t.log)\nnext(t.steps[0])", "t")
    assert str(outcome["error"]) == "'t.steps[0]' is a generator and stayed in your notebook"
    home = pair.namespace
    assert home["n"] == 1 and home["t"].log is home["log"] is home["t"].steps[1]


def test_what_the_session_made_and_cannot_send_stays_usable_there(pair: Pair) -> None:
    pair.remote("g = (n for n in range(5)); first = next(g); h = {'g': g}")
    home = pair.namespace
    assert pair.left == {"g": "is a generator"}
    assert home["first"] == 0
    assert stand_in_text(home["g"]) == "'g' is a generator and lives on the GPU machine"
    with pytest.raises(StandInError):
        next(home["g"])
    assert pair.remote("second = next(g) + next(h['g'])", "g", "h") == {"error": None}
    assert home["second"] == 3


GENERATORS = """
def adding(found):
    while True:
        found.append(len(found))
        yield found
def keeping():
    kept = []
    while True:
        kept.append((yield kept))
found = []; steps = adding(found); keeper = keeping(); kept = next(keeper)
"""


def test_what_stays_in_the_session_goes_on_with_what_it_holds(pair: Pair) -> None:
    pair.remote(GENERATORS)
    home = pair.namespace
    assert pair.remote("next(steps)", "steps") == {"error": None}
    assert home["found"] == [0]
    pair.local("found.append('here'); x = [1]")
    assert pair.remote("_ = next(steps), keeper.send(x)", "steps", "keeper", "x") == {"error": None}
    assert home["found"] == [0, "here", 2] and home["kept"][0] is home["x"]
    pair.local("x.append(2)")
    assert pair.remote("same = keeper.send(None)[0]", "keeper") == {"error": None}
    assert home["same"] is home["x"] == [1, 2]


def test_what_stays_in_the_session_lets_go_of_what_it_held(pair: Pair) -> None:
    pair.remote("class Held: pass\nheld = Held(); steps = (n for n in [held])")
    reference = weakref.ref(pair.namespace["held"])
    pair.local("del held")
    pair.remote("", "steps", deleted=("held",))
    assert reference() is not None
    pair.remote("found = [*steps]; del found", "steps")
    pair.remote("")
    gc.collect()
    pair.remote("")
    assert reference() is None


def test_an_array_that_moved_is_the_one_that_a_generator_of_the_session_holds(pair: Pair) -> None:
    pair.remote("import numpy as np\nx = np.arange(3)\nsteps = (x.resize(n, refcheck=False) or x for n in (5, 7))")
    pair.remote("same = next(steps) is x", "steps", "x")
    assert pair.namespace["same"] and pair.namespace["x"].shape == (5,)
    pair.local("x[0] = 9")
    pair.remote("first = int(next(steps)[0])", "steps")
    assert pair.namespace["first"] == 9 and pair.namespace["x"].shape == (7,)


@pytest.mark.parametrize("mode", ["w", "a+", "xb", "r+b"])
@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_closed_file_arrives_as_one(pair: Pair, tmp_path: Path, mode: str, buffering: int) -> None:
    if buffering == 0 and "b" not in mode:
        mode += "b"
    path = tmp_path / "notes.txt"
    if "x" not in mode:
        path.write_text("text")
    pair.local(
        f"file = open({str(path)!r}, {mode!r}, {buffering}); file.write({'b' * ('b' in mode)}'more'); file.close()"
    )
    path.write_text("later")
    look = "(file.name, file.mode, file.closed, type(file).__name__, getattr(file, 'encoding', None))"
    pair.local(f"here = {look}; files = [file]")
    assert pair.remote(f"there = {look}; same = files[0] is file", "file", "files") == {"error": None}
    home = pair.namespace
    assert home["there"] == home["here"] and home["same"] and path.read_text() == "later"
    assert home["files"][0] is home["file"]


def test_a_file_that_is_closed_later_replaces_its_stand_in(pair: Pair) -> None:
    pair.local("files = [open('/dev/null')]; file = files[0]")
    outcome = pair.remote("files[0].name", "files")
    assert str(outcome["error"]) == "'files[0]' is an open file ('/dev/null') and stayed in your notebook"
    pair.local("file.close()")
    assert pair.remote("found = files[0].closed, files[0].name", "files") == {"error": None}
    home = pair.namespace
    assert home["found"] == (True, "/dev/null") and home["files"][0] is home["file"]
    pair.remote("own = open('/dev/null'); held = [own]")
    pair.remote("own.close()", "held")
    assert home["held"][0].closed and home["held"][0] is home["own"]


def test_a_closed_file_that_cannot_travel_is_not_called_an_open_one(pair: Pair) -> None:
    pair.local("import tempfile; file = tempfile.NamedTemporaryFile(); file.close()")
    with pytest.raises(Refused, match="'file' is a closed file"):
        pair.remote("pass", "file")


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_a_lock_that_a_cell_holds_is_held_in_the_notebook(
    pair: Pair, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "enumerate", list)  # other tests have left threads
    free = "free = _thread_runs(lambda: lock.acquire(blocking=False) and not lock.release())"
    other = (
        "import concurrent.futures\n"
        "def _thread_runs(function):\n"
        "    with concurrent.futures.ThreadPoolExecutor(1) as pool: return pool.submit(function).result()\n"
    )
    pair.local(f"{other}import threading; lock = threading.{kind}(); held = [lock]; before = lock")
    home = pair.namespace
    pair.remote("lock.acquire()", "lock", "held")
    pair.local(free)
    assert not home["free"] and home["lock"] is home["before"] is home["held"][0]
    pair.local("lock.release()\n" + free)
    assert home["free"]
    pair.remote("held[0].acquire()", "held", "lock")
    pair.remote("lock.release()\n" + free, "lock", "_thread_runs")
    assert home["free"]
    pair.local("free = None\n" + free)
    assert home["free"]


def test_a_lock_that_a_thread_may_hold_stays_until_it_is_free(pair: Pair) -> None:
    pair.local(
        "import threading; lock = threading.RLock(); locks = [lock]; done = threading.Event(); ready = threading.Event()\n"
        "def hold():\n  with lock: ready.set(); done.wait()\n"
        "thread = threading.Thread(target=hold); thread.start(); ready.wait()"
    )
    outcome = pair.remote("locks[0].acquire()", "locks")
    assert str(outcome["error"]) == "'locks[0]' is a lock that another thread may hold and stayed in your notebook"
    pair.local("done.set(); thread.join()")
    assert pair.remote("locks[0].acquire(); locks[0].release()", "locks") == {"error": None}
    assert pair.namespace["locks"][0] is pair.namespace["lock"]


def test_a_reentrant_lock_that_the_notebook_holds_is_held_in_a_cell(pair: Pair) -> None:
    pair.local("import threading; lock = threading.RLock(); lock.acquire(); lock.acquire()")
    assert pair.remote(
        "lock.release(); lock.release(); again = threading.RLock(); again.acquire()", "lock", "threading"
    ) == {"error": None}
    pair.local("again.release()")
    with pytest.raises(RuntimeError, match="cannot release un-acquired lock"):
        pair.local("lock.release()")


def test_locks_queues_and_loggers_work_on_both_sides(pair: Pair) -> None:
    pair.local(
        "import threading, queue, logging\nclass Counter:\n  def __init__(self): self.lock = threading.Lock(); self.n = 0\n"
        "  def up(self):\n    with self.lock: self.n += 1\nc = Counter(); lock = c.lock; q = queue.Queue(); log = logging.getLogger('a')\n"
    )
    assert pair.remote("c.up(); q.put(c.n); log.warning('hello'); got = q.get()", "c", "q", "log") == {"error": None}
    home = pair.namespace
    assert home["c"].n == 1 == home["got"] and home["c"].lock is home["lock"]


def test_a_missing_module_is_named(pair: Pair) -> None:
    import sys
    import types

    sys.modules["nowhere_installed"] = types.ModuleType("nowhere_installed")
    sys.modules["nowhere_installed"].__spec__ = object()  # type: ignore[assignment]
    try:
        pair.namespace["m"] = sys.modules["nowhere_installed"]
        with pytest.raises(ModuleNotFoundError, match="nowhere_installed"):
            pair.remote("pass", "m")
    finally:
        del sys.modules["nowhere_installed"]


def test_a_message_that_cannot_be_read_changes_nothing(pair: Pair) -> None:
    pair.local(
        "import numpy as np\na = np.arange(5000.); b = a[3:9]; l = [1]; d = {'l': l}\nclass C: pass\nc = C(); c.a = a"
    )
    pair.remote("pass", "a", "b", "l", "d", "c", "np")
    before = pair.namespace["a"].copy()
    bomb = (
        "class Bomb:\n  def __reduce__(self): return exec, (\"import os\\nif os.getpid() == %d: raise SystemExit('boom')\",)\n"
        "a[:] = 0; l.append(2); d['x'] = l; c.a = None; c.b = Bomb()" % os.getpid()
    )
    with pytest.raises(SystemExit, match="boom"):
        pair.remote(bomb, "a", "b", "l", "d", "c")
    home = pair.namespace
    assert (home["a"] == before).all() and home["l"] == [1] and home["d"] == {"l": home["l"]}
    assert home["c"].a is home["a"] and not hasattr(home["c"], "b") and "Bomb" not in home
    with pytest.raises(TableBroken):
        pair.table.snapshot(["a"])


def test_a_session_that_cannot_read_a_message_is_of_no_use(pair: Pair) -> None:
    """By then, its arrays have the new bytes."""
    pair.local("import numpy as np\na = np.arange(5000.); l = [1]\nclass C: pass\nc = C()")
    pair.remote("pass", "a", "l", "c", "C", "np")
    pair.local(
        "class Bomb:\n  def __reduce__(self): return exec, (\"import os\\nif os.getpid() != %d: raise OSError('boom')\",)\n"
        "a[::600] += 1; l.append(2); c.b = Bomb()" % os.getpid()
    )
    with pytest.raises(OSError, match="boom"):
        pair.remote("a[:] = 0", "a", "l", "c")
    with pytest.raises(TableBroken):
        pair.remote("a[:] = 0")
    pair.lose_session()
    pair.local("del c.b; kept = a.copy()")
    pair.remote("a *= 2; l.append(3)", "a", "l", "c", "C", "np")
    home = pair.namespace
    assert (home["a"] == 2 * home["kept"]).all() and home["l"] == [1, 2, 3]


def test_an_idle_cell_costs_a_few_hundred_bytes(pair: Pair) -> None:
    pair.local(
        "import numpy as np\na = np.zeros(10**5); big = {i: str(i) for i in range(20000)}; l = [[i] for i in range(1000)]"
    )
    pair.remote("pass", "a", "big", "l")
    pair.remote("pass", "a", "big", "l")
    assert pair.up[0] < 300 and pair.down[0] < 300 and pair.up[1] == pair.down[1] == 0


def test_a_large_plain_container_is_one_leaf(pair: Pair) -> None:
    pair.local(
        "x = {i: (i, str(i), i / 2) for i in range(20000)}; y = list(range(20000)); z = {'x': x, 'y': y}; keep = x, y"
    )
    pair.remote("x[-1] = (0, 'new', 0.0); y.append(7); z['s'] = set(range(30000))", "x", "y", "z")
    home = pair.namespace
    assert home["x"][-1] == (0, "new", 0.0) and len(home["x"]) == 20001 and home["y"][-1] == 7
    assert (
        home["keep"][0] is home["x"] is home["z"]["x"] and home["z"]["y"] is home["y"] and len(home["z"]["s"]) == 30000
    )
    assert len(pair.table._numbering) < 500
    pair.remote("y.append([])", "y")
    pair.remote("y[-1].append(1)", "y")
    assert home["y"][-1] == [1]


def test_dropped_memory_is_freed_on_both_ends(pair: Pair) -> None:
    import numpy

    pair.local("import numpy as np\nbig = np.zeros(10**6); small = [1]")
    pair.remote("made = np.ones(10**6)", "big", "small", "np")
    gone = weakref.ref(pair.namespace["big"])
    pair.local("del big, made")
    pair.remote("pass", "small", deleted=("big", "made"))
    gc.collect()
    assert gone() is None
    assert not pair.table._segments.by_number
    pair.remote("pass", "small")
    assert pair.ask("sum(o.nbytes for o in __import__('gc').get_objects() if type(o).__name__ == 'ndarray') < 10**6")
    assert not pair.wire.segments
    assert numpy


def test_many_messages_do_not_grow_the_table(pair: Pair) -> None:
    pair.local("x = [0]; d = {'x': x}")
    sizes = []
    for _ in range(30):
        pair.remote("x[0] += 1; d = {'x': x, 'more': [str(n) for n in range(300)]}", "x", "d")
        sizes.append(len(pair.table._numbering))
    assert pair.namespace["x"] == [30]
    assert max(sizes) < 12000, sizes


def test_an_array_that_moved_travels_anew(pair: Pair) -> None:
    pair.local("import numpy as np\nx = np.arange(4); held = [x]; never = [x]")
    pair.remote("x.resize(8, refcheck=False); x[7] = 1", "x", "held")
    home = pair.namespace
    assert home["x"].tolist() == [0, 1, 2, 3, 0, 0, 0, 1] and home["held"][0] is home["x"]


def test_an_array_that_was_cut_where_it_lies(pair: Pair) -> None:
    pair.local("import numpy as np\nx = np.arange(400.0); held = [x]")
    pair.remote("x.resize(399, refcheck=False); x[3] = 77", "x", "held")
    home = pair.namespace
    assert (home["x"].shape, home["x"][3], home["held"][0] is home["x"]) == ((399,), 77, True)
    pair.local("x.resize(398, refcheck=False); x[3] = 78")
    pair.remote("y = len(x), float(x[3]), held[0] is x", "x", "held")
    assert home["y"] == (398, 78, True)


def test_own_arrays_come_back_as_owners(pair: Pair) -> None:
    pair.remote("import numpy as np\na = np.zeros((2, 3)); v = a[1]")
    home = pair.namespace
    assert home["a"].flags.owndata and home["v"].base is home["a"]


def test_dataframe_in_holders(pair: Pair) -> None:
    pair.local(
        "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 's': ['x', 'y']}); col = df['a']; keep = {'df': df}"
    )
    pair.remote("df['b'] = df.a * 2; g = df.groupby('s').a.sum(); df.loc[0, 's'] = 'w'", "df", "pd")
    home = pair.namespace
    assert (
        home["keep"]["df"] is home["df"]
        and home["df"]["b"].tolist() == [2, 4]
        and home["df"]["s"].tolist() == ["w", "y"]
    )
    assert home["g"].tolist() == [1, 2] and home["col"].tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["list(names)", "dict(enumerate(names))", "np.array(names, dtype=object)"])
def test_a_long_text_that_many_elements_share_travels_once(pair: Pair, kind: str) -> None:
    pair.local(f"import numpy as np\nlong = 'text' * 1000\nnames = [long, None, 1] * 10_000\nx = {kind}")
    values = "x.values() if type(x) is dict else x"
    code = f"count = (len(x), len({{id(v) for v in ({values}) if type(v) is str}}))"
    assert pair.remote(code, "x") == {"error": None}
    assert pair.namespace["count"] == (30_000, 1)
    assert pair.up[0] < 200_000


CIRCLE = (
    "import numpy as np, weakref\n"
    "class N:\n"
    "    def __init__(self): self.me = [self]; self.call = self.size; self.data = np.zeros(1 << 20); self.t = (self,)\n"
    "    def size(self): return self.data.size\n"
)


@pytest.fixture
def hours_pass(pair: Pair) -> Iterator[None]:
    """At both ends, hours pass between two searches for circles: the next one depends on how long the last one took."""
    clock = "__import__('types').SimpleNamespace(monotonic=__import__('itertools').count(10**6, 10**4).__next__)"
    module = "__import__('sys').modules['baton_shim.state.cycles']"
    pair.ask(f"setattr({module}, 'time', {clock})")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycles, "time", eval(clock))
        yield


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.parametrize("where", ["home", "session"])
def test_circles_are_let_go_of_on_both_ends(pair: Pair, where: str) -> None:
    pair.local(CIRCLE + "met = weakref.WeakSet(); kept = N(); total = 0")
    for _ in range(60):
        if where == "home":
            pair.local("n = N(); met.add(n)")
            assert pair.remote("n.data[0] = 1; total += n.call()", "n", "total") == {"error": None}
        else:
            assert pair.remote("n = N(); n.data[0] = 1; total += n.call()", "N", "np", "total") == {"error": None}
        assert pair.namespace["n"].data[0] == 1
        pair.remote("kept.data[1] += 1", "kept")
    gc.collect()
    pair.remote("pass")
    home = pair.namespace
    assert len(home["met"]) < 20
    assert sum(segment.bytes for segment in pair.table._segments.by_number.values()) < 30 * 8 << 20
    assert (home["total"], home["kept"].data[1], home["kept"].me[0]) == (60 << 20, 60, home["kept"])
    gone = "import gc; gc.collect(); count = len([o for o in gc.get_objects() if type(o) is N])"
    assert pair.remote(gone, "N") == {"error": None}
    assert home["count"] < 20


def test_a_circle_that_something_holds_keeps_its_identity(pair: Pair) -> None:
    pair.local(
        CIRCLE + "def make():\n    n = N()\n    return lambda: n\nget = make(); inner = get().me; pool = [get()]"
    )
    pair.remote("pool[0].data[0] = 5", "pool", "N", "np")
    pair.local("pool.clear()")
    for number in range(3):
        pair.local("big = [[i] for i in range(%d)]" % 3000 ** (1 + number % 2 / 10))
        pair.remote("pass", "big")
    pair.local("pool.append(inner[0])")
    pair.remote("pool[0].data[0] += 1", "pool")
    home = pair.namespace
    assert home["get"]() is home["pool"][0]
    assert home["get"]().data[0] == 6


OPERATIONS = (
    *("x == 1", "1 == x", "x != 1", "x == x", "x < 1", "x in [1, 2]", "[1] == [x]", "x + 1", "1 - x", "divmod(x, 2)"),
    *("divmod(2, x)", "-x", "round(x)", "int(x)", "math.floor(x)", "math.trunc(x)", "math.ceil(x)", "x ** 2", "x @ x"),
    *("len(x)", "bool(x)", "iter(x)", "next(x)", "x[0]", "x()", "x.read", "hasattr(x, 'read')", "list(x)", "bytes(x)"),
    *("open(x)", "os.fspath(x)", "setattr(x, 'a', 1)", "'%d' % x", "range(x)", "sorted([x, 1])", "[1].index(x)"),
    *("f'{x:.2f}'", "format(x, '>9')", "type('C', (), {'n': x})().n", "type('C', (), {'n': x}).n"),
    *("x.__enter__", "1 in x", "reversed(x)", "abs(x)", "complex(x)", "os.path.join('a', x)", "{x: 1}.get(x) + x"),
)


def test_each_use_of_a_stand_in_says_where_the_object_is(pair: Pair) -> None:
    pair.local("import math, os\nheld = [n for n in [0]]; held[0] = (n for n in ())\nkeys = {held[0]: 1}")
    code = (
        "x, wrong = held[0], []\nfor operation in operations:\n"
        "    try: wrong.append((operation, eval(operation)))\n"
        "    except Exception as error:\n"
        "        if type(error).__name__ != 'StandInError' or 'is a generator' not in str(error): wrong.append((operation, error))\n"
        "wrong = repr(wrong)\nkept = keys[x], x in keys, x is held[0], isinstance(x, int), 'generator' in f'{x}'\ndel x"
    )
    pair.namespace["operations"] = OPERATIONS
    assert pair.remote(code, "held", "keys", "operations", "math", "os") == {"error": None}
    assert pair.namespace["wrong"] == "[]"
    assert pair.namespace["kept"] == (1, True, True, False, True)
    assert pair.namespace["keys"] == {pair.namespace["held"][0]: 1}
