"""Several models side by side: which documents go together, what the models are called, and what is marked."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.page import Read, check, collected, finding, models, node, profile

from qrun.documents.record import Item
from qrun.report.html.collect import by_model
from qrun.report.html.several import CellValue, Row, comparison_document, names_of

A, B = ({"path": f"{name}.onnx", "sha256": name * 64} for name in "ab")


def document(kind: str, body: dict[str, Any], source: str) -> tuple[str, Item]:
    return kind, Item(body, source)


def test_each_document_goes_to_its_model() -> None:
    both = {"models": [{**check([], model["path"])["models"][0], **model} for model in (A, B)]}
    given = [
        document("check", both, "both.json"),
        document("profile", profile([], model=A), "a.json"),
        document("profile", profile([], model=B), "b.json"),
        document("run", profile([], model=B), "b-run.json"),
        document("profile", profile([], model=A), "a-later.json"),
    ]
    sources = [[item.source for _, item in group] for group in by_model(given)]
    assert sources == [["a.json", "both.json"], ["b.json", "b-run.json", "both.json"], ["a-later.json", "both.json"]]
    assert [[item.source for _, item in group] for group in by_model(given[:1])] == [["both.json"]]


def test_ranked_candidates_are_one_comparison_each() -> None:
    ranked = {"kind": "candidates", "candidates": [{**models(), "quantized": model} for model in (A, B)]}
    groups = by_model([document("compare", ranked, "ranked.json")])
    assert [item["quantized"]["path"].text for ((_, item),) in groups] == ["a.onnx", "b.onnx"]
    assert {item["kind"].text for ((_, item),) in groups} == {"models"}


def test_names_tell_the_models_apart() -> None:
    def named(*paths: str, sources: tuple[str, ...] = ("x.json", "y.json")) -> list[str]:
        return names_of([collected(profile=profile([], model={"path": path})) for path in paths], sources)

    assert named("q/a.onnx", "q/b.onnx") == ["a.onnx", "b.onnx"]
    assert named("q/a.onnx", "f/a.onnx") == ["q/a.onnx", "f/a.onnx"]
    assert named("q/a.onnx", "q/a.onnx") == ["a.onnx (x.json)", "a.onnx (y.json)"]
    assert named("a.onnx", "a.onnx", sources=("x.json", "x.json")) == ["1: a.onnx (x.json)", "2: a.onnx (x.json)"]


@pytest.mark.parametrize(
    ("first", "own", "shown"),
    [
        (CellValue("2", 2), CellValue("3", 3, better=-1), '<b class="error">3</b>'),
        (CellValue("2", 2), CellValue("3", 3, better=1), '<b class="good">3</b>'),
        (CellValue("2", 2), CellValue("3", 3), "<b>3</b>"),
        (CellValue("20", 20), CellValue("21", 21, better=-1, slack=0.1), "21"),
        (CellValue("20", 20), CellValue("23", 23, better=-1, slack=0.1), '<b class="error">23</b>'),
        (CellValue("a"), CellValue("b", better=1), "<b>b</b>"),
        (CellValue("a"), CellValue("a", better=1), "a"),
        (CellValue("a…", whole="ab"), CellValue("a…", whole="ac"), "<b>a…</b>"),
        (CellValue("2", 2), CellValue("3", 3, undecided=True, better=1), "3"),
        (CellValue(), CellValue("3", 3, better=1), "3"),
        (CellValue("3", 3), CellValue(), "-"),
    ],
)
def test_what_differs_is_marked(first: CellValue, own: CellValue, shown: str) -> None:
    assert Row("x", [first, own]).cell(1) == shown


def test_a_finding_that_only_one_model_has_is_none_in_the_other() -> None:
    pages = [
        collected(check=check(found, path))
        for path, found in (("a.onnx", []), ("b.onnx", [finding(), finding()]), ("c.onnx", [finding()]))
    ]
    read = Read(comparison_document(pages, ["a.json", "b.json", "c.json"]))
    assert read.table("rule")[1] == ["QR301 scale-shape (error)", "0", "2", "1"]


def test_nodes_that_differ_most_come_first() -> None:
    pages = [
        collected(profile=profile([node(n, name=f"n{n}", median_ms=time) for n, time in enumerate(times)], model=model))
        for model, times in ((A, (1.0, 5.0, 2.0)), (B, (1.5, 1.0, 2.0)))
    ]
    rows = Read(comparison_document(pages, ["a.json", "b.json"])).table("node")
    assert [row[0] for row in rows] == ["node", "n1", "n0", "n2"]
    assert rows[1][1:] == ["5.00 ms", "1.00 ms"]


@pytest.mark.parametrize(("step", "marked"), [(0.01, True), (1.0, False)])
def test_times_within_the_spread_are_not_marked(step: float, marked: bool) -> None:
    """As the sentence above the table says."""
    pages = []
    for model, median in ((A, 10.0), (B, 5.0)):
        samples = [median + step * (n - 10) for n in range(21)]
        pages.append(collected(profile=profile([], model=model, run={"median_ms": median, "samples_ms": samples})))
    text = comparison_document(pages, ["a.json", "b.json"])
    assert ("b.onnx is faster" in text, '<b class="good">5.00 ms</b>' in text) == (marked, marked)
