"""QLinearAdd, QLinearMul, QLinearWhere, QLinearConcat, QLinearLeakyRelu of com.microsoft."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle import ms
from oracle.ms_cases import KINDS, broadcast_pair, codes, dtype_of, scales, zero

import qrun
from qrun.errors import OperatorError
from qrun.ops import Context, find
from qrun.ops._rounding import DoubleDouble, fma32, plus

ORT_KINDS = [k for k in KINDS if k not in ("overflow", "bad")]
F32 = np.float32


def kernel(name: str, inputs, arith="exact", **attributes):
    return find(MS, name, 1)(*inputs, **attributes, ctx=Context(arith=arith))


def binary_inputs(rng, kind, optional=True, scale_factor=1.0):
    dtype = dtype_of(rng)
    sa, sb = broadcast_pair(rng)
    a, b, c = scales(rng, kind)
    z = [zero(rng, dtype, optional) for _ in range(3)]
    return [codes(rng, sa, dtype), a, z[0], codes(rng, sb, dtype), b, z[1], c, z[2]]


def mul_scale(rng, inputs, kind):
    """Output scales in proportion to the product of the input scales."""
    if kind in ("equal", "ninety"):
        with np.errstate(all="ignore"):
            inputs[6] = np.asarray(inputs[1].reshape(()) * inputs[4].reshape(()) * F32(rng.choice([2, 90, 256, 510])))


@pytest.mark.parametrize("kind", KINDS)
def test_add_is_exact(kind: str) -> None:
    for seed in range(40):
        inputs = binary_inputs(np.random.default_rng(seed), kind)
        assert_equal(kernel("QLinearAdd", inputs), ms.qlinear_add(*inputs), f"{kind} seed {seed}")


@pytest.mark.parametrize("kind", KINDS)
def test_mul_is_exact(kind: str) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        inputs = binary_inputs(rng, kind)
        mul_scale(rng, inputs, kind)
        assert_equal(kernel("QLinearMul", inputs), ms.qlinear_mul(*inputs), f"{kind} seed {seed}")


def test_large_tensors_go_through_a_table() -> None:
    """More elements than code pairs: the same answers, broadcast and strided, and the same observations."""
    rng = np.random.default_rng(1)
    a, b = codes(rng, (2, 70, 600), np.int8), codes(rng, (70, 1), np.int8)
    for name in ("QLinearAdd", "QLinearMul"):
        for arith in ("exact", "ort"):
            params = [F32(0.25), np.int8(3), F32(0.5), np.int8(-7), F32(0.125), np.int8(5)]
            small, large = Context(arith=arith), Context(arith=arith)
            op = find(MS, name, 1)
            rows = [op(a[:, :, i : i + 1], *params[:2], b, *params[2:], ctx=small) for i in range(600)]
            y = op(a, *params[:2], b, *params[2:], ctx=large)
            assert_equal(y, np.concatenate(rows, axis=-1), f"{name} {arith}")
            total = sum(o.count for o in small.observations if o.kind == "saturated")
            assert [(o.kind, o.count) for o in large.observations] == [("saturated", total)]
            assert total > 1000


@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("kind", ORT_KINDS)
def test_binary_ort(name: str, kind: str) -> None:
    """``ort``: bit for bit onnxruntime's answer, for every way the operands broadcast."""
    for seed in range(25):
        rng = np.random.default_rng(seed)
        inputs = binary_inputs(rng, kind, optional=False)
        if name == "QLinearMul":
            mul_scale(rng, inputs, kind)
        for place in (1, 2, 4, 5, 6, 7):
            inputs[place] = np.asarray(inputs[place]).reshape(())
        model, feeds = node_model(name, inputs, domain=MS, opset=17, outputs=[inputs[0].dtype])
        want = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], want, f"{name} {kind} seed {seed}")


def test_ort_adds_the_zero_point_before_rounding() -> None:
    """O18: 0.5 and 1.5 with zero point 1 give 1 and 3; after the zero point 1.5 and 2.5 both round to 2."""
    inputs = [np.array([1, 3], np.uint8), F32(0.5), np.uint8(0), np.uint8(1), F32(1), np.uint8(0), F32(1), np.uint8(1)]
    assert kernel("QLinearMul", inputs).tolist() == [1, 3]
    assert kernel("QLinearMul", inputs, "ort").tolist() == [2, 2]
    assert kernel("QLinearMul", inputs, "onnx-ref").tolist() == [1, 3]


def test_overflow_saturates_in_every_arithmetic() -> None:
    """O16: a quotient beyond int32 is the largest value, not the smallest."""
    for arith in ("exact", "ort", "onnx-ref"):
        u8 = [np.array([255], np.uint8), F32(1e9), np.uint8(0), np.array([1], np.uint8), F32(1e9), np.uint8(0), F32(0.1), np.uint8(0)]  # fmt: skip
        assert kernel("QLinearAdd", u8, arith).tolist() == [255]
        assert kernel("QLinearMul", u8, arith).tolist() == [255]


def where_inputs(rng, kind):
    dtype = dtype_of(rng)
    sa, sb = broadcast_pair(rng)
    x, y, z = scales(rng, kind)
    shape = np.broadcast_shapes(sa, sb)
    condition = rng.random(shape if rng.random() < 0.7 else ()) < 0.5
    return [np.asarray(condition), codes(rng, sa, dtype), x, zero(rng, dtype), codes(rng, sb, dtype), y, zero(rng, dtype), z, zero(rng, dtype)]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_where_is_exact(kind: str) -> None:
    for seed in range(30):
        inputs = where_inputs(np.random.default_rng(seed), kind)
        assert_equal(kernel("QLinearWhere", inputs), ms.qlinear_where(*inputs), f"{kind} seed {seed}")


@pytest.mark.parametrize("kind", ORT_KINDS)
def test_where_ort(kind: str) -> None:
    for seed in range(15):
        inputs = where_inputs(np.random.default_rng(seed), kind)
        for place in (2, 3, 5, 6, 7, 8):
            inputs[place] = np.asarray(inputs[place]).reshape(())
        model, feeds = node_model("QLinearWhere", inputs, domain=MS, opset=17, outputs=[inputs[1].dtype])
        want = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], want, f"{kind} seed {seed}")


def concat_inputs(rng, kind, mixed=True):
    dtype = dtype_of(rng)
    rank = int(rng.integers(1, 4))
    axis = int(rng.integers(-rank, rank))
    shape = [int(d) for d in rng.integers(1, 5, rank)]
    parts = int(rng.integers(1, 5))
    found = scales(rng, kind, parts + 1)
    y_zero = zero(rng, dtype)
    inputs: list = [found[-1], y_zero]
    for s in found[:-1]:
        shape[axis] = int(rng.integers(0, 4))
        kind_of = dtype_of(rng) if mixed else dtype
        same = not mixed and rng.random() < 0.3
        inputs += [codes(rng, tuple(shape), kind_of), found[-1] if same else s, y_zero if same else zero(rng, kind_of)]
    return inputs, axis


@pytest.mark.parametrize("kind", KINDS)
def test_concat_is_exact(kind: str) -> None:
    for seed in range(30):
        inputs, axis = concat_inputs(np.random.default_rng(seed), kind)
        assert_equal(
            kernel("QLinearConcat", inputs, axis=axis), ms.qlinear_concat(*inputs, axis=axis), f"{kind} {seed}"
        )


@pytest.mark.parametrize("kind", ORT_KINDS)
def test_concat_ort(kind: str) -> None:
    for seed in range(15):
        inputs, axis = concat_inputs(np.random.default_rng(seed), kind, mixed=False)
        inputs = [i if n > 1 and n % 3 == 2 else np.asarray(i).reshape(()) for n, i in enumerate(inputs)]
        model, feeds = node_model(
            "QLinearConcat", inputs, {"axis": axis}, domain=MS, opset=17, outputs=[inputs[1].dtype]
        )
        want = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], want, f"{kind} seed {seed}")


@pytest.mark.parametrize("kind", KINDS)
def test_leaky_relu_is_exact(kind: str) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        dtype = dtype_of(rng)
        sx, sy = scales(rng, kind, 2)
        inputs = [codes(rng, (3, 50), dtype), sx, zero(rng, dtype, True), sy, zero(rng, dtype, True)]
        alpha = float(F32(rng.choice([0.01, 0.25, 0.5, 1 / 90, -0.5, 0, 2])))
        want = ms.qlinear_leaky_relu(*inputs, alpha=alpha)
        assert_equal(kernel("QLinearLeakyRelu", inputs, alpha=alpha), want, f"{kind} seed {seed}")


@pytest.mark.parametrize("kind", ORT_KINDS)
def test_leaky_relu_ort(kind: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        dtype = dtype_of(rng)
        sx, sy = (s.reshape(()) for s in scales(rng, kind, 2))
        x = np.arange(256, dtype=np.uint8).view(dtype)
        inputs = [x, sx, zero(rng, dtype).reshape(()), sy, zero(rng, dtype).reshape(())]
        attributes = {"alpha": float(F32(rng.choice([0.01, 0.25, 0.5, 1 / 90, 2])))}
        model, feeds = node_model("QLinearLeakyRelu", inputs, attributes, domain=MS, opset=17, outputs=[dtype])
        want = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], want, f"{kind} seed {seed}")


@pytest.mark.parametrize("name", ["QLinearConcat", "QLinearWhere", "QLinearLeakyRelu"])
def test_float32_quotients_of_simple_ratios(name: str) -> None:
    """Scales 90 apart, rounded to float32, lie beside ties:
    ``exact`` and ``ort`` must differ, each as its source says."""
    differ = 0
    x = np.arange(256, dtype=np.uint8)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        s = F32(rng.uniform(0.001, 0.1))
        sy, zx, zy = s * F32(rng.choice([90, 45, 10])), np.uint8(rng.integers(256)), np.uint8(rng.integers(256))
        attributes: dict = {}
        if name == "QLinearConcat":
            inputs, attributes = [sy, zy, x, s, zx], {"axis": 0}
            want = ms.qlinear_concat(*inputs, axis=0)
        elif name == "QLinearWhere":
            inputs = [np.array(True), x, s, zx, x, F32(1), np.uint8(0), sy, zy]
            want = ms.qlinear_where(*inputs)
        else:
            inputs, attributes = [x, s, zx, sy, zy], {"alpha": 0.5}
            want = ms.qlinear_leaky_relu(*inputs, alpha=0.5)
        model, feeds = node_model(name, inputs, attributes, domain=MS, opset=17, outputs=[np.uint8])
        assert_equal(run_qrun(model, feeds)[0], want, f"seed {seed}")
        assert_equal(run_qrun(model, feeds, arith="onnx-ref")[0], want, f"seed {seed}")
        ort = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], ort, f"seed {seed}")
        differ += int((ort != want).sum())
    assert differ > 0


@pytest.mark.parametrize("scale", [0, np.inf])
def test_ort_copies_where_parameters_are_equal(scale: float) -> None:
    x = np.arange(256, dtype=np.uint8)
    inputs = [F32(scale), np.uint8(7), x, F32(scale), np.uint8(7)]
    model, feeds = node_model("QLinearConcat", inputs, {"axis": 0}, domain=MS, opset=17, outputs=[np.uint8])
    assert_equal(run_ort(model, feeds)[0], x)
    assert_equal(run_qrun(model, feeds, arith="ort")[0], x)
    assert_equal(run_qrun(model, feeds)[0], np.zeros(256, np.uint8))


def test_fused_multiply_add_and_sums_round_once() -> None:
    """(1 + 2**-12)**2 is a tie of float32; a neighbour of 2**-60 decides it, though float64 cannot hold the sum."""
    a = F32(1 + 2**-12)
    low, high = F32(1 + 2**-11), F32(1 + 2**-11 + 2**-23)
    assert [float(fma32(a, a, F32(c))) for c in (0, 2**-60, -(2**-60))] == [low, high, low]
    assert [float(fma32(-a, a, F32(c))) for c in (0, 2**-60, -(2**-60))] == [-low, -low, -high]
    total = plus(DoubleDouble(np.array([1.0]), np.array([-(2.0**-53) + 2.0**-106])), np.array([1.5 * 2**-52]))
    assert (total.hi[0], total.lo[0] > 0) == (1 + 2**-52, True)


def test_omitted_zero_points_run_in_a_model() -> None:
    """O15: the schema makes them optional."""
    x = np.array([1, 2], np.uint8)
    model, feeds = node_model(
        "QLinearAdd", [x, F32(1), None, x, F32(1), None, F32(1)], domain=MS, opset=17, outputs=[np.uint8]
    )
    assert run_qrun(model, feeds)[0].tolist() == [2, 4]
    model, feeds = node_model("QLinearLeakyRelu", [x, F32(1), None, F32(1)], domain=MS, opset=17, outputs=[np.uint8])
    assert run_qrun(model, feeds)[0].tolist() == [1, 2]


def test_nan_is_observed_once_per_element() -> None:
    x = np.zeros((2, 3), np.uint8)
    x[0, 2] = 9
    ctx = Context()
    y = find(MS, "QLinearLeakyRelu", 1)(x, F32(np.inf), np.uint8(9), F32(1), np.uint8(4), ctx=ctx)
    assert y.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert [(o.kind, o.param, o.count, o.first) for o in ctx.observations if o.kind == "nan-quantized"] == [
        ("nan-quantized", "Y", 1, (0, 2))
    ]


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "code", "param"),
    [
        ("QLinearAdd", [np.zeros((2, 3), np.uint8), F32(1), None, np.zeros((2, 2), np.uint8), F32(1), None, F32(1)], {}, "QR208", "B"),
        ("QLinearMul", [np.zeros(2, np.uint8), np.ones(2, F32), None, np.zeros(2, np.uint8), F32(1), None, F32(1)], {}, "QR301", "A_scale"),
        ("QLinearMul", [np.zeros(2, np.uint8), F32(1), None, np.zeros(2, np.uint8), F32(1), np.zeros((1, 1), np.uint8), F32(1)], {}, "QR302", "B_zero_point"),
        ("QLinearAdd", [np.zeros(2, np.uint8), F32(1), np.int8(0), np.zeros(2, np.uint8), F32(1), None, F32(1)], {}, "QR303", "A_zero_point"),
        ("QLinearConcat", [F32(1), np.uint8(0), np.zeros(2, np.uint8), F32(1)], {"axis": 0}, "QR205", "inputs"),
        ("QLinearConcat", [F32(1), np.uint8(0), np.zeros(2, np.uint8), F32(1), None], {"axis": 1}, "QR204", "axis"),
        ("QLinearConcat", [F32(1), np.uint8(0), np.array(2, np.uint8), F32(1), None], {"axis": 0}, "QR204", "axis"),
        ("QLinearConcat", [F32(1), np.uint8(0), np.zeros(2, F32), F32(1), None], {"axis": 0}, "QR203", "inputs"),
        ("QLinearConcat", [F32(1), np.uint8(0), None, F32(1), None], {"axis": 0}, "QR203", "inputs"),
        ("QLinearConcat", [F32(1), np.uint8(0), np.zeros((2, 2), np.uint8), F32(1), None, np.zeros((2, 3), np.uint8), F32(1), None], {"axis": 0}, "QR208", "inputs[3]"),
    ],
)  # fmt: skip
def test_refusals(name: str, inputs, attributes, code: str, param: str) -> None:
    with pytest.raises(OperatorError) as caught:
        kernel(name, inputs, **attributes)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_missing_required_input_in_the_middle_is_named() -> None:
    x = np.array([1], np.uint8)
    model, feeds = node_model(
        "QLinearAdd", [x, F32(1), None, None, F32(1), None, F32(1)], domain=MS, opset=17, outputs=[np.uint8]
    )
    with pytest.raises(qrun.errors.QrunError, match="'B' is missing"):
        run_qrun(model, feeds)
