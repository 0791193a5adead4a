"""A version that is newer than any tested one: everything runs, and the first `%%gpu` cell reports it once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from baton_shim.base import tested

if TYPE_CHECKING:
    from conftest import Baton


@pytest.mark.parametrize(
    ("version", "expected"), [("2.15.1+cu130", (2, 15)), ("3", (3,)), ("2.16rc1", (2,)), ("", ()), ("unknown", ())]
)
def test_numbers(version: str, expected: tuple[int, ...]) -> None:
    assert tested.numbers(version, 2) == expected


def test_the_first_cell_says_it_once(baton: Baton) -> None:
    ordinary = baton.run("import IPython\nkept, IPython.__version__ = IPython.__version__, '99.1'")
    assert ordinary.text("stderr") == ""
    first, second = baton.run("%%gpu\nx = 1"), baton.run("%%gpu\nx += 1")
    assert first.text("stderr").count("Baton is not tested yet with IPython 99.1; please report") == 1
    assert "not tested" not in second.text("stderr")
    assert baton.value("x") == "2"


def test_tested_versions_say_nothing(baton: Baton) -> None:
    assert "not tested" not in baton.run("%%gpu\nx = 1").text("stderr")
