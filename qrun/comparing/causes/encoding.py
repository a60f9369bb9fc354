"""Causes in how numbers are read from bits and written to them: signs of codes, places in a byte, biases of exponents,
subnormal numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.ir import Array
from qrun.ir.types import type_name

_SPEC = "onnx/onnx.proto, TensorProto.DataType; ONNX, technical details: float8, int4, float4"
_SIGNS = {"uint8": np.int8, "int8": np.uint8, "uint16": np.int16, "int16": np.uint16}
_SIGNS |= {"uint4": ml_dtypes.int4, "int4": ml_dtypes.uint4}
_OTHERS = {
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fn,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2": ml_dtypes.float8_e5m2fnuz,
}
_IN_A_BYTE = {"uint4": 2, "int4": 2, "float4e2m1": 2, "uint2": 4, "int2": 4}


@cause("wrong-encoding", rank=35, source=_SPEC)
def wrong_encoding(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime reads or writes codes in another encoding: signed codes as unsigned or the reverse, the codes of a
    byte in the other order, or one kind of float8 as another.

    To confirm: Feed codes that both encodings read alike, such as 0 to 127 for int8. The difference disappears.

    To do: Use a type that the runtime reads correctly. Report the bug to the runtime's maintainers.
    """
    if not s.alone or s.definition is None or s.theirs is None or s.theirs.shape != s.mine.shape:
        return
    codes = {p.name: a for p, a in zip(s.definition.inputs, s.args, strict=False) if a is not None and a.size}
    yield from _signs(s, codes)
    first = next(iter(codes), None)
    if first is not None:
        turned = _turned(codes[first])
        if turned is not None:
            made = s.evaluate(inputs={first: turned})
            if made is not None:
                yield Hypothesis(made, f"reads the codes in a byte of {first} in the opposite order")
        yield from _other_float8(s, codes[first])
    written = _turned(s.mine)
    if written is not None:
        yield Hypothesis(written, "writes the codes in a byte in the opposite order")


def _signs(s: Suspect, codes: Mapping[str, Array]) -> Iterator[Hypothesis]:
    """Hypotheses that codes of inputs have the other sign: all, or those of one operand with its zero point."""
    found = {name: a for name, a in codes.items() if a.dtype.name in _SIGNS and not name.lower().startswith(("y", "c"))}
    groups = {"the inputs": found}
    groups |= {name: {k: a for k, a in found.items() if k.startswith(name)} for name in found if len(name) == 1}
    for told, group in groups.items():
        changed = {name: _with_other_sign(a) for name, a in group.items()}
        made = s.evaluate(inputs=changed) if changed else None
        if made is not None:
            kind = type_name(next(iter(group.values())).dtype)
            yield Hypothesis(made, f"reads the codes of {told} ({kind}) with the other signedness")
    zeros = {name: np.zeros_like(a) for name, a in found.items() if name.endswith("_zero_point") and a.any()}
    unsigned = {name: _with_other_sign(a) for name, a in {**found, **zeros}.items() if a.dtype.name.startswith("u")}
    if s.is_op("QLinearMatMul") and zeros and unsigned:
        made = s.evaluate(inputs={**zeros, **unsigned})
        if made is not None:
            text = f"reads the codes of {' and '.join(name for name in unsigned if len(name) == 1)} as signed"
            yield Hypothesis(made, f"{text} and ignores {' and '.join(zeros)}")


def _with_other_sign(array: Array) -> Array:
    """The same bits as unsigned integers if they are signed, else as signed ones."""
    other = np.dtype(_SIGNS[array.dtype.name])
    if array.dtype.kind in "iu":
        return array.view(other)
    wide, unsigned = array.astype(np.int16), array.dtype.name.startswith("u")
    return (np.where(wide > 7, wide - 16, wide) if unsigned else wide & 15).astype(other)


def _turned(array: Array) -> Array | None:
    """Codes of types below 8 bits with those of a byte in the opposite order; None for other types and single codes."""
    many = _IN_A_BYTE.get(type_name(array.dtype), 1)
    if many == 1 or array.size < 2:
        return None
    order = np.minimum(np.arange(array.size) ^ (many - 1), array.size - 1)
    return np.asarray(array.reshape(-1)[order].reshape(array.shape))


def _other_float8(s: Suspect, x: Array) -> Iterator[Hypothesis]:
    """The hypothesis that float8 with one bias of the exponent is read with that of its relative."""
    other = _OTHERS.get(x.dtype.name)
    if other is None or s.mine.dtype.kind not in "fV":
        return
    assert s.definition is not None
    name = s.definition.inputs[0].name
    made = s.evaluate(inputs={name: x.view(other)})
    told = type_name(np.dtype(other))
    if made is not None:
        yield Hypothesis(made, f"reads {type_name(x.dtype)} as {told}")
    factor = 2.0 if x.dtype.name.endswith("fnuz") else 0.5
    text = f"reads {type_name(x.dtype)} with the exponent bias of {told}"
    yield Hypothesis((s.mine.astype(np.float32) * np.float32(factor)).astype(s.mine.dtype), text)


@cause("flush-to-zero", rank=21, source="IEEE 754, subnormal numbers; ONNX, technical details: float8, float4")
def flush_to_zero(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime takes subnormal numbers for 0: in the result, in the input, or as a scale.

    To confirm: Use numbers and scales above the smallest normal number of the type (1.18e-38 for float32). The
    difference disappears.

    To do: Choose such scales. If the runtime sets the CPU's flush-to-zero mode, switch that off.
    """
    if not s.alone or s.definition is None or s.theirs is None or s.theirs.shape != s.mine.shape:
        return
    small = _is_subnormal(s.mine)
    if small.any():
        made = np.where(small, s.mine.astype(np.float32) * np.float32(0), s.mine.astype(np.float32))
        yield Hypothesis(made.astype(s.mine.dtype), "gives 0 for subnormal results")
    inputs = {p.name: a for p, a in zip(s.definition.inputs, s.args, strict=False) if a is not None}
    flushed = {name: np.where(_is_subnormal(a), a * 0, a) for name, a in inputs.items() if _is_subnormal(a).any()}
    scales = {name: a for name, a in flushed.items() if "scale" in name.lower()}
    for told, changed in (("scales", scales), ("inputs", flushed)):
        if changed and (told == "scales" or len(changed) > len(scales)):
            made_or_none = s.evaluate(inputs={name: a.astype(inputs[name].dtype) for name, a in changed.items()})
            if made_or_none is not None:
                yield Hypothesis(made_or_none, f"takes subnormal {told} for 0")


def _is_subnormal(array: Array) -> Array:
    """Which elements are floats below the smallest normal number of their type, and not 0?"""
    try:
        info: Any = ml_dtypes.finfo
        least = float(info(array.dtype).smallest_normal)
    except (ValueError, TypeError):
        return np.zeros(array.shape, bool)
    size = np.abs(array.astype(np.float64))
    return np.asarray((size < least) & (size > 0))
