"""Native programs as plain values: all that another process needs to run one, and the checks of its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from qrun.declare.frozen import frozen, replace
from qrun.declare.stored import borrow, constants_of, parts
from qrun.ir import Array, Model, Node
from qrun.native.machine.engine import Engine
from qrun.native.plan.listing import Sight, Unportable, View, build_listing, portable
from qrun.native.plan.program import Program
from qrun.ops import Arith, Observation
from qrun.ops._complete import ALWAYS, NEVER, Complete, from_fields, to_fields
from qrun.ops.lowering.kernel import NativeSection
from qrun.running.bodies import BodyPrograms
from qrun.running.compiled import Compiled
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.kept.listings import pack_portable, unpack_portable
from qrun.running.kept.packed import Bundle, Unstorable, pack_node, type_named, type_of, unpack_node
from qrun.running.plan import Plan, Step, step_of, varying_names
from qrun.running.steps import quantizes

if TYPE_CHECKING:
    from qrun.native.plan.schedule import Schedule
    from qrun.running.dryrun import DryRun
    from qrun.running.execution import RunResult


@frozen
class KeptProgram:
    """A program that another process kept, or that was made ahead of any run, with the data of an observing run.

    checks: for each step whose result must be looked at, a test: would the reference kernel observe nothing in it?
    told:   for each step, its observations where no such test fails; None if the program cannot serve a run that
            observes.
    peak:   most bytes that an observing run step by step holds; held: bytes that it holds at each step in `checks`.
    """

    compiled: Compiled
    checks: Mapping[int, Complete]
    told: Sequence[tuple[Observation, ...]] | None
    peak: int
    held: Mapping[int, int]


def pack_program(
    compiled: Compiled, first: RunResult | None, held: Mapping[int, int], model: Model, bundle: Bundle
) -> Any:
    """The program as plain values. Raises Unstorable.

    first: a run that observed, if the program is to serve such runs; held: bytes while each of its steps ran, if known.
    model: as it was loaded; its constants are stored as names only.
    """
    listing, schedule, plan = compiled.program.listing, compiled.program.schedule, compiled.plan
    loose = any(step.loose for step in listing.steps.values())
    if schedule is None or loose or any(b and b.kernel and not b.kernel.stages for b in compiled.bounds):
        raise Unstorable("a step that only this process can run")
    views = dict(listing.views)
    checks = None if first is None else _checks(compiled, schedule, views)
    try:
        made = portable(schedule, replace(listing, views=views))
    except Unportable as error:
        raise Unstorable(str(error)) from None
    needed = {*made.listing.steps, *(checks or ())}
    nodes = [plan.steps[item].node for item in needed]
    names = {name for node in nodes for name in (*node.inputs, *node.captured)}
    names.update(plan.keep)
    old = parts(model.constants)
    constants = {name: part for name, part in parts(plan.model.constants).items() if name in names}
    return (
        tuple(pack_node(step.node, bundle) for step in plan.steps),
        {name: None if old.get(name) is part else bundle.array(borrow(part)) for name, part in constants.items()},
        _pack_events(compiled.events),
        pack_portable(made, model, bundle),
        {item: to_fields(check) for item, check in (checks or {}).items()},
        None
        if checks is None or first is None
        else tuple(_pack_observations(bound, event) for bound, event in _pairs(compiled, first)),
        0 if first is None else first.peak_bytes,
        dict(held),
    )


def unpack_program(
    index: Any, arrays: Sequence[Array], model: Model, keep: tuple[str, ...], engine: Engine, arith: Arith
) -> KeptProgram:
    """The program of this index, for the model from which it was made."""
    packed, constants, events, made, checks, told, peak, held = index
    nodes = tuple(unpack_node(node, arrays) for node in packed)
    stored = parts(model.constants)
    known = {name: stored[name] if n is None else arrays[n] for name, n in constants.items()}
    own = replace(model, nodes=nodes, constants=constants_of(known))
    plan = Plan(own, LazySteps(own), keep)
    found = _unpack_events(events, nodes)
    portable = unpack_portable(made, model, arrays, engine)
    program = Program(build_listing(portable, engine))
    bodies = has_bodies(nodes[item] for item in portable.listing.steps)
    natives = NativeKernels(own, engine, arith, derived=frozenset()) if bodies else None
    if natives is not None:
        natives.of_bodies = BodyPrograms
    compiled = Compiled(plan, program, (None,) * len(nodes), found, arith, natives)
    if told is None:
        return KeptProgram(compiled, {}, None, peak, held)
    observations = [tuple(Observation(*fields) for fields in observed) for observed in told]
    return KeptProgram(
        compiled, {item: from_fields(fields) for item, fields in checks.items()}, observations, peak, held
    )


def observing_program(compiled: Compiled, dry: DryRun) -> KeptProgram | None:
    """The program with the data of an observing run, which `dry` foretells; None if it cannot serve such a run."""
    listing, schedule = compiled.program.listing, compiled.program.schedule
    if schedule is None or any(step.loose for step in listing.steps.values()):
        return None
    views = dict(listing.views)
    checks = _checks(compiled, schedule, views)
    if checks is None:
        return None
    made = replace(compiled, program=Program(replace(listing, views=views), schedule))
    told = [
        bound.observations if bound is not None and bound.kernel is not None else event.observations
        for bound, event in zip(compiled.bounds, dry.events, strict=True)
    ]
    held = {item: dry.held_bytes[item] for item in checks}
    return KeptProgram(made, checks, told, dry.peak_bytes, held)


def _checks(compiled: Compiled, schedule: Schedule, views: dict[Any, View]) -> dict[int, Complete] | None:
    """`KeptProgram.checks`; None if a result cannot be looked at. views: receives the views of these results and of the
    reference kernel's inputs, as far as memory still holds them. A run that needs a value without a view fails, and
    then goes step by step."""
    found: dict[int, Complete] = {}
    listing, sight = compiled.program.listing, Sight(schedule)
    there = set(listing.item_of)
    for item, (step, bound) in enumerate(zip(compiled.plan.steps, compiled.bounds, strict=True)):
        kernel = bound.kernel if bound else None
        if step.bodies:  # how much memory inner graphs hold depends on values
            return None
        silent = kernel is not None and kernel.complete == ALWAYS and kernel.plain is None
        if kernel is None or (silent and not (item in there and quantizes(step.node))):
            continue
        read, made = varying_names(compiled.plan, step), step.node.outputs
        given = listing.given
        known = {name: sight.of(name, item) for name in (*read, *made) if name not in given}
        views |= {look_key(item, name): view for name, view in known.items() if view is not None}
        needed = read if kernel.complete == NEVER else made
        hidden = any(name not in given and known[name] is None for name in needed)
        if silent and hidden:
            continue
        if hidden or kernel.plain is not None or to_fields(kernel.complete) is None or item not in there:
            return None
        found[item] = kernel.complete
    return found


def look_key(item: int, name: str) -> tuple[str, int, str]:
    """The key of the view through which the value `name` is read once the item has run."""
    return "look", item, name


def _pairs(compiled: Compiled, first: RunResult) -> Iterator[tuple[KernelBinding | None, NodeEvent]]:
    """Each node's kernel and its event in the first run."""
    return zip(compiled.bounds, first.events, strict=True)


def _pack_observations(bound: KernelBinding | None, event: NodeEvent) -> tuple[tuple[Any, ...], ...]:
    """The observations at a step in each run: from its parameters alone, and from shapes."""
    known = bound.observations if bound is not None and bound.kernel is not None else event.observations
    return tuple((o.kind, o.param, int(o.count), int(o.total), tuple(map(int, o.first)), o.detail) for o in known)


def _pack_events(events: Sequence[NodeEvent]) -> Any:
    """Events as plain values."""
    infos = {info.name: info for event in events for info in (*event.inputs, *event.outputs)}
    return (
        {name: (type_named(info.dtype), tuple(map(int, info.shape))) for name, info in infos.items()},
        tuple(
            (
                event.index,
                tuple(i.name for i in event.inputs),
                tuple(o.name for o in event.outputs),
                int(event.macs),
                event.backend,
                event.why,
                tuple((s.kernel, s.form, int(s.first), int(s.channels), s.why) for s in event.sections),
                event.group,
            )
            for event in events
        ),
    )


def _unpack_events(packed: Any, nodes: Sequence[Node]) -> tuple[NodeEvent, ...]:
    """Events from plain values."""
    types, events = packed
    infos = {name: TensorInfo(name, type_of(dtype), shape) for name, (dtype, shape) in types.items()}
    return tuple(
        NodeEvent(
            at,
            0,
            0,
            tuple([infos[name] for name in inputs]),
            tuple([infos[name] for name in outputs]),
            macs,
            backend,
            (),
            why,
            tuple([NativeSection(*section) for section in sections]),
            group,
            node,
        )
        for (at, inputs, outputs, macs, backend, why, sections, group), node in zip(events, nodes, strict=True)
    )


def has_bodies(nodes: Iterable[Node]) -> bool:
    """Whether there are graphs inside some of these nodes."""
    return any(True for node in nodes for _ in node.subgraphs)


class LazySteps(Sequence[Step]):
    """The steps of a model's nodes, each made on first access."""

    def __init__(self, model: Model) -> None:
        self._model, self._nodes = model, model.nodes
        self._made: dict[int, Step] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    @overload
    def __getitem__(self, at: int) -> Step: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Step, ...]: ...

    def __getitem__(self, at: int | slice) -> Step | tuple[Step, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        found = self._made.get(at)
        if found is None:
            found = self._made[at] = step_of(self._model, self._nodes[at])
        return found
