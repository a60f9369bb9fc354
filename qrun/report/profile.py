"""The report of a profile: the whole model, the slowest nodes, the operators; as text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from qrun.comparing.saved import LEAST
from qrun.documents.answers import GroupTimes
from qrun.report.header import headline
from qrun.report.nodes import FUSED, STEPS, inside_grid, inside_left
from qrun.report.profilejson import notes, profile_csv
from qrun.report.profilerows import ProfileReport, spent
from qrun.report.profiletables import against_grid, node_grid, operator_grid, paired_grid, refused_grid, whole_grid
from qrun.report.screen import BAD, GOOD, OPEN, Out, Screen
from qrun.report.sheet import Block, Sheet
from qrun.report.text import bar, duration, percent, plural, ratio_text, width_of
from qrun.running.cpus import usable_cpus
from qrun.running.machine import Machine
from qrun.running.profiling import TOLD, summary

JOINED = "+N: with N other nodes, as one"
UNDECIDED = {
    "same": "the interquartile ranges overlap",
    "few runs": f"{LEAST} runs or more are needed (-n)",
}
"""Why the times of two runtimes tell no order."""
HEAVIEST = "groups of nodes that both ran as a whole, each listed under the operator of its slowest node"
BAR, BESIDE = 44, 62
"""Columns of the longest bar, and of what stands beside it without the operator's name."""


def profile_sheet(report: ProfileReport, screen: Screen, markdown: bool = False) -> Sheet:
    """The report for a screen; bars and signs are those that it can show."""
    label = f"arith {report.arith}" if report.arith != "exact" else ""
    model = headline(report.profile.model, report.feeds, label)
    whole = Block("Whole model", whole_grid(report, screen.clean("±")))
    blocks = [whole, *_blocks(report, None if markdown else _bars(screen, report))]
    ways = {"faster": GOOD, "slower": BAD}
    style = ways.get(report.against_change.verdict, OPEN) if report.against_change else OPEN
    return Sheet(blocks, verdict(report), style, [model], [_how(report)], notes(report))


def print_csv(out: Out, report: ProfileReport) -> None:
    """The report as CSV; signs that the stream's encoding lacks as escapes."""
    encoding = out.result.encoding
    out.result.stream.write(profile_csv(report).encode(encoding, "backslashreplace").decode(encoding))


def _how(report: ProfileReport) -> str:
    from qrun import __version__

    profile, other = report.profile, report.against
    runner = report.label or f"qrun {__version__} {report.backend}"
    runner += f" and {report.other} in turn" if other else ""
    prepared = f"{plural(len(profile.prepare_ns), 'run')} to prepare, " if profile.prepare_ns else ""
    warm = plural(len(profile.warmup_ns), "warm-up")
    runs = plural(len(profile.run_ns), "plain run") + (" each" if other else "")
    spent = sum(profile.run_ns) + (sum(other.run_ns) if other else 0)
    threads = f", {plural(report.threads, 'thread')}" if report.threads else ""
    nodes = f", in turn with {len(profile.profiled_ns)} that time the nodes" if profile.profiled_ns else ""
    return f"{runner}, {prepared}{warm} + {runs} in {duration(spent)}{nodes}{threads}, {plural(usable_cpus(), 'CPU')}"


def verdict(report: ProfileReport) -> str:
    """Which runtime is faster, or why that is not decided; nothing without another runtime."""
    found = report.against_change
    if report.against is None or found is None:
        return ""
    mine, others = summary(report.profile.run_ns), summary(report.against.run_ns)
    median = f"qrun {duration(mine.median)}, onnxruntime {duration(others.median)} a run"
    if found.verdict in UNDECIDED:
        least = f"minima {duration(mine.low)} and {duration(others.low)}"
        return f"inconclusive: {UNDECIDED[found.verdict]}; {median}, {least}."
    low, high = sorted((mine.median, others.median))
    ratio = f"{ratio_text(high / low)}x as fast" if low else "faster"
    return f"{median}: {ratio}." if found.verdict == "faster" else f"{median}: onnxruntime is {ratio}."


def _blocks(report: ProfileReport, draw: Callable[[float], str] | None) -> Iterator[Block]:
    if not report.rows:
        return
    both = report.against is not None and report.against.node_ns.size > 0
    known = report.machine if any(row.roof_share is not None for row in report.rows) else None
    legends = {"ort/qrun": _with_profiler(report), "roof": roof_text(known) if known else ""}
    legends = {header: text for header, text in legends.items() if text}
    if both and report.by == "op":
        lines = [HEAVIEST, f"all: {_both(report.ran)}", *_overhead(report), *_arithmetic(report)]
        yield Block("By operator, the slower of both first", paired_grid(report), legends=legends, lines=lines)
    elif both:
        yield _groups(report, legends)
    elif report.by == "node":
        title = "Nodes, in graph order" if report.top is None else "Slowest nodes"
        yield Block(title, node_grid(report), legends=legends, lines=list(_below(report)), folds=True)
        yield Block("By operator", operator_grid(report, draw), legends=legends)
    else:
        yield Block("By operator", operator_grid(report, draw), legends=legends, lines=list(_overhead(report)))
    inside = report.profile.last.inside
    if inside:
        title = "Inside nodes, of the last run"
        left = inside_left(inside, report.top)
        grid = inside_grid(inside, sum(e.duration_ns for e in report.profile.last.events), report.top)
        yield Block(title, grid, more=f"{left}   --top all" if left else "")
    reasons = refused_grid(report)
    if reasons.rows:
        yield Block("On the reference kernels", reasons)


def _with_profiler(report: ProfileReport) -> str:
    """That onnxruntime's nodes were not timed in plain runs; "" where they were not timed."""
    ort = report.against
    if ort is None or not ort.profiled_ns or not ort.median_ns:
        return ""
    longer = summary(ort.profiled_ns).median / ort.median_ns
    more = f", which makes a run {ratio_text(longer)} times as long: ort/qrun is too large, most of all for small nodes"
    return f"ort: timed with onnxruntime's profiler{more if longer > 1 + TOLD else ''}"


def _groups(report: ProfileReport, legends: Mapping[str, str]) -> Block:
    shown = ran = report.ran
    title = "Groups of nodes that both ran as a whole, in graph order"
    if report.top is not None:
        title = "Slowest groups of nodes, the slower of both first"
        shown = sorted(ran, key=lambda group: -max(spent(group.mine), spent(group.others)))[: report.top]
    left = [group for group in ran if group not in shown]
    lines = [JOINED] if any(len(group.nodes) > 1 for group in shown) else []
    lines += [f"{plural(len(left), 'more group')}: {_both(left)}   --top all"] if left else []
    lines += [f"all: {_both(ran)}", *_overhead(report), *_arithmetic(report)]
    return Block(title, against_grid(report, shown), legends=legends, lines=lines, folds=True)


def _both(groups: Sequence[GroupTimes]) -> str:
    mine, others = sum(spent(g.mine) for g in groups), sum(spent(g.others) for g in groups)
    return f"qrun {duration(mine)}, onnxruntime {duration(others)}"


def _arithmetic(report: ProfileReport) -> Iterator[str]:
    """Which nodes of a QDQ model onnxruntime computed in integers."""
    found = sorted(report.arithmetics.items(), key=lambda item: -item[1].total())
    counts = [f"{kinds['integer']} of {kinds.total()} {op}" for op, kinds in found]
    if counts:
        yield f"onnxruntime computed in integers: {', '.join(counts)}"


def _below(report: ProfileReport) -> Iterator[str]:
    """What stands under the table of nodes."""
    if any(row.group[1:] for row in report.slowest):
        yield JOINED if report.backend == "ort" else FUSED
    if any(row.step for row in report.slowest):
        yield STEPS
    shown = {id(row) for row in report.slowest}
    rest = [row for row in report.rows if id(row) not in shown]
    if rest:
        share = percent(sum(row.share for row in rest))
        yield f"… {plural(len(rest), 'more node')}, {duration(spent(rest))} ({share})   --top all, --by op, --trace FILE, --json"
    yield from _overhead(report)


def _overhead(report: ProfileReport) -> Iterator[str]:
    """What a plain run takes in addition to its nodes."""
    profile, against = report.profile, report.against
    if against is not None:
        mine, others = (_known(each.overhead_ns) for each in (profile, against))
        yield f"call overhead: qrun {mine}, onnxruntime {others}"
    elif profile.overhead_ns is not None:
        nodes = duration(float(profile.medians.sum()))
        yield f"call overhead {duration(profile.overhead_ns)}: a plain run takes {duration(profile.median_ns)}, its nodes {nodes}"


def _known(ns: float | None) -> str:
    return "unknown" if ns is None else duration(ns)


def roof_text(machine: Machine) -> str:
    """``roof: share of
    83.5 GMAC/s (vpmaddwd ymm, 1 thread) or of 24 to 201 GB/s (memory to cache), whichever bounds``."""
    threads = plural(machine.threads, "thread")
    slow, fast = machine.memory[-1][1] / 1e9, machine.memory[0][1] / 1e9
    return (
        f"roof: share of {machine.int8 / 1e9:.0f} GMAC/s ({machine.instruction}, {threads}; float32 "
        f"{machine.float32 / 1e9:.0f}) or of {slow:.0f} GB/s (memory) to {fast:.0f} GB/s (cache), whichever bounds"
    )


def _bars(screen: Screen, report: ProfileReport) -> Callable[[float], str]:
    names = max((width_of(kind.op) for kind in report.operators), default=0)
    width = BAR if screen.width is None else min(BAR, max(screen.width - names - BESIDE, 10))
    return lambda share: bar(share, width, screen.encoding)
