"""Writes layers as C: a header for each, the reference, and a main program that compares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

import numpy as np

from qrun.exporting.layer import NHWC, Layer, LayerTensor, Rescale
from qrun.ir import Array

_LINE = 16
"""Numbers in a line."""
_AT_ONCE = 4096 * _LINE
"""Numbers whose rows of characters are in memory at the same time."""
_LONGEST = 200
"""Characters of a name in a program; manifest.json has the rest."""
_RULES = {"shift": "LAYER_SHIFT", "high half": "LAYER_HIGH_HALF", "ratio": "LAYER_RATIO"}
_MAIN = """\
/* Recomputes each layer from its own input vector and compares sums and codes with the vectors. */
#include <stdio.h>

#include "qrun_reference.h"
@includes@

static const qrun_layer *const layers[] = {
@layers@
};

int main(void) {
    size_t at;
    int failed = 0;
    for (at = 0; at < sizeof layers / sizeof *layers; at++) {
        qrun_difference first;
        if (qrun_check(layers[at], &first)) {
            printf("PASS %s\\n", layers[at]->name);
            continue;
        }
        failed = 1;
        printf("FAIL %s: sample %d, %s %lu is %ld, the vector has %ld\\n", layers[at]->name, first.sample,
               first.sum ? "accumulator" : "output", (unsigned long)first.place, (long)first.computed,
               (long)first.expected);
    }
    return failed;
}
"""


def reference_files() -> Iterator[tuple[str, bytes]]:
    """The reference, which is the same for all models."""
    for suffix in ("h", "c"):
        yield f"qrun_reference.{suffix}", files("qrun.exporting").joinpath(f"reference.{suffix}").read_bytes()


def main_file(names: Sequence[str]) -> bytes:
    """main.c for the layers of these names."""
    includes = "\n".join(f'#include "{name}.h"' for name in names)
    pointers = "\n".join(f"    &{name}_layer," for name in names)
    return _MAIN.replace("@includes@", includes).replace("@layers@", pointers).encode("ascii")


def c_string(text: str) -> str:
    """A C string of any name: other than plain ASCII as octal escapes."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?%' else f"\\{byte:03o}"
        for byte in text[:_LONGEST].encode("utf-8", "surrogatepass")
    )
    return f'"{plain}"'


def header(layer: Layer, name: str, samples: int, layout: str) -> bytes:
    """The header of a layer. name: its identifier."""
    out = _Header(name, _summary(layer))
    quantized = layer.find("output")
    inputs = [each for each in layer.tensors if each.role in _INPUTS(len(layer.tensors))]
    weights = layer.find("weights")
    if layer.kind == "matmul" and weights is None:
        inputs, weights = inputs[:1], layer.get("input_1")
    out.tensors("input", [(each, layer.find(f"{each.role}_zero_point")) for each in inputs])
    fields = {"name": c_string(layer.node.label), "kind": f"QRUN_{layer.kind.upper()}"}
    fields |= {"samples": str(samples), "inputs": str(len(inputs)), "input": f"{name}_input"}
    if weights is not None:
        out.tensors("weights", [(weights, layer.find(f"{weights.role}_zero_point"))])
        fields["weights"] = f"{name}_weights"
    if table := layer.find("table"):
        out.tensors("table", [(table, None)])
        fields |= {"table": f"{name}_table", "lowest": str(np.iinfo(inputs[0].array.dtype).min)}
    if quantized is not None:
        out.tensors("output", [(quantized, None)])
        fields["output"] = f"{name}_output"
    for role in ("bias", "accumulators"):
        if tensor := layer.find(role):
            out.array(role, tensor.array)
            fields[role] = f"{name}_{role}"
    if sums := layer.find("accumulators"):
        fields["sums"] = str(sums.array[0].size)
    for prefix, rescale in layer.rescales.items():
        out.rescale(prefix, rescale)
    if "" in layer.rescales:
        fields["rescale"] = f"&{name}_rescale"
    if before := [prefix for prefix in layer.rescales if prefix]:
        pointers = ", ".join(f"&{name}_{prefix}rescale" for prefix in before)
        out.line(f"static const qrun_rescale *const {name}_before[] = {{{pointers}}};")
        fields["before"] = f"{name}_before"
    fields |= _limits(layer, quantized) | {
        key: str(value) for key, value in layer.numbers.items() if key not in ("low", "high")
    }
    fields["channels_last"] = str(int(layout == NHWC))
    if layer.kind == "matmul" and weights is not None:
        fields["several"] = str(int(weights.array.ndim - weights.vector > 2))
    out.line(f"static const qrun_layer {name}_layer = {{")
    out.line(",\n".join(f"    .{key} = {value}" for key, value in fields.items()))
    out.line("};")
    return out.text()


def tensor_header(tensor: LayerTensor, name: str) -> bytes:
    """The header of a tensor that is no layer's. name: its identifier."""
    out = _Header(name, [f"Tensor {_plain(tensor.tensor)}", _described(tensor)])
    out.array("values", tensor.words)
    return out.text()


def _summary(layer: Layer) -> list[str]:
    """What a layer computes, and its tensors of codes and sums."""
    rounds = {"": "", "exact": "; correctly rounded", "table": ""}
    how = rounds.get(layer.arithmetic, f"; rescale as {layer.arithmetic} does")
    shown = [each for each in layer.tensors if each.quantization or each.role in ("bias", "accumulators", "table")]
    lines = [f"{_plain(layer.node.label)}: {layer.node.op_type}", f"{layer.formula}{how}"]
    added = {"accumulators": ", the bias included"} if layer.find("bias") else {}
    return lines + [f"{each.role}: {_described(each)}{added.get(each.role, '')}" for each in shown]


def _described(tensor: LayerTensor) -> str:
    """``uint8 [8, 64] NC, scale 0.05, zero point 120``."""
    shape = list(tensor.array.shape[int(tensor.vector) :])
    text = f"{tensor.array.dtype.name} {shape} {tensor.layout}".rstrip()
    if of := tensor.quantization:
        one = of.scale.size == 1 and of.zero.size == 1
        zero = f", zero point {int(of.zero.ravel()[0])}" if of.zero.size == 1 else ""
        text += f", scale {float(of.scale.item()):.9g}{zero}" if one else f", {of.scale.size} scales{zero}"
    return text


def _plain(name: str) -> str:
    """A name in a comment, which nothing in it ends."""
    return re.sub(r"[^A-Za-z0-9_./:-]", "_", name[:_LONGEST])


def _INPUTS(count: int) -> frozenset[str]:
    """The roles of inputs."""
    return frozenset(f"input_{at}" for at in range(count))


def _limits(layer: Layer, output: LayerTensor | None) -> dict[str, str]:
    """The least and greatest code, and the zero point."""
    if output is None:
        return {}
    info = np.iinfo(output.array.dtype)
    zero = int(output.quantization.zero.item()) if output.quantization else 0
    low, high = layer.numbers.get("low", int(info.min)), layer.numbers.get("high", int(info.max))
    return {"low": str(low), "high": str(high), "zero": str(zero)}


class _Header:
    """The text of a header. summary: lines of its comment."""

    def __init__(self, name: str, summary: Sequence[str]) -> None:
        self.name = name
        guard = f"QRUN_{name.upper()}_H"
        comment = "\n   ".join(summary)
        self.parts = [f'/* {comment} */\n#ifndef {guard}\n#define {guard}\n#include "qrun_reference.h"\n'.encode()]

    def line(self, text: str) -> None:
        self.parts.append(f"{text}\n".encode("ascii"))

    def text(self) -> bytes:
        return b"".join([*self.parts, b"#endif\n"])

    def array(self, role: str, values: Array) -> str:
        """Define an array; returns its name."""
        name = f"{self.name}_{role}"
        self.line(f"static const {values.dtype.name}_t {name}[] = {{")
        self.parts.append(numbers(values))
        self.line("};")
        return name

    def tensors(self, role: str, tensors: Sequence[tuple[LayerTensor, LayerTensor | None]]) -> None:
        """Define tensors of codes, each with its zero points."""
        made = []
        for at, (tensor, zeros) in enumerate(tensors):
            shape = tensor.array.shape[int(tensor.vector) :]
            codes = self.array(f"{role}_{at}_codes", tensor.words)
            dims = self.array(f"{role}_{at}_shape", np.array(shape or (1,), np.int32))
            zero = np.zeros(1, np.int32)
            if zeros is not None:
                zero = zeros.array
            elif tensor.quantization is not None:
                zero = tensor.quantization.zero.astype(np.int32).reshape(-1)
            name = self.array(f"{role}_{at}_zero", zero)
            size = tensor.array[0].size if tensor.vector else 0
            kind = f"QRUN_{tensor.array.dtype.name.upper()}"
            made.append(
                f"    {{.codes = {codes}, .type = {kind}, .zeros = {zero.size}, .rank = {len(shape)}, "
                f".zero = {name}, .shape = {dims}, .stride = {size}}},"
            )
        self.line(f"static const qrun_tensor {self.name}_{role}[] = {{")
        for text in made:
            self.line(text)
        self.line("};")

    def rescale(self, prefix: str, of: Rescale) -> None:
        """Define a rescaling."""
        count = max(of.multiplier.size, of.left.size, of.right.size)
        fields = [f".rule = {_RULES[of.rule]}", f".ties = QRUN_{of.ties.upper()}", f".count = {count}"]
        parts = {"multiplier": of.multiplier}
        if of.rule == "ratio":
            parts["divisor"] = of.divisor
        else:
            parts |= {"left": of.left.astype(np.uint8), "right": of.right.astype(np.uint8)}
        for role, values in parts.items():
            name = self.array(f"{prefix}{role}", np.broadcast_to(values, (count,)))
            fields.append(f".{role} = {name}")
        self.line(f"static const qrun_rescale {self.name}_{prefix}rescale = {{{', '.join(fields)}}};")


def numbers(values: Array) -> bytes:
    """Integers in decimal, separated by commas, some in a line."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if not flat.size:
        return b""
    digits = 0 if flat.dtype.itemsize == 1 else max(len(str(abs(int(end)))) for end in (flat.min(), flat.max()))
    parts = np.split(flat, range(_AT_ONCE, flat.size, _AT_ONCE))
    return b"".join(_lines(_decimal(part, digits) if digits else _small(part)) for part in parts)


def _lines(texts: Array) -> bytes:
    """Rows of characters, some in a line."""
    whole = len(texts) // _LINE * _LINE
    lines = texts[:whole].reshape(-1, _LINE * texts.shape[1])
    ends = np.full((len(lines), 1), ord("\n"), np.uint8)
    rest = texts[whole:].tobytes()
    return np.concatenate([lines, ends], axis=1).tobytes() + rest + b"\n" * bool(rest)


def _small(values: Array) -> Array:
    """8-bit integers as rows of characters."""
    info = np.iinfo(values.dtype)
    width = len(str(info.min if info.min else info.max))
    shown = [f"{value:{width}d}," for value in range(info.min, info.max + 1)]
    texts = np.array(shown).astype(f"S{width + 1}").view(np.uint8).reshape(256, width + 1)
    return np.asarray(texts[values.astype(np.int16) - info.min])


def _decimal(values: Array, digits: int) -> Array:
    """Integers of at most so many digits as rows of characters of one width, filled with spaces from the left."""
    end = b"LL," if values.dtype.itemsize == 8 else b","
    left = np.abs(values.astype(np.int64))
    left = left.astype(np.uint32) if left.max(initial=0) < 1 << 32 else left
    width = digits + 1
    rows = np.full((values.size, width + len(end)), ord(" "), np.uint8)
    rows[:, width:] = np.frombuffer(end, np.uint8)
    negative = values < 0
    for place in range(width - 1, -1, -1):
        shown = (left > 0) | (place == width - 1)
        digit = (left % 10).astype(np.uint8) + ord("0")
        rows[:, place] = np.where(shown, digit, np.where(negative, ord("-"), ord(" ")))
        negative &= shown
        left = left // 10
    return rows
