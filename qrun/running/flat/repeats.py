"""Steps of a flat plan (running/flat/flattened.py) that make all turns of a loop,
where only the run tells how many turns there are, or where they are too many to unroll."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ir import Array
from qrun.ops._complete import Settled
from qrun.ops.lowering.kernel import NativeKernel, Stage
from qrun.running.derived import blank
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.drysteps import DryValues
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.flat.loops import UnrolledSteps, as_fed
from qrun.running.flat.origins import Origin
from qrun.running.flat.steps import FlatLevel, Flattened, Unforetold
from qrun.running.plan import Plan, Step
from qrun.running.steps import event_of

if TYPE_CHECKING:
    from qrun.native.plan.repeated import Repeated


@frozen
class LoopTurns:
    """The turns of a Loop or Scan. Tensors are named as in the flat plan; those of a turn, as in the turn's plan.

    count, going: the trip count and the first condition, "" where there is none. most: the most turns; the exact number
    where there are scan outputs. states: loop-carried values at first; elements: scanned tensors. fed: the inputs of a
    turn, in the body's order. made: the loop-carried values that a turn makes; wanted: the places of the states that
    the loop returns; stacked: the scan outputs of a turn. until: whether the first loop-carried value is the condition.
    """

    count: str
    going: str
    most: int
    states: Sequence[str]
    elements: Sequence[str]
    fed: Mapping[str, Array]
    made: Sequence[str] = ()
    wanted: Sequence[int] = ()
    stacked: Sequence[str] = ()
    until: bool = True


MakesRepeated = Callable[[Flattened, LoopTurns], "tuple[Repeated, tuple[str, ...]] | None"]
"""From the plan of one turn, and the turns, to the operation that makes all turns, and the names of the tensors that it
reads; to None where there is no such operation."""


class RepeatedSteps(UnrolledSteps):
    """Steps of a flat plan, and those that make all turns of a loop. repeats: makes the operation of such a step."""

    def __init__(
        self,
        plan: Plan,
        natives: NativeKernels,
        infos: Mapping[str, TensorInfo],
        shapes: Mapping[str, Array],
        whole: Sequence[NodeEvent],
        repeats: MakesRepeated | None,
    ) -> None:
        super().__init__(plan, natives, infos, shapes, whole)
        self.repeats = repeats

    def _repeated(self, step: Step, level: FlatLevel, at: Origin) -> None:
        """Add a step that makes all turns of a Loop or Scan."""
        if self.repeats is None:
            raise Unforetold
        turns = self._loop_turns(step, level) if step.node.op_type == "Loop" else self._scan_turns(step, level)
        inner = self._inner_steps(turns.fed)
        fed = dict(zip((value.name for value in step.bodies["body"].model.inputs), turns.fed, strict=True))
        made = inner._graph(step, "body", replace(level, guard=""), replace(at, around=()), "", fed)
        if inner.needed:
            raise Unforetold
        states, named = len(turns.states) + turns.until, step.node.outputs
        own = [n for n, name in enumerate(named) if name and n < len(turns.states)]
        stacked = [name for name, out in zip(made[states:], named[len(turns.states) :], strict=False) if out]
        turns = replace(turns, made=made[:states], wanted=own, stacked=stacked)
        one = inner.flat(tuple(dict.fromkeys((*turns.made, *stacked))), self.whole)
        found = self.repeats(one, turns)
        if found is None:
            raise Unforetold
        self.repeated[len(self.steps)] = one.flat
        self._made_by(*found, step, level, at)

    def _inner_steps(self, fed: Mapping[str, Array]) -> Self:
        """An empty flat plan for one turn, which may read all values that are known here. fed: the turn's inputs."""
        infos = {name: TensorInfo(name, array.dtype, array.shape) for name, array in fed.items()}
        known = {**self.infos, **self.dry.infos, **infos}
        made = type(self)(self.plan, self.around, known, {}, self.whole, self.repeats)
        made.constants.update(self.constants)
        made.values = DryValues({**self.values.held, **fed})
        made.values.known = set(self.values.known)
        made.natives.derived, made.numbers, made.start = self.natives.derived, self.numbers, self.start
        return made

    def _made_by(self, operation: Repeated, read: Sequence[str], step: Step, level: FlatLevel, at: Origin) -> None:
        """Add the step that runs `operation` on the tensors named `read`, in place of a Loop or Scan."""
        names = tuple([level.of(name) for name in step.node.outputs if name])
        blanks = [blank(form.shape, form.dtype) for form in operation.made]
        node = replace(step.node, index=next(self.numbers), name=step.node.label, inputs=tuple(read), outputs=names)
        own = replace(step, node=node, bodies={})
        stages = [Stage(operation, tuple(range(len(read))), "turns")]
        stages += [Stage(part, ("turns",), n) for n, part in enumerate(operation.outputs)]
        self.values.held.update(zip(names, blanks, strict=True))
        self.dry.inform(node, [self.values.held[name] for name in read], blanks)
        bound = KernelBinding(NativeKernel(_never, Settled(True), (), tuple(stages)), "")
        event = event_of(own, self.dry.infos, [a.shape for a in blanks], bound, (), {})
        self._add(own, bound, event, at, level.guard)

    def _loop_turns(self, step: Step, level: FlatLevel) -> LoopTurns:
        node, body = step.node, step.bodies["body"].model
        count, going, *states = [
            level.of(name) if name else "" for name in (*node.inputs, "", "")[: max(len(node.inputs), 2)]
        ]
        if not all(states):
            raise Unforetold
        for name, dtype in ((count, np.int64), (going, np.bool_)):
            if name and (self.values.held[name].size != 1 or self.values.held[name].dtype != dtype):
                raise Unforetold
        lengths = {
            info.shape[0] for name in node.outputs[len(states) :] if name and (info := self.infos.get(level.of(name)))
        }
        if len(lengths) != bool(any(node.outputs[len(states) :])):
            raise Unforetold
        most = lengths.pop() if lengths else AT_MOST
        number, condition = as_fed(body, 0, np.array(0)), as_fed(body, 1, np.array(True))
        first = [blank(a.shape, a.dtype) for a in (number, condition, *(self.values.held[name] for name in states))]
        return LoopTurns(count, going, _few(most), states, (), self._fed(step, level, first))

    def _scan_turns(self, step: Step, level: FlatLevel) -> LoopTurns:
        node, kwargs = step.node, step.kwargs
        names, scans = [level.of(name) for name in node.inputs], kwargs["num_scan_inputs"]
        ways = ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")
        if any(any(kwargs.get(way) or ()) for way in ways):
            raise Unforetold
        states, elements = names[: len(names) - scans], names[len(names) - scans :]
        shapes = [self._shape(name) for name in elements]
        lengths = {shape[0] for shape in shapes}
        if len(lengths) != 1:
            raise Unforetold
        held = [self.values.held[name] for name in (*states, *elements)]
        first = [blank(a.shape if n < len(states) else a.shape[1:], a.dtype) for n, a in enumerate(held)]
        fed = self._fed(step, level, first)
        return LoopTurns("", "", _few(lengths.pop()), states, elements, fed, until=False)

    def _fed(self, step: Step, level: FlatLevel, first: Sequence[Array]) -> dict[str, Array]:
        """The inputs of a turn by their new names. first: arrays of their shapes and types, in the body's order."""
        inputs = step.bodies["body"].model.inputs
        if len(inputs) != len(first):
            raise Unforetold
        start = f"{level.start}{step.node.index}/body/"
        return {f"{start}{value.name}": array for value, array in zip(inputs, first, strict=True)}


AT_MOST = 1 << 16
"""Turns that one step may make; a run that takes more goes step by step."""


def _few(count: int) -> int:
    if not 0 < count <= AT_MOST:
        raise Unforetold
    return count


def _never(inputs: Sequence[Any]) -> Any:
    raise AssertionError("only a program makes turns")
