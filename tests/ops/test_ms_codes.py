"""GatherBlockQuantized, MatMulBnb4, MatMulInteger16 and QEmbedLayerNormalization: code by code, beside onnxruntime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_refused, qrun_node
from helpers.support import MS, assert_equal, node_model
from oracle.blocks import gather_block_quantized
from oracle.cast import nearest
from oracle.chains import chained

import qrun

F, H, BF = np.float32, np.float16, ml_dtypes.bfloat16
INT4, UINT4, F8 = ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn
TYPES = (np.uint8, INT4, UINT4, F8, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn)
Arrays = list[Any]


class Table:
    """GatherBlockQuantized, in one of its forms; the seed chooses it."""

    def __init__(self, seed: int, dtype: Any = F) -> None:
        rng = np.random.default_rng(seed)
        kind = np.dtype(TYPES[seed % 6])
        self.packed = kind == np.uint8
        self.bits = (2, 4, 8)[seed // 6 % 3] if self.packed else 4
        size = [int(n) for n in rng.integers(2, 5, 3 if seed % 4 == 1 else 2)]
        self.along = 0 if self.packed else int(rng.integers(0, len(size)))
        others = [n for n in range(len(size)) if n != self.along]
        self.blocked = others[-1] if (self.packed and self.bits < 8) or seed % 3 else self.along
        size[self.blocked] = 40
        if self.packed and self.blocked != len(size) - 1:
            size[-1] = 4
        self.block = 0 if not self.packed and self.floating(kind) and seed % 2 else (16, 32)[seed // 5 % 2]
        blocks = -(-40 // self.block) if self.block else 1
        self.whole = [blocks if axis == self.blocked else n for axis, n in enumerate(size)]
        if self.packed:
            self.data = rng.integers(0, 256, (*size[:-1], size[-1] * self.bits // 8)).astype(np.uint8)
        else:
            self.data = (rng.normal(size=size) * 3 if self.floating(kind) else rng.integers(0, 8, size)).astype(kind)
        self.scales = rng.uniform(0.01, 2, self.whole).astype(dtype)
        if self.floating(kind) and seed % 4 == 3:
            self.scales = self.scales[tuple(slice(None if a == self.blocked else 1) for a in range(len(size)))]
        self.zeros = None
        if not self.floating(kind) and seed % 2:
            width = -(-self.whole[-1] * self.bits // 8) if self.packed else self.whole[-1]
            shape = (*self.whole[:-1], width)
            self.zeros = (
                rng.integers(0, 256, shape).astype(np.uint8) if self.packed else rng.integers(0, 8, shape).astype(kind)
            )
        most = size[self.along]
        self.indices = rng.integers(-most, most + (seed % 7 == 0), (2, 2) if seed % 3 else 3)
        self.size = size

    @staticmethod
    def floating(kind: np.dtype[Any]) -> bool:
        return kind.name.startswith("float")

    @property
    def attributes(self) -> dict[str, Any]:
        return {"bits": self.bits, "block_size": self.block, "gather_axis": self.along, "quantize_axis": self.blocked}

    def expected(self) -> np.ndarray:
        return gather_block_quantized(self.data, self.indices, self.scales, self.zeros, **self.attributes)


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_gather_block_quantized(dtype: Any) -> None:
    peer = Peer()
    for seed in range(72 if dtype == F else 24):
        form = Table(seed, dtype)
        inputs = [form.data, form.indices, form.scales, form.zeros]
        options: dict[str, Any] = {"domain": MS, "outputs": [dtype], "opset": 23, "ir_version": 11}
        made = qrun_node("GatherBlockQuantized", inputs, form.attributes, **options)
        assert_equal(made, form.expected(), f"seed {seed}", signed_zeros=False)
        if dtype == F:
            peer.check("GatherBlockQuantized", inputs, form.attributes, message=f"seed {seed}", rtol=0, atol=0,
                       constants=[0, 2, 3], **options)  # fmt: skip
    if dtype == F:
        peer.finish(0.4)


def test_gather_block_quantized_of_no_indices() -> None:
    inputs = [np.zeros((5, 32), np.uint8), np.zeros((2, 0), np.int64), np.ones((5, 2), F), np.zeros((5, 1), np.uint8)]
    made = qrun_node("GatherBlockQuantized", inputs, {"block_size": 32}, domain=MS, outputs=[F], opset=21)
    assert made.shape == (2, 0, 64)


NF4 = "-1 -.6961928009986877 -.5250730514526367 -.39491748809814453 -.28444138169288635 -.18477343022823334 \
-.09105003625154495 0 .07958029955625534 .16093020141124725 .24611230194568634 .33791524171829224 .44070982933044434 \
.5626170039176941 .7229568362236023 1"


def bnb4(number: int, kind: int) -> float:
    """The number of a code; FP4 is a sign and three bits, one of them a mantissa, of twelfths and 1 / 192."""
    if kind:
        return float(F(NF4.split()[number]))
    size = (0, F(5.208333333e-03), F(0.66666667), 1, F(0.33333333), 0.5, F(0.16666667), 0.25)[number & 7]
    return -float(size) if number & 8 else float(size)


def test_matmul_bnb4() -> None:
    peer = Peer()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        dtype = (F, H, BF)[seed % 3]
        depth, width, block = (int(n) for n in rng.integers((1, 1, 0), (40, 6, 2)))
        block, kind, turned = (16, 32)[block], seed % 2, seed // 2 % 4 != 3
        a = rng.normal(size=(2, 3, depth if turned else width)).astype(dtype)
        b = rng.integers(0, 256, (width * depth + 1) // 2).astype(np.uint8)
        largest = rng.uniform(0.1, 3, -(-width * depth // block)).astype(dtype)
        rows = [[Fraction(0)] * depth for _ in range(width)]
        for n, k in np.ndindex(width, depth):
            place = n * depth + k
            number = b[place // 2] >> 4 if place % 2 == 0 else b[place // 2] & 15
            product = nearest(Fraction(bnb4(int(number), kind)) * Fraction(float(largest[place // block])), F)
            rows[n][k] = Fraction(nearest(Fraction(product), dtype))
        columns = rows if turned else [list(line) for line in zip(*rows, strict=True)]
        want = np.zeros((*a.shape[:2], len(columns)), dtype)
        for i, j, c in np.ndindex(want.shape):
            want[i, j, c] = chained([Fraction(x) for x in a[i, j].astype(float).tolist()], columns[c], dtype)
        attributes = {"K": depth, "N": width, "block_size": block, "quant_type": kind, "transB": int(turned)}
        made = qrun_node("MatMulBnb4", [a, b, largest], attributes, domain=MS)
        assert_equal(made, want, f"seed {seed}", signed_zeros=False)
        if dtype == F and turned:
            peer.check(
                "MatMulBnb4", [a, b, largest], attributes, message=f"seed {seed}", rtol=1e-4, atol=1e-4, domain=MS
            )
    peer.finish(0.9)


def test_matmul_integer16() -> None:
    for seed in range(16):
        rng = np.random.default_rng(seed)
        kinds = [(np.int16, np.uint16)[seed >> bit & 1] for bit in range(2)]
        a, b = (
            rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)
            for kind, shape in zip(kinds, ([2, 3, 7], [7, 4]), strict=True)
        )
        made = np.uint32 if kinds[0] == kinds[1] == np.uint16 else np.int32
        want = np.zeros((2, 3, 4), np.uint32)
        for i, j, k in np.ndindex(2, 3, 4):
            want[i, j, k] = sum(int(x) * int(w) for x, w in zip(a[i, j], b[:, k], strict=True)) % 2**32
        got = qrun_node("MatMulInteger16", [a, b], domain=MS, outputs=[made])
        assert_equal(got, want.view(made), f"seed {seed}")
    peer = Peer()
    peer.check("MatMulInteger16", [a.astype(np.int16), b.astype(np.int16)], message="int16", rtol=0, atol=0, domain=MS,
               outputs=[np.int32])  # fmt: skip
    peer.finish(1.0)


def test_sums_of_16_bits_that_wrap_are_told() -> None:
    ones = np.full((1, 3), -32768, np.int16)
    model, feeds = node_model("MatMulInteger16", [ones, ones.T], domain=MS, outputs=[np.int32])
    event = qrun.Session(model, backend="reference").execute(feeds).events[0]
    assert [o.kind for o in event.observations] == ["accumulator-wrap"]


def quantized_embedding(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    ids, kinds = (rng.integers(0, n, (2, 3)).astype(np.int32) for n in (9, 2))
    kind = (np.uint8, np.int8)[seed % 2]
    low = np.iinfo(kind).min
    tables = [rng.integers(low, low + 256, shape).astype(kind) for shape in ((9, 4), (5, 4), (2, 4), 4, 4)]
    scales = list(rng.uniform(0.001, 0.1, 5).astype(F))
    zeros = list(rng.integers(low + 100, low + 150, 5).astype(kind))
    mask = rng.integers(0, 2, (2, 3)).astype(np.int32) if seed % 3 else None
    if seed % 4 == 0:
        kinds, tables[2], scales[2], zeros[2] = None, None, None, None
    return [ids, kinds, *tables, mask, *scales, *zeros]


def test_quantized_embeddings() -> None:
    """The same bits as the operator of numbers, on the numbers that the codes mean."""
    peer = Peer()
    for seed in range(24):
        inputs = quantized_embedding(seed)
        numbers = [
            None if c is None else qrun_node("DequantizeLinear", [c, s, z], outputs=[F])
            for c, s, z in zip(inputs[2:7], inputs[8:13], inputs[13:], strict=True)
        ]
        options = {"domain": MS, "outputs": [F, np.int32]}
        made = qrun_node("QEmbedLayerNormalization", inputs, {"epsilon": 1e-3}, **options)
        want = qrun_node("EmbedLayerNormalization", [*inputs[:2], *numbers, inputs[7]], {"epsilon": 1e-3}, **options)
        for got, expected in zip(made, want, strict=True):
            assert_equal(got, expected, f"seed {seed}")
        peer.check("QEmbedLayerNormalization", inputs, {"epsilon": 1e-3}, message=f"seed {seed}", rtol=1e-3, atol=1e-4,
                   **options)  # fmt: skip
    peer.finish(0.7)


A, B, MOST = np.ones((2, 4), F), np.ones(8, np.uint8), np.ones(1, F)
BNB = {"K": 4, "N": 4, "block_size": 16, "quant_type": 0}
DATA, AT, SCALES = np.ones((4, 32), UINT4), np.array([1]), np.ones((4, 2), F)
GATHER = {"block_size": 16}


def test_refusals() -> None:
    assert_refused(
        [
            ("K is 0", "MatMulBnb4", [A, B, MOST], {**BNB, "K": 0}),
            ("block_size is 8", "MatMulBnb4", [A, B, MOST], {**BNB, "block_size": 8}),
            ("quant_type is 2", "MatMulBnb4", [A, B, MOST], {**BNB, "quant_type": 2}),
            ("A does not fit B", "MatMulBnb4", [A[:, :3], B, MOST], BNB),
            ("B has shape", "MatMulBnb4", [A, B[:3], MOST], BNB),
            ("absmax has shape", "MatMulBnb4", [A, B, np.ones(2, F)], BNB),
            ("A and B cannot be multiplied", "MatMulInteger16", [np.ones((2, 3), np.int16)] * 2, {}),
            ("bits is 3", "GatherBlockQuantized", [DATA.astype(np.uint8), AT, SCALES], {**GATHER, "bits": 3}),
            ("bits is 8", "GatherBlockQuantized", [DATA, AT, SCALES], {**GATHER, "bits": 8}),
            ("block_size is 8", "GatherBlockQuantized", [DATA, AT, SCALES], {"block_size": 8}),
            ("block_size is 0", "GatherBlockQuantized", [DATA, AT, SCALES], {"block_size": 0}),
            (
                "gather_axis is 1",
                "GatherBlockQuantized",
                [DATA.astype(np.uint8), AT, SCALES],
                {**GATHER, "gather_axis": 1},
            ),
            ("scales do not fit", "GatherBlockQuantized", [DATA, AT, SCALES[:1]], GATHER),
            ("zero_points do not fit", "GatherBlockQuantized", [DATA, AT, SCALES, DATA[:, :1]], GATHER),
            (
                "quantize_axis 2 does not exist",
                "GatherBlockQuantized",
                [DATA, AT, SCALES],
                {**GATHER, "quantize_axis": 2},
            ),
        ],
        domain=MS,
        outputs=[F],
    )


def test_refusals_of_quantized_embeddings() -> None:
    inputs = quantized_embedding(1)
    for place, text in ((4, "segment_embedding is missing"), (10, "segment_embedding_scale is missing")):
        with pytest.raises(qrun.QrunError, match=text):
            qrun_node("QEmbedLayerNormalization", [*inputs[:place], None, *inputs[place + 1 :]], domain=MS, outputs=[F])
    wrong = [*inputs[:8], np.ones(2, F), *inputs[9:]]
    with pytest.raises(qrun.QrunError, match="word_embedding_scale"):
        qrun_node("QEmbedLayerNormalization", wrong, domain=MS, outputs=[F])
