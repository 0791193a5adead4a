"""Code with `with gpu:` behaves as with a manager that does nothing, wherever its blocks run."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from baton_shim.base.blocks import DONE, EXIT, RUNTIME, Gpu, Work, gpu, in_file
from baton_shim.base.with_gpu import transformed

CASES = {
    "a cell": "x = 1\nwith gpu:\n    x += 1\n    y: int = x\n    del x\nseen = y, 'x' in globals()",
    "break and continue": """
seen = []
for n in range(6):
    with gpu:
        for m in [1, 2]:
            if m == 2: break
        else:
            continue
        try:
            if n == 1: continue
            if n == 4: break
        finally:
            seen.append(n)
    seen.append('after')
else:
    seen.append('else')
""",
    "return": """
def f(n):
    while True:
        with gpu:
            if n == 0: return
            if n == 1: return n, [n]
            n -= 1
            if n > 7: continue
            try: return 'try'
            finally:
                if n == 5: return 'finally'
seen = [f(n) for n in range(9)]
""",
    "all that binds": """
def f(a, *b, c=2, **d):
    global g
    with gpu:
        import os.path, math as m
        from math import pi as p, e
        class C(list): z = [a for _ in b]
        def h(q=a): return q, t
        for i, (j, *k) in [(1, (2, 3))]: pass
        with open('/dev/null') as file: name = file.name
        try: raise KeyError(1)
        except KeyError as error: text = str(error)
        match {'x': [1, 2], 'y': 3}:
            case {'x': [first, *others], **rest} as whole: pass
        t = [w := s for s in range(3)]
        (u := 5)
        a += 1
        g = c
        lam = lambda v, r=(late := 4): v + u
        del c
    return (a, m.pi == p, e, os.path.join('a', 'b'), C.z, C.__qualname__, h(), h.__qualname__, i, j, k, name, text,
            first, others, rest, whole, t, w, u, lam(1), late, d, 'c' in locals(), 'error' in locals())
seen = f(1, 2, 3, x=4), g
""",
    "methods": """
class A:
    __hidden = 3
    def run(self): return 'a'
class B(A):
    __own = 4
    def run(this, n=1):
        with gpu:
            __here = this.__own + n
            return super().run(), __here, __class__.__name__
seen = B().run()
""",
    "closures": """
def f():
    n, fs = 0, []
    def g():
        nonlocal n
        with gpu:
            n += 1
            fs.append(lambda: n)
            def deeper():
                nonlocal n
                with gpu: n += 10
            deeper()
        return n
    return g(), g(), n, [h() for h in fs]
seen = f()
""",
    "declared inside": "def f():\n    with gpu:\n        global z\n        z = 3\n    return 'z' in locals()\nseen = f(), z",
    "await": """
import asyncio
async def f():
    async with contextlib.AsyncExitStack():
        with gpu:
            await asyncio.sleep(0)
            rows = [i async for i in numbers()]
            async for i in numbers(): rows.append(i)
            return rows
async def numbers():
    for i in range(9):
        with gpu:
            await asyncio.sleep(0)
            if i == 2: return
        yield i
import contextlib
seen = await f()
""",
    "generators": "def f():\n    got = yield 1\n    with gpu:\n        if got: return got\n    yield 2\n"
    "def g(): return (yield from f())\nseen = list(f())\nh = g(); next(h)\n"
    "try: h.send(5)\nexcept StopIteration as end: seen.append(end.value)",
    "several managers": """
seen = []
class M:
    def __init__(self, n): self.n = n
    def __enter__(self): seen.append(self.n); return self.n
    def __exit__(self, *error): seen.append((self.n, error[0])); return True
def f():
    with M(1) as a, gpu as g, M(a + 1) as b:
        seen.append((a, b))
        raise ValueError
    return a, b
seen.append(f())
""",
    "nested": "def f():\n    for i in range(4):\n        with gpu:\n            with gpu:\n                if i == 1: continue\n"
    "                if i == 2: return i, j\n            j = i\nseen = f()",
    "another manager": "import contextlib\ndef f(gpu):\n    with gpu as x: y = x\n    return y\nseen = f(contextlib.nullcontext(3))",
    "errors": "def f(rows):\n    try:\n        with gpu:\n            rows.append(1)\n            1 / 0\n"
    "    except ZeroDivisionError: rows.append(2)\n    else: rows.append(3)\n    finally: rows.append(4)\n    return rows\nseen = f([])",
    "text": "def f(a):\n    b = 2\n    with gpu:\n        c = eval('a + b')\n        return c, sorted(locals())\nseen = f(1)",
    "future": "from __future__ import annotations\nwith gpu:\n    def f(x: No) -> No: pass\nseen = f.__annotations__",
    "docstring": "def f():\n    with gpu:\n        'text'\nseen = f(), f.__doc__",
}


class Local:
    """A kernel that is also the other kernel."""

    remote = True

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.runs = 0

    def options(self, given: dict[str, Any]) -> None: ...

    def run(self, work: Work, options: Any) -> tuple[int, Any]:
        self.runs += 1
        self.remote = False
        try:
            result = self._start(work)
            if inspect.iscoroutine(result):
                result = finished(result)
        finally:
            self.remote = True
        return result if work.code is None else (self.namespace.pop(EXIT, DONE), None)

    def _start(self, work: Work) -> Any:
        if work.code is not None:
            return eval(in_file(*work.code), self.namespace)
        assert work.function is not None
        found = work.function()
        return found if found is not None else (DONE, None)


def finished(awaitable: Any) -> Any:
    """Runs it without an event loop, because another one is running."""
    while True:
        try:
            awaitable.send(None)
        except StopIteration as end:
            return end.value


@pytest.fixture
def _without_kernel() -> Iterator[None]:
    before = RUNTIME.kernel
    yield
    RUNTIME.kernel = before


def run(code: str, manager: Any, *, take_out: bool) -> Any:
    namespace: dict[str, Any] = {"gpu": manager, "__name__": "__main__"}
    local = Local(namespace)
    RUNTIME.kernel = local
    tree = ast.parse(code)
    if take_out:
        tree = transformed(tree, lambda name: name == "gpu", cell=True)
    found = eval(compile(tree, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), namespace)
    if inspect.iscoroutine(found):
        asyncio.run(as_task(found))
    assert not [name for name in namespace if name.startswith("__baton")]
    return namespace["seen"], local.runs


async def as_task(awaitable: Any) -> Any:
    return await awaitable


@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
@pytest.mark.usefixtures("_without_kernel")
def test_it_does_the_same(code: str) -> None:
    plain, none = run(code, contextlib.nullcontext(gpu), take_out=False)
    elsewhere, runs = run(code, gpu, take_out=True)
    shadowed, here = run(code, contextlib.nullcontext(gpu), take_out=True)
    assert elsewhere == shadowed == plain
    assert none == here == 0
    assert runs > 0 or "nullcontext(3)" in code


@pytest.mark.usefixtures("_without_kernel")
def test_lines_and_names_of_tracebacks() -> None:
    code = "def f(n):\n    m = 0\n    with gpu:\n        m += 1\n        1 / n\n\nf(0)"
    with pytest.raises(ZeroDivisionError) as caught:
        run(code, gpu, take_out=True)
    frames = [(frame.lineno, frame.name) for frame in traceback.extract_tb(caught.tb) if frame.filename == "<code>"]
    assert frames == [(7, "<module>"), (3, "f"), (5, "f")]


def test_a_tree_without_it_is_the_same_tree() -> None:
    tree = ast.parse("with other:\n    pass\nfrom baton import gpu as far\nwith gpu: pass")
    assert transformed(tree, lambda name: False, cell=True) is tree


@pytest.mark.parametrize(
    "code",
    [
        "from baton import gpu",
        "from baton import gpu as far",
        "import baton",
        "import baton as b",
        "from baton import *",
    ],
)
def test_names_that_a_module_imports(code: str) -> None:
    name = {"gpu": "gpu", "far": "far", "baton": "baton.gpu", "b": "b.gpu", "*": "gpu"}[code.split()[-1]]
    tree = ast.parse(f"{code}\ndef f():\n    with {name}(mem='1G'): pass")
    assert transformed(tree, lambda name: False, cell=False) is not tree


def test_without_baton() -> None:
    assert RUNTIME.kernel is None
    for use in (lambda: gpu.__enter__(), lambda: gpu(lambda: 1)()):
        with pytest.raises(RuntimeError, match="This kernel was started without Baton"):
            use()
    assert isinstance(gpu(mem="8G"), Gpu)
