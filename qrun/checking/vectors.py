"""Replays recorded vectors (``test_data_set_*`` folders) on a model, and compares every output with its record.

Layout: input_0.pb, input_1.pb ... and output_0.pb ..., each a TensorProto, or the message of a sequence, an optional
or a map. Tensors are assigned by name or in graph order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from shlex import quote
from time import perf_counter_ns
from typing import Any, Literal, Protocol

import numpy as np

from qrun.checking.rules import Finding, at
from qrun.checking.rules._rule import as_finding
from qrun.comparing.differences import Tolerance, difference, distances, is_integral, plain
from qrun.comparing.ties import NEAR, before_rounding, ties
from qrun.declare import grouped
from qrun.declare.frozen import changeable, frozen, keys
from qrun.errors import NAMES, CallError, LimitError, QrunError, UnsupportedError, absent
from qrun.io.feeds import check_feeds
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.compound import tensors
from qrun.ir.types import describe
from qrun.memory import Budget, default_limit
from qrun.running.session import RunResult, Session

_SHOWN = 3
"""The most tensors that a fix names."""
_AGAIN = "record the vectors of this model again"


class Executor(Protocol):
    """A Session or a Peer."""

    max_memory: int | None

    def execute(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> RunResult: ...


@changeable
class Vector:
    """One replayed folder. status: ``passed``, ``failed`` (findings say why), or ``skipped``: qrun cannot run it.

    reason: why it did not pass, in one line. refusal: the error that kept it from running, if any, as a finding.
    """

    KEYS = keys("name path status reason time_ms outputs")

    name: str
    folder: Path
    status: Literal["passed", "failed", "skipped"] = "passed"
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    outputs: list[ComparedOutput] = field(default_factory=list)
    duration_ns: int = 0
    result: RunResult | None = None
    feeds: Mapping[str, Array] | None = None
    refusal: Finding | None = None

    @property
    def path(self) -> str:
        return self.folder.as_posix()

    @property
    def time_ms(self) -> float:
        return self.duration_ns / 1e6

    def fail(self, code: str, message: str, **facts: Any) -> None:
        self.status, self.reason = "failed", self.reason or message
        self.findings.append(Finding(message, rule=code, name=NAMES[code], level="error", **facts))

    def refuse(self, error: QrunError) -> None:
        """Record that this error kept the vector from being replayed.
        The error becomes a finding too, unless it is a limit of qrun."""
        self.reason, self.refusal = error.message, as_finding(error)
        if isinstance(error, (LimitError, UnsupportedError)):
            self.status = "skipped"
        else:
            self.status = "failed"
            self.findings.append(self.refusal)


def replay(model: Model, runner: Executor, folder: Path, tolerance: Tolerance) -> Vector:
    """Run the recorded inputs and compare the outputs. Problems in the files and in the run become findings.

    If the returned vector has no `result`, it was not replayed.
    """
    vector = Vector(folder.name, folder)
    start = perf_counter_ns()
    try:
        _replay(vector, model, runner, tolerance)
    except QrunError as error:
        vector.refuse(error)
    vector.duration_ns = perf_counter_ns() - start
    return vector


def not_replayed(vectors: Sequence[Vector], told: Sequence[Finding]) -> list[Finding]:
    """One finding for each reason for which vectors did not run. Adds it to the findings of each of these vectors.

    Leaves out vectors with a QR5 finding of their own in `told`.
    """
    known = {id(finding) for finding in told if finding.rule.startswith("QR5")}
    silent = (v for v in vectors if v.result is None and known.isdisjoint(map(id, v.findings)))
    return [_not_replayed(group) for group in grouped((v.reason, v) for v in silent).values()]


def _not_replayed(group: Sequence[Vector]) -> Finding:
    first = group[0]
    cause = first.refusal or next(iter(first.findings), Finding(first.reason))
    several = f"{len(group)} vectors were not replayed, the first is {first.name}"
    found = replace(
        cause,
        message=f"{several if len(group) > 1 else f'{first.name} was not replayed'}: "
        + (f"{first.reason} ({cause.rule})" if cause.rule else first.reason),
        expected="a run whose outputs can be compared with the recorded ones",
        got="no outputs",
        fix="; or ".join(part for part in (cause.fix, "--ignore QR505 if the vectors cannot run here") if part),
        rule="QR505",
        name=NAMES["QR505"],
    )
    for vector in group:
        vector.findings.append(found)
    return found


def _replay(vector: Vector, model: Model, runner: Executor, tolerance: Tolerance) -> None:
    odd = next((v for v in (*model.inputs, *model.outputs) if v.kind == "sparse_tensor"), None)
    if odd is not None:
        vector.status, vector.reason = "skipped", f"{odd.name} is a {odd.kind}, which qrun does not read from vectors"
        return
    budget = Budget(default_limit if runner.max_memory is None else runner.max_memory)
    feeds = _read(model, vector, "input", (*model.inputs, *model.defaults), len(model.inputs), budget)
    records = _read(model, vector, "output", model.outputs, len(model.outputs), budget)
    if any(value.name not in feeds for value in model.inputs):
        return
    arrays = {name: array for name, (_, array) in feeds.items()}
    try:
        check_feeds(model, arrays, {name: file for name, (file, _) in feeds.items()})
    except CallError as error:
        facts = dict(error.facts)
        vector.fail(
            "QR502",
            f"{vector.name}: {error.message}",
            tensor=(error.where[1:] or ("",))[0].removeprefix("input "),
            expected=facts.get("expected", ""),
            got=facts.get("got", ""),
            fix=_AGAIN,
        )
        return
    vector.result, vector.feeds = runner.execute(arrays), arrays
    for place, value in enumerate(model.outputs):
        if value.name in records and value.name in vector.result.outputs:
            file, want = records[value.name]
            got = vector.result.outputs[value.name]
            made, kept = (tensors({value.name: each}) for each in (got, want))
            if made.keys() != kept.keys():
                _other_form(vector, model, (place, value), (file, want), (value.name, got))
                continue
            for name, array in kept.items():
                _judge(vector, model, arrays, (place, value), (file, array), (name, made[name]), tolerance)


def _read(
    model: Model, vector: Vector, kind: str, values: Sequence[TensorType], needed: int, budget: Budget
) -> dict[str, tuple[str, Array]]:
    """Read the arrays of ``kind_*.pb``, by the graph's names, with their files. Missing or extra files are findings."""
    from qrun.ir.tensorfile import read_value

    numbers = {
        int(m[1]): p for p in vector.folder.glob(f"{kind}_*.pb") if (m := re.fullmatch(rf"{kind}_(\d+)", p.stem))
    }
    read = {}
    for number in sorted(numbers):
        stated = values[number] if number < len(values) else None
        read[number] = read_value(numbers[number], stated, budget)
        budget.hold(read[number][1], f"{vector.name}/{numbers[number].name}")
    known = [value.name for value in values]
    names = [name for name, _ in read.values()]
    by_name = sorted(numbers) == list(range(len(names))) and len(set(names)) == len(names) and set(names) <= set(known)
    found: dict[str, tuple[str, Array]] = {}
    for number, (name, array) in read.items():
        file = f"{vector.name}/{numbers[number].name}"
        if by_name or number < len(known):
            found[name if by_name else known[number]] = (file, array)
        else:
            vector.fail(
                "QR504",
                f"{file} belongs to no {kind} of the graph",
                tensor=f"{name or file} ({kind} {number})",
                expected=f"{len(known)} files {kind}_*.pb: {', '.join(known)}",
                got=describe(array),
                fix=f"remove the file, or {_AGAIN}",
            )
    for place, name in enumerate(known[:needed]):
        if name not in found:
            file = f"{vector.name}/{kind}_{place}.pb"
            expected = f"{file}: {values[place]}"
            got = f"{len(read)} files {kind}_*.pb"
            fix = (
                f"{_run(model, vector)} -o {quote(f'{vector.folder}/')} writes the outputs of these inputs"
                if kind == "output"
                else _AGAIN
            )
            vector.fail(
                "QR503", f"{file} is missing", tensor=f"{name} ({kind} {place})", expected=expected, got=got, fix=fix
            )
    return found


def _judge(
    vector: Vector,
    model: Model,
    feeds: Mapping[str, Array],
    output: tuple[int, TensorType],
    record: tuple[str, Array],
    made: tuple[str, Array],
    tolerance: Tolerance,
) -> None:
    """Compare one tensor of an output with its record. A difference becomes a finding at the node that makes it."""
    (place, value), (file, want), (name, got) = output, record, made
    node = model.producers.get(value.name)
    if got.dtype != want.dtype or got.shape != want.shape:
        _other_form(vector, model, output, record, made)
        return
    where = {**(at(node) if node else {}), "tensor": f"{name} (output {place}, {file})"}
    compared = compare(name, file, got, want, tolerance)
    if compared.differing and is_integral(got.dtype):
        compared = classify(compared, model, feeds, got, want, tolerance)
    vector.outputs.append(compared)
    if compared.differing:
        index = f" at [{','.join(map(str, compared.first))}]" if compared.first else ""
        unit = " LSB" if is_integral(got.dtype) else ""
        most = f", by at most {compared.largest:.6g}{unit}" if compared.largest else ""
        exact = f"; the exact value before rounding is {compared.exact:.12g}" if compared.exact is not None else ""
        allowed = f"--lsb {tolerance.lsb}" if unit else f"rtol {tolerance.rtol:g}, atol {tolerance.atol:g}"
        shown, recorded = (f"{v:.9g}" if isinstance(v, float) else str(v) for v in (compared.got, compared.recorded))
        share = f"{compared.differing} of {compared.total} elements{most}"
        vector.fail(
            "QR501",
            f"{name} differs from {file} in {share}; first{index} {shown}, recorded {recorded}",
            **where,
            expected=f"{recorded}{index}, within {allowed}",
            got=f"{shown}{exact}",
            why=compared.why,
            fix=_fix(compared.verdict, model, vector, node),
        )


def _other_form(
    vector: Vector, model: Model, output: tuple[int, TensorType], record: tuple[str, Array], made: tuple[str, Array]
) -> None:
    """Add a finding: the output has another type or shape than the record."""
    (place, value), (file, want), (name, got) = output, record, made
    node = model.producers.get(value.name)
    vector.fail(
        "QR502",
        f"{name} is {describe(got)}, recorded as {describe(want)}",
        **(at(node) if node else {}),
        tensor=f"{name} (output {place}, {file})",
        expected=f"{describe(want)}, as in {file}",
        got=describe(got),
        fix=_AGAIN,
    )


def _run(model: Model, vector: Vector) -> str:
    return f"{model.fill_in('qrun run MODEL')} -i {quote(str(vector.folder))}"


def _fix(verdict: Verdict, model: Model, vector: Vector, node: Node | None) -> str:
    if verdict == "tie":
        return "--lsb 1 accepts such choices; --arith ort and --arith onnx-ref round as those runtimes do"
    read = [name for name in node.inputs if name and name not in model.constants] if node else []
    shown = "".join(f" -t {quote(name)}" for name in read[:_SHOWN]) or " -t '*'"
    return f"{_run(model, vector)}{shown} shows the earlier tensors; --rtol, --atol and --lsb allow more"


def vector_folders(model: Path, data: Sequence[Path] | None) -> list[Path]:
    """The folders to replay: ``test_data_set_*`` beside the model, or the folders in `data` and such folders in them.

    Raises CallError for a folder of `data` without vectors.
    """
    if data is None:
        return _sets(model.parent)
    found = []
    for folder in data:
        why, _ = absent(str(folder))
        sets = [] if why else [folder] if any(folder.glob("*put_*.pb")) else _sets(folder)
        if not sets:
            where = [str(folder)]
            facts = [("expected", "input_0.pb, output_0.pb ..., or folders test_data_set_* with them")]
            fixes = ["--data none checks without vectors"]
            raise CallError(
                "QR004", f"{str(folder)!r} holds no vectors{why and f': {why}'}", where=where, facts=facts, fixes=fixes
            )
        found += sets
    return found


def _sets(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("test_data_set_*") if p.is_dir()), key=lambda p: (len(p.name), p.name))


Verdict = Literal["equal", "differs", "tie", "error", "unclassified"]


@frozen
class ComparedOutput:
    """One output compared with its record.

    differing, total: elements outside the tolerance, and all elements; largest: the largest difference; first, got,
    recorded: index and values of the first element that differs; exact: its value before rounding, if known.
    verdict: ``equal``; ``differs`` (floats); for integers ``tie`` (every differing element is one step off, and within
    1e-5 steps of a tie), ``error``, or ``unclassified``.
    """

    KEYS = keys("name file verdict total differing largest first=place got recorded exact")

    name: str
    file: str
    total: int
    differing: int = 0
    largest: float = 0.0
    first: tuple[int, ...] = ()
    got: Any = None
    recorded: Any = None
    exact: float | None = None
    verdict: Verdict = "equal"
    why: str = ""

    @property
    def place(self) -> tuple[int, ...] | None:
        """The index of the first element that differs."""
        return self.first if self.differing else None


def compare(name: str, file: str, got: Array, want: Array, tolerance: Tolerance) -> ComparedOutput:
    """Compare an output with its record, which has the same type and shape."""
    found = difference(got, want, tolerance)
    if found.equal:
        return ComparedOutput(name, file, found.total, largest=found.largest)
    counts, first = (found.total, found.differing, found.largest), found.first
    return ComparedOutput(name, file, *counts, first, plain(got[first]), plain(want[first]), verdict="differs")


def classify(
    c: ComparedOutput, model: Model, feeds: Mapping[str, Array], got: Array, want: Array, tolerance: Tolerance
) -> ComparedOutput:
    """Classify the differing elements of an integer output by the exact values that their node rounds."""
    node = model.producers.get(c.name)
    exact = _exact(model, node, feeds) if node is not None else None
    if node is None or exact is None or exact.shape != got.shape:
        why = f"not classified: the value before rounding is not known for {node.op}" if node else "not classified"
        return replace(c, verdict="unclassified", why=f"{why}.")
    bad = np.asarray(distances(got, want) > tolerance.lsb, bool)
    near = ties(exact[bad], got[bad], want[bad])
    share = f"{near} of {c.differing} differing elements"
    if near == c.differing:
        why = f"all {c.differing} differing elements are within {NEAR:g} LSB of a tie: an arithmetic choice."
        return replace(c, exact=float(exact[c.first]), verdict="tie", why=why)
    why = f"{share} are within {NEAR:g} LSB of a tie; the others are an error in this node or an earlier one."
    return replace(c, exact=float(exact[c.first]), verdict="error", why=why)


def _exact(model: Model, node: Node, feeds: Mapping[str, Array]) -> Array | None:
    """The exact values that the node rounds, from inputs that the reference kernels compute; None if not known."""
    names = [n for n in node.inputs if n]
    try:
        values = Session(model, backend="reference").values(feeds, names)
    except QrunError:
        return None
    return before_rounding(node, [values[n] if n else None for n in node.inputs])
