"""What may be true of a notebook, given what its client has seen.

A *world* is one possibility: the steps that have changed the notebook's variables, and the contents of its folder. Most
of the time there is one. An interrupted cell, for example, leaves one world for each number of completed steps that its
output allows. The next look at the notebook shows which one is real. If a look agrees with no world, that is a
violation.

**Invariant:** variables and files of one world belong together, so a mixture of before and after is not a world.
"""

from __future__ import annotations

import functools
import os
import re
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from end_to_end.campaign.cells import LOOK, VARIABLES, CellPlan, Step
from end_to_end.campaign.outcome import Kind, Outcome

UNKNOWN = "(anything)"
"""The content of a file of a cell that is not followed any more: the cell may still run, in a shared folder."""
BESIDE = re.compile(r" \(from the GPU( \d+)?\)")
"""Ends the name of a cell's version of a file that was also changed elsewhere."""


@dataclass(frozen=True)
class World:
    done: tuple[str, ...]
    """The steps on variables since the kernel started."""
    files: tuple[tuple[str, str], ...]
    """The files in the folder, sorted."""
    before: dict[int, int] = field(default_factory=dict, compare=False, hash=False)
    """The number of steps that had been done before each In[n]."""

    def after(self, steps: Iterable[Step]) -> World:
        return functools.reduce(World._with, steps, self)

    def _with(self, step: Step) -> World:
        if not step.paths:
            return replace(self, done=(*self.done, step.code))
        files = dict(self.files)
        if any(files.get(path) == UNKNOWN for path in step.paths):
            return self.forgetting([step])
        exec(step.code, file_functions(files))
        return replace(self, files=tuple(sorted(files.items())))

    def forgetting(self, steps: Iterable[Step]) -> World:
        """The world if it is unknown what these steps have done or will do to files."""
        unknown = {path: UNKNOWN for step in steps for path in step.paths}
        return replace(self, files=tuple(sorted((dict(self.files) | unknown).items())))

    def in_cell(self, number: int) -> World:
        return replace(self, before=self.before | {number: len(self.done)})

    def taken_back(self, number: int) -> World:
        """The variables as before In[number]; files stay."""
        return replace(self, done=self.done[: self.before.get(number, len(self.done))])

    def has_files(self, found: dict[str, str]) -> bool:
        known = {path: text for path, text in self.files if text != UNKNOWN}
        unknown = {path for path, text in self.files if text == UNKNOWN}
        return known == {path: text for path, text in found.items() if not {path, BESIDE.sub("", path)} & unknown}


def file_functions(files: dict[str, str]) -> dict[str, object]:
    def put(path: str, text: str) -> None:
        files[path] = text

    def add(path: str, text: str) -> None:
        files[path] = files.get(path, "") + text

    def move(path: str, to: str) -> None:
        if path in files:
            files[to] = files.pop(path)

    def drop(path: str) -> None:
        files.pop(path, None)

    return {"put": put, "add": add, "move": move, "drop": drop}


HELPERS = {"np": np, "os": os, "time": time, "zlib": zlib}


@functools.lru_cache(maxsize=512)
def look_of(grid_words: int, done: tuple[str, ...]) -> str:
    """The result of `LOOK` for the variables after these steps."""
    namespace = HELPERS | {"GRID_WORDS": grid_words}
    hidden = {*namespace, "look", "__builtins__"}
    exec("\n".join([VARIABLES, LOOK, *done]), namespace)
    return str(namespace["look"](namespace, hidden))  # type: ignore[operator]


class Model:
    """The model of one notebook."""

    def __init__(self, grid_words: int, files: dict[str, str], *, mirrored: bool) -> None:
        self._grid_words = grid_words
        self._mirrored = mirrored
        self.worlds = [World((), tuple(sorted(files.items())))]

    def started_anew(self) -> None:
        """The kernel has no variables except those of its first cell."""
        self._become(replace(world, done=(), before={}) for world in self.worlds)

    def ran(self, plan: CellPlan, outcome: Outcome) -> None:
        """A cell ended with this outcome."""
        held = [world.taken_back(outcome.taken_back) for world in self.worlds]
        started = [world.in_cell(outcome.number) for world in held]
        ended = [after for world in started for after in self._ends(world, plan, outcome)]
        self._become(world.forgetting(plan.steps) for world in ended) if outcome.files_stay else self._become(ended)

    def _ends(self, world: World, plan: CellPlan, outcome: Outcome) -> Iterable[World]:
        match outcome.kind:
            case Kind.OK | Kind.RAISED:
                yield world.after(plan.steps)
            case Kind.INTERRUPTED | Kind.DISTURBED:
                yield from self._interrupted(world, plan, outcome.lines)
                if outcome.presses > 1:
                    yield self._left(world, plan)
            case Kind.UNCHANGED:
                yield self._left(world, plan)
            case Kind.NOT_RUN:
                yield world
            case Kind.GONE:
                yield from self._gone(world, plan)

    def _interrupted(self, world: World, plan: CellPlan, lines: int) -> Iterable[World]:
        """The step after the last line may have been done, completely or in part."""
        steps = plan.steps
        yield world.after(steps[:lines])
        for step in steps[lines : lines + 1]:
            yield world.after(steps[: lines + 1])
            if step.torn is not None:
                yield world.after([*steps[:lines], replace(step, code=step.torn)])

    def _left(self, world: World, plan: CellPlan) -> World:
        """Unchanged, except files in a shared folder, where the cell may even still run."""
        return world if self._mirrored and plan.remote else world.forgetting(plan.steps)

    def _gone(self, world: World, plan: CellPlan) -> Iterable[World]:
        """The end of the cell was not seen, and the variables are gone; its changes to files may have arrived."""
        yield self._left(world, plan)
        if self._mirrored and plan.remote:
            for lines in range(len(plan.steps) + 1):
                yield from self._interrupted(world, plan, lines)

    def saw_variables(self, look: str) -> str | None:
        """Returns what is wrong, if anything."""
        expected = {look_of(self._grid_words, world.done) for world in self.worlds}
        if look not in expected:
            return (
                f"variables that no sequence of events explains:\n  seen     {look}\n  possible "
                + "\n  or       ".join(sorted(expected))
            )
        self._become(world for world in self.worlds if look_of(self._grid_words, world.done) == look)
        return None

    def saw_files(self, found: dict[str, str]) -> str | None:
        fitting = [world for world in self.worlds if world.has_files(found)]
        if not fitting:
            possible = "\n  or       ".join(sorted({str(dict(world.files)) for world in self.worlds}))
            return f"files that no sequence of events explains:\n  seen     {found}\n  possible {possible}"
        self._become(fitting)
        return None

    def believe(self, files: dict[str, str]) -> None:
        """After a violation: continues from the actual state."""
        self._become([World((), tuple(sorted(files.items())))])

    def _become(self, worlds: Iterable[World]) -> None:
        self.worlds = list(dict.fromkeys(worlds))
