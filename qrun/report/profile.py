"""The report of a profile: the whole model, the slowest nodes, the operators; as text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qrun.cpus import usable_cpus
from qrun.machine import Machine
from qrun.profiling import summary
from qrun.report.grid import Grid, markdown_lines
from qrun.report.header import headline
from qrun.report.nodes import FUSED, fold_prefix
from qrun.report.profilejson import profile_csv, profile_fields
from qrun.report.profilenotes import notes
from qrun.report.profilerows import GroupRow, ProfileReport
from qrun.report.profiletables import against_grid, node_grid, operator_grid, refused_grid, whole_grid
from qrun.report.screen import Out, Screen
from qrun.report.text import bar, duration, percent, plural, width_of

__all__ = ["ProfileReport", "notes", "print_csv", "print_markdown", "print_profile", "profile_fields"]

JOINED = "+N: with N other nodes"
BAR, BESIDE = 44, 62
"""Columns of the longest bar, and of what stands beside it without the operator's name."""


def print_profile(out: Out, report: ProfileReport) -> None:
    screen = out.result
    if not out.quiet:
        label = f"arith {report.arith}" if report.arith != "exact" else ""
        headline(screen, report.profile.model, report.feeds, report.sources, report.symbols, label)
        screen.wrapped("  ", "  ", _how(report))
        screen.line()
    for line in _verdict(report):
        screen.wrapped("", "  ", line)
    screen.line(("Whole model", "bold"))
    screen.grid(whole_grid(report, screen.clean("±")))
    for title, table, after in _sections(report, _bars(screen, report)):
        screen.line()
        screen.line((title, "bold"))
        screen.grid(fold_prefix(screen, table) if table.columns[0].header == "#" else table)
        for line in after:
            screen.wrapped("  ", "  ", line)
    if not out.quiet:
        found = notes(report)
        if found:
            screen.line()
        for note in found:
            screen.wrapped("note: ", "      ", note)


def print_markdown(out: Out, report: ProfileReport) -> None:
    """The report as GitHub Markdown."""
    plain = out.result
    name = plain.clean(report.profile.model.label).replace("`", " ")
    lines = [f"### `{name}`", "", _how(report), ""]
    lines += [part for line in _verdict(report) for part in (line, "")]
    lines += markdown_lines(whole_grid(report, plain.clean("±")))
    for _, table, _ in _sections(report, None):
        rows = [[plain.clean(cell) for cell in row] for row in table.rows]
        lines += ["", *markdown_lines(Grid(table.columns, rows))]
    for note in notes(report):
        lines += ["", f"note: {note}"]
    for line in lines:
        plain.line(line)


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
    runs = plural(len(profile.run_ns), "run") + (" each" if other else "")
    spent = sum(profile.run_ns) + (sum(other.run_ns) if other else 0)
    threads = f", {plural(report.threads, 'thread')}" if report.threads else ""
    return f"{runner}, {prepared}{warm} + {runs} in {duration(spent)}{threads}, {plural(usable_cpus(), 'CPU')}"


def _verdict(report: ProfileReport) -> Iterator[str]:
    """Which runtime is faster, first of all."""
    if report.against is None:
        return
    mine, others = summary(report.profile.run_ns).median, summary(report.against.run_ns).median
    if mine and others:
        fast, slow = ("qrun", "onnxruntime") if mine <= others else ("onnxruntime", "qrun")
        ratio = max(mine, others) / min(mine, others)
        yield f"{fast} is {ratio:.2f} x as fast as {slow}: {duration(mine)} (qrun), {duration(others)} (onnxruntime) a run."
        yield ""


def _sections(report: ProfileReport, draw: Callable[[float], str] | None) -> Iterator[tuple[str, Grid, Sequence[str]]]:
    """Title, table, and lines below it."""
    if not report.rows:
        return
    both = report.against is not None and report.against.node_ns.size > 0
    if both:
        yield _groups(report)
    elif report.by == "node":
        title = "Nodes, in graph order" if report.top is None else "Slowest nodes"
        yield title, node_grid(report), list(_below(report))
    if not both or report.by == "op":
        yield "By operator", operator_grid(report, draw), []
    reasons = refused_grid(report)
    if reasons.rows:
        yield "On the reference kernels", reasons, []


def _groups(report: ProfileReport) -> tuple[str, Grid, Sequence[str]]:
    ran = [group for group in report.groups if group.node is not None]
    shown = ran
    if report.top is not None:
        shown = sorted(ran, key=lambda group: -max(group.median or 0.0, group.other or 0.0))[: report.top]
    left = [group for group in ran if group not in shown]
    below = [JOINED] if any(len(group.extent.nodes) > 1 for group in shown) else []
    below += [f"{plural(len(left), 'more group')}: {_both(left)}   --top all"] if left else []
    below.append(f"all: {_both(ran)}")
    title = (
        "Groups of nodes that both ran as a whole, in graph order" if report.top is None else "Slowest groups of nodes"
    )
    return title, against_grid(report, shown), below


def _both(groups: Sequence[GroupRow]) -> str:
    mine, others = (sum(times) for times in zip(*((g.median or 0.0, g.other or 0.0) for g in groups), strict=True))
    return f"qrun {duration(mine)}, onnxruntime {duration(others)}"


def _below(report: ProfileReport) -> Iterator[str]:
    """What stands under the table of nodes."""
    if any(len(row.event.group) > 1 for row in report.slowest):
        yield JOINED if report.backend == "ort" else FUSED
    if report.machine is not None and any(row.reached is not None for row in report.slowest):
        yield roof_text(report.machine)
    left = len(report.rows) - len(report.slowest)
    if left:
        shown = {id(row) for row in report.slowest}
        rest = [row for row in report.rows if id(row) not in shown]
        spent = sum(row.times.median for row in rest)
        yield f"… {plural(left, 'more node')}, {duration(spent)} ({percent(sum(r.share for r in rest))})   --top all, --by op, --trace FILE, --json"


def roof_text(machine: Machine) -> str:
    """``roof: share of 83.5 GMAC/s (vpmaddwd ymm, 1 thread) or of 24 to 201 GB/s (memory to cache), whichever bounds``."""
    threads = plural(machine.threads, "thread")
    slow, fast = machine.memory[-1][1] / 1e9, machine.memory[0][1] / 1e9
    return (f"roof: share of {machine.int8 / 1e9:.0f} GMAC/s ({machine.instruction}, {threads}; float32 "
            f"{machine.float32 / 1e9:.0f}) or of {slow:.0f} GB/s (memory) to {fast:.0f} GB/s (cache), whichever bounds")  # fmt: skip


def _bars(screen: Screen, report: ProfileReport) -> Callable[[float], str]:
    names = max((width_of(kind.op) for kind in report.operators), default=0)
    width = BAR if screen.width is None else min(BAR, max(screen.width - names - BESIDE, 10))
    return lambda share: bar(share, width, screen.encoding)
