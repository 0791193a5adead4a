"""What a `with gpu:` block binds and how it is left; and the block rewritten so that it can run in another kernel.

**Invariant:** functions, classes and comprehensions in the block are scopes of their own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from baton_shim.base.blocks import BREAK, CONTINUE, EXIT, RETURN

# Code that loads one of these looks at the variables of its function, or evaluates a text with them.
SHOWS_VARIABLES = frozenset({"dir", "eval", "exec", "get_ipython", "locals", "vars"})
# Methods and functions that evaluate a string with the caller's names (pandas, numexpr, formulas).
EVALUATES_TEXT = re.compile(r"query|eval|evaluate|ols|wls|gls|glm|logit|probit|dmatrix|dmatrices|from_formula")


def constant(value: Any, place: ast.AST) -> ast.Constant:
    return ast.copy_location(ast.Constant(value), place)


def arguments_of(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [one.arg for one in every if one is not None]


class Inside(ast.NodeVisitor):
    """What the code of one scope does. Functions and classes in it are scopes of their own."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.globals: set[str] = set()
        self.exits: set[str] = set()
        self.yields: ast.Yield | ast.YieldFrom | None = None
        self.returns_value = False
        self.awaits = False
        self.shows_variables = False
        self._in_comprehension = self._in_loop = 0

    def look(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            if not self._in_comprehension:
                self.bound.add(node.id)
        elif node.id in SHOWS_VARIABLES or EVALUATES_TEXT.fullmatch(node.id):
            self.shows_variables = True

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.shows_variables |= EVALUATES_TEXT.fullmatch(node.attr) is not None
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.bound.add(node.target.id)
        self.visit(node.value)

    def _visit_comprehension(self, node: Any) -> None:
        self.awaits |= any(part.is_async for part in node.generators)
        self._in_comprehension += 1
        self.generic_visit(node)
        self._in_comprehension -= 1

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.look([*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)])

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bound.add(node.name)
        arguments = node.args
        self.look([*node.decorator_list, *arguments.defaults, *(one for one in arguments.kw_defaults if one)])

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bound.add(node.name)
        self.look([*node.decorator_list, *node.bases, *(word.value for word in node.keywords)])

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        self.bound.update(name for name in names if name != "*")

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bound.add(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name is not None:
            self.bound.add(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs  # noqa: N815

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest is not None:
            self.bound.add(node.rest)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.globals.update(node.names)

    def _visit_loop(self, node: Any) -> None:
        self.awaits |= isinstance(node, ast.AsyncFor)
        self.look([node.test] if isinstance(node, ast.While) else [node.target, node.iter])
        self._in_loop += 1
        self.look(node.body)
        self._in_loop -= 1
        self.look(node.orelse)

    visit_For = visit_AsyncFor = visit_While = _visit_loop  # noqa: N815

    def visit_Break(self, node: ast.Break) -> None:
        if not self._in_loop:
            self.exits.add("break")

    def visit_Continue(self, node: ast.Continue) -> None:
        if not self._in_loop:
            self.exits.add("continue")

    def visit_Return(self, node: ast.Return) -> None:
        self.exits.add("return")
        self.returns_value |= node.value is not None
        self.generic_visit(node)

    def _visit_await(self, node: ast.AST) -> None:
        self.awaits = True
        self.generic_visit(node)

    visit_Await = visit_AsyncWith = _visit_await  # noqa: N815

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom) -> None:
        self.yields = self.yields or node
        self.generic_visit(node)

    visit_YieldFrom = visit_Yield  # noqa: N815


class Leaving(ast.NodeTransformer):
    """Rewrites a block so that it ends where it is left, and records how. Inner functions and classes stay as is."""

    def __init__(self, *, in_function: bool, first: str | None = None) -> None:
        """`first` is the first parameter of the enclosing function, which `super()` looks at."""
        self._in_function, self._first = in_function, first
        self._in_loop = 0

    def rewritten(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return list(self.visit(ast.Module(body, type_ignores=[])).body)

    def _visit_scope(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _visit_scope  # noqa: N815

    def _visit_loop(self, node: Any) -> ast.AST:
        self._in_loop += 1
        node.body = self.rewritten(node.body)
        self._in_loop -= 1
        node.orelse = self.rewritten(node.orelse)
        for name in ("test", "iter"):
            if hasattr(node, name):
                setattr(node, name, self.visit(getattr(node, name)))
        return node  # type: ignore[no-any-return]

    visit_For = visit_AsyncFor = visit_While = _visit_loop  # noqa: N815

    def _left(self, node: ast.stmt, ended: int, value: ast.expr | None = None) -> Any:
        if self._in_function:
            answer = ast.Tuple([constant(ended, node), value or constant(None, node)], ast.Load())
            return ast.copy_location(ast.Return(ast.copy_location(answer, node)), node)
        noted = ast.Assign([ast.copy_location(ast.Name(EXIT, ast.Store()), node)], constant(ended, node))
        return [ast.copy_location(noted, node), ast.copy_location(ast.Break(), node)]

    def visit_Break(self, node: ast.Break) -> Any:
        return node if self._in_loop else self._left(node, BREAK)

    def visit_Continue(self, node: ast.Continue) -> Any:
        return node if self._in_loop else self._left(node, CONTINUE)

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        return self._left(node, RETURN, node.value) if self._in_function else node

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> ast.stmt:
        """Declarations move to the top of the enclosing function, where they take effect."""
        return ast.copy_location(ast.Pass(), node) if self._in_function else node

    visit_Nonlocal = visit_Global  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """A function does not evaluate annotations of its variables, and cannot annotate a `nonlocal` variable."""
        self.generic_visit(node)
        if not (self._in_function and isinstance(node.target, ast.Name)):
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        is_super = isinstance(node.func, ast.Name) and node.func.id == "super" and not (node.args or node.keywords)
        if is_super and self._in_function and self._first is not None:
            node.args = [ast.copy_location(ast.Name(name, ast.Load()), node) for name in ("__class__", self._first)]
        return node
