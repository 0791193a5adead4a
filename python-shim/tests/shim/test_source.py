"""Where `%%gpu` may be, and the line numbers of the session's code."""

from __future__ import annotations

import pytest
from baton_shim.base.source import as_written, numbered
from baton_shim.notebook.magic import hoist
from IPython.core.inputtransformer2 import TransformerManager


def body_of(whole: str) -> str | None:
    """The body that IPython passes to `%%gpu`."""
    manager = TransformerManager()
    manager.cleanup_transforms.append(hoist)
    calls: list[tuple[str, str, str]] = []

    class Shell:
        def run_cell_magic(self, name: str, line: str, body: str) -> None:
            calls.append((name, line, body))

        def run_line_magic(self, name: str, line: str) -> None:
            calls.append((name, line, ""))

    code = manager.transform_cell(whole)
    try:
        exec(code, {"get_ipython": Shell})
    except (SyntaxError, NameError):
        return None
    while calls and calls[-1][0] == "time":
        exec(manager.transform_cell(calls[-1][2]), {"get_ipython": Shell})
    return calls[-1][2] if calls and calls[-1][0] == "gpu" else None


@pytest.mark.parametrize(
    "whole",
    [
        "%%gpu\nMARK",
        "%%gpu --quiet\nMARK",
        "\n\n%%gpu\nMARK",
        "   %%gpu\n   MARK",
        "\t%%gpu\n\tMARK",
        "# a comment\n%%gpu\nMARK",
        "\n# %%\n\n# another\n%%gpu\n\nMARK",
        "  # a comment\n  %%gpu\n  MARK",
        "%%gpu\r\nMARK",
        "%%gpu\n\n\nx = 1\nMARK\n\n",
        "%%time\n%%gpu\nMARK",
        "%%time\n\n%%gpu\nx\nMARK",
        "%%time\n# why\n%%gpu\nMARK",
        ">>> %%gpu\n... MARK",
    ],
)
def test_lines_keep_their_numbers(whole: str) -> None:
    body = body_of(whole)
    assert body is not None
    numbers = [number for number, line in enumerate(numbered(body, whole).splitlines(), 1) if "MARK" in line]
    assert numbers == [number for number, line in enumerate(whole.splitlines(), 1) if "MARK" in line]


@pytest.mark.parametrize(
    "whole",
    [
        "x = 1\n%%gpu\nMARK",
        '"""\n%%gpu\n"""',
        "'''\n# x\n%%gpu\n'''\nMARK",
        "%%gpux\nMARK",
        "# %%gpu\nMARK",
        "%%writefile x\n%%gpu\nMARK",
    ],
)
def test_elsewhere_it_is_no_magic(whole: str) -> None:
    assert body_of(whole) is None


def test_other_cell_magics_are_left_alone() -> None:
    lines = ["%%time\n", "# x\n", "%%gpu\n", "y\n"]
    assert hoist(lines) == lines


def test_a_body_that_begins_with_a_magic_stays_as_it_is() -> None:
    assert numbered("%%time\nx", "%%gpu\n%%time\nx") == "%%time\nx"


def test_a_source_that_is_not_known() -> None:
    assert numbered("x", "get_ipython().run_cell_magic('gpu', '', text)") == "# %%gpu\nx"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("      1 # %%gpu\n----> 2 1 / 0", "      1 %%gpu\n----> 2 1 / 0"),
        ("----> 1 # %%gpu --quiet", "----> 1 %%gpu --quiet"),
        ("\x1b[32m      2\x1b[39m \x1b[3m# %%gpu\x1b[39m", "\x1b[32m      2\x1b[39m \x1b[3m%%gpu\x1b[39m"),
        ("ValueError: # %%gpu", "ValueError: # %%gpu"),
        ("      2 x  # %%gpu", "      2 x  # %%gpu"),
        ("      1 # %%gpux", "      1 # %%gpux"),
    ],
)
def test_a_traceback_shows_the_magic(shown: str, expected: str) -> None:
    assert as_written(shown) == expected
