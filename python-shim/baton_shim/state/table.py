"""One object table of a session, on one of its two ends.

`snapshot` returns what the other end lacks: objects that are new to it, patches for those that changed, and memory.
`supplement` adds to that while the other end already works with what it was given.
`apply` applies what the other end sent, in place, completely or not at all. Use it from one thread at a time.

The end that sends first is the notebook kernel. There, a name that cannot be sent is refused. In the session such a
name stays where it is, and the notebook gets a stand-in that is the original again in the session's next cell.
"""

from __future__ import annotations

import pickle
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from baton_shim.base.undoing import OnUndo
from baton_shim.state.bindings import Bindings
from baton_shim.state.collector import collector_paused, uncollected
from baton_shim.state.cycles import Pace, unreachable
from baton_shim.state.deferred import Budget, Deferred
from baton_shim.state.delta import Received, Undo, read_segments
from baton_shim.state.footprint import Footprint, footprint
from baton_shim.state.kept_objects import KeptObjects
from baton_shim.state.kinds import Here, Kinds
from baton_shim.state.kinds.graphs import count_change
from baton_shim.state.kinds.singletons import of_interpreter
from baton_shim.state.kinds.tensors import with_graphs
from baton_shim.state.message import Header, Snapshot, check_versions, find_class, is_plain, join, split, versions
from baton_shim.state.numbering import Numbering
from baton_shim.state.paths import Paths, path_to
from baton_shim.state.places import Taken, used_first
from baton_shim.state.rebuilding import StandIns, read_what_can_be
from baton_shim.state.refusal import (
    StandIn,
    TableBroken,
    end,
    hold,
    is_of_spent,
    is_spent,
    refuse,
    stand_in_text,
)
from baton_shim.state.replacement import find_replaced
from baton_shim.state.segments import Segment, Segments
from baton_shim.state.slot_names import SlotNames
from baton_shim.state.stale import warn_of_stale_holders
from baton_shim.state.unsending import Before
from baton_shim.state.views import Views
from baton_shim.state.walk import Reach, Walker
from baton_shim.state.writing import Sending, Writer


class Table:
    def __init__(
        self,
        namespace: dict[str, Any],
        load_modules: Callable[[bytes, OnUndo], object] | None = None,
        missing: Mapping[str, str] | None = None,
        *,
        home: bool | None = None,
        only: Callable[[Mapping[str, Any]], Set[str]] | None = None,
        for_later: bool = False,
    ) -> None:
        """`missing`: modules that the other end lacks, each with its package; it may change between messages.

        `home`: set for a saved state, whose reader is the notebook although it receives first. `only` chooses which of
        its names are bound. `for_later`: the reader is a kernel that starts later, which no page of this one knows.
        """
        self.namespace = namespace
        self._load_modules = load_modules or (lambda modules, undo: None)
        self.messages = 0
        self.broken = False
        self.rebuilt = False
        """Whether the last message created or changed objects, possibly with code of their classes."""
        self._home, self._saved = home, home is not None  # without `home`, it is known from the first message on
        self._only = only
        self.left_behind: list[tuple[object, str]] = []  # what the last snapshot could not include, and why
        self.not_rebuilt: list[str] = []  # in the notebook: what arrived as a stand-in for the first time
        self.failed_at: str | None = None
        """In a session: the path to what could not be rebuilt, which has broken the table."""
        self._reported: set[str] = set()
        self._segments = Segments(lambda segment: self._views.user_of(segment))
        self._here = Here(namespace, self._segments, [])
        self._kinds = Kinds(self._here, missing if missing is not None else {}, for_later=for_later)
        patch = self._patch  # one object, which both ends know as an anchor
        main: Any = sys.modules.get("__main__")
        main = main if main is not None and vars(main) is namespace else object()
        anchors = [namespace, main, patch, *of_interpreter(), *self._kinds.anchors()]
        self._numbering = Numbering(anchors, find_class, patch)
        self._writer = Writer(self._here, self._kinds, self._numbering, patch)
        self._kept_objects = KeptObjects(namespace, self._numbering)
        self._walker = Walker(self._numbering, self._kinds, self._kept_objects)
        self._views = Views(self._here, self._kinds, self._numbering)
        self._foreign = bytearray(len(self._numbering))  # for each number, whether the other end assigned it
        self._given: Set[int] = frozenset()  # what the last snapshot and its supplements updated
        self._pace = Pace()
        self._slot_names = SlotNames()
        self._bindings = Bindings(namespace, self._numbering)
        self.deferred = Deferred(namespace, self._segments, self._views, self._numbering, self._kinds, self._walker)
        self._before: Before | None = None
        self._pins: list[Any] = []
        self.last_undo: Undo | None = None  # in the notebook: the undo of the last applied message
        self._taken = Taken((), self._numbering, frozenset(), None)
        self._filled: dict[int, Any] = {}  # states of large plain containers in this message

    # ---- sending ----

    @uncollected
    def snapshot(
        self,
        names: Iterable[str],
        *,
        certain: Set[str] | None = None,
        extra: object = None,
        deleted: Iterable[str] = (),
        unsent: Set[str] = frozenset(),
        partings: bool = True,
        modules: bytes | None = None,
        budget: Budget | None = None,
        places: Iterable[tuple[str, object]] = (),
    ) -> Snapshot:
        """What the other end lacks to have these names as they are here.

        Values of a dict `extra`, and names in a session, are replaced by a `StandIn` if they cannot be sent. In the
        notebook kernel, `Refused` is raised for a `certain` name that cannot be sent (None: all are certain); nothing
        has changed then, and the table can still be used. Other names are replaced by a `StandIn` with the same reason.
        `unsent` names were not in the other end's last message, and it may have bound them to other objects since: they
        are bound again in any case. Without `partings`, the last change of an object that is no longer used here is not
        sent. `modules` is for the other end's `load_modules`. With a `budget`, memory beyond it is deferred. `places`
        are parts of `extra`, each with a name for messages.
        """
        self._check_usable()
        self._before = None
        first = self._home is None
        home = True if first else bool(self._home)
        roots = self._values_of(names)
        gone = [name for name in dict.fromkeys(deleted) if name not in self.namespace]
        certain = frozenset(roots) if certain is None else certain
        if home:
            refuse({name: obj for name, obj in roots.items() if name in certain}, self._kinds.why_not, self.knows)
        dying = self._dying() if partings else []
        self._here.home = home
        made = self._send(
            Sending(roots, certain, extra, home, gone, unsent, dying, modules, budget=budget, places=tuple(places))
        )
        self._home = home
        return made

    @uncollected
    def supplement(self, names: Iterable[str], *, extra: object) -> Snapshot:
        """What the session lacks to have these names, too, while it runs a cell.

        What the cell was given belongs to the session until the cell ends. So it is sent as a reference, and changes to
        it here wait. Raises `Refused` as `snapshot` does.
        """
        self._check_usable()
        self._before = None
        roots = self._values_of(names)
        refuse(roots, self._kinds.why_not, self.knows)
        return self._send(Sending(roots, frozenset(roots), extra, home=True, given=self._given))

    def _values_of(self, names: Iterable[str]) -> dict[str, Any]:
        """The names that are bound. A thread may bind and delete names meanwhile."""
        found = {name: self.namespace.get(name, self) for name in dict.fromkeys(names)}
        return {name: obj for name, obj in found.items() if obj is not self}

    def _send(self, sending: Sending) -> Snapshot:
        """After an error nothing has changed."""
        self._here.forget_message()
        self._kinds.owners.begin()
        next_segment, nans = self._segments.next_number, len(self._numbering.nans)
        try:
            return self._write(sending)
        except BaseException:
            self._kinds.owners.take_back()
            self._numbering.nans.forget(nans)
            self._segments.drop(range(next_segment, self._segments.next_number))
            self._segments.next_number = next_segment
            self._here.forget_message()
            raise
        finally:
            self._slot_names.remove()

    def _write(self, sending: Sending) -> Snapshot:
        numbering, walker, home = self._numbering, self._walker, sending.home
        first_fresh, nans = self._segments.next_number, len(numbering.nans)
        reach = self._reach(sending)
        replaced, last = find_replaced(walker, reach)
        hidden = self._views.hide(replaced) if replaced else []
        united = self._views.unite(reach.views, lambda segment: self._may_grow(segment, sending))
        if united.outgrown:
            tensors, others = self._views.users(united.outgrown)
            for number in tensors.difference(reach.states, replaced):
                walker.include(number, reach)
            replaced, last = find_replaced(walker, reach, replaced | others)
            hidden += [*united.outgrown, *self._views.hide(replaced)]
        named = self._bindings.names_of(replaced) if home else {}  # they still refer to the old objects there
        rebound = {
            name: obj
            for name, obj in (named | sending.roots).items()
            if name in sending.unsent or not self._bindings.is_known(name, obj, replaced)
        }
        changes = reach.changed or reach.reserved or replaced or rebound
        plain = not changes and is_plain(sending.extra, numbering.memo)
        if plain:
            written = self._writer.plain(sending.extra)
        else:
            try:
                written = self._writer.write(sending, reach, rebound, replaced, last)
            except BaseException:
                self._segments.show(hidden)
                raise
            self.left_behind = written.left_behind
        header = Header(
            count_before=len(numbering),
            count_after=len(numbering) + len(written.fresh),
            dropped=sorted(numbering.unsent.union(sending.dying)),
            replaced=sorted(replaced),
            reserved=used_first(reach.places, reach.unknown.values()),
            compact=not sending.given and numbering.wants_compacting(),
            deleted=list(sending.gone),
            plain=plain,
            versions=versions() if self.messages == 0 else None,
            modules=sending.modules,
            buffers=tuple(map(len, written.buffers)),
        )
        if home and not (sending.given or header.compact):
            leaving = [*replaced, *sending.dying]
            parts = numbering, walker, self._views, self._segments, self._bindings
            self._before = Before(*parts, leaving, [*reach.changed, *leaving], first_fresh, nans)
        numbering.unsent.clear()
        dropped_segments = self._views.take_dropped()
        self._drop(replaced)
        numbering.add(written.fresh)
        self._slot_names.note(written.fresh)
        left_behind = [obj for obj, _ in written.left_behind]
        if kept := self._kept_objects.news(reach.marked, [] if home else left_behind, sending.dying):
            header = replace(header, kept=kept)
        self._foreign.extend(bytes(len(written.fresh)))
        self._views.note_used()
        self._views.find_moved(reach.changed)
        self._segments.drop(one.number for one in united.added if not one.users)
        reach.marked.update(range(header.count_before, header.count_after))
        self._given = reach.marked
        walker.remember((*reach.changed, *range(header.count_before, header.count_after)), reach.as_leaves)
        walker.remember_kept(left_behind)
        left = self._views.just_left()
        in_reach = self._views.in_reach(self._given, sending.given).union(one.number for one in left)
        fresh_segments = range(first_fresh, self._segments.next_number)
        if home:
            segments = self._views.look(in_reach - self.deferred.numbers, fresh_segments)
        else:
            self.deferred.choose(in_reach, self._given, sending.dying, sending.budget)
            segments = self.deferred.views(in_reach, fresh_segments)
            header = replace(header, deferred=self.deferred.sizes())
        stream = join(header, written.body, written.buffers)
        alive = [numbering.objects[number] for number in sending.dying]
        self._pins = [stream, segments, reach.unknown, sending, alive, left]
        self._drop(number for number in sending.dying if number not in numbering.dropped)
        self._views.drop_unused()
        self._bindings.note(rebound)
        self._bindings.delete(sending.gone)
        if header.compact:
            self._compact()
        deferred_bytes = 0 if home else self.deferred.bytes()
        snapshot = Snapshot(self.messages, stream, segments, dropped_segments, written.left, deferred_bytes)
        self.messages += 1
        return snapshot

    def _may_grow(self, segment: Segment, sending: Sending) -> bool:
        """Whether the session's views of it can get other memory: if the notebook has its bytes, and no cell runs."""
        return sending.home and not sending.given and segment.number not in self.deferred.numbers

    def _reach(self, sending: Sending) -> Reach:
        numbering, walker = self._numbering, self._walker
        besides: list[Any] = []
        if not sending.home:
            # An object that a cell changed before rebinding its name may live on under another name.
            besides = self._bindings.former([*sending.roots, *sending.gone])
            besides = [*besides, *walker.with_new_gradients(), *self._views.resized()]
        dying = (numbering.objects[number] for number in sending.dying)
        return walker.reach([*sending.roots.values(), *sending.extra_values, *besides, *dying], sending.given)

    def may_differ(self, names: Iterable[str]) -> None:
        """The other end may bind these names to other objects and not report it: the next message binds them again."""
        self._bindings.delete(names)

    def unsend(self) -> bool:
        """In the notebook: no session received the last message. Returns whether the table is as it was before it."""
        before, self._before = self._before, None
        if before is None:
            return False
        before.restore()
        self._kinds.owners.take_back()
        del self._foreign[len(self._numbering) :]
        self.messages -= 1
        return True

    def keeps(self) -> bool:
        """In a session: whether the notebook knows an object here that no other session can have."""
        return any(not is_spent(obj) for obj in self._kept_objects.objects())

    def end_session(self, session: str) -> list[str]:
        """In the notebook: the `session` of this table has ended. Returns short descriptions of what only it had."""
        objects = self._numbering.objects
        kept = [n for n in self._numbering.living() if type(objects[n]) is StandIn and self._foreign[n]]
        kept = sorted(set(kept).difference(self._numbering.dropped, self._numbering.unreferenced_among(kept)))
        lost = [(objects[number], end(objects[number], session)) for number in kept]
        return [words for stand_in, words in lost if not is_of_spent(stand_in)]

    def path(self, obj: object, name: str) -> str | None:
        """The path to an object from a name that reaches it."""
        return path_to(obj, [(name, self.namespace[name])], self._kinds)

    def footprint(self, values: Iterable[Any], held_by: Callable[[Any], Iterable[Any] | None]) -> Footprint:
        """The mutable objects and memory that the values reach. `held_by`: the contents of an unsent object."""
        return footprint(values, self._walker, held_by)

    def with_graphs(self) -> list[Any]:
        """The table's tensors whose computation graph is not sent with them."""
        return with_graphs(self._numbering.objects)

    def imports(self, modules: Iterable[ModuleType]) -> tuple[object, ...]:
        """The student's own modules that a cell may import, as a part of `extra`: the other end may be unable to."""
        return self._kinds.variables.imports_of(modules)

    def take_staying(self) -> list[str]:
        """Lines about variables of modules that the last messages have left as they are in each kernel."""
        return self._kinds.variable.take_staying()

    def knows(self, obj: object) -> bool:
        """Whether the other end has this very object."""
        return self._numbering.number(obj) is not None

    def snapshot_deferred(self) -> Snapshot:
        """In a session: the bytes that the last message left out. Counts once the other end's next one continues it."""
        snapshot = self.deferred.snapshot(self.messages)
        self._pins.append(snapshot)
        return snapshot

    def complete(self, delta: Mapping[str, Any], file_descriptor: int) -> None:
        """In the notebook: applies deferred bytes; on an error, none of them. Also allowed if the table is void."""
        self.deferred.arrive(delta, file_descriptor)
        self.messages += 1

    def roll_back(self, undos: Sequence[Undo] | None = None) -> None:
        """In the notebook: undoes these messages, by default all since the first that lacks bytes. Voids the table."""
        self.broken = True
        if undos is None:
            self.deferred.roll_back()
        else:
            for undo in reversed(undos):
                undo.take_back()
        self._kinds.settle()

    def drop_all(self) -> None:
        """In the notebook: drops all objects of a void table for which nothing more will arrive."""
        self.broken = True
        self._segments.clear()
        del self._numbering, self._kept_objects, self._walker, self._views, self._bindings, self.deferred

    def memory_bytes(self) -> int:
        """The memory of arrays and similar objects that both ends hold, in bytes."""
        return sum(segment.bytes for segment in self._segments.by_number.values())

    def release(self) -> None:
        """Called when the memory of the last snapshot has been read."""
        self._pins, self.left_behind = [], []

    def _dying(self) -> list[int]:
        """Drops objects that only the table refers to; the other end learns that with this message.

        The other end may still use them. So those that may have changed here are sent for a last time: their numbers
        are returned. Objects from the other end with weak references here live as long as they do there.
        """
        dying: list[int] = []
        started, looked = time.monotonic(), self._pace.is_due(*self._size())
        if looked:
            dead = unreachable(self._numbering, self._walker.states, self._lives_there)
        else:
            dead = self._numbering.unreferenced()
        named = self._bindings.numbers() if dead else set()
        while dead:
            dead = [number for number in dead if not self._lives_there(number)]
            # Unnamed memory was created for one message, as part of an object that pickles as such.
            states, segment_of = self._walker.states, self._views.segment_of
            last = [n for n in dead if n in states and (n in named or n not in segment_of)]
            dying += last
            gone = set(dead).difference(last)
            below = {child for number in gone for child in self._walker.children_of(number)}
            self._numbering.unsent.update(gone)
            self._drop(gone)
            dead = self._numbering.unreferenced_among(below)
        self._views.drop_unused()
        if looked:
            self._pace.looked(*self._size(), time.monotonic() - started)
        return dying

    def _size(self) -> tuple[int, int]:
        return len(self._numbering) - len(self._numbering.dropped), self.memory_bytes()

    def _lives_there(self, number: int) -> bool:
        obj = self._numbering.objects[number]
        return self._foreign[number] == 1 and type(obj).__weakrefoffset__ != 0 and weakref.getweakrefcount(obj) > 0

    def _drop(self, numbers: Iterable[int]) -> None:
        numbers = set(numbers)
        self._bindings.drop(numbers)
        for number in numbers:
            self._walker.forget(number)
            self._kept_objects.drop(number)
            self._views.leave(number)
        self._numbering.drop(numbers)

    def _compact(self) -> None:
        moved = self._numbering.compact()
        self._foreign = bytearray(self._foreign[number] for number in sorted(moved))
        self._given = {moved[number] for number in self._given if number in moved}
        self._walker.move(moved)
        self._kept_objects.move(moved)
        self._views.move(moved)
        self._bindings.move(moved)

    # ---- receiving ----

    def apply(
        self,
        delta: Mapping[str, Any],
        file_descriptor: int,
        *,
        keeps_bound: bool = False,
        apply_extra: Callable[[Any, OnUndo], object] = lambda extra, undo: None,
    ) -> object:
        """Applies the other end's snapshot. Returns its `extra`.

        With `keeps_bound`, a name that is bound here is not rebound. `apply_extra` is called with the `extra` before
        names are bound, and does everything else that belongs to the message; actions that it adds to the undo are
        undone with it.

        After an error everything is as before, except the bytes of arrays in a session, which ends then.
        """
        self._check_usable()
        self._before = None
        if self._home is None:
            self._home = False
        if self.deferred.numbers and not self._home and delta["messages"] == self.messages + 1:
            self.deferred.clear()
            self.messages += 1
        if delta["messages"] != self.messages:
            self.broken = True
            raise TableBroken(f"Message {delta['messages']} arrived instead of message {self.messages}")
        self._here.home = self._home
        read = partial(self._read, Received(delta, file_descriptor, keeps_bound, apply_extra))
        try:
            if self._saved:
                (header, (_, rebound, extra), fresh, undo), failure = read(None), None
            else:
                (header, (_, rebound, extra), fresh, undo), failure = read_what_can_be(read, StandIns(self._here))
            self.not_rebuilt = self._news(failure.stand_ins) if failure is not None else []
            if failure is not None and not self._home and not self._kinds.variables.excuse(failure.stand_ins):
                self.failed_at = self._path_to_one(failure.stand_ins, rebound)  # the cell has not run
                raise failure.error
        except BaseException:
            self.broken = True
            raise
        old = [self._numbering.objects[n] for n in header.replaced if self._home and n not in self._numbering.dropped]
        with collector_paused():
            self._commit(header, fresh, rebound, undo, keeps_bound)
        warn_of_stale_holders(old, self.namespace, self._kinds)
        self._views.drop_segments(delta["dropped_segments"])
        self._segments.settle_deferred()
        self._slot_names.remove()
        self.messages += 1
        if self._home:
            self.deferred.applied(header.deferred, undo, self.messages)
            undo.loosen()
            self.last_undo = undo
        else:
            undo.forget()
        return extra

    def _news(self, stand_ins: list[StandIn]) -> list[str]:
        """Why these could not be rebuilt, where that has not been reported yet."""
        texts = dict.fromkeys(text for one in stand_ins if (text := stand_in_text(one)) is not None)
        news = [text for text in texts if text not in self._reported]
        self._reported.update(news)
        return news

    def _path_to_one(self, stand_ins: list[StandIn], rebound: dict[str, Any]) -> str | None:
        paths = Paths([*rebound.items(), *self.namespace.items()], self._kinds)
        return next((path for one in stand_ins if (path := paths.path_to(one))), None)

    def _read(self, received: Received, stand_ins: StandIns | None) -> tuple[Header, Any, list[Any], Undo]:
        """Like `_decode`, and also returns the undo. After an error the message has been undone."""
        undo = Undo(self._segments, of_memory=bool(self._home))
        self._here.begin_reading(undo)
        self._filled = {}
        try:
            with collector_paused():
                found = self._decode(received, undo, stand_ins)
            received.apply_extra(found[1][2], undo.add)
        except BaseException:
            undo.run()
            self._segments.copy_to_gpu(part["number"] for part in received.delta["segments"])
            self._kinds.settle()
            raise
        finally:
            self._here.undo = None
        return *found, undo

    def _decode(self, received: Received, undo: Undo, stand_ins: StandIns | None) -> tuple[Header, Any, list[Any]]:
        """The message's header, its content, and the objects that are new here."""
        stream = read_segments(received.delta, received.file_descriptor, self._segments, undo)
        self._segments.copy_to_gpu(part["number"] for part in received.delta["segments"] if part["patches"])
        header, body, buffers = split(stream)
        check_versions(header)
        if header.count_before != len(self._numbering):
            raise TableBroken(f"The other kernel knows {header.count_before} objects, this one {len(self._numbering)}")
        self.deferred.expect(header.deferred, undo)
        if header.modules is not None:
            self._load_modules(header.modules, undo.add_module)
        self._here.loaded = frozenset(sys.modules) if self._home and not header.plain else frozenset()
        self._taken = Taken(header.reserved, self._numbering, self._here.loaded, stand_ins)
        self.rebuilt = not header.plain
        if header.plain:
            message: Any = ((), {}, pickle.loads(body))
            fresh: list[Any] = []
        else:

            def bind(names: dict[str, Any]) -> None:
                self._bind(names, undo, received.keeps_bound)

            expected = self._taken.objects, header.count_after
            message, fresh = self._numbering.load(body, buffers, *expected, bind, stand_ins)
        self._kinds.settle()
        return header, message, fresh

    def _commit(self, header: Header, fresh: list[Any], rebound: dict[str, Any], undo: Undo, keeps_bound: bool) -> None:
        numbering = self._numbering
        for tensor in self._here.with_other_graphs:
            count_change(tensor)
        going = [n for n in (*header.dropped, *header.replaced) if n not in numbering.dropped]
        # Those that live on here may get a new number.
        self._walker.forget_above(set(going).difference(numbering.unreferenced_among(going)))
        self._drop(going)
        numbering.add(fresh)
        self._slot_names.note(fresh)
        for number, uses, held in header.kept:
            hold(numbering.objects[number], uses, map(numbering.objects.__getitem__, held))
            self._walker.forget(number)
        self._foreign.extend(b"\1" * len(fresh))
        self._views.note_used()
        self._views.find_moved(undo.patched)
        self._views.drop_unused()
        numbering.unsent.difference_update(header.dropped, header.replaced)
        self._bind(rebound, undo, keeps_bound)
        self._here.names_are_bound()
        self._bindings.note(undo.bound)
        for name in header.deleted:
            undo.keep_name(self.namespace, name)
            self.namespace.pop(name, None)
        self._bindings.delete(header.deleted)
        leaves, self._filled = self._filled, {}
        self._walker.remember((*undo.patched, *range(header.count_before, header.count_after)), leaves)
        if header.compact:
            self._compact()

    def _bind(self, names: dict[str, Any], undo: Undo, keeps_bound: bool) -> None:
        if self._only is not None:
            names = {name: names[name] for name in self._only(names) if name in names}
        for name, value in names.items():
            undo.bound[name] = value
            if not (keeps_bound and name in self.namespace):
                undo.keep_name(self.namespace, name)
                self.namespace[name] = value

    def _patch(self, number: int, kind: str, content: Any) -> None:
        """Called while a message is decoded."""
        objects = self._numbering.objects
        obj = objects[number] if number < len(objects) else self._taken.objects[number - len(objects)]
        if type(obj) is StandIn:  # the object that it represents changed in its own kernel
            return
        by_kind = self._kinds.by_name[kind]
        if number < len(objects) or self._taken.is_own(obj):
            self._here.undo.keep(number, self._kinds.of(obj), obj)
        by_kind.apply(obj, content)
        if by_kind is self._kinds.leaf:
            self._filled[number] = by_kind.read(obj)

    def _check_usable(self) -> None:
        if self.broken:
            raise TableBroken("This object table has failed; a new one is needed")
