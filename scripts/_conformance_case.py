"""A case before it is frozen: its model is built, its answers are computed twice,
and it is frozen only if they agree."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import _conformance_law_linear  # noqa: F401  (declares rules)
import _conformance_law_products  # noqa: F401
import numpy as np
import onnx
from _conformance_law import LAW, STRENGTH
from _conformance_sections import is_lenient, sections
from onnx import helper, numpy_helper
from oracle import answers
from oracle.answers import Answer

import qrun
from qrun.conform.suite import (
    ANSWER,
    DECISION,
    EITHER,
    FORCED,
    IMPLIED,
    REFUSAL,
    Alternative,
    Case,
    CaseInfo,
    near_tie,
)
from qrun.ir.types import NUMBERS

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
MS = "com.microsoft"
OPEN_SUMS = 2.0**-21
"""Share of the largest term by which a float sum may differ where nothing is said about its precision."""


@dataclass
class Draft:
    """One node.

    inputs:  arrays in order, None for one that is left out. fed: places of those that are graph inputs, the others
             being initializers; None: the places of `FED`. version: of the operator's opset.
    answers: what is due; None: what the oracle of the operator gives. expects: see qrun.conform.suite.CaseInfo.
    clause:  the section of the operator's rule in _conformance_law.py.
    mended:  of a model to be refused: the same model without its one fault, which qrun runs and onnx.checker accepts.
    within:  see qrun.conform.suite.Case.
    """

    id: str
    op: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version: int = 10
    domain: str = ""
    profile: str = "core"
    clause: str = "G3"
    fed: Sequence[int] | None = None
    answers: Sequence[Answer] | None = None
    outputs: Sequence[Any] = ()
    expects: str = ANSWER
    mended: Draft | None = None
    within: float = 0.0
    others: Sequence[Alternative] = ()
    model: onnx.ModelProto | None = None
    feeds: Mapping[str, Array] = field(default_factory=dict)


FED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("QLinearMatMul", "QLinearAdd", "QLinearMul", "QGemm"), (0, 3)),
    **dict.fromkeys(("MatMulInteger", "MatMulIntegerToFloat", "MatMulInteger16", "QMoE"), (0, 1)),
    "GatherBlockQuantized": (1,),
    "QLinearWhere": (0, 1, 4),
}
"""Places of the activations; the first input of all others."""


def rng_of(name: str) -> Rng:
    """A generator of its own for each family, so that a new family changes no other."""
    return np.random.default_rng(zlib.crc32(name.encode()))


Family = Callable[[Rng], Iterator[Draft]]
FAMILIES: dict[str, Family] = {}


def family(name: str) -> Callable[[Family], Family]:
    """Declare a family ``operator-version/family``; the ids of its cases begin so."""

    def declare(function: Family) -> Family:
        assert name not in FAMILIES, name
        FAMILIES[name] = function
        return function

    return declare


def drafts(name: str) -> Iterator[Draft]:
    """The cases of a family, with whole ids; one for several versions leaves the version to them."""
    base, _, rest = name.partition("/")
    for draft in FAMILIES[name](rng_of(name)):
        if base == "known":
            draft.id = f"known/{draft.id}"
            yield draft
            continue
        version = "" if re.search(r"-\d+$", base) else f"-{draft.version}"
        own = draft.id.removeprefix(f"{draft.version}-") if version else draft.id
        draft.id = f"{base}{version}/{rest}/{own}"
        yield draft


def operator(draft: Draft) -> str:
    """The operator's name in _conformance_law.py, with its version; ``graph-13`` for graphs."""
    domain = f"{draft.domain}." if draft.domain else ""
    return f"graph-{draft.version}" if draft.profile == "graph" else f"{domain}{draft.op}-{draft.version}"


def rule_of(draft: Draft, case: Case | None = None) -> tuple[str, str]:
    """The key of the rule that decides a case, and its basis: of all that bear on it, the weakest.

    A case with an exact tie rests on the rule about ties too. With an element so near a tie that a sound float32
    arithmetic may give the other code, a case is implied at most. Raises AssertionError if there is no rule.
    """
    margins = list(case.margin.values()) if case is not None else []
    keys = [f"{operator(draft)} {section}" for section in sections(draft)]
    ties = f"{operator(draft)} G1"
    if ties in LAW and any(np.any(m == 0) for m in margins):
        keys.append(ties)
    for key in keys:
        assert key in LAW, f"{draft.id}: no rule {key}"
    key = min(keys, key=lambda key: STRENGTH[LAW[key].basis])
    basis = LAW[key].basis
    if basis == FORCED and case is not None:
        near = (np.any((m > 0) & (m <= near_tie(case.expected[name].dtype))) for name, m in case.margin.items())
        basis = IMPLIED if any(near) else FORCED
    return key, basis


def frozen_case(draft: Draft) -> Case:
    """The case with all its data. AssertionError if oracle and reference kernels do not agree, or ONNX's checker
    does not accept the model."""
    if draft.expects == REFUSAL:
        return refusal(draft)
    if not draft.domain:
        assert (draft.profile == "lenient") == (draft.expects == EITHER) == is_lenient(draft), (
            draft.id,
            sections(draft),
        )
    due = list(draft.answers) if draft.answers is not None else oracle(draft)
    model = draft.model or built(draft, [(a.array.dtype, a.array.shape) for a in due])
    onnx.checker.check_model(model, full_check=True)
    feeds = draft.feeds or fed(draft)
    names = [value.name for value in model.graph.output]
    made = qrun.Session(model, backend="reference", fuse=False).run(feeds)
    for name, answer in zip(names, due, strict=True):
        assert_same(f"{draft.id} {name}", answer.array, made[name], draft.within)
    expected = {name: np.array(made[name], order="C") for name in names}
    exact, margins = reals_of(draft, names, due, expected)
    case = Case(
        info_of(draft), model.SerializeToString(), feeds, expected, exact, margins, draft.within, tuple(draft.others)
    )
    rule, basis = rule_of(draft, case)
    return replace(case, info=replace(case.info, rule=rule, basis=basis))


def info_of(draft: Draft, rule: str = "", basis: str = "") -> CaseInfo:
    """The entry of a case in the list, before it has a place in the archive."""
    return CaseInfo(
        draft.id, draft.op, draft.domain, draft.version, draft.profile, rule, basis, draft.expects, False, "", 0, 0
    )


def refusal(draft: Draft) -> Case:
    """A case that a runtime must refuse, for one fault: without it, ONNX's checker accepts it and qrun runs it."""
    assert draft.mended is not None or draft.domain, f"{draft.id}: mended is missing"
    outputs = [(t, None) for t in draft.outputs or (np.uint8,)]
    if draft.mended is not None:
        twin = frozen_case(draft.mended)
        assert twin.info.profile != "lenient", draft.id
        outputs = [(array.dtype, array.shape) for array in twin.expected.values()]
    model = draft.model or built(draft, outputs)
    feeds = draft.feeds or fed(draft)
    assert_refused(draft.id, model, feeds)
    rule, basis = rule_of(draft)
    assert basis != DECISION or draft.domain, f"{draft.id}: no sentence forbids it"
    return Case(info_of(draft, rule, basis), model.SerializeToString(), feeds, {}, {}, {}, 0.0, ())


def oracle(draft: Draft) -> list[Answer]:
    """What the exact oracle gives; NaN and overflow on the way are meant."""
    attributes = dict(draft.attributes)
    with np.errstate(all="ignore"):
        if draft.op == "QuantizeLinear":
            return answers.quantize_linear(draft.inputs, attributes, 13 if draft.domain else draft.version)
        if draft.op == "DequantizeLinear":
            return answers.dequantize_linear(
                draft.inputs, attributes, draft.outputs[0] if draft.outputs else draft.inputs[1].dtype
            )
        table = answers.CONTRIB if draft.domain else answers.CORE
        return table[draft.op](draft.inputs, attributes)


def reals_of(
    draft: Draft, names: Sequence[str], due: Sequence[Answer], expected: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    exact, margins = {}, {}
    for name, answer in zip(names, due, strict=True):
        if answer.reals is None:
            continue
        y = expected[name]
        zeros = np.broadcast_to(np.asarray(zero_of(draft, y)), y.shape)
        exact[name] = np.array([float_of(q) for q in answer.reals.flat], np.float64).reshape(y.shape)
        far = [answers.margin(q, int(z), y.dtype.name) for q, z in zip(answer.reals.flat, zeros.flat, strict=True)]
        with np.errstate(over="ignore"):
            margins[name] = np.array(far, np.float32).reshape(y.shape)
    return exact, margins


def float_of(q: Any) -> float:
    try:
        return float(q)
    except OverflowError:
        return float("inf") if q > 0 else float("-inf")


ZEROS = {"QLinearConv": 7, "QLinearMatMul": 7, "QuantizeLinear": 2, "QLinearAdd": 7, "QLinearMul": 7, "QGemm": 8, "QLinearWhere": 8,
         "QLinearConcat": 1, "QLinearLeakyRelu": 4, "QLinearSigmoid": 4, "QLinearSoftmax": 4, "QLinearAveragePool": 4, "QLinearGlobalAveragePool": 4}  # fmt: skip
"""Place of the zero point of the output."""


def zero_of(draft: Draft, y: Array) -> Any:
    """The zero points of the output, to broadcast with it."""
    place = ZEROS.get(draft.op)
    zero = draft.inputs[place] if place is not None and place < len(draft.inputs) else None
    if zero is None or np.asarray(zero).dtype.name.startswith("float"):
        return 0
    zero = np.asarray(zero).astype(np.int64)
    if zero.size == 1 or not y.ndim:
        return zero.reshape(())
    axis = draft.attributes.get("axis", 1) % y.ndim
    if draft.attributes.get("block_size"):
        return np.repeat(zero, draft.attributes["block_size"], axis).take(range(y.shape[axis]), axis)
    return zero.reshape([-1 if at == axis else 1 for at in range(y.ndim)])


def fed(draft: Draft) -> dict[str, Array]:
    places = draft.fed if draft.fed is not None else fed_places(draft)
    return {f"i{at}": np.asarray(draft.inputs[at]) for at in places if draft.inputs[at] is not None}


def fed_places(draft: Draft) -> Sequence[int]:
    if draft.op == "QLinearConcat":
        return range(2, len(draft.inputs), 3)
    return [at for at in FED.get(draft.op, (0,)) if at < len(draft.inputs)]


def built(draft: Draft, outputs: Sequence[tuple[Any, Sequence[int] | None]]) -> onnx.ModelProto:
    """The model of one node: inputs i0, i1, ..., outputs y0, y1, ... with their shapes."""
    inputs = list(draft.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    names = ["" if value is None else f"i{at}" for at, value in enumerate(inputs)]
    feeds = fed(draft)
    values = [helper.make_tensor_value_info(n, NUMBERS[a.dtype], a.shape) for n, a in feeds.items()]
    stored = [numpy_helper.from_array(np.ascontiguousarray(np.asarray(v)).reshape(np.shape(v)), n)
              for n, v in zip(names, inputs, strict=True) if n and n not in feeds]  # fmt: skip
    made = [helper.make_tensor_value_info(f"y{at}", NUMBERS[np.dtype(t)], s) for at, (t, s) in enumerate(outputs)]
    attributes = {k: v for k, v in draft.attributes.items() if not k.startswith("_")}
    node = helper.make_node(draft.op, names, [v.name for v in made], name="n", domain=draft.domain, **attributes)
    return modelled([node], values, made, stored, draft.version if not draft.domain else opset(draft), draft.domain)


def opset(draft: Draft) -> int:
    """The opset of ai.onnx beside that of com.microsoft: 17, or the first whose models may have the types of a case."""
    kinds = {np.asarray(v).dtype.name for v in draft.inputs if v is not None}
    starts = ((23, "float4"), (21, "int4"), (21, "uint4"), (19, "float8"))
    return max((first for first, name in starts if any(kind.startswith(name) for kind in kinds)), default=17)


def modelled(nodes: Any, inputs: Any, outputs: Any, stored: Any, opset: int, domain: str = "") -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = max(7, helper.find_min_ir_version_for(opsets[:1]))
    return model


def assert_refused(id: str, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    try:
        qrun.Session(model, backend="reference", fuse=False).run(feeds)
    except qrun.QrunError as error:
        if error.code not in ("QR201", "QR210"):
            return
    raise AssertionError(f"{id}: not refused for what it is")


def assert_same(where: str, oracle_: Array, reference: Array, within: float) -> None:
    assert reference.dtype == oracle_.dtype, f"{where}: {reference.dtype}, oracle {oracle_.dtype}"
    assert reference.shape == oracle_.shape, f"{where}: {reference.shape}, oracle {oracle_.shape}"
    a, b = oracle_.astype(np.float64), reference.astype(np.float64)
    alike = (a == b) | ((a != a) & (b != b))
    assert alike.all(), f"{where}: reference {b[~alike][:4]}, oracle {a[~alike][:4]}"
