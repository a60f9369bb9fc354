"""Attention, QAttention and MultiHeadAttention of com.microsoft: against fractions, beside onnxruntime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, assert_refused, qrun_node
from helpers.support import MS, assert_equal
from oracle.attention import attend, joined, projected, split
from oracle.cast import nearest

import qrun

F, H, BF = np.float32, np.float16, ml_dtypes.bfloat16
LOWEST = {np.dtype(F): np.finfo(F).min, np.dtype(H): np.finfo(H).min, np.dtype(BF): float(ml_dtypes.finfo(BF).min)}
MASKS = ("none", "length", "ends", "keys", "pairs", "square", "cumulated", "one")
Arrays = list[Any]


class Masked:
    """What hides keys from one another in one of its forms, and what is added to scores."""

    def __init__(self, seed: int, shape: tuple[int, ...], past: int, dtype: Any) -> None:
        rng = np.random.default_rng([seed, 1])
        self.batch, self.heads, self.rows, self.total = shape
        self.past, self.dtype = past, np.dtype(dtype)
        self.kind = MASKS[seed % len(MASKS)]
        self.causal = seed // 2 % 2 if self.kind != "square" else 0
        self.filter = (-10000.0, -2.5)[seed % 3 == 0]
        batch, rows, total = self.batch, self.rows, self.total
        self.lengths, self.starts = rng.integers(1, total + 1, batch), rng.integers(0, 2, batch)
        self.pairs = rng.integers(0, 2, (batch, rows, total))
        if self.kind == "keys":
            self.pairs[:] = self.pairs[:, :1]
        longest = max(total, past + rows) + 1
        square = rng.integers(0, 2, (batch, 1, longest, longest))
        square[:, 0, past : past + rows, :total] = self.pairs
        made = {
            "length": self.lengths,
            "ends": np.concatenate([self.lengths, self.starts]),
            "keys": self.pairs[:, 0],
            "pairs": self.pairs,
            "square": square,
            "cumulated": np.concatenate([self.lengths, rng.integers(0, 9, 2 * batch + 2)]),
            "one": np.ones((batch, 1)),
        }
        self.mask = made[self.kind].astype(np.int32) if self.kind in made else None
        self.bias = None
        if seed % 4 == 1:
            lead = (batch if seed % 3 else 1, self.heads if seed % 5 else 1)
            self.bias = rng.normal(size=(*lead, rows, total)).astype(dtype)

    def sees(self, b: int, s: int, t: int) -> bool:
        if self.kind in ("length", "cumulated"):
            return bool(t < self.lengths[b])
        if self.kind == "ends":
            return bool(self.starts[b] <= t < self.lengths[b])
        return self.kind in ("none", "one") or bool(self.pairs[b, s, t])

    def added(self, b: int, n: int, s: int, t: int) -> list[float]:
        found = []
        if self.bias is not None:
            found.append(float(np.broadcast_to(self.bias, (self.batch, self.heads, self.rows, self.total))[b, n, s, t]))
        if self.mask is not None and self.kind != "one":
            found.append(0.0 if self.sees(b, s, t) else float(self.dtype.type(self.filter)))
        if self.causal:
            found.append(0.0 if t <= s + self.past else float(LOWEST[self.dtype]))
        return found

    @property
    def attributes(self) -> dict[str, Any]:
        return {"num_heads": self.heads, "unidirectional": self.causal, "mask_filter_value": self.filter}


def sizes(seed: int) -> tuple[np.random.Generator, int, int, int, int]:
    rng = np.random.default_rng(seed)
    return rng, *(int(n) for n in rng.integers([2, 1, 1, 1], [3, 3, 4, 4]))


class Self:
    """Attention, in one of its forms."""

    def __init__(self, seed: int, dtype: Any = F) -> None:
        rng, self.batch, self.heads, self.rows, past = sizes(seed)
        self.past = past if seed % 3 == 1 else 0
        self.shared = seed % 6 == 4
        total = self.rows + self.past
        self.masked = Masked(seed, (self.batch, self.heads, self.rows, total), self.past, dtype)
        width, value = 2 * self.heads, (2 if self.past or seed % 5 else 3) * self.heads
        self.widths = (width, width, value)
        self.x = rng.normal(size=(self.batch, self.rows, 3)).astype(dtype)
        self.w = rng.normal(size=(3, sum(self.widths))).astype(dtype)
        self.b = rng.normal(size=sum(self.widths)).astype(dtype) if seed % 7 else None
        room = self.past + (self.rows + 2 if self.shared else 0)
        self.cache = rng.normal(size=(2, self.batch, self.heads, room, 2)).astype(dtype) if self.past else None
        self.attributes = dict(self.masked.attributes)
        if seed % 5 == 0:
            self.attributes["qkv_hidden_sizes"] = list(self.widths)
        if seed % 4 == 0:
            self.attributes["scale"] = 0.25
        if self.shared:
            self.attributes["past_present_share_buffer"] = 1
        count = np.array([self.past], np.int32) if self.shared else None
        self.inputs = [self.x, self.w, self.b, self.masked.mask, self.cache, self.masked.bias, count]

    def expected(self, rows: np.ndarray) -> list[np.ndarray]:
        """Of the product with the bias."""
        ends = np.cumsum(self.widths)
        parts = [rows[..., end - width : end] for width, end in zip(self.widths, ends, strict=True)]
        q, k, v = (split(part, self.heads) for part in parts)
        present = None
        if self.cache is not None:
            k, v = (np.concatenate([c[:, :, : self.past], x], 2) for c, x in zip(self.cache, (k, v), strict=True))
            present = self.cache.copy() if self.shared else np.stack([k, v])
            present[:, :, :, : k.shape[2]] = np.stack([k, v])
        elif k.shape == v.shape:
            present = np.stack([k, v])
        scale = self.attributes.get("scale", 1 / np.sqrt(F(2)))
        y = joined(attend(q, k, v, self.masked.added, scale=scale)["y"])
        return [y] if present is None else [y, present]


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_attention_against_the_oracle(dtype: Any) -> None:
    for seed in range(64 if dtype == F else 16):
        form = Self(seed, dtype)
        want = form.expected(projected(form.x, form.w, form.b))
        made = qrun_node("Attention", form.inputs, form.attributes, domain=MS, outputs=[dtype] * len(want))
        for got, expected in zip(made if len(want) > 1 else [made], want, strict=True):
            assert_equal(got, expected, f"seed {seed} {form.masked.kind}", signed_zeros=False)


def test_attention_beside_onnxruntime() -> None:
    peer = Peer()
    for seed in range(48):
        form = Self(seed)
        if form.masked.kind not in ("square", "cumulated") and form.b is not None and not form.shared:
            peer.check("Attention", form.inputs, form.attributes, message=f"seed {seed}", rtol=1e-4, atol=1e-5,
                       domain=MS, outputs=[F] * (2 if form.past else 1))  # fmt: skip
    peer.finish(0.8)


class Quantized(Self):
    """QAttention, in one of its forms."""

    def __init__(self, seed: int, dtype: Any = F) -> None:
        while True:
            super().__init__(seed, dtype)
            if len(set(self.widths)) == 1 and not self.shared and self.masked.bias is None:
                break
            seed += 7
        rng = np.random.default_rng([seed, 2])
        kinds = [(np.uint8, np.int8)[n] for n in rng.integers(0, 2, 2)]
        codes = [np.iinfo(kind) for kind in kinds]
        self.x = rng.integers(codes[0].min, codes[0].max + 1, self.x.shape).astype(kinds[0])
        self.w = rng.integers(codes[1].min, codes[1].max + 1, self.w.shape).astype(kinds[1])
        self.b = rng.normal(size=sum(self.widths)).astype(dtype)
        columns = sum(self.widths) if seed % 2 else 1
        self.scales = np.asarray(0.02, dtype), rng.uniform(0.001, 0.02, columns).astype(dtype)
        self.zeros = np.asarray(7, kinds[0]), rng.integers(0, 9, columns).astype(kinds[1])
        zeros = [None, None] if seed % 4 == 3 else self.zeros
        self.attributes.pop("qkv_hidden_sizes", None)
        self.inputs = [self.x, self.w, self.b, *self.scales, self.masked.mask, *zeros, self.cache]
        self.zeros = (np.zeros((), int), np.zeros(columns, int)) if seed % 4 == 3 else self.zeros

    def rows_of_codes(self) -> np.ndarray:
        made = np.zeros((*self.x.shape[:2], self.w.shape[1]), self.b.dtype)
        for b, s, n in np.ndindex(made.shape):
            column = n if self.scales[1].size > 1 else 0
            total = sum(
                (int(x) - int(self.zeros[0])) * (int(w) - int(self.zeros[1][column]))
                for x, w in zip(self.x[b, s], self.w[:, n], strict=True)
            )
            scale = Fraction(float(self.scales[0])) * Fraction(float(self.scales[1][column]))
            made[b, s, n] = nearest(total * scale + Fraction(float(self.b[n])), made.dtype)
        return made


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8)])
def test_attention_of_nothing(shape: tuple[int, ...]) -> None:
    inputs = [np.zeros(shape, F), np.ones((8, 24), F), np.zeros(24, F)]
    made = qrun_node("Attention", inputs, {"num_heads": 2}, domain=MS, outputs=[F], opset=21)
    assert made.shape == shape


@pytest.mark.parametrize("dtype", [F, H])
def test_q_attention_against_the_oracle(dtype: Any) -> None:
    for seed in range(32 if dtype == F else 12):
        form = Quantized(seed, dtype)
        want = form.expected(form.rows_of_codes())
        made = qrun_node("QAttention", form.inputs, form.attributes, domain=MS, outputs=[dtype] * 2)
        for got, expected in zip(made, want, strict=True):
            assert_equal(got, expected, f"seed {seed}", signed_zeros=False)


def test_q_attention_beside_onnxruntime() -> None:
    peer = Peer()
    for seed in range(32):
        form = Quantized(seed)
        if form.masked.kind not in ("square", "cumulated"):
            peer.check("QAttention", form.inputs, form.attributes, message=f"seed {seed}", rtol=1e-4, atol=1e-4,
                       domain=MS, outputs=[F] * (2 if form.past else 1))  # fmt: skip
    peer.finish(0.6)


class Multi:
    """MultiHeadAttention, in one of its forms."""

    def __init__(self, seed: int, dtype: Any = F) -> None:
        rng, self.batch, self.heads, self.rows, past = sizes(seed)
        self.kind = ("plain", "past", "shared", "crossed", "packed", "pairs")[seed % 6]
        self.past = past if self.kind in ("past", "shared") else 0
        same = self.kind in ("past", "shared", "packed")
        self.new = self.rows if same else int(rng.integers(1, 5))
        size = 2 if same or self.kind in ("pairs", "crossed") else 3
        self.masked = Masked(seed // 6, (self.batch, self.heads, self.rows, self.past + self.new), self.past, dtype)
        if self.masked.kind in ("ends", "square", "one"):
            self.masked.kind, self.masked.mask = "none", None
        shape = (self.batch, self.heads)
        self.q, self.k = (rng.normal(size=(*shape, n, 2)).astype(dtype) for n in (self.rows, self.new))
        self.v = rng.normal(size=(*shape, self.new, size)).astype(dtype)
        self.bias = rng.normal(size=self.heads * (4 + size)).astype(dtype) if seed % 4 else None
        room = self.past + (self.new + 1 if self.kind == "shared" else 0)
        self.caches = rng.normal(size=(2, *shape, room, 2)).astype(dtype)
        self.attributes = {**self.masked.attributes, **({"scale": 0.25} if seed % 5 == 0 else {})}

    @property
    def inputs(self) -> Arrays:
        given: Arrays = [joined(self.q), joined(self.k), joined(self.v)]
        if self.kind == "crossed":
            given[1:] = [self.k, self.v]
        if self.kind == "packed":
            given = [np.stack([self.q, self.k, self.v], 3).transpose(0, 2, 1, 3, 4), None, None]
        if self.kind == "pairs":
            given[1:] = [np.stack([self.k, self.v], 3).transpose(0, 2, 1, 3, 4), None]
        cache = list(self.caches) if self.past else [None, None]
        count = [np.array([self.past], np.int32)] if self.kind == "shared" else [None]
        return [*given, self.bias, self.masked.mask, self.masked.bias, *cache, *count]

    def expected(self) -> list[np.ndarray]:
        q, k, v = self.q, self.k, self.v
        if self.bias is not None:
            widths = [self.heads * x.shape[3] for x in (q, k, v)]
            parts = np.split(self.bias, np.cumsum(widths)[:2])
            added = [x + part.reshape(self.heads, 1, -1) for x, part in zip((q, k, v), parts, strict=True)]
            q, k, v = added if self.kind != "crossed" else [added[0], k, v]
        presents = [k, v]
        if self.past:
            k, v = (np.concatenate([c[:, :, : self.past], x], 2) for c, x in zip(self.caches, (k, v), strict=True))
            presents = [k, v] if self.kind == "past" else list(self.caches.copy())
            for present, x in zip(presents, (k, v), strict=True):
                present[:, :, : x.shape[2]] = x
        scale = self.attributes.get("scale", 1 / np.sqrt(F(2)))
        found = attend(q, k, v, self.masked.added, scale=scale)
        return [joined(found["y"]), *presents, found["biased"]]


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_multi_head_attention_against_the_oracle(dtype: Any) -> None:
    for seed in range(96 if dtype == F else 24):
        form = Multi(seed, dtype)
        made = qrun_node("MultiHeadAttention", form.inputs, form.attributes, domain=MS, outputs=[dtype] * 4)
        for place, (got, want) in enumerate(zip(made, form.expected(), strict=True)):
            assert_equal(got, want, f"seed {seed} {form.kind} output {place}", signed_zeros=False)


def test_multi_head_attention_beside_onnxruntime() -> None:
    peer = Peer()
    for seed in range(72):
        form = Multi(seed)
        rectangle = form.masked.causal and form.rows != form.new
        if form.kind in ("plain", "past", "crossed") and form.masked.kind != "cumulated" and not rectangle:
            peer.check("MultiHeadAttention", form.inputs, form.attributes, message=f"seed {seed} {form.kind}", rtol=1e-4,
                       atol=1e-5, domain=MS, outputs=[F] * (4 if form.past else 1))  # fmt: skip
    peer.finish(0.8)


def test_a_cache_gives_what_all_places_at_once_give() -> None:
    """Step by step with the past, causal: the same numbers as in one go."""
    rng = np.random.default_rng(5)
    x, w, b = rng.normal(size=(1, 4, 6)).astype(F), rng.normal(size=(6, 24)).astype(F), rng.normal(size=24).astype(F)
    attributes = {"num_heads": 2, "unidirectional": 1}
    whole = qrun_node("Attention", [x, w, b], attributes, domain=MS)
    past = np.zeros((2, 1, 2, 0, 4), F)
    for place in range(4):
        inputs = [x[:, place : place + 1], w, b, None, past]
        y, past = qrun_node("Attention", inputs, attributes, domain=MS, outputs=[F, F])
        assert_close(y[:, 0], whole[:, place])


X, W, B = np.ones((2, 3, 4), F), np.ones((4, 12), F), np.ones(12, F)
HEADS = {"num_heads": 2}


def test_refusals() -> None:
    assert_refused(
        [
            ("input has shape", "Attention", [X[0], W, B], HEADS),
            ("weights has shape", "Attention", [X, W.T, B], HEADS),
            ("bias has shape", "Attention", [X, W, B[:3]], HEADS),
            ("num_heads is 3", "Attention", [X, W, B], {"num_heads": 3}),
            ("num_heads is 0", "Attention", [X, W, B], {"num_heads": 0}),
            ("num_heads is -1", "Attention", [X, W, B], {"num_heads": -1, "qkv_hidden_sizes": [4, 4, W.shape[1] - 8]}),
            ("num_heads is 0", "Attention", [X, W, B], {"num_heads": 0, "qkv_hidden_sizes": [4, 4, W.shape[1] - 8]}),
            ("widths of Q, K and V", "Attention", [X, W, B], {**HEADS, "qkv_hidden_sizes": [4, 2, 6]}),
            ("angles are not known", "Attention", [X, W, B], {**HEADS, "do_rotary": 1}),
            ("mask_index has shape", "Attention", [X, W, B, np.ones((2, 5), np.int32)], HEADS),
            ("past has shape", "Attention", [X, W, B, None, np.ones((2, 2, 2, 1, 3), F)], HEADS),
            ("attention_bias has shape", "Attention", [X, W, B, None, None, np.ones((2, 2, 3), F)], HEADS),
            (
                "past_sequence_length is 2",
                "Attention",
                [X, W, B, None, np.ones((2, 2, 2, 4, 2), F), None, np.array([2], np.int32)],
                {**HEADS, "past_present_share_buffer": 1},
            ),
            ("query has shape", "MultiHeadAttention", [X], HEADS),
            ("key has shape", "MultiHeadAttention", [X, X], HEADS),
            ("query has shape", "MultiHeadAttention", [np.ones((1, 3, 2, 3, 2), F), X], HEADS),
            ("query has shape", "MultiHeadAttention", [np.ones((1, 3, 2, 2, 2), F)], HEADS),
            ("key has shape", "MultiHeadAttention", [X, X[:1], X[:1]], HEADS),
            ("bias has shape", "MultiHeadAttention", [X, X, X, B[:3]], HEADS),
            ("past_value is missing", "MultiHeadAttention", [X, X, X, *[None] * 3, np.ones((2, 2, 1, 2), F)], HEADS),
            ("keys are taken from", "MultiHeadAttention", [X, X, X, *[None] * 6, np.ones((2, 1, 4), np.int32)], HEADS),
        ],
        domain=MS,
    )


def test_refusals_of_codes() -> None:
    codes = [X.astype(np.uint8), W.astype(np.uint8), B, F(1), F(1)]
    for text, inputs, attributes in (
        ("the bias has the wrong shape|bias has shape", [*codes[:2], B[:3], *codes[3:]], HEADS),
        ("weight has shape", [codes[0], codes[1].T, *codes[2:]], HEADS),
        ("weight_zero_point", [*codes, None, np.uint8(1), np.int8(1)], HEADS),
        ("share memory", codes, {**HEADS, "past_present_share_buffer": 1}),
    ):
        with pytest.raises(qrun.QrunError, match=text):
            qrun_node("QAttention", inputs, attributes, domain=MS, outputs=[F])
