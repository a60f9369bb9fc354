"""Which operators the rules on scales, zero points and biases look at; `qrun.ops` knows their parameters."""

from __future__ import annotations

from qrun.ir.schema import MS
from qrun.ops import Bias, Quantizer, Slot, bias, input_name, quantized_operators, quantizers
from qrun.ops import Granularity as Form

TABLE = (*quantized_operators(), ("", "Conv"))
"""Domain and type of every operator with scales, zero points or a bias that belongs to a weight."""


def operators(*forms: Form) -> tuple[str, ...]:
    """Operators with scales or zero points (of these forms), as users write them."""
    return tuple(f"{domain}::{op_type}" if domain else op_type for domain, op_type in quantized_operators(*forms))


__all__ = ["MS", "TABLE", "Bias", "Form", "Quantizer", "Slot", "bias", "input_name", "operators", "quantizers"]
