"""Where two runtimes differ on the model, or what its quantization costs: tensors and nodes with sizes and causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qrun.report.html.tags import HtmlColumn, Markup, Row, table, tag
from qrun.report.html.timing import search, share
from qrun.report.text import number, plural

Fields = Mapping[str, Any]
_PLACE = (HtmlColumn("#", number=True, rising=True), HtmlColumn("tensor", name=True))


def comparison_section(found: Fields) -> Markup:
    parts = [tag("h2", "Comparison", id="comparison"), tag("p", _about(found), class_="about")]
    return tag("section", parts, _runtimes(found) if found["kind"] == "runtimes" else _models(found))


def _about(found: Fields) -> str:
    a, b = found["sides"]
    if found["kind"] == "models":
        return f"{b} against {a}, which it was quantized from; {plural(found['runs'], 'run')}."
    each = f", each node fed the values of {b}" if found["isolate"] else ""
    tolerance = ", ".join(f"{name} {number(value)}" for name, value in found["tolerance"].items() if value)
    within = found["count"] - found["differing"] - found["same"]
    counts = [
        f"{found['differing']} beyond the tolerance ({tolerance})" if tolerance else f"{found['differing']} differ",
        *([f"{within} within it"] if within else []), f"{found['same']} the same bit for bit",
    ]  # fmt: skip
    return f"{a} against {b}{each}. {plural(found['count'], 'tensor')}: {', '.join(counts)}."


def headline(found: Fields) -> tuple[str, str, bool]:
    """The big number, the words below it, and whether the sides are equal."""
    noise = [o["sqnr_db"] for o in found["outputs"] if o["sqnr_db"] is not None]
    worst = f"{min(noise):.1f} dB" if noise else ""
    if found["kind"] == "models":
        return worst or ("equal" if found["equal"] else "differs"), f"SQNR against {found['sides'][0]}", found["equal"]
    against, tensors = f"against {found['sides'][1]}", plural(found["count"], "tensor")
    differing = found["differing"]
    if found["equal"]:
        exact = found["same"] == found["count"]
        return "equal", f"{'bit for bit' if exact else 'within the tolerance'}, {tensors}, {against}", True
    if worst:
        return worst, f"SQNR of the outputs; {differing} of {tensors} differ, {against}", found["equal"]
    return f"{differing} differ", f"of {tensors}, {against}; the outputs are the same", found["equal"]


def _runtimes(found: Fields) -> list[Markup]:
    parts = [tag("p", f"The other side does not run the whole model: {found['refused']}")] if found["refused"] else []
    if found["outputs"]:
        columns = [HtmlColumn("output", name=True), HtmlColumn("type", short=True), HtmlColumn("elements", number=True),
                   HtmlColumn("differ", number=True), HtmlColumn("max abs", number=True), HtmlColumn("SQNR dB", number=True)]  # fmt: skip
        rows = [Row([o["name"], o["type"], *_counts(o), _value(o["max_abs"]), _decibels(o)]) for o in found["outputs"]]
        parts += [tag("h3", "Outputs"), table("outputs", columns, rows, box="narrow")]
    if found["tensors"]:
        parts += [tag("h3", "Tensors that differ"), search("pair-table", "Filter by name, operator or cause", "1 2 9"),
                  tag("div", _pairs(found["tensors"]), id="pair-table")]  # fmt: skip
    return parts


def _pairs(rows: Sequence[Fields]) -> Markup:
    columns = [
        *_PLACE, HtmlColumn("operator", short=True), HtmlColumn("type", short=True), HtmlColumn("elements", number=True),
        HtmlColumn("differ", number=True), HtmlColumn("largest", number=True, about="Of those that differ; integers: steps, else absolute"),
        HtmlColumn("max abs", number=True), HtmlColumn("SQNR dB", number=True), HtmlColumn("cause", short=True),
        HtmlColumn("what is known of it", wide=True),
    ]  # fmt: skip
    made = [
        Row([_index(r), r["name"], r["op"], r["type"], *_counts(r), _value(r["largest"]),
             _value(r["max_abs"]), _decibels(r), r["cause"] or "inherited", r["text"]])
        for r in rows
    ]  # fmt: skip
    return table("tensors that differ", columns, made, sortable=True, box="tall")


def _models(found: Fields) -> list[Markup]:
    parts = []
    if found["outputs"]:
        columns = [HtmlColumn("output", name=True), HtmlColumn("SQNR dB", number=True), HtmlColumn("cosine", number=True),
                   HtmlColumn("max abs", number=True), HtmlColumn("same argmax", number=True)]  # fmt: skip
        rows = [Row([o["name"], _decibels(o), _cosine(o), _value(o["max_abs"]), _agreed(o)]) for o in found["outputs"]]
        parts += [tag("h3", "Outputs"), table("outputs", columns, rows, box="narrow")]
    if found["costs"]:
        parts += [tag("h3", "What costs accuracy, dearest first"), _costs(found["costs"])]
    if found["keep_in_float"]:
        parts.append(tag("p", "Worth keeping in float: ", tag("code", ", ".join(found["keep_in_float"])), "."))
    if found["tensors"]:
        parts += [tag("h3", "Tensors, in graph order"), _noises(found["tensors"])]
    return parts


def _costs(rows: Sequence[Fields]) -> Markup:
    columns = [
        HtmlColumn("#", number=True, rising=True), HtmlColumn("node", name=True), HtmlColumn("operator", short=True),
        HtmlColumn("share", number=True, about="Of the noise at the outputs"),
        HtmlColumn("output SQNR dB", number=True, about="At the outputs, with only this node quantized"),
        HtmlColumn("own SQNR dB", number=True, about="Of the tensor it makes"), HtmlColumn("reason", short=True), HtmlColumn("why", wide=True),
    ]  # fmt: skip
    largest = max((r["share"] or 0 for r in rows), default=0)
    made = [
        Row([str(r["index"]), r["name"], r["op"], share(r["share"], largest), _value(r["output_sqnr_db"], 1),
             _decibels(r["local"]), r["reason"], r["why"]])
        for r in rows
    ]  # fmt: skip
    return table("what costs accuracy", columns, made, sortable=True, box="tall")


def _noises(rows: Sequence[Fields]) -> Markup:
    columns = [*_PLACE, HtmlColumn("of the float model", name=True), HtmlColumn("SQNR dB", number=True),
               HtmlColumn("cosine", number=True), HtmlColumn("max abs", number=True),
               HtmlColumn("own SQNR dB", number=True, about="Of its own quantization alone")]  # fmt: skip
    made = [
        Row([_index(r), r["name"], r["reference"], _decibels(r["cumulated"]),
             _cosine(r["cumulated"]), _value(r["cumulated"]["max_abs"]), _decibels(r["local"])])
        for r in rows
    ]  # fmt: skip
    return table("accuracy of tensors", columns, made, sortable=True, box="tall")


def _index(row: Fields) -> str:
    return "–" if row["index"] is None else str(row["index"])


def _counts(row: Fields) -> tuple[str, str]:
    """All elements, and those that differ by more than the tolerance."""
    return f"{row['elements']:,}", f"{row['differing']:,}"


def _value(value: float | None, digits: int | None = None) -> str:
    return "–" if value is None else number(value) if digits is None else f"{value:.{digits}f}"


def _decibels(row: Fields) -> str:
    return _value(row["sqnr_db"], 1)


def _cosine(row: Fields) -> str:
    return _value(row["cosine"], 6)


def _agreed(row: Fields) -> str:
    return f"{row['agreed']} of {row['decided']}" if row["decided"] else "–"
