"""Virtual CUDA for PyTorch. Importing this package imports torch; `install` changes it.

A tensor on the virtual GPU is an ordinary CPU tensor with a label. One function mode maintains the labels, answers
questions about devices from them, and raises a GPU's errors for tensors on two devices. Nothing is stored twice;
autograd, optimizers and C++ see CPU tensors.
"""

from __future__ import annotations

from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch import (
    answers,
    compiling,
    devices,
    first_label,
    fourier,
    gradients,
    indexing,
    larger_programs,
    older,
    reports,
    rules,
    saving,
    streams,
    threads,
    training,
)


def install(patches: Patches) -> None:
    assert rules  # importing it, like fourier, gradients and indexing, fills the mode's tables
    assert indexing
    assert fourier
    answers.install(patches)
    gradients.install(patches)
    saving.install(patches)
    training.install(patches)
    compiling.install(patches)
    larger_programs.install(patches)
    streams.install(patches)
    older.install(patches)
    devices.install(patches)
    first_label.install(patches)
    threads.install(patches)
    reports.install(patches)
