"""GroupQueryAttention, RotaryEmbedding and EmbedLayerNormalization of com.microsoft:
against fractions, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, qrun_node
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle.attention import attend, joined, rotary, split

import qrun

F, H, BF = np.float32, np.float16, ml_dtypes.bfloat16
Arrays = list[Any]


class Decoder:
    """GroupQueryAttention, in one of its forms; the seed chooses it."""

    def __init__(self, seed: int, dtype: Any = F, size: int = 4) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.kind = ("prompt", "step", "further", "windowed")[seed % 4]
        self.batch = 1 if self.kind == "further" else int(rng.integers(1, 3))
        self.kv, group = int(rng.integers(1, 3)), int(rng.integers(1, 3))
        self.heads = self.kv * group
        self.new = 1 if self.kind in ("step", "windowed") else int(rng.integers(2, 5))
        past = rng.integers(1, 5, self.batch) if self.kind != "prompt" else np.zeros(self.batch, int)
        self.totals = past + self.new
        if self.kind == "prompt":
            self.totals = rng.integers(1, self.new + 1, self.batch)
            self.totals[0] = self.new
        self.total = int(self.totals.max())
        self.window = int(rng.integers(1, 4)) if seed % 3 == 1 or self.kind == "windowed" else -1
        self.room = self.window + int(rng.integers(0, 3)) if self.kind == "windowed" else self.total + seed % 2
        shape = (self.batch, self.kv)
        self.q = rng.normal(size=(self.batch, self.heads, self.new, size)).astype(dtype)
        self.k, self.v = rng.normal(size=(2, *shape, self.new, size)).astype(dtype)
        self.all = rng.normal(size=(2, *shape, int(past.max()), size)).astype(dtype)
        self.past = None
        if self.kind != "prompt" or seed % 8 == 4:
            self.past = np.zeros((2, *shape, self.room, size), dtype)
            for b in range(self.batch):
                kept = self.resident(int(past[b]))
                self.past[:, b, :, :kept] = self.all[:, b, :, past[b] - kept : past[b]]
        self.bias = None
        if seed % 5 == 2:
            lead = (self.batch if seed % 2 else 1, self.heads if seed % 3 else 1)
            self.bias = rng.normal(size=(*lead, self.new, self.total)).astype(dtype)
        self.sink = rng.normal(size=self.heads).astype(dtype) if seed % 7 == 3 else None
        self.turns = seed % 3 != 2
        self.cos, self.sin = rng.normal(size=(2, 12, size // 2 if seed % 5 else size // 4)).astype(dtype)
        self.places = rng.integers(0, 12, (self.batch, self.new)) if self.turns and seed % 4 and seed % 7 == 1 else None
        self.packed = seed % 6 == 5
        self.attributes = {
            "num_heads": self.heads,
            "kv_num_heads": self.kv,
            "do_rotary": int(self.turns),
            "rotary_interleaved": seed // 3 % 2,
            "local_window_size": self.window,
            "sliding_window_cache": int(self.kind == "windowed"),
            "smooth_softmax": int(seed % 7 == 5),
            "qk_output": seed % 3,
            "causal": int(self.window > 0 or seed % 11 != 4),
            **({"scale": 0.3} if seed % 4 == 1 else {}),
            **({"softcap": 1.5} if seed % 6 == 1 else {}),
        }

    def resident(self, total: int) -> int:
        """How many of the last places a cache of the window holds, by going through all steps."""
        if self.kind != "windowed":
            return total
        held = 0
        for _ in range(total):
            held = self.window if held == self.room else held + 1
        return held

    @property
    def inputs(self) -> Arrays:
        parts = [joined(x) for x in (self.q, self.k, self.v)]
        given = [np.concatenate(parts, axis=2), None, None] if self.packed else parts
        caches = [None, None] if self.past is None else list(self.past)
        ends = [(self.totals - 1).astype(np.int32), np.array(self.total, np.int32)]
        angles = [self.cos, self.sin] if self.turns else [None, None]
        return [*given, *caches, *ends, *angles, self.places, self.bias, self.sink]

    def expected(self) -> list[np.ndarray]:
        q, k = self.q, self.k
        prompt = self.total == self.new
        if self.turns:
            firsts = np.zeros(self.batch, int) if prompt else self.totals - self.new
            places = self.places if self.places is not None else firsts[:, None] + np.arange(self.new)
            turned = bool(self.attributes["rotary_interleaved"])
            q, k = (rotary(x, self.cos, self.sin, places, turned) for x in (q, k))
        y, scores = np.zeros_like(q), np.zeros((*q.shape[:3], self.total), q.dtype)
        rows = self.room if self.past is not None else self.total
        rows = rows if self.kind == "windowed" else max(rows, self.total)
        presents = np.zeros((2, *k.shape[:2], rows, k.shape[3]), k.dtype)
        for b, total in enumerate(self.totals.tolist()):
            new = total if prompt else self.new
            before = [x[b, :, : total - new] for x in self.all]
            held = [np.concatenate([c, x[b, :, :new]], 1) for c, x in zip(before, (k, self.v), strict=True)]
            kept = self.resident(total)
            for present, x in zip(presents, held, strict=True):
                present[b, :, :kept] = x[:, total - kept :]
            found = self.attended(b, q[b : b + 1, :, :new], held, total - new)
            y[b, :, :new] = found["y"][0]
            told = found["shares" if self.attributes["qk_output"] == 2 else "biased"][0]
            scores[b, :, :new, :total] = np.where(np.isneginf(told), 0, told)
        return [joined(y), *presents, scores]

    def attended(self, b: int, q: np.ndarray, held: Arrays, first: int) -> dict[str, np.ndarray]:
        def added(_: int, n: int, s: int, t: int) -> list[float]:
            place = first + s
            seen = (t <= place or not self.attributes["causal"]) and (self.window < 0 or t > place - self.window)
            wide = (
                None
                if self.bias is None
                else np.broadcast_to(self.bias, (self.batch, self.heads, self.new, self.total))
            )
            return [] if seen and wide is None else [-np.inf] if not seen else [float(wide[b, n, s, t])]

        sinks = self.sink
        if sinks is None and self.attributes["smooth_softmax"]:
            sinks = np.zeros(self.heads, F)
        return attend(
            q,
            held[0][None],
            held[1][None],
            added,
            scale=self.attributes.get("scale", 1 / np.sqrt(F(q.shape[3]))),
            softcap=self.attributes.get("softcap", 0.0),
            sinks=sinks,
            group=self.heads // self.kv,
        )


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_against_the_oracle(dtype: Any) -> None:
    for seed in range(120 if dtype == F else 30):
        form = Decoder(seed, dtype)
        made = qrun_node("GroupQueryAttention", form.inputs, form.attributes, domain=MS, outputs=[dtype] * 4)
        for place, (got, want) in enumerate(zip(made, form.expected(), strict=True)):
            assert_equal(got, want, f"seed {seed} {form.kind} output {place}", signed_zeros=False)


def test_beside_onnxruntime() -> None:
    """Rows of padding are what they are there, and what a cache has beyond its places."""
    ran = tried = 0
    for seed in range(96):
        form = Decoder(seed, size=16)
        if form.total == form.new and (form.totals != form.new).any():
            continue
        count = 4 if form.attributes["qk_output"] and form.kind != "windowed" else 3
        model, feeds = node_model("GroupQueryAttention", form.inputs, form.attributes, domain=MS, outputs=[F] * count)
        made = run_qrun(model, feeds)
        tried += 1
        try:
            want = run_ort(model, feeds)
        except Exception as error:
            print(seed, form.kind, error)
            continue
        ran += 1
        assert_close(made[0], want[0], f"seed {seed} {form.kind}", 1e-4, 1e-5)
        for got, other in zip(made[1:3], want[1:3], strict=True):
            for b, total in enumerate(form.totals.tolist()):
                kept = form.resident(total)
                assert_close(got[b, :, :kept], other[b, :, :kept], f"seed {seed} present", 1e-4, 1e-5)
    assert ran >= 0.6 * tried > 30


def test_a_cache_gives_what_all_places_at_once_give() -> None:
    rng = np.random.default_rng(3)
    q, (k, v) = rng.normal(size=(1, 6, 32)).astype(F), rng.normal(size=(2, 1, 6, 16)).astype(F)
    caches, attributes = rng.normal(size=(2, 8, 4)).astype(F), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    numbers = [np.array([5], np.int32), np.array(6, np.int32), *caches]
    whole = qrun_node("GroupQueryAttention", [q, k, v, None, None, *numbers], attributes, domain=MS)
    past = list(np.zeros((2, 1, 2, 0, 8), F))
    for place in range(6):
        numbers = [np.array([place], np.int32), np.array(place + 1, np.int32), *caches]
        rows = [x[:, place : place + 1] for x in (q, k, v)]
        y, *past = qrun_node("GroupQueryAttention", [*rows, *past, *numbers], attributes, domain=MS, outputs=[F, F, F])
        assert_close(y[:, 0], whole[:, place])


def test_heads_are_normalized_before_they_turn() -> None:
    rng = np.random.default_rng(4)
    q, (k, v) = rng.normal(size=(2, 3, 16)).astype(F), rng.normal(size=(2, 2, 3, 8)).astype(F)
    weights = list(rng.normal(size=(2, 4)).astype(F))
    numbers = [np.array([2, 2], np.int32), np.array(3, np.int32), *rng.normal(size=(2, 3, 2)).astype(F)]
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    inputs = [q, k, v, None, None, *numbers, *[None] * 5, *weights]
    made = qrun_node("GroupQueryAttention", inputs, {**attributes, "qk_norm_epsilon": 0.25}, domain=MS)
    normal = [
        joined(qrun_node("RMSNormalization", [split(x, n), w], {"epsilon": 0.25}, opset=23))
        for x, n, w in zip((q, k), (4, 2), weights, strict=True)
    ]
    assert_equal(made, qrun_node("GroupQueryAttention", [*normal, v, None, None, *numbers], attributes, domain=MS))


Q, KV, END, ALL = np.ones((2, 3, 8), F), np.ones((2, 3, 4), F), np.array([2, 2], np.int32), np.array(3, np.int32)
PAST, CACHE = np.ones((2, 2, 4, 2), F), np.ones((4, 1), F)
GQA = {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize(
    ("text", "inputs", "attributes"),
    [
        ("query has shape", [Q[0], KV, KV, None, None, END, ALL], GQA),
        ("key has shape", [Q, Q, Q, None, None, END, ALL], GQA),
        ("value is missing", [Q, KV, None, None, None, END, ALL], GQA),
        ("past_value is missing", [Q, KV, KV, PAST, None, END, ALL], GQA),
        ("past_value has shape", [Q, KV, KV, PAST, PAST[:, :, :2], END, ALL], GQA),
        ("past_key has shape", [Q, KV, KV, PAST[:, :1], PAST[:, :1], END, ALL], GQA),
        ("kv_num_heads is 3", [Q, KV, KV, None, None, END, ALL], {**GQA, "kv_num_heads": 3}),
        ("seqlens_k has 3", [Q, KV, KV, None, None, END + 1, ALL], GQA),
        ("seqlens_k has 3", [Q, KV, KV, None, None, END + 1, ALL + 1], GQA),
        ("seqlens_k has -1", [Q, KV, KV, None, None, END - 3, ALL], GQA),
        ("seqlens_k has 7", [Q, KV, KV, PAST, PAST, END + 5, ALL + 5], GQA),
        ("seqlens_k has shape", [Q, KV, KV, None, None, END[:1], ALL], GQA),
        ("total_sequence_length is 2", [Q, KV, KV, None, None, END, ALL - 1], GQA),
        ("total_sequence_length has shape", [Q, KV, KV, None, None, END, END], GQA),
        ("no angles", [Q, KV, KV, None, None, END, ALL], {**GQA, "do_rotary": 1}),
        ("no position 2", [Q, KV, KV, None, None, END, ALL, *[CACHE[:2]] * 2], {**GQA, "do_rotary": 1}),
        ("attention_bias has shape", [Q, KV, KV, None, None, END, ALL, *[None] * 3, Q], GQA),
        ("head_sink has shape", [Q, KV, KV, None, None, END, ALL, *[None] * 4, CACHE[0]], GQA),
        ("k_norm_weight is missing", [Q, KV, KV, None, None, END, ALL, *[None] * 7, CACHE[0]], GQA),
        ("causal is 2", [Q, KV, KV, None, None, END, ALL], {**GQA, "causal": 2}),
        ("local_window_size is 0", [Q, KV, KV, None, None, END, ALL], {**GQA, "local_window_size": 0}),
        ("sliding_window_cache is 1", [Q, KV, KV, None, None, END, ALL], {**GQA, "sliding_window_cache": 1}),
        ("smaller than the window", [Q, KV, KV, PAST, PAST, END, ALL],
         {**GQA, "sliding_window_cache": 1, "local_window_size": 5}),
    ],
)  # fmt: skip
def test_refusals(text: str, inputs: Arrays, attributes: dict[str, Any]) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node("GroupQueryAttention", inputs, attributes, domain=MS)


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_rotary_embedding(dtype: Any) -> None:
    peer = Peer()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        batch, heads, rows = (int(n) for n in rng.integers(1, 4, 3))
        x, width = rng.normal(size=(batch, heads, rows, 8)).astype(dtype), (8, 4)[seed % 2]
        cos, sin = rng.normal(size=(2, 9, width // 2)).astype(dtype)
        places = rng.integers(0, 9, (batch, rows))
        given = places
        if seed % 3 == 0:
            given, places = np.array([2]), np.broadcast_to(2 + np.arange(rows), (batch, rows))
        attributes: dict[str, Any] = {"interleaved": seed // 2 % 2}
        if width < 8:
            attributes |= {"num_heads": heads, "rotary_embedding_dim": 4}
        want = rotary(x, cos, sin, places, bool(attributes["interleaved"]))
        flat = [joined(x), given, cos, sin]
        assert_equal(split(qrun_node("RotaryEmbedding", flat, attributes, domain=MS), heads), want, signed_zeros=False)
        assert_equal(qrun_node("RotaryEmbedding", [x, *flat[1:]], attributes, domain=MS), want, signed_zeros=False)
        if dtype == F:
            peer.check("RotaryEmbedding", flat, attributes, message=f"seed {seed}", rtol=1e-4, atol=1e-5, domain=MS)
    if dtype == F:
        peer.finish(0.9)


def test_refusals_of_rotary_embedding() -> None:
    x, cache = np.ones((2, 3, 8), F), np.ones((5, 4), F)
    for text, inputs, attributes in (
        ("num_heads is left out", [x, np.array([0]), cache, cache], {"rotary_embedding_dim": 4}),
        ("num_heads is 3", [x, np.array([0]), cache, cache], {"num_heads": 3}),
        ("input has shape", [x[0], np.array([0]), cache, cache], {}),
        ("position_ids has shape", [x, np.array([0, 1]), cache, cache], {}),
        ("no position 5", [x, np.array([3]), cache, cache], {}),
        ("sin_cache has shape", [x, np.array([0]), cache, cache[:, :2]], {}),
    ):
        with pytest.raises(qrun.QrunError, match=text):
            qrun_node("RotaryEmbedding", inputs, attributes, domain=MS)


def embedding(seed: int, dtype: Any = F) -> tuple[Arrays, np.ndarray, np.ndarray]:
    """A node's inputs, the sum of the embeddings and the lengths of the mask."""
    rng = np.random.default_rng(seed)
    batch, rows, width = (int(n) for n in rng.integers(1, 5, 3))
    ids, kinds = (rng.integers(0, n, (batch, rows)).astype(np.int32) for n in (9, 2))
    words, places, segments = (rng.normal(size=(n, width)).astype(dtype) for n in (9, 6, 2))
    given = [None, rng.integers(0, 6, (1, rows)), rng.integers(0, 6, (batch, rows))][seed % 3]
    mask = rng.integers(0, 2, (batch, rows)).astype(np.int32) if seed % 2 else None
    total = np.zeros((batch, rows, width), dtype)
    for b, s in np.ndindex(batch, rows):
        place = s if given is None else int(np.broadcast_to(given, (batch, rows))[b, s])
        total[b, s] = words[ids[b, s]] + places[place]
        if seed % 4:
            total[b, s] += segments[kinds[b, s]]
    weights = list(rng.normal(size=(2, width)).astype(dtype))
    tables = [ids, kinds, words, places, segments] if seed % 4 else [ids, None, words, places, None]
    lengths = np.zeros(batch, np.int32) if mask is None else np.array([list(m).count(1) for m in mask], np.int32)
    position = None if given is None else given.astype(np.int32)
    return [*tables, *weights, mask, position], total, lengths


@pytest.mark.parametrize("dtype", [F, H])
def test_embeddings(dtype: Any) -> None:
    peer = Peer()
    for seed in range(24):
        inputs, total, lengths = embedding(seed, dtype)
        outputs = [dtype, np.int32, dtype]
        made = qrun_node("EmbedLayerNormalization", inputs, {"epsilon": 1e-3}, domain=MS, outputs=outputs)
        assert_equal(made[1], lengths)
        assert_equal(made[2], total)
        assert_equal(made[0], qrun_node("LayerNormalization", [total, *inputs[5:7]], {"epsilon": 1e-3}))
        if dtype == F:
            peer.check("EmbedLayerNormalization", inputs, {"epsilon": 1e-3}, message=f"seed {seed}", rtol=1e-4,
                       atol=1e-5, domain=MS, outputs=outputs)  # fmt: skip
    if dtype == F:
        peer.finish(0.9)


def test_refusals_of_embeddings() -> None:
    inputs, _, _ = embedding(7)
    ids, kinds, words, places, segments, gamma, beta, mask, _ = inputs
    for text, given in (
        ("no row 9", [ids + 9 - ids.max(), *inputs[1:]]),
        ("no row -1", [ids, kinds - 1 - kinds.min(), *inputs[2:]]),
        ("input_ids has shape", [ids[0], *inputs[1:]]),
        ("segment_embedding is missing", [ids, kinds, words, places, None, gamma, beta]),
        ("segment_ids is missing", [ids, None, words, places, segments, gamma, beta]),
        ("position_embedding has shape", [ids, kinds, words, places[:, 1:], segments, gamma, beta]),
        ("gamma has shape", [*inputs[:5], gamma[1:], beta]),
        ("mask has shape", [*inputs[:7], mask[0]]),
    ):
        with pytest.raises(qrun.QrunError, match=text):
            qrun_node("EmbedLayerNormalization", given, domain=MS, outputs=[F])
