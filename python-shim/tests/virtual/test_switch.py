"""Switching virtual CUDA off leaves nothing behind, and on a machine with a GPU nothing starts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from baton_shim import virtual
from baton_shim.virtual import SWITCH

OWNERS: tuple[Any, ...] = (
    *(torch, torch.cuda, torch.accelerator, torch.autograd, torch.func, torch._utils, torch.backends.cuda),
    *(torch.Tensor, torch.nn.Parameter, torch.nn.Module, torch.nn.DataParallel, torch.optim.Optimizer),
    *(
        torch.UntypedStorage,
        torch.storage._StorageBase,
        torch.nn.attention,
        torch.nn.parallel.comm,
        torch.cuda.profiler,
    ),
    *(torch.amp.autocast_mode.autocast, torch.autograd.function.BackwardCFunction, threading.Thread),
)


def found() -> dict[tuple[int, str], Any]:
    return {(number, name): value for number, owner in enumerate(OWNERS) for name, value in vars(owner).items()}


def modes_of_a_thread() -> int:
    """The number of modes through which each torch call goes."""
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch._C._len_torch_function_stack()))
    thread.start()
    thread.join()
    return seen[0]


def changed(before: dict[tuple[int, str], Any]) -> set[str]:
    now = found()
    return {key[1] for key in before.keys() | now.keys() if before.get(key) is not now.get(key)}


@pytest.fixture
def before() -> Iterator[dict[tuple[int, str], Any]]:
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1)  # the first one makes torch import more of itself
    yield found()
    SWITCH.turn(False)


def test_switching_off_restores_everything(before: dict[tuple[int, str], Any]) -> None:
    for _ in range(2):
        SWITCH.begin(session=False)
        SWITCH.turn(True)
        assert {"is_available", "Generator", "__new__", "zero_grad", "_bootstrap_inner"} <= changed(before)
        label = torch.ones(1, device="cuda")
        SWITCH.turn(False)
        assert changed(before) == set()
        assert (label.device.type, torch.cuda.is_available()) == ("cpu", virtual.machine_has_gpu())
        assert len(torch.serialization._package_registry) == len(
            {entry[0] for entry in torch.serialization._package_registry}
        )


def test_a_session_with_a_gpu_is_left_alone(
    before: dict[tuple[int, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "machine_has_gpu", lambda: True)
    SWITCH.begin(session=True)
    SWITCH.turn(True)
    assert SWITCH.real
    assert changed(before) == set()
    assert modes_of_a_thread() == 0
    SWITCH.begin(session=False)
    assert not SWITCH.real
    assert "is_available" in changed(before)
    assert modes_of_a_thread() == 1


@pytest.mark.parametrize(("value", "on"), {"0": False, "off": False, "False": False, "1": True, "": True}.items())
def test_the_environment_decides_at_the_start(
    before: dict[tuple[int, str], Any], monkeypatch: pytest.MonkeyPatch, value: str, on: bool
) -> None:
    monkeypatch.setenv("BATON_VIRTUAL_CUDA", value)
    SWITCH.begin(session=False)
    assert torch.cuda.is_available() is on


def test_a_gpu_is_found_in_a_session_that_cannot_list_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    machine_has_gpu = virtual.machine_has_gpu.__wrapped__
    for there, expected in [("/dev/nvidia3", True), ("/dev/nvidiactl", False)]:
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", refuse)
            patched.setattr(os, "listdir", refuse)
            patched.setattr(os.path, "exists", lambda path, there=there: path == there)
            found = machine_has_gpu()
        assert found is expected
