"""Tab completion after `%%gpu` and its line magics: options, their values, and the notebook's variables.

**Invariant:** pure, apart from `register`; other lines get no completions from here.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

OF_NAMES = ("--keep", "--drop")
EXAMPLES = {"--timeout": ("90s", "5m", "1h30m"), "--gpu": ("a100", "h100"), "--mem": ("4G", "8G", "16G")}
MAGIC = re.compile(r"[ \t]*(%%?gpu\w*)[ \t]")


def register(shell: Any, parser: ArgumentParser, words: Mapping[str, Iterable[str]]) -> None:
    """`parser`: that of `%%gpu`. `words`: the words that may follow each line magic."""

    @context_matcher()  # type: ignore[untyped-decorator]
    def gpu_matcher(context: CompletionContext) -> SimpleMatcherResult:
        magic = MAGIC.match(context.line_with_cursor)
        if magic is None:
            return {"completions": []}
        if magic[1] == "%%gpu":
            offered = behind(context.line_with_cursor[magic.end() :], parser, shell.user_ns, shell.user_ns_hidden)
        else:
            offered = list(words.get(magic[1].lstrip("%"), ()))
        found = [SimpleCompletion(word, type="magic") for word in offered if word.startswith(context.token)]
        return {"completions": found, "suppress": True}

    shell.Completer.custom_matchers.append(gpu_matcher)


def behind(text: str, parser: ArgumentParser, namespace: Iterable[str], hidden: Iterable[str]) -> list[str]:
    """All words that may come next in this text, or complete its last word."""
    words = text.split()
    begun = words.pop() if words and not text[-1].isspace() else ""
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    option, equals, _ = begun.partition("=")
    if not equals and not begun.startswith("--") and given:
        waits = words[-1] == given[-1] or given[-1] in OF_NAMES
        option = given[-1] if waits else ""
    values = values_of(option, parser, namespace, hidden) if equals or not begun.startswith("--") else []
    known = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    return values or [name for name in known if name not in given]


def values_of(option: str, parser: ArgumentParser, namespace: Iterable[str], hidden: Iterable[str]) -> list[str]:
    if option in OF_NAMES:
        return sorted(name for name in namespace if not name.startswith("_") and name not in hidden)
    chosen = [action.choices for action in parser._actions if option in action.option_strings and action.choices]
    return [str(choice) for choices in chosen for choice in choices] or list(EXAMPLES.get(option, ()))
