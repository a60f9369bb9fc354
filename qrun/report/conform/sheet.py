"""The report of ``qrun conform``: verdicts by operator and by profile, causes with an example each, the next command;
and single cases in full: inputs, expected and actual outputs, the exact values, and the sentence that decides."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.conform.results import (
    BAD,
    NEW,
    VERDICTS,
    CaseResult,
    Judgement,
    RuntimeResult,
    count_verdicts,
    short_result,
)
from qrun.conform.runtimes import OWN
from qrun.conform.suite import EITHER, PROFILES, REFUSAL, Case, Suite
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.load import load
from qrun.ir.types import describe
from qrun.report.grid import Column, Grid
from qrun.report.screen import BAD as RED
from qrun.report.screen import GOOD, OPEN
from qrun.report.sheet import Block, Sheet
from qrun.report.text import duration, number, plural, shorten

MESSAGE = 90
"""Messages of a runtime that agree in this many first characters count as the same message."""
LONG = 150
"""Characters of a message that are shown."""


HEX = 12
"""Digits of a hash that are shown."""


@frozen
class FoundCause:
    """Cases of one operator with the same verdict and cause. proved: the number proved by recomputing every element."""

    verdict: str
    cause: str
    operator: str
    proved: int
    cases: tuple[CaseResult, ...]

    @property
    def example(self) -> CaseResult:
        """The smallest case."""
        return min(self.cases, key=lambda case: (case.total, len(case.id), case.id))


def conform_sheet(found: Judgement) -> Sheet:
    blocks: list[Block] = []
    for each in found.runtimes:
        blocks += _blocks(each)
    several = [f"{each.title}: {summary(each, found.selected)}" for each in found.runtimes]
    verdict, about = (several[0], []) if len(several) == 1 else (_together(found), several)
    about += [f"compared with {text}" for text in dict.fromkeys(each.baseline for each in found.runtimes) if text]
    style = RED if found.failed else GOOD if all(_is_clean(each) for each in found.runtimes) else OPEN
    return Sheet(blocks, verdict, style, about=about, notes=_next(found), title="qrun conform")


def summary(each: RuntimeResult, selected: int) -> str:
    """``all 2517 cases are exact``, or the number of cases per verdict, first where the specification gives the answer.

    An answer to an open question is no merit and no fault, so that those cases are counted apart. With a baseline, the
    number of cases per change; selected: the number of cases that were run.
    """
    time = f", in {duration(each.seconds * 1e9)}"
    if each.baseline:
        return f"{_changes_text(each, selected)}{time}"
    if _is_clean(each):
        return f"{f'all {len(each.cases)} cases are' if each.cases[1:] else 'the case is'} exact{time}"
    law, rest = each.law_cases, each.other_cases
    parts = []
    if law:
        whose = " that the specification decides" if rest else ""
        parts.append(f"{verdict_counts(law)} of {plural(len(law), 'case')}{whose}")
    if rest:
        which = plural(len(rest), "other" if law else "case")
        parts.append(f"{verdict_counts(rest)} of {which}{'' if law else ' that the specification leaves open'}")
    return f"{'; '.join(parts)}{time}"


def _changes_text(each: RuntimeResult, selected: int) -> str:
    """``3 of 6012 cases changed: 2 wrong -> exact, 1 refused -> crashed; 5 not in the baseline: 5 exact``."""
    new = [case for case in each.cases if case.before == NEW]
    old = [case for case in each.cases if case.before != NEW]
    parts = []
    if old or not new:
        count = plural(selected - len(new), "case")
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(map(_verdicts_text, old)).most_common())
        parts.append(f"{len(old)} of {count} changed: {kinds}" if old else f"nothing changed in {count}")
    if new:
        parts.append(f"{len(new)} not in the baseline: {verdict_counts(new)}")
    return "; ".join(parts)


def _verdicts_text(case: CaseResult) -> str:
    """``exact -> wrong``, or ``wrong with another cause``."""
    before = case.before.partition(",")[0]
    return f"{case.verdict} with another cause" if before == case.verdict else f"{before} -> {case.verdict}"


def verdict_counts(cases: Iterable[CaseResult]) -> str:
    """``1801 exact, 33 wrong``."""
    return ", ".join(f"{number} {verdict}" for verdict, number in count_verdicts(cases).items() if number)


def describe_call(found: Judgement) -> str:
    """``2026-11-30, AMD EPYC 9B14 (avx512_vnni), qrun 0.1.0, archive b419a40658c3``; less for older files."""
    machine = f"{found.cpu} ({found.isa})" if found.isa else found.cpu
    archive = f"archive {found.archive_sha256[:HEX]}" if found.archive_sha256 else ""
    return ", ".join(filter(None, (found.date, machine, f"qrun {found.qrun}" if found.qrun else "", archive)))


def describe_setup(each: RuntimeResult) -> str:
    """``Python 3.12.3, wheel 1fe1433a859f, intra_op_num_threads=1``; "" for a program."""
    parts = [f"Python {each.python}" if each.python else "", f"wheel {each.wheel[:HEX]}" if each.wheel else ""]
    return ", ".join(filter(None, (*parts, *(f"{name}={value}" for name, value in each.options.items()))))


def _together(found: Judgement) -> str:
    suite, runtimes = f"suite {found.suite}", plural(len(found.runtimes), "runtime")
    count, cases = sum(len(each.cases) for each in found.runtimes), f"{plural(found.selected, 'case')} of {suite}"
    compared = any(each.baseline for each in found.runtimes)
    if compared and not count:
        return f"nothing changed in {cases}, in {runtimes}"
    if compared:
        suite = cases = f"{plural(count, 'case')} that changed or {'is' if count == 1 else 'are'} new"
    elif all(_is_clean(each) for each in found.runtimes):
        return f"exact: {'all ' if found.selected != 1 else ''}{cases}, in {runtimes}"
    if not found.failed:
        what = f"{' or '.join(found.fail_on)} does not occur" if found.fail_on else "no verdict fails"
        return f"yes: {what} in {cases}"
    met = {verdict: sum(each.counts[verdict] for each in found.runtimes) for verdict in found.fail_on}
    return f"no: {', '.join(f'{number} {verdict}' for verdict, number in met.items() if number)} in {suite}"


def _is_clean(each: RuntimeResult) -> bool:
    return each.counts["exact"] == len(each.cases)


def _blocks(each: RuntimeResult) -> list[Block]:
    shown = [v for v in VERDICTS if each.counts[v]]
    if not each.cases:
        return []
    if each.baseline:
        grids = {"changes": Grid.of(CHANGE_COLUMNS, group_changes(each.cases))}
        grids["changed or new cases by operator"] = verdict_grid("operator", by_operator(each.cases), shown)
    else:
        found = grouped((case.profile, case) for case in each.cases)
        profiles = {name: found[name] for name in (*PROFILES, *found) if name in found}
        grids = {"profiles": verdict_grid("profile", profiles, shown)}
        grids["operators"] = verdict_grid("operator", by_operator(each.cases), shown)
    made = [Block(f"{each.title}: {name}", grid) for name, grid in grids.items()]
    causes = group_causes(each.cases)
    if causes:
        made.append(Block("Causes (qrun explain CAUSE, qrun explain conform)", Grid.of(CAUSE_COLUMNS, causes)))
    refusals = group_messages(each.cases)
    if refusals:
        made.append(Block("Refused and unsupported", Grid.of([*MESSAGE_COLUMNS[:-1], _SHORT_MESSAGE], refusals)))
    return made


def verdict_grid(header: str, groups: Mapping[str, Sequence[CaseResult]], verdicts: Sequence[str]) -> Grid:
    """One row per group and one for all, one column per verdict."""
    first = [Column(header, shrink=1, wrap=True), Column("cases", right=True, optional=1)]
    columns = [*first, *(Column(verdict, right=True) for verdict in verdicts)]
    every = [case for cases in groups.values() for case in cases]
    rows: list[list[str]] = []
    styles: dict[tuple[int, int], str] = {}
    for name, cases in [*groups.items(), *([("all", every)] if len(groups) > 1 else [])]:
        counts = count_verdicts(cases)
        for at, verdict in enumerate(verdicts):
            if counts[verdict] and verdict in BAD:
                styles[len(rows), at + 2] = "red"
        rows.append([name, str(len(cases)), *(str(counts[v]) if counts[v] else "." for v in verdicts)])
    return Grid(columns, rows, styles)


def by_operator(cases: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """The cases by operator: those of ai.onnx first, then by name."""
    ordered = sorted(cases, key=lambda case: ("::" in case.operator, case.operator))
    return grouped((case.operator, case) for case in ordered)


def group_causes(cases: Iterable[CaseResult]) -> list[FoundCause]:
    """Groups the wrong cases and other choices by verdict, cause and operator; the worst first."""
    order = {
        verdict: place
        for place, verdict in enumerate(("crashed", "hung", "unstable", "wrong", "accepts-invalid", "choice", "ulp"))
    }
    groups = grouped(((c.verdict, c.cause or _first_word(c), c.operator), c) for c in cases if c.verdict in order)
    made = [FoundCause(*key, sum(c.proved for c in found), tuple(found)) for key, found in groups.items()]
    return sorted(made, key=lambda f: (order[f.verdict], f.operator, f.cause))


def group_changes(cases: Iterable[CaseResult]) -> list[tuple[str, str, list[CaseResult]]]:
    """Groups changed cases by their results in the baseline and now; the largest group first."""
    groups = grouped(((case.before, short_result(case)), case) for case in cases)
    return sorted(((*key, found) for key, found in groups.items()), key=lambda row: (-len(row[2]), row[:2]))


CHANGE_COLUMNS = [
    Column("baseline", wrap=True, cell=lambda row: row[0]),
    Column("now", wrap=True, cell=lambda row: row[1]),
    Column("cases", right=True, cell=lambda row: str(len(row[2]))),
    Column("example", shrink=1, cell=lambda row: min(row[2], key=lambda case: (case.total, case.id)).id),
]


def describe_case(case: CaseResult) -> str:
    """``wrong, saturation: conversion to int32 ...``; with a baseline what it was there."""
    was = f" ({case.before if case.before == NEW else f'was {case.before}'})" if case.before else ""
    return f"{short_result(case)}{was}{f': {case.text}' if case.text else ''}"


def _first_word(case: CaseResult) -> str:
    """The cause of a case without one: the signal of a crash, the time limit, or that the model is forbidden."""
    if case.verdict == "crashed":
        return case.text.partition(":")[0][:30]
    return "time limit" if case.verdict == "hung" else "forbidden model"


CAUSE_COLUMNS = [
    Column("verdict", cell=lambda f: f.verdict),
    Column("operator", shrink=2, cell=lambda f: f.operator),
    Column("cause", cell=lambda f: f.cause),
    Column("cases", right=True, cell=lambda f: str(len(f.cases))),
    Column("proved", right=True, optional=2, cell=lambda f: str(f.proved) if f.proved else "."),
    Column("example", below=True, cell=lambda f: f.example.id),
    Column("difference", wrap=True, below=True, cell=lambda f: f.example.text),
]


def group_messages(cases: Iterable[CaseResult]) -> list[FoundCause]:
    """Groups refused and unsupported cases by verdict, operator and the beginning of the message."""
    left_out = (case for case in cases if case.verdict in ("refused", "unsupported"))
    groups = grouped(((case.verdict, case.operator, case.text[:MESSAGE]), case) for case in left_out)
    made = [FoundCause(v, text, op, 0, tuple(found)) for (v, op, text), found in groups.items()]
    return sorted(made, key=lambda f: (f.verdict, f.operator, -len(f.cases)))


MESSAGE_COLUMNS = [
    Column("verdict", cell=lambda f: f.verdict),
    Column("operator", shrink=2, cell=lambda f: f.operator),
    Column("cases", right=True, cell=lambda f: str(len(f.cases))),
    Column("example", shrink=1, optional=1, cell=lambda f: f.example.id),
    Column("message", wrap=True, below=True, cell=lambda f: f.example.text),
]
_SHORT_MESSAGE = Column("message", wrap=True, below=True, cell=lambda f: shorten(f.example.text, LONG))
"""A narrow screen keeps the message and drops the example, because the message tells what to do."""


def _next(found: Judgement) -> list[str]:
    """The command that shows one case."""
    for each in found.runtimes:
        shown = group_causes(each.cases) or group_messages(each.cases)
        if shown:
            runtime = "" if each.name in OWN else f"--runtime {shlex.quote(each.name)} "
            return [
                f"For the inputs, both answers and the rule:   qrun conform {runtime}--select {shown[0].example.id} -v"
            ]
    return []


MOST = 12
"""The most cases that are shown in full."""
ELEMENTS = 24
"""The most elements of an array that are shown."""


def details(suite: Suite, found: Judgement) -> list[Block]:
    """A block for each of the first MOST cases that are not exact; if all are exact, for each case if there are few."""
    blocks = []
    for each in found.runtimes:
        chosen = [case for case in each.cases if case.verdict != "exact"]
        chosen = chosen or (list(each.cases) if len(each.cases) <= MOST else [])
        for result in chosen[:MOST]:
            info = next(info for info in suite.cases if info.id == result.id)
            blocks.append(_block(suite, suite.load(info), result, each.name))
    return blocks


EXPECTED = {REFUSAL: "a refusal", EITHER: "this answer or a refusal, because the text excludes this form"}
BASES = {
    "forced": "forced: the quoted text alone determines the answer",
    "implied": "implied: the formula determines the answer",
    "decision": "a decision of qrun: the text is silent or open",
}


def _block(suite: Suite, case: Case, result: CaseResult, name: str) -> Block:
    rule = suite.rule(case.info)
    facts = [("verdict", describe_case(result)), *_of_model(case)]
    facts += [(f"input {key}", values_text(array)) for key, array in case.inputs.items()]
    facts += [(f"expected {key}", values_text(array)) for key, array in case.expected.items()]
    facts += [(f"exact {key}", values_text(array)) for key, array in case.exact.items()]
    facts += [("expected", EXPECTED[case.info.expects])] if case.info.expects in EXPECTED else []
    facts.append(("rule", f"{rule.title.rstrip('.')} ({BASES[rule.basis]})"))
    facts += [("quote", f'{quote.source}: "{quote.text}"') for quote in rule.quotes]
    facts += [("note", rule.note)] if rule.note else []
    grid = _elements(result) if result.elements else None
    return Block(f"{case.info.id}  {name}", grid, facts=facts)


def _of_model(case: Case) -> list[tuple[str, str]]:
    """The nodes and their constants."""

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
    rows = [
        [
            e.output,
            str(list(e.index)),
            number(e.expected),
            number(e.got),
            "." if e.exact is None else f"{e.exact:.9g}",
            "." if e.margin is None else f"{e.margin:.3g} LSB",
        ]
        for e in result.elements
    ]
    return Grid(columns, rows)


def values_text(array: Array) -> str:
    """``uint8 [2,2] [1, 2, 3, 4]``; only the first elements of a larger array."""
    flat: Sequence[Any] = (
        np.asarray(array).reshape(-1)[:ELEMENTS].tolist()
        if array.dtype.kind != "V"
        else array.reshape(-1)[:ELEMENTS].astype(np.float32).tolist()
    )
    shown = ", ".join(f"{v:.9g}" if isinstance(v, float) else str(v) for v in flat)
    return f"{describe(array)} [{shown}{', ...' if array.size > ELEMENTS else ''}]"
