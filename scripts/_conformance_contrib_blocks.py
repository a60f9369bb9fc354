"""Cases of com.microsoft with weights in blocks of few bits, and of its quantized networks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from _conformance_case import Draft, Rng, family
from _conformance_contrib import BOTH, contrib, f16, f32, i8, i32, u8
from _conformance_conv import TYPES, codes, zero

HALF_ULP = {f32: 2.0**-24, f16: 2.0**-11}


def reach(a: Any, weights: Any, dtype: Any, bias: Any = None) -> float:
    """How far apart two sound results of a times weights [K,N] are: each rounds every weight twice, and every sum.

    Sums are at least float32; of float16 the weights and the result may be rounded to float16 too.
    """
    terms = float((np.abs(a.astype(float)) @ np.abs(weights.astype(float))).max()) + (
        0 if bias is None else float(np.abs(bias).max())
    )
    return 2 * terms * ((a.shape[-1] + 4) * HALF_ULP[f32] + (2 * HALF_ULP[f16] if dtype is f16 else 0))


def unpacked(b: Any, bits: int, k: int) -> Any:
    """[N,K] codes of B [N,blocks,bytes]."""
    planes = [(b.reshape(len(b), -1) >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(planes, -1).reshape(len(b), -1)[:, :k]


def n_bits(
    rng: Rng, id: str, bits: int, block: int, sizes: tuple[int, int, int], zeros: str = "", dtype: Any = f32, bias: bool = False,
    lead: tuple[int, ...] = (), clause: str = "", **attributes: Any,
) -> Draft:  # fmt: skip
    """sizes: M, K and N. zeros: of the blocks: packed, float or none."""
    m, k, n = sizes
    blocks = -(-k // block)
    a = (rng.integers(-64, 65, (*(lead or (m,)), k)) / 16).astype(dtype)
    row = rng.integers(0, 256, blocks * block * bits // 8 + n).astype(u8)
    b = np.stack([row[at : len(row) - n + at] for at in range(n)]).reshape(n, blocks, -1)
    scales = rng.uniform(-0.1, 0.1, (n, blocks)).astype(dtype)
    points = {
        "": None,
        "packed": rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(u8),
        "float": rng.uniform(0, 2**bits, (n, blocks)).astype(dtype),
    }[zeros]
    added = rng.normal(0, 1, n).astype(dtype) if bias else None
    whole = np.abs(np.repeat(scales.astype(float), block, 1)[:, :k]) * 2**bits
    within = reach(a, whole.T, dtype, added)
    own = clause or {"": "M7/default", "packed": "M7", "float": "M7/float"}[zeros]
    groups = rng.integers(0, blocks, k).astype(i32) if own == "M9" else None
    return contrib(id, "MatMulNBits", [a, b, scales, points, groups, added], own,
                   {"K": k, "N": n, "bits": bits, "block_size": block, **attributes}, within=within)  # fmt: skip


@family("ms.matmulnbits-1/blocks")
def blocks(rng: Rng) -> Iterator[Draft]:
    for bits, block, zeros in product((4, 8), (16, 32, 64, 128), ("", "packed", "float")):
        for name, k, n in (
            ("one-block", block, 3),
            ("blocks", 2 * block, 2),
            ("not-multiples", block + block // 2 - 3, 5),
        ):
            yield n_bits(
                rng, f"{bits}-bits-of-{block}-{name}{f'-{zeros}-zeros' if zeros else ''}", bits, block, (2, k, n), zeros
            )
    for bits, zeros in product((2, 4, 8), ("", "packed", "float")):
        label = f"{bits}-bits{f'-{zeros}-zeros' if zeros else ''}"
        yield n_bits(rng, f"bias-{label}", bits, 32, (3, 70, 4), zeros, bias=True)
        yield n_bits(rng, f"float16-{label}", bits, 32, (2, 96, 5), zeros, f16, bits == 4)
        yield n_bits(rng, f"level-4-{label}", bits, 32, (2, 64, 3), zeros, clause="M8", accuracy_level=4)
        yield n_bits(rng, f"level-1-{label}", bits, 32, (2, 64, 3), zeros, accuracy_level=1)
    for bits, (m, k, n) in product((4, 8), ((1, 17, 1), (1, 33, 7), (1, 65, 8), (2, 129, 9), (5, 64, 16), (1, 256, 17), (9, 31, 33),
                                            (2, 600, 3), (1, 257, 4), (16, 15, 2))):  # fmt: skip
        yield n_bits(rng, f"{bits}-bits-{m}x{k}x{n}", bits, 32, (m, k, n), "packed" if k % 2 else "")
    for bits in (4, 8):
        yield n_bits(rng, f"{bits}-bits-batches", bits, 16, (1, 20, 3), "packed", lead=(2, 3))
        yield n_bits(rng, f"{bits}-bits-leading-ones", bits, 16, (1, 20, 3), lead=(1, 1))
        for zeros in ("", "float"):
            yield n_bits(
                rng, f"{bits}-bits-groups{'-float-zeros' if zeros else ''}", bits, 16, (2, 40, 3), zeros, clause="M9"
            )


@family("ms.matmulnbits-1/omitted")
def omitted(rng: Rng) -> Iterator[Draft]:
    """B with a length of 0, which stands for a product that is left out."""
    for bits, (name, place) in product((4, 8), (("columns", 0), ("blocks", 1), ("bytes", 2))):
        shape = [3, 2, 2 * bits]
        shape[place] = 0
        for bias in (None, rng.normal(0, 1, 3).astype(f32)):
            inputs = [
                rng.normal(0, 1, (2, 20)).astype(f32),
                np.zeros(shape, u8),
                np.ones((3, 2), f32),
                None,
                None,
                bias,
            ]
            yield contrib(f"{bits}-bits-no-{name}{'' if bias is None else '-bias'}", "MatMulNBits", inputs, "G11",
                          {"K": 20, "N": 3, "bits": bits, "block_size": 16})  # fmt: skip


TABLES: dict[str, tuple[Any, str]] = {
    "int4": (ml_dtypes.int4, ""),
    "uint4": (ml_dtypes.uint4, ""),
    "uint8-of-8-bits": (u8, "8"),
    "uint8-of-4-bits": (u8, "4"),
    "uint8-of-2-bits": (u8, "2"),
    "float8e4m3fn": (ml_dtypes.float8_e4m3fn, "f"),
    "float8e5m2": (ml_dtypes.float8_e5m2, "f"),
    "float4e2m1": (ml_dtypes.float4_e2m1fn, "f"),
}


def table(rng: Rng, id: str, name: str, clause: str = "", *, zeros: bool = False, dtype: Any = f32, indices: Any = None,
          block: int = 16, width: int = 32, kind: Any = np.int64) -> Draft:  # fmt: skip
    made, form = TABLES[name]
    packed = made is u8
    bits = int(form) if packed else 4
    if packed:
        data = rng.integers(0, 256, (5, width * bits // 8)).astype(u8)
    elif form == "f":
        data = (rng.normal(0, 2, (5, width))).astype(f32).astype(made)
    else:
        low = -8 if name == "int4" else 0
        data = rng.integers(low, low + 16, (5, width)).astype(made)
    count = -(-width // block)
    scales = rng.uniform(0.01, 0.2, (5, count)).astype(dtype)
    points = None
    if zeros and packed:
        points = rng.integers(0, 256, (5, -(-count * bits // 8))).astype(u8)
    elif zeros:
        points = rng.integers(0, 8, (5, count)).astype(made)
    at = np.asarray([3, 0, -1, 2] if indices is None else indices, kind)
    own = clause or ("M12/floats" if form == "f" else "M12" if zeros else "M12/default")
    attributes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    return contrib(id, "GatherBlockQuantized", [data, at, scales, points], own, attributes)


@family("ms.gatherblockquantized-1/tables")
def tables(rng: Rng) -> Iterator[Draft]:
    for name, (_, form) in TABLES.items():
        yield table(rng, name, name)
        yield table(rng, f"{name}-float16", name, dtype=f16)
        yield table(rng, f"{name}-int32-indices", name, kind=i32)
        yield table(rng, f"{name}-matrix-of-indices", name, indices=[[0, 4], [-5, 1]])
        yield table(rng, f"{name}-last-block-shorter", name, width=40)
        yield table(rng, f"{name}-index-out-of-range", name, "M12/range", indices=[1, 5, -6, 2])
        yield table(rng, f"{name}-blocks-of-64", name, block=64, width=128, indices=[2])
        if form != "f":
            yield table(rng, f"{name}-zero-points", name, zeros=True)
            yield table(rng, f"{name}-zero-points-float16", name, zeros=True, dtype=f16, width=48)


@family("ms.dynamicquantizelstm-1/steps")
def lstm(rng: Rng) -> Iterator[Draft]:
    forms = product(
        BOTH, ("forward", "reverse", "bidirectional"), ((1, 1, 4, 2), (3, 2, 3, 2), (2, 1, 8, 4), (2, 3, 17, 3))
    )
    for number, (sign, direction, (seq, batch, width, hidden)) in enumerate(forms):
        kind, dirs = TYPES[sign], 1 + (direction == "bidirectional")
        columns = (4 * hidden,) if number % 2 else ()
        x = rng.normal(0, 1, (seq, batch, width)).astype(f32)
        w, r = (codes(rng, kind, (dirs, n, 4 * hidden)) for n in (width, hidden))
        b = rng.normal(0, 0.5, (dirs, 8 * hidden)).astype(f32) if number % 3 else None
        lengths = np.arange(batch).astype(i32) % seq + 1 if number % 4 == 1 and batch > 1 else None
        start = [rng.normal(0, 0.5, (dirs, batch, hidden)).astype(f32) if number % 5 == 2 else None for _ in range(2)]
        peep = rng.normal(0, 0.5, (dirs, 3 * hidden)).astype(f32) if number % 6 == 4 else None
        middle = 128 if kind is u8 else 0
        parameters = [v for _ in range(2) for v in (rng.uniform(0.001, 0.01, (dirs, *columns)).astype(f32),
                                                    np.full((dirs, *columns), middle, kind))]  # fmt: skip
        size = f"{seq}-steps-{batch}x{width}-to-{hidden}"
        yield contrib(f"{size}-{direction}-{sign}", "DynamicQuantizeLSTM", [x, w, r, b, lengths, *start, peep, *parameters], "Y4",
                      {"hidden_size": hidden, "direction": direction}, within=1e-5)  # fmt: skip


@family("ms.qattention-1/forms")
def attention(rng: Rng) -> Iterator[Draft]:
    shapes = ((1, 1, 8, 1, 2), (1, 3, 4, 2, 2), (2, 4, 7, 2, 4), (1, 5, 16, 1, 8))
    for number, (pair, (batch, rows, width, heads, size), option) in enumerate(
        product(("uu", "us", "ss"), shapes, ("plain", "causal", "masked", "past"))
    ):
        at, bt = TYPES[pair[0]], TYPES[pair[1]]
        columns = 3 * heads * size
        x, w = codes(rng, at, (batch, rows, width)), codes(rng, bt, (width, columns))
        sw = rng.uniform(0.001, 0.004, columns).astype(f32) if number % 2 else f32(0.003)
        zx, zw = zero(rng, at), np.zeros(np.shape(sw), bt) if bt is i8 else np.full(np.shape(sw), 128, bt)
        bias = rng.normal(0, 0.3, columns).astype(f32)
        mask = rng.integers(1, rows + 1, batch).astype(i32) if option == "masked" else None
        past = rng.normal(0, 1, (2, batch, heads, 2, size)).astype(f32) if option == "past" else None
        largest = (np.abs(x.astype(float) - zx) @ np.abs(w.astype(float) - zw) * 0.02 * sw + np.abs(bias)).max()
        attributes = {"num_heads": heads, "unidirectional": int(option in ("causal", "past"))}
        yield contrib(f"{option}-{batch}x{rows}x{width}-{heads}-heads-of-{size}-{pair}", "QAttention",
                      [x, w, bias, f32(0.02), sw, mask, zx, zw, past], "M10", attributes,
                      within=reach_of_shares(float(largest), size, rows + 2))  # fmt: skip


def reach_of_shares(largest: float, size: int, keys: int) -> float:
    """How far apart two sound results of attention are, of queries, keys and values up to `largest`.

    A score is a sum of `size` products; what it is off by, its share is off by in proportion, and so is the result.
    """
    score = largest * largest * size**0.5
    return 2 * largest * HALF_ULP[f32] * (2 * (size + 6) * score + keys + 16)


class Mixture:
    """The experts of a QMoE: codes and scales of two projections, and how far apart two sound results are."""

    count, tokens, width = 3, 2, 16

    def __init__(self, rng: Rng, bits: int, kind: str, block: int, zeros: bool) -> None:
        self.rng, self.bits, self.block, self.zeros = rng, bits, block, zeros
        self.inner = 16 if block else 8
        self.gated = kind == "swiglu"
        self.x = (rng.integers(-32, 33, (self.tokens, self.width)) / 16).astype(f32)
        sizes = (self.inner * (1 + self.gated), self.width), (self.width, self.inner)
        self.parts = [self.coded(*size) for size in sizes]
        self.biases = [rng.normal(0, 0.3, (self.count, n)).astype(f32) if bits == 4 else None for n, _ in sizes]

    def coded(self, rows: int, columns: int) -> list[Any]:
        """Codes, scales, and zero points or None."""
        length, blocks = columns * self.bits // 8, columns // self.block if self.block else 1
        row = self.rng.integers(0, 256, length + rows * self.count).astype(u8)
        weights = np.stack([row[at : at + length] for at in range(rows * self.count)]).reshape(self.count, rows, -1)
        shape = (self.count, rows, blocks) if self.block else (self.count, rows)
        scales = (self.rng.uniform(0.02, 0.1, shape) / 2 ** (self.bits - 4)).astype(f32)
        packed = (self.count, rows, -(-blocks * self.bits // 8)) if self.block else (self.count, rows * self.bits // 8)
        return [weights, scales, self.rng.integers(0, 256, packed).astype(u8) if self.zeros else None]

    def magnitudes(self, weights: Any, scales: Any, zeros: Any) -> Any:
        """The magnitudes of the numbers that the weights stand for, [experts,rows,columns]."""
        count, rows, length = weights.shape
        numbers = unpacked(weights.reshape(count * rows, -1), self.bits, length * 8 // self.bits).astype(int)
        if zeros is None:
            start = np.full((count, rows, 1), 2 ** (self.bits - 1))
        elif self.block:
            own = unpacked(zeros.reshape(count * rows, -1), self.bits, scales.shape[2])
            start = np.repeat(own.reshape(scales.shape), self.block, 2)
        else:
            start = unpacked(zeros, self.bits, rows)[:, :, None]
        size = np.repeat(scales, self.block, 2) if self.block else scales[:, :, None]
        return np.abs(numbers.reshape(count, rows, -1) - start) * size

    @property
    def reach(self) -> float:
        """By sums of magnitudes: each of the two products and the activation rounds its terms."""
        first, second = (self.magnitudes(*part) for part in self.parts)
        biases = [0 if bias is None else np.abs(bias)[:, None] for bias in self.biases]
        inner = np.abs(self.x) @ first.transpose(0, 2, 1) + biases[0]
        inner = inner[..., ::2] * inner[..., 1::2] if self.gated else inner
        largest = float((inner @ second.transpose(0, 2, 1) + biases[1]).max())
        return 2 * largest * HALF_ULP[f32] * (self.width + self.inner + 24)


@family("ms.qmoe-1/experts")
def experts(rng: Rng) -> Iterator[Draft]:
    kinds = ("relu", "gelu", "silu", "identity", "swiglu")
    for bits, kind, block, given, zeros in product((4, 8), kinds, (0, 16), (True, False), (False, True)):
        if zeros and (kind not in ("relu", "swiglu") or not given):
            continue
        form = Mixture(rng, bits, kind, block, zeros)
        probs = np.stack([rng.permutation(form.count) for _ in range(form.tokens)]).astype(f32)
        shares = rng.uniform(0.1, 1, (form.tokens, form.count)).astype(f32) if given else None
        weights = [v for part, bias in zip(form.parts, form.biases, strict=True) for v in (*part[:2], bias)]
        inputs = [form.x, probs, *weights, None, None, None, form.parts[0][2], form.parts[1][2], None, shares]
        normal = int(given and kind == "identity")
        attributes = {"k": 2, "activation_type": kind, "expert_weight_bits": bits, "weights_prepacked": 0,
                      "normalize_routing_weights": normal, **({"block_size": block} if block else {}),
                      **({"swiglu_fusion": 1} if form.gated else {})}  # fmt: skip
        clause = "M13" if given else "M13/shares"
        clause = "M13/gelu" if kind == "gelu" else "M13/normalized" if normal else clause
        clause = "M8" if block and bits == 8 else clause
        label = f"{bits}-bits-{kind}{f'-blocks-of-{block}' if block else ''}{'-router-weights' if given else ''}"
        yield contrib(
            f"{label}{'-zero-points' if zeros else ''}", "QMoE", inputs, clause, attributes, within=form.reach
        )
