"""What a notebook asks of CUDA, and what it is told: on virtual CUDA as on a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import conformance
import pytest

FOLDER = Path(__file__).parent


def differences(kind: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent.parent)}
    command = [sys.executable, str(FOLDER / "conformance.py"), kind]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    pairs = zip(conformance.lines(), json.loads(ended.stdout.splitlines()[-1]), strict=True)
    return [
        f"{line.expression}\n  expected {line.expected}\n  found    {answer}"
        for line, answer in pairs
        if not conformance.agrees(line.expected, answer)
    ]


def test_virtual_cuda_answers_as_a_gpu() -> None:
    found = differences("virtual")
    assert not found, "\n".join(found)


@pytest.mark.gpu
def test_a_gpu_answers_as_the_list_says() -> None:
    found = differences("real")
    assert not found, "\n".join(found)


def test_the_list_is_long_enough() -> None:
    expressions = [line.expression for line in conformance.lines()]
    assert len(expressions) >= 150
    assert len(set(expressions)) == len(expressions)
