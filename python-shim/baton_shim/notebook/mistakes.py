"""Magics under names that people write by mistake: each explains what to write instead.

**Invariant:** Tab and `%lsmagic` do not offer them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any


def catch(shell: Any, kind: str, mistakes: Mapping[str, Callable[..., None]]) -> None:
    """`kind`: line or cell."""
    for name, explain in mistakes.items():
        shell.register_magic_function(explain, kind, name)
    manager = shell.magics_manager
    list_all = manager.lsmagic

    @functools.wraps(list_all)
    def lsmagic() -> dict[str, dict[str, Any]]:
        listed = dict(list_all())
        listed[kind] = {name: magic for name, magic in listed[kind].items() if mistakes.get(name) is not magic}
        return listed

    manager.lsmagic = lsmagic
