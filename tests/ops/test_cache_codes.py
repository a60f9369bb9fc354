"""GroupQueryAttention with caches of codes: against fractions, beside onnxruntime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import assert_close, qrun_node
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle.attention import attend, joined
from oracle.cast import nearest

import qrun

F, H, BF, E4 = np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


class Cached:
    """One step or prompt with caches of codes; the seed chooses the form. The sequences have the same places."""

    def __init__(self, seed: int, dtype: Any = F, size: int = 4) -> None:
        rng = np.random.default_rng(seed)
        self.bits, self.kind = (8, 4)[seed % 2], ("PER_TENSOR", "PER_CHANNEL")[seed // 2 % 2]
        self.batch, self.kv, self.group = 1 + seed // 4 % 2, *(int(n) for n in rng.integers(1, 3, 2))
        self.new = int(rng.integers(1, 4)) if self.batch == 1 else 1
        self.first = int(rng.integers(0, 5)) if self.new > 1 else int(rng.integers(1, 5))
        self.low, self.high = (-128, 127) if self.bits == 8 else (-8, 7)
        q = (self.batch, self.kv * self.group, self.new, size)
        self.q = rng.normal(size=q).astype(dtype)
        self.k, self.v = rng.normal(size=(2, self.batch, self.kv, self.new, size)).astype(dtype)
        shape = (1, self.kv, 1, size) if self.kind == "PER_CHANNEL" else (1,)
        self.scales = rng.uniform(2 / self.high, 5 / self.high, (2, *shape)).astype(F)
        self.room = self.first if seed % 3 else self.first + self.new + 1
        past = (2, self.batch, self.kv, self.room, size)
        self.past = rng.integers(self.low, self.high, past, endpoint=True)
        self.attributes = {
            "num_heads": self.kv * self.group,
            "kv_num_heads": self.kv,
            "k_quant_type": self.kind,
            "v_quant_type": self.kind,
            "kv_cache_bit_width": self.bits,
        }

    @property
    def total(self) -> int:
        return self.first + self.new

    def packed(self, codes: np.ndarray) -> np.ndarray:
        """As the cache holds them: two of 4 bits in a byte, the first in its low half, as numbers from 0 to 15."""
        if self.bits == 8:
            return codes.astype(np.int8)
        return ((codes[..., ::2] + 8) + 16 * (codes[..., 1::2] + 8)).astype(np.uint8)

    @property
    def inputs(self) -> list[Any]:
        ends = [np.full(self.batch, self.total - 1, np.int32), np.array(self.total, np.int32)]
        parts = [joined(x) for x in (self.q, self.k, self.v)]
        return [*parts, *map(self.packed, self.past), *ends, *[None] * 5, *self.scales]

    def codes(self, x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Number by number: the quotient in float32, a half to the even code, the ends for what lies outside."""
        made = np.zeros(x.shape, int)
        for place in np.ndindex(x.shape):
            scale = np.broadcast_to(scales, (1, *x.shape[1:2], 1, x.shape[3]))[0, place[1], 0, place[3]]
            quotient = nearest(Fraction(float(x[place])) / Fraction(float(scale)), F)
            made[place] = min(max(round(Fraction(float(quotient))), self.low), self.high)
        return made

    def expected(self) -> list[np.ndarray]:
        y, presents = [], []
        held = []
        for x, past, scales in zip((self.k, self.v), self.past, self.scales, strict=True):
            codes = np.concatenate([past[:, :, : self.first], self.codes(x, scales)], 2)
            meant = [nearest(Fraction(int(c)) * Fraction(float(s)), F) for c, s in zip(
                codes.ravel(), np.broadcast_to(scales, codes.shape).ravel(), strict=True)]  # fmt: skip
            held.append(np.array([float(m) for m in meant], F).reshape(codes.shape).astype(x.dtype))
            present = self.packed(codes)
            beyond = max(self.room - self.total, 0)
            presents.append(np.pad(present, [(0, 0), (0, 0), (0, beyond), (0, 0)]))
        for b in range(self.batch):
            added = lambda _b, _n, s, t: [] if t <= self.first + s else [-np.inf]  # noqa: E731
            scale = 1 / np.sqrt(F(self.q.shape[3]))
            made = attend(self.q[b : b + 1], *(x[b : b + 1] for x in held), added, scale=scale, group=self.group)
            y.append(made["y"])
        return [joined(np.concatenate(y)), *presents]


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_against_fractions(dtype: Any) -> None:
    for seed in range(32):
        form = Cached(seed, dtype)
        kind = np.int8 if form.bits == 8 else np.uint8
        made = qrun_node("GroupQueryAttention", form.inputs, form.attributes, domain=MS, outputs=[dtype, kind, kind])
        for place, (got, want) in enumerate(zip(made, form.expected(), strict=True)):
            assert_equal(got, want, f"seed {seed} output {place}", signed_zeros=False)


def test_beside_onnxruntime() -> None:
    """The caches are the same codes: no quotient of these lies near the middle between two."""
    for seed in range(24):
        form = Cached(seed, size=16)
        kind = np.int8 if form.bits == 8 else np.uint8
        model, feeds = node_model(
            "GroupQueryAttention", form.inputs, form.attributes, domain=MS, outputs=[F, kind, kind]
        )
        made, want = run_qrun(model, feeds), run_ort(model, feeds)
        assert_close(made[0], want[0], f"seed {seed}", 1e-5, 1e-6)
        for got, other in zip(made[1:], want[1:], strict=True):
            assert_equal(got[:, :, : form.total], other[:, :, : form.total], f"seed {seed} present")


def test_float8() -> None:
    """The cache of float8 holds QuantizeLinear's numbers."""
    rng = np.random.default_rng(5)
    q, (k, v) = rng.normal(size=(1, 1, 8)).astype(F), rng.normal(size=(2, 1, 1, 4)).astype(F)
    past = rng.normal(size=(2, 1, 1, 3, 4)).astype(E4)
    numbers, scales = [np.array([3], np.int32), np.array(4, np.int32)], [np.array([0.5], F), np.array([0.25], F)]
    codes = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    heads = {"num_heads": 2, "kv_num_heads": 1}
    given = [q, k, v, *past, *numbers, *[None] * 5, *scales]
    y, *presents = qrun_node("GroupQueryAttention", given, heads | codes, domain=MS, outputs=[F, E4, E4])
    meant = []
    for present, old, new, scale in zip(presents, past, (k, v), scales, strict=True):
        assert_equal(present, np.concatenate([old, (new[:, :, None] / scale).astype(E4)], 2))
        meant.append(present.astype(F) * scale)
    floats = [q, meant[0][:, 0, 3:], meant[1][:, 0, 3:], *(x[:, :, :3] for x in meant), *numbers]
    assert_equal(y, qrun_node("GroupQueryAttention", floats, heads, domain=MS, outputs=[F] * 3)[0])


FORM = Cached(2, size=4)


@pytest.mark.parametrize(
    ("text", "place", "value", "attributes"),
    [
        ("k_scale is missing", 12, None, {}),
        ("v_scale has shape", 13, np.ones(3, F), {}),
        ("k_scale has shape", 12, np.ones(4, F), {"k_quant_type": "PER_TENSOR"}),
        ("v_quant_type is NONE", None, None, {"v_quant_type": "NONE"}),
        ("k_quant_type is PER_ROW", None, None, {"k_quant_type": "PER_ROW"}),
        ("kv_cache_bit_width is 2", None, None, {"kv_cache_bit_width": 2}),
        ("kv_cache_bit_width is 8", None, None, {"k_quant_type": "NONE", "v_quant_type": "NONE"}),
        ("past_key has shape", None, None, {"kv_cache_bit_width": 4}),
        ("past_key is uint8", 3, FORM.inputs[3].view(np.uint8), {}),
    ],
)
def test_refusals(text: str, place: int | None, value: Any, attributes: dict[str, Any]) -> None:
    inputs = FORM.inputs
    if place is not None:
        inputs[place] = value
        if place == 3:
            inputs[4] = inputs[4].view(np.uint8)
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node("GroupQueryAttention", inputs, FORM.attributes | attributes, domain=MS, outputs=[F, np.int8, np.int8])


def test_heads_of_an_odd_size_have_no_codes_of_4_bits() -> None:
    form = Cached(3, size=4)
    inputs = [
        *(np.ones((1, 1, 3), F) for _ in range(3)),
        *[None] * 2,
        *form.inputs[5:7],
        *[None] * 5,
        *[np.ones(1, F)] * 2,
    ]
    attributes = form.attributes | {"num_heads": 1, "kv_num_heads": 1}
    with pytest.raises(qrun.QrunError, match="heads have 3 elements"):
        qrun_node("GroupQueryAttention", inputs, attributes, domain=MS)
