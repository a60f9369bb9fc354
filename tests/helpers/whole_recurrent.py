"""Whole models with recurrent nodes and graphs inside: taggers, a detector of voices, a sequence-to-sequence model."""

from __future__ import annotations

import numpy as np

from helpers.whole import BOOL, F32, I64, Case, Graph

WORDS, WIDTH, HIDDEN, TAGS = 50, 16, 12, 5


def _recurrent(g: Graph, kind: str, x: str, width: int, hidden: int, directions: int = 1, state: str = "") -> list[str]:
    """The results of an LSTM or a GRU of both directions or one, whose first outputs are [seq, directions,
    batch, hidden]."""
    gates = 4 if kind == "LSTM" else 3
    weights = g.weight(directions, gates * hidden, width), g.weight(directions, gates * hidden, hidden)
    more = {"direction": "bidirectional"} if directions == 2 else {}
    if kind == "GRU":
        more["linear_before_reset"] = 1
    states = [state] if state else []
    inputs = [x, *weights, g.bias(directions, 2 * gates * hidden), "", *states]
    return g.several(kind, inputs, 2, hidden_size=hidden, **more)


def tagger(kind: str) -> Case:
    """Words to tags: an embedding, a recurrent layer of both directions, and a product; [seq, batch] first."""
    g = Graph()
    ids = g.input("ids", I64, ["batch", "seq"])
    x = g.add("Transpose", g.add("Gather", g.table(WORDS, WIDTH), ids), perm=[1, 0, 2])
    y, _ = _recurrent(g, kind, x, WIDTH, HIDDEN, 2)
    y = g.add("Reshape", g.add("Transpose", y, perm=[2, 0, 1, 3]), g.ints(0, 0, -1))
    scores = g.add("LogSoftmax", g.linear(y, 2 * HIDDEN, TAGS), name="scores", axis=-1)
    g.output(scores, F32, ["batch", "seq", TAGS])
    g.output(g.add("ArgMax", scores, name="tags", axis=-1, keepdims=0), I64, ["batch", "seq"])
    rng = np.random.default_rng(3)
    return Case(g.model(), [{"ids": rng.integers(0, WORDS, shape)} for shape in ((1, 7), (1, 7), (3, 11), (1, 1))])


def voice_activity() -> Case:
    """A detector of voices: the rate chooses the graph, which has convolutions, an LSTM and an If inside;
    it keeps its state."""
    g = Graph()
    x, rate = g.input("input", F32, ["batch", "samples"]), g.input("sr", I64, [])
    state = g.input("state", F32, [2, "batch", HIDDEN])
    branches = {
        name: _at_rate(g, name, x, state, window) for name, window in (("then_branch", 64), ("else_branch", 32))
    }
    y, after = g.several("If", [g.add("Equal", rate, g.store(np.int64(16000)))], 2, **branches)
    g.output(g.add("Identity", y, name="probability"), F32, ["batch", 1])
    g.output(g.add("Identity", after, name="stateN"), F32, [2, "batch", HIDDEN])
    rng = np.random.default_rng(5)
    zero = np.zeros((2, 1, HIDDEN), np.float32)
    rates = ((16000, 256), (16000, 256), (16000, 256), (8000, 128), (8000, 128), (16000, 512))
    feeds = [
        {"input": rng.uniform(-1, 1, (1, n)).astype(np.float32), "sr": np.array(r), "state": zero} for r, n in rates
    ]
    return Case(g.model(16), feeds, {"state": "stateN"})


def _at_rate(g: Graph, name: str, x: str, state: str, window: int) -> object:
    """What runs at one rate: spectra by a convolution, two layers, an LSTM, and a mean where it has several steps."""
    b = g.inside()
    bins = window // 2
    spectra = b.add("Conv", b.add("Unsqueeze", x, b.ints(1)), b.weight(2 * bins, 1, window), strides=[window // 2])
    real, imaginary = b.several("Split", [spectra, b.ints(bins, bins)], 2, axis=1)
    power = b.add("Add", b.add("Mul", real, real), b.add("Mul", imaginary, imaginary))
    y = b.add("Relu", b.add("Conv", b.add("Sqrt", power), b.weight(WIDTH, bins, 3), b.bias(WIDTH), pads=[1, 1]))
    steps = b.add("Transpose", y, perm=[2, 0, 1])
    h, c = b.several("Split", [state, b.ints(1, 1)], 2, axis=0)
    weights = b.weight(1, 4 * HIDDEN, WIDTH), b.weight(1, 4 * HIDDEN, HIDDEN), b.bias(1, 8 * HIDDEN)
    made, last, cell = b.several("LSTM", [steps, *weights, "", h, c], 3, hidden_size=HIDDEN)
    after = b.add("Concat", last, cell, axis=0)
    made = b.add("Relu", b.add("Transpose", b.add("Squeeze", made, b.ints(1)), perm=[1, 2, 0]))
    y = b.add("Sigmoid", b.add("Conv", made, b.weight(1, HIDDEN, 1), b.bias(1)))
    count = b.add("Gather", b.add("Shape", y), b.store(np.int64(2)), axis=0)
    several, one = b.inside(), b.inside()
    several.output(several.add("ReduceMean", y, axes=[2], keepdims=0), F32)
    one.output(one.add("Squeeze", y, one.ints(2)), F32)
    long = b.add("Greater", count, b.store(np.int64(1)))
    y = b.add("If", long, then_branch=several.proto("several"), else_branch=one.proto("one"))
    b.output(y, F32)
    b.output(after, F32)
    return b.proto(name)


def translator() -> Case:
    """A sequence to another: a GRU reads words, a Loop makes one after the other until one ends it or there are
    enough."""
    g = Graph(11)
    ids, most = g.input("ids", I64, ["seq"]), g.input("most", I64, [])
    words = g.table(WORDS, WIDTH)
    x = g.add("Unsqueeze", g.add("Gather", words, ids), g.ints(1))
    seen, last = _recurrent(g, "GRU", x, WIDTH, HIDDEN)
    seen = g.add("Squeeze", seen, g.ints(1, 2))
    body = _decoder(g, words, seen)
    start = g.add("Slice", ids, g.ints(0), g.ints(1))
    made = g.several("Loop", [most, g.store(np.array(True)), start, last], 4, body=body)
    types = {
        "word": (I64, [1]),
        "hidden": (F32, [1, 1, HIDDEN]),
        "made": (I64, ["n"]),
        "attention": (F32, ["n", "seq"]),
    }
    for (name, (kind, shape)), value in zip(types.items(), made, strict=True):
        g.output(g.add("Identity", value, name=name), kind, shape)
    rng = np.random.default_rng(9)
    counts = ((6, 8), (6, 8), (9, 30), (2, 0), (6, 1))
    return Case(g.model(), [{"ids": rng.integers(0, WORDS, n), "most": np.array(m)} for n, m in counts])


def _decoder(g: Graph, words: str, seen: str) -> object:
    b = g.inside()
    b.input("step", I64, [])
    b.input("going", BOOL, [])
    word, hidden = b.input("word_in", I64, [1]), b.input("hidden_in", F32, [1, 1, HIDDEN])
    x = b.add("Unsqueeze", b.add("Gather", words, word), b.ints(1))
    y, after = _recurrent(b, "GRU", x, WIDTH, HIDDEN, state=hidden)
    y = b.add("Squeeze", y, b.ints(1, 2))
    weights = b.add("Softmax", b.add("MatMul", y, b.add("Transpose", seen, perm=[1, 0])), axis=-1)
    y = b.add("Tanh", b.linear(b.add("Concat", y, b.add("MatMul", weights, seen), axis=1), 2 * HIDDEN, HIDDEN))
    chosen = b.add("ArgMax", b.linear(y, HIDDEN, WORDS), axis=-1, keepdims=0)
    ends = b.add("Squeeze", b.add("Less", chosen, b.store(np.int64([3]))), b.ints(0))
    b.output(b.add("Not", ends), BOOL, [])
    b.output(chosen, I64, [1])
    b.output(after, F32, [1, 1, HIDDEN])
    b.output(b.add("Squeeze", chosen, b.ints(0)), I64, [])
    b.output(b.add("Squeeze", weights, b.ints(0)), F32, ["seq"])
    return b.proto("decoder")
