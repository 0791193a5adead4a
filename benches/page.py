"""Adds the measurements on this machine to the page of this release: `benches/results/VERSION.md`, and `.json`."""

from __future__ import annotations

import json
import sys
import tomllib
from typing import Any

from measuring import FOLDER, RESULTS, markdown


def main() -> int:
    measured = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    if not measured:
        print(f"Nothing was measured here: {RESULTS} has no result", file=sys.stderr)
        return 1
    version = tomllib.loads((FOLDER.parent / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    data = FOLDER / f"results/{version}.json"
    results: dict[str, Any] = json.loads(data.read_text()) if data.exists() else {}
    results |= {result["benchmark"]: result for result in measured}
    results = dict(sorted(results.items()))
    data.write_text(json.dumps(results, indent=2) + "\n")
    data.with_suffix(".md").write_text(page(version, list(results.values())))
    return 0


def page(version: str, results: list[dict[str, Any]]) -> str:
    introduction = (
        f"# Baton {version}, measured\n\n"
        "Each section is one benchmark, run with one command, `python benches/NAME.py`, and says on which machine.\n"
        "`make bench` runs them all and writes this page anew; `python benches/page.py` adds single ones to it.\n"
    )
    return "\n".join([introduction, *(markdown(result, "##") for result in results)])


if __name__ == "__main__":
    sys.exit(main())
