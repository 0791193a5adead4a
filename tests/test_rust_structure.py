"""What the crates and modules of the Rust code may know of each other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# They decide, and others do. Nothing that waits, reads a clock, stores, serves or logs is built into them.
PURE = ("baton-broker-queue", "baton-scheduling")
IMPURE = {"axum", "hyper", "nix", "reqwest", "rusqlite", "sqlx", "tokio", "tracing"}


@pytest.mark.parametrize("crate", PURE)
def test_what_decides_has_no_means_to_do_anything(crate: str) -> None:
    command = ["cargo", "tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none", "--package", crate]
    tree = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    below = {line.split()[0] for line in tree.splitlines() if line}
    assert crate in below
    assert below & IMPURE == set()
