"""Convolutions of float32 that multiply their results, add to them and clip them, as the nodes behind them would."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.native import ISAS, OBJECTS
from helpers.placed import schedules
from helpers.sums import assert_bits

import qrun

HEADER = '<ir_version: 8, opset_import: ["" : 17]> main (float[2, 24, 7, 6] x, float[2, 40, 7, 6] r) => (y)'
STORED = {
    "w": (40, 24, 3, 3), "b": (40,), "k": (40, 24, 1, 1), "g": (40, 12, 3, 3), "h": (40, 40, 3, 3), "q": (40, 1, 1),
    "p": (1, 40, 1, 1), "one": (1,), "row": (6,), "d": (24, 1, 3, 3), "f": (24, 1, 1),
}  # fmt: skip
CASES = {
    "factor": ("c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Mul(c, q)", "factor"),
    "term, from the left": ("c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Add(p, c)", "term"),
    "a normalization": ("c = Conv<pads = [1, 1, 1, 1]>(x, w, b) m = Mul(c, q) a = Add(m, p) y = Relu(a)", "factor+term+limits"),
    "term, then factor": ("c = Conv(x, k) a = Add(c, p) m = Mul(q, a) y = Clip(m, one)", "term+factor+limits"),
    "an input": ("c = Conv(x, k, b) a = Add(c, r) y = Relu(a)", "residual+limits"),
    "all": ("c = Conv<pads = [1, 1, 1, 1]>(x, w) m = Mul(c, q) a = Add(m, q) s = Add(r, a) y = Relu(s)", "factor+term+residual+limits"),
    "an earlier result": (
        "c = Conv<pads = [1, 1, 1, 1]>(x, w) t = Relu(c) e = Conv<pads = [1, 1, 1, 1]>(t, h) s = Add(e, t) y = Relu(s)",
        "residual+limits"),
    "a later result": ("e = Conv(x, k) c = Conv<pads = [1, 1, 1, 1]>(x, w) s = Add(e, c) y = Relu(s)", "residual+limits"),
    "groups": ("c = Conv<pads = [1, 1, 1, 1], group = 2>(x, g, b) m = Mul(c, q) s = Add(m, r) y = Relu(s)", "factor+residual+limits"),
    "a part of a concatenation": ("c = Conv(x, k, b) s = Add(c, r) t = Relu(s) y = Concat<axis = 1>(t, r, t)", "residual+limits"),
    "a part of one is added": (
        "c = Conv(x, k) e = Conv(x, k, b) z = Concat<axis = 1>(c, e) s = Add(c, e) y = Concat<axis = 1>(z, s)", ""),
    "twice the same": ("c = Conv(x, k) y = Add(c, c)", ""),
    "read twice": ("c = Conv(x, k) m = Mul(c, q) y = Sub(m, c)", ""),
    "one number": ("c = Conv(x, k) y = Mul(c, one)", ""),
    "rows": ("c = Conv(x, k) y = Mul(c, row)", ""),
    "behind a Relu": ("c = Conv(x, k) t = Relu(c) y = Mul(t, q)", "limits"),
    "one channel each": ("c = Conv<pads = [1, 1, 1, 1], group = 24>(x, d) y = Mul(c, f)", ""),
}  # fmt: skip
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_nodes(name: str, isa: str) -> None:
    text, tail = CASES[name]
    rng = np.random.default_rng(7)
    proto = onnx.parser.parse_model(f"{HEADER} {{ {text} }}")
    for stored, shape in STORED.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), stored))
    feeds = {
        "x": rng.normal(size=(2, 24, 7, 6)).astype(np.float32),
        "r": rng.normal(size=(2, 40, 7, 6)).astype(np.float32),
    }
    feeds["x"][0, 3, 2, 2], feeds["r"][1, 7, 0, 0] = np.inf, -np.inf
    model = qrun.load(proto)
    want = qrun.Session(model, backend="reference").run(feeds)["y"]
    for threads in (1, 2):
        session = qrun.Session(model, isa=isa, threads=threads, cache=OBJECTS)
        for _ in range(3):
            assert_bits(session.run(feeds)["y"], want)
        forms = [row.section.spec.form for schedule in schedules(session) for row in schedule.rows]
        fused = [form.partition("+")[2] for form in forms if form.partition("+")[0] in ("sum", "bias")]
        assert tail in fused, forms
        assert not any(part in form for form in fused for part in ("factor", "term", "residual") if not tail)
