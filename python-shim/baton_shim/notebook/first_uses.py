"""What a cell does first with each name: reads it, or binds it.

In: the syntax tree of a cell. Out: names that may be read before the cell has bound them, and names that are certainly
read first. The tree is followed in the order of execution, with the set of names that are bound on all paths to each
place. A function's body counts as read where the function is defined, because it may run at once.

**Invariant:** a name that some run of the cell reads before binding it is in `read`. A name in `certain` is read before
it is bound in each run that ends without an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from baton_shim.base.bytecode import code_names

# What raises no error by itself; their parts may.
HARMLESS = (ast.Constant, ast.Assign, ast.Expr, ast.Pass, ast.expr_context)
# Context managers that never swallow an error, by the last part of their names.
PASS_ERRORS_ON = frozenset(
    "autocast catch_warnings device enable_grad errstate inference_mode localcontext no_grad open option_context "
    "printoptions profile rc_context set_grad_enabled".split()
)

Bound = set[str] | None
"""Names that the cell has bound on all paths to a place; None: the place cannot be reached."""
# Functions that run text, which may bind any name.
RUNS_TEXT = frozenset({"eval", "exec", "get_ipython", "globals", "locals", "vars", "__import__"})
# Nodes that are treated like another kind of node.
ALIKE = {
    "AsyncFor": "For",
    "AsyncFunctionDef": "FunctionDef",
    "AsyncWith": "With",
    "ClassDef": "FunctionDef",
    "DictComp": "GeneratorExp",
    "ImportFrom": "Import",
    "ListComp": "GeneratorExp",
    "MatchStar": "MatchAs",
    "SetComp": "GeneratorExp",
    "TryStar": "Try",
}


def meet(one: Bound, other: Bound) -> Bound:
    """What is bound where two paths join: the names that both have bound. A path that ends earlier does not count."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


class FirstUses(ast.NodeVisitor):
    def __init__(self, tree: ast.Module, bound_by_calls: Iterable[str] = ()) -> None:
        """`bound_by_calls` are the names that functions of the cell bind when they run."""
        self.read: set[str] = set()
        self.certain: set[str] = set()
        self.stored: set[str] = set()
        self.deleted: set[str] = set()
        self._perhaps = set(bound_by_calls)  # bound on some path to this place
        self._bound: Bound = set()
        self._branches = 0  # the number of conditions around this place
        self._swallowing = 0  # the number of statements around this place that may swallow an error
        self._risked = False  # whether something since the outermost of them may have raised one
        self._anything = False  # text may have run, which can bind any name
        self._loops: list[list[Bound]] = []  # for each loop: what is bound at each `break` out of it
        self._run(tree.body)

    def overwritten(self) -> set[str]:
        """Names that the cell binds or deletes before anything in it can read them."""
        return (self.stored | self.deleted) - self.read

    def visit(self, node: ast.AST) -> None:
        kind = type(node).__name__
        getattr(self, f"visit_{ALIKE.get(kind, kind)}", self.generic_visit)(node)
        stores = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        self._risked |= self._swallowing > 0 and not (stores or isinstance(node, HARMLESS))

    def _run(self, statements: Sequence[ast.AST | None]) -> None:
        for statement in statements:
            if statement is not None:
                self.visit(statement)

    @contextmanager
    def _perhaps_run(self) -> Iterator[None]:
        """Code inside may not run."""
        before = None if self._bound is None else set(self._bound)
        with self._under_condition():
            yield
        self._bound = meet(self._bound, before)

    @contextmanager
    def _under_condition(self) -> Iterator[None]:
        self._branches += 1
        yield
        self._branches -= 1

    @contextmanager
    def _cut_short(self, swallows: bool) -> Iterator[None]:
        """Code inside may end at any place that may raise an error, and the cell continues after it."""
        self._swallowing += swallows
        yield
        self._swallowing -= swallows
        self._risked &= self._swallowing > 0

    def _read(self, name: str) -> None:
        if self._bound is None or name in self._bound:
            return
        self.read.add(name)
        if not (self._branches or self._risked or self._anything or name in self._perhaps):
            self.certain.add(name)

    def _bind(self, name: str) -> None:
        self.stored.add(name)
        self._perhaps.add(name)
        if self._bound is not None:
            self._bound.add(name)

    def _unbind(self, name: str) -> None:
        self.deleted.add(name)
        self._perhaps.add(name)
        if self._bound is not None:
            self._bound.discard(name)

    # ---- names ----

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id)
            self._anything |= node.id in RUNS_TEXT
        elif isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        else:
            self._unbind(node.id)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self._anything = True
            else:
                self._bind(alias.asname or alias.name.partition(".")[0])

    def visit_Assign(self, node: ast.Assign) -> None:
        self._run([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
        self._run([node.value, node.target])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._run([node.value])
        if node.value is not None or not isinstance(node.target, ast.Name):
            self._run([node.target])
        with self._under_condition():  # since Python 3.14, it runs only when it is asked for
            self._run([node.annotation])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._run([node.value, node.target])

    # ---- expressions of which only a part may run ----

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._run(node.values[:1])
        with self._perhaps_run():
            self._run(node.values[1:])

    def visit_Compare(self, node: ast.Compare) -> None:
        self._run([node.left, *node.comparators[:1]])
        with self._perhaps_run():
            self._run(node.comparators[1:])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._run([node.test])
        self._either([node.body], [node.orelse])

    def visit_GeneratorExp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self._run([node.generators[0].iter])
        self._later(ast.Expression(node))
        walruses = [part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr)]
        self.stored.update(walruses)
        self._perhaps.update(walruses)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._run([*node.args.defaults, *node.args.kw_defaults])
        self._later(ast.Expression(node))

    def _later(self, tree: ast.Expression | ast.Module) -> None:
        """Code of another scope: only its reads count."""
        mode = "eval" if isinstance(tree, ast.Expression) else "exec"
        code = compile(tree, "<cell>", mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with self._under_condition():
            for name in code_names(code).loads:
                self._read(name)

    # ---- functions and classes ----

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._run(node.decorator_list)
        if isinstance(node, ast.ClassDef):
            self._run([*node.bases, *(word.value for word in node.keywords)])
        else:
            self._run([*node.args.defaults, *node.args.kw_defaults])
        self._later(ast.Module([node], type_ignores=[]))
        self._bind(node.name)

    # ---- statements ----

    def _either(self, *ways: Sequence[ast.AST | None]) -> None:
        before, after = self._bound, None
        for way in ways:
            self._bound = None if before is None else set(before)
            with self._under_condition():
                self._run(way)
            after = meet(after, self._bound)
        self._bound = after

    def visit_If(self, node: ast.If) -> None:
        self._run([node.test])
        self._either(node.body, node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self._run([node.test])
        for_ever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        self._loop(node.body, node.orelse, None if for_ever else self._copy())

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._run([node.iter])
        self._loop([node.target, *node.body], node.orelse, self._copy())

    def _copy(self) -> Bound:
        return None if self._bound is None else set(self._bound)

    def _loop(self, body: Sequence[ast.AST], otherwise: Sequence[ast.AST], exhausted: Bound) -> None:
        """`exhausted`: what is bound when the loop ends by itself, perhaps before its first round."""
        self._loops.append([])
        with self._under_condition():
            self._run(body)
            self._bound = exhausted
            self._run(otherwise)
        for bound in self._loops.pop():
            self._bound = meet(self._bound, bound)

    def visit_Break(self, node: ast.Break) -> None:
        self._loops[-1].append(self._bound)
        self._bound = None

    def visit_Continue(self, node: ast.Continue) -> None:
        self._bound = None

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        self._bound = None
        self._anything = True  # whether the cell continues is unknown

    def visit_Assert(self, node: ast.Assert) -> None:
        self._run([node.test])
        with self._perhaps_run():
            self._run([node.msg])

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        """A manager may swallow an error of the body, or of a manager inside it."""
        self._run([node.items[0].context_expr])
        with self._perhaps_run(), self._cut_short(not passes_errors_on(node.items[0].context_expr)):
            self._branches -= 1  # the first manager does run
            self._run([node.items[0].optional_vars])
            for item in node.items[1:]:
                self._run([item.context_expr, item.optional_vars])
            self._run(node.body)
            self._branches += 1

    def visit_Try(self, node: ast.Try) -> None:
        before = self._copy()
        with self._cut_short(not all(isinstance(handler.body[-1], ast.Raise) for handler in node.handlers)):
            self._run(node.body)
        with self._under_condition():
            self._run(node.orelse)
            after = self._bound
            for handler in node.handlers:
                self._bound = None if before is None else set(before)
                self._run([handler.type])
                if handler.name:
                    self._bind(handler.name)
                self._run(handler.body)
                if handler.name:
                    self._unbind(handler.name)
                after = meet(after, self._bound)
        self._bound = before
        self._run(node.finalbody)
        self._bound = None if after is None or self._bound is None else after | self._bound

    def visit_Match(self, node: ast.Match) -> None:
        self._run([node.subject])
        before, after = self._copy(), None
        with self._under_condition():
            for case in node.cases:
                self._bound = None if before is None else set(before)
                self._run([case.pattern, case.guard, *case.body])
                after = meet(after, self._bound)
        self._bound = after if matches_anything(node.cases[-1]) else meet(after, before)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic_visit(node)
        if node.name is not None:
            self._bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest is not None:
            self._bind(node.rest)


def passes_errors_on(manager: ast.expr) -> bool:
    called = manager.func if isinstance(manager, ast.Call) else manager
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in PASS_ERRORS_ON


def matches_anything(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
