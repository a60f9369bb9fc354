"""The report of ``qrun profile`` as one JSON document, whose schema is qrun/schemas/profile-1.0.json, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qrun.ir.types import type_name
from qrun.report.header import environment, input_fields, model_fields
from qrun.report.nodes import kernel_fields
from qrun.report.profilenotes import notes
from qrun.report.profilerows import GroupRow, NodeRow, ProfileReport, node_rows
from qrun.report.profiletables import ran_by
from qrun.report.text import safe
from qrun.running.profiling import Profile, Summary, summary


def profile_fields(report: ProfileReport) -> dict[str, Any]:
    """The body of the JSON report; all samples in ms."""
    profile, model = report.profile, report.profile.model
    return {
        "model": model_fields(model),
        "environment": {**environment(report.backend, report.label), "arith": report.arith,
                        "threads_used": report.threads},
        "inputs": input_fields(report.feeds, report.sources),
        "symbols": dict(report.symbols),
        "load_ms": report.load_ns / 1e6,
        **_runs(profile),
        "between_ms": profile.between_ns / 1e6 if report.rows else None,
        "peak_bytes": profile.last.peak_bytes or None,
        "machine": None if report.machine is None else asdict(report.machine),
        "nodes": [_node(row) for row in report.rows],
        "operators": [
            {"op": k.op, "nodes": k.nodes, "median_ms": k.median / 1e6, "share": k.share, "macs": k.macs,
             "gmacs": k.gmacs, "roof_share": k.reached, "ran_by": dict(k.ran_by)}
            for k in report.operators
        ],
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
    return {**_summary(summary(samples)), "samples_ms": [t / 1e6 for t in samples]}


def _summary(s: Summary) -> dict[str, float | None]:
    return {
        "median_ms": s.median / 1e6, "min_ms": s.low / 1e6, "p90_ms": s.p90 / 1e6, "max_ms": s.high / 1e6,
        "mean_ms": s.mean / 1e6, "sd_ms": None if s.deviation is None else s.deviation / 1e6,
    }  # fmt: skip


def _node(row: NodeRow) -> dict[str, Any]:
    event, node = row.event, row.node
    return {
        "index": event.index, "name": node.name, "domain": node.domain or "ai.onnx", "op": node.op_type,
        **kernel_fields(event), "inserted": row.inserted, "ran_by": ran_by(row),
        **_summary(row.times), "share": row.share, "macs": event.macs, "gmacs": row.gmacs, "bytes": row.bytes_moved,
        "roof_share": row.reached, "bound": row.roof.bound if row.reached is not None and row.roof else None,
        "samples_ms": [t / 1e6 for t in row.samples],
        "outputs": [{"name": t.name, "type": type_name(t.dtype), "shape": list(t.shape)} for t in event.outputs],
    }  # fmt: skip


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
        "nodes": [_node(row) for row in node_rows(other, report.machine)],
        "groups": [_group(group) for group in report.groups],
        "operators": [
            {"op": row.op, "groups": len(row.groups), "nodes": row.nodes, "median_ms": row.median / 1e6,
             "other_ms": row.other / 1e6, "ratio": row.ratio}
            for row in report.paired
        ],
    }  # fmt: skip


def _group(group: GroupRow) -> dict[str, Any]:
    """One group; `events` are places in the two lists of nodes."""
    return {
        "nodes": list(group.extent.nodes),
        "name": group.node.name if group.node else "",
        "op": group.node.op if group.node else "",
        "folded": group.node is None,
        "median_ms": None if group.median is None else group.median / 1e6,
        "other_ms": None if group.other is None else group.other / 1e6,
        "ratio": group.ratio,
        "events": list(group.extent.first),
        "other_events": list(group.extent.second),
    }


NODE_COLUMNS = (
    "index", "name", "domain", "op", "ran_by", "backend", "why", "group", "inserted", "median_ms", "min_ms", "p90_ms",
    "max_ms", "mean_ms", "sd_ms", "share", "sum", "macs", "gmacs", "bytes", "roof_share", "bound", "outputs",
)  # fmt: skip
OPERATOR_COLUMNS = ("op", "nodes", "median_ms", "share", "macs", "gmacs", "roof_share", "ran_by")
PAIRED_COLUMNS = ("op", "groups", "nodes", "median_ms", "other_ms", "ratio")
GROUP_COLUMNS = ("nodes", "name", "op", "folded", "median_ms", "other_ms", "ratio", "ran_by", "other_ran_by")


def profile_csv(report: ProfileReport) -> str:
    """RFC 4180: a record per node, in graph order, or per operator, or per group of nodes; texts in quotes.

    Several values in a field are separated by spaces (indices) or ``; `` (texts); what counts them is a JSON object.
    """
    fields = profile_fields(report)
    if report.against is not None and report.by == "op":
        return _csv(PAIRED_COLUMNS, fields["against"]["operators"])
    if report.against is not None:
        return _csv(GROUP_COLUMNS, [
            {**_group(g), "ran_by": "; ".join(map(ran_by, g.mine)), "other_ran_by": "; ".join(map(ran_by, g.others)),
             "nodes": " ".join(map(str, g.extent.nodes))} for g in report.groups])  # fmt: skip
    if report.by == "op":
        return _csv(OPERATOR_COLUMNS, [{**o, "ran_by": json.dumps(o["ran_by"])} for o in fields["operators"]])
    records, running = [], 0.0
    for node in fields["nodes"]:
        running += node["share"]
        outputs = "; ".join(f"{t['type']} [{','.join(map(str, t['shape']))}]" for t in node["outputs"])
        group = " ".join(map(str, node.get("group", [] if node["inserted"] else [node["index"]])))
        records.append({**node, "sum": running, "outputs": outputs, "group": group})
    return _csv(NODE_COLUMNS, records)


def _csv(columns: Sequence[str], records: Sequence[dict[str, Any]]) -> str:
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
