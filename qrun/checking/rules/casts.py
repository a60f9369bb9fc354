"""Conversions of numbers that their new type cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qrun.checking.rules._observed import seen
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model
from qrun.ir.types import type_name

if TYPE_CHECKING:
    from qrun.running.session import RunResult


@rule(
    "QR415",
    "warning",
    spec="Cast",
    fix="put a Clip to the limits of the type before the cast; QuantizeLinear saturates by itself",
    applies=("Cast", "CastLike"),
)
def undefined_cast(model: Model, result: RunResult) -> Iterator[Finding]:
    """A floating-point number outside the range of an integer type, or NaN, was cast to it.

    Why is this bad?
        The specification calls the result undefined. Runtimes on x86 mostly keep the low bits (300 becomes 44 in int8),
        those on ARM mostly saturate (127), so the model computes something else on another processor.

    Bad
        main () => (int8[2] y)
        <float[2] x = {1.0, 300.0}>
        {
            y = Cast <to = 3> (x)
        }

    Good
        main () => (int8[2] y)
        <float[2] x = {1.0, 100.0}>
        {
            y = Cast <to = 3> (x)
        }
    """
    kinds = {event.index: event.outputs[0].dtype for event in result.events if event.outputs}
    for s in seen(model, result, "undefined-cast"):
        made = type_name(kinds[s.node.index])
        yield Finding(
            f"{s.detail} does not fit {made}: {s.share}",
            **s.where,
            expected=f"numbers that {made} holds",
            got=f"{s.detail}; {s.share}",
            why=f"{s.node.op}-{s.node.version}: the result is undefined for what is out of range.",
        )
