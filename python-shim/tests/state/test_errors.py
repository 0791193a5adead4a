"""Errors that are kept: what they show about where they were raised, in the other kernel and after returning."""

from __future__ import annotations

import pytest
from harness import Pair
from test_in_place import check

F = "def f(x, *more, key=1):\n    return g(x)\n\ndef g(x):\n    return 1 / x\n\n"
KEPT = F + "try:\n    f(0)\nexcept ZeroDivisionError as error:\n    x = error"
# The location of a cell differs in the two processes and here.
TEXT = "re.sub('File .<.*?>.', '', ''.join(traceback.format_exception(x)))"

CASES: dict[str, tuple[str, str, str]] = {
    "read there": (KEPT, f"text = {TEXT}; y = x", f"(text, {TEXT}, y is x)"),
    "made there": ("x = []", KEPT.replace("x = error", "x.append(error)"), TEXT.replace("(x)", "(x[0])")),
    "raised again there": (
        KEPT,
        "try:\n    raise x\nexcept ZeroDivisionError as error:\n    y = error.__traceback__.tb_lineno",
        f"(y, {TEXT})",
    ),
    "the cause of another": (
        KEPT,
        "try:\n    raise KeyError('a') from x\nexcept KeyError as error:\n    y = error",
        f"({TEXT}, y.__cause__ is x)".replace("(x)", "(y)"),
    ),
    "without its traceback": (KEPT, "y = x.with_traceback(None)", f"(y is x, {TEXT})"),
    "with pickling of its own": (
        "import json\n" + KEPT.replace("f(0)", "json.loads('{')").replace("ZeroDivisionError", "ValueError"),
        f"text = {TEXT}; x.__context__ = KeyError('a')",
        f"(text, {TEXT}, x.lineno)",
    ),
    "what a built-in one knows besides": (
        "x = NameError('n', name='a'); y = []\n"
        "for code in ('[].a', 'import nowhere.at', 'a b', 'open(\"/none\")', 'b\"\\xff\".decode()', 'iter([1]).close'):\n"
        "    try: exec(code)\n    except Exception as error: y.append(error)\n"
        "y += [SystemExit(3), StopIteration(4)]",
        "z = list(y); z[0].obj.append(1); w = ImportError('i', name='b', path='c')",
        "(x.name, [(str(e), e.args, *(getattr(e, n, 0) for n in ('name', 'path', 'text', 'lineno', 'filename', 'errno', "
        "'object', 'start', 'code', 'value'))) for e in (*z, w)], z[0].obj, y == z)",
    ),
    "recursion": (
        "def f(n): return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as error:\n    x = error",
        "depth = len(traceback.extract_tb(x.__traceback__))",
        "len(traceback.extract_tb(x.__traceback__)) - depth",
    ),
    "functions alike in two files": (
        "for file in ('one', 'two'):\n"
        "    exec(compile('def f(): 1 / 0', file, 'exec'))\n"
        "    try:\n        f()\n    except ZeroDivisionError as error:\n        x = ExceptionGroup(file, [error, x]) "
        "if file == 'two' else error",
        "y = x.exceptions[0]",
        TEXT,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_says_where_it_was_raised(pair: Pair, case: str) -> None:
    check(pair, *CASES[case], before="import re, traceback")


def test_frames_of_the_notebook_stay_in_the_notebook(pair: Pair) -> None:
    pair.local(KEPT)
    before = pair.namespace["x"].__traceback__.tb_next.tb_frame
    raised = "try:\n    raise x\nexcept ZeroDivisionError as error:\n    pass"
    assert pair.remote(raised, "x") == {"error": None}
    after = pair.namespace["x"].__traceback__.tb_next.tb_next.tb_frame
    assert after is before
    assert after.f_locals == {"x": 0, "more": (), "key": 1}


def test_frames_of_the_session_are_there_without_their_variables(pair: Pair) -> None:
    pair.local("x = None")
    assert pair.remote(KEPT, "x") == {"error": None}
    frame = pair.namespace["x"].__traceback__.tb_next.tb_frame
    assert (frame.f_code.co_name, frame.f_lineno, frame.f_globals is pair.namespace) == ("f", 2, True)
    assert list(frame.f_locals) == ["x", "key", "more"]
    assert "this variable belongs to a frame" in repr(frame.f_locals["x"])


def test_what_comes_after_a_kept_error_is_not_forgotten(pair: Pair) -> None:
    """The frames of its traceback refer to the unpickler that read it, and so to everything known until then."""
    pair.remote("try:\n    1 / 0\nexcept ZeroDivisionError as kept:\n    error = kept")
    pair.local("junk = [[number] for number in range(9000)]")
    pair.remote("", "junk")
    known = len(pair.table._numbering)
    pair.local("del junk")
    for _ in range(3):
        pair.remote("", deleted=("junk",))
    assert len(pair.table._numbering) < known - 9000 + 100
    pair.remote("def f(seen=[]):\n    seen.append(1)\n    return len(seen)")
    pair.local("f()")
    pair.remote("x = f()", "f")
    pair.local("y = f()")
    assert (pair.namespace["x"], pair.namespace["y"]) == (2, 3)
