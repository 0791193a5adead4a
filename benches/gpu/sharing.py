"""Two programs on one GPU, side by side and in turns: `make bench-gpu`.

small = 0.45 and big = 0.956 of the memory that may be used, 50 and 90 = the part of their time that they spend on the
GPU when alone: the programs of nvshare's thesis, scaled. First `probe.py`, whose output is kept.

Arms: alone without and with the interposer; two at once as the driver shares the GPU (small only); two in turns with
quanta of 20 and 5 seconds; and in the order in which a worker lets cells compute. Each program checks its memory.

`--machine FOLDER` runs all of it on a driver in host memory, to try the programs; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
sys.path[:0] = [str(FOLDER.parent), str(ROOT / "tests")]

from end_to_end.turns import turns  # noqa: E402
from measuring import RESULTS, field_bytes, report  # noqa: E402

# name: part of the memory, part of the time on the GPU
PROGRAMS = {"small_50": (0.45, 0.5), "small_90": (0.45, 0.9), "big_50": (0.956, 0.5), "big_90": (0.956, 0.9)}
QUANTA_S = (20, 5)
CALIBRATION_PASSES = 20
# Of two programs in turns against one after the other; of one alone in turns against alone.
TARGETS = {
    ("small_50", "in turns, as cells"): 0.67,
    ("big_50", "in turns of 20 s"): 0.79,
    ("big_50", "in turns of 5 s"): 0.90,
    ("big_90", "in turns of 20 s"): 1.02,
    ("big_90", "in turns of 5 s"): 1.20,
}
ALONE_TARGET = 1.01
LINK_TARGET = 0.8


class Card(NamedTuple):
    """What the programs may use."""

    environment: dict[str, str]
    usable_bytes: int
    host_bytes: int
    seconds: float
    phases: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long a program takes alone")
    parser.add_argument(
        "--phases", type=int, default=1, help="1: on the GPU and then on the processor; 20: as cells of a notebook"
    )
    parser.add_argument("--gib", type=float, help="how much of the GPU's memory may be used")
    parser.add_argument("--machine", type=Path, help="the folder of a driver in host memory")
    options = parser.parse_args()
    if not options.machine and not Path("/dev/nvidia0").exists():
        raise SystemExit("This machine has no NVIDIA GPU (no /dev/nvidia0): nothing was measured")
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT / ".venv/cuda")}
    if options.machine:
        environment |= {"LD_LIBRARY_PATH": str(options.machine), "BATON_TEST_GPU": str(options.machine / "card")}
    name = "gpu-sharing-tried" if options.machine else "gpu-sharing"
    probed = probe(environment, name)
    card = card_of(probed, environment, options)
    rows: dict[str, dict[str, Any]] = {}
    verdict: dict[str, Any] = {}
    for program, (part, share) in PROGRAMS.items():
        measure(card, program, int(part * card.usable_bytes), share, rows, verdict)
        report(name, rows, verdict)  # what is measured stays, whatever comes
    verdict |= link_verdict(rows, probed)
    verdict["not run"] = "MPS, nvshare, the time of a hand-over without moves, and a class of students on the GPU"
    report(name, rows, verdict)


# ---- what there is


def probe(environment: dict[str, str], name: str) -> dict[str, dict[str, Any]]:
    """Its parts by name; its output is kept."""
    said = subprocess.run(
        [sys.executable, FOLDER / "probe.py"], env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}-probe.jsonl").write_text(said)
    return {part["part"]: part for part in map(json.loads, said.splitlines())}


def card_of(probed: dict[str, dict[str, Any]], environment: dict[str, str], options: argparse.Namespace) -> Card:
    if "error" in probed["device"]:
        raise SystemExit(f"The GPU cannot be used: {probed['device']['error']}")
    free = probed["device"]["free_mib"] << 20
    # What has left the GPU lies in the host's memory, of both programs together.
    host = int(0.8 * field_bytes("/proc/meminfo", "MemAvailable"))
    usable = min(int(0.9 * free), host // 2, int((options.gib or 1024) * 2**30))
    return Card(environment, usable >> 24 << 24, host, options.seconds, options.phases)


# ---- programs


def start(card: Card, size: int, passes: int, cpu_seconds: float, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, FOLDER / "program.py", str(size), str(passes), str(cpu_seconds), str(card.phases)]
    process = subprocess.Popen(
        command, env=card.environment | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    if process.stdout.readline() != "ready\n":
        raise RuntimeError("a program could not start: see above")
    return process


def run(processes: list[subprocess.Popen[str]]) -> tuple[float, bool]:
    """How long the last of them took, and whether all found what they wrote."""
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in processes]
    if not all(said):
        raise RuntimeError("a program failed: see above")
    answers = [json.loads(answer) for answer in said]
    return max(answer["seconds"] for answer in answers), all(answer["right"] for answer in answers)


# ---- measuring


def measure(
    card: Card, program: str, size: int, share: float, rows: dict[str, dict[str, Any]], verdict: dict[str, Any]
) -> None:
    def row(arm: str, took: tuple[float, bool], against: float, used: dict[str, Any] | None = None) -> None:
        seconds, right = took
        ratio = round(seconds / against, 3)
        moved = {"swaps": "", "moved_gb": "", "gb_per_s": ""} if used is None else movement(used)
        if used is not None and not used["held_s"]:
            raise RuntimeError(f"{program}, {arm}: the programs took no turns")
        rows[f"{program}, {arm}"] = {"seconds": round(seconds, 2), "ratio": ratio, "right": right} | moved
        target = ALONE_TARGET if arm == "alone in turns" else TARGETS.get((program, arm))
        if target:
            met = "met" if ratio <= target and right else "not met"
            verdict[f"{program}, {arm}"] = f"{ratio} (target: at most {target}; {met})"

    pass_seconds = run([start(card, size, CALIBRATION_PASSES, 0)])[0] / CALIBRATION_PASSES
    passes = max(card.phases, round(share * card.seconds / pass_seconds))
    work = (size, passes, (1 - share) * card.seconds)
    alone = run([start(card, *work)])
    row("alone", alone, alone[0])
    with turns(1, card.usable_bytes, card.host_bytes) as end:
        row("alone in turns", run([start(card, *work, **end.environment(1))]), alone[0], end.usage(1))
    serial = 2 * alone[0]
    row("one after the other", (serial, alone[1]), serial)
    if program.startswith("small"):
        row("two as the driver shares", run([start(card, *work) for _ in range(2)]), serial)
    for quantum in (*QUANTA_S, None):
        arm = "in turns, as cells" if quantum is None else f"in turns of {quantum} s"
        with turns(2, card.usable_bytes, card.host_bytes, quantum and 1000 * quantum) as end:
            took = run([start(card, *work, **end.environment(session)) for session in (1, 2)])
            used = [end.usage(session) for session in (1, 2)]
        row(arm, took, serial, {key: used[0][key] + used[1][key] for key in used[0]})


def movement(used: dict[str, Any]) -> dict[str, Any]:
    rate = used["moved_bytes"] / used["moving_s"] / 1e9 if used["moving_s"] else 0
    return {"swaps": used["swaps"], "moved_gb": round(used["moved_bytes"] / 1e9, 1), "gb_per_s": round(rate, 1)}


def link_verdict(rows: dict[str, dict[str, Any]], probed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Moves, making and giving back of memory with them, against what the link can with pinned memory."""
    bandwidth = probed["bandwidth"]
    moved = [row["gb_per_s"] for what, row in rows.items() if what.startswith("big_") and row["gb_per_s"]]
    if "error" in bandwidth or not moved:
        return {"moves": "not run"}
    link = (bandwidth["pinned_out_gb_s"] + bandwidth["pinned_in_gb_s"]) / 2
    part = round(max(moved) / link, 2)
    met = "met" if part >= LINK_TARGET else "not met"
    return {"moves": f"{part} of the link's {link:.1f} GB/s (target: at least {LINK_TARGET}; {met})"}


if __name__ == "__main__":
    main()
