"""One case in full: inputs, expected, got, the exact values, and the sentence that decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.conform.results import CaseResult, Judgement
from qrun.conform.suite import DECISION, Case, Suite
from qrun.ir import Array
from qrun.ir.types import describe
from qrun.report.grid import Column, Grid
from qrun.report.sheet import Block
from qrun.report.text import number

MOST = 12
"""Cases that are shown in full."""
LONG = 24
"""Elements of an array that are shown."""


def details(suite: Suite, found: Judgement) -> list[Block]:
    """A block for each case that is not exact, of a few; for each case if only a few are chosen."""
    blocks = []
    for each in found.runtimes:
        chosen = [case for case in each.cases if case.verdict != "exact"]
        chosen = chosen or (list(each.cases) if len(each.cases) <= MOST else [])
        for result in chosen[:MOST]:
            info = next(info for info in suite.cases if info.id == result.id)
            blocks.append(_block(suite, suite.load(info), result, each.name))
    return blocks


def _block(suite: Suite, case: Case, result: CaseResult, name: str) -> Block:
    clause = suite.clause(case.info)
    whose = "a decision of qrun's" if case.info.basis == DECISION else "the specification"
    facts = [
        (
            "verdict",
            f"{result.verdict}{f', {result.cause}' if result.cause else ''}{f': {result.text}' if result.text else ''}",
        )
    ]
    facts += _of_model(case)
    facts += [(f"input {key}", values_text(array)) for key, array in case.inputs.items()]
    facts += [(f"expected {key}", values_text(array)) for key, array in case.expected.items()]
    facts += [(f"exact {key}", values_text(array)) for key, array in case.exact.items()]
    facts += [("must be", "refused")] if case.info.rejects else []
    facts.append((f"clause {case.info.clause}", f"{clause.title} ({whose}): {clause.sentence}"))
    grid = _elements(result) if result.elements else None
    return Block(f"{case.info.id}  {name}", grid, facts=facts)


def _of_model(case: Case) -> list[tuple[str, str]]:
    """The nodes and their constants."""
    from qrun.ir.load import load

    try:
        model = load(case.model)
    except Exception as error:
        return [("model", str(error).splitlines()[0])]
    facts = [
        ("node", f"{n.op_type}({', '.join(n.inputs)}) -> {', '.join(n.outputs)}  {_attributes(n.attributes)}".rstrip())
        for n in model.nodes
    ]
    return facts + [(f"constant {name}", values_text(array)) for name, array in model.constants.items()]


def _attributes(given: Any) -> str:
    return ", ".join(f"{name}={list(v) if isinstance(v, tuple) else v}" for name, v in given.items())


def _elements(result: CaseResult) -> Grid:
    columns = [
        Column("output"),
        *(Column(h, right=True) for h in ("index", "expected", "got", "exact", "to the next tie")),
    ]
    rows = [[e.output, str(list(e.index)), number(e.expected), number(e.got), "." if e.exact is None else f"{e.exact:.9g}",
             "." if e.margin is None else f"{e.margin:.3g} LSB"] for e in result.elements]  # fmt: skip
    return Grid(columns, rows)


def values_text(array: Array) -> str:
    """``uint8 [2,2] [1, 2, 3, 4]``, the first elements of a larger one."""
    flat: Sequence[Any] = (
        np.asarray(array).reshape(-1)[:LONG].tolist()
        if array.dtype.kind != "V"
        else array.reshape(-1)[:LONG].astype(np.float32).tolist()
    )
    told = ", ".join(f"{v:.9g}" if isinstance(v, float) else str(v) for v in flat)
    return f"{describe(array)} [{told}{', ...' if array.size > LONG else ''}]"
