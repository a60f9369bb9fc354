"""The operator registry: modules of this package declare operators with @op, and are imported when one of these is wanted.

A declaration is the schema, the reference kernel, the cost and perhaps the lowering to a native kernel of one operator. May
be imported by `passes` and everything above it. Knows no graph: a kernel sees the values of one node.
"""

from qrun.ops._context import Arith, Body, Observation
from qrun.ops._op import REGISTRY, Context, Granularity, OpDef, find, near_operators, op
from qrun.ops._quantized import (
    Bias,
    Facts,
    Quantizer,
    Slot,
    bias,
    expansion,
    facts,
    input_name,
    operands,
    parameter_axis,
    quantized_operators,
    quantizers,
    real_operator,
)

__all__ = ["REGISTRY", "Arith", "Body", "Context", "Observation", "OpDef", "find", "near_operators", "op"]
__all__ += [
    "Bias",
    "Facts",
    "Granularity",
    "Quantizer",
    "Slot",
    "bias",
    "expansion",
    "facts",
    "input_name",
    "operands",
    "parameter_axis",
    "quantized_operators",
    "quantizers",
    "real_operator",
]
