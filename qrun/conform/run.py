"""Runs the chosen cases in a runtime, several at once, and judges each answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from threading import Event, Lock, Thread
from time import perf_counter
from typing import Any

from qrun.conform.judge import judge_case
from qrun.conform.processes import AGAIN, FIRST, Processes, heed_sigterm
from qrun.conform.programs import BatchRunner, CommandRunner
from qrun.conform.results import CaseResult, RuntimeResult
from qrun.conform.runtimes import (
    COMMAND,
    CRASHED,
    HUNG,
    REFUSED,
    CaseRunner,
    ProcessRunner,
    Response,
    Runtime,
    is_program,
)  # fmt: skip
from qrun.conform.suite import ANSWER, Case, CaseInfo, Suite
from qrun.errors import CallError

Progress = Callable[[int], None]
_ENDING = 5.0
"""Seconds to wait for each thread after its processes have been killed."""


def conform(
    suite: Suite,
    cases: Sequence[CaseInfo],
    chosen: Runtime,
    *,
    python: str = "",
    jobs: int = 1,
    limit: float = 20.0,
    progress: Progress | None = None,
) -> RuntimeResult:
    """Judge a runtime. jobs: its processes at once; limit: seconds per case; progress: called with the cases done.

    Raises UnsupportedError if the runtime is not available, CallError for a command that cannot be started, or that
    ends with one and the same message in every case.
    """
    start = perf_counter()
    processes, ends = Processes(), list[Event]()
    work = _Work(suite, cases, limit, progress, processes)
    with heed_sigterm():
        try:
            start_runners = partial(Runners, processes, chosen, python)
            first = start_runners()
            version, facts = first.version, first.facts
            starts = [lambda: first, *repeat(start_runners, min(jobs, len(cases)) - 1)]
            for each in starts:
                ends.append(Event())
                Thread(target=work.begin, args=(each, ends[-1]), daemon=True).start()
            for end in ends:  # no case runs in this thread: a signal would interrupt the start of a process
                end.wait()
        finally:
            work.stop()
            for end in ends:  # Thread.join does not wait any more after a signal (bpo-45274)
                end.wait(_ENDING)
    if work.errors:
        raise work.errors[0]
    if is_program(chosen.name):
        _check_answers(cases, work.results)
    return RuntimeResult(chosen.name, chosen.label, version, perf_counter() - start, work.results, **facts)


def _check_answers(cases: Sequence[CaseInfo], results: Sequence[CaseResult]) -> None:
    """Raise CallError if a program refused each of several cases, or crashed in each, with the same message.

    It probably does not start. A crash by a signal, such as SIGSEGV, is a verdict on the program.
    """
    ends = {
        (
            REFUSED if info.expects != ANSWER and result.verdict == "exact" and not result.total else result.verdict,
            result.text,
        )
        for info, result in zip(cases, results, strict=True)
    }
    if len(ends) != 1 or len(cases) < 2 or all(result.verdict == "exact" for result in results):
        return
    ((verdict, text),) = ends
    if verdict not in (REFUSED, CRASHED) or (verdict == CRASHED and text.startswith(("SIG", "signal "))):
        return
    how = f"was refused with: {text or 'no message'}" if verdict == REFUSED else f"crashed: {text}"
    why = "exit code 2 means that the program refuses the model; Python, for example, exits with 2 if it cannot open the script"
    raise CallError(
        "QR005",
        f"no case was answered: every one {how}; does the program start?",
        facts=[("got", f"the same message in {len(cases)} cases")],
        why=why if verdict == REFUSED else "",
        fixes=["run the program by hand on a case that qrun conform export DIR writes"],
    )


class Runners:
    """A runner, and another one in which to run wrong cases again. Raises as `ProcessRunner` and `CommandRunner`."""

    def __init__(self, processes: Processes, chosen: Runtime, python: str = "") -> None:
        self._processes, self._chosen, self._python = processes, chosen, python
        self._first = self._start(FIRST)
        self._other: CaseRunner | None = None

    @property
    def version(self) -> str:
        """The runtime's version."""
        return self._first.version

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `CaseRunner.facts`."""
        return self._first.facts

    def run(self, case: Case, limit: float) -> Response:
        """Run a case."""
        return self._first.run(case, limit)

    def run_again(self, case: Case, limit: float) -> Iterator[Response]:
        """Run a case in the other runner, in which free memory has other contents, then once more in the first."""
        if self._other is None:
            self._other = self._start(AGAIN)
        for runner in (self._other, self._first):
            yield runner.run(case, limit)

    def close(self) -> None:
        """End both runners."""
        for each in (self._first, self._other):
            if each is not None:
                each.close()

    def _start(self, poison: int) -> CaseRunner:
        """Start a runner. poison: see `qrun.conform.processes.FIRST`."""
        kind, _, text = self._chosen.name.partition(":")
        if is_program(self._chosen.name):
            return (CommandRunner if f"{kind}:" == COMMAND else BatchRunner)(self._processes, text, poison)
        return ProcessRunner(
            self._processes, self._chosen.name, self._chosen.adapter, self._chosen.option, self._python, poison
        )


class _Work:
    """The remaining cases, and the results so far, which the threads share."""

    def __init__(
        self,
        suite: Suite,
        cases: Sequence[CaseInfo],
        limit: float,
        progress: Progress | None,
        processes: Processes,
    ) -> None:
        self._suite, self._cases, self._limit, self._progress = suite, cases, limit, progress
        self._processes = processes
        self._lock, self._next, self._done = Lock(), count(), 0
        self._made: dict[int, CaseResult] = {}
        self._stopped = False
        self.errors: list[BaseException] = []

    @property
    def results(self) -> tuple[CaseResult, ...]:
        """The results so far, in the cases' order."""
        return tuple(self._made[at] for at in sorted(self._made))

    def stop(self) -> None:
        """Kill the processes, and let every thread end."""
        self._stopped = True
        self._processes.stop()

    def begin(self, start: Callable[[], Runners], end: Event) -> None:
        """Start runners, take cases with them, and set `end`."""
        try:
            mine = start()
            try:
                self.take(mine)
            finally:
                mine.close()
        except BaseException as error:
            self.errors.append(error)
            self.stop()
        finally:
            end.set()

    def take(self, mine: Runners) -> None:
        """Judge cases until none is left, in one thread; `mine` is its runner."""
        while not self._stopped:
            with self._lock:
                at = next(self._next)
                case = self._suite.load(self._cases[at]) if at < len(self._cases) else None
            if case is None:
                return
            made = self._judge_one(mine, case)
            with self._lock:
                self._made[at] = made
                self._done += 1
                done = self._done
            if self._progress is not None:
                self._progress(done)

    def _judge_one(self, mine: Runners, case: Case) -> CaseResult:
        """Run a case, again if it is wrong, and judge it."""
        given = mine.run(case, self._limit)
        return judge_case(case, given, None if given.failed == HUNG else lambda: mine.run_again(case, self._limit))
