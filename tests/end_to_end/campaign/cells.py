"""Random cells: short programs whose effects the model computes by running them itself.

Each step is one statement that an interrupt leaves either done or not done, and after each the cell prints a line.
Steps use the names that `SETUP` defines and change nothing else. They change files only through four functions, so that
the model can make the same changes to a dict.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SETUP = """
import os, time, zlib
import numpy as np
GRID_WORDS = {grid_words}
def mark(name):
    with open({witness!r}, 'a') as witness: witness.write(name + '\\n')
def put(path, text):
    with open(path, 'w') as file: file.write(text)
def add(path, text):
    with open(path, 'a') as file: file.write(text)
def move(path, to): os.path.exists(path) and os.replace(path, to)
def drop(path): os.path.exists(path) and os.remove(path)
"""
"""The first code of a notebook; the model has its own `put`, `add`, `move` and `drop`."""

VARIABLES = """
items = []
count = 0
table = {'items': items}
grid = np.zeros(GRID_WORDS, dtype='int64')
view = grid[::2]
held = {'grid': grid, 'count': count}
"""

LOOK = """
def look(namespace, hidden):
    seen = {}
    def form(value):
        if isinstance(value, (int, str, type(None))):
            return value
        if id(value) in seen:
            return 'as number', seen[id(value)]
        seen[id(value)] = len(seen)
        if isinstance(value, np.ndarray):
            base = value.base if isinstance(value.base, np.ndarray) else None
            return 'array', value.shape, str(value.dtype), zlib.crc32(value.tobytes()), form(base)
        if isinstance(value, dict):
            return [(key, form(one)) for key, one in value.items()]
        if isinstance(value, list):
            return [form(one) for one in value]
        return repr(value)
    names = sorted(name for name in namespace if name not in hidden and not name.startswith('_'))
    return repr([(name, form(namespace[name])) for name in names])
"""
"""Describes the namespace by value, and which names are one object. Both the notebook and the model call it."""

FILES = 6
GENERATION = 8
"""After so many cells, the steps use new files. Earlier files must then remain unchanged."""
FRESH_NAMES = [f"extra_{number}" for number in range(4)]


@dataclass(frozen=True)
class Step:
    code: str
    paths: tuple[str, ...] = ()
    """The files that it works on; if there are none, it works on variables."""
    torn: str | None = None
    """The effect if an interrupt hits it in the middle, if that is neither all nor nothing."""


@dataclass(frozen=True)
class CellPlan:
    """One cell, fully determined before it is sent."""

    name: str
    remote: bool
    steps: list[Step]
    pauses: list[float]
    raises: bool
    presses: list[float] = field(default_factory=list)
    """When stop is pressed, in seconds after the cell was sent."""

    def code(self) -> str:
        lines = ["%%gpu"] if self.remote else []
        lines.append(f"mark({self.name!r})")
        for number, (step, pause) in enumerate(zip(self.steps, self.pauses, strict=True)):
            lines += [step.code, f"print({self.line(number)!r}, flush=True)", f"time.sleep({pause})"]
        if self.raises:
            lines.append(f"raise ValueError({self.name!r})")
        return "\n".join(lines)

    def line(self, number: int) -> str:
        return f"{self.name} line {number}"

    @property
    def lines(self) -> list[str]:
        return [self.line(number) for number in range(len(self.steps))]


def random_cell(dice: random.Random, name: str, number: int, *, remote: bool) -> CellPlan:
    steps = [random_step(dice, number // GENERATION) for _ in range(dice.randint(1, 5))]
    slow = dice.random() < 0.15
    pauses = [round(dice.uniform(0, 0.6 if slow else 0.05), 3) for _ in steps]
    presses: list[float] = []
    if dice.random() < 0.2:
        presses.append(round(dice.choice([dice.uniform(0, 0.1), dice.uniform(0, 1)]), 3))
        if dice.random() < 0.4:
            presses.append(round(presses[0] + dice.choice([dice.uniform(0, 0.05), dice.uniform(0, 0.8)]), 3))
    return CellPlan(name, remote, steps, pauses, dice.random() < 0.08, presses)


def random_step(dice: random.Random, generation: int) -> Step:
    number = dice.randint(1, 10**6)
    make = dice.choice([variable_step, variable_step, variable_step, file_step])
    return make(dice, number, generation)


def variable_step(dice: random.Random, number: int, _generation: int) -> Step:
    fresh, key = dice.choice(FRESH_NAMES), f"k{number % 5}"
    return dice.choice(
        [
            Step(f"items.append({number})"),
            Step(f"count += {number}"),
            Step(f"table[{key!r}] = {number}"),
            Step(f"table.pop({key!r}, None)"),
            Step(f"grid += {number}"),
            Step(f"view[:{number % 100}] *= 3"),
            Step(f"held['grid'] = grid + {number % 1000}"),
            Step("held['grid'] = grid"),
            Step(f"grid, view = (lambda new: (new, new[::2]))(grid + {number})"),
            Step(f"{fresh} = [items, {number}]"),
            Step(f"{fresh} = 0; del {fresh}", torn=f"{fresh} = 0"),
            Step(f"held['count'] = count = {number}"),
        ]
    )


def file_step(dice: random.Random, number: int, generation: int) -> Step:
    path, to = (f"{generation}-{dice.randrange(FILES)}.txt" for _ in range(2))
    text = f"{number}\n"
    return dice.choice(
        [
            Step(f"put({path!r}, {text!r})", (path,), torn=f"put({path!r}, '')"),
            Step(f"add({path!r}, {text!r})", (path,), torn=f"add({path!r}, '')"),
            Step(f"move({path!r}, {to!r})", (path, to)),
            Step(f"drop({path!r})", (path,)),
        ]
    )
