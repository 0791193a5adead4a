"""The source that the session runs for a `%%gpu` cell: the body, with the notebook's line numbers.

**Invariant:** pure.
"""

from __future__ import annotations

import re

GPU_LINE = re.compile(r"[ \t]*%%gpu(?:[ \t\r\n]|$)")
# In a traceback line: an arrow, the number and colours, then the comment that replaces the magic.
_NUMBERED = re.compile(r"^((?:\x1b\[[\d;]*m|[ \t>-]|\d)*\d(?:\x1b\[[\d;]*m| )*)# (%%gpu\b)", re.MULTILINE)


def numbered(body: str, whole: str) -> str:
    """`body` at the line numbers that it has in `whole`, the source that the student sees.

    The lines above it are filled with comments, because IPython drops blank lines at the start of a cell.
    A body that begins with a cell magic is returned unchanged, because the magic has to be the first line.
    """
    if body.lstrip().startswith("%%"):
        return body
    lines = whole.splitlines()
    kept = body.splitlines()
    above = lines[: len(lines) - len(kept)] if tail_matches(lines, kept) else ["%%gpu"]
    prefix = [line if line.lstrip().startswith("#") else f"# {line}".rstrip() for line in above]
    if not any(GPU_LINE.match(line) for line in above):
        prefix[-1] = "# %%gpu"  # comments that were above it are now in the body
    return "\n".join([*prefix, body])


def as_written(traceback: str) -> str:
    """Traceback lines with the magic as the student wrote it."""
    return _NUMBERED.sub(r"\1\2", traceback)


def tail_matches(lines: list[str], kept: list[str]) -> bool:
    """Whether the body's code ends the source. Indentation and comments are ignored, because they may have moved."""
    if len(kept) >= len(lines):
        return False
    last = next((number for number in range(len(kept) - 1, -1, -1) if kept[number].strip()), None)
    return last is not None and lines[last - len(kept)].strip() == kept[last].strip()
