"""The known disagreements of tests/helpers/disagreements.py, each as a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from _conformance_case import MS, Draft, Rng, family, oracle
from _conformance_sections import is_lenient
from helpers.disagreements import CASES, REFUSED
from helpers.disagreements import Case as Known
from oracle.answers import Answer

from qrun.conform.suite import ANSWER, EITHER, REFUSAL

ELSEWHERE = {"S1": "is a MaxPool in float32, about shape inference"}
"""Disagreements that are no case here, and why."""
BY_HAND = ("R16",)
"""For which there is no oracle: products of float8."""
MENDED: dict[str, tuple[int, Any]] = {"R13": (2, np.uint8(0))}
"""Of a model to be refused, the place of the faulty input and a value without the fault."""
CLAUSES = {"O1": "G11", "O2": "G11", "O3": "G11", "O4": "G11", "O5": "G4", "O6": "G4", "O7": "G4", "O8": "G4", "O9": "Q6", "O10": "Q6",
           "O11": "Q1", "O12": "Q1", "O13": "S2", "O14": "G12", "O15": "G12", "O16": "G4", "O17": "G4", "O18": "G1", "O19": "C4", "O20": "C7",
           "O21": "M1", "O22": "C1", "O23": "D2", "O24": "G11", "O25": "M4/scale", "O26": "Q2", "O27": "C5", "O28": "Q5", "O29": "C4", "R1": "G1",
           "R2": "G1", "R3": "C2", "R4": "C2", "R5": "C7", "R6": "M1", "R7": "G4", "R8": "G4", "R9": "D2", "R10": "D1", "R11": "G9", "R12": "Q1",
           "R13": "G10", "R16": "M2", "R17": "G5"}  # fmt: skip
VERSION = {"QLinearConv": (10,), "ConvInteger": (10,), "MatMulInteger": (10,), "QLinearMatMul": (10, 21)}


def version(known: Known) -> int:
    """The operator's own version in the opset of the case."""
    if known.domain:
        return 1
    if known.op in VERSION:
        return max(v for v in VERSION[known.op] if v <= known.opset)
    return known.opset


@family("known/disagreements")
def known(rng: Rng) -> Iterator[Draft]:
    for case in CASES:
        if case.id in ELSEWHERE:
            continue
        number = case.id.partition("-")[0].rstrip("b")
        inputs = [None if value is None else np.asarray(value) for value in case.inputs]
        due = None if case.want is REFUSED else [Answer(np.asarray(case.want).astype(case.types[0]))]
        fed = tuple(at for at, value in enumerate(inputs) if value is not None)
        draft = Draft(f"{case.op.lower()}-{case.id.lower()}", case.op, inputs, case.attributes, version(case), case.domain, profile(case),
                      CLAUSES[number], fed, None, case.types, REFUSAL if case.want is REFUSED else ANSWER)  # fmt: skip
        draft.answers = due if due is None or case.id in BY_HAND else agreed(draft, due)
        if not draft.domain and is_lenient(draft):
            draft.profile, draft.expects = "lenient", EITHER
        if case.id in MENDED:
            draft.mended = mended(draft, *MENDED[case.id])
        yield draft


def mended(draft: Draft, place: int, value: Any) -> Draft:
    """The same model without its fault: with another input at one place."""
    inputs = [value if at == place else each for at, each in enumerate(draft.inputs)]
    return replace(draft, id=f"{draft.id}-mended", inputs=inputs, clause="G3", expects=ANSWER, answers=None)


def agreed(draft: Draft, due: list[Answer]) -> list[Answer]:
    """What the oracle gives, which is what was written by hand."""
    made = oracle(draft)
    np.testing.assert_array_equal(made[0].array.astype(np.float64), due[0].array.astype(np.float64), draft.id)
    return made


def profile(case: Known) -> str:
    if case.domain == MS:
        return "contrib"
    narrow = any(
        np.asarray(v).dtype.name.startswith(("int4", "int2", "float8", "float4")) for v in case.inputs if v is not None
    )
    return "narrow" if narrow else "edge"
