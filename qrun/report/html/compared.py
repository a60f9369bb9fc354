"""The JSON report of qrun compare to the fields of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qrun.comparing.documents import Item, damaged
from qrun.report.html.read import items, real, size, text

Fields = dict[str, Any]
MOST = 2000
"""Tensors in a page; of larger comparisons the first."""


def comparison_fields(item: Item | None) -> Fields | None:
    """Of two runtimes on one model, or of a model and what it was quantized to; None without a comparison."""
    if item is None:
        return None
    kind = text(item, "kind")
    if kind == "runtimes":
        return _runtimes(item)
    if kind == "models":
        return _models(item)
    raise damaged(item.source, "a comparison of two runtimes or of two models", kind or "another one",
                  "qrun compare MODEL --against RUNTIME --json, or qrun compare FLOAT MODEL --json, saves one")  # fmt: skip


def _runtimes(item: Item) -> Fields:
    """With the tensors that differ by more than the tolerance."""
    pairs = [(_pair(t), t["equal"].value is True, t["identical"].value is True) for t in items(item, "tensors")]
    differing = [pair for pair, equal, _ in pairs if not equal]
    tolerance = item.find("tolerance")
    return {
        "kind": "runtimes", "sides": [text(side, "label") for side in items(item, "sides")],
        "equal": item["equal"].value is True, "isolate": item["isolate"].value is True, "refused": text(item, "refused"),
        "tolerance": {key: tolerance[key].real for key in tolerance.keys} if tolerance else {},
        "count": len(pairs), "differing": len(differing), "same": sum(same for _, _, same in pairs),
        "outputs": [_pair(output) for output in items(item, "outputs")], "tensors": differing[:MOST],
    }  # fmt: skip


def _pair(item: Item) -> Fields:
    own = item.find("by_itself")
    largest = real(item, "largest_beyond" if item.find("largest_beyond") else "largest")
    return {
        "index": size(item, "node"), "name": text(item, "name"), "op": text(item, "op"), "type": text(item, "type"),
        "elements": item["elements"].size, "differing": item["differing"].size, "largest": largest,
        "max_abs": real(item, "max_abs"), "sqnr_db": real(item, "sqnr_db"),
        "cause": text(own, "cause") if own else "", "text": text(own, "text") if own else "",
    }  # fmt: skip


def _models(item: Item) -> Fields:
    """With the nodes that cost accuracy, dearest first, and every tensor that has a counterpart."""
    kept = item.find("keep_in_float")
    return {
        "kind": "models", "sides": [text(item[side], "path") for side in ("reference", "quantized")],
        "equal": item["equal"].value is True, "runs": item["runs"].size,
        "outputs": [
            {"name": text(o, "name"), **_noise(o), "agreed": size(o, "argmax_agreed"), "decided": size(o, "argmax_total")}
            for o in items(item, "outputs")
        ],
        "costs": [_cost(cost) for cost in items(item, "costs")][:MOST],
        "keep_in_float": [node.text for node in items(kept, "nodes")],
        "tensors": [
            {"index": size(t, "node"), "name": text(t, "tensor"), "reference": text(t, "reference"),
             "cumulated": _noise(t.find("cumulated")), "local": _noise(t.find("local"))}
            for t in items(item, "tensors")
        ][:MOST],
    }  # fmt: skip


def _cost(item: Item) -> Fields:
    name = text(item, "name") or f"{text(item, 'op')}_{item['index'].size}"
    return {
        "index": item["index"].size, "name": name, "op": text(item, "op"), "tensor": text(item, "tensor"),
        "output_sqnr_db": real(item, "output_sqnr_db"), "share": real(item, "share"), "reason": text(item, "reason"),
        "why": text(item, "why"), "local": _noise(item.find("local")),
    }  # fmt: skip


def _noise(item: Item | None) -> Mapping[str, float | None]:
    return {"sqnr_db": real(item, "sqnr_db"), "cosine": real(item, "cosine"), "max_abs": real(item, "max_abs")}
