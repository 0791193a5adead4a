"""Libraries that a cell opens with ctypes, their functions, callbacks, and ctypes data."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from baton_shim.state.refusal import StandIn, StandInError
from harness import Pair

SOURCE = """
int calls = 0;
int add(int a, int b) { calls++; return a + b; }
double half(double x) { return x / 2; }
int apply(int (*function)(int), int x) { return function(x); }
"""


def compiled(folder: Path, name: str = "own.so") -> Path:
    (folder / "own.c").write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / name), str(folder / "own.c")], check=True)
    return folder / name


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return compiled(tmp_path)


def test_a_library_and_its_functions_are_the_same_at_both_ends(pair: Pair, own: Path) -> None:
    pair.local(f"import ctypes\nlib = ctypes.CDLL({str(own)!r}, use_errno=True)\nadd = lib.add\nhalf = lib['half']")
    pair.local("half.restype = ctypes.c_double; half.argtypes = [ctypes.c_double]; library = lib; of = lib._FuncPtr")
    look = (
        "same = lib.add is add, library is lib, type(add) is lib._FuncPtr is of, half is not lib.half\n"
        "values = add(2, 3), half(5.0), lib._name, repr(type(lib)), lib._FuncPtr._flags_ & 8, add.__name__\n"
    )
    names = ("lib", "add", "half", "library", "of")
    assert pair.remote(look, *names) == {"error": None}
    assert pair.namespace["same"] == (True, True, True, True)
    assert pair.namespace["values"] == (5, 2.5, str(own), "<class 'ctypes.CDLL'>", 8, "add")
    pair.remote("pass", *names)
    assert pair.up[0] < 400
    assert pair.namespace["lib"].add is pair.namespace["add"]


def test_a_library_that_a_cell_opened_comes_home(pair: Pair, own: Path) -> None:
    cell = f"import ctypes\nlib = ctypes.CDLL({str(own)!r})\nlib.half.restype = ctypes.c_double\nhalf = lib.half\nx = 4"
    assert pair.remote(cell) == {"error": None}
    home = pair.namespace
    assert home["x"] == 4 and home["lib"].add(1, 2) == 3
    assert home["lib"].half is home["half"] and home["half"].restype is ctypes.c_double
    assert pair.remote("same = lib.half is half", "lib", "half") == {"error": None}
    assert home["same"] is True


def test_changes_of_a_function_are_seen_in_both_directions(pair: Pair, own: Path) -> None:
    pair.local(f"import ctypes\nlib = ctypes.CDLL({str(own)!r})\nhalf = lib.half")
    pair.local("def check(result, function, arguments):\n    return result, arguments")
    home = pair.namespace
    pair.remote("half.argtypes = (ctypes.c_double,)\nhalf.restype = ctypes.c_double", "lib", "half", "ctypes")
    assert home["half"](5) == 2.5 and home["half"].argtypes == (ctypes.c_double,)
    pair.local("half.errcheck = check; half.note = 'own'")
    assert pair.remote("got = half(3), half.note", "half") == {"error": None}
    assert home["got"] == ((1.5, (3.0,)), "own") or home["got"] == ((1.5, (3,)), "own")
    pair.remote("del half.errcheck\nhalf.argtypes = None\nlib.note = 7", "half", "lib")
    assert home["half"].errcheck is None and home["half"].argtypes is None and home["lib"].note == 7
    assert home["half"].restype is ctypes.c_double


def test_a_prototype_bound_to_a_library(pair: Pair, own: Path) -> None:
    pair.local(f"import ctypes\nlib = ctypes.CDLL({str(own)!r})")
    pair.local("kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)\nhalf = kind(('half', lib))")
    look = "got = half(5), type(half) is kind is ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)"
    assert pair.remote(look, "half", "kind", "ctypes") == {"error": None}
    assert pair.namespace["got"] == (2.5, True)


def test_functions_of_python_that_c_calls(pair: Pair, own: Path) -> None:
    pair.local(f"import ctypes\nlib = ctypes.CDLL({str(own)!r})\nseen = []")
    pair.local("def note(x):\n    seen.append(x)\n    return x * 10")
    pair.local("back = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(note)\nnothing = type(back)()")
    assert pair.remote("got = lib.apply(back, 4), back(5), bool(nothing)", *"lib back nothing seen note".split()) == {
        "error": None
    }
    home = pair.namespace
    assert home["got"] == (40, 50, False) and home["seen"] == [4, 5]
    assert home["lib"].apply(home["back"], 6) == 60 and home["seen"] == [4, 5, 6]
    cell = "other = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)"
    assert pair.remote(cell, "ctypes") == {"error": None}
    assert home["lib"].apply(home["other"], 6) == 7


def test_an_address_stays(pair: Pair) -> None:
    cell = "import ctypes\nkind = ctypes.CFUNCTYPE(ctypes.c_int)\nbare = kind(ctypes.cast(kind(int), ctypes.c_void_p).value)\nx = 3"
    assert pair.remote(cell) == {"error": None}
    assert pair.namespace["x"] == 3 and type(pair.namespace["bare"]) is StandIn


def test_python_itself_and_the_loaders(pair: Pair) -> None:
    pair.local("import ctypes\nfrom ctypes import cdll, pythonapi\nprogram = ctypes.CDLL(None)\nsize = program.abs")
    look = (
        "got = cdll is ctypes.cdll, pythonapi is ctypes.pythonapi, program._name, size(-3), cdll['libc.so.6'].abs(-2)"
    )
    assert pair.remote(look, "cdll", "pythonapi", "program", "size", "ctypes") == {"error": None}
    assert pair.namespace["got"] == (True, True, None, 3, 2)
    pair.remote("own = ctypes.LibraryLoader(ctypes.CDLL)\nlibc = own['libc.so.6']", "ctypes")
    assert pair.namespace["own"]["libc.so.6"] is pair.namespace["libc"]


def test_a_class_of_libraries_of_the_notebook(pair: Pair, own: Path) -> None:
    pair.local("import ctypes\nclass Own(ctypes.CDLL):\n    def __init__(self, path):\n        super().__init__(path)")
    pair.local(f"lib = Own({str(own)!r})")
    assert pair.remote("got = type(lib) is Own, lib.add(1, 1)", "lib", "Own") == {"error": None}
    assert pair.namespace["got"] == (True, 2)


def test_a_relative_path_from_another_folder(pair: Pair, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    pair.local("import ctypes\nlib = ctypes.CDLL('./own.so')")
    assert pair.remote("got = lib.add(1, 1), lib._name", "lib") == {"error": None}
    assert pair.namespace["got"] == (2, "./own.so")


def test_a_library_that_the_notebook_cannot_open_is_a_stand_in(pair: Pair, own: Path) -> None:
    cell = f"import ctypes, os\nlib = ctypes.CDLL({str(own)!r})\nadd = lib.add\nof = lib._FuncPtr\nx = [1]\nos.remove({str(own)!r})"
    assert pair.remote(cell) == {"error": None}
    home = pair.namespace
    assert home["x"] == [1] and type(home["lib"]) is type(home["add"]) is type(home["of"]) is StandIn
    with pytest.raises(StandInError, match=r"was opened on the GPU machine, but cannot be opened in your notebook"):
        home["add"](1, 2)
    assert pair.remote("lib.add.restype = ctypes.c_long\ngot = add(1, 2), lib.add is add", "lib", "add") == {
        "error": None
    }
    assert home["got"] == (3, True)


def test_a_library_that_the_session_cannot_open_is_a_stand_in(pair: Pair, own: Path) -> None:
    pair.local(f"import ctypes, os\nlib = ctypes.CDLL({str(own)!r})\nadd = lib.add\nos.remove({str(own)!r})")
    assert pair.remote("x = 1", "lib", "add") == {"error": None}
    error = pair.remote("y = 1\nadd(1, 2)", "lib", "add")["error"]
    assert isinstance(error, StandInError) and "was opened in your notebook, but cannot be opened there" in str(error)
    assert pair.namespace["y"] == 1 and pair.namespace["add"](1, 2) == 3


VIEWS: dict[str, tuple[str, str, str, object]] = {
    "an element": ("s = (Inner * 3)()\ne = s[1]", "e.a = 7", "s[1].a", 7),
    "a field": ("s = Outer()\ne = s.inner", "e.a = 7", "s.inner.a", 7),
    "a field of an element": ("s = (Outer * 2)()\ne = s[1].inner", "e.a = 7", "s[1].inner.a", 7),
    "bytes below": ("s = bytearray(8)\ne = Inner.from_buffer(s, 4)", "e.a = 7", "list(s)", [0, 0, 0, 0, 7, 0, 0, 0]),
    "an array below": (
        "import numpy\ns = numpy.zeros(4, 'i4')\ne = Inner.from_buffer(s, 8)",
        "e.a = 7",
        "s.tolist()",
        [0, 0, 7, 0],
    ),
}


@pytest.mark.parametrize("names", [("s", "e"), ("e",)])
@pytest.mark.parametrize("case", VIEWS)
def test_data_that_shares_memory_goes_on_sharing_it(pair: Pair, case: str, names: tuple[str, ...]) -> None:
    make, change, look, expected = VIEWS[case]
    pair.local("import ctypes\nclass Inner(ctypes.Structure):\n    _fields_ = [('a', ctypes.c_int)]")
    pair.local("class Outer(ctypes.Structure):\n    _fields_ = [('x', ctypes.c_double), ('inner', Inner)]\n" + make)
    assert pair.remote(f"{change}\ngot = {look if 's' in names else 'None'}", *names) == {"error": None}
    if "s" in names:
        assert pair.namespace["got"] == expected
    assert eval(look, pair.namespace) == expected
    assert pair.remote(f"got = {look}", "s") == {"error": None}
    assert pair.namespace["got"] == expected


def test_data_made_there_shares_memory_here(pair: Pair) -> None:
    cell = "import ctypes\nclass Inner(ctypes.Structure):\n    _fields_ = [('a', ctypes.c_int)]\n"
    assert pair.remote(cell + "s = (Inner * 3)()\ne = s[1]\nb = bytearray(4)\nf = Inner.from_buffer(b)") == {
        "error": None
    }
    home = pair.namespace
    home["e"].a, home["f"].a = 5, 6
    assert home["s"][1].a == 5 and home["b"] == bytearray(b"\6\0\0\0")


def test_attributes_of_data_and_the_other_byte_order(pair: Pair) -> None:
    pair.local("import ctypes\nc = (ctypes.c_int * 2)()\nc.note = [1]")
    pair.local("class Big(ctypes.BigEndianStructure):\n    _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_short * 2)]")
    pair.local("big = Big(5)")
    assert pair.remote("c.note.append(2)\nc.other = 'own'\ngot = big.a, bytes(big)\nbig.b[0] = 1", "c", "big") == {
        "error": None
    }
    home = pair.namespace
    assert home["c"].note == [1, 2] and home["c"].other == "own"
    assert home["got"] == (5, b"\0\0\0\5\0\0\0\0") and home["big"].b[0] == 1


POINTERS = {
    "to data": "p = ctypes.pointer(ctypes.c_int(5))",
    "by reference": "p = ctypes.byref(ctypes.c_int(5))",
    "a text": "p = ctypes.c_char_p(b'text')",
    "an address": "p = ctypes.c_void_p(5)",
    "in a structure": "class Node(ctypes.Structure):\n    pass\nNode._fields_ = [('next', ctypes.POINTER(Node))]\np = Node()",
    "in an element": "p = (ctypes.c_void_p * 2)(); q = (ctypes.POINTER(ctypes.c_int) * 2)()",
    "to what numpy has": "import numpy\np = numpy.arange(3.0).ctypes.data_as(ctypes.POINTER(ctypes.c_double))",
}


@pytest.mark.parametrize("case", POINTERS)
def test_a_pointer_stays_and_costs_no_result(pair: Pair, case: str) -> None:
    assert pair.remote(f"import ctypes\n{POINTERS[case]}\nx = 1\nkind = ctypes.POINTER(ctypes.c_int)") == {
        "error": None
    }
    home = pair.namespace
    assert home["x"] == 1 and type(home["p"]) is StandIn and home["kind"] is ctypes.POINTER(ctypes.c_int)
    assert pair.remote("same = type(p).__name__", "p") == {"error": None}
    assert home["same"] != "StandIn"


def test_cffi_costs_no_result(pair: Pair) -> None:
    pytest.importorskip("cffi")
    make = "import cffi\nffi = cffi.FFI()\nffi.cdef('int abs(int);')\nlib = ffi.dlopen(None)\nb = ffi.new('int[3]')\n"
    assert pair.remote(make + "x = lib.abs(-3)\nf = lib.abs\ny = lib.abs(-4)") == {"error": None}
    assert pair.namespace["x"] == 3
    assert pair.remote("x = f(-5), lib.abs(-6), len(b)", "lib", "f", "b") == {"error": None}
    assert pair.namespace["x"] == (5, 6, 3)
