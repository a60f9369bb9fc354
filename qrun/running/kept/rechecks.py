"""Rechecks for a kept program: they compute the results that its kernels leave undecided.
Each is made when the first such result turns up, by lowering its step again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
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
from qrun.running.kept.packed import Bundle, Unstorable, packed_mapping, unpacked_mapping
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

    def __init__(
        self, lowered: Lowered, arrays: Sequence[Array], item: int, stage: int, call: int, number: int, moved: Any
    ) -> None:
        """moved: where the program has the operands of products, if not where the step's own kernel has them."""
        super().__init__()
        self._lowered, self._arrays, self._at, self._moved = lowered, arrays, (item, stage, call, number), moved
        self._found: Rechecker | None = None

    def make(self, entries: Ints, x: int, y: int) -> None:
        if self._found is None:
            item, stage, call, number = self._at
            kernel = self._lowered[item].kernel
            assert kernel is not None
            self._found = kernel.stages[stage].operation.tight[call].rechecks[number]
            if self._moved is not None:
                self._found = _moved(self._found, self._moved, self._arrays)
        self._found.make(entries, x, y)


def makers(compiled: Compiled) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """The id of each recheck of the program's kernels, and of what makes its elements, with where to find it again:
    step, stage, call and number."""
    for item, bound in enumerate(compiled.bounds):
        if bound is None or bound.kernel is None:
            continue
        for stage, made in enumerate(bound.kernel.stages):
            for call, section in enumerate(
                vars(made.operation).get("tight", ())
            ):  # others have no kernels of their own
                for number, recheck in enumerate(section.rechecks):
                    yield id(recheck), (item, stage, call, number)
                    yield id(getattr(recheck, "exact", recheck)), (item, stage, call, number)


def recipe(makers: Mapping[int, tuple[int, int, int, int]], recheck: Rechecker, bundle: Bundle) -> tuple[Any, ...]:
    if id(recheck) in makers:
        return *makers[id(recheck)], None
    from qrun.native.kernels.floats import ElementRecheck

    if type(recheck) is not ElementRecheck or id(recheck.exact) not in makers:
        raise Unstorable("results that only this process can make")
    stack = recheck.stack
    left = {f.name: getattr(stack.left, f.name) for f in fields(stack.left)}
    whole = {f.name: getattr(stack, f.name) for f in fields(stack) if f.name != "left"}
    known = {name: value for name, value in left.items() if value is not None}
    return *makers[id(recheck.exact)], (packed_mapping(known, bundle), packed_mapping(whole, bundle))


def _moved(found: Rechecker, packed: Any, arrays: Sequence[Array]) -> Rechecker:
    """A recheck that computes the same elements as `found`, from operands at other places."""
    from qrun.native.kernels.floats import ElementRecheck, FloatStack, LeftRows

    assert isinstance(found, ElementRecheck)
    left, whole = (unpacked_mapping(values, arrays) for values in packed)
    return ElementRecheck(FloatStack(left=LeftRows(**left), **whole), found.exact)
