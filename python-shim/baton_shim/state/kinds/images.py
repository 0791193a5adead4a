"""Images of Pillow. An image that shows the memory of a byte array or numpy array continues to show it.

`here.py` recorded which memory that is when the image was created.
"""

from __future__ import annotations

import array
from typing import Any

from baton_shim.state.kinds.base import Here, State, imported
from baton_shim.state.kinds.reduced import Frozen, ReducedKind


def is_image_type(kind: type) -> bool:
    return kind is imported("PIL.Image", "Image")


class ImageKind(ReducedKind):
    name = "image"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.show,)

    def reduce(self, obj: Any) -> Any:
        shown = shown_by(obj)
        if shown is None:
            return None
        data, args = shown
        return self._anchors[0], (obj.mode, obj.size, data, args, obj.getpalette(), obj.info)

    def show(self, mode: str, size: Any, data: Any, args: Any, palette: Any, info: Any) -> Any:
        made = imported("PIL.Image", "frombuffer")(mode, size, data, "raw", *args)
        self.apply(made, ("shows", (palette, info)))
        return made

    def read(self, obj: Any) -> State:
        shown = shown_by(obj)
        if shown is None:
            return super().read(obj)
        return "shows", Frozen((shown[0], tuple(obj.getpalette() or ()), obj.info))

    def content(self, obj: Any, state: State) -> Any:
        return (state[0], (obj.getpalette(), obj.info)) if state[0] == "shows" else super().content(obj, state)

    def apply(self, obj: Any, content: Any) -> None:
        if content[0] != "shows":
            super().apply(obj, content)
            return
        palette, obj.info = content[1]
        if obj.mode == "P" and palette != obj.getpalette():
            obj.putpalette(palette)

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        return old[0] != "shows" and super().must_be_replaced(obj, old)

    def holds_for_good(self, old: State, identities: set[int]) -> bool:
        if old[0] == "shows":
            return id(old[1][0]) in identities
        return super().holds_for_good(old, identities)


def shown_by(image: Any) -> tuple[Any, Any] | None:
    """The object whose memory it shows, and how. An image that has been written to has its own memory."""
    core, data, args = vars(image).get("_baton_shows", (None, None, None))
    if core is not image.im or not isinstance(data, (bytearray, array.array, imported("numpy", "ndarray"))):
        return None
    return data, args
