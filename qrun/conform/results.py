"""Records of what runtimes were found to give: they are the JSON of ``qrun conform``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from qrun.conform.suite import CaseHead
from qrun.declare.frozen import frozen

VERDICTS = ("exact", "choice", "wrong", "refused", "crashed", "hung", "unsupported")
"""From right to not there."""
BAD = ("wrong", "crashed", "hung")
"""Those for which a call fails unless --fail-on says otherwise."""


@frozen
class Element:
    """One differing element. exact, margin: see qrun.conform.suite.Case; None where nothing is rounded."""

    output: str
    index: tuple[int, ...]
    expected: float
    got: float
    exact: float | None = None
    margin: float | None = None


@frozen
class CaseResult(CaseHead):
    """What one runtime did with one case.

    verdict: of VERDICTS. cause: why, a name of `qrun explain causes` or of docs/conformance.md; "" where there is none.
    proved:  does recomputing every element in this way give the runtime's bits?
    text:    the cause in this case, or the runtime's message.
    differing, total: elements.
    """

    verdict: str
    cause: str = ""
    proved: bool = False
    text: str = ""
    differing: int = 0
    total: int = 0
    elements: tuple[Element, ...] = ()

    @property
    def operator(self) -> str:
        """``QLinearConv``, ``com.microsoft::QGemm``."""
        return f"{self.domain}::{self.op}" if self.domain else self.op


@frozen(slots=False)
class RuntimeResult:
    """All cases of one runtime. seconds: how long they took."""

    name: str
    label: str
    version: str
    seconds: float
    cases: tuple[CaseResult, ...]

    @property
    def title(self) -> str:
        return f"{self.label} {self.version}".rstrip()

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return counted(self.cases)

    def failing(self, fail_on: Iterable[str]) -> list[CaseResult]:
        wanted = set(fail_on)
        return [case for case in self.cases if case.verdict in wanted]


@frozen
class Judgement:
    """The answer of a call. selected: how many cases; fail_on: verdicts for which it fails; changed: see `Changes`."""

    suite: str
    selected: int
    fail_on: tuple[str, ...]
    runtimes: tuple[RuntimeResult, ...]

    @property
    def failed(self) -> bool:
        return any(each.failing(self.fail_on) for each in self.runtimes)


def counted(cases: Iterable[CaseResult]) -> dict[str, int]:
    """How many cases have each verdict, all verdicts among the keys."""
    counts = dict.fromkeys(VERDICTS, 0)
    for case in cases:
        counts[case.verdict] += 1
    return counts
