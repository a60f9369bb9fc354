"""Records of judged runtimes, which are the JSON of ``qrun conform``, and the changes since a saved record."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

from qrun.conform.suite import ANSWER, DECISION, CaseHead
from qrun.declare.frozen import frozen
from qrun.documents.record import damage_error, decode, read_document
from qrun.errors import CallError

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
    """

    verdict: str
    cause: str = ""
    proved: bool = False
    text: str = ""
    differing: int = 0
    total: int = 0
    elements: tuple[Element, ...] = ()

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
    """

    name: str
    label: str
    version: str
    seconds: float
    cases: tuple[CaseResult, ...]
    python: str = ""
    wheel: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

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
    """Read a judgement from a JSON file. Raises CallError if the file has none."""
    _, item = read_document(Path(path), (KIND,), MAKE)
    found = decode(Judgement, item)
    for each in found.runtimes:
        if any(case.verdict not in each.counts for case in each.cases):
            raise damage_error(path, "verdicts of qrun conform", "others", MAKE)
    return found


def check_baseline(names: Iterable[str], suite: str, before: Judgement) -> None:
    """Raise CallError for a baseline of another suite, or for a runtime that the baseline does not have."""
    if before.suite != suite:
        raise CallError(
            "QR005",
            f"the baseline was saved with suite {before.suite}; this is suite {suite}",
            fixes=["save a new one: qrun conform --runtime NAME -o FILE.json"],
        )
    known = [each.name for each in before.runtimes]
    for name in names:
        if name not in known:
            raise CallError(
                "QR005",
                f"the baseline has no runtime {name}",
                facts=[("it has", ", ".join(known))],
                fixes=[f"qrun conform --runtime {shlex.quote(name)} -o FILE.json saves one"],
            )


def select_changed(now: Judgement, before: Judgement) -> Judgement:
    """The judgement with only the cases that changed (see `changed`), or that the saved answer does not have."""
    known = {r.name: {case.id: case for case in r.cases} for r in before.runtimes}
    runtimes = []
    for runtime in now.runtimes:
        old = known[runtime.name]
        new = tuple(case for case in runtime.cases if case.id not in old or changed(case, old[case.id]))
        runtimes.append(replace(runtime, cases=new))
    return replace(now, runtimes=tuple(runtimes))


def changed(now: CaseResult, before: CaseResult) -> bool:
    """Did the verdict or the cause of a case change?

    `unstable` and `wrong` count as the same, because results that change from run to run may be the same in a few runs.
    """
    if "unstable" in (now.verdict, before.verdict):
        return not {now.verdict, before.verdict} <= {"unstable", "wrong"}
    return (now.verdict, now.cause) != (before.verdict, before.cause)
