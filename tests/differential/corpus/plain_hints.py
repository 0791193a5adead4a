"""Annotations that are text, in functions, classes and registered functions, and who evaluates them."""
# %%
import functools, typing
from dataclasses import dataclass

class A:
    def __repr__(self): return "an A"

class B(A):
    pass

def f(a: "A", rest: typing.Optional["B"] = None) -> "list[B]":
    return []

@functools.singledispatch
def show(x):
    return "anything"
# %%
typing.get_type_hints(f)
# %%
@dataclass
class Pair:
    first: "A"
    others: "dict[str, B]"

typing.get_type_hints(Pair)
# %%
typing.get_type_hints(Pair), Pair(A(), {})
# %%
@show.register
def _(x: "A"):
    return "one"

show(A()), show(3)
# %%
@show.register
def _(x: "B") -> "str":
    return "two"

show(A()), show(B()), show(3)
# %%
from __future__ import annotations

def g(a: A, b: B | None = None): pass

typing.get_type_hints(g)
# %%
typing.get_type_hints(g), show(B())
