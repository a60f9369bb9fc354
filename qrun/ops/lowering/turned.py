"""Kernels that need operands of their nodes transposed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, Stage, staged_kernel


def turned_kernel(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], turns: Mapping[int, Sequence[int]]
) -> NativeKernel:
    """The one-stage kernel, reading these operands; `turns` has the permutations of those to transpose first."""
    return preceded(site, kernel, operands, {place: turning(site, place, perm) for place, perm in turns.items()})


def preceded(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], before: Mapping[int, Stage]
) -> NativeKernel:
    """The one-stage kernel, reading these operands; `before` has, by place, the stages that make some of them."""
    names: dict[int, int | str] = {place: stage.output for place, stage in before.items()}
    last = replace(kernel.stages[0], inputs=tuple(names.get(place, place) for place in operands))
    return staged_kernel(site, [*before.values(), last], [last.operation], kernel.complete)


def between_turns(site: LoweringContext, kernel: NativeKernel, perm: Sequence[int]) -> NativeKernel:
    """The one-stage kernel on the first input transposed by `perm`, with its result transposed back."""
    from qrun.native.kernels.copy import transposed

    (stage,), back = kernel.stages, [perm.index(axis) for axis in range(len(perm))]
    made = stage.operation.result
    last = Stage(transposed(site.engine, made.shape, made.dtype, back), ("made",))
    stages = (turning(site, 0, perm), Stage(stage.operation, ("turned 0",), "made"), last)
    return staged_kernel(site, stages, [stage.operation], kernel.complete)


def turning(site: LoweringContext, place: int, perm: Sequence[int] = (1, 0)) -> Stage:
    """The stage that transposes the input of this number, which is a matrix unless `perm` is given."""
    from qrun.native.kernels.copy import transposed

    x = site.inputs[place]
    return Stage(transposed(site.engine, x.shape, x.dtype, perm), (place,), f"turned {place}")
