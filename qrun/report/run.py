"""The report of one run: outputs, time per node, checks; as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qrun.checking.rules import rule_count
from qrun.declare.frozen import frozen
from qrun.documents.answers import RunNode, RunOutput
from qrun.io.storable import digest
from qrun.ir import Array, Model, Node
from qrun.ir.compound import elements_of, sequence, tensors
from qrun.ir.types import describe, type_name
from qrun.ops import CUSTOM
from qrun.report.answer import Answer
from qrun.report.grid import Column, Grid
from qrun.report.header import environment, headline, input_fields, model_fields, print_headline
from qrun.report.message import count_levels, print_findings
from qrun.report.nodes import (
    FUSED,
    MOVED,
    STEPS,
    fold_prefix,
    fused_text,
    inside_grid,
    inside_left,
    inside_times,
    is_moved,
    node_of,
    op_names,
    output_text,
    outputs,
    ran,
    ran_fields,
    step_names,
)
from qrun.report.noise import BUSY, HELP, signs
from qrun.report.screen import BAD, NAME, NEXT, OPEN, STYLES, Out, Screen
from qrun.report.stats import print_arrays, stats, to_list
from qrun.report.text import duration, percent, plural
from qrun.running.session import NodeEvent, RunResult

if TYPE_CHECKING:
    from qrun.checking.rules import Finding
    from qrun.documents.answers import NamedClass, OutputClasses, RunNode, RunOutput, TensorHistogram
    from qrun.io.inputs import Feeds
    from qrun.running.coverage import Coverage
    from qrun.running.profiling import Profile

TOP, NAMED = 3, 2
"""Nodes in the table of times, and outputs in the verdict."""
JSON_VALUES = 64
ELEMENTS = 64
"""Elements of a sequence that the text shows."""


@frozen
class RunReport:
    """Everything that a report of a run shows.

    result:   of the first run, which observes values: graph outputs, then the tensors requested with --tensor.
    findings: None if the checks did not run.
    backend:  the requested name; label: the runtime with its version, "" for qrun itself.
    profile:  of the runs that came next; None if these would have taken long. threads: None if unknown.
    classes:  the best classes of the outputs, if --classes names them. next_tokens: of a decoder, for each sequence the
              tokens that are most likely next. histograms: those of --hist.
    coverage: what an integer engine computed.
    """

    model: Model
    feeds: Feeds
    result: RunResult
    findings: Sequence[Finding] | None
    backend: str
    arith: str
    label: str = ""
    profile: Profile | None = None
    threads: int | None = None
    classes: Sequence[OutputClasses] = ()
    next_tokens: Sequence[Sequence[NamedClass]] = ()
    histograms: Sequence[TensorHistogram] = ()
    coverage: Coverage | None = None

    @property
    def timed(self) -> RunResult:
        """The run whose nodes are shown: the last profiled one, or the first if none was profiled."""
        return self.profile.last if self.profile and self.profile.last.events else self.result

    @property
    def median_ns(self) -> float:
        """The median of plain runs; without any, the time of the first run."""
        return self.profile.median_ns if self.profile else self.result.duration_ns

    @property
    def nodes_ns(self) -> Sequence[float]:
        """The time of each event of `timed`."""
        if self.profile and len(self.profile.node_ns):
            return list(map(float, self.profile.medians))
        return [event.duration_ns for event in self.timed.events]

    @property
    def fused_groups(self) -> int:
        """The number of steps that replace several nodes of the model."""
        return sum(len(event.group) > 1 for event in self.timed.events)

    @property
    def notes(self) -> list[str]:
        """Notes on the times for the reader."""
        found = ", ".join(signs(self.profile)) if self.profile else ""
        return [f"{BUSY}: {found}. {HELP}; qrun profile measures longer."] if found else []


def print_run(out: Out, report: RunReport) -> None:
    """Prints the text report: header, Outputs, Time, Checks; only Outputs when quiet."""
    screen = out.result
    if out.quiet:
        _outputs(screen, report.result.outputs)
        _print_requested(screen, report)
        return
    print_headline(screen, headline(report.model, report.feeds, _label(report)))
    if report.coverage:
        screen.wrapped("", "  ", str(report.coverage))
    screen.line()
    if report.result.outputs:
        screen.line(("Outputs", "bold"))
        _outputs(screen, report.result.outputs)
        _print_requested(screen, report)
        screen.line()
    _time(screen, report, out.verbose > 0)
    if report.findings is not None:
        screen.line()
        _checks(screen, report, out.verbose > 0)
    screen.line()
    style = BAD if any(f.level == "error" for f in report.findings or ()) else OPEN
    screen.wrapped("", "  ", (verdict(report), style))


def _outputs(screen: Screen, values: Mapping[str, Array]) -> None:
    """Prints one row per tensor; for a long sequence, the rows of its first elements."""
    left = {name: len(elements_of(value)) - ELEMENTS for name, value in values.items()}
    cut = {name: sequence(elements_of(value)[:ELEMENTS]) if left[name] > 0 else value for name, value in values.items()}
    print_arrays(screen, tensors(cut), True)
    for name, count in left.items():
        if count > 0:
            screen.wrapped("  ", "  ", f"{plural(count, 'more element')} of {name}; --json has all")


def _print_requested(screen: Screen, report: RunReport) -> None:
    """Prints what --classes and --hist ask for, and the next tokens of a decoder."""
    if report.next_tokens:
        from qrun.report.nexttokens import print_tokens

        print_tokens(screen, report.next_tokens)
    if report.classes:
        from qrun.report.classes import print_classes

        print_classes(screen, report.classes)
    if report.histograms:
        from qrun.report.histogram import print_histograms

        print_histograms(screen, report.histograms)


def _label(report: RunReport) -> str:
    """The runtime, or how qrun computed: ``arith ort, 6 groups fused``. A QDQ model without fused groups ran as
    written."""
    from qrun.report.modelfacts import ModelFacts

    if report.label:
        return report.label
    fused = report.fused_groups
    written = not fused and ModelFacts(report.model).form == "QDQ"
    parts = [f"arith {report.arith}"] if report.arith != "exact" else []
    parts += [f"{plural(fused, 'group')} fused"] if fused else ["as written"] if written else []
    return ", ".join(parts)


def _time(screen: Screen, report: RunReport, all_nodes: bool) -> None:
    """Prints the time of a plain run, and its nodes."""
    each = " a run" if report.profile else ""
    time = f"{duration(report.median_ns)}{each}", "bold"
    screen.wrapped("", "  ", time, (f"  {_measurement_text(report)}", "dim"))
    timed = report.timed
    if not timed.events:
        why = "qrun profile shows the time per node of other runtimes" if report.model.nodes else "no nodes"
        screen.line((f"  {why}", "dim"))
        return
    rows = sorted(zip(timed.events, report.nodes_ns, strict=True), key=lambda row: -row[1])
    if not all_nodes and len(rows) > TOP + 2:
        rows = rows[:TOP]
    slowest = rows[0][0]
    if all_nodes:
        rows.sort(key=lambda row: row[0].index)
    screen.grid(_time_grid(screen, report, rows, all_nodes and report.backend == "native"))
    if any(len(e.group) > 1 for e, _ in rows):
        screen.wrapped("  ", "  ", (FUSED, "dim"))
    if any(e.step for e, _ in rows):
        screen.wrapped("  ", "  ", (STEPS, "dim"))
    if any(is_moved(report.model, e) for e, _ in rows):
        screen.wrapped("  ", "  ", (MOVED, "dim"))
    if not all_nodes and (reason := _reason(report.model, slowest)):
        screen.wrapped("  ", "  ", reason)
    if timed.inside:
        most = None if all_nodes else TOP + 2
        screen.grid(inside_grid(inside_times(timed.inside), sum(e.duration_ns for e in timed.events) / 1e6, most))
        if left_inside := inside_left(timed.inside, most):
            screen.line(f"  {screen.ellipsis} {left_inside}   -v")
    for note in report.notes:
        screen.wrapped("  note: ", "  ", note)


def _measurement_text(report: RunReport) -> str:
    """Says how the time was measured: ``median of 2,000 plain runs, 2 threads; first run 1.3 ms (148 us of compiling
    and checking not included)``."""
    profile, first, aside = report.profile, report.result.duration_ns, report.result.aside_ns
    own = f" ({duration(aside)} of compiling and checking not included)" if aside else ""
    if profile is None:
        return f"the first run only, in which qrun also checks the values{own}; qrun profile times plain runs"
    count = len(profile.run_ns)
    runs = f"median of {count:,} plain runs" if count > 1 else "one plain run"
    threads = f", {plural(report.threads, 'thread')}" if report.threads else ""
    return f"{runs}{threads}; first run {duration(first)}{own}"


def _reason(model: Model, slowest: NodeEvent) -> str:
    """Why the slowest node has no native kernel; "" if it has one, or was not meant to have one."""
    if not slowest.why or slowest.backend == CUSTOM:
        return ""
    name, where = (
        node_of(model, slowest).label,
        "on numpy" if slowest.backend == "reference" else f"in {slowest.backend}",
    )
    return f"node {slowest.index} {name} ran {where}, which is slower: {slowest.why} (see docs/limits.md)"


Row = tuple[NodeEvent, float]
"""A node and its time, ns."""


def _time_grid(screen: Screen, report: RunReport, rows: Sequence[Row], with_kernels: bool = False) -> Grid:
    op, model, total = op_names(report.model.nodes), report.model, sum(report.nodes_ns)
    named = step_names((e.index, node_of(model, e).label) for e in report.timed.events)
    columns = [
        Column("#", right=True, cell=lambda row: str(row[0].index)),
        Column("node", style=NAME, shrink=1, cell=lambda row: named(row[0], node_of(model, row[0]).label)),
        Column("op", shrink=1, cell=lambda row: _op_text(model, row[0], op)),
        Column("time", right=True, cell=lambda row: duration(row[1])),
        Column("share", right=True, cell=lambda row: percent(row[1] / total if total else 0)),
        Column("output", optional=1, cell=lambda row: output_text(row[0])),
        Column("kernel", shrink=1, cell=lambda row: ran(model, row[0]).kernel) if with_kernels else None,
        Column("not native, because", wrap=True, below=True, cell=lambda row: row[0].why)
        if with_kernels and any(e.why for e, _ in rows)
        else None,
    ]
    grid = Grid.of(columns, rows).and_rows([*_rest_row(report, rows, total), *_overhead(report)])
    return fold_prefix(screen, grid)


def _rest_row(report: RunReport, rows: Sequence[Row], total: float) -> Iterator[dict[str, str]]:
    """The row for the nodes without a row of their own; cells by column."""
    count, ns = len(report.timed.events) - len(rows), total - sum(ns for _, ns in rows)
    if count:
        share = percent(ns / total if total else 0)
        yield {"node": plural(count, "more node"), "time": duration(max(ns, 0.0)), "share": share}


def _overhead(report: RunReport) -> Iterator[dict[str, str]]:
    """The row for the time of a plain run beyond its nodes; cells by column."""
    ns = report.profile.overhead_ns if report.profile else None
    if ns:  # 0: hidden by noise
        yield {"node": "call overhead", "time": duration(ns)}


def _op_text(model: Model, event: NodeEvent, op: Callable[[Node], str]) -> str:
    text = fused_text(event, op(node_of(model, event)))
    return f"{text} moved" if is_moved(model, event) else text


def _checks(screen: Screen, report: RunReport, verbose: bool) -> None:

    findings = [f for f in report.findings or () if verbose or f.level != "note"]
    summary = count_levels(f.level for f in findings) or "nothing found"
    checked = f" ({plural(rule_count(), 'rule')}, {plural(len(report.model.nodes), 'node')})"
    screen.line(("Checks", "bold"), "  ", (summary, STYLES[findings[0].level] if findings else ""), (checked, "dim"))
    print_findings(screen, findings, report.model.label, verbose)
    if findings and not verbose:
        told = f"Add -v for reasons and fixes, or run `qrun explain {findings[0].rule}`."
        screen.wrapped("  ", "  ", (told, NEXT))


def verdict(report: RunReport) -> str:
    """The answer in one line to repeat: ``m.onnx: logits float32 [8,10], 15.5 us a run, 1 warning``."""
    outputs = [f"{name} {describe(array)}" for name, array in tensors(report.result.outputs).items()]
    more = [f"{plural(len(outputs) - NAMED, 'more output')}"] if outputs[NAMED:] else []
    time = f"{duration(report.median_ns)} {'a run' if report.profile else 'for the first run'}"
    levels = [f.level for f in report.findings or () if f.level != "note"]
    found = [count_levels(levels) or "nothing found"] if report.findings is not None else []
    told = ", ".join([*outputs[:NAMED], *more, time, *found])
    return f"{report.model.label.rpartition('/')[2]}: {told}"


def run_answer(report: RunReport, code: int) -> Answer:
    """The verdict, and the command that explains the first finding."""
    found = [f"qrun explain {f.rule}" for f in report.findings or () if f.level != "note"]
    return Answer(code, verdict(report), found[:1])


def run_fields(report: RunReport) -> dict[str, Any]:
    """The body of the JSON report."""
    result, timed, profile = report.result, report.timed, report.profile
    overhead = profile.overhead_ns if profile else None
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
        **({"classes": report.classes} if report.classes else {}),
        **({"next_tokens": report.next_tokens} if report.next_tokens else {}),
        **({"histograms": report.histograms} if report.histograms else {}),
        **({"coverage": report.coverage} if report.coverage else {}),
        "time_ms": report.median_ns / 1e6,
        "runs": len(profile.run_ns) if profile else 0,
        "overhead_ms": None if overhead is None else overhead / 1e6,
        "first_ms": result.duration_ns / 1e6,
        "aside_ms": result.aside_ns / 1e6,
        "peak_bytes": result.peak_bytes,
        "nodes": run_nodes(report.model, timed.events, report.nodes_ns),
        "inside": inside_times(timed.inside),
        "notes": report.notes,
        "findings": report.findings,
    }


def output_records(arrays: Mapping[str, Array]) -> list[RunOutput]:
    """The JSON records of the outputs, one for each tensor in them."""

    made = []
    for name, array in tensors(arrays).items():
        s, values = stats(array), to_list(array, JSON_VALUES)
        rows = None if s.rows is None else s.rows[:JSON_VALUES]
        left = max(len(s.rows or ()) - JSON_VALUES, 0)
        form = name, type_name(array.dtype), tuple(array.shape)
        sha256 = digest(array)
        made.append(RunOutput(*form, s.low, s.high, s.mean, s.nan, s.inf, s.argmax, rows, sha256, values, left))
    return made


def run_nodes(model: Model, events: Sequence[NodeEvent], spent: Sequence[float]) -> list[RunNode]:
    """spent: the time of each node, ns."""

    timed = zip(events, spent, strict=True)
    return [RunNode(**ran_fields(model, e), time_ms=ns / 1e6, outputs=outputs(e)) for e, ns in timed]
