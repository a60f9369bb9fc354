"""Kernels of nodes whose operands they need transposed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, Stage, staged_kernel


def turned_kernel(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], turns: Mapping[int, Sequence[int]]
) -> NativeKernel:
    """The kernel, of one stage, for operands of which those at the places `turns` are transposed so first."""
    return preceded(site, kernel, operands, {place: turning(site, place, perm) for place, perm in turns.items()})


def preceded(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], before: Mapping[int, Stage]
) -> NativeKernel:
    """The kernel, of one stage, for operands of which some are what a stage makes of them, by place."""
    names: dict[int, int | str] = {place: stage.output for place, stage in before.items()}
    last = replace(kernel.stages[0], inputs=tuple(names.get(place, place) for place in operands))
    return staged_kernel(site, [*before.values(), last], [last.operation], kernel.complete)


def between_turns(site: LoweringContext, kernel: NativeKernel, perm: Sequence[int]) -> NativeKernel:
    """The kernel, of one stage and of the first input transposed so, with its result transposed back."""
    from qrun.native.kernels.copy import transposed

    (stage,), back = kernel.stages, [perm.index(axis) for axis in range(len(perm))]
    made = stage.operation.result
    last = Stage(transposed(site.engine, made.shape, made.dtype, back), ("made",))
    stages = (turning(site, 0, perm), Stage(stage.operation, ("turned 0",), "made"), last)
    return staged_kernel(site, stages, [stage.operation], kernel.complete)


def turning(site: LoweringContext, place: int, perm: Sequence[int] = (1, 0)) -> Stage:
    """What transposes the input of this number, a matrix unless `perm` says more."""
    from qrun.native.kernels.copy import transposed

    x = site.inputs[place]
    return Stage(transposed(site.engine, x.shape, x.dtype, perm), (place,), f"turned {place}")
