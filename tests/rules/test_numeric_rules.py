"""Static bounds, QR406 to QR410, against plain Python integers."""

from __future__ import annotations

from itertools import product
from math import log2
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import MS, node_model

import qrun
from qrun.checking.rules import Finding

U8, I8, F32, I32 = np.uint8, np.int8, np.float32, np.int32
SEED = 20261122
MIDDLE = U8(128)


def ours(model: onnx.ModelProto, *rules: str) -> list[Finding]:
    return [f for f in qrun.check(model) if f.rule in rules]


def conv(w: Any, x_zero: Any = MIDDLE, w_zero: Any = None, bias: Any = None, group: int = 1) -> onnx.ModelProto:
    x = np.zeros((1, w.shape[1] * group, 4, 4), np.asarray(x_zero).dtype)
    zero = w.dtype.type(0) if w_zero is None else w_zero
    values = [x, F32(0.02), x_zero, w, F32(0.01), zero, F32(1), x_zero, *([bias] if bias is not None else [])]
    return node_model("QLinearConv", values, {"group": group}, opset=13, outputs=[x.dtype], constants=range(1, 9))[0]


def matmul(w: Any, op_type: str = "QLinearMatMul", dtype: Any = U8) -> onnx.ModelProto:
    a = np.zeros((2, w.shape[-2]), dtype)
    one, zero, w_zero = F32(0.01), np.zeros((), dtype), np.zeros((), w.dtype)
    if op_type == "QLinearMatMul":
        return node_model(op_type, [a, one, zero, w, one, w_zero, one, zero], opset=13, constants=range(1, 8))[0]
    if op_type == "MatMulInteger":
        return node_model(op_type, [a, w, zero, w_zero], opset=13, constants=[1, 2, 3])[0]
    if op_type == "MatMulIntegerToFloat":
        return node_model(op_type, [a, w, one, one, zero, w_zero], domain=MS, constants=range(1, 6))[0]
    return node_model(op_type, [a.astype(F32), w, one, w_zero], domain=MS, constants=range(1, 4))[0]


# QR406 accumulator-bound and QR407 accumulator-headroom


def worst_sums(row: list[int], w_zero: int, codes: range, x_zero: int, bias: int) -> tuple[int, int]:
    """The largest and smallest accumulator: each input code is chosen for its own weight."""
    terms = [[(x - x_zero) * (w - w_zero) for x in (codes[0], codes[-1])] for w in row]
    return bias + sum(max(t) for t in terms), bias + sum(min(t) for t in terms)


@pytest.mark.parametrize("case", range(40))
def test_bound_against_integers(case: int) -> None:
    rng = np.random.default_rng([SEED, case])
    w_type, x_type = rng.choice([I8, U8]), rng.choice([I8, U8])
    k = int(rng.integers(1, 12))
    w = rng.integers(np.iinfo(w_type).min, np.iinfo(w_type).max + 1, (3, k, 1, 2)).astype(w_type)
    w_zero = rng.integers(np.iinfo(w_type).min, np.iinfo(w_type).max + 1, 3 if case % 2 else ()).astype(w_type)
    x_zero = rng.integers(np.iinfo(x_type).min, np.iinfo(x_type).max + 1, ()).astype(x_type)
    limits = np.iinfo(x_type)
    codes = range(int(limits.min), int(limits.max) + 1)
    zeros = np.broadcast_to(w_zero, 3).tolist()
    rows = w.reshape(3, -1).tolist()
    plain = [worst_sums(r, z, codes, int(x_zero), 0) for r, z in zip(rows, zeros, strict=True)]
    margin = int(rng.integers(-2, 3))
    high = 2**31 - 1 - max(p[0] for p in plain) + margin
    low = -(2**31) - min(p[1] for p in plain) + margin
    for bias in (high, low, high // 4 + 1, 1000):
        if not -(2**31) < bias < 2**31 - 1:
            continue
        real = [worst_sums(r, z, codes, int(x_zero), bias) for r, z in zip(rows, zeros, strict=True)]
        wraps = any(not -(2**31) <= s < 2**31 for pair in real for s in pair)
        model = conv(w, x_zero, w_zero, np.full(3, bias, I32))
        assert [f.rule for f in ours(model, "QR406")] == ["QR406"] * wraps, (SEED, case, bias, real)
        reach = max(max(a, -b - 1) for a, b in real)
        tight = not wraps and 31 - log2(reach) < 2
        assert [f.rule for f in ours(model, "QR407")] == ["QR407"] * tight, (SEED, case, bias, real)


def test_bound_of_a_long_sum() -> None:
    """33026 products of 255 * 255 are the first that do not fit; reported with the channel and the sum."""
    w = np.zeros((33026, 2), U8)
    w[:33025, 1] = 255
    assert ours(matmul(w), "QR406") == []
    (note,) = ours(matmul(w), "QR407")
    assert note.message == "the int32 accumulator has 0.00 bits of headroom"
    w[33025, 1] = 255
    (f,) = ours(matmul(w), "QR406")
    assert f.message == f"channel 1 can overflow int32: its sum can reach {33026 * 255 * 255}"
    assert f.got == f"{33026 * 255 * 255} in channel 1: 33026 products; headroom -0.00 bits"


def test_batches_of_matrices_are_separate_sums() -> None:
    w = np.full((4, 20000, 1), 255, U8)
    assert ours(matmul(w), "QR406") == []


# QR409 pair-saturation


def saturates(row: list[int]) -> bool:
    """Whether two products, taken in order, leave int16 for some pair of inputs."""
    pairs = [(row[i], row[i + 1]) for i in range(0, len(row) - 1, 2)]
    reach = [a * x + b * y for a, b in pairs for x, y in product((0, 255), repeat=2)]
    return any(not -(2**15) <= r < 2**15 for r in reach)


@pytest.mark.parametrize("case", range(60))
def test_pairs_against_integers(case: int) -> None:
    """Rows in the order of onnxruntime's kernels: of a Conv kernel position by position, input channels innermost."""
    rng = np.random.default_rng([SEED, case])
    most = int(rng.choice([64, 66, 70, 90, 127]))
    if case % 2:
        w = rng.integers(-most - 1, most + 1, (2, int(rng.integers(1, 6)), 1, 3)).astype(I8)
        rows = w.transpose(0, 2, 3, 1).reshape(2, -1).tolist()
        model = conv(w)
    else:
        w = rng.integers(-most - 1, most + 1, (int(rng.integers(1, 10)), 3)).astype(I8)
        rows = w.T.tolist()
        model = matmul(w, ["QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat"][case // 2 % 3])
    wrong = any(saturates(row) for row in rows)
    assert [f.rule for f in ours(model, "QR409")] == ["QR409"] * wrong, (SEED, case, w)


PAIRS = [
    (3, [(0, 0, 0), (1, 0, 0)], True), (3, [(1, 0, 0), (2, 0, 0)], False), (3, [(2, 0, 0), (0, 0, 1)], True),
    (4, [(0, 0, 0), (1, 0, 0)], True), (4, [(1, 0, 0), (2, 0, 0)], False), (4, [(3, 0, 0), (0, 0, 1)], False),
    (4, [(0, 0, 0), (0, 0, 1)], False), (16, [(0, 0, 0), (0, 1, 0)], False), (1, [(0, 0, 0), (0, 0, 1)], True),
    (1, [(0, 0, 1), (0, 0, 2)], False), (1, [(0, 0, 2), (0, 1, 0)], True),
]  # fmt: skip


@pytest.mark.parametrize(("channels", "places", "wrong"), PAIRS)
def test_pairs_that_onnxruntime_saturates(channels: int, places: list[tuple[int, int, int]], wrong: bool) -> None:
    """Two weights of 100, 255 as input: what onnxruntime 1.31.1 gave for each on an emulated Haswell."""
    w = np.zeros((16, channels, 3, 3), I8)
    for c, i, j in places:
        w[:, c, i, j] = 100
    found = ours(conv(w), "QR409")
    assert bool(found) == wrong
    if wrong:
        assert found[0].message == (
            "saturates in onnxruntime on x86 CPUs without VNNI: adjacent products reach 51000, int16 holds 32767"
        )
        assert found[0].expected == "adjacent weights to sum to -128..128"
        assert found[0].got.startswith("255 * 100 + 255 * 100 = 51000 in output channel 0; ")


def test_saturating_pairs_below_zero_name_the_lower_limit() -> None:
    (f,) = ours(conv(np.full((16, 3, 3, 3), -100, I8)), "QR409")
    assert "adjacent products reach -51000, int16 holds -32768" in f.message


def test_depthwise_kernels_are_exact() -> None:
    w = np.full((16, 1, 3, 3), 100, I8)
    assert ours(conv(w, group=16), "QR409") == []
    assert len(ours(conv(w, group=8), "QR409")) == 1, "two channels a group: another kernel, seen to saturate"


@pytest.mark.parametrize(("x", "w"), [(I8, I8), (U8, U8), (I8, U8)])
def test_other_types_do_not_saturate(x: Any, w: Any) -> None:
    assert ours(matmul(np.full((4, 4), 127, w), dtype=x), "QR409") == []


@pytest.mark.parametrize(("pair", "wrong"), [((64, 64), 0), ((65, 64), 1), ((-64, -64), 0), ((-65, -64), 1),
                                             ((127, 1), 0), ((127, 2), 1), ((127, -128), 0)])  # fmt: skip
def test_the_ends_of_int16(pair: tuple[int, int], wrong: int) -> None:
    found = ours(matmul(np.array(pair, I8).reshape(2, 1)), "QR409")
    assert len(found) == wrong == saturates(list(pair))


def test_dynamic_quantization_saturates_too() -> None:
    assert len(ours(matmul(np.full((4, 4), 100, I8), "DynamicQuantizeMatMul"), "QR409")) == 1


# QR408 dynamic-constant, QR410 batch-dependent


def dynamic(shape: tuple[Any, ...], stored: Any = None) -> onnx.ModelProto:
    x = np.zeros([d if isinstance(d, int) else 1 for d in shape], F32) if stored is None else stored
    model, _ = node_model(
        "DynamicQuantizeLinear", [x], opset=13, outputs=[U8, F32, U8], constants=[] if stored is None else [0]
    )
    for place, d in enumerate(shape if stored is None else ()):
        if not isinstance(d, int):
            model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = d
    return model


@pytest.mark.parametrize(
    ("shape", "wrong"), [((1, 4), False), (("N", 4), True), ((2, 4), True), ((1, "length"), True), ((4,), False)]
)
def test_batches(shape: tuple[Any, ...], wrong: bool) -> None:
    found = ours(dynamic(shape), "QR408", "QR410")
    assert [(f.rule, f.level) for f in found] == [("QR410", "note")] * wrong


def test_stored_tensors() -> None:
    (f,) = ours(dynamic((), np.array([1.0, 2.0], F32)), "QR408", "QR410")
    assert (f.rule, f.got) == ("QR408", "a stored tensor [2]")
    (f,) = ours(dynamic((), np.full((3, 2), 1e-44, F32)), "QR408", "QR410")
    assert f.got == "a stored tensor [3,2], whose range / 255 underflows: its scale is 0"
    (f,) = ours(dynamic((), np.zeros((3, 2), F32)), "QR408", "QR410")
    assert f.got == "a stored tensor [3,2], all 0: its scale is 0"


@pytest.mark.parametrize(("values", "got"), [
    ([0.5, 0.5, 0.5], "3 times 0.5 with these inputs"), ([0, 0], "2 times 0 with these inputs: its scale is 0"),
    ([-3, -3], "2 times -3 with these inputs"), ([0.5, 0.25], ""), ([0, 1], ""), ([7], ""),
])  # fmt: skip
def test_equal_elements_at_run_time(values: list[float], got: str) -> None:
    """Of an input, and of a tensor inside, which the rule runs the model for."""
    given = np.array(values, F32)
    direct = dynamic((len(values),))
    assert ours(direct, "QR408") == []
    inner = dynamic((len(values),))
    inner.graph.node.insert(0, onnx.helper.make_node("Identity", ["i0"], ["t"], "copy"))
    inner.graph.node[1].input[0] = "t"
    for model, name in ((direct, "i0"), (inner, "t")):
        found = [f for f in qrun.check(model, None, {"i0": given}) if f.rule == "QR408"]
        assert [(f.got, f.tensor, f.node) for f in found] == ([(got, f"{name} (input 0)", "n")] if got else [])


def test_a_model_that_cannot_be_run_keeps_its_static_findings() -> None:
    model = matmul(np.full((4, 4), 127, I8), "MatMulInteger")
    plain = ours(model, "QR409")
    assert [f for f in qrun.check(model, None, {"nobody": np.zeros(1, U8)}) if f.rule == "QR409"] == plain


def test_rows_do_change_with_their_batch() -> None:
    """What QR410 warns of, computed."""
    model = dynamic(("N", 2))
    alone = qrun.Session(model).run({"i0": np.array([[0.5, 1.0]], F32)})
    beside = qrun.Session(model).run({"i0": np.array([[0.5, 1.0], [0, 9]], F32)})
    real = [(np.asarray(y, F32) - z) * s for y, s, z in (o.values() for o in (alone, beside))]
    assert not np.array_equal(real[0][0], real[1][0])
