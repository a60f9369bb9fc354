"""Native lowerings of float16 and bfloat16: they use the float32 lowerings on the same numbers, and round results to
the type.

A node's kernel converts its operands to float32, computes in float32, and converts its results back, unless the
operator declares them as float32. Between two such nodes of a program both conversions are dropped
(native/plan/chains.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from qrun.errors import QrunError
from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS
from qrun.ops._context import Context
from qrun.ops._op import Array
from qrun.ops.lowering.kernel import (
    FLOAT,
    Inputs,
    Lowering,
    LoweringContext,
    NativeKernel,
    Stage,
    decline_error,
    staged_kernel,
)

if TYPE_CHECKING:
    from qrun.native.machine.operation import Operation

NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def narrow_type(inputs: Sequence[Array | None]) -> np.dtype[Any] | None:
    """The first type among the inputs that kernels keep as float32 (NARROW); None if there is none."""
    return next((x.dtype for x in inputs if x is not None and x.dtype in NARROW), None)


def narrow_kernel(lowering: Lowering, site: LoweringContext, dtype: np.dtype[Any]) -> NativeKernel:
    """The kernel of a node that has inputs of this type. Raises Declined, and whatever the lowering raises.

    Results that the operator declares as float32 stay float32. If the float32 lowering does not apply, the lowering
    gets the node unchanged: it declines with a reason, or has a kernel.
    """
    given = {x.dtype for x in site.inputs if x is not None}
    results = set(site.results).intersection((*NARROW, FLOAT)) or {dtype}
    if not given.isdisjoint({*NARROW, FLOAT} - {dtype}) or len(results) > 1:
        return lowering(site)
    rounds = FLOAT not in results
    ctx = replace(site.ctx, claims=[], observations=[])
    try:
        kernel = lowering(_float32_site(site, ctx, dtype, rounds))
    except QrunError:
        return lowering(site)
    operations = [stage.operation.with_narrow_results(dtype) if rounds else stage.operation for stage in kernel.stages]
    if not operations or kernel.plain is not None or any(operation is None for operation in operations):
        return lowering(site)
    made = [replace(s, operation=o) for s, o in zip(kernel.stages, operations, strict=True) if o is not None]
    site.ctx.observations.extend(ctx.observations)
    if site.ctx.claims is not None:
        site.ctx.claims.extend(ctx.claims or ())
    shown = [stage.operation for stage in made] if kernel.shown else []
    return staged_kernel(site, _with_conversions(site, dtype, made, rounds), shown, kernel.complete)


def narrowing_kernel(site: LoweringContext, dtype: np.dtype[Any]) -> NativeKernel:
    """The kernel of a Cast to float16 or bfloat16. Raises Declined for types that it does not convert."""
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    x = site.inputs[0]
    exact = (FLOAT, *NARROW, *map(np.dtype, (np.int16, np.uint16, np.int8, np.uint8, np.bool_)))
    if x.dtype not in exact and not (dtype == np.float16 and x.dtype in (np.int32, np.int64)):
        raise decline_error(f"{type_name(x.dtype)} to {type_name(dtype)}")
    wide = Elementwise(site.engine, "cast", [Operand(x.shape, x.dtype)])
    packed = Elementwise(site.engine, f"to_{_SHORT[dtype.name]}", [wide.result])
    stages = [Stage(wide.with_narrow_results(dtype), (0,), "rounded"), Stage(packed, ("rounded",))]
    return staged_kernel(site, stages, [packed], ALWAYS)


def _float32_site(site: LoweringContext, ctx: Context, dtype: np.dtype[Any], rounds: bool) -> LoweringContext:
    """The node as a float32 node: constants have the same numbers, and inputs of the run are zeros.
    rounds: its results are rounded to the type."""

    def wide(index: int, x: Any) -> Any:
        if x is None or x.dtype != dtype:
            return x
        if not site.fixed[index]:
            return np.broadcast_to(np.zeros((), FLOAT), x.shape)
        return site.memo.once(("wide", index), lambda: x.astype(FLOAT))

    def short(x: Any) -> Any:
        return x.astype(dtype) if x is not None and x.dtype == FLOAT else x

    def reference(inputs: Inputs, ctx: Context) -> Any:
        made = site.reference([short(x) for x in inputs], ctx)
        return made.astype(FLOAT) if isinstance(made, np.ndarray) and made.dtype == dtype else made

    inputs = tuple(wide(index, x) for index, x in enumerate(site.inputs))
    return replace(site, inputs=inputs, ctx=ctx, reference=reference, narrow=dtype if rounds else None)


def _with_conversions(
    site: LoweringContext, dtype: np.dtype[Any], stages: Sequence[Stage], rounds: bool
) -> list[Stage]:
    """The stages, preceded by stages that convert their inputs to float32, and followed, if `rounds`, by stages that
    convert their outputs back."""
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    def turned(name: str, operand: Operand) -> Operation:
        return Elementwise(site.engine, name, [operand])

    read = {index for stage in stages for index in stage.inputs if isinstance(index, int)}
    names: dict[int | str, int | str] = {
        index: f"wide {index}" for index in sorted(read) if getattr(site.inputs[index], "dtype", None) == dtype
    }
    before = [
        Stage(turned("cast", Operand(site.inputs[index].shape, dtype)), (index,), name)
        for index, name in names.items()
        if isinstance(index, int)
    ]
    made, after = [], []
    for stage in stages:
        output, result = stage.output, stage.operation.result
        if rounds and isinstance(output, int) and result.dtype == FLOAT:
            after.append(
                Stage(turned(f"to_{_SHORT[dtype.name]}", Operand(result.shape, FLOAT)), (f"made {output}",), output)
            )
            output = f"made {output}"
        made.append(replace(stage, inputs=tuple(names.get(index, index) for index in stage.inputs), output=output))
    return [*before, *made, *after]


_SHORT = {"float16": "f16", "bfloat16": "bf16"}
