"""The report of a profile: the whole model, the slowest nodes, the operators, and notes on how far to trust the
numbers; as text, Markdown, CSV and JSON, whose schema is qrun/schemas/profile-1.0.json."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from qrun.comparing.saved import LEAST
from qrun.declare.frozen import keys
from qrun.documents.answers import GroupTimes, Samples
from qrun.documents.record import encode
from qrun.report.header import environment, headline, input_fields, model_fields
from qrun.report.nodes import FUSED, STEPS, inside_grid, inside_left, inside_times, op_names
from qrun.report.noise import BUSY, HELP, signs
from qrun.report.profilerows import (
    ProfileReport,
    above_roof,
    against_grid,
    fallback_grid,
    node_grid,
    operator_grid,
    paired_grid,
    statistics,
    total_time,
    whole_grid,
)
from qrun.report.screen import BAD, GOOD, OPEN, Out, Screen
from qrun.report.sheet import Block, Sheet
from qrun.report.text import bar, duration, percent, plural, ratio_text, safe, width_of
from qrun.running.cpus import usable_cpus
from qrun.running.machine import Machine
from qrun.running.profiling import TOLD, Profile, outliers, summary

JOINED = "+N: fused with N other nodes"
GROUPED = "+N: measured together with N other nodes, because one runtime fuses them"
UNDECIDED = {
    "same": "the interquartile ranges overlap",
    "few runs": f"{LEAST} runs or more are needed (-n)",
}
"""Why the times of two runtimes give no order."""
HEAVIEST = "groups of nodes that both ran as one, each listed under the operator of its slowest node"
BAR, BESIDE = 44, 62
"""Columns of the longest bar, and of the text beside it without the operator's name."""


def profile_sheet(report: ProfileReport, screen: Screen, markdown: bool = False) -> Sheet:
    """Lays out the report for a screen, with bars and characters that the screen can show."""
    label = f"arith {report.arith}" if report.arith != "exact" else ""
    model = headline(report.profile.model, report.feeds, label)
    whole = Block("Whole model", whole_grid(report, screen.clean("±")))
    blocks = [whole, *_blocks(report, None if markdown else _bars(screen, report))]
    ways = {"faster": GOOD, "slower": BAD}
    style = ways.get(report.against_change.verdict, OPEN) if report.against_change else OPEN
    return Sheet(blocks, verdict(report), style, [model], [_how(report)], notes(report))


def print_as_encoded(out: Out, text: str) -> None:
    """Prints a text for programs; characters that the stream's encoding lacks become escapes."""
    encoding = out.result.encoding
    out.result.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _how(report: ProfileReport) -> str:
    from qrun import __version__

    profile, other = report.profile, report.against
    runner = report.label or f"qrun {__version__} {report.backend}"
    runner += f", alternating with {report.other}" if other else ""
    prepared = f"{plural(len(profile.prepare_ns), 'run')} to prepare, " if profile.prepare_ns else ""
    warm = plural(len(profile.warmup_ns), "warm-up")
    runs = plural(len(profile.run_ns), "plain run") + (" each" if other else "")
    spent = sum(profile.run_ns) + (sum(other.run_ns) if other else 0)
    threads = f", {plural(report.threads, 'thread')}" if report.threads else ""
    nodes = f", alternating with {len(profile.profiled_ns)} that time the nodes" if profile.profiled_ns else ""
    return f"{runner}, {prepared}{warm} + {runs} in {duration(spent)}{nodes}{threads}, {plural(usable_cpus(), 'CPU')}"


def verdict(report: ProfileReport) -> str:
    """Says which runtime is faster, or why that is undecided; "" without another runtime."""
    found = report.against_change
    if report.against is None or found is None:
        return ""
    return faster(found.verdict, run_times(report.profile.run_ns), run_times(report.against.run_ns))


def answer(report: ProfileReport) -> str:
    """The verdict; without another runtime, the time: ``m.onnx: 15.5 us a run, the median of 2,000 plain runs``."""
    runs = len(report.profile.run_ns)
    many = f"the median of {runs:,} plain runs" if runs > 1 else plural(runs, "plain run")
    name = report.profile.model.label.rpartition("/")[2]
    return verdict(report) or f"{name}: {duration(report.profile.median_ns)} a run, {many}"


def faster(verdict: str, mine: Samples, others: Samples) -> str:
    """Says which runtime is faster, or why that is undecided. verdict: on the times of whole runs."""
    median = f"qrun {duration(mine.median_ms * 1e6)}, onnxruntime {duration(others.median_ms * 1e6)} a run"
    if verdict in UNDECIDED:
        first, second = ((each.min_ms or 0.0) * 1e6 for each in (mine, others))
        least = f"minima {duration(first)} and {duration(second)}"
        return f"inconclusive: {UNDECIDED[verdict]}; {median}, {least}."
    low, high = sorted((mine.median_ms, others.median_ms))
    ratio = f"{ratio_text(high / low)}x as fast" if low else "faster"
    return f"{median}: {ratio}." if verdict == "faster" else f"{median}: onnxruntime is {ratio}."


def _blocks(report: ProfileReport, draw: Callable[[float], str] | None) -> Iterator[Block]:
    if not report.rows:
        return
    both = report.against is not None and report.against.node_ns.size > 0
    known = report.machine if any(row.roof_share is not None for row in report.rows) else None
    legends = {"ort/qrun": _with_profiler(report), "roof": roof_text(known) if known else ""}
    legends = {header: text for header, text in legends.items() if text}
    roofs = report.machine is not None
    if both and report.by == "op":
        grid = paired_grid(report).and_rows(_both_sums(report, "op", []))
        lines = [HEAVIEST, *_arithmetic(report)]
        yield Block("By operator, slowest first", grid, legends=legends, lines=lines)
    elif both:
        yield _groups(report, legends)
    elif report.by == "node":
        title = "Nodes, in graph order" if report.top is None else "Slowest nodes"
        nodes = node_grid(report.slowest, report.rows, op_names(report.profile.model.nodes), roofs)
        cut = len(report.slowest) < len(report.rows)
        more = "--top all, --by op, --trace FILE or --json shows more" if cut else ""
        nodes = nodes.and_rows(_sums(report, "node"))
        yield Block(title, nodes, legends=legends, lines=list(_below(report)), more=more, folds=True)
        yield Block("By operator", operator_grid(report.operators, roofs, draw, 10), legends=legends)
    else:
        grid = operator_grid(report.operators, roofs, draw, report.top, kernels=True)
        yield Block("By operator", grid.and_rows(_sums(report, "op")), legends=legends)
    inside = report.profile.last.inside
    if inside:
        title = "Inside nodes, of the last run"
        left = inside_left(inside, report.top)
        whole = sum(e.duration_ns for e in report.profile.last.events) / 1e6
        grid = inside_grid(inside_times(inside), whole, report.top)
        yield Block(title, grid, more=f"{left}   --top all" if left else "")
    reasons = fallback_grid(report.rows)
    if reasons.rows:
        yield Block("On the reference kernels", reasons)


def _with_profiler(report: ProfileReport) -> str:
    """A note that onnxruntime's nodes were timed with its profiler; "" if they were not timed."""
    ort = report.against
    if ort is None or not ort.profiled_ns or not ort.median_ns:
        return ""
    longer = summary(ort.profiled_ns).median / ort.median_ns
    more = f", which makes a run {ratio_text(longer)}x as long; ort/qrun is too large, above all for small nodes"
    return f"ort: timed with onnxruntime's profiler{more if longer > 1 + TOLD else ''}"


def _groups(report: ProfileReport, legends: Mapping[str, str]) -> Block:
    shown = ran = report.ran
    title = "Groups of nodes that both ran as one, in graph order"
    if report.top is not None:
        title = "Slowest groups of nodes"
        shown = sorted(ran, key=lambda group: -max(total_time(group.mine), total_time(group.others)))[: report.top]
    left = [group for group in ran if group not in shown]
    lines = [GROUPED] if any(len(group.nodes) > 1 for group in shown) else []
    op = op_names(report.profile.model.nodes)
    grid = against_grid(shown, op, report.machine is not None, bool(report.arithmetics))
    grid = grid.and_rows(_both_sums(report, "node", left))
    more = "--top all or --json shows more" if left else ""
    return Block(title, grid, legends=legends, lines=[*lines, *_arithmetic(report)], more=more, folds=True)


def _both_sums(report: ProfileReport, header: str, left: Sequence[GroupTimes]) -> Iterator[dict[str, str]]:
    """Rows for the groups without a row, for all of them, and for the call overhead; cells by column."""
    if left:
        yield {header: plural(len(left), "more group"), **_both(left)}
    yield {header: "all groups", **_both(report.ran)}
    sides = {"qrun": report.profile, "ort": report.against}
    spent = {name: side.overhead_ns if side else None for name, side in sides.items()}
    yield {header: "call overhead", **{name: "unknown" if ns is None else duration(ns) for name, ns in spent.items()}}


def _both(groups: Sequence[GroupTimes]) -> dict[str, str]:
    mine, others = sum(total_time(g.mine) for g in groups), sum(total_time(g.others) for g in groups)
    ratio = {"ort/qrun": ratio_text(others / mine)} if mine and others else {}
    return {"qrun": duration(mine), "ort": duration(others), **ratio}


def _arithmetic(report: ProfileReport) -> Iterator[str]:
    """Says which nodes of a QDQ model onnxruntime computed in integers."""
    found = sorted(report.arithmetics.items(), key=lambda item: -item[1].total())
    counts = [f"{kinds['integer']} of {kinds.total()} {op}" for op, kinds in found]
    if counts:
        yield f"onnxruntime computed in integers: {', '.join(counts)}"


def _below(report: ProfileReport) -> Iterator[str]:
    """The lines below the table of nodes."""
    if any(row.group[1:] for row in report.slowest):
        yield JOINED if report.backend == "ort" else FUSED
    if any(row.step for row in report.slowest):
        yield STEPS


def _sums(report: ProfileReport, header: str) -> Iterator[dict[str, str]]:
    """Rows for the nodes without a row, and for the time of a plain run beyond its nodes; cells by column."""
    shown = {id(row) for row in report.slowest}
    rest = [row for row in report.rows if id(row) not in shown] if header == "node" else []
    if rest:
        share = percent(sum(row.share for row in rest))
        yield {header: plural(len(rest), "more node"), "median": duration(total_time(rest)), "share": share}
    if report.profile.overhead_ns:  # 0: hidden by noise
        yield {header: "call overhead", "median": duration(report.profile.overhead_ns)}


def roof_text(machine: Machine) -> str:
    """``roof: share of 84 GMAC/s (vpmaddwd ymm, 1 thread; float32 42) or of 24 GB/s (memory) to 201 GB/s (cache),
    whichever bounds``."""
    threads = plural(machine.threads, "thread")
    slow, fast = machine.memory[-1][1] / 1e9, machine.memory[0][1] / 1e9
    return (
        f"roof: share of {machine.int8 / 1e9:.0f} GMAC/s ({machine.instruction}, {threads}; float32 "
        f"{machine.float32 / 1e9:.0f}) or of {slow:.0f} GB/s (memory) to {fast:.0f} GB/s (cache), whichever limits the node"
    )


def _bars(screen: Screen, report: ProfileReport) -> Callable[[float], str]:
    names = max((width_of(kind.op) for kind in report.operators), default=0)
    width = BAR if screen.width is None else min(BAR, max(screen.width - names - BESIDE, 10))
    return lambda share: bar(share, width, screen.encoding)


def profile_fields(report: ProfileReport) -> dict[str, Any]:
    """The body of the JSON report; all samples in ms."""
    profile, used = report.profile, {"arith": report.arith, "threads_used": report.threads}
    return {
        "model": model_fields(profile.model),
        "environment": {**environment(report.backend, report.label), **used},
        "inputs": input_fields(report.feeds),
        "symbols": report.feeds.symbols,
        "load_ms": report.load_ns / 1e6,
        **_runs(profile),
        "overhead_ms": _ms(profile.overhead_ns),
        "peak_bytes": profile.last.peak_bytes or None,
        "machine": report.machine,
        "nodes": report.rows,
        "inside": inside_times(profile.last.inside),
        "operators": report.operators,
        "against": _against(report),
        "notes": notes(report),
        "interrupted": profile.interrupted,
    }


def _runs(profile: Profile) -> dict[str, Any]:
    return {
        "prepare_ms": [t / 1e6 for t in profile.prepare_ns],
        "warmup_ms": [t / 1e6 for t in profile.warmup_ns],
        "run": run_times(profile.run_ns),
        "profiled_run": run_times(profile.profiled_ns) if profile.profiled_ns else None,
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def run_times(samples: Sequence[int]) -> Samples:
    """Times of whole runs with their statistics."""
    times: dict[str, Any] = {**statistics(summary(samples)), "samples_ms": tuple(t / 1e6 for t in samples)}
    return Samples(**times)


def _against(report: ProfileReport) -> dict[str, Any] | None:
    other = report.against
    if other is None:
        return None
    mine, theirs = summary(report.profile.run_ns).median, summary(other.run_ns).median
    return {
        "runtime": report.other,
        "ratio": theirs / mine if mine else None,
        "verdict": report.against_change.verdict if report.against_change else None,
        **_runs(other),
        "overhead_ms": _ms(other.overhead_ns),
        "nodes": report.other_rows,
        "groups": report.groups,
        "operators": report.paired,
    }


NODE_COLUMNS = keys(
    "index name domain op ran_by backend why group inserted median_ms min_ms p90_ms max_ms mean_ms sd_ms share sum macs "
    "gmacs bytes roof_share bound outputs"
)
GROUP_COLUMNS = keys("nodes name op folded median_ms other_ms ratio ran_by other_ran_by")


def profile_csv(report: ProfileReport) -> str:
    """RFC 4180: one record per node, in graph order, or per operator, or per group of nodes; texts in quotes.

    Several values in a field are separated by spaces (indices) or ``; `` (texts); counts are a JSON object.
    """
    if report.against is not None and report.by == "op":
        return _csv(encode(report.paired), ("op", "groups", "nodes", "median_ms", "other_ms", "ratio"))
    if report.against is not None:
        sides = [["; ".join(node.ran_by for node in side) for side in (g.mine, g.others)] for g in report.groups]
        groups = [
            {**encode(g), "nodes": " ".join(map(str, g.nodes)), "ran_by": mine, "other_ran_by": theirs}
            for g, (mine, theirs) in zip(report.groups, sides, strict=True)
        ]
        return _csv(groups, GROUP_COLUMNS)
    if report.by == "op":
        columns = ("op", "nodes", "median_ms", "share", "macs", "gmacs", "roof_share", "ran_by")
        return _csv([{**encode(o), "ran_by": json.dumps(o.ran_by)} for o in report.operators], columns)
    records, running = [], 0.0
    for node in report.rows:
        running += node.share
        group = node.group or (() if node.inserted else (node.index,))
        forms = "; ".join(f"{t.type} {list(t.shape)}".replace(", ", ",") for t in node.outputs)
        records.append({**encode(node), "sum": running, "outputs": forms, "group": " ".join(map(str, group))})
    return _csv(records, NODE_COLUMNS)


def _csv(records: Sequence[dict[str, Any]], columns: Collection[str]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_plain(record[name]) for name in columns])
    return stream.getvalue()


_FORMULA = ("=", "+", "-", "@")
"""Characters that begin a formula in a spreadsheet."""


def _plain(value: Any) -> Any:
    """A CSV field: numbers unchanged, booleans as words, None as an empty field, texts such that no spreadsheet
    computes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = safe(value)
        return f"'{shown}" if shown.startswith(_FORMULA) and shown not in ("inf", "-inf", "nan") else shown
    return "" if value is None else value


Sides = Sequence[tuple[str, Profile]]
"""A runtime's name in notes, and its profile."""

ABOVE = 1.15
"""A larger share of the roof shows that the roof was measured on a busy machine."""


def notes(report: ProfileReport) -> list[str]:
    """Notes on these numbers for the reader; one note for each action to take."""
    sides = [("", report.profile)]
    if report.against is not None:
        sides = [("qrun: ", report.profile), ("onnxruntime: ", report.against)]
    return [*_missing_notes(report), *_cold(sides), *_busy(report, sides)]


def _missing_notes(report: ProfileReport) -> Iterator[str]:
    profile = report.profile
    if report.backend == "onnx-ref" and profile.model.nodes:
        yield "onnx.reference times whole runs only; per-node time is not available for this backend"
    ort = report.against or (profile if report.backend == "ort" else None)
    if ort is not None and not ort.profiled_ns:
        yield "onnxruntime cannot profile this model with these inputs; per-node time is not available for it"
    elif ort is not None:
        yield _coarse(ort, (report.other or report.label).partition(" (")[0])


def _coarse(ort: Profile, name: str) -> str:
    """Says how exact the times of onnxruntime's profiler are."""
    profiled, plain, lack = summary(ort.profiled_ns).median, ort.median_ns, ort.unit_ns * len(ort.node_ns)
    slower = f" ({percent(profiled / plain - 1)} more)" if plain and profiled > plain else ""
    less = "" if ort.overhead_ns is not None else ", too coarse or too slow to show the call overhead"
    return (
        f"the times of {name}'s nodes are from {plural(len(ort.profiled_ns), 'run')} with its profiler, "
        f"{duration(profiled)} a run{slower}; it counts whole microseconds, so they may lack up to {duration(lack)}{less}."
    )


def _cold(sides: Sides) -> Iterator[str]:
    found = [f"{who}run 1 took {duration(p.run_ns[0])}" for who, p in sides if outliers(p.run_ns) == [0]]
    if found:
        yield f"{'; '.join(found)}, far from the median; more --warmup removes this."


def _busy(report: ProfileReport, sides: Sides) -> Iterator[str]:
    """The signs of a busy machine, and what helps."""
    found = [who + ", ".join(told) for who, profile in sides if (told := list(signs(profile)))]
    above = above_roof(report.rows, ABOVE) if report.machine else []
    if above:
        found.append(
            f"{plural(len(above), 'node')} above the roof, although it was measured twice (--no-cache measures it again)"
        )
    if report.machine is not None and report.machine.busy:
        found.append("the roof was measured on a busy machine and is not kept")
    if found:
        yield f"{BUSY}: {'; '.join(found)}. {HELP}; more runs (-n) steady only the whole-run median."
