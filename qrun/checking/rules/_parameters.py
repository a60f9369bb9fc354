"""Which operators the rules on scales, zero points and biases look at; `qrun.ops` knows their parameters."""

from __future__ import annotations

from collections.abc import Callable

from qrun.ir.schema import MS
from qrun.ops import Bias, Quantizer, Slot, bias, facts, input_name, quantized_operators, quantizers
from qrun.ops import Granularity as Form


def has_parameters(domain: str, op_type: str) -> bool:
    """Whether the operator has scales, zero points or a bias that belongs to a weight."""
    return (domain, op_type) == ("", "Conv") or facts(domain, op_type) is not None


def operators(*forms: Form) -> Callable[[], tuple[str, ...]]:
    """What lists the operators with scales or zero points (of these forms), as users write them."""

    def listed() -> tuple[str, ...]:
        return tuple(f"{domain}::{op_type}" if domain else op_type for domain, op_type in quantized_operators(*forms))

    return listed


__all__ = ["MS", "Bias", "Form", "Quantizer", "Slot", "bias", "has_parameters", "input_name", "operators", "quantizers"]
