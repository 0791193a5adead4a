"""What Tab offers after `%%gpu` and its line magics."""

from __future__ import annotations

import pytest
from baton_shim.notebook import magic
from IPython.core.interactiveshell import InteractiveShell

ALL = [
    "--background",
    "--drop",
    "--env",
    "--gpu",
    "--keep",
    "--mem",
    "--no-return",
    "--priority",
    "--quiet",
    "--timeout",
]


@pytest.fixture(scope="module")
def shell() -> InteractiveShell:
    shell = InteractiveShell()
    magic.register(shell, None, magic.NO_PROXY)
    shell.user_ns.update(model=1, model_two=2, images=3, _hidden=4)
    return shell


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%%gpu ", ALL),
        ("%%gpu --", ALL),
        ("%%gpu --no", ["--no-return"]),
        ("%%gpu --quiet --", [option for option in ALL if option != "--quiet"]),
        ("%%gpu --priority ", ["low", "normal"]),
        ("%%gpu --priority l", ["low"]),
        ("%%gpu --priority=l", ["low"]),
        ("%%gpu --keep mod", ["model", "model_two"]),
        ("%%gpu --keep images mod", ["model", "model_two"]),
        ("%%gpu --keep images,mod", ["model", "model_two"]),
        ("%%gpu --keep images --dr", ["--drop"]),
        ("%%gpu --timeout ", ["1h30m", "5m", "90s"]),
        ("%%gpu --timeout 5m ", [option for option in ALL if option != "--timeout"]),
        ("# training\n%%gpu --q", ["--quiet"]),
        (
            "%gpu_",
            [
                f"%gpu_{name}"
                for name in ("attach", "config", "jobs", "load", "output", "reset", "save", "states", "status", "undo")
            ],
        ),
        ("%gpu_jobs --", ["--cancel"]),
        ("%gpu_save --", ["--strict"]),
        ("%gpu_states --", ["--delete"]),
        ("%gpu_config s", ["status_line=off", "status_line=on"]),
        ("%gpu_reset --", ["--lose"]),
        ("%%gpu\nmodel_t", ["model_two"]),
        ("%%gp", ["%%gpu"]),
        ("%%GP", []),
    ],
)
def test_what_is_offered(shell: InteractiveShell, text: str, expected: list[str]) -> None:
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        found = [completion.text for completion in shell.Completer.completions(text, len(text))]
    assert sorted(found) == expected


def test_only_what_works_is_listed(shell: InteractiveShell) -> None:
    listed = shell.magics_manager.lsmagic()
    assert [name for name in listed["cell"] if name.lower().strip(":").startswith("gpu")] == ["gpu"]
    assert not [name for name in listed["line"] if name.startswith("%")]
