"""Takes the blocks of `with gpu:` out of a syntax tree, so that they can run in another kernel.

A block of a cell becomes module-level code of its own. A block in a function becomes a nested function that declares
the names it binds `nonlocal`, so the variables are shared as closures share them. A block that is left by `break`,
`continue` or `return` reports that, and the code around it acts on it.

**Invariant:** a tree without `with gpu:` is returned as it is; lines and columns remain those of the source.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import marshal
import operator
from collections.abc import Callable
from typing import Any

from baton_shim.base.block_scopes import Inside, Leaving, arguments_of, constant
from baton_shim.base.blocks import BLOCK, BREAK, CONTINUE, RAISE, RETURN

IsGpu = Callable[[str], object]


def transformed(tree: ast.Module, is_gpu: IsGpu, *, cell: bool, flags: int = 0) -> ast.Module:
    """`is_gpu` tells whether a name stands for `gpu`, or does so with `.gpu` after it, besides what the tree imports.

    `cell`: allow blocks outside of functions. `flags` are those of the compiler. Raises SyntaxError, without a file
    name, for code that a block cannot contain.
    """
    imported = imports(tree)
    known = {f"{name}.gpu" for name in imported.modules}.union(imported.names)

    def is_ours(name: str) -> bool:
        return name in known or bool(is_gpu(name))

    if not any(isinstance(node, ast.With) and place_of_gpu(node, is_ours) is not None for node in ast.walk(tree)):
        return tree
    flags |= of_future(tree)
    result: ast.Module = Blocks(is_ours, cell, flags).visit(copy.deepcopy(tree))
    # IPython compiles a cell statement by statement, so it would run the statements above an error.
    compile(result, "<block>", "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return result


def of_future(tree: ast.Module) -> int:
    """The compiler flags of the tree's own imports from `__future__`."""
    found = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    features = [getattr(__future__, alias.name, None) for node in found for alias in node.names]
    return functools.reduce(operator.or_, (one.compiler_flag for one in features if one is not None), 0)


class Imports(ast.NodeVisitor):
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.modules: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "baton" and not node.level:
            self.names.update(a.asname or "gpu" for a in node.names if a.name in ("gpu", "*"))

    def visit_Import(self, node: ast.Import) -> None:
        self.modules.update(alias.asname or "baton" for alias in node.names if alias.name == "baton")


def imports(tree: ast.Module) -> Imports:
    found = Imports()
    found.visit(tree)
    return found


def place_of_gpu(node: ast.With, is_gpu: IsGpu) -> int | None:
    """The index of the context manager that is `gpu`, found by its name."""
    for place, item in enumerate(node.items):
        manager = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
        if isinstance(manager, ast.Name) and is_gpu(manager.id):
            return place
        if isinstance(manager, ast.Attribute) and manager.attr == "gpu" and isinstance(manager.value, ast.Name):
            name = f"{manager.value.id}.gpu"
            return place if is_gpu(name) else None
    return None


class Blocks(ast.NodeTransformer):
    def __init__(self, is_gpu: IsGpu, cell: bool, flags: int) -> None:
        self._is_gpu, self._cell = is_gpu, cell
        self._flags = flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._scopes: list[ast.AST] = []

    def _visit_scope(self, node: ast.AST) -> ast.AST:
        self._scopes.append(node)
        try:
            return self.generic_visit(node)
        finally:
            self._scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_scope  # noqa: N815

    def visit_With(self, node: ast.With) -> Any:
        place = place_of_gpu(node, self._is_gpu)
        if place is None:
            return self.generic_visit(node)
        if place:
            inner = ast.copy_location(ast.With(node.items[place:], node.body), node)
            return self.generic_visit(ast.copy_location(ast.With(node.items[:place], [inner]), node))
        scope = self._scopes[-1] if self._scopes else None
        if isinstance(scope, ast.ClassDef):
            raise refusal(node, "'with gpu:' cannot be used in the body of a class; put it into a function")
        if scope is None and not self._cell:
            raise refusal(node, "'with gpu:' cannot be used at the top level of a module; put it into a function")
        return self._taken_out(node, scope)

    def _taken_out(self, node: ast.With, scope: Any) -> ast.stmt:
        (manager, target), others = (node.items[0].context_expr, node.items[0].optional_vars), node.items[1:]
        body: list[ast.stmt] = [ast.copy_location(ast.With(others, node.body), node)] if others else node.body
        inside = Inside()
        inside.look(body)
        if inside.yields is not None:
            raise refusal(inside.yields, "'yield' cannot be used inside 'with gpu:'; yield the result after the block")
        here = call("runs_here", node, manager)
        # This one is compiled before the copy: of equal functions, the compiler keeps the first with its name.
        in_place = ast.With([ast.withitem(call("take", node), target)], self._visited(body))
        elsewhere = self._visited(body)
        if target is not None:
            inside.look([target])
            assigned = ast.Assign([copy.deepcopy(target)], expression('__import__("baton").gpu', node))
            elsewhere.insert(0, ast.copy_location(assigned, node))
        if scope is None:
            text = ast.unparse(module_body(copy.deepcopy(body), inside.exits))
            code = self._module_code(module_body(elsewhere, inside.exits))
            block: list[ast.stmt] = []
            answer = call("module_block", node, constant(code, node), constant(text, node))
        else:
            text = ast.unparse(ast.Module(body, type_ignores=[]))
            block = [self._function(node, scope, elsewhere, inside, text), ast.Delete([ast.Name(BLOCK, ast.Del())])]
            answer = call("ended", node)
        ways: list[tuple[int, ast.stmt]] = [(RAISE, ast.Raise(call("take", node)))]
        if "break" in inside.exits:
            ways.append((BREAK, ast.Break()))
        if "continue" in inside.exits:
            ways.append((CONTINUE, ast.Continue()))
        if "return" in inside.exits:
            ways.append((RETURN, ast.Return(call("take", node) if inside.returns_value else None)))
        cases = [ast.match_case(ast.MatchValue(constant(ended, node)), None, [way]) for ended, way in ways]
        replaced: ast.stmt = at(ast.If(here, [in_place], [*block, ast.Match(answer, cases)]), node)
        return replaced

    def _visited(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A copy of the block, with the blocks inside it taken out."""
        return list(self.generic_visit(ast.Module(copy.deepcopy(body), type_ignores=[])).body)  # type: ignore[attr-defined]

    def _module_code(self, tree: ast.Module) -> bytes:
        return marshal.dumps(compile(tree, "<block>", "exec", self._flags, dont_inherit=True))

    def _function(self, node: ast.With, scope: Any, body: list[ast.stmt], inside: Inside, text: str) -> ast.stmt:
        """The block as a nested function, with a decorator that runs it."""
        around = Inside()
        around.look(scope.body)
        declared = [
            (ast.Global, inside.bound & around.globals),
            (ast.Nonlocal, inside.bound - around.globals),
        ]
        header: list[ast.stmt] = [kind(sorted(names)) for kind, names in declared if names]
        parameters = arguments_of(scope.args)
        if inside.shows_variables:  # `locals()` shows the variables that the code names
            variables = around.bound.union(parameters) - around.globals
            shown: list[ast.expr] = [ast.Name(name, ast.Load()) for name in sorted(variables)]
            header.append(ast.If(constant(False, node), [ast.Expr(ast.Tuple(shown, ast.Load()))], []))
        body = Leaving(in_function=True, first=parameters[0] if parameters else None).rewritten(body)
        kind = ast.AsyncFunctionDef if inside.awaits else ast.FunctionDef
        decorator = call("function_block", node, constant(text, node))
        ast.copy_location(decorator, scope)  # a function begins at its first decorator
        fields = dict(ast.iter_fields(ast.parse(f"def {BLOCK}(): pass").body[0]))
        function: ast.stmt = kind(**{**fields, "body": [*header, *body], "decorator_list": [decorator]})
        return function


def refusal(node: ast.AST, message: str) -> SyntaxError:
    error = SyntaxError(message)
    error.lineno, error.offset = node.lineno, node.col_offset + 1  # type: ignore[attr-defined]
    return error


def at(node: Any, place: ast.With) -> Any:
    """Gives the parts of the node without a place the place of the statement's first line."""
    line, column = place.lineno, place.col_offset
    end = place.items[0].context_expr
    for one in ast.walk(node):
        if "lineno" in one._attributes and not hasattr(one, "lineno"):
            vars(one).update(
                lineno=line, col_offset=column, end_lineno=end.end_lineno, end_col_offset=end.end_col_offset
            )
    return node


def call(name: str, place: ast.With, *arguments: ast.expr) -> ast.expr:
    """A call of a function of `blocks.py`."""
    found: Any = expression(f'__import__("baton_shim.base.blocks", fromlist=("gpu",)).{name}()', place)
    found.args = list(arguments)
    return found  # type: ignore[no-any-return]


def expression(source: str, place: ast.AST) -> ast.expr:
    found: ast.expr = ast.parse(source, mode="eval").body
    for one in ast.walk(found):
        ast.copy_location(one, place)
        if isinstance(place, ast.With):
            end = place.items[0].context_expr
            vars(one).update(end_lineno=end.end_lineno, end_col_offset=end.end_col_offset)
    return found


def module_body(body: list[ast.stmt], exits: set[str]) -> ast.Module:
    """The block as a module that ends at `break` and `continue`."""
    if exits & {"break", "continue"}:
        body = Leaving(in_function=False).rewritten(body)
        loop = ast.While(constant(True, body[0]), [*body, ast.copy_location(ast.Break(), body[0])], [])
        body = [ast.copy_location(loop, body[0])]
    return ast.fix_missing_locations(ast.Module(body, type_ignores=[]))
