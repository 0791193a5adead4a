"""Modules that are not installed, where the two kernels differ: in what they can import, hold, or have changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Pair

Write = Callable[..., None]


@pytest.fixture
def write(pair: Pair, tmp_path: Path) -> Iterator[Write]:
    """Writes modules that both kernels can import."""
    names: list[str] = []

    def write(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
            names.append(name)

    here = f"import os, sys; sys.path.insert(0, {str(tmp_path)!r})"
    pair.local(here)
    pair.remote(here)
    yield write
    sys.path.remove(str(tmp_path))
    for name in names:
        sys.modules.pop(name, None)


def test_keys_have_their_contents_before_a_table_hashes_them(pair: Pair, write: Write) -> None:
    write(
        own_keys="from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Key: n: int\n"
        "table = {}\nkey = Key(1)\ntable[key] = 'old'\ndef look(): return table, key"
    )
    pair.local("import own_keys; own_keys.key = own_keys.Key(5); own_keys.table = {own_keys.key: 'new'}")
    pair.local("look, Key = own_keys.look, own_keys.Key; del own_keys")
    pair.remote("found = look()[0][Key(5)]", "look", "Key")
    assert pair.namespace["found"] == "new"
