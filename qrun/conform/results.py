"""Records of judged runtimes, which are the JSON of ``qrun conform``, and the changes since a saved record."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

from qrun.conform.suite import ANSWER, DECISION, CaseHead
from qrun.declare.frozen import frozen
from qrun.documents.record import decode, optional_field, read_document
from qrun.errors import CallError
from qrun.io.jsonfile import damage_error

VERDICTS = (
    "exact", "choice", "ulp", "wrong", "unstable", "accepts-invalid", "refused", "crashed", "hung", "unsupported",
)  # fmt: skip
"""The verdicts, from best to unsupported."""
BAD = ("wrong", "unstable", "crashed", "hung")
"""Verdicts for which a call fails, unless --fail-on says otherwise."""


@frozen
class Element:
    """One differing element. exact, margin: see qrun.conform.suite.Case; None if nothing is rounded."""

    output: str
    index: tuple[int, ...]
    expected: float
    got: float
    exact: float | None = None
    margin: float | None = None


@frozen
class CaseResult(CaseHead):
    """The result of one runtime for one case.

    verdict: one of VERDICTS. cause: a name in `qrun explain causes` or docs/conformance.md; "" if there is none.
    proved:  does recomputing every element in this way give the runtime's bits?
    text:    describes the cause in this case, or is the runtime's message.
    differing, total: the numbers of differing elements and of all elements.
    before:  the result in the baseline, such as ``wrong, saturation``, or NEW; "" without a baseline.
    """

    verdict: str
    cause: str = ""
    proved: bool = False
    text: str = ""
    differing: int = 0
    total: int = 0
    elements: tuple[Element, ...] = ()
    before: str = optional_field("")

    @property
    def decided(self) -> bool:
        """Whether the specification gives the answer: the case is forced or implied, and must be answered."""
        return self.expects == ANSWER and self.basis != DECISION

    @property
    def operator(self) -> str:
        """``QLinearConv``, ``com.microsoft::QGemm``."""
        return f"{self.domain}::{self.op}" if self.domain else self.op


@frozen(slots=False)
class RuntimeResult:
    """The results of one runtime for all cases. seconds: the time they took.

    python:  version of the Python that ran it; "" for a program. wheel: see `qrun.conform.worker.wheel_hash`.
    options: the settings that its adapter makes, such as ``intra_op_num_threads``.
    baseline: title and date of the saved result with which the cases were compared, of which only those that changed
    are kept; "" without a baseline.
    """

    name: str
    label: str
    version: str
    seconds: float
    cases: tuple[CaseResult, ...]
    python: str = ""
    wheel: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    baseline: str = optional_field("")

    @property
    def title(self) -> str:
        """``onnxruntime 1.32.0, graph optimizations off``."""
        name, comma, how = self.label.partition(", ")
        return f"{name} {self.version}{comma}{how}" if self.version else self.label

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The number of cases of each verdict."""
        return count_verdicts(self.cases)

    @property
    def law_cases(self) -> tuple[CaseResult, ...]:
        """The cases whose answer the specification gives: the headline counts only these."""
        return tuple(case for case in self.cases if case.decided)

    @property
    def other_cases(self) -> tuple[CaseResult, ...]:
        """The other cases: open questions, forms that the text excludes, models that it forbids."""
        return tuple(case for case in self.cases if not case.decided)

    def failing_cases(self, fail_on: Iterable[str]) -> list[CaseResult]:
        """The cases whose verdict is one of `fail_on`."""
        wanted = set(fail_on)
        return [case for case in self.cases if case.verdict in wanted]


@frozen
class Judgement:
    """The answer of a call. selected: the number of cases; fail_on: verdicts for which the call fails.

    archive_sha256: of the suite's archive. date: of the call, in UTC. cpu, isa: the processor's name, and the best
    instruction set that qrun knows of it. All are "" in files of older versions.
    """

    suite: str
    selected: int
    fail_on: tuple[str, ...]
    runtimes: tuple[RuntimeResult, ...]
    archive_sha256: str = ""
    date: str = ""
    qrun: str = ""
    cpu: str = ""
    isa: str = ""

    @property
    def failed(self) -> bool:
        """Whether any case fails."""
        return any(each.failing_cases(self.fail_on) for each in self.runtimes)


def count_verdicts(cases: Iterable[CaseResult]) -> dict[str, int]:
    """The number of cases with each verdict; every verdict is a key."""
    counts = dict.fromkeys(VERDICTS, 0)
    for case in cases:
        counts[case.verdict] += 1
    return counts


KIND = "conform"
MAKE = "qrun conform --runtime NAME --json saves one"


def read_judgement(path: str) -> Judgement:
    """Read a judgement from a JSON file. Raises CallError if the file has none, or only the changes since another."""
    _, item = read_document(Path(path), (KIND,), MAKE)
    found = decode(Judgement, item)
    for each in found.runtimes:
        if any(case.verdict not in each.counts for case in each.cases):
            raise damage_error(path, "verdicts of qrun conform", "others", MAKE)
        if each.baseline:
            raise CallError(
                "QR005",
                f"{path} has only the cases that changed since a baseline",
                where=[path],
                fixes=["save all: qrun conform --runtime NAME -o FILE.json, without --baseline"],
            )
    return found


def match_baseline(names: Sequence[str], suite: str, before: Judgement) -> list[RuntimeResult]:
    """The saved result with which to compare each runtime: the one of the same name. If one runtime was saved and one
    is judged, their names may differ, as those of two builds of a program do.

    Raises CallError for a baseline of another suite, or without one of several runtimes.
    """
    if before.suite != suite:
        raise CallError(
            "QR005",
            f"the baseline was saved with suite {before.suite}; this is suite {suite}",
            fixes=["save a new one: qrun conform --runtime NAME -o FILE.json"],
        )
    if len(names) == len(before.runtimes) == 1:
        return list(before.runtimes)
    known = {each.name: each for each in before.runtimes}
    for name in names:
        if name not in known:
            raise CallError(
                "QR005",
                f"the baseline has no runtime {name}",
                facts=[("it has", ", ".join(known))],
                why="names may only differ if one runtime is judged and the baseline has one",
                fixes=[f"qrun conform --runtime {shlex.quote(name)} -o FILE.json saves one"],
            )
    return [known[name] for name in names]


NEW = "not in the baseline"


def select_changed(now: RuntimeResult, before: RuntimeResult, date: str) -> RuntimeResult:
    """The result with only the cases that changed (see `changed`), or that the saved result does not have.

    date: of the saved result.
    """
    known = {case.id: case for case in before.cases}
    cases = []
    for case in now.cases:
        old = known.get(case.id)
        if old is None or changed(case, old):
            cases.append(replace(case, before=NEW if old is None else short_result(old)))
    return replace(now, cases=tuple(cases), baseline=f"{before.title}{f', {date}' if date else ''}")


def short_result(case: CaseResult) -> str:
    """``wrong, saturation``."""
    return f"{case.verdict}{f', {case.cause}' if case.cause else ''}"


def changed(now: CaseResult, before: CaseResult) -> bool:
    """Did the verdict or the cause of a case change?

    `unstable` and `wrong` count as the same, because results that change from run to run may be the same in a few runs.
    """
    if "unstable" in (now.verdict, before.verdict):
        return not {now.verdict, before.verdict} <= {"unstable", "wrong"}
    return (now.verdict, now.cause) != (before.verdict, before.cause)
