"""The report of one run: outputs, time per node, checks; as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node
from qrun.ir.compound import elements_of, sequence, tensors
from qrun.ir.types import type_name
from qrun.report.grid import Column, Grid
from qrun.report.header import environment, headline, input_fields, model_fields, print_headline
from qrun.report.message import counted, print_findings
from qrun.report.nodes import (
    FUSED,
    MOVED,
    STEPS,
    fold_prefix,
    fused_text,
    inside_grid,
    inside_left,
    inside_times,
    moved,
    node_of,
    op_names,
    output_text,
    outputs,
    ran,
    ran_fields,
    step_names,
)
from qrun.report.screen import Out, Screen
from qrun.report.stats import listed, print_arrays, stats
from qrun.report.text import duration, percent, plural
from qrun.running.session import NodeEvent, RunResult

if TYPE_CHECKING:
    from qrun.checking.rules import Finding
    from qrun.documents.answers import RunNode, RunOutput
    from qrun.io.inputs import Feeds

TOP = 3
JSON_VALUES = 64
ELEMENTS = 64
"""Elements of a sequence that the text shows."""


@frozen
class RunReport:
    """Everything that a report of a run shows.

    outputs:  the arrays shown: graph outputs, then the tensors asked for with --tensor.
    findings: None if the checks did not run.
    backend:  the name asked for; label: the runtime with its version, "" for qrun itself.
    """

    model: Model
    feeds: Feeds
    result: RunResult
    findings: Sequence[Finding] | None
    backend: str
    arith: str
    label: str = ""

    @property
    def fused_groups(self) -> int:
        """Steps that stand for several nodes of the model."""
        return sum(len(event.group) > 1 for event in self.result.events)


def print_run(out: Out, report: RunReport) -> None:
    """The text report: header, Outputs, Time, Checks; Outputs only when quiet."""
    screen = out.result
    if out.quiet:
        _outputs(screen, report.result.outputs)
        return
    print_headline(screen, headline(report.model, report.feeds, _label(report)))
    screen.line()
    if report.result.outputs:
        screen.line(("Outputs", "bold"))
        _outputs(screen, report.result.outputs)
        screen.line()
    _time(screen, report, out.verbose > 0)
    if report.findings is not None:
        screen.line()
        _checks(screen, report, out.verbose > 0)


def _outputs(screen: Screen, values: Mapping[str, Array]) -> None:
    """A row for each tensor; of a long sequence those of its first elements."""
    left = {name: len(elements_of(value)) - ELEMENTS for name, value in values.items()}
    cut = {name: sequence(elements_of(value)[:ELEMENTS]) if left[name] > 0 else value for name, value in values.items()}
    print_arrays(screen, tensors(cut), True)
    for name, count in left.items():
        if count > 0:
            screen.wrapped("  ", "  ", f"{plural(count, 'more element')} of {name}; --json has all")


def _label(report: RunReport) -> str:
    """The runtime, or how qrun computed: ``arith ort, 6 groups fused``;
    a QDQ model without fused groups ran as written."""
    from qrun.report.modelfacts import ModelFacts

    if report.label:
        return report.label
    fused = report.fused_groups
    written = not fused and ModelFacts(report.model).form == "QDQ"
    parts = [f"arith {report.arith}"] if report.arith != "exact" else []
    parts += [f"{plural(fused, 'group')} fused"] if fused else ["as written"] if written else []
    return ", ".join(parts)


def _time(screen: Screen, report: RunReport, all_nodes: bool) -> None:
    total = report.result.duration_ns
    head = ("Time", "bold")
    if not report.result.events:
        why = "qrun profile shows the time per node of other runtimes" if report.model.nodes else "no nodes"
        screen.line(head, f"  {duration(total)}, one run; {why}")
        return
    runs = f"the fastest of {report.result.runs} runs" if report.result.runs > 1 else "one run"
    screen.line(head, f"  {duration(total)}, {runs} (qrun profile for statistics)")
    before = [f"first run {duration(report.result.first_ns)}"] if report.result.first_ns else []
    before += [f"{duration(report.result.aside_ns)} to compile and check"] if report.result.aside_ns else []
    if before:
        screen.wrapped("  ", "  ", " + ".join(before))
    events = sorted(report.result.events, key=lambda e: -e.duration_ns)
    if not all_nodes and len(events) > TOP + 2:
        events = events[:TOP]
    shown = sum(e.duration_ns for e in events)
    if all_nodes:
        events.sort(key=lambda e: e.index)
    screen.grid(_time_grid(screen, report, events, total, all_nodes and report.backend == "native"))
    if any(len(e.group) > 1 for e in events):
        screen.line((f"  {FUSED}", "dim"))
    if any(e.step for e in events):
        screen.line((f"  {STEPS}", "dim"))
    if any(moved(report.model, e) for e in events):
        screen.wrapped("  ", "  ", MOVED)
    every = sum(e.duration_ns for e in report.result.events)
    left = len(report.result.events) - len(events)
    rest = [f"{screen.ellipsis} {left} more nodes, {duration(every - shown)}"] if left else []
    rest += [f"between the nodes {duration(total - every)}"] if total > every else []
    if rest:
        screen.line(f"  {'; '.join(rest)}")
    if not all_nodes and (reason := _reason(report.model, events[0])):
        screen.wrapped("  ", "  ", reason)
    if report.result.inside:
        most = None if all_nodes else TOP + 2
        screen.grid(inside_grid(report.result.inside, total, most))
        if left_inside := inside_left(report.result.inside, most):
            screen.line(f"  {screen.ellipsis} {left_inside}   -v")


def _reason(model: Model, slowest: NodeEvent) -> str:
    """Why the slowest node has no native kernel; "" if it has one, or was to have none."""
    if not slowest.why:
        return ""
    name = node_of(model, slowest).label
    return f"node {slowest.index} {name} ran on numpy, which takes longer: {slowest.why}   docs/limits.md"


def _time_grid(
    screen: Screen, report: RunReport, events: Sequence[NodeEvent], total: int, with_kernels: bool = False
) -> Grid:
    op, model = op_names(report.model.nodes), report.model
    named = step_names((e.index, node_of(model, e).label) for e in report.result.events)
    columns = [
        Column("#", right=True, cell=lambda e: str(e.index)),
        Column("node", shrink=1, cell=lambda e: named(e, node_of(model, e).label)),
        Column("op", shrink=1, cell=lambda e: _op_text(model, e, op)),
        Column("time", right=True, cell=lambda e: duration(e.duration_ns)),
        Column("share", right=True, cell=lambda e: percent(e.duration_ns / total if total else 0)),
        Column("output", optional=1, cell=output_text),
        Column("kernel", shrink=1, cell=lambda e: ran(model, e).kernel) if with_kernels else None,
        Column("not native, because", wrap=True, below=True, cell=lambda e: e.why)
        if with_kernels and any(e.why for e in events)
        else None,
    ]
    return fold_prefix(screen, Grid.of(columns, events))


def _op_text(model: Model, event: NodeEvent, op: Callable[[Node], str]) -> str:
    text = fused_text(event, op(node_of(model, event)))
    return f"{text} moved" if moved(model, event) else text


def _checks(screen: Screen, report: RunReport, verbose: bool) -> None:
    from qrun.checking.rules import rule_count

    findings = [f for f in report.findings or () if verbose or f.level != "note"]
    summary = counted(f.level for f in findings) or "nothing found"
    checked = f"({plural(rule_count(), 'rule')}, {plural(len(report.model.nodes), 'node')})"
    screen.line(("Checks", "bold"), f"  {summary} {checked}")
    print_findings(screen, findings, report.model.label, verbose)
    if findings and not verbose:
        screen.line("  -v shows each with the reason and a fix; qrun explain CODE tells more")


def run_fields(report: RunReport) -> dict[str, Any]:
    """The body of the JSON report."""
    result = report.result
    return {
        "model": model_fields(report.model),
        "environment": {
            **environment(report.backend, report.label),
            "arith": report.arith,
            "fused_groups": report.fused_groups,
        },
        "inputs": input_fields(report.feeds, hashes=True),
        "symbols": report.feeds.symbols,
        "outputs": output_records(result.outputs),
        "time_ms": result.duration_ns / 1e6,
        "runs": result.runs,
        "first_ms": result.first_ns / 1e6 if result.first_ns else None,
        "aside_ms": result.aside_ns / 1e6,
        "peak_bytes": result.peak_bytes,
        "nodes": run_nodes(report.model, result.events),
        "inside": inside_times(result.inside),
        "findings": report.findings,
    }


def output_records(arrays: Mapping[str, Array]) -> list[RunOutput]:
    """What the JSON report tells of each output, or of the tensors in it."""
    from qrun.documents.answers import RunOutput
    from qrun.io.storable import digest

    made = []
    for name, array in tensors(arrays).items():
        s, values = stats(array), listed(array, JSON_VALUES)
        rows = None if s.rows is None else s.rows[:JSON_VALUES]
        form = name, type_name(array.dtype), tuple(array.shape)
        made.append(RunOutput(*form, s.low, s.high, s.mean, s.nan, s.inf, s.argmax, rows, digest(array), values))
    return made


def run_nodes(model: Model, events: Sequence[NodeEvent]) -> list[RunNode]:
    from qrun.documents.answers import RunNode

    return [RunNode(**ran_fields(model, e), time_ms=e.duration_ns / 1e6, outputs=outputs(e)) for e in events]
