"""Archives of numpy (`np.load("x.npz")`), which read each array when it is requested.

An archive is sent with the bytes of its file, so that the other side needs no file.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, imported

_OPTIONS = ("allow_pickle", "pickle_kwargs", "max_header_size")


class Content(io.BytesIO):
    """The content of a file with this name."""

    name: str


def is_archive_type(kind: type) -> bool:
    return kind.__name__ == "NpzFile" and kind is type_of_archives()


def type_of_archives() -> Any:
    return imported("numpy.lib._npyio_impl", "NpzFile") or imported("numpy.lib.npyio", "NpzFile")


class ArchiveKind(Kind):
    name = "archive"
    changes = True
    replaced = True  # one that is closed here remains open there

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.make,)

    def reduce(self, obj: Any) -> Any:
        options = {name: vars(obj)[name] for name in _OPTIONS if name in vars(obj)}
        if obj.zip is None:
            return self._anchors[0], (None, None, {**options, "files": obj.files, "_files": obj._files})
        file = obj.zip.fp
        place = file.tell()
        file.seek(0)
        content = sys.modules["numpy"].frombuffer(file.read(), dtype="u1")
        file.seek(place)
        return self._anchors[0], (content, getattr(obj.fid, "name", None), options)

    def make(self, content: Any, name: str | None, options: dict[str, Any]) -> Any:
        import numpy  # noqa: F401

        kind = type_of_archives()
        if content is None:
            made = object.__new__(kind)
            vars(made).update(options, zip=None, fid=None, f=None)
            return made
        file = Content(content.tobytes())
        if name is not None:
            file.name = name
        return kind(file, own_fid=True, **options)

    def read(self, obj: Any) -> State:
        return (obj.zip is None,)
