"""Each cause on a side that has the bug, computed here by other means; and none of them where a bit contradicts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.support import MS, node_model

import qrun
from qrun.comparing.causes import CAUSES, UNKNOWN
from qrun.comparing.causes.pairs import saturated_pairs
from qrun.comparing.comparison import ComparedTensor
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import QrunSide, Unit
from qrun.errors import UnsupportedError
from qrun.ir import Array, Model
from qrun.ops._chains import chained_products

f32, f16, u8, i8, i32, i64 = np.float32, np.float16, np.uint8, np.int8, np.int32, np.int64
FNUZ = ml_dtypes.float8_e4m3fnuz
Values = Mapping[str, Array]


@dataclass(frozen=True)
class Planted:
    """A side whose only node gives whatever `answer` says."""

    model: Model
    answer: Callable[[], Array | None]
    name: str = "planted"
    label: str = "planted 1.0"

    @property
    def units(self) -> Sequence[Unit]:
        return [Unit(node, (node,)) for node in self.model.nodes]

    def run(self, feeds: Values) -> Mapping[str, Array | None]:
        return {"y0": self.answer()}

    def alone(self, unit: Unit, values: Values) -> Mapping[str, Array | None]:
        return {"y0": self.answer()}


@dataclass(frozen=True)
class Bug:
    """A node, and what an implementation with the bug gives."""

    cause: str
    op: str
    inputs: list[Any]
    theirs: Any
    kind: Any = u8
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    domain: str = ""
    id: str = ""

    def compare(self, answer: Callable[[], Array | None]) -> ComparedTensor:
        opset = 17 if self.domain else self.opset
        proto, feeds = node_model(
            self.op, self.inputs, self.attributes, opset=opset, domain=self.domain, outputs=(self.kind,)
        )
        model = qrun.load(proto.SerializeToString())
        return compare_runtimes(QrunSide(model), Planted(model, answer), feeds).tensors[0]


def found(compared: ComparedTensor) -> str:
    return compared.guilt.reason.cause if compared.guilt else ""


def codes(values: Any, kind: Any = u8) -> np.ndarray:
    info = np.iinfo(kind)
    return np.clip(np.asarray(values, float), info.min, info.max).astype(kind)


TIES = np.array([0.5, 1.5, 2.5, 3.5, -0.5, -1.5, 1.25, 7], f32)
SQUARE = np.arange(9, dtype=u8).reshape(3, 3)
A = np.arange(1, 201, dtype=u8).reshape(200, 1)
X = np.array([[3, 250, 7, 200], [255, 1, 9, 90]], u8)
W = np.array([[1, -2], [3, 4], [-5, 6], [7, 8]], i8)
LONG = (
    np.random.default_rng(7).normal(size=(4, 300)).astype(f32),
    np.random.default_rng(8).normal(size=(300, 5)).astype(f32),
)


ROWS, COLUMNS = np.arange(3 * 19, dtype=u8).reshape(3, 19), np.arange(19 * 2, dtype=u8).reshape(19, 2)
LARGE = np.full((2, 9), 200, u8)
STRIP = np.arange(1, 12, dtype=u8).reshape(1, 1, 11)
BESIDE = np.array([-6.8125, -0.375, -1.125, -1.25, 1.375, -6.0625, 6.9375, 2.9375, 5.1875], f32)
RANGED = np.array([1, 1.3, 2.7, 3.1, 5], f32)
WIDE = np.linspace(-300, 700, 77).astype(f32)
CODES = np.arange(-128, 128).astype(i8)
GRID = (np.arange(1, 256, dtype=u8).reshape(-1, 1), np.arange(1, 256, dtype=u8).reshape(1, -1))
GRID_SCALE = f32(0.0031)


def rounded_twice() -> np.ndarray:
    """The products of GRID times GRID_SCALE, rounded at 2^31 and at the shift, each sum with Python's integers."""
    multiplier = round(float(GRID_SCALE) * 2**39)
    assert 2**30 <= multiplier < 2**31
    rows = [[int(a) * int(b) for b in GRID[1][0]] for a in GRID[0][:, 0]]
    return codes([[((p * multiplier + 2**30 >> 31) + 2**7) >> 8 for p in row] for row in rows])


def scales_near_a_half() -> tuple[np.float32, np.float32, np.float32]:
    """a * b / c within 1e-8 of a half, relatively, and not one."""
    rng = np.random.default_rng(3)
    while True:
        a, b = rng.uniform(0.01, 0.1, 2).astype(f32)
        c = f32(2 * np.float64(a) * np.float64(b))
        apart = abs(np.float64(a) * np.float64(b) / np.float64(c) - 0.5) / 0.5
        if 4e-9 < apart < 1e-8:
            return a, b, c


SA, SB, SC = scales_near_a_half()


def softmax_with_floor(x: np.ndarray, x_scale: float, y_scale: np.float32) -> np.ndarray:
    powers = np.exp((x.astype(float) - x.max(-1, keepdims=True)) * x_scale)
    return codes(np.rint(powers / powers.sum(-1, keepdims=True) * np.floor(1 / y_scale)))


def conv_in_pairs(x: np.ndarray, w: np.ndarray, zero: int, pad: int, most: int = 2**15 - 1) -> np.ndarray:
    """int32 sums [1,M,H,W] of a 3x3 convolution whose products are added two by two in int16, channels fastest."""
    image = np.pad(x[0].astype(i64), ((0, 0), (pad, pad), (pad, pad)), constant_values=zero)
    height, width = x.shape[2], x.shape[3]
    sums = np.zeros((1, len(w), height, width), i64)
    for m, row, column in np.ndindex(len(w), height, width):
        left = image[:, row : row + 3, column : column + 3].transpose(1, 2, 0).reshape(-1)
        right = w[m].astype(i64).transpose(1, 2, 0).reshape(-1)
        products = np.append(left * right, [0] * (len(left) % 2)).reshape(-1, 2).sum(1)
        sums[0, m, row, column] = np.clip(products, -most - 1, most).sum() - zero * right.sum()
    return sums


IMAGE = np.random.default_rng(1).integers(100, 256, (1, 3, 4, 5)).astype(u8)
KERNEL = np.random.default_rng(2).integers(60, 128, (2, 3, 3, 3)).astype(i8)


BEYOND = np.array([1, 61440, 65536, -62000, 57344, -1e9, 3], f32)
BEYOND_AS_NAN = np.array([1, np.nan, np.inf, np.nan, 57344, -np.inf, 3], f32).astype(ml_dtypes.float8_e5m2)


BUGS = [
    Bug("missing-output", "QuantizeLinear", [TIES, f32(1), u8(3)], None),
    Bug("wrong-shape", "QuantizeLinear", [TIES, f32(1), u8(3)], codes(np.rint(TIES) + 3)[None]),
    Bug("wrong-type", "QuantizeLinear", [TIES, f32(1), u8(3)], codes(np.rint(TIES) + 3).astype(i32)),
    Bug("random-numbers", "RandomUniformLike", [TIES], np.linspace(0, 1, TIES.size, dtype=f32).reshape(TIES.shape), f32),
    Bug("empty-sum", "MatMulInteger", [np.zeros((1, 0), u8), np.zeros((0, 2), u8)], np.array([[7, 9]], i32), i32),
    Bug("saturation", "QuantizeLinear", [np.array([3e9, 1, -3e9], f32), f32(1), u8(0)], np.array([0, 1, 0], u8)),
    Bug("saturation", "QuantizeLinear", [np.array([-3e9, 1], f32), f32(1), i8(-5)], np.array([127, -4], i8), i8,
        id="wraps at the zero point"),
    Bug("wrap-around", "QuantizeLinear", [np.array([300, 1, -3], f32), f32(1), u8(0)], np.array([44, 1, 253], u8)),
    Bug("wrap-around", "DequantizeLinear", [np.array([-(2**31), 5], i32), f32(2), i32(1)],
        np.array([(2**31 - 1) * 2.0, 8], f32), f32, id="int32 difference"),
    Bug("special-value", "QuantizeLinear", [np.array([np.nan, 4], f32), f32(1), u8(7)], np.array([255, 11], u8)),
    Bug("special-value", "Cast", [np.array([1, np.inf, -np.inf, 3], f16)], np.array([1, 240, -240, 3], f32).astype(FNUZ), FNUZ,
        {"to": 18}, id="infinity saturates before Cast-24"),
    Bug("float8-overflow", "Cast", [BEYOND], BEYOND_AS_NAN, ml_dtypes.float8_e5m2, {"to": 19, "saturate": 0}),
    Bug("wrong-scale-axis", "DequantizeLinear", [SQUARE, np.array([1, 2, 3], f32)],
        SQUARE.astype(f32) * np.array([[1], [2], [3]], f32), f32, {"axis": 1}),
    Bug("wrong-scale-axis", "MatMulInteger", [SQUARE, SQUARE, np.array([1, 2, 3], u8)],
        ((SQUARE.astype(i64) - [1, 2, 3]) @ SQUARE).astype(i32), i32, opset=10, id="rows along columns"),
    Bug("negative-padding", "ConvInteger", [np.arange(1, 9, dtype=u8).reshape(1, 1, 8), np.ones((1, 1, 1), u8)],
        np.array([[[2, 6]]], i32), i32, {"auto_pad": "SAME_UPPER", "strides": [4]}, 10),
    Bug("wrong-parameter", "QLinearMatMul", [X, f32(1), u8(100), W, f32(1), i8(1), f32(4), u8(9)],
        codes(np.rint((X.astype(i32) - 100) @ W.astype(i32) / 4) + 9), id="b_zero_point"),
    Bug("wrong-parameter", "QGemm", [X, f32(1), u8(100), W, f32(1), i8(0), np.array([7, 9], i32), f32(4), u8(9)],
        codes(np.rint((X.astype(i32) - 100) @ W.astype(i32) / 4) + 9), domain=MS, id="bias"),
    Bug("zero-point-before-rounding", "QuantizeLinear", [TIES, f32(1), u8(3)], codes(np.rint(TIES + 3))),
    Bug("tie-rounding", "QuantizeLinear", [TIES, f32(1), u8(4)],
        codes(np.copysign(np.floor(np.abs(TIES) + 0.5), TIES) + 4), id="away from zero"),
    Bug("tie-rounding", "QuantizeLinear", [TIES, f32(1), u8(4)], codes(np.floor(TIES + 0.5) + 4), id="up"),
    Bug("tie-rounding", "QuantizeLinear", [TIES, f32(1), u8(4)],
        codes(np.copysign(np.ceil(np.abs(TIES) - 0.5), TIES) + 4), id="towards zero"),
    Bug("truncation", "QuantizeLinear", [TIES * f32(1.3), f32(1), u8(4)], codes(np.trunc(TIES * f32(1.3)) + 4)),
    Bug("reciprocal-floor", "QLinearSoftmax", [np.array([[255, 250, 0, 252]], u8), f32(0.1), u8(0), f32(1 / 255), u8(0)],
        softmax_with_floor(np.array([[255, 250, 0, 252]], u8), 0.1, f32(1 / 255)), attributes={"opset": 13}, domain=MS),
    Bug("division-type", "QuantizeLinear", [np.array([193.25, 1], f16), f16(1.16796875), u8(0)], np.array([165, 1], u8)),
    Bug("float32-multiplier", "QLinearMatMul", [A, SA, u8(0), np.ones((1, 1), u8), SB, u8(0), SC, u8(0)],
        codes(np.rint(A.astype(f32) * (SA * SB / SC)))),
    Bug("float32-arithmetic", "DequantizeLinear", [np.array([16777217, 3], i32), f32(1), i32(16777216)],
        np.array([0, -16777213], f32), f32, opset=19),
    Bug("near-tie", "QLinearMul", [A[:99, 0], SA, u8(0), np.ones(99, u8), SB, u8(0), SC, u8(1)],
        codes(np.rint((A[:99, 0] * (np.float64(SA) * SB / SC)).astype(f32)) + 1), domain=MS),
    Bug("pair-saturation", "QLinearConv", [IMAGE, f32(1), u8(5), KERNEL, f32(1), i8(0), f32(2500), u8(7)],
        codes(np.rint(conv_in_pairs(IMAGE, KERNEL, 5, 1) / 2500) + 7), attributes={"pads": [1, 1, 1, 1]}, opset=10),
    Bug("folded-zero-point", "DequantizeLinear", [CODES, f32(0.2344806), i8(112)],
        CODES.astype(f32) * f32(0.2344806) + f32(-112) * f32(0.2344806), f32),
    Bug("requantization", "QLinearMatMul", [GRID[0], GRID_SCALE, u8(0), GRID[1], f32(1), u8(0), f32(1), u8(0)], rounded_twice()),
    Bug("several-steps", "QuantizeLinear", [WIDE, f32(1), u8(5)], np.trunc(WIDE.astype(float) + 5).astype(i64).astype(u8)),
    Bug("wrong-parameter", "MatMulInteger", [X, W, u8(9), i8(-3)], X.astype(i32) @ W, i32, opset=10, id="two zero points"),
    Bug("register-overflow", "QLinearMatMul", [X, f32(-0.25), u8(0), W, f32(1), i8(0), f32(8), u8(100)],
        codes(np.rint(X.astype(i32) @ W / 32) + 100), id="sign of the multiplier"),
    Bug("register-overflow", "QLinearMatMul", [X, f32(2.1e6), u8(0), W, f32(1300.3), i8(0), f32(1), u8(100)],
        np.full((2, 2), 100, u8), id="multiplier beyond 2^31"),
    Bug("register-overflow", "QLinearMatMul", [X, f32(1e15), u8(0), W, f32(1.3), i8(0), f32(1e-6), u8(100)],
        np.full((2, 2), 100, u8), id="product beyond int64"),
    Bug("register-overflow", "QLinearConv", [SQUARE[None, None], f32(0.5), u8(0), np.full((1, 1, 1, 1), 100, u8), f32(0.5), u8(0),
        f32(2**23), u8(127), np.array([2**31 - 1000], i32)], np.full((1, 1, 3, 3), 127 - 64, u8), opset=10, id="half before the shift"),
    Bug("saturating-conversion", "QuantizeLinear", [np.array([np.nan, np.inf, -np.inf, 3e9, 2], f32), f32(1), i8(7)],
        np.array([7, -128, -128, -128, 9], i8), i8),
    Bug("float16-zero-point", "QuantizeLinear", [np.array([1, 3000, 50000], f16), f16(1), np.uint16(20001)],
        np.array([20000, 23008, 0], np.uint16), np.uint16, id="infinity to 0"),
    Bug("float16-zero-point", "QuantizeLinear", [np.array([1, 3000, -7], f16), f16(1), np.int16(-20001)],
        np.array([-20000, -16992, -20000], np.int16), np.int16),
    Bug("added-half", "QuantizeLinear", [np.array([0.5, 1.5, 2.5, 3.5, 100.5, 7], f32), f32(1), u8(0)],
        np.array([0, 1, 3, 4, 101, 7], u8), id="0.4999999"),
    Bug("added-half", "QuantizeLinear", [np.array([np.nextafter(f32(0.5), f32(0)), 2.5, 7], f32), f32(1), u8(0)],
        np.array([1, 3, 7], u8), id="0.5"),
    Bug("wide-sum", "QLinearConv", [SQUARE[None, None], f32(1), u8(0), np.full((1, 1, 1, 1), 100, u8), f32(1), u8(0), f32(2**24), u8(9),
        np.array([2**31 - 1], i32)], codes(np.rint((SQUARE[None, None] * 100.0 + 2**31 - 1) / 2**24) + 9), opset=10),
    Bug("wrong-geometry", "ConvInteger", [STRIP, np.array([[[1, 3]]], u8)],
        (STRIP[..., :5].astype(i32) + 3 * STRIP[..., 1:6].astype(i32)), i32, {"strides": [2]}, 10, id="strides"),
    Bug("wrong-geometry", "ConvInteger", [STRIP, np.array([[[1, 3]]], u8)],
        (3 * STRIP[..., :10].astype(i32) + STRIP[..., 1:].astype(i32)), i32, opset=10, id="flipped kernels"),
    Bug("wrong-elements", "MatMulInteger", [ROWS, COLUMNS],
        ROWS[:, :16].astype(i32) @ COLUMNS[:16].astype(i32), i32, opset=10, id="tail of K"),
    Bug("wrong-elements", "DequantizeLinear", [ROWS, f32(2)],
        np.concatenate([ROWS[:, :16], ROWS[:, 13:16]], 1) * f32(2), f32, id="tail of rows"),
    Bug("wrong-encoding", "DequantizeLinear", [CODES, f32(2)], CODES.view(u8) * f32(2), f32),
    Bug("narrow-accumulator", "MatMulInteger", [LARGE, LARGE.T], np.full((2, 2), 2**15 - 1, i32), i32, opset=10),
    Bug("wrong-range", "DynamicQuantizeLinear", [RANGED], codes(np.rint((RANGED / f32(4 / 255)).astype(float))), opset=11),
    Bug("wrong-range", "DynamicQuantizeLinear", [BESIDE], codes(np.rint((BESIDE * (f32(1) / f32(13.75)) * f32(255)).astype(float)) + 126),
        opset=11, id="reciprocal of the range"),
    Bug("flush-to-zero", "DequantizeLinear", [CODES, f32(1e-39)], CODES * f32(0), f32),
    Bug("float-order", "MatMul", list(LONG), chained_products(*LONG, np.dtype(f32), block=300), f32),
    Bug("unknown-order", "MatMul", list(LONG), np.add.reduce(LONG[0][:, ::-1, None] * LONG[1][None, ::-1], 1, f32), f32),
]  # fmt: skip
FACTS = ("random-numbers", "missing-output", "empty-sum", "unknown-order")


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: f"{b.cause} {b.id}".strip())
def test_named(bug: Bug) -> None:
    compared = bug.compare(lambda: bug.theirs)
    assert found(compared) == bug.cause, compared.guilt
    assert compared.guilt is not None
    if bug.cause not in (*FACTS, "wrong-shape", "wrong-type"):
        assert compared.guilt.reason.explained == compared.pair.difference.differing > 0


@pytest.mark.parametrize("bug", [b for b in BUGS if b.cause not in FACTS], ids=lambda b: f"{b.cause} {b.id}".strip())
@pytest.mark.parametrize("place", [0, -1])
def test_not_named_where_a_bit_contradicts(bug: Bug, place: int) -> None:
    theirs = bug.theirs.copy()
    flat = theirs.reshape(-1)
    flat[place] = flat[place] ^ 1 if theirs.dtype.kind in "iu" else flat[place] * f32(1.25) + f32(7)
    assert found(bug.compare(lambda: theirs)) != bug.cause


def test_every_cause_is_planted() -> None:
    elsewhere = {"crashed", "refused", "fused-requantization", "approximation", "float-steps"}
    elsewhere |= {"runtime-arithmetic", "empty-sequence", "cast-rounding", "pool-divisor"}
    elsewhere |= {"int8-activations", "kept-in-float32", "session-rewrite", "unquantized-activations"}
    elsewhere |= {"bias-scale", "several-nodes", "float8-rounding"}
    assert {b.cause for b in BUGS} | elsewhere == set(CAUSES)


@pytest.mark.parametrize(("cause", "code"), [("refused", "QR013"), ("crashed", "QR015")])
def test_no_result_at_all(cause: str, code: str) -> None:
    def refuse() -> Array | None:
        raise UnsupportedError(code, "no", facts=[("got", "no such kernel")])

    compared = BUGS[0].compare(refuse)
    assert found(compared) == cause
    assert compared.refused
    assert compared.crashed == (cause == "crashed")
    assert compared.guilt is not None
    assert compared.guilt.reason.text == "no such kernel"


def test_memory_that_changes_is_told() -> None:
    answers = iter(range(100))
    bug = next(b for b in BUGS if b.cause == "empty-sum")
    compared = bug.compare(lambda: np.full((1, 2), next(answers) + 1, i32))
    assert found(compared) == "empty-sum"
    assert compared.guilt is not None
    assert "uninitialised memory" in compared.guilt.reason.text


def test_unknown() -> None:
    bug = next(b for b in BUGS if b.cause == "tie-rounding")
    theirs = codes(np.rint(TIES) + 4)
    theirs[-1] += 1
    compared = bug.compare(lambda: theirs)
    assert compared.guilt is not None
    assert (found(compared), compared.guilt.reason.explained) == (UNKNOWN, 0)
    assert compared.guilt.exact == 11
    assert compared.pair.difference.worst == (7,)


def test_an_order_is_named_only_where_it_gives_every_bit() -> None:
    known, unknown = (next(b for b in BUGS if b.cause == c) for c in ("float-order", "unknown-order"))
    theirs = unknown.theirs.copy()
    theirs[0, 0] += f32(0.02)
    texts = []
    for bug, array in ((known, known.theirs), (unknown, unknown.theirs), (unknown, theirs)):
        guilt = bug.compare(lambda array=array: array).guilt
        assert guilt is not None
        assert guilt.reason.also == ()
        texts.append(guilt.reason.text)
    assert texts[0] == "adds the products in onnxruntime's order: blocks of 1024 fused multiply-adds"
    start = "no known order of additions produces these bits; the largest difference is "
    end = "the rounding-error bound, which holds for any order"
    assert texts[1].startswith(start)
    assert texts[1].endswith(f" % of {end}")
    assert texts[2].startswith(start)
    assert texts[2].endswith(f" times {end}")


@pytest.mark.parametrize(
    ("op", "attributes", "shape"),
    [("AveragePool", {"kernel_shape": [8, 8]}, (2, 3, 8, 8)), ("GlobalAveragePool", {}, (2, 3, 8, 8)),
     ("ReduceMean", {"axes": [1], "keepdims": 0}, (6, 64)), ("ReduceSum", {"keepdims": 0}, (6, 64))],
)  # fmt: skip
def test_float_order_of_means(op: str, attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    """64 terms, added one by one from the last to the first."""
    x = np.random.default_rng(11).standard_normal(shape).astype(f32)
    terms = x.reshape(6, 64)[:, ::-1]
    total = np.zeros(6, f32)
    for at in range(64):
        total += terms[:, at]
    made = (total if op == "ReduceSum" else total / f32(64)).reshape(6 if len(shape) == 2 else (2, 3, 1, 1))
    axes = [np.array([1], i64)] if op == "ReduceSum" else []
    bug = Bug("float-order", op, [x, *axes], made, f32, attributes, 13)
    assert found(bug.compare(lambda: made)) == "float-order"
    wrong = made + f32(1e-3)
    assert found(bug.compare(lambda: wrong)) == UNKNOWN


def test_float_order_of_a_transposed_convolution() -> None:
    rng = np.random.default_rng(12)
    x, w = (rng.standard_normal(shape).astype(f32) for shape in ((1, 64, 1, 1), (64, 3, 1, 1)))
    made = np.zeros((1, 3, 1, 1), f32)
    for at in range(63, -1, -1):
        made[0] += x[0, at] * w[at]
    bug = Bug("float-order", "ConvTranspose", [x, w], made, f32, {}, 11)
    assert found(bug.compare(lambda: made)) == "float-order"
    assert found(bug.compare(lambda: made + f32(1e-3))) == UNKNOWN


def test_saturated_pairs_that_still_round_to_the_same_code() -> None:
    sums, exact = (conv_in_pairs(IMAGE, KERNEL, 5, 1, most) for most in (2**15 - 1, 2**31))
    theirs, right = (codes(np.rint(whole / 40000) + 7) for whole in (sums, exact))
    inputs = [IMAGE, f32(1), u8(5), KERNEL, f32(1), i8(0), f32(40000), u8(7)]
    guilt = Bug("", "QLinearConv", inputs, theirs, attributes={"pads": [1, 1, 1, 1]}).compare(lambda: theirs).guilt
    assert guilt is not None
    hidden = np.count_nonzero((sums != exact) & (theirs == right))
    assert hidden > 0
    told = f"in the sums of {np.count_nonzero(sums != exact)} elements; {hidden} still have the same"
    assert (guilt.reason.cause, told in guilt.reason.text) == ("pair-saturation", True), guilt.reason.text


def test_nothing_is_guilty_where_all_is_equal() -> None:
    compared = BUGS[0].compare(lambda: codes(np.rint(TIES) + 3))
    assert compared.pair.identical
    assert compared.guilt is None


@pytest.mark.parametrize("seed", range(20))
def test_saturated_pairs_as_a_loop_finds_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, terms, columns = rng.integers(1, 9, 3)
    left = rng.integers(0, 256, (rows, terms)).astype(u8)
    right = rng.integers(-128, 128, (terms, columns)).astype(i8)
    change, count = saturated_pairs(left, right)
    want, hits = np.zeros((rows, columns), i64), 0
    for row, column in np.ndindex(int(rows), int(columns)):
        for k in range(0, terms - 1, 2):
            total = sum(int(left[row, k + i]) * int(right[k + i, column]) for i in (0, 1))
            lost = min(max(total, -(2**15)), 2**15 - 1) - total
            want[row, column] += lost
            hits += lost != 0
    assert count == hits, f"seed {seed}"
    np.testing.assert_array_equal(change, want, f"seed {seed}")
