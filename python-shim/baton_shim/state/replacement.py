"""Objects that changed and cannot be updated: they are sent again, and their holders then refer to the new object.

A fixed holder (a tuple, a bound method) cannot be made to refer to another object, so it is sent again, too. Every
other known holder gets a patch, whether or not the cell can reach it. Those patches come last, because the new object
may be built from objects that are patched themselves.
"""

from __future__ import annotations

from collections.abc import Set

from baton_shim.state.refusal import StandIn
from baton_shim.state.walk import Reach, Walker


def find_replaced(walker: Walker, reach: Reach, others: Set[int] = frozenset()) -> tuple[set[int], set[int]]:
    """Numbers of the objects to send again, and of the holders whose patches come last.

    `others`: objects to send again, whether or not they changed.
    """
    objects = walker.numbering.objects
    replaced = set(others)
    for number in reach.changed:
        kind, old = walker.states[number]
        if walker.is_readable(number) and kind.must_be_replaced(objects[number], old):
            replaced.add(number)
    if not replaced:
        return set(), set()
    last: set[int] = set()
    growing = set(replaced)
    while growing:
        holders = _holders(walker, growing) - replaced - reach.given
        growing = {number for number in holders if _is_fixed(walker, number, growing)}
        replaced |= growing
        last |= holders
    last -= replaced
    for number in sorted(last):
        if number not in reach.states:
            walker.include(number, reach)
    reach.changed = [number for number in reach.changed if number not in replaced]
    return replaced, last


def _holders(walker: Walker, numbers: set[int]) -> set[int]:
    children = walker.children
    objects = walker.numbering.objects
    return {
        number
        for number in range(walker.numbering.anchors, len(walker.numbering))
        if not numbers.isdisjoint(children[number] if number in children else walker.children_of(number))
        and type(objects[number]) is not StandIn  # the object that it represents holds what it held
    }


def _is_fixed(walker: Walker, number: int, parts: set[int]) -> bool:
    """Whether this holder cannot be made to refer to other objects instead of these."""
    known, objects = walker.states.get(number), walker.numbering.objects
    identities = {id(objects[part]) for part in parts}
    return known is None or known[0].holds_for_good(objects[number], known[1], identities)
