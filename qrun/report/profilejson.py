"""The report of ``qrun profile`` as one JSON document, whose schema is qrun/schemas/profile-1.0.json, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from qrun.documents.record import encode
from qrun.report.header import environment, input_fields, model_fields
from qrun.report.profilenotes import notes
from qrun.report.profilerows import ProfileReport, statistics
from qrun.report.text import safe
from qrun.running.profiling import Profile, summary


def profile_fields(report: ProfileReport) -> dict[str, Any]:
    """The body of the JSON report; all samples in ms."""
    profile = report.profile
    return {
        "model": model_fields(profile.model),
        "environment": {**environment(report.backend, report.label), "arith": report.arith,
                        "threads_used": report.threads},
        "inputs": input_fields(report.feeds, report.sources),
        "symbols": dict(report.symbols),
        "load_ms": report.load_ns / 1e6,
        **_runs(profile),
        "between_ms": profile.between_ns / 1e6 if report.rows else None,
        "peak_bytes": profile.last.peak_bytes or None,
        "machine": report.machine,
        "nodes": report.rows,
        "operators": report.operators,
        "against": _against(report),
        "notes": notes(report),
        "interrupted": profile.interrupted,
    }  # fmt: skip


def _runs(profile: Profile) -> dict[str, Any]:
    return {
        "prepare_ms": [t / 1e6 for t in profile.prepare_ns],
        "warmup_ms": [t / 1e6 for t in profile.warmup_ns],
        "run": _samples(profile.run_ns),
        "profiled_run": _samples(profile.watched_ns) if profile.watched_ns else None,
    }


def _samples(samples: Sequence[int]) -> dict[str, Any]:
    return {**statistics(summary(samples)), "samples_ms": [t / 1e6 for t in samples]}


def _against(report: ProfileReport) -> dict[str, Any] | None:
    other = report.against
    if other is None:
        return None
    mine, theirs = summary(report.profile.run_ns).median, summary(other.run_ns).median
    return {
        "runtime": report.other, "ratio": theirs / mine if mine else None,
        "verdict": report.against_change.verdict if report.against_change else None, **_runs(other),
        "nodes": report.other_rows, "groups": report.groups, "operators": report.paired,
    }  # fmt: skip


NODE_COLUMNS = (
    "index", "name", "domain", "op", "ran_by", "backend", "why", "group", "inserted", "median_ms", "min_ms", "p90_ms",
    "max_ms", "mean_ms", "sd_ms", "share", "sum", "macs", "gmacs", "bytes", "roof_share", "bound", "outputs",
)  # fmt: skip
GROUP_COLUMNS = ("nodes", "name", "op", "folded", "median_ms", "other_ms", "ratio", "ran_by", "other_ran_by")


def profile_csv(report: ProfileReport) -> str:
    """RFC 4180: a record per node, in graph order, or per operator, or per group of nodes; texts in quotes.

    Several values in a field are separated by spaces (indices) or ``; `` (texts); what counts them is a JSON object.
    """
    if report.against is not None and report.by == "op":
        return _csv(encode(report.paired), ("op", "groups", "nodes", "median_ms", "other_ms", "ratio"))
    if report.against is not None:
        return _csv([
            {**encode(g), "ran_by": "; ".join(n.ran_by for n in g.mine), "nodes": " ".join(map(str, g.nodes)),
             "other_ran_by": "; ".join(n.ran_by for n in g.others)} for g in report.groups], GROUP_COLUMNS)  # fmt: skip
    if report.by == "op":
        columns = ("op", "nodes", "median_ms", "share", "macs", "gmacs", "roof_share", "ran_by")
        return _csv([{**encode(o), "ran_by": json.dumps(o.ran_by)} for o in report.operators], columns)
    records, running = [], 0.0
    for node in report.rows:
        running += node.share
        group = node.group or (() if node.inserted else (node.index,))
        records.append({**encode(node), "sum": running, "outputs": "; ".join(f"{t.type} {list(t.shape)}".replace(", ", ",") for t in node.outputs),
                        "group": " ".join(map(str, group))})  # fmt: skip
    return _csv(records, NODE_COLUMNS)


def _csv(records: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_plain(record[name]) for name in columns])
    return stream.getvalue()


_FORMULA = ("=", "+", "-", "@")
"""What begins a formula in a spreadsheet."""


def _plain(value: Any) -> Any:
    """Numbers as they are, true and false as words, nothing as an empty field, texts as no spreadsheet computes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = safe(value)
        return f"'{shown}" if shown.startswith(_FORMULA) and shown not in ("inf", "-inf", "nan") else shown
    return "" if value is None else value
