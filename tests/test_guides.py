"""Every example of a configuration file in the guides is valid."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from end_to_end import Service
from end_to_end.guides import GUIDES, blocks
from end_to_end.service import run_binary

OF_A_POOL = {"offers", "submit", "worker"}
"""Keys of a pool that a guide shows alone."""
POOL = '[[pool]]\nname = "pool"\nprovider = "command"\nmax = 1\n'
EXAMPLES = [
    pytest.param(text, id=f"{guide.stem}-{number}")
    for guide in sorted(GUIDES.glob("*.md"))
    for number, text in enumerate(blocks(guide, "toml"))
]


def test_the_guides_have_examples() -> None:
    assert len(EXAMPLES) >= 15


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_valid(service: Service, tmp_path: Path, text: str) -> None:
    keys = tomllib.loads(text).keys()
    file = tmp_path / "example.toml"
    if "course" in keys:
        file.write_text(text)
        # The broker does not start with a wrong courses file.
        service.start_broker(BATON_BROKER_COURSES_FILE=str(file))
        return
    file.write_text(POOL + text if keys <= OF_A_POOL else text)
    checked = run_binary(service.place, "config", "check", str(file))
    assert checked.returncode == 0, checked.stderr
