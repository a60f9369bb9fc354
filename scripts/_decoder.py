"""A small language model: characters, one layer of attention, trained in numpy on the LICENSE of this repository.

It is written in float32, with 8-bit weights (MatMulInteger) or 4-bit weights (MatMulNBits), and without a cache of keys
and values, with one that Concat extends, or with GroupQueryAttention.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

ROOT = Path(__file__).resolve().parents[1]
F32, I64, I32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
WIDTH, HEADS, SIZE, INNER, PLACES, BLOCK = 32, 2, 16, 64, 64, 16
TRAINED, STEPS, BATCH, RATE = 9000, 200, 8, 0.01
Array = np.ndarray[Any, Any]


class Decoder(NamedTuple):
    """The trained weights by name, the characters of its vocabulary, and the whole text as numbers."""

    weights: dict[str, Array]
    characters: str
    text: Array

    @property
    def corpus(self) -> Array:
        """The part of the text that it has not seen."""
        return self.text[TRAINED:]


@cache
def train() -> Decoder:
    """Train it. Weights are multiples of 1/1024, so that the last bits of the sums on a machine do not matter."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    characters = "".join(sorted(set(text)))
    numbers = np.array([characters.index(letter) for letter in text], np.int64)
    rng = np.random.default_rng(0)
    words = len(characters)
    shapes = {"embed": (words, WIDTH), "place": (PLACES, WIDTH), **dict.fromkeys("qkvo", (WIDTH, WIDTH))}
    shapes |= {"up": (WIDTH, INNER), "down": (INNER, WIDTH), "head": (WIDTH, words)}
    weights = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    weights |= {name: rng.standard_normal(shapes[name]) * 0.1 for name in ("embed", "place")}
    means = {name: (np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}
    for step in range(1, STEPS + 1):
        starts = rng.integers(0, TRAINED - PLACES - 1, BATCH)
        rows = numbers[starts[:, None] + np.arange(PLACES + 1)]
        for name, slope in _slopes(weights, rows[:, :-1], rows[:, 1:]).items():
            first, second = means[name]
            first += 0.1 * (slope - first)
            second += 0.01 * (slope * slope - second)
            size = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
            weights[name] = weights[name] - RATE * (1 - step / (STEPS + 1)) * size
    rounded = {name: (np.round(value * 1024) / 1024).astype(np.float32) for name, value in weights.items()}
    return Decoder(rounded, characters, numbers)


def _split(x: Array) -> Array:
    return x.reshape(*x.shape[:2], HEADS, SIZE).transpose(0, 2, 1, 3)


def _merge(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], WIDTH)


def forward(w: dict[str, Array], ids: Array) -> tuple[Array, tuple[Array, ...]]:
    """The logits [batch, length, words], and what the slopes need."""
    length = ids.shape[1]
    x = w["embed"][ids] + w["place"][:length]
    q, k, v = (_split(x @ w[name]) for name in "qkv")
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(SIZE).astype(x.dtype)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf).astype(x.dtype)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    mixed = _merge(shares @ v)
    h = x + mixed @ w["o"]
    inner = np.maximum(h @ w["up"], 0)
    y = h + inner @ w["down"]
    return y @ w["head"], (x, q, k, v, shares, mixed, h, inner, y)


def _slopes(w: dict[str, Array], ids: Array, targets: Array) -> dict[str, Array]:
    """The slopes of the mean loss."""
    logits, (x, q, k, v, shares, mixed, h, inner, y) = forward(w, ids)
    d = np.exp(logits - logits.max(-1, keepdims=True))
    d /= d.sum(-1, keepdims=True)
    np.put_along_axis(d, targets[..., None], np.take_along_axis(d, targets[..., None], -1) - 1, -1)
    d /= targets.size

    def product(a: Array, b: Array) -> Array:
        return (a.transpose(0, 2, 1) @ b).sum(0)

    found = {"head": product(y, d)}
    dy = d @ w["head"].T
    d_inner = (dy @ w["down"].T) * (inner > 0)
    found |= {"down": product(inner, dy), "up": product(h, d_inner)}
    dh = dy + d_inner @ w["up"].T
    found["o"] = product(mixed, dh)
    d_mixed = _split(dh @ w["o"].T)
    dv, d_shares = shares.transpose(0, 1, 3, 2) @ d_mixed, d_mixed @ v.transpose(0, 1, 3, 2)
    d_scores = shares * (d_shares - (d_shares * shares).sum(-1, keepdims=True)) / np.sqrt(SIZE)
    dx = dh
    for name, each in (("q", d_scores @ k), ("k", d_scores.transpose(0, 1, 3, 2) @ q), ("v", dv)):
        found[name] = product(x, _merge(each))
        dx = dx + _merge(each) @ w[name].T
    found["embed"], found["place"] = np.zeros_like(w["embed"]), np.zeros_like(w["place"])
    np.add.at(found["embed"], ids, dx)
    found["place"][: ids.shape[1]] = dx.sum(0)
    return found


class _Graph:
    """The nodes of a decoder; `bits` of its weights."""

    def __init__(self, weights: dict[str, Array], bits: int) -> None:
        self.weights, self.bits = weights, bits
        self.nodes: list[Any] = []
        self.stored: list[Any] = []

    def store(self, name: str, value: Any) -> str:
        if name not in (each.name for each in self.stored):
            self.stored.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(
        self, op: str, name: str, *inputs: str, domain: str = "", outputs: tuple[str, ...] = (), **more: Any
    ) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs or [name], name=name, domain=domain, **more))
        return name

    def product(self, name: str, x: str) -> str:
        """x times a weight."""
        weight = self.weights[name]
        if self.bits == 32:
            return self.add("MatMul", f"{name}_out", x, self.store(name, weight))
        return self._in_4_bits(name, weight, x) if self.bits == 4 else self._in_8_bits(name, weight, x)

    def _in_4_bits(self, name: str, weight: Array, x: str) -> str:
        rows, columns = weight.shape
        blocks = weight.T.reshape(columns, rows // BLOCK, BLOCK)
        scale = (np.abs(blocks).max(-1) / 7).astype(np.float32)
        codes = np.clip(np.round(blocks / scale[..., None]) + 8, 0, 15).astype(np.uint8)
        packed = codes[..., ::2] | codes[..., 1::2] << 4
        stored = self.store(f"{name}_q4", packed), self.store(f"{name}_scales", scale)
        more = {"K": rows, "N": columns, "bits": 4, "block_size": BLOCK}
        return self.add("MatMulNBits", f"{name}_out", x, *stored, domain="com.microsoft", **more)

    def _in_8_bits(self, name: str, weight: Array, x: str) -> str:
        scale = np.float32(np.abs(weight).max() / 63)  # sums of 8-bit products saturate in onnxruntime on some CPUs
        codes = np.clip(np.round(weight / scale), -63, 63).astype(np.int8)
        parts = f"{name}_codes", f"{name}_scale", f"{name}_zero"
        self.add("DynamicQuantizeLinear", f"{name}_quantize", x, outputs=parts)
        stored = self.store(f"{name}_q8", codes), self.store(f"{name}_q8_scale", scale)
        sums = self.add("MatMulInteger", f"{name}_sums", parts[0], stored[0], parts[2])
        both = self.add("Mul", f"{name}_both", parts[1], stored[1])
        return self.add("Mul", f"{name}_out", self.add("Cast", f"{name}_float", sums, to=F32), both)

    def heads(self, x: str) -> str:
        shape = self.store("heads", np.array([0, 0, HEADS, SIZE]))
        return self.add("Transpose", f"{x}_heads", self.add("Reshape", f"{x}_split", x, shape), perm=[0, 2, 1, 3])


def build(made: Decoder, bits: int = 32, cache: str = "") -> ModelProto:
    """The model. bits: 32, 8 or 4. cache: "" without one, "concat" or "group"."""
    g, words = _Graph(made.weights, bits), len(made.characters)
    inputs = [helper.make_tensor_value_info("input_ids", I64, ["batch", "seq"])]
    inputs.append(helper.make_tensor_value_info("attention_mask", I64, ["batch", "total"]))
    if cache:
        inputs.append(helper.make_tensor_value_info("position_ids", I64, ["batch", "seq"]))
    pasts = [f"past_key_values.0.{name}" for name in ("key", "value")] if cache else []
    shape = ["batch", HEADS, "past", SIZE]
    inputs += [helper.make_tensor_value_info(name, F32, shape) for name in pasts]
    outputs = [helper.make_tensor_value_info("logits", F32, ["batch", "seq", words])]
    shape = ["batch", HEADS, "total", SIZE]
    outputs += [
        helper.make_tensor_value_info(name, F32, shape) for name in ("present.0.key", "present.0.value")[: len(pasts)]
    ]
    places = "position_ids" if cache else _range(g)
    embedded = g.add("Gather", "embedded", g.store("embed", made.weights["embed"]), "input_ids")
    placed = g.add("Gather", "placed", g.store("place", made.weights["place"]), places)
    x = g.add("Add", "x", embedded, placed)
    q, k, v = (g.product(name, x) for name in "qkv")
    mixed = _grouped(g, q, k, v, pasts) if cache == "group" else _attention(g, q, k, v, pasts)
    h = g.add("Add", "h", x, g.product("o", mixed))
    inner = g.add("Relu", "inner", g.product("up", h))
    y = g.add("Add", "y", h, g.product("down", inner))
    g.add("Identity", "logits", g.product("head", y))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.stored)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _range(g: _Graph) -> str:
    """The positions 0, 1, 2 ... of the tokens."""
    count = g.add("Gather", "count", g.add("Shape", "shape", "input_ids"), g.store("one", np.int64(1)))
    return g.add("Range", "places", g.store("zero", np.int64(0)), count, "one")


def _attention(g: _Graph, q: str, k: str, v: str, pasts: list[str]) -> str:
    """Attention in single operators, in which each token sees those before it, if the mask has a 1 for them."""
    q, k, v = (g.heads(each) for each in (q, k, v))
    if pasts:
        k = g.add("Concat", "present.0.key", pasts[0], k, axis=2)
        v = g.add("Concat", "present.0.value", pasts[1], v, axis=2)
    scores = g.add("MatMul", "raw", q, g.add("Transpose", "turned", k, perm=[0, 1, 3, 2]))
    scores = g.add("Div", "scores", scores, g.store("root", np.float32(np.sqrt(SIZE))))
    ends = g.store("two", np.array([2])), g.store("three", np.array([3]))
    sizes = [g.add("Slice", f"size_{i}", g.add("Shape", f"shape_{i}", each), *ends) for i, each in enumerate((q, k))]
    square = g.add("Concat", "square", *sizes, axis=0)
    ones = g.add("ConstantOfShape", "ones", square, value=numpy_helper.from_array(np.array([1], np.float32)))
    behind = g.add("Squeeze", "behind", g.add("Sub", "gap", sizes[1], sizes[0]))
    later = g.add("Trilu", "later", ones, g.add("Add", "first_later", behind, g.store("unit", np.int64(1))), upper=1)
    hidden = g.add("Sub", "hidden", g.store("full", np.float32(1)), g.add("Cast", "mask", "attention_mask", to=F32))
    hidden = g.add("Unsqueeze", "hidden_wide", hidden, g.store("axes", np.array([1, 2])))
    minus = g.add("Mul", "minus", g.add("Add", "covered", later, hidden), g.store("low", np.float32(-1e9)))
    shares = g.add("Softmax", "shares", g.add("Add", "seen", scores, minus), axis=-1)
    mixed = g.add("Transpose", "mixed_heads", g.add("MatMul", "mixed_raw", shares, v), perm=[0, 2, 1, 3])
    return g.add("Reshape", "mixed", mixed, g.store("merged", np.array([0, 0, WIDTH])))


def _grouped(g: _Graph, q: str, k: str, v: str, pasts: list[str]) -> str:
    """Attention as onnxruntime-genai writes it."""
    sums = g.add("ReduceSum", "sums", "attention_mask", g.store("axis", np.array([1])), keepdims=0)
    lengths = g.add("Cast", "lengths", g.add("Sub", "before", sums, g.store("unit", np.int64(1))), to=I32)
    total = g.add("Gather", "total_long", g.add("Shape", "mask_shape", "attention_mask"), "unit")
    total = g.add("Cast", "total_length", total, to=I32)
    made = "mixed", "present.0.key", "present.0.value"
    more = {"num_heads": HEADS, "kv_num_heads": HEADS, "domain": "com.microsoft", "outputs": made}
    g.add("GroupQueryAttention", "attention", q, k, v, *pasts, lengths, total, **more)
    return made[0]


def config(file: str = "model.onnx") -> dict[str, Any]:
    """What onnxruntime-genai writes beside a model with a cache."""
    names = ("input_ids", "attention_mask", "position_ids")
    inputs = {name: name for name in names} | {f"past_{n}_names": f"past_key_values.%d.{n}" for n in ("key", "value")}
    outputs = {"logits": "logits"} | {f"present_{n}_names": f"present.%d.{n}" for n in ("key", "value")}
    decoder = {"filename": file, "num_hidden_layers": 1, "inputs": inputs, "outputs": outputs}
    return {
        "model": {"type": "gpt2", "vocab_size": len(train().characters), "context_length": PLACES, "decoder": decoder}
    }


def write(folder: Path) -> None:
    """Write lm/: f32.onnx, int8.onnx, int4.onnx, corpus.npy, vocab.json; and genai/, a folder of onnxruntime-genai."""
    made = train()
    (folder / "lm").mkdir()
    (folder / "genai").mkdir()
    for name, bits in (("f32", 32), ("int8", 8), ("int4", 4)):
        save(build(made, bits), folder / "lm" / f"{name}.onnx")
    save(build(made, 4, "group"), folder / "genai" / "model.onnx")
    (folder / "genai" / "genai_config.json").write_text(json.dumps(config(), indent=1))
    vocabulary = {letter: number for number, letter in enumerate(made.characters)}
    (folder / "lm" / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "genai" / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}))
    np.save(folder / "lm" / "corpus.npy", made.corpus)
