"""Defects planted in a copy of the arithmetic: each is caught by at least three cases, and told by its cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from qrun.comparing.causes.pairs import saturated_pairs
from qrun.conform.judge import judge_case
from qrun.conform.results import VERDICTS, CaseResult
from qrun.conform.runtimes import Response
from qrun.conform.suite import REFUSAL, Case, Suite
from qrun.errors import QrunError
from qrun.ir import Array
from qrun.ir.load import load
from qrun.ops import Context, find
from qrun.ops._quantize import is_integer, limits

SUITE = Suite()
Inputs = dict[str, Array | None]


class Node:
    """The one node of a case: its inputs by the specification's names, its attributes, and what it should give."""

    def __init__(self, case: Case) -> None:
        model = load(case.model)
        (self.node,) = model.nodes
        values = {**model.constants, **case.inputs}
        found = find(self.node.domain, self.node.op_type, self.node.version)
        assert found is not None
        self.definition = found
        self.names = [p.name for p in found.inputs]
        given = [values[name] if name else None for name in self.node.inputs]
        self.inputs: Inputs = dict(zip(self.names, given, strict=False))
        self.expected = next(iter(case.expected.values()))
        self.exact = case.exact.get("y0")

    def made(self, attributes: Mapping[str, Any] | None = None, **inputs: Array | None) -> Array:
        """What the reference kernel gives with other inputs or attributes."""
        values = {**self.inputs, **inputs}
        bound = {**self.definition.bind(self.node), **(attributes or {})}
        context = {"ctx": Context(version=self.node.version, observing=False)} if self.definition.takes_context else {}
        with np.errstate(all="ignore"):
            return np.asarray(
                self.definition(*[values.get(name) for name in self.names[: len(self.node.inputs)]], **bound, **context)
            )

    def zero(self) -> Array:
        """The zero point of the output, of which there is one."""
        found = next(
            (
                self.inputs[n]
                for n in ("y_zero_point", "Y_zero_point", "C_zero_point")
                if self.inputs.get(n) is not None
            ),
            None,
        )
        return np.zeros(()) if found is None or found.size != 1 else found.reshape(()).astype(np.float64)

    def coded(self, whole: Array) -> Array:
        low, high = limits(self.expected.dtype)
        return (
            np.clip(np.nan_to_num(whole, nan=low, posinf=high, neginf=low), low, high)
            .astype(np.int64)
            .astype(self.expected.dtype)
        )


Defect = Callable[[Node], Array | None]


def zero_point_before_rounding(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.rint(n.exact + n.zero()))


def half_away_from_zero(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.copysign(np.floor(np.abs(n.exact) + 0.5), n.exact) + n.zero())


def half_up(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.floor(n.exact + 0.5) + n.zero())


def half_toward_zero(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.copysign(np.ceil(np.abs(n.exact) - 0.5), n.exact) + n.zero())


def truncation(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.trunc(n.exact) + n.zero())


def floor(n: Node) -> Array | None:
    return None if n.exact is None else n.coded(np.floor(n.exact) + n.zero())


def wrap_instead_of_saturation(n: Node) -> Array | None:
    if n.exact is None or not np.isfinite(n.exact).all() or np.abs(n.exact).max(initial=0) > 1e9:
        return None
    low, high = limits(n.expected.dtype)
    return ((np.rint(n.exact) + n.zero() - low) % (high - low + 1) + low).astype(np.int64).astype(n.expected.dtype)


def int32_overflow_becomes_least(n: Node) -> Array | None:
    if n.exact is None or np.isnan(n.exact).any() or not is_integer(n.expected.dtype):
        return None
    whole = np.rint(n.exact)
    return n.coded(np.where(np.abs(whole) < 2**31, whole, -(2.0**31)) + n.zero())


def ignored(name: str) -> Defect:
    def defect(n: Node) -> Array | None:
        array = n.inputs.get(name)
        if array is None:
            return None
        return n.made(**{name: np.ones_like(array) if "scale" in name else np.zeros_like(array)})

    return defect


def other_axis(n: Node) -> Array | None:
    scale, axis = n.inputs.get("y_scale", n.inputs.get("x_scale")), n.node.attributes.get("axis", 1)
    if scale is None or scale.ndim != 1 or scale.size < 2 or n.expected.ndim != 2:
        return None
    other = 1 - axis % 2
    return n.made({"axis": other}) if n.expected.shape[other] == scale.size else None


def rows_along_k(n: Node) -> Array | None:
    a, b, az, bz = (n.inputs.get(k) for k in ("A", "B", "a_zero_point", "b_zero_point"))
    if a is None or b is None or az is None or az.ndim != 1 or a.ndim != 2 or az.size != a.shape[1] or az.size < 2:
        return None
    right = b.astype(np.int64) - (0 if bz is None else bz.astype(np.int64))
    return ((a.astype(np.int64) - az) @ right).astype(np.int32)


def scales_as_1_m_1_1(n: Node) -> Array | None:
    """Of QLinearConv, right for two dimensions only."""
    scale = n.inputs.get("w_scale")
    if scale is None or scale.size < 2 or n.expected.ndim == 4 or n.exact is None:
        return None
    along = scale.astype(np.float64).reshape(-1, *(1,) * (n.expected.ndim - 2))
    try:
        return n.coded(np.rint(n.exact / along * scale.reshape(1, -1, 1, 1).astype(np.float64)) + n.zero())
    except ValueError:
        return None


def pair_saturation(n: Node) -> Array | None:
    a, b = n.inputs.get("A"), n.inputs.get("B")
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or (a.dtype, b.dtype) != (np.uint8, np.int8):
        return None
    lost, pairs = saturated_pairs(a, b)
    return (n.expected.astype(np.int64) + lost).astype(np.int32) if pairs else None


def as_another_type(n: Node) -> Array | None:
    return n.expected.astype(np.int16) if n.expected.dtype in (np.uint8, np.int8) else None


def one_more_axis(n: Node) -> Array | None:
    return n.expected[None]


def no_output(n: Node) -> Array | None:
    return None


def difference_wraps(n: Node) -> Array | None:
    x, scale, zero = (n.inputs.get(k) for k in ("x", "x_scale", "x_zero_point"))
    if x is None or scale is None or zero is None or x.dtype != np.int32:
        return None
    narrow = (x.astype(np.int64) - zero.astype(np.int64)).astype(np.int32)
    return np.asarray(narrow.astype(np.float32) * scale.astype(np.float32))


def difference_in_float32(n: Node) -> Array | None:
    x, scale, zero = (n.inputs.get(k) for k in ("x", "x_scale", "x_zero_point"))
    if x is None or scale is None or zero is None or x.dtype != np.int32:
        return None
    return np.asarray((x.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32))


def float32_division(n: Node) -> Array | None:
    x, scale = n.inputs.get("x"), n.inputs.get("y_scale")
    if (
        x is None
        or scale is None
        or scale.size != 1
        or n.node.op_type != "QuantizeLinear"
        or x.dtype == np.float32
        or not is_integer(n.expected.dtype)
    ):
        return None
    with np.errstate(all="ignore"):
        return n.coded(np.rint((x.astype(np.float32) / scale.astype(np.float32)).astype(np.float64)) + n.zero())


def floor_of_reciprocal(n: Node) -> Array | None:
    found = find(n.node.domain, n.node.op_type, n.node.version)
    assert found is not None
    values = [n.inputs.get(name) for name in n.names[: len(n.node.inputs)]]
    return np.asarray(found(*values, **found.bind(n.node), ctx=Context("ort", n.node.version, observing=False)))


def sums_of_nothing_are_what_was_in_memory(n: Node) -> Array | None:
    a, b = n.inputs.get("A", n.inputs.get("a")), n.inputs.get("B", n.inputs.get("b"))
    if a is None or b is None or (a.size and b.size) or not n.expected.size:
        return None
    return np.full_like(n.expected, 93)


def nan_is_the_greatest(n: Node) -> Array | None:
    x = n.inputs.get("x")
    if (
        x is None
        or not np.isnan(x.astype(np.float32)).any()
        or not is_integer(n.expected.dtype)
        or x.shape != n.expected.shape
    ):
        return None
    return np.where(np.isnan(x), limits(n.expected.dtype)[1], n.expected).astype(n.expected.dtype)


CONV, MATMUL, QUANTIZE = ["qlinearconv-10"], ["qlinearmatmul-10"], ["QuantizeLinear"]
PLANTED: Sequence[tuple[str, Defect, list[str], str]] = [
    ("zero point before rounding", zero_point_before_rounding, [*CONV, *MATMUL], "zero-point-before-rounding"),
    ("half away from zero", half_away_from_zero, ["qlinearconv-10/ties", "qlinearmatmul-10/ties"], "tie-rounding"),
    ("half up", half_up, ["qlinearconv-10/ties", "qlinearmatmul-10/ties"], "tie-rounding"),
    ("half toward zero", half_toward_zero, ["qlinearconv-10/ties", "qlinearmatmul-10/ties"], "tie-rounding"),
    ("truncation", truncation, [*CONV, *MATMUL], "truncation"),
    ("floor", floor, [*CONV, *MATMUL], "truncation"),
    ("truncation in AveragePool", truncation, ["ms.qlinearaveragepool-1"], "truncation"),
    ("truncation in QuantizeLinear", truncation, ["quantizelinear-13/types"], "truncation"),
    ("QLinearAdd without rounding", truncation, ["QLinearAdd"], "truncation"),
    ("wrap instead of saturation", wrap_instead_of_saturation, [*CONV, *MATMUL], "wrap-around"),
    ("int32 overflow becomes the least", int32_overflow_becomes_least, [*CONV, "quantizelinear-13", "quantizelinear-21"], "saturation"),
    ("x_zero_point ignored", ignored("x_zero_point"), ["qlinearconv-10/types"], "wrong-parameter"),
    ("w_zero_point ignored", ignored("w_zero_point"), ["ConvInteger"], "wrong-parameter"),
    ("bias ignored", ignored("B"), ["qlinearconv-10/types"], "wrong-parameter"),
    ("y_zero_point ignored", ignored("y_zero_point"), ["qlinearmatmul-10/types"], "wrong-parameter"),
    ("b_scale ignored", ignored("b_scale"), ["qlinearmatmul-10/types"], "wrong-parameter"),
    ("scales on another axis", other_axis, ["quantizelinear-13/granularity", "ms.quantizelinear-1", "quantizelinear-21", "quantizelinear-25"], "wrong-scale-axis"),
    ("rows of zero points along K", rows_along_k, ["MatMulInteger"], "wrong-scale-axis"),
    ("w_scale as [1,M,1,1]", scales_as_1_m_1_1, ["qlinearconv-10"], "wrong-scale-axis"),
    ("pairs saturate in int16", pair_saturation, ["MatMulInteger"], "pair-saturation"),
    ("another type", as_another_type, CONV, "wrong-type"),
    ("another rank", one_more_axis, MATMUL, "wrong-shape"),
    ("no output", no_output, MATMUL, "missing-output"),
    ("int32 difference wraps", difference_wraps, ["DequantizeLinear"], "wrap-around"),
    ("int32 difference in float32", difference_in_float32, ["DequantizeLinear"], "float32-arithmetic"),
    ("division in float32", float32_division, QUANTIZE, "division-type"),
    ("floor(1 / y_scale) in QLinearSoftmax", floor_of_reciprocal, ["QLinearSoftmax"], "reciprocal-floor"),
    ("memory in place of empty sums", sums_of_nothing_are_what_was_in_memory, ["QLinearMatMul", "QGemm"], "empty-sum"),
    ("NaN is the greatest code", nan_is_the_greatest, QUANTIZE, "special-value"),
]  # fmt: skip


def caught(defect: Defect, words: list[str]) -> list[CaseResult]:
    """The cases that a defect changes, judged."""
    found = []
    for info in SUITE.select(words):
        case = SUITE.load(info)
        if info.expects == REFUSAL or len(case.expected) != 1:
            continue
        try:
            got = defect(Node(case))
        except (QrunError, ValueError):
            continue
        if got is None and defect is not no_output:
            continue
        result = judge_case(case, Response({"y0": got}))
        if result.verdict != "exact":
            found.append(result)
    return found


@pytest.mark.parametrize(("name", "defect", "words", "cause"), PLANTED, ids=[name for name, *_ in PLANTED])
def test_a_planted_defect_is_caught_and_named(name: str, defect: Defect, words: list[str], cause: str) -> None:
    wrong = [case for case in caught(defect, words) if case.verdict in ("wrong", "choice")]
    named = [case for case in wrong if case.cause == cause]
    assert len(named) >= 3, [(case.id, case.verdict, case.cause) for case in wrong][:8]
    assert len(named) > 0.5 * len(wrong), [
        (case.id, case.verdict, case.cause) for case in wrong if case.cause != cause
    ][:8]


def test_at_least_25_defects_are_planted() -> None:
    assert len(PLANTED) >= 25


def flip_a_bit(rng: np.random.Generator, right: Array) -> Array:
    data = bytearray(right.tobytes())
    if data:
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    return np.frombuffer(bytes(data), right.dtype).reshape(right.shape)


ANSWERS: list[Callable[[np.random.Generator, Array], Array | None]] = [
    flip_a_bit,
    lambda rng, right: np.frombuffer(rng.bytes(right.nbytes), right.dtype).reshape(right.shape),
    lambda rng, right: np.zeros_like(right),
    lambda rng, right: np.zeros((*right.shape, 2), right.dtype),
    lambda rng, right: right.reshape(-1),
    lambda rng, right: np.zeros(right.shape, np.float64),
    lambda rng, right: np.full(right.shape, "7", object),
    lambda rng, right: None,
]


@pytest.mark.parametrize("seed", range(2))
def test_every_answer_gets_a_verdict(seed: int) -> None:
    """Whatever a runtime returns costs its case alone, never the run."""
    rng = np.random.default_rng(seed)
    layouts = SUITE.select(["ms.qlinearconv-1/layouts"])
    for info in [*layouts, *rng.choice(SUITE.select([]), 300, replace=False)]:
        case, answer = SUITE.load(info), ANSWERS[rng.integers(len(ANSWERS))]
        answers = {name: answer(rng, np.asarray(right)) for name, right in case.expected.items()}
        assert judge_case(case, Response(answers)).verdict in VERDICTS, (seed, info.id)
