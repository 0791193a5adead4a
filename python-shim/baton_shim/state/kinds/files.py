"""Closed files, which keep their name and mode; open ones stay in their process. A program's standard streams are sent
by name.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from baton_shim.state.kinds.base import Here, Kind
from baton_shim.state.refusal import raw_of, standard_stream


class FileKind(Kind):
    name = "closed file"
    blind = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new,)

    def reduce(self, obj: Any) -> Any:
        name = standard_stream(obj)
        if name is not None:
            return getattr, (sys, name)
        text = (obj.encoding, obj.errors) if type(obj) is io.TextIOWrapper else None
        return self._anchors[0], (obj.mode, raw_of(obj).name, type(obj) is io.FileIO, text)

    def new(self, mode: str, name: Any, is_raw: bool, text: tuple[str, str] | None) -> Any:
        """The file of that name is not touched, and need not exist here."""
        encoding, errors = text or (None, None)
        nothing = os.open(os.devnull, os.O_RDWR)
        with open(nothing, mode, 0 if is_raw else -1, encoding, errors) as file:
            raw_of(file).name = name
        return file
