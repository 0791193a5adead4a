"""Stand-ins for streams and events: all work is done, in order, when a call returns."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch.labels import CUDA


class Stream:
    __module__ = "torch.cuda"

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device, self.device_index, self.cuda_stream, self.priority = CUDA, 0, 0, priority

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5  # the lowest and the highest priority

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __reduce__(self) -> Any:
        return torch.cuda.Stream, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)

    def __repr__(self) -> str:
        return "<torch.cuda.Stream device=cuda:0 cuda_stream=0x0>"


class AnyEvent:
    """`torch.Event`, whose first argument is its device."""

    __module__ = "torch"
    __qualname__ = "Event"

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **options: Any) -> None:
        self.device, self._timed = CUDA, enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        return functools.partial(torch.cuda.Event, enable_timing=self._timed), ()

    def elapsed_time(self, end: AnyEvent) -> float:
        """Milliseconds."""
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end._at - self._at) * 1e3


class Event(AnyEvent):
    __module__ = "torch.cuda"

    def __init__(self, enable_timing: bool = False, **options: Any) -> None:
        super().__init__(enable_timing=enable_timing)


def install(patches: Patches) -> None:
    for name, kind in (("Stream", Stream), ("Event", AnyEvent)):
        if hasattr(torch, name):
            patches.set(torch, name, kind)
    register()


def register() -> None:
    """dynamo of torch 2.5 accepts only streams that are registered with their base class."""
    for base, stand_in in (("_StreamBase", Stream), ("_EventBase", Event)):
        kind: Any = getattr(getattr(torch, "_streambase", None), base, None)
        if hasattr(kind, "register"):
            kind.register(stand_in)
