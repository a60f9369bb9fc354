"""Attention and RotaryEmbedding of ai.onnx: against fractions, as their nodes, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, assert_refused, qrun_node
from helpers.support import assert_equal
from oracle.attention import attend, joined, rotary, split

F, H, D, BF = np.float32, np.float16, np.float64, ml_dtypes.bfloat16
Arrays = list[Any]


class Form:
    """A node in one of its forms; the seed chooses it."""

    def __init__(self, seed: int, dtype: Any = F) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.version = (23, 24, 25)[seed % 3]
        self.batch, self.kv, group, self.rows, self.new = (int(n) for n in rng.integers(1, [3, 3, 3, 4, 5]))
        self.heads, size, width = self.kv * group, 4, int(rng.integers(1, 4))
        kind = "past" if seed % 4 == 1 else "lengths" if seed % 4 == 2 and self.version > 23 else ""
        self.past = int(rng.integers(1, 3)) if kind == "past" else 0
        self.total = self.past + self.new
        self.q = self.normal(self.batch, self.heads, self.rows, size).astype(dtype)
        self.k, self.past_key = (self.normal(self.batch, self.kv, n, size).astype(dtype) for n in (self.new, self.past))
        self.v, self.past_value = (
            self.normal(self.batch, self.kv, n, width).astype(dtype) for n in (self.new, self.past)
        )
        self.lengths = rng.integers(0, self.new + 1, self.batch) if kind == "lengths" else None
        self.mask = self.chosen_mask(seed, dtype)
        self.attributes: dict[str, Any] = {"is_causal": seed % 2, "qk_matmul_output_mode": seed % 4}
        if seed % 5 == 0:
            self.attributes["scale"] = 0.3
        if seed % 5 == 1:
            self.attributes["softcap"] = 1.5
        if self.version == 25 and seed % 2:
            self.attributes |= {"left_window_size": int(rng.integers(-1, 3)), "right_window_size": seed % 3 - 1}
        self.flat = seed % 7 < 3
        if self.flat:
            self.attributes |= {"q_num_heads": self.heads, "kv_num_heads": self.kv}

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape)

    def chosen_mask(self, seed: int, dtype: Any) -> np.ndarray | None:
        width = self.total - 1 if self.version > 23 and seed % 11 == 0 and self.total > 1 else self.total
        shape = [(self.rows, width), (self.batch, 1, self.rows, width), (1, self.heads, 1, width)][seed % 3]
        return [None, self.rng.random(shape) < 0.7, self.normal(*shape).astype(dtype)][seed // 2 % 3]

    @property
    def inputs(self) -> Arrays:
        cache = [self.past_key, self.past_value] if self.past else [None, None]
        given = [joined(x) for x in (self.q, self.k, self.v)] if self.flat else [self.q, self.k, self.v]
        return [*given, self.mask, *cache, *([self.lengths] if self.version > 23 else [])]

    def biases(self, b: int, n: int, s: int, t: int) -> list[float]:
        """What hides is added after the mask's number, to it, in the type; here none of both is 0 unless one hides."""
        added = 0.0
        if self.mask is not None:
            wide = np.broadcast_to(self.mask, (self.batch, self.heads, self.rows, self.mask.shape[-1]))
            if t >= wide.shape[-1]:
                return [-np.inf]
            held = wide[b, n, s, t]
            added = (0.0 if held else -np.inf) if wide.dtype == bool else float(held)
        before = self.past if self.lengths is None else int(self.lengths[b]) - self.rows
        left, right = (self.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
        seen = not self.attributes["is_causal"] or t <= s + before
        seen = seen and (left < 0 or t >= s + before - left) and (right < 0 or t <= s + before + right)
        seen = seen and (self.lengths is None or t < self.lengths[b])
        return [added if seen else -np.inf]

    def expected(self) -> list[np.ndarray]:
        keys = np.concatenate([self.past_key, self.k], axis=2)
        values = np.concatenate([self.past_value, self.v], axis=2)
        given = self.attributes.get("scale", 1 / np.sqrt(F(self.q.shape[3])))
        root = np.sqrt(F(given)).astype(self.q.dtype)
        softcap = self.attributes.get("softcap", 0.0)
        found = attend(self.q * root, keys * root, values, self.biases, softcap=softcap, group=self.heads // self.kv)
        y = joined(found["y"]) if self.flat else found["y"]
        scores = found[("products", "capped", "biased", "shares")[self.attributes["qk_matmul_output_mode"]]]
        return [y, keys, values, scores]


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_against_the_oracle(dtype: Any) -> None:
    for seed in range(48 if dtype == F else 16):
        form = Form(seed, dtype)
        outputs = [dtype] * 4 if form.lengths is None else [dtype]
        made = qrun_node("Attention", form.inputs, form.attributes, opset=form.version, outputs=outputs)
        for place, (got, want) in enumerate(zip(made if len(outputs) > 1 else [made], form.expected(), strict=False)):
            assert_equal(got, want, f"seed {seed}, output {place}", signed_zeros=False)


def test_beside_onnxruntime() -> None:
    peer = Peer()
    for seed in range(36):
        form = Form(seed)
        if form.version < 25:
            mode = form.attributes.pop("qk_matmul_output_mode")
            count = 1 if form.lengths is not None else 3 if mode % 2 else 4
            peer.check("Attention", form.inputs, form.attributes, message=f"seed {seed}", rtol=1e-4, atol=1e-5,
                       opset=form.version, outputs=[F] * count)  # fmt: skip
    peer.finish(0.6)


def test_types_of_their_own() -> None:
    """V of another type, masks of integers, and Softmax in another type."""
    form = Form(0)
    q, k, v = form.q, form.k, form.v
    wide = qrun_node("Attention", [q, k, v.astype(D)], opset=23, outputs=[F, F, D])
    assert [a.dtype for a in wide] == [F, F, D]
    assert_close(wide[0], qrun_node("Attention", [q, k, v], opset=23), rtol=1e-6)
    mask = np.arange(form.rows * form.new).reshape(form.rows, form.new)
    attributes = {"is_causal": 1}
    made = [qrun_node("Attention", [q, k, v, m], attributes, opset=23) for m in (mask, mask.astype(F))]
    assert_equal(*made)
    half = [x.astype(H) for x in (q, k, v)]
    narrow = [qrun_node("Attention", half, {"softmax_precision": p}, opset=24) for p in (10, 1)]
    assert narrow[1].dtype == H
    assert_equal(narrow[0], qrun_node("Attention", half, opset=24))


def test_the_same_bits_as_the_nodes_they_were() -> None:
    for seed in range(12):
        q, k, v = (np.random.default_rng(seed).normal(size=(2, 2, n, 8)).astype(F) for n in (3, 5, 5))
        root = np.sqrt(F(1) / np.sqrt(F(8)))
        scores = qrun_node("MatMul", [q * root, np.swapaxes(k * root, 2, 3)])
        want = qrun_node("MatMul", [qrun_node("Softmax", [scores]), v])
        assert_equal(qrun_node("Attention", [q, k, v], opset=24), want, f"seed {seed}")


def test_a_row_that_sees_nothing_is_zero() -> None:
    q = np.ones((1, 1, 2, 2), F)
    mask = np.array([[True, False], [False, False]])
    y, *_, shares = qrun_node("Attention", [q, q, q * 3, mask], {"qk_matmul_output_mode": 3}, opset=23, outputs=[F] * 4)
    assert y[0, 0].tolist() == [[3, 3], [0, 0]]
    assert shares[0, 0].tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_rotary_embedding_against_the_oracle(dtype: Any) -> None:
    for seed in range(24):
        rng = np.random.default_rng(seed)
        batch, heads, rows = (int(n) for n in rng.integers(1, 4, 3))
        width, interleaved = (8, 4)[seed % 2], seed // 2 % 2
        x = rng.normal(size=(batch, heads, rows, 8)).astype(dtype)
        cos, sin = rng.normal(size=(2, 9, width // 2)).astype(dtype)
        places = rng.integers(0, 9, (batch, rows))
        want = rotary(x, cos, sin, places, bool(interleaved))
        attributes = {"interleaved": interleaved, "rotary_embedding_dim": 0 if width == 8 else 4}
        caches = [cos[places], sin[places]] if seed % 3 == 0 else [cos, sin, places]
        made = qrun_node("RotaryEmbedding", [x, *caches], attributes, opset=23)
        assert_equal(made, want, f"seed {seed}", signed_zeros=False)
        flat = qrun_node("RotaryEmbedding", [joined(x), *caches], {**attributes, "num_heads": heads}, opset=23)
        assert_equal(split(flat, heads), want, f"seed {seed}, three axes", signed_zeros=False)


def test_rotary_embedding_beside_onnxruntime() -> None:
    peer = Peer()
    rng = np.random.default_rng(0)
    for interleaved in (0, 1):
        x, (cos, sin) = rng.normal(size=(2, 3, 4, 8)).astype(F), rng.normal(size=(2, 9, 4)).astype(F)
        inputs = [x, cos, sin, rng.integers(0, 9, (2, 4))]
        peer.check("RotaryEmbedding", inputs, {"interleaved": interleaved}, message=str(interleaved), opset=23)
    peer.finish(1.0)


X = np.ones((2, 4, 3, 8), F)
CACHE = np.ones((5, 4), F)


def test_refusals() -> None:
    assert_refused(
        [
            ("K has shape", "Attention", [X, X[:1], X[:1]], {}),
            ("V has shape", "Attention", [X, X, X[:, :, :2]], {}),
            ("number of heads of K does not divide", "Attention", [X, X[:, :3], X[:, :3]], {}),
            ("q_num_heads is left out", "Attention", [X[0], X[0], X[0]], {}),
            ("kv_num_heads is 3", "Attention", [X[0], X[0], X[0]], {"q_num_heads": 2, "kv_num_heads": 3}),
            ("past_value is missing", "Attention", [X, X, X, None, X], {}),
            ("past_key has shape", "Attention", [X, X, X, None, X[:, :2], X[:, :2]], {}),
            ("attn_mask has shape", "Attention", [X, X, X, np.ones((5, 3), F)], {}),
            ("nonpad_kv_seqlen has 4", "Attention", [X, X, X, None, None, None, np.array([1, 4])], {}),
            ("nonpad_kv_seqlen has shape", "Attention", [X, X, X, None, None, None, np.array([1])], {}),
            ("left_window_size is -2", "Attention", [X, X, X], {"left_window_size": -2}),
            ("qk_matmul_output_mode is 4", "Attention", [X, X, X], {"qk_matmul_output_mode": 4}),
            ("softmax_precision is", "Attention", [X, X, X], {"softmax_precision": 7}),
            ("num_heads is left out", "RotaryEmbedding", [X[0], CACHE, CACHE, np.zeros((4, 3), int)], {}),
            ("no position 5", "RotaryEmbedding", [X, CACHE, CACHE, np.full((2, 3), 5)], {}),
            ("cos_cache has shape", "RotaryEmbedding", [X, CACHE[:, :2], CACHE, np.zeros((2, 3), int)], {}),
            ("sin_cache has shape", "RotaryEmbedding", [X, np.ones((2, 3, 4), F), CACHE], {}),
            (
                "9 elements of a head",
                "RotaryEmbedding",
                [X, CACHE, CACHE, np.zeros((2, 3), int)],
                {"rotary_embedding_dim": 9},
            ),
        ],
        opset=25,
    )
