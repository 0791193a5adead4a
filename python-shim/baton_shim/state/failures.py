"""Finds what to leave out after packing has failed, so that the rest of the message can be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton_shim.state.kinds import ATOMS
from baton_shim.state.paths import Paths
from baton_shim.state.pickler import Failure
from baton_shim.state.refusal import Refused, describe_failure

TOO_DEEP = "holds objects that are nested too deeply", "keep them in a flat list"
_PICKLED_UNASKED = (*ATOMS, list, dict, tuple, set, frozenset, bytearray)


def failure_of(last: Any, error: Exception, paths: Paths, failed: Mapping[int, Failure]) -> Failure:
    """What can be left out so that packing does not fail again, and why. `last` is the object at which it failed.

    `paths`: from the names. Raises Refused if there is no such object, and the error itself if the name that reaches
    `last` is not found either.
    """
    reason = describe_failure(last, error)
    name, whole = paths.root_of(last) or (None, last)
    culprits = [last]
    if isinstance(error, RecursionError):
        if name is None:
            raise error
        reason = TOO_DEEP
        culprits = [whole, last]
    for culprit in culprits:
        if id(culprit) not in failed and type(culprit) not in _PICKLED_UNASKED:
            return culprit, *reason
    if name is None:
        raise error
    raise Refused(paths.path_to(last) or name, *reason) from None
