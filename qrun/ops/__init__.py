"""The operator registry: modules of this package declare operators with @op,
and are imported when one of these is wanted.

A declaration is the schema, the reference kernel, the cost and perhaps the lowering to a native kernel of one operator.
May be imported by `passes` and everything above it. Knows no graph: a kernel sees the values of one node.
"""

from qrun.ops._context import Arith, Body, Observation
from qrun.ops._op import REGISTRY, Context, OpDef, find, op
from qrun.ops._promises import MASK, Granularity, Whole
from qrun.ops._quantized import (
    Bias,
    Facts,
    Quantizer,
    Slot,
    bias,
    channel_axis,
    expansion,
    facts,
    operands,
    parameter_axis,
    quantized_operators,
    quantizers,
    real_operator,
    unsigned,
    written,
)

__all__ = ["MASK", "REGISTRY", "Arith", "Body", "Context", "Observation", "OpDef", "Whole", "find", "near_operators"]
__all__ += ["op"]
__all__ += [
    "Bias",
    "Facts",
    "Granularity",
    "Quantizer",
    "Slot",
    "bias",
    "channel_axis",
    "expansion",
    "facts",
    "operands",
    "parameter_axis",
    "quantized_operators",
    "quantizers",
    "real_operator",
    "unsigned",
    "written",
]


def near_operators(op_type: str, cutoff: float = 0.7) -> list[str]:
    """Up to three registered operators with names like this one, whatever its case and domain."""
    from difflib import get_close_matches

    names = {known.lower(): known for _, known in REGISTRY}
    return [names[name] for name in get_close_matches(op_type.lower(), names, 3, cutoff)]
