"""iopub messages become the outputs that a page would have saved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from baton_shim.notebook.file_outputs import FileOutputs


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def display(text: str, display_id: str | None = None, kind: str = "display_data") -> tuple[str, dict[str, Any]]:
    transient = {"display_id": display_id} if display_id else {}
    return kind, {"data": {"text/plain": text}, "metadata": {}, "transient": transient}


def clear(wait: bool) -> tuple[str, dict[str, Any]]:
    return "clear_output", {"wait": wait}


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([stream("a"), stream("b"), stream("c", "stderr"), stream("d")], ["ab", "c", "d"]),
        ([stream("a"), clear(wait=False)], []),
        ([stream("a"), clear(wait=True)], ["a"]),
        ([stream("a"), clear(wait=True), stream("b"), stream("c")], ["bc"]),
        ([stream("a"), clear(wait=True), display("b")], ["b"]),
        ([display("a", "one"), display("b"), display("c", "one", "update_display_data")], ["c", "b"]),
        ([display("a", "one"), display("b", "one"), display("c", "one", "update_display_data")], ["c", "c"]),
        ([display("a", "one"), clear(wait=False), display("c", "one", "update_display_data")], []),
        ([("comm_open", {"comm_id": "1"}), display("c", "never shown", "update_display_data")], []),
    ],
)
def test_what_a_page_would_have_saved(messages: list[tuple[str, dict[str, Any]]], shown: list[str]) -> None:
    outputs, as_json = FileOutputs(), FileOutputs()
    for kind, content in messages:
        outputs.add(kind, content)
        as_json.add(kind, json.dumps(content).encode())
    assert [one.get("text") or one["data"]["text/plain"] for one in outputs.outputs] == shown
    assert as_json.outputs == outputs.outputs


def test_values_and_errors() -> None:
    outputs = FileOutputs()
    outputs.add("execute_result", {"data": {"text/plain": "7"}, "metadata": {}, "execution_count": 3, "transient": {}})
    outputs.add("error", {"ename": "E", "evalue": "v", "traceback": ["E: v"], "engine_info": {}})
    assert outputs.outputs == [
        {"output_type": "execute_result", "data": {"text/plain": "7"}, "metadata": {}, "execution_count": 3},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["E: v"]},
    ]
