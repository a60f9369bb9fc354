"""Steps without a native kernel, as items of a native program that calls their reference kernels on known shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qrun.ir import Array
from qrun.memory import SMALL, Budget
from qrun.ops import Arith
from qrun.running.events import TensorInfo
from qrun.running.plan import Plan, moving
from qrun.running.pythonsteps import BoundStep, ProgramRun
from qrun.running.times import UNTIMED

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine
    from qrun.native.plan.items import Chain, Task


def foreign_item(
    engine: Engine, plan: Plan, item: int, infos: Mapping[str, TensorInfo], arith: Arith
) -> Task | Chain | None:
    """The item that calls the reference kernel of step number `item`; None where the step must run outside the program:
    it has graphs inside, or values that are no arrays of numbers. infos: of all tensors.
    """
    from qrun.native.errors import Declined
    from qrun.native.kernels.foreign import Foreign
    from qrun.native.machine.operation import Operand
    from qrun.native.plan.items import Chain, Task

    step = plan.steps[item]
    read, made = moving(plan, step), [name for name in step.node.outputs if name]
    if step.bodies or not made or any(name not in infos for name in (*read, *made)):
        return None
    given, results = ([Operand(infos[name].shape, infos[name].dtype) for name in names] for names in (read, made))
    nbytes = sum(operand.nbytes for operand in (*given, *results))
    try:
        operation = Foreign(engine, given, results, _Called(plan, item, arith, nbytes))
    except Declined:
        return None
    whole = made[0] if len(made) == 1 else (step.node.index, "results")
    parts = [Task(part, (whole,), name) for part, name in zip(operation.outputs, made, strict=False)]
    task = Task(operation, read, whole)
    return Chain((task, *parts)) if parts else task


class _Called:
    """Calls the reference kernel of a step.

    The kernel may claim a limited amount of memory beyond its inputs and outputs. If it claims more, the run goes
    step by step instead, where the run's own budget decides.
    """

    def __init__(self, plan: Plan, item: int, arith: Arith, nbytes: int) -> None:
        self._step = BoundStep(plan, item, None, arith, None)
        self._run = ProgramRun(Budget(SMALL + 2 * nbytes), UNTIMED, None, "", {})

    def __call__(self, given: Sequence[Array]) -> Sequence[Array]:
        return self._step.run(given, self._run)
