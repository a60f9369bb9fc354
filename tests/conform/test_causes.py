"""Random answers from known arithmetics: a cause that is called proved is the planted one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import ml_dtypes
import numpy as np
import pytest
from defects import graphs, parameters, sums, types
from defects.node import Node, Planted

import qrun
from qrun.arithmetics import FAMILIES, Scales
from qrun.conform.judge import ZERO_SIGN, judge_case
from qrun.conform.results import VERDICTS, CaseResult
from qrun.conform.runtimes import Response
from qrun.conform.suite import REFUSAL, Case, CaseInfo, Suite, near_tie
from qrun.errors import QrunError
from qrun.ir import Array
from qrun.ir.load import load
from qrun.ops._quantize import is_integer, limits

SUITE = Suite()
OPERATORS = [
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "QGemm",
    "QLinearAdd",
    "QLinearMul",
    "QLinearAveragePool",
]
Truth = tuple[Array, set[str]]
"""Codes, and the causes that a judge may call proved for them."""


class Rounded:
    """A case whose one output is rounded: the real values without the zero point, and the zero point."""

    def __init__(self, case: Case) -> None:
        (self.name,) = case.expected
        self.expected, self.exact = case.expected[self.name], case.exact[self.name]
        self.low, self.high = limits(self.expected.dtype)
        finite = np.isfinite(self.exact)
        inside = finite & (self.expected.astype(np.int64) > self.low) & (self.expected.astype(np.int64) < self.high)
        zeros = (self.expected.astype(np.float64) - np.rint(self.exact))[inside]
        self.usable = bool(finite.all() and inside.any() and np.all(zeros == zeros[0]))
        self.zero = float(zeros[0]) if self.usable else 0.0
        model = load(case.model)
        (self.node,) = model.nodes
        values = {**model.constants, **case.inputs}
        self.args = [values[name] if name else None for name in self.node.inputs]

    def saturate(self, whole: Array) -> Array:
        return np.clip(whole, self.low, self.high).astype(np.int64).astype(self.expected.dtype)

    def wrap(self, whole: Array) -> Array:
        return ((whole - self.low) % (self.high - self.low + 1) + self.low).astype(np.int64).astype(self.expected.dtype)


def away(v: Array) -> Array:
    return np.copysign(np.floor(np.abs(v) + 0.5), v)


def to_zero(v: Array) -> Array:
    return np.copysign(np.ceil(np.abs(v) - 0.5), v)


ROUNDINGS: dict[str, tuple[Callable[[Array], Array], str]] = {
    "away": (away, "tie-rounding"),
    "up": (lambda v: np.floor(v + 0.5), "tie-rounding"),
    "toward zero": (to_zero, "tie-rounding"),
    "cut": (np.trunc, "truncation"),
    "floor": (np.floor, "truncation"),
}
BEFORE, SEVERAL = "zero-point-before-rounding", "several-steps"


def one_rounding(n: Rounded, rng: np.random.Generator) -> Truth:
    function, cause = ROUNDINGS[list(ROUNDINGS)[rng.integers(len(ROUNDINGS))]]
    return n.saturate(function(n.exact) + n.zero), {cause}


def zero_before(n: Rounded, rng: np.random.Generator) -> Truth:
    return n.saturate(np.rint(n.exact + n.zero)), {BEFORE}


def wrapped(n: Rounded, rng: np.random.Generator) -> Truth:
    return n.wrap(np.rint(n.exact) + n.zero), {"wrap-around"}


def rounding_and_zero(n: Rounded, rng: np.random.Generator) -> Truth:
    function, cause = ROUNDINGS[list(ROUNDINGS)[rng.integers(len(ROUNDINGS))]]
    return n.saturate(function(n.exact + n.zero)), {SEVERAL, BEFORE, cause}


def rounding_and_wrap(n: Rounded, rng: np.random.Generator) -> Truth:
    function, cause = ROUNDINGS[list(ROUNDINGS)[rng.integers(len(ROUNDINGS))]]
    return n.wrap(function(n.exact) + n.zero), {SEVERAL, "wrap-around", cause}


def zero_and_wrap(n: Rounded, rng: np.random.Generator) -> Truth:
    return n.wrap(np.rint(n.exact + n.zero)), {SEVERAL, "wrap-around", BEFORE}


def in_float32(n: Rounded, rng: np.random.Generator) -> Truth:
    single = n.exact.astype(np.float32).astype(np.float64)
    return n.saturate(np.rint(single) + n.zero), {
        "near-tie",
        "float32-multiplier",
        "float32-arithmetic",
        "division-type",
    }


def another_family(n: Rounded, rng: np.random.Generator) -> Truth | None:
    """The codes of an engine's arithmetic, with the int32 sums taken from the real values."""
    if n.node.op_type not in ("QLinearConv", "QLinearMatMul"):
        return None
    x, w, y = (np.asarray(n.args[at], np.float32) for at in (1, 4, 6))
    if not x.size == w.size == y.size == 1:
        return None
    x, w, y = (v.reshape(()) for v in (x, w, y))
    factor = float(x) * float(w) / float(y) if float(y) else 0.0
    if not (np.isfinite(factor) and factor > 0):
        return None
    acc = np.rint(n.exact / factor)
    if not np.isfinite(acc).all() or np.abs(acc).max() >= 2**31:
        return None
    family = list(FAMILIES.values())[rng.integers(len(FAMILIES))]
    codes = family.codes(acc.astype(np.int64), Scales(x, w, y), n.zero, n.low, n.high).astype(n.expected.dtype)
    allowed = {"requantization"}
    allowed |= {"tie-rounding"} if family.ties in ("away", "up", "zero", "down") else set()
    allowed |= {"truncation"} if family.ties in ("floor", "cut") else set()
    allowed |= {BEFORE} if family.zero == "before" else set()
    allowed |= {"float32-multiplier", "near-tie"} if family.hold in ("float32", "24 bits") else set()
    return codes, allowed


SINGLE = (one_rounding, one_rounding, zero_before, wrapped, in_float32)
PLANTS = (*SINGLE, rounding_and_zero, rounding_and_wrap, zero_and_wrap, another_family, another_family)


def planted(seed: int, count: int) -> Sequence[tuple[str, set[str], CaseResult]]:
    """Judged answers of random cases: the plant's name, the causes that it allows, the result."""
    rng = np.random.default_rng(seed)
    cases = [info for info in SUITE.select(OPERATORS) if info.expects != REFUSAL and info.profile != "graph"]
    found: list[tuple[str, set[str], CaseResult]] = []
    while len(found) < count:
        case = SUITE.load(cases[rng.integers(len(cases))])
        if list(case.exact) != list(case.expected) or not all(is_integer(a.dtype) for a in case.expected.values()):
            continue
        n, plant = Rounded(case), PLANTS[rng.integers(len(PLANTS))]
        truth = plant(n, rng) if n.usable and np.abs(n.exact).max() < 2**31 else None
        if truth is not None and not np.array_equal(truth[0], n.expected):
            found.append((plant.__name__, truth[1], judge_case(case, Response({n.name: truth[0]}))))
    return found


NEWEST = {
    "wrong-geometry",
    "wrong-elements",
    "wrong-encoding",
    "wrong-range",
    "narrow-accumulator",
    "flush-to-zero",
    "float8-overflow",
}
"""Causes whose defects are planted with the older ones; bias-scale is planted in graphs."""
DEFECTS = [defect for defect in (*sums.PLANTED, *parameters.PLANTED, *types.PLANTED) if defect.cause in NEWEST]
Outputs = Mapping[str, Array | None]
Answer = Callable[[Case], tuple[Outputs, set[str]] | None]


def of_node(planted: Planted) -> Answer:
    """The outputs of a case of one node with a defect, and the causes that a judge may call proved for them."""

    def answer(case: Case) -> tuple[Outputs, set[str]] | None:
        node = Node(case)
        with np.errstate(all="ignore"):
            got = planted.defect(node)
        zeros = [array for name, array in node.inputs.items() if "zero_point" in name and array is not None]
        truth = {planted.cause, ZERO_SIGN}
        if planted.defect is sums.pairs_of_differences and not any(map(np.any, zeros[:2])):
            truth.add("pair-saturation")  # the differences are the codes
        return None if got is None else ({**case.expected, next(iter(case.expected)): got}, truth)

    return answer


def of_graph(case: Case) -> tuple[Outputs, set[str]] | None:
    got = graphs.answers(case, graphs.bias_without_scale)
    return None if got is None else (got, {"bias-scale"})


def defects() -> Mapping[str, Sequence[tuple[Sequence[CaseInfo], Answer]]]:
    """By cause: cases, and what a defect makes of them; None if it does not concern a case."""

    def chosen(*words: str) -> Sequence[CaseInfo]:
        return [info for info in SUITE.select(list(words)) if info.expects != REFUSAL]

    made = {cause: [(chosen(*p.words), of_node(p)) for p in DEFECTS if p.cause == cause] for cause in sorted(NEWEST)}
    return {**made, "bias-scale": [(chosen("graph.matmul"), of_graph)]}


def planted_defects(seed: int, count: int) -> Sequence[tuple[str, set[str], CaseResult]]:
    """As `planted`, for defects of the newest causes, each in turn."""
    rng, known = np.random.default_rng(seed), defects()
    found: list[tuple[str, set[str], CaseResult]] = []
    while len(found) < count:
        cause = list(known)[len(found) % len(known)]
        infos, answer = known[cause][rng.integers(len(known[cause]))]
        case = SUITE.load(infos[rng.integers(len(infos))])
        try:
            made = answer(case)
        except (QrunError, ValueError, IndexError):
            continue
        result = None if made is None else judge_case(case, Response(dict(made[0])))
        if made is not None and result is not None and result.verdict not in ("exact", "ulp"):
            found.append((cause, made[1], result))
    return found


@pytest.mark.parametrize("seed", [43, 44])
def test_no_proof_is_false(seed: int) -> None:
    told, of_defects = planted(seed, 200), planted_defects(seed, 120)
    false = [
        (name, each.id, each.cause, each.text)
        for name, allowed, each in (*told, *of_defects)
        if each.proved and each.cause not in allowed
    ]
    assert not false, (seed, false)
    proofs = Counter(each.cause for _, _, each in of_defects if each.proved)
    assert min(proofs[cause] for cause in (*NEWEST, "bias-scale")) >= 8, (seed, proofs)
    singles = [(allowed, each) for name, allowed, each in told if name in {plant.__name__ for plant in SINGLE}]
    right = [each for allowed, each in singles if each.cause in allowed or "; or " in each.text]
    assert len(right) >= 0.9 * len(singles), seed
    assert sum(each.proved for _, each in singles) > 0.4 * len(singles), seed


def judged(case: Case, answer: Array) -> CaseResult:
    (name,) = case.expected
    return judge_case(case, Response({name: answer}))


def test_unquantized_activations_are_named() -> None:
    for info in SUITE.select(["ms.dynamicquantizematmul-1/forms"]):
        case = SUITE.load(info)
        model = load(case.model)
        values = {**model.constants, **case.inputs}
        a, b, scale, zero, bias = (*(values[name] if name else None for name in model.nodes[0].inputs), None, None)[:5]
        assert a is not None
        assert b is not None
        weights = (b.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))) * scale
        told = judged(case, (a @ weights + (0 if bias is None else bias)).astype(np.float32))
        assert told.cause == "unquantized-activations" or a.size == 0, told


def test_a_graph_is_judged_at_its_last_node() -> None:
    """Every scale is a power of two here, so that float32 is exact; the zero points are odd."""
    named = []
    for info in SUITE.select(["graph.conv-13/qdq"]):
        case = SUITE.load(info)
        model = load(case.model)
        session = qrun.Session(case.model, fuse=False)
        last = model.nodes[-1]
        scale, zero = (model.constants[name].astype(np.float64) for name in last.inputs[1:3])
        real = session.run(dict(case.inputs), [last.inputs[0]])[last.inputs[0]].astype(np.float64) / scale
        due = next(iter(case.expected.values()))
        got = np.clip(np.rint(real + zero), *limits(due.dtype)).astype(due.dtype)
        if not np.array_equal(got, due):
            named.append(judged(case, got).cause)
    assert len(named) > 20
    assert set(named) == {BEFORE}


def test_pairs_that_saturate_in_a_graph_are_named() -> None:
    """The scales are 1, or powers of two for the output: sums of pairs are exact in float64."""
    named = []
    for info in SUITE.select(["graph.matmul"]):
        if "pairs-beyond-int16" not in info.id:
            continue
        case = SUITE.load(info)
        model = load(case.model)
        left, right = (model.producers[name].inputs[0] for name in model.nodes[-2].inputs)
        x, w = ({**model.constants, **case.inputs}[name].astype(np.int64) for name in (left, right))
        even = x.shape[-1] % 2
        pairs = (np.pad(x, [(0, 0), (0, even)])[:, :, None] * np.pad(w, [(0, even), (0, 0)])).reshape(
            x.shape[0], -1, 2, w.shape[1]
        )
        sums_of_pairs = np.clip(pairs.sum(2), -(2**15), 2**15 - 1).sum(1)
        scale, zero = (model.constants[name].astype(np.float64) for name in model.nodes[-1].inputs[1:])
        due = next(iter(case.expected.values()))
        got = np.clip(np.rint(sums_of_pairs / scale) + zero, *limits(due.dtype)).astype(due.dtype)
        if not np.array_equal(got, due):
            named.append(judged(case, got))
    assert {each.cause for each in named} == {"pair-saturation"}
    assert all("runs the nodes as one QLinearMatMul: " in each.text for each in named)
    assert sum(each.proved for each in named) > 5


STRANGE: Sequence[Callable[[np.random.Generator, Array], Array | None]] = (
    lambda rng, right: np.zeros((0,), right.dtype),
    lambda rng, right: np.full(right.shape, np.nan),
    lambda rng, right: np.full(right.shape, -np.inf, np.float32),
    lambda rng, right: np.full(right.shape, "abc"),
    lambda rng, right: np.full(right.shape, "7", object),
    lambda rng, right: np.zeros(right.shape, np.complex64),
    lambda rng, right: np.zeros(right.shape, np.uint64) - np.uint64(1),
    lambda rng, right: np.frombuffer(rng.bytes(8 * right.size), np.float64).reshape(right.shape),
    lambda rng, right: right[None],
    lambda rng, right: None,
)


def test_strange_answers_get_a_verdict() -> None:
    rng = np.random.default_rng(45)
    cases = [*SUITE.select(["ms.qlinearconv-1/layouts"]), *rng.choice(SUITE.select([]), 100, replace=False)]
    for info in cases:
        case, answer = SUITE.load(info), STRANGE[rng.integers(len(STRANGE))]
        answers = {name: answer(rng, np.asarray(right)) for name, right in case.expected.items()}
        assert judge_case(case, Response(answers)).verdict in VERDICTS, info.id


def test_levels_decide_what_is_near_a_tie() -> None:
    assert near_tie(np.uint8) == 4 * 256 / 2**24
    assert near_tie(np.int16) == 256 * near_tie(np.uint8)
    assert near_tie(ml_dtypes.int4) == near_tie(np.uint8) / 16
