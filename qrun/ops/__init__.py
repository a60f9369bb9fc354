"""The operator registry. Modules of this package declare operators with @op and are imported when one is needed.

A declaration has the schema, the reference kernel, the cost and perhaps the lowering to a native kernel of one
operator. May be imported by `passes` and everything above it. It knows no graph: a kernel sees the values of one node.
"""

from qrun.errors import close_matches
from qrun.ir import Model
from qrun.ir.schema import standard_operators
from qrun.ops._context import Arith, Body, Observation, check_arith, integer_engine, known_arithmetics
from qrun.ops._op import CUSTOM, REGISTRY, RUNNER, Context, OpDef, find, op, runs
from qrun.ops._quantized import (
    Bias,
    Facts,
    Quantizer,
    Slot,
    bias,
    channel_axis,
    expansion,
    facts,
    op_names,
    operands,
    parameter_axis,
    quantized_operators,
    quantizers,
    real_operator,
    to_unsigned,
)
from qrun.ops._signature import MASK, Granularity, Whole

__all__ = ["MASK", "REGISTRY", "RUNNER", "Arith", "Body", "Context", "Observation", "OpDef", "Whole", "find"]
__all__ += ["check_arith", "integer_engine", "known_arithmetics", "near_operators", "op", "operators"]
__all__ += ["CUSTOM", "has_custom_operators"]
__all__ += ["Bias", "Facts", "Granularity", "Quantizer", "Slot", "bias", "channel_axis", "expansion", "facts"]
__all__ += [
    "op_names",
    "operands",
    "parameter_axis",
    "quantized_operators",
    "quantizers",
    "real_operator",
    "to_unsigned",
]


def operators() -> list[tuple[str, str]]:
    """Domain and name of all operators that run, ai.onnx first."""
    return sorted({*REGISTRY, *(key for key in standard_operators() if runs(*key))})


def near_operators(op_type: str, cutoff: float = 0.7) -> list[str]:
    """Up to three operators with similar names, whatever their case and domain."""
    names = {known.lower(): known for _, known in operators()}
    return [names[name] for name in close_matches(op_type.lower(), names, 3, cutoff)]


def has_custom_operators(model: Model) -> bool:
    """Whether a node of the model, also of the graphs inside it, runs a custom operator."""
    kinds = {(node.domain, node.op_type, node.version) for node, _ in model.everywhere()}
    found = (find(*kind) for kind in kinds)
    return any(each is not None and each.runner == CUSTOM for each in found)
