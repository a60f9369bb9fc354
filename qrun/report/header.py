"""The first line of a report: which model, what is in it, what went in; and the same for JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from qrun.ir import Array, Model
from qrun.ir.types import describe, type_name
from qrun.report.screen import Screen
from qrun.report.text import file_size, plural, width_of

QOPERATOR = (
    "QLinear",
    "QGemm",
    "QAttention",
    "MatMulInteger",
    "ConvInteger",
    "DynamicQuantizeMatMul",
    "QMoE",
    "MatMulNBits",
)
INPUTS_SHOWN = 3


def headline(
    screen: Screen,
    model: Model,
    feeds: Mapping[str, Array],
    sources: Mapping[str, str],
    symbols: Mapping[str, int],
    label: str = "",
) -> None:
    """``mnv2.onnx  opset 13, 101 nodes, 3.6 MB, QOperator int8   image float32 [1,3,224,224] from x.npy``."""
    facts = [f"opset {model.opsets['']}"] if "" in model.opsets else []
    facts += [plural(len(model.nodes), "node")]
    facts += [file_size(model.size)] if model.size else []
    facts += [quantization(model)] + ([label] if label else [])
    first = f"{screen.clean(model.label)}  {', '.join(facts)}"
    second = inputs_text(feeds, sources, symbols)
    if screen.width is None or width_of(first) + 3 + width_of(screen.clean(second)) <= screen.width:
        screen.line((screen.clean(model.label), "bold"), f"  {', '.join(facts)}", f"   {second}" if second else "")
        return
    screen.wrapped("", "  ", first)
    if second:
        screen.wrapped("", "  ", second)


def inputs_text(feeds: Mapping[str, Array], sources: Mapping[str, str], symbols: Mapping[str, int]) -> str:
    parts = []
    for name, array in list(feeds.items())[:INPUTS_SHOWN]:
        source = sources.get(name, "")
        origin = source if source.startswith("random") else f"from {source}" if source else ""
        parts.append(f"{name} {describe(array)} {origin}".rstrip())
    if len(feeds) > INPUTS_SHOWN:
        parts.append(f"and {len(feeds) - INPUTS_SHOWN} more inputs")
    bound = ", ".join(f"{symbol}={size}" for symbol, size in symbols.items())
    return "; ".join(parts) + (f" ({bound})" if bound and parts else "")


def quantization(model: Model) -> str:
    """``QOperator int8``, ``QDQ int4``, ``float``: the format, and the type of most quantized weights."""
    ops = {node.op_type for node in model.nodes}
    if any(op.startswith(QOPERATOR) for op in ops):
        form = "QOperator"
    elif "DequantizeLinear" in ops:
        form = "QDQ"
    else:
        return "not quantized"
    weights: dict[str, int] = {}
    for array in model.constants.values():
        name = type_name(array.dtype)
        if array.ndim and (array.dtype.itemsize == 1 and name != "bool"):
            weights[name] = weights.get(name, 0) + array.size
    return f"{form} {max(weights, key=lambda n: weights[n])}" if weights else form


def model_fields(model: Model) -> dict[str, Any]:
    return {
        "path": str(model.path) if model.path else None,
        "sha256": model.sha256,
        "ir_version": model.ir_version,
        "producer": model.producer,
        "opsets": {domain or "ai.onnx": version for domain, version in model.opsets.items()},
        "nodes": len(model.nodes),
    }


def environment(backend: str, label: str = "") -> dict[str, Any]:
    """Versions and threads that a result may depend on."""
    import platform
    from importlib.metadata import version

    import numpy as np

    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnx": version("onnx"),
        "machine": platform.machine(),
        "backend": backend,
        "runtime": label or "qrun",
        "cpus": cpus(),
        "threads": {name: os.environ[name] for name in names if name in os.environ},
    }


def cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
