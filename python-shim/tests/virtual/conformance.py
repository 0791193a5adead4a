"""Asks the installed torch the questions in `conformance.txt`, with a virtual or a real GPU.

`python conformance.py answers virtual` (or `real`) answers them in this process. Output: a JSON list with one text for
each line, in the notation of the list's expectations; null if this torch lacks a function in the line.
`python conformance.py differences virtual` starts such a process and prints the differences from the list, or from the
list of this version, such as `conformance-2.2.txt`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

LIST = Path(__file__).with_name("conformance.txt")
SECONDS = 400


class Line(NamedTuple):
    expression: str
    expected: str


def lines(file: Path = LIST) -> list[Line]:
    found = []
    for text in file.read_text().splitlines():
        if text and not text.startswith("#"):
            expression, _, expected = text.rpartition(" => ") if not text.endswith(" =>") else (text[:-3], "", "")
            found.append(Line(expression, expected))
    return found


def agrees(expected: str, answer: str | None) -> bool:
    """White space is ignored; for an exception, the list has its class, if that matters, and a part of its text."""
    if answer is None:
        return False
    if not expected.startswith("!"):
        return "".join(expected.split()) == "".join(answer.split())
    kind, _, part = expected[1:].partition(":")
    found, _, text = answer.removeprefix("!").partition(":")
    return answer.startswith("!") and (not kind or kind in found.split("|")) and part.strip() in text


# ---- comparing ----


def answers(kind: str) -> list[str | None]:
    # On a machine with several GPUs, the questions are about one of them.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, __file__, "answers", kind]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    found: list[str | None] = json.loads(ended.stdout.splitlines()[-1])
    return found


def differences(kind: str, *, version: str | None = None) -> list[str]:
    """Without a version, every answer must be as in the list. With one, as in the list of that version, which contains
    only differences; questions about missing functions are skipped."""
    file = LIST.with_name(f"conformance-{version}.txt")
    otherwise = {line.expression: line.expected for line in lines(file)} if file.exists() else {}
    found = []
    for line, answer in zip(lines(), answers(kind), strict=True):
        own = otherwise.pop(line.expression, None)
        if own is not None and agrees(line.expected, answer):
            found.append(f"{line.expression}\n  is now as in the list of all: take it out of {file.name}")
        elif not agrees(own or line.expected, answer) and not (version and answer is None):
            found.append(f"{line.expression}\n  expected {own or line.expected}\n  found    {answer}")
    return [*found, *(f"{expression}\n  is in {file.name} only" for expression in otherwise)]


def version_here() -> str:
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


def has_own_list(version: str) -> bool:
    return LIST.with_name(f"conformance-{version}.txt").exists()


# ---- answering ----


def lacks(expression: str) -> bool:
    """Whether the expression uses a function or module of torch that this version lacks."""
    for path in re.findall(r"\b(?:torch|nn|F)(?:\.\w+)+", expression):
        first, *rest = path.split(".")
        owner = importlib.import_module({"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional"}[first])
        for name in rest:
            if not hasattr(owner, name) and not is_module(f"{owner.__name__}.{name}"):
                return True
            owner = getattr(owner, name)
    return False


@functools.cache
def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def answer(expression: str) -> str:
    import copy
    import io
    import pickle
    import threading

    import numpy as np
    import torch
    import torch.utils.checkpoint
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    c = torch.arange(6.0).reshape(2, 3)
    net = nn.Linear(3, 2).cuda()
    torch.manual_seed(0)
    names: dict[str, Any] = {
        "copy": copy,
        "io": io,
        "pickle": pickle,
        "threading": threading,
        "np": np,
        "torch": torch,
        "nn": nn,
        "F": F,
        "c": c,
        "x": c.cuda(),
        "v": torch.tensor([1.0, 2.0, 3.0], device="cuda"),
        "net": net,
        "i": torch.tensor([0, 1], device="cuda"),
    }

    def run(code: str) -> Any:
        exec(code, names)
        return names["r"]

    names["run"] = run
    try:
        return repr(eval(expression, names))
    except Exception as error:
        kinds = "|".join(kind.__name__ for kind in type(error).__mro__)
        return f"!{kinds}: {error}"


def print_answers(kind: str) -> None:
    import gc
    import warnings

    warnings.simplefilter("ignore")
    gc.disable()  # otherwise memory of earlier answers may become free between the two sides of a comparison
    if kind == "virtual":
        from baton_shim.virtual import SWITCH

        SWITCH.begin(session=False)
    found = [None if lacks(line.expression) else answer(line.expression) for line in lines()]
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # skips the clean-up of generators and workers, which does not matter here


def main() -> None:
    asked, kind = sys.argv[1:]
    if asked == "answers":
        print_answers(kind)
    version = version_here()
    found = differences(kind, version=version)
    print(*found, f"torch {version}: {len(lines())} questions, {len(found)} differences", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
