"""What the default session of onnxruntime makes of a model with DequantizeLinear and QuantizeLinear where that changes
its results: the same model, rewritten. Measured with onnxruntime 1.20.1, 1.22.1, 1.24.4, 1.31.1 and 1.32.0."""

from __future__ import annotations

from collections.abc import Set

from qrun.comparing.rewrites._rewrite import (
    Rewrite,
    StoredParameters,
    is_quantized,
    only_reader,
    parameters,
)
from qrun.comparing.rewrites.axes import axis_rewrites, misread_axes
from qrun.comparing.rewrites.biases import bias_rewrites
from qrun.comparing.rewrites.moves import int32_rewrites, moved_int32
from qrun.comparing.rewrites.pairs import pair_rewrites, requantized
from qrun.comparing.rewrites.slices import slice_rewrites
from qrun.comparing.rewrites.unsigned import with_unsigned_activations
from qrun.comparing.rewrites.weightonly import sum_bound, weight_only_rewrites
from qrun.ir import Model

__all__ = [
    "Rewrite",
    "StoredParameters",
    "axis_rewrites",
    "bias_rewrites",
    "int32_rewrites",
    "is_quantized",
    "misread_axes",
    "moved_int32",
    "only_reader",
    "pair_rewrites",
    "parameters",
    "requantized",
    "rewritten",
    "slice_rewrites",
    "sum_bound",
    "weight_only_rewrites",
    "with_unsigned_activations",
]


KINDS = (bias_rewrites, axis_rewrites, weight_only_rewrites, pair_rewrites, int32_rewrites, slice_rewrites)


def rewritten(model: Model, indices: Set[int]) -> tuple[Model, tuple[str, ...]]:
    """The model with every rewrite of nodes with these indices, and the clauses that say what they are."""
    texts: list[str] = []
    for kind in KINDS:
        while (found := next((r for r in kind(model) if _touches(model, r, indices)), None)) is not None:
            model = found.apply(model)
            texts.append(found.text)
    return model, tuple(texts)


def _touches(model: Model, rewrite: Rewrite, indices: Set[int]) -> bool:
    return any(model.producers[name].index in indices for name in rewrite.nodes)
