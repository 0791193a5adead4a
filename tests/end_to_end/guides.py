"""The examples in the guides."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

GUIDES = Path(__file__).parents[2] / "docs/guides"


def blocks(guide: Path, language: str) -> list[str]:
    """The examples in this language, without the indentation of the list that they belong to."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", guide.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _, text in found]
