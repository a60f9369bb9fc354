"""A profile as one JSON document, whose schema is qrun/schemas/profile-1.0.json, and as CSV; and what its reader should
know about the numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from qrun.declare.frozen import keys
from qrun.documents.answers import Samples
from qrun.documents.record import encode
from qrun.report.header import environment, input_fields, model_fields
from qrun.report.nodes import inside_times
from qrun.report.noise import BUSY, HELP, signs
from qrun.report.profilerows import ProfileReport, above_roof, statistics
from qrun.report.text import duration, percent, plural, safe
from qrun.running.profiling import Profile, outliers, summary


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
        "run": _samples(profile.run_ns),
        "profiled_run": _samples(profile.profiled_ns) if profile.profiled_ns else None,
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _samples(samples: Sequence[int]) -> Samples:
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
    """RFC 4180: a record per node, in graph order, or per operator, or per group of nodes; texts in quotes.

    Several values in a field are separated by spaces (indices) or ``; `` (texts); what counts them is a JSON object.
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
"""What begins a formula in a spreadsheet."""


def _plain(value: Any) -> Any:
    """Numbers as they are, true and false as words, nothing as an empty field,
    texts as no spreadsheet computes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = safe(value)
        return f"'{shown}" if shown.startswith(_FORMULA) and shown not in ("inf", "-inf", "nan") else shown
    return "" if value is None else value


Sides = Sequence[tuple[str, Profile]]
"""What a note calls the runtime, and its profile."""

ABOVE = 1.15
"""Share of the roof that says that the roof was measured on a busy machine."""


def notes(report: ProfileReport) -> list[str]:
    """What the reader should know about these numbers; one note for each thing to do about them."""
    sides = [("", report.profile)]
    if report.against is not None:
        sides = [("qrun: ", report.profile), ("onnxruntime: ", report.against)]
    return [*_missing(report), *_cold(sides), *_busy(report, sides)]


def _missing(report: ProfileReport) -> Iterator[str]:
    profile = report.profile
    if report.backend == "onnx-ref" and profile.model.nodes:
        yield "onnx.reference gives whole runs only; per-node time is not available for this backend"
    ort = report.against or (profile if report.backend == "ort" else None)
    if ort is not None and not ort.profiled_ns:
        yield "onnxruntime's profiler does not take this model with these inputs; per-node time is not available for it"
    elif ort is not None:
        yield _coarse(ort, (report.other or report.label).partition(" (")[0])


def _coarse(ort: Profile, name: str) -> str:
    """How far the times of onnxruntime's profiler go."""
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
            f"{plural(len(above), 'node')} above the roof, though it was measured twice (--no-cache measures it anew)"
        )
    if report.machine is not None and report.machine.busy:
        found.append("the roof was measured beside other work, and is not kept")
    if found:
        yield f"{BUSY}: {'; '.join(found)}. {HELP}; more runs (-n) steady only the median of whole runs."
