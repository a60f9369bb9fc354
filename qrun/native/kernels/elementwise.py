"""Plans elementwise functions of float32, integers and bool, and expressions of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from qrun.native.emit.expression import (
    ANGLES,
    CONSTANTS,
    DIVISIONS,
    KIND_OF,
    KINDS,
    MOVED,
    TYPES,
    UNROUNDED,
    FunctionStep,
    form_of,
    kind_of_result,
    operand_names,
)
from qrun.native.emit.spec import NARROW, OUTER
from qrun.native.errors import Declined
from qrun.native.kernels.copy import Loop, merge, outer_words
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, Order
from qrun.native.machine.operation import OperandStrides
from qrun.shapes import broadcast_shapes

_FLOAT = np.dtype(np.float32)
_TYPES_BY_KIND = {kind: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name, kind in KIND_OF.items()}
_CHUNK = 1 << 12
"""Elements of a row that one tile has."""
MOST = 8
"""The most operands of a function."""


class Expression(Operation):
    """y = the result of the last step. Steps take values by number: first the operands, then results of earlier steps.

    operands:  the inputs, which broadcast to y's shape, then y.
    kinds:     the kind of each input, as in emit/expression.py: one of TYPES, or any for where's last two.
    constants: the constants of all steps' functions, as float32.

    kind: the result's. row: the length of the innermost loop, for each order in which operands may lie.
    decides: whether a run is never undecided: no step divides integers or takes an angle.

    Raises Declined for operands that broadcast along too many axes.
    """

    def __init__(
        self,
        engine: Engine,
        operands: Sequence[Operand],
        kinds: str,
        steps: Sequence[FunctionStep],
        constants: Sequence[float] = (),
        order: Order | None = None,
    ) -> None:
        self.engine, self.operands, self.kinds, self.steps = engine, tuple(operands), kinds, tuple(steps)
        self.constants = tuple(constants)
        either = all(_lies_alike(operand.shape, self.result.shape) for operand in operands)
        self.order: Order = order or ("any" if either else "plain")
        seen = list(kinds)
        for step in steps:
            seen.append(kind_of_result(step.function, seen[step.values[-1]]))
        self.kind = seen[-1]
        self.decides = not any(step.function in DIVISIONS or step.function in ANGLES for step in steps)
        ways: tuple[Order, ...] = ("plain", "channels") if self.order == "any" else (self.order,)
        self.row = {way: self._loops(way, (0,) * len(operands))[-1].count for way in ways}

    def with_narrow_results(self, dtype: np.dtype[Any]) -> Expression:
        narrow = NARROW[dtype.name]
        steps = tuple(replace(s, narrow="" if s.function in UNROUNDED else narrow) for s in self.steps)
        made = self.again(steps=steps)
        if any(step.function == "clip" for step in self.steps):
            made.constants = tuple(np.array(self.constants, _FLOAT).astype(dtype).astype(_FLOAT).tolist())
        return made

    def with_layout(self, order: Order) -> Expression:
        made = self.engine, self.operands, self.kinds, self.steps, self.constants
        return Expression(*made, order)

    def axes(self, order: Order = "plain", strides: Sequence[int] = ()) -> list[Loop]:
        """A loop for each axis of the result."""
        shape = self.result.shape
        steps = []
        strides = strides or (0,) * len(self.operands)
        for operand, stride in zip(self.operands, strides, strict=True):
            own = OperandStrides.of(operand, order, stride).steps[: len(operand.shape)]
            wide = [0 if n == 1 else step for n, step in zip(operand.shape, own, strict=True)]
            steps.append([0] * (len(shape) - len(wide)) + wide)
        return [Loop(n, tuple(s[axis] for s in steps)) for axis, n in enumerate(shape)]

    def _loops(self, order: Order, strides: Sequence[int]) -> list[Loop]:
        """The loops, outermost first, at most four; the last one walks elements that are neighbours in the result."""
        loops = merge(self.axes(order, strides))
        own = tuple(operand.dtype.itemsize for operand in self.operands)
        if not loops or any(step not in (0, size) for step, size in zip(loops[-1].steps, own, strict=True)):
            loops.append(Loop(1, own))  # one channel of an array with more: no elements are neighbours
        if len(loops) > OUTER + 1:
            raise Declined("operands that broadcast along too many axes")
        return loops

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        loops = self._loops(self.order, strides)
        *outer, row = loops
        sources = "".join(kind if step else kind.upper() for kind, step in zip(self.kinds, row.steps[:-1], strict=True))
        sizes = [*(KINDS[kind][1] for kind in self.kinds), self.result.dtype.itemsize]
        assert all(step in (0, own) for step, own in zip(row.steps, sizes, strict=True))
        engine = self.engine
        rows = engine.isa.lanes if row.count >= engine.isa.lanes else 1
        form = form_of(self.steps)
        out = self.result.dtype.name
        spec = KernelSpec("elementwise", engine.isa.name, rows, 1, 1, form, out, False, operands=sources)
        chunk = row.count if engine.threads == 1 else min(_CHUNK, row.count)
        names = operand_names(len(sources))
        words = outer_words(names, outer, (-(-row.count // chunk), chunk), max(sizes) * chunk, engine.threads)
        steps = [words.get(f"{name}_{axis}", 0) for name in names for axis in range(OUTER)]
        arrays: dict[str, Array] = {
            "strides*": np.array(steps, np.int64),
            "constants*": np.array([*self.constants, 0], _FLOAT),
        }
        words |= {"columns": row.count, "last": row.count - rows}
        extents = tuple(own + sum((loop.count - 1) * loop.steps[n] for loop in loops) for n, own in enumerate(sizes))
        given = spec, [f"{name}*" for name in names], words, extents, arrays
        return (engine.kernels.call(*given, decides=self.decides),)


class Elementwise(Expression):
    """y = function(x...) for operands that broadcast to y's shape, at most MOST of them.

    function:  a function of emit/expression.py, which takes the kinds in TYPES, or float32 if it is not there. The
               result is bool for functions of LOGICAL, codes for QUANTIZED, float32 for ``cast`` and ``dequantize``,
               the target type for CONVERSIONS, else the last operand's type.
    constants: its p and q, or all constants that it has, as float32.

    Raises Declined for more operands, for operands that broadcast along too many axes, and for types that the function
    does not take."""

    def __init__(
        self,
        engine: Engine,
        function: str,
        operands: Sequence[Operand],
        constants: Sequence[float] = (),
    ) -> None:
        if len(operands) > MOST:
            raise Declined(f"more than {MOST} inputs")
        shape = broadcast_shapes(*(operand.shape for operand in operands))
        kinds = _kinds(function, [operand.dtype for operand in operands])
        kind = kind_of_result(function, kinds[-1])
        made = operands[-1].dtype if kind == kinds[-1] else _TYPES_BY_KIND[kind]
        steps = [FunctionStep(function, tuple(range(len(operands))))]
        own = constants[: CONSTANTS.get(function, 0)]
        super().__init__(engine, (*operands, Operand(shape, made)), kinds, steps, own)
        self.function = function

    @property
    def between(self) -> tuple[float, float, float] | None:  # type: ignore[override]
        """As in `Operation`; None if a limit is NaN."""
        if self.result.dtype != _FLOAT or np.isnan(self.constants).any():
            return None
        if self.function == "relu":
            return 0.0, np.inf, 0.0
        return (*np.array(self.constants, _FLOAT).tolist(), -0.0) if self.function == "clip" else None

    @property
    def limits(self) -> tuple[int, int]:
        """The bits of its two constants."""
        p, q = np.array(self.constants, _FLOAT).view(np.int32).tolist()
        return p, q


def _kinds(function: str, types: Sequence[np.dtype[Any]]) -> str:
    """The kinds of the operands. Raises Declined for types that the function does not take."""
    if function == "where":
        if types[0] != np.bool_ or types[1] != types[2] or types[1].hasobject or types[1].itemsize not in MOVED:
            raise Declined(f"no native choice of {types[1].name}")
        return "t" + 2 * ("f" if types[1] == _FLOAT else MOVED[types[1].itemsize])
    kinds = "".join(KIND_OF.get(dtype.name, "?") for dtype in types)
    if len(set(kinds)) > 1 or kinds[0] not in TYPES.get(function, "f"):
        raise Declined(f"no native kernel for {types[0].name}")
    return kinds


def _lies_alike(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an operand may follow the result's order, channels-last or plain: it has as many axes, or at most one
    axis that is not 1."""
    return len(shape) == len(whole) or sum(n != 1 for n in shape) <= 1
