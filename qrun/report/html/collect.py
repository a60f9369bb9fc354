"""JSON reports of one model to the fields of a page: what is shown, in the units in which it is shown.

The result is the page's machine-readable copy too; qrun/schemas/report-1.0.json is its schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from qrun.checking.rules import LEVELS
from qrun.comparing.documents import Item
from qrun.ir.types import shape_text
from qrun.report.html.compared import comparison_fields
from qrun.report.html.models import MEASURED, Document, Named, of_model, page_model, records
from qrun.report.html.read import items, real, rounded, size, text

Fields = dict[str, Any]
KINDS = ("check", "profile", "run", "compare")
MOST = 2000
"""Nodes in a page, of larger models the slowest; and quantized tensors, of larger models the first."""


def page_fields(documents: Sequence[Document], command: Sequence[str], date: str) -> Fields:
    """Everything that a page shows.

    documents: reports of one model, a later one going before an earlier one of the same kind; besides those of KINDS
               ``quantization``, with one record a tensor under ``tensors``.
    command:   how to make the page again; date: when it was made, as it is shown.
    Raises CallError if a value is of another kind than its schema says, or the reports are of different models.
    """
    from qrun import __version__

    by_kind = dict(documents)
    known = [(kind, item) for kind in MEASURED if (item := by_kind.get(kind))]
    measured, page = [item for _, item in known], page_model(documents)
    return {
        "schema": "qrun/report/1.0", "qrun": __version__, "command": list(command), "date": date,
        "model": _model(known) or _checked_model(by_kind.get("check")),
        "environment": _environment(measured), "inputs": _inputs(measured), "symbols": _symbols(measured),
        "checked": _checked(by_kind, page),
        "time": _time(by_kind), "machine": _machine(by_kind), **_nodes(by_kind),
        "quantization": _tensors(by_kind.get("quantization")),
        "all_tensors": len(list(items(by_kind.get("quantization"), "tensors"))),
        "comparison": comparison_fields(by_kind.get("compare")),
        "notes": [n.text for n in items(by_kind.get("profile"), "notes")],
    }  # fmt: skip


def _model(measured: Sequence[tuple[str, Item]]) -> Fields:
    for kind, item in measured:
        for record in records(kind, item):
            opsets = record.find("opsets")
            return {
                "path": text(record, "path"), "sha256": text(record, "sha256"), "producer": text(record, "producer"),
                "opsets": {name: opsets[name].whole for name in opsets.keys} if opsets else {},
                "nodes": size(record, "nodes"), "bytes": size(record, "bytes"), "form": text(record, "form"),
            }  # fmt: skip
    return {}


def _checked_model(check: Item | None) -> Fields:
    models = list(items(check, "models"))
    if len(models) != 1:
        return {"path": f"{len(models)} models"} if models else {}
    return {**asdict(Named.of(models[0])), "nodes": size(models[0], "nodes")}


def _environment(measured: Sequence[Item]) -> Fields:
    names = ("python", "numpy", "onnx", "machine", "backend", "runtime", "arith")
    for item in measured:
        record = item.find("environment")
        if record:
            return {**{name: text(record, name) for name in names}, "cpus": size(record, "cpus")}
    return {}


def _inputs(measured: Sequence[Item]) -> list[Fields]:
    for item in measured:
        found = [
            {"name": text(i, "name"), "type": text(i, "type"), "shape": list(i["shape"].shape),
             "source": text(i, "source")}
            for i in items(item, "inputs")
        ]  # fmt: skip
        if found:
            return found
    return []


def _symbols(measured: Sequence[Item]) -> dict[str, int]:
    for item in measured:
        record = item.find("symbols")
        if record and record.keys:
            return {name: record[name].size for name in record.keys}
    return {}


def _checked(by_kind: Mapping[str, Item], page: Named | None) -> Fields | None:
    """The findings, worst first, how many rules judged, and what became of the vectors; None if nothing was checked."""
    check, run = by_kind.get("check"), by_kind.get("run")
    if check is not None:
        models = list(items(check, "models"))
        same = models if page is None else of_model(models, page)
        findings = [_finding(f, text(m, "path") if len(same) > 1 else "") for m in same for f in items(m, "findings")]
        rules = len({r.text for m in same for r in items(m, "rules")})
        states = [text(v, "status") for m in same for v in items(m, "vectors")]
    elif run is not None and run.find("findings"):
        findings, rules, states = [_finding(f, "") for f in items(run, "findings")], 0, []
    else:
        return None
    return {
        "rules": rules or None,
        "vectors": {state: states.count(state) for state in dict.fromkeys(states)},
        "findings": sorted(findings, key=lambda f: LEVELS.index(f["level"])),
    }


def _finding(item: Item, path: str) -> Fields:
    names = ("rule", "name", "level", "message", "node", "op", "tensor", "expected", "got", "why", "fix")
    found: Fields = {name: text(item, name) for name in names}
    if found["level"] not in LEVELS:
        found["level"] = "note"
    return {**found, "index": size(item, "index"), **({"model": path} if path else {})}


def _time(by_kind: Mapping[str, Item]) -> Fields | None:
    """Statistics of whole runs, ms; of a single run only the median."""
    profile, run = by_kind.get("profile"), by_kind.get("run")
    if profile is not None:
        record = profile["run"]
        names = ("median_ms", "min_ms", "p90_ms", "max_ms", "mean_ms", "sd_ms")
        return {
            **{name: real(record, name) for name in names}, "runs": len(list(items(record, "samples_ms"))),
            "load_ms": real(profile, "load_ms"), "peak_bytes": size(profile, "peak_bytes"),
        }  # fmt: skip
    if run is not None:
        return {"median_ms": real(run, "time_ms"), "runs": 1, "peak_bytes": size(run, "peak_bytes")}
    return None


def _machine(by_kind: Mapping[str, Item]) -> Fields | None:
    """Peaks in GMAC/s and speeds of reading in GB/s, as `qrun.running.machine.Machine` has them."""
    profile = by_kind.get("profile")
    record = profile.find("machine") if profile else None
    if record is None:
        return None
    names = {"int8": f"int8 {text(record, 'instruction')}".rstrip(), "float32": "float32"}
    peaks = {names[key]: real(record, key) for key in names}
    return {
        "cpu": text(record, "cpu"),
        "roofs": [{"name": name, "gmacs": peak / 1e9} for name, peak in peaks.items() if peak and peak > 0],
        "memory": [{"bytes": size.size, "gbs": speed.real / 1e9} for size, speed in record["memory"] if speed.real > 0],
    }


def _nodes(by_kind: Mapping[str, Item]) -> Fields:
    """The nodes in graph order, the slowest if there are more than MOST, what all of them take, and what a run does."""
    item = by_kind.get("profile") or by_kind.get("run")
    nodes = [_node(n) for n in items(item, "nodes")]
    total = sum(n["median_ms"] or 0 for n in nodes)
    whole = max(total, _run_ms(item)) if item else total
    macs = sum(n["macs"] or 0 for n in nodes)
    ranked = sorted(range(len(nodes)), key=lambda at: -(nodes[at]["median_ms"] or 0))
    kept = [nodes[at] for at in sorted(ranked[:MOST])]
    for node in kept:
        node["share"] = round((node["median_ms"] or 0) / whole, 6) if whole else None
    return {"nodes": kept, "all_nodes": {"count": len(nodes), "sum_ms": total, "run_ms": whole, "macs": macs}}


def _run_ms(item: Item) -> float:
    """The median of the runs that the nodes' times are of, or the time of the one run."""
    runs = item.find("profiled_run") or item.find("run")
    return (real(runs, "median_ms") if runs else real(item, "time_ms")) or 0.0


def _node(item: Item) -> Fields:
    median = rounded(real(item, "median_ms" if item.find("median_ms") else "time_ms"))
    macs = size(item, "macs")
    others = len(list(items(item, "group"))) - 1
    outputs = [f"{text(t, 'type')} {shape_text(t['shape'].shape)}" for t in items(item, "outputs")]
    return {
        "index": item["index"].size, "name": _label(item),
        "op": text(item, "op") + (f" +{others}" if others > 0 else ""),
        "median_ms": median, "p90_ms": rounded(real(item, "p90_ms")), "share": None, "macs": macs,
        "gmacs": round(macs / median / 1e6, 3) if macs and median else None, "bytes": size(item, "bytes"),
        "roof": real(item, "roof_share"), "bound": text(item, "bound"), "kernel": text(item, "ran_by") or _kernel(item), "output": ", ".join(outputs),
    }  # fmt: skip


def _label(item: Item) -> str:
    """A node's name; of one without, ``MaxPool_4``, as everywhere."""
    return text(item, "name") or f"{text(item, 'op')}_{item['index'].size}"


def _kernel(item: Item) -> str:
    """``native y32``, ``native f64 (exact ties)``, ``reference: w is not constant``."""
    backend, why = text(item, "backend"), text(item, "why")
    if backend != "native":
        return f"{backend}: {why}" if why else backend
    parts = [(text(k, "form"), text(k, "why")) for k in items(item, "kernels")]
    return f"native {', '.join(f'{form} ({why})' if why else form for form, why in dict.fromkeys(parts))}".rstrip()


def _tensors(item: Item | None) -> list[Fields] | None:
    if item is None:
        return None
    return [
        {
            "name": text(t, "name"), "index": t["index"].size, "kind": text(t, "kind"), "type": text(t, "type"),
            "shape": list(t["shape"].shape), "scale": _pair(t, "scale"), "zero_point": _pair(t, "zero_point"),
            "size": t["size"].size, "limits": _pair(t, "limits"), "used": _pair(t, "used"),
            "at_low": t["at_low"].size, "at_high": t["at_high"].size,
            "bins": list(t["bins"].shape), "bin_codes": list(t["bin_codes"].shape),
        }
        for t in islice(items(item, "tensors"), MOST)
    ]  # fmt: skip


def _pair(item: Item, key: str) -> list[float | int] | None:
    """Two finite numbers, whole ones as integers; None where there are none."""
    values = [part.real for part in items(item, key)]
    if len(values) != 2 or not all(map(math.isfinite, values)):
        return None
    return [int(v) if v.is_integer() else v for v in values]
