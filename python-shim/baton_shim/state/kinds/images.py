"""Images of Pillow, with three cases in which their own pickling loses something.

* An image that shows the memory of a byte array or numpy array continues to show it. `here.py` recorded which memory
  that is when the image was created.
* An image that reads its frames from a file opens the file in the other kernel, too.
* A closed image has no pixels, but a size.
"""

from __future__ import annotations

import array
import sys
from typing import Any

from baton_shim.state.kinds.base import Here, State, imported
from baton_shim.state.kinds.reduced import Frozen, ReducedKind

_OF_CLOSED = ("_mode", "mode", "_size", "info", "filename")  # `mode` before Pillow 11


def is_image_type(kind: type) -> bool:
    return issubclass(kind, imported("PIL.Image", "Image"))


class ImageKind(ReducedKind):
    name = "image"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.show, self.open, self.closed)

    def reduce(self, obj: Any) -> Any:
        if is_closed(obj):
            return self._anchors[2], (type(obj), attributes_of_closed(obj))
        shown = shown_by(obj)
        if shown is not None:
            data, args = shown
            return self._anchors[0], (obj.mode, obj.size, data, args, obj.getpalette(), obj.info)
        return (self._anchors[1], (type(obj), *frame_and_state(obj))) if reads_frames(obj) else None

    def show(self, mode: str, size: Any, data: Any, args: Any, palette: Any, info: Any) -> Any:
        made = sys.modules["PIL.Image"].frombuffer(mode, size, data, "raw", *args)
        self.apply(made, ("shows", (palette, info)))
        return made

    def open(self, kind: Any, frame: int, state: Any) -> Any:
        try:
            made = sys.modules["PIL.Image"].open(state[-1])
            if type(made) is kind:
                show_frame(made, frame, state)
                return made
        except Exception:  # there is no such file here, or another one
            pass
        made = kind.__new__(kind)
        made.__setstate__(state)  # with this frame only
        return made

    def closed(self, kind: Any, attributes: dict[str, Any]) -> Any:
        made = kind.__new__(kind)
        imported("PIL.Image", "Image").__init__(made)
        vars(made).update(fp=None, tile=[])
        self.apply(made, ("closed", attributes))
        return made

    def read(self, obj: Any) -> State:
        if is_closed(obj):
            return "closed", Frozen(attributes_of_closed(obj).values())
        shown = shown_by(obj)
        if shown is not None:
            return "shows", Frozen((shown[0], tuple(obj.getpalette() or ()), obj.info))
        if reads_frames(obj):
            frame, state = frame_and_state(obj)
            return "frames", Frozen((frame, Frozen(tuple(part) if type(part) is list else part for part in state)))
        return super().read(obj)

    def content(self, obj: Any, state: State) -> Any:
        if state[0] == "closed":
            return state[0], attributes_of_closed(obj)
        if state[0] == "shows":
            return state[0], (obj.getpalette(), obj.info)
        return (state[0], frame_and_state(obj)) if state[0] == "frames" else super().content(obj, state)

    def apply(self, obj: Any, content: Any) -> None:
        way, state = content
        if way == "closed":
            obj.close()
            vars(obj).update(state)
        elif way == "shows":
            palette, obj.info = state
            if obj.mode == "P" and palette != obj.getpalette():
                obj.putpalette(palette)
        elif way == "frames":
            show_frame(obj, *state)
        else:
            super().apply(obj, content)

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        in_place = old[0] == "shows" or self.read(obj)[0] in ("closed", "frames")
        return not in_place and super().must_be_replaced(obj, old)

    def holds_for_good(self, obj: Any, old: State, identities: set[int]) -> bool:
        if old[0] == "shows":
            return id(old[1][0]) in identities
        return super().holds_for_good(obj, old, identities)


def shown_by(image: Any) -> tuple[Any, Any] | None:
    """The object whose memory it shows, and how. An image that has been written to has its own memory."""
    core, data, args = vars(image).get("_baton_shows", (None, None, None))
    if data is None or core is not image.im:
        return None
    return (data, args) if isinstance(data, (bytearray, array.array, imported("numpy", "ndarray"))) else None


def is_closed(image: Any) -> bool:
    """Whether it was closed, or its file before it was loaded."""
    attributes = vars(image)
    core = attributes.get("_im", attributes.get("im"))
    if core is None:
        return isinstance(image, imported("PIL.ImageFile", "ImageFile")) and attributes.get("fp") is None
    return type(core).__name__ == "DeferredError"


def attributes_of_closed(image: Any) -> dict[str, Any]:
    return {name: vars(image)[name] for name in _OF_CLOSED if name in vars(image)}


def reads_frames(image: Any) -> bool:
    """Whether it was opened by the name of a file, and keeps that file open or a decoder of its content."""
    attributes = vars(image)
    file = attributes.get("_fp")
    is_open = hasattr(type(file), "read") and not file.closed
    return bool(attributes.get("_exclusive_fp") and (is_open or "_decoder" in attributes))


def frame_and_state(image: Any) -> tuple[int, Any]:
    state = image.__getstate__()  # loads the frame
    return image.tell(), state


def show_frame(image: Any, frame: int, state: Any) -> None:
    """Shows a frame, with the pixels of the state if they have been changed after they were read."""
    if reads_frames(image) and image.tell() != frame:
        image.seek(frame)
    image.info, *pixels = state
    if image.__getstate__()[1:] != pixels:
        image.__setstate__(state)
