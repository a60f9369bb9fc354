"""Loops, scans and branches as native calls (native/plan/turns.py): the role of each of a graph's values, the calls
that replace a node with graphs, and the events of the nodes inside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare.frozen import replace
from qrun.native.errors import Declined
from qrun.running.compiled import Compiled
from qrun.running.derived import blank
from qrun.running.dispatch import NativeKernels
from qrun.running.events import Happening, TensorInfo
from qrun.running.plan import Plan, Step

if TYPE_CHECKING:
    from qrun.native.machine.operation import Operand
    from qrun.native.plan.items import Item
    from qrun.native.plan.turns import LoopBody, LoopCall, LoopMemory


def turns_of(plan: Plan, compiled: Compiled, kind: str, scanned: int = 0) -> LoopBody:
    """A graph inside a node of this kind, as turns. Its last `scanned` inputs are scanned. Raises Declined."""
    from qrun.native.plan.turns import LoopBody

    model = plan.model
    read, made = ([value.name for value in values] for values in (model.inputs, model.outputs))
    (number, true, *states), (until, *rest) = (read, made) if kind == "Loop" else (["", "", *read], ["", *made])
    carried = tuple(zip(rest, states[: len(states) - scanned], strict=False))
    known = {name: model.constants[name] for name in made if name in model.constants}
    elements, stacked = states[len(states) - scanned :], rest[len(carried) :]
    return LoopBody(compiled.program.listing, (number, true), until, carried, elements, stacked, known)


def call_of(
    step: Step, natives: NativeKernels, infos: Mapping[str, TensorInfo]
) -> tuple[Item, Mapping[str, Compiled]] | None:
    """The calls that replace an If, Loop or Scan, and the programs of its graphs; None where Python must run it. infos:
    types and shapes of tensors by name."""
    ways = ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")
    turned = any(any(step.kwargs.get(way) or ()) for way in ways) or (step.node.op_type, step.node.version) == (
        "Scan",
        8,
    )
    if turned or not infos.keys() >= {*step.reads, *step.node.outputs} - {""}:
        return None
    try:
        return _Call(step, natives, infos).build()
    except Declined:
        return None


class _Call:
    """A step that becomes calls, if all of its graphs have programs without steps in Python.

    states, scanned: names of the node's inputs that its graphs take whole, and element by element. wanted: names of its
    outputs. names: every name that the calls read, with its number. length: the number of turns, where shapes tell it.
    """

    def __init__(self, step: Step, natives: NativeKernels, infos: Mapping[str, TensorInfo]) -> None:
        self.step, self._natives, self._infos, node = step, natives, infos, step.node
        self.kind, self.names, self.wanted = node.op_type, dict[str, int](), [name for name in node.outputs if name]
        self._count = count = step.kwargs.get("num_scan_inputs", 0)
        inputs = ("", "", *node.inputs[2:]) if self.kind == "Loop" else node.inputs[self.kind == "If" :]
        self.states, self.scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        told = node.outputs[len(inputs) - 2 :] if self.kind == "Loop" else ()
        lengths = {infos[name].shape[0] for name in (*self.scanned, *told) if name}
        self.length = lengths.pop() if len(lengths) == 1 else None

    def build(self) -> tuple[Item, Mapping[str, Compiled]]:
        """The native call of the node, and the programs of its bodies."""
        from qrun.native.plan.items import Task, item_of
        from qrun.native.plan.turns import LoopOperation

        step = self.step
        programs = {name: self._program(name) for name in step.bodies}
        branches = [self._branch(name, compiled) for name, compiled in programs.items()]
        forms = [self._form(name) for name in self.names], [self._form(name) for name in self.wanted]
        operation = LoopOperation(self._natives.engine, branches, *forms)
        block = self.wanted[0] if len(self.wanted) == 1 else (step.node.index, "turns")
        parts = zip(operation.outputs, self.wanted, strict=True) if len(self.wanted) > 1 else ()
        tasks = [Task(operation, tuple(self.names), block), *(Task(part, (block,), name) for part, name in parts)]
        return item_of(tasks), programs

    def _form(self, name: str) -> Operand:
        """The operand of a tensor's shape and type."""
        from qrun.native.machine.operation import Operand

        return Operand(self._infos[name].shape, self._infos[name].dtype)

    def _program(self, attribute: str) -> Compiled:
        """The program of a graph. Raises Declined where it has steps in Python."""
        plan, infos, names = self.step.bodies[attribute], self._infos, (*self.states, *self.scanned)
        given = {name: blank(infos[name].shape, infos[name].dtype) for name in plan.model.captured}
        for index, (value, name) in enumerate(zip(plan.model.inputs, names, strict=False)):
            shape = infos[name].shape[index >= len(self.states) :] if name else (1,) * len(value.shape or ())
            given[value.name] = blank(shape, infos[name].dtype if name else np.dtype((np.int64, np.bool_)[index]))
        fits = len(plan.model.inputs) == len(names) and len(plan.model.outputs) >= len(self.step.node.outputs)
        bodies = self._natives.inside(self.step, attribute).bodies
        compiled: Compiled | None = bodies.native(plan, given) if bodies and fits else None
        if compiled is None:
            raise Declined("a graph with a step in Python")
        return compiled

    def _branch(self, attribute: str, compiled: Compiled) -> LoopCall:
        """A graph's turns as a call. Only a loop that stacks results must run exactly the turns foreseen."""
        from qrun.native.plan.turns import ENDLESS, LoopCall

        node, plan, loop = self.step.node, self.step.bodies[attribute], self.kind == "Loop"
        turns = turns_of(plan, compiled, self.kind, self._count)
        outer = dict(zip((value.name for value in plan.model.inputs), (*self.states, *self.scanned), strict=True))
        operands = {key: self._number(outer.get(str(key), str(key))) for key in turns.read}
        words = {"inner": 1, "sense": int(attribute != "else_branch"), "exact": int(loop and self.length is not None)}
        words["most"] = 1 if self.kind == "If" else ENDLESS if self.length is None else self.length
        told = (*node.inputs, "")[:2] if loop else ("", "" if self._count else node.inputs[0])
        for word, name, nbytes in zip(("count", "going"), told, (8, 1), strict=True):
            words |= self._scalar_words(word, name, nbytes) if name else {}
        return LoopCall(turns, operands, self._places(turns), words)

    def _scalar_words(self, word: str, name: str, nbytes: int) -> dict[str, int]:
        """The words that locate the number of turns, or the condition. Raises Declined for one that is no scalar."""
        if self._form(name).nbytes != nbytes:
            raise Declined("not a scalar")
        return {word: 8 * (1 + self._number(name)), f"{word}_at": 0}

    def _places(self, turns: LoopBody) -> list[tuple[int, int] | None]:
        """Each result's index in `wanted` and byte 0, None without name. Raises Declined for another shape or type."""
        named = zip(turns.results, (*self.step.node.outputs, *[""] * len(turns.results)), strict=False)
        for number, (form, name) in enumerate(named):
            stacked = self.kind != "If" and number >= len(turns.carried)
            if name and self._form(name) != (replace(form, shape=(self.length, *form.shape)) if stacked else form):
                raise Declined("a result with another shape or type")
        names = (*self.step.node.outputs, *[""] * len(turns.results))[: len(turns.results)]
        return [(self.wanted.index(name), 0) if name else None for name in names]

    def _number(self, name: str) -> int:
        """The number of an operand of the call."""
        return self.names.setdefault(name, len(self.names))


def happenings(compiled: Compiled, held: LoopMemory, tick: float, path: str) -> Iterator[Happening]:
    """The events at the nodes of a graph, for the turns that ran. tick: ns; path: of the graph."""
    listing, count = compiled.program.listing, held.word("total")
    spans = np.bincount(listing.counts[:, 3], held.spans, listing.items) * tick
    for item, event in enumerate(compiled.events if count else ()):
        assert event.node is not None
        yield f"{path}{event.node.label}", event.node.op, int(spans[item]), event.backend, event.why, count
    inner = {item: iter(programs.items()) for item, programs in compiled.calls.items()}
    for number, one in held.instance.held.items():
        item = int(listing.counts[number, 3])
        attribute, program = next(inner[item])
        yield from happenings(program, one, tick, f"{path}{compiled.plan.steps[item].node.label}/{attribute}/")
