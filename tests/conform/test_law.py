"""The law of the suite: quotes are in the installed texts, models are legal, and what is open is never wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import defs

from qrun.conform.judge import judge_case
from qrun.conform.runtimes import REFUSED, Response
from qrun.conform.suite import (
    ANSWER,
    DECISION,
    EITHER,
    FORCED,
    IMPLIED,
    MUSTPASS,
    REFUSAL,
    Case,
    CaseInfo,
    Quote,
    Suite,
    near_tie,
)

SUITE = Suite()
MS = "com.microsoft"


def plain(text: str) -> str:
    """The text with one space for each run of white space."""
    return " ".join(text.split())


def words_of(schema: Any) -> str:
    """All that a schema says."""
    parts = [schema.doc or "", *(f"{a.name}: {a.description}" for a in schema.attributes.values())]
    parts += [f"{value.name}: {value.description}" for value in (*schema.inputs, *schema.outputs)]
    parts += [each.description for each in schema.type_constraints]
    if getattr(schema, "has_function", False):
        parts.append(onnx.printer.to_text(schema.function_body))
    return plain("\n".join(parts))


@cache
def text_of(source: str) -> str:
    """The installed text of ``QLinearConv-10`` or ``com.microsoft.QGemm-1``."""
    match = re.fullmatch(r"(?:(com\.microsoft)\.)?(\w+)-(\d+)", source)
    assert match, source
    if not match[1]:
        return words_of(defs.get_schema(match[2], int(match[3]), ""))
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state", reason="onnxruntime has the texts")
    found = (s for s in state.get_all_operator_schema() if (s.domain, s.name) == (MS, match[2]))
    return words_of(next(found))


def quotes_of(domain: str) -> list[Quote]:
    """The quotes of all rules of the cases of a domain."""
    found = {quote for info in SUITE.cases if info.domain == domain for quote in SUITE.rule(info).quotes}
    return sorted(found, key=lambda quote: (quote.source, quote.text))


@pytest.mark.parametrize("domain", ["", MS])
def test_each_quote_is_in_the_installed_text(domain: str) -> None:
    quotes = quotes_of(domain)
    missing = [(quote.source, quote.text) for quote in quotes if plain(quote.text) not in text_of(quote.source)]
    assert missing == []
    assert len(quotes) > 20


def test_each_rule_says_what_it_rests_on() -> None:
    """Every rule of ai.onnx has quotes; one that does not follow from them word by word has a note."""
    for info in SUITE.cases:
        rule = SUITE.rule(info)
        if not info.domain:
            assert rule.quotes, info.rule
            assert rule.basis == FORCED or rule.note, info.rule
        assert info.basis in {FORCED: (FORCED, IMPLIED)}.get(rule.basis, (rule.basis,)), info.id


def test_the_checker_of_onnx_accepts_every_legal_model() -> None:
    for info in SUITE.cases:
        if info.expects != REFUSAL:
            onnx.checker.check_model(onnx.ModelProto.FromString(SUITE.load(info).model), full_check=True)


def test_a_model_to_be_refused_has_all_shapes() -> None:
    """So that nothing but its fault is missing; and a sentence of the text forbids it."""
    refusals = [info for info in SUITE.cases if info.expects == REFUSAL and not info.domain]
    assert len(refusals) > 50
    for info in refusals:
        model = onnx.ModelProto.FromString(SUITE.load(info).model)
        assert all(value.type.tensor_type.HasField("shape") for value in model.graph.output), info.id
        assert info.basis in (FORCED, IMPLIED), info.id


def test_no_forced_case_is_near_a_tie() -> None:
    """But exact ties, of which the text says where they go."""
    for info in SUITE.cases:
        if info.basis == FORCED:
            case = SUITE.load(info)
            for name, margin in case.margin.items():
                near = (margin > 0) & (margin <= near_tie(case.expected[name].dtype))
                assert not near.any(), info.id


def test_must_pass_is_what_no_one_can_argue_with() -> None:
    chosen = SUITE.select([MUSTPASS])
    assert len(chosen) == 400
    assert {(info.basis, info.profile, info.expects) for info in chosen} == {(FORCED, "core", ANSWER)}


def wrong_answers(case: Case, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Answers that no one expects: one code away, other bits, another shape, another type, none."""
    for change in ("step", "bits", "shape", "type", "none"):
        given: dict[str, Any] = {}
        for name, want in case.expected.items():
            if change == "none":
                given[name] = None
            elif change == "shape":
                given[name] = want.reshape(1, *want.shape)
            elif change == "type":
                given[name] = np.zeros(want.shape, np.int64)
            elif change == "step":
                given[name] = (want.astype(np.float64) + 1).astype(want.dtype)
            else:
                mixed = np.frombuffer(bytearray(want.tobytes()), np.uint8)
                rng.shuffle(mixed)
                given[name] = mixed.view(want.dtype).reshape(want.shape)
        yield given


def open_cases() -> list[CaseInfo]:
    """Every fifth case that is open, so that each family has some."""
    return [
        info for info in SUITE.cases if info.expects != REFUSAL and (info.basis == DECISION or info.expects == EITHER)
    ][::5]


def test_what_is_open_is_never_wrong() -> None:
    rng = np.random.default_rng(43)
    seen = set()
    with np.errstate(all="ignore"):
        for info in open_cases():
            case = SUITE.load(info)
            for given in wrong_answers(case, rng):
                seen.add(judge_case(case, Response(given)).verdict)
    assert "choice" in seen
    assert seen <= {"exact", "choice", "ulp"}


def test_a_form_that_the_text_excludes_may_be_refused() -> None:
    lenient = [info for info in SUITE.cases if info.profile == "lenient"]
    assert len(lenient) > 100
    assert {info.expects for info in lenient} == {EITHER}
    for info in lenient[::10]:
        assert judge_case(SUITE.load(info), Response({}, REFUSED, "no")).verdict == "exact"


def values_of(info: CaseInfo) -> list[Any]:
    """The inputs of the single node of a case, None for one that is left out."""
    case = SUITE.load(info)
    graph = onnx.ModelProto.FromString(case.model).graph
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer} | dict(case.inputs)
    return [known[name] if name else None for name in graph.node[0].input]


def test_a_scale_and_its_zero_point_have_one_shape() -> None:
    """Unless the case is about that."""
    pairs = {"QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6), "QuantizeLinear": (1,), "DequantizeLinear": (1,)}
    count = 0
    for info in SUITE.cases:
        if info.domain or info.op not in pairs or info.profile in ("lenient", "graph") or info.expects == REFUSAL:
            continue
        values = values_of(info)
        for at in pairs[info.op]:
            if at + 1 < len(values) and values[at + 1] is not None:
                assert np.shape(values[at]) == np.shape(values[at + 1]), info.id
                count += 1
    assert count > 1000


def test_forced_cases_have_ordinary_scales() -> None:
    """Positive and finite, and no NaN goes in."""
    scales = {"QLinearMatMul": (1, 4, 6), "QuantizeLinear": (1,), "DequantizeLinear": (1,)}
    for info in SUITE.cases:
        if info.basis != FORCED or info.op not in scales or info.domain or info.expects == REFUSAL:
            continue
        values = values_of(info)
        for at in scales[info.op]:
            scale = np.asarray(values[at], np.float64)
            assert np.all((scale > 0) & np.isfinite(scale)), info.id
        assert not np.isnan(np.asarray(values[0], np.float64)).any(), info.id
