"""What `Kind.look` returns compares by value, and does not change with the setting."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from baton_shim.surroundings.kind import Kind
from baton_shim.surroundings.settings import kinds
from cycler import cycler

MUTABLE = (dict, list, set, bytearray)
BY_NAME = {kind.name: kind for kind in kinds()}


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, MUTABLE):
        yield value
    if isinstance(value, (dict, list, tuple)):
        for part in (*value.values(), *value.keys()) if isinstance(value, dict) else value:
            yield from containers(part)


OF_A_SHELL = "IPython.core.interactiveshell"  # there is none in this process
HERE = [kind for kind in kinds() if kind.is_here() and kind.module != OF_A_SHELL]


@pytest.mark.parametrize("kind", HERE, ids=lambda kind: kind.name)
def test_a_change_in_place_of_what_was_returned_changes_nothing_else(kind: Kind) -> None:
    shown = [kind.look(), kind.look(), kind.at_first(), kind.at_first()]
    found = [list(containers(one)) for one in shown]
    assert len({id(one) for each in found for one in each}) == sum(map(len, found))
    assert shown[0] == shown[1]


@contextmanager
def fonts() -> Iterator[Callable[[], object]]:
    shown: Any = matplotlib.rcParams["font.sans-serif"]
    yield lambda: shown.insert(0, "Lato")
    shown.remove("Lato")


@contextmanager
def number_formats() -> Iterator[Callable[[], object]]:
    np.set_printoptions(formatter={"int": hex})
    yield lambda: np.get_printoptions()["formatter"].update(float=str)
    np.set_printoptions(formatter=None)


@contextmanager
def options() -> Iterator[Callable[[], object]]:
    display: Any = pd._config.config._global_config["display"]
    display["width"] = [70]
    yield lambda: display["width"].append(90)
    pd.reset_option("display.width")


@contextmanager
def cycle() -> Iterator[Callable[[], object]]:
    with matplotlib.rc_context():
        matplotlib.rcParams["axes.prop_cycle"] = cycler(color=["r", "g"])
        shown: Any = matplotlib.rcParams["axes.prop_cycle"]
        yield lambda: shown.__imul__(cycler(linestyle=["-", "--"]))


IN_PLACE = {
    "fonts": ("matplotlib.rcParams", fonts),
    "cycle": ("matplotlib.rcParams", cycle),
    "number formats": ("numpy.printing", number_formats),
    "options": ("pandas.options", options),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_a_setting_that_changes_in_place(case: str) -> None:
    name, changes = IN_PLACE[case]
    with changes() as change:
        before = BY_NAME[name].look()
        change()
        assert BY_NAME[name].look() != before


def test_fonts_that_changed_before_the_first_look() -> None:
    kind = BY_NAME["matplotlib.rcParams"]
    with fonts() as change:
        change()
        new, _ = kind.difference(kind.at_first(), kind.look())
    assert new["font.sans-serif"][0] == "Lato"


def test_a_normal_number_that_is_kept_for_the_next_call() -> None:
    """`set_state` may restore it and change no other part of the state."""
    kind, random = BY_NAME["numpy.random.state"], np.random
    random.seed(0)
    random.randn()
    saved = random.get_state()
    kind.look()
    random.randn()
    kind.look()
    random.set_state(saved)
    assert pickle.loads(kind.look())["has_gauss"] == 1
