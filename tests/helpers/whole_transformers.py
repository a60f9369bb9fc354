"""Whole transformers as exporters and optimizers write them:
a merged decoder, one of 4 bits, an encoder that was optimized."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from helpers.whole import BOOL, F32, I32, I64, Array, Case, Graph, quantized

WORDS, WIDTH, HEADS, SIZE = 40, 32, 2, 16
MS = "com.microsoft"


def merged_decoder() -> Case:
    """A decoder whose branches run without and with the keys and values of earlier words:
    the first run, and the others."""
    g = Graph(21)
    ids, cached = g.input("input_ids", I64, ["batch", "seq"]), g.input("use_cache_branch", BOOL, [1])
    past = [g.input(f"past_key_values.0.{n}", F32, ["batch", HEADS, "past", SIZE]) for n in ("key", "value")]
    weights = [g.table(WORDS, WIDTH), *(g.weight(WIDTH, WIDTH) for _ in range(4)), g.weight(WIDTH, WORDS)]
    branches = {
        "then_branch": _decoder(g, ids, past, weights, "with_past"),
        "else_branch": _decoder(g, ids, [], weights, "without"),
    }
    logits, key, value = g.several("If", [cached], 3, **branches)
    g.output(g.add("Identity", logits, name="logits"), F32, ["batch", "seq", WORDS])
    for name, made in (("key", key), ("value", value)):
        g.output(g.add("Identity", made, name=f"present.0.{name}"), F32, ["batch", HEADS, "total", SIZE])
    rng = np.random.default_rng(2)
    empty = {f"past_key_values.0.{n}": np.zeros((1, HEADS, 0, SIZE), np.float32) for n in ("key", "value")}
    feeds: list[dict[str, Array]] = [
        {"input_ids": rng.integers(0, WORDS, (1, n)), "use_cache_branch": np.array([n == 1]), **empty}
        for n in (5, 1, 1, 1)
    ]
    return Case(g.model(), feeds, {f"past_key_values.0.{n}": f"present.0.{n}" for n in ("key", "value")})


def _decoder(g: Graph, ids: str, past: list[str], weights: list[str], name: str) -> onnx.GraphProto:
    b = g.inside()
    words, *projections, head = weights
    x = b.add("Gather", words, ids)
    y = b.norm(x, WIDTH)
    q, k, v = (b.heads(b.add("Add", b.add("MatMul", y, w), b.bias(WIDTH)), HEADS, SIZE) for w in projections[:3])
    if past:
        k, v = (b.add("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
    scores = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = b.add("Add", b.add("Div", scores, b.store(np.float32(4))), _causal(b, q, k))
    mixed = b.merged(b.add("MatMul", b.add("Softmax", scores, axis=-1), v), WIDTH)
    x = b.add("Add", x, b.add("MatMul", mixed, projections[3]))
    b.output(b.add("MatMul", b.norm(x, WIDTH), head), F32)
    b.output(b.add("Identity", k), F32)
    b.output(b.add("Identity", v), F32)
    return b.proto(name)


def _causal(b: Graph, q: str, k: str) -> str:
    """[seq, total]: 0 where a word sees another, else a number that leaves nothing of it."""
    seq, total = (b.add("Slice", b.add("Shape", x), b.ints(2), b.ints(3)) for x in (q, k))
    ones = b.add("ConstantOfShape", b.add("Concat", seq, total, axis=0), value=numpy_helper.from_array(np.float32([1])))
    offset = b.add("Squeeze", b.add("Add", b.add("Sub", total, seq), b.ints(1)), b.ints(0))
    return b.add("Mul", b.add("Trilu", ones, offset, upper=1), b.store(np.float32(-1e4)))


LAYERS, STEPS, GROUPS, ROOM = 2, 20, 1, 32


def blocks_decoder(level: int) -> Case:
    """Two layers as onnxruntime-genai writes them: MatMulNBits of 4 bits, GroupQueryAttention with a cache;
    20 words."""
    g = Graph(33)
    ids = g.input("input_ids", I64, ["batch", "seq"])
    mask = g.input("attention_mask", I64, ["batch", "total"])
    sums = g.add("ReduceSum", mask, g.ints(1), keepdims=0)
    lengths = g.add("Cast", g.add("Sub", sums, g.ints(1)), to=I32)
    total = g.add("Cast", g.add("Gather", g.add("Shape", mask), g.store(np.int64(1)), axis=0), to=I32)
    angles = np.outer(np.arange(ROOM), 1 / 10000 ** (np.arange(0, SIZE, 2) / SIZE)).astype(np.float32)
    tables = g.store(np.cos(angles)), g.store(np.sin(angles))
    x = g.add("Gather", g.table(WORDS, WIDTH), ids)
    y, carried = g.add("SimplifiedLayerNormalization", x, _scale(g), axis=-1, epsilon=1e-6), {}
    for layer in range(LAYERS):
        past = [g.input(f"past.{layer}.{n}", F32, ["batch", GROUPS, "past", SIZE]) for n in ("key", "value")]
        q, k, v = (g.add("MatMul", y, g.weight(WIDTH, heads * SIZE)) for heads in (HEADS, GROUPS, GROUPS))
        inputs = [q, k, v, *past, lengths, total, *tables]
        made = g.several("GroupQueryAttention", inputs, 3, domain=MS, num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1)
        for name, value in zip(("key", "value"), made[1:], strict=True):
            present = g.add("Identity", value, name=f"present.{layer}.{name}")
            g.output(present, F32, ["batch", GROUPS, "total", SIZE])
            carried[f"past.{layer}.{name}"] = present
        y, x = _skip(g, x, g.add("MatMul", made[0], g.weight(HEADS * SIZE, WIDTH)))
        gate, up = (g.add("MatMul", y, g.weight(WIDTH, 64)) for _ in range(2))
        mixed = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
        y, x = _skip(g, x, g.add("MatMul", mixed, g.weight(64, WIDTH)))
    g.output(g.add("MatMul", y, g.weight(WIDTH, WORDS), name="logits"), F32, ["batch", "seq", WORDS])
    model = _in_4_bits(_unchecked(g), level)
    rng = np.random.default_rng(4)
    feeds: list[dict[str, Array]] = []
    for step in range(STEPS):
        words = rng.integers(0, WORDS, (1, 4 if step == 0 else 1))
        ones = np.ones((1, 4 + step), np.int64)
        feeds.append({"input_ids": words, "attention_mask": ones})
        if step == 0:
            feeds[0] |= {name: np.zeros((1, GROUPS, 0, SIZE), np.float32) for name in carried}
    return Case(model, feeds, carried, 0.05 if level == 4 else 1e-5, inner=False)


def _scale(g: Graph) -> str:
    return g.store(g.rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))


def _skip(g: Graph, x: str, added: str) -> tuple[str, str]:
    """The normalized sum, and the sum."""
    made = g.several("SkipSimplifiedLayerNormalization", [x, added, _scale(g)], 4, domain=MS, epsilon=1e-6)
    g.nodes[-1].output[:] = [made[0], "", "", made[3]]
    return made[0], made[3]


def _unchecked(g: Graph) -> onnx.ModelProto:
    """The model; onnx does not know the operators that onnxruntime has in the domain of ONNX."""
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(MS, 1)]
    return onnx.helper.make_model(g.proto("g"), opset_imports=opsets, ir_version=9)


def _in_4_bits(model: onnx.ModelProto, level: int) -> onnx.ModelProto:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(model, bits=4, block_size=16, is_symmetric=level == 0, accuracy_level=level)
    made.process()
    return made.model.model


BERT_HEADS, BERT_SIZE, SEQ = 4, 8, 6


def encoder(weights_of_8_bits: bool) -> Case:
    """BERT's layers as PyTorch writes them, saved after onnxruntime's extended optimization, with 8 bits after that."""
    g = Graph(44)
    ids, kinds, mask = (g.input(n, I64, ["batch", SEQ]) for n in ("input_ids", "token_type_ids", "attention_mask"))
    count = g.add("Gather", g.add("Shape", ids), g.store(np.int64(1)), axis=0)
    places = g.add("Range", g.store(np.int64(0)), count, g.store(np.int64(1)))
    places = g.add("Expand", g.add("Unsqueeze", places, axes=[0]), g.add("Shape", ids))
    embedded = g.add("Add", g.add("Gather", g.table(WORDS, WIDTH), ids), g.add("Gather", g.table(64, WIDTH), places))
    x = _norm(g, g.add("Add", embedded, g.add("Gather", g.table(2, WIDTH), kinds)))
    hidden = g.add("Cast", g.add("Unsqueeze", g.add("Unsqueeze", mask, axes=[1]), axes=[2]), to=F32)
    seen = g.add("Mul", g.add("Sub", g.store(np.float32(1)), hidden), g.store(np.float32(-10000)))
    for _ in range(2):
        x = _layer(g, x, seen)
    g.output(g.add("Identity", x, name="last_hidden_state"), F32, ["batch", SEQ, WIDTH])
    rng = np.random.default_rng(6)
    feeds = []
    for batch in (1, 1, 3, 2):
        seen_words = (np.arange(SEQ) < rng.integers(1, SEQ + 1, (batch, 1))).astype(np.int64)
        words, segments = rng.integers(0, WORDS, (batch, SEQ)), rng.integers(0, 2, (batch, SEQ))
        feeds.append({"input_ids": words, "attention_mask": seen_words, "token_type_ids": segments})
    model = optimized(g.model(12))
    if not weights_of_8_bits:
        return Case(model, feeds)
    return quantized(Case(model, feeds), 0.05)


def _layer(g: Graph, x: str, seen: str) -> str:
    def projected(perm: tuple[int, ...]) -> str:
        y = g.add("Add", g.add("MatMul", x, g.weight(WIDTH, WIDTH)), g.bias(WIDTH))
        return g.heads(y, BERT_HEADS, BERT_SIZE, perm)

    q, k, v = projected((0, 2, 1, 3)), projected((0, 2, 3, 1)), projected((0, 2, 1, 3))
    scores = g.add("Div", g.add("MatMul", q, k), g.store(np.float32(np.sqrt(BERT_SIZE))))
    mixed = g.merged(g.add("MatMul", g.add("Softmax", g.add("Add", scores, seen), axis=3), v), WIDTH)
    made = g.add("Add", g.add("MatMul", mixed, g.weight(WIDTH, WIDTH)), g.bias(WIDTH))
    x = _norm(g, g.add("Add", made, x))
    wide = g.add("Add", g.add("MatMul", x, g.weight(WIDTH, 64)), g.bias(64))
    part = g.add("Add", g.add("Erf", g.add("Div", wide, g.store(np.float32(np.sqrt(2))))), g.store(np.float32(1)))
    wide = g.add("Mul", g.add("Mul", wide, part), g.store(np.float32(0.5)))
    return _norm(g, g.add("Add", g.add("Add", g.add("MatMul", wide, g.weight(64, WIDTH)), g.bias(WIDTH)), x))


def _norm(g: Graph, x: str) -> str:
    """A layer normalization as it is written before opset 17."""
    centred = g.add("Sub", x, g.add("ReduceMean", x, axes=[-1]))
    squares = g.add("ReduceMean", g.add("Pow", centred, g.store(np.float32(2))), axes=[-1])
    inverse = g.add("Div", centred, g.add("Sqrt", g.add("Add", squares, g.store(np.float32(1e-12)))))
    return g.add("Add", g.add("Mul", inverse, _scale(g)), g.bias(WIDTH))


def optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    """What onnxruntime saves at the level "extended"."""
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        options: Any = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(Path(folder, "m.onnx"))
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)
