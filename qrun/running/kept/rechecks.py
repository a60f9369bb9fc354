"""Rechecks for a kept program: they compute the results that its kernels leave undecided.
Each is made when the first such result turns up, by lowering its step again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.memory import Budget
from qrun.native.machine.call import Rechecker
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Ints
from qrun.ops import Arith
from qrun.running.compiled import Compiled
from qrun.running.dispatch import KernelBinding, NativeKernels
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.kept.packed import Unstorable
from qrun.running.plan import Plan


class Lowered:
    """The kernels of single steps, made again as in the process that made the program.

    derived: names of the tensors that the steps read and that follow from shapes; values: has the small ones of these.
    """

    def __init__(
        self,
        plan: Plan,
        events: Sequence[NodeEvent],
        engine: Engine,
        arith: Arith,
        derived: frozenset[str],
        values: Mapping[Any, Array],
    ) -> None:
        self._plan, self._events, self._engine, self._arith = plan, events, engine, arith
        self._derived, self._values = derived, values
        self._made: dict[int, KernelBinding] = {}
        self._natives: NativeKernels | None = None
        self._lock = threading.Lock()

    def __getitem__(self, item: int) -> KernelBinding:
        with self._lock:
            self._natives = self._natives or NativeKernels(
                self._plan.model, self._engine, self._arith, derived=self._derived
            )
            if item not in self._made:
                step = self._plan.steps[item]
                infos = {info.name: info for info in self._events[item].inputs}
                args = [self._array(infos[name]) if name else None for name in step.node.inputs]
                self._made[item] = self._natives.bind(step, args, Budget())
            return self._made[item]

    def _array(self, info: TensorInfo) -> Array:
        """A constant, or an array of this type and shape that takes no memory."""
        found = self._plan.model.constant(info.name)
        if found is None and info.name in self._derived:
            found = self._values.get(info.name)
        return np.broadcast_to(np.zeros((), info.dtype), info.shape) if found is None else found


class LaterRecheck(Rechecker):
    """Computes the results that a kernel leaves undecided; looked up when the first of them turns up."""

    def __init__(self, lowered: Lowered, item: int, stage: int, call: int, number: int) -> None:
        super().__init__()
        self._lowered, self._at = lowered, (item, stage, call, number)
        self._found: Rechecker | None = None

    def make(self, entries: Ints, x: int, y: int) -> None:
        if self._found is None:
            item, stage, call, number = self._at
            kernel = self._lowered[item].kernel
            assert kernel is not None
            self._found = kernel.stages[stage].operation.tight[call].rechecks[number]
        self._found.make(entries, x, y)


def makers(compiled: Compiled) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """The id of each recheck of the program's kernels, with where to find it again: step, stage, call and number."""
    for item, bound in enumerate(compiled.bounds):
        if bound is None or bound.kernel is None:
            continue
        for stage, made in enumerate(bound.kernel.stages):
            for call, section in enumerate(
                vars(made.operation).get("tight", ())
            ):  # others have no kernels of their own
                for number, recheck in enumerate(section.rechecks):
                    yield id(recheck), (item, stage, call, number)


def recipe(makers: Mapping[int, tuple[int, int, int, int]], recheck: Rechecker) -> tuple[int, int, int, int]:
    if id(recheck) not in makers:
        raise Unstorable("results that only this process can make")
    return makers[id(recheck)]
