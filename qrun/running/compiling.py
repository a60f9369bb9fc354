"""The native program of a plan: an operation or a step for each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops import Arith
from qrun.running.compiled import Compiled
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.flat.origins import Flat
from qrun.running.loose import Loose
from qrun.running.plan import Plan, Step, moving

if TYPE_CHECKING:
    from qrun.native.machine.operation import Operand
    from qrun.native.plan.items import Item, Key
    from qrun.ops.lowering.kernel import NativeKernel


@frozen
class Compiler:
    """Makes the programs of a model's plans. calls: whether a program calls the reference kernel of a step that has no
    native one by itself, instead of handing the step back to Python (running/foreignsteps.py)."""

    natives: NativeKernels
    arith: Arith
    calls: bool

    def program(
        self,
        plan: Plan,
        events: Sequence[NodeEvent],
        infos: Mapping[str, TensorInfo],
        fed: Iterable[str],
        shapes: Mapping[str, Array],
        bounds: Sequence[KernelBinding | None],
        loose: Loose,
        flat: Flat | None = None,
    ) -> Compiled | None:
        """The program of a plan; None if an operation refuses it.

        events: of the plan's steps. infos: of all tensors. fed: names of the inputs that are fed.
        shapes: values that follow from shapes.
        bounds: what runs each step. loose: what may have any shape. flat: where the steps of a flat plan come from.
        """
        from qrun.native.errors import Declined
        from qrun.native.machine.operation import Operand
        from qrun.native.plan.items import PythonStep
        from qrun.native.plan.program import Program
        from qrun.native.plan.schedule import Schedule

        shapes = {name: value for name, value in shapes.items() if name not in loose.tensors}
        bounds = tuple(None if number in loose.steps else bound for number, bound in enumerate(bounds))
        items = [
            PythonStep((), ())
            if not shapes.keys().isdisjoint(step.node.outputs)
            else self._item(plan, number, bounds[number], infos, number in loose.steps)
            for number, step in enumerate(plan.steps)
        ]
        given, fixed = _given(plan, items, infos, fed), dict(shapes)
        names = (name for item in items if not isinstance(item, PythonStep) for name in item.inputs)
        fixed |= {n: a for n in names if isinstance(n, str) and (a := plan.model.constant(n)) is not None}
        given |= {name: Operand(a.shape, a.dtype) for name, a in fixed.items()}
        constants = plan.model.constants
        wanted = [
            name
            for name in dict.fromkeys((*plan.keep, *(flat.needed if flat else ())))
            if name not in constants or plan.model.part(name) is None
        ]
        try:
            guards = flat.guards if flat else {}
            program = Program.of(Schedule(self.natives.engine, items, given, fixed, wanted, guards, loose.tensors))
        except Declined:
            return None
        return Compiled(plan, program, bounds, events, self.arith, self.natives, flat)

    def _item(
        self, plan: Plan, number: int, bound: KernelBinding | None, infos: Mapping[str, TensorInfo], loose: bool
    ) -> Item:
        """The item of a step whose results are not known before the run."""
        from qrun.native.plan.items import PythonStep

        step, kernel = plan.steps[number], bound.kernel if bound else None
        if kernel is None and self.calls and not loose:
            from qrun.running.foreignsteps import foreign_item

            called = foreign_item(self.natives.engine, plan, number, infos, self.arith)
            if called is not None:
                return called
        if kernel is None or not kernel.stages:
            return PythonStep(moving(plan, step), tuple(name for name in step.node.outputs if name), loose)
        return _stages(step, kernel)


def _given(
    plan: Plan, items: Sequence[Item], infos: Mapping[str, TensorInfo], fed: Iterable[str]
) -> dict[Key, Operand]:
    """Shape and type of each value that enters the program as an array: fed, or made by a step outside the program."""
    from qrun.native.machine.operation import Operand
    from qrun.native.plan.items import PythonStep

    made = (
        name
        for step, item in zip(plan.steps, items, strict=True)
        for name in step.node.outputs
        if isinstance(item, PythonStep) and name in item.outputs
    )
    return {name: Operand(infos[name].shape, infos[name].dtype) for name in (*fed, *made) if name in infos}


def _stages(step: Step, kernel: NativeKernel) -> Item:
    """The kernel's stages, applied to the node's values. Values between two stages, and outputs without a name,
    get keys of their own."""
    from qrun.native.plan.items import Task, item_of

    node = step.node

    def key(value: int | str, names: Sequence[str]) -> str | tuple[int, int | str]:
        name = names[value] if isinstance(value, int) and value < len(names) else ""
        return name or (node.index, value)

    return item_of(
        [
            Task(s.operation, tuple([key(value, node.inputs) for value in s.inputs]), key(s.output, node.outputs))
            for s in kernel.stages
        ]
    )
