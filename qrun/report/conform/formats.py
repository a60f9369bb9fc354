"""The file formats of ``qrun conform``: their suffixes, the documents for programs, and one HTML page in the style of
``qrun report``."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as Tree

from qrun.conform.export import place_of
from qrun.conform.results import VERDICTS, CaseResult, Judgement, RuntimeResult
from qrun.conform.runtimes import RUNTIMES
from qrun.documents.record import encode
from qrun.report.conform.sheet import (
    CAUSE_COLUMNS,
    CHANGE_COLUMNS,
    MESSAGE_COLUMNS,
    by_operator,
    conform_sheet,
    describe_call,
    describe_case,
    describe_setup,
    group_causes,
    group_changes,
    group_messages,
    summary,
    verdict_grid,
)
from qrun.report.formats.junit import xml_text
from qrun.report.formats.sarif import REGION, result, sarif_text, tool
from qrun.report.grid import Grid
from qrun.report.html.markup import Markup, facts, html_page, join, table, tag
from qrun.report.json import document
from qrun.report.screen import GOOD, Out, render
from qrun.report.sheet import markdown_lines, print_sheet
from qrun.report.text import percent, safe

LEVELS = {
    "wrong": "error",
    "unstable": "error",
    "accepts-invalid": "warning",
    "ulp": "note",
    "crashed": "error",
    "hung": "error",
    "refused": "warning",
    "choice": "note",
    "unsupported": "note",
}
"""SARIF's level for each verdict."""
EXPORTED = "EXPORTED_SUITE"
"""SARIF's name for a folder that qrun does not know: models are files only there, and a viewer may ask where it is."""


def fields(found: Judgement) -> dict[str, Any]:
    """The body of the JSON document; its schema is qrun/schemas/conform-1.0.json."""
    body: dict[str, Any] = encode(found)
    rows = [(row.pop("cases"), row) for row in body.pop("runtimes")]
    runtimes = [
        {**row, "counts": dict(each.counts), "cases": cases}
        for each, (cases, row) in zip(found.runtimes, rows, strict=True)
    ]
    del body["qrun"]  # the document has it
    return {**body, "runtimes": runtimes}


def _junit(found: Judgement, argv: Sequence[str]) -> str:
    """A test suite per runtime and a test per case. Verdicts of --fail-on are failures; cases that did not run are
    skipped."""
    root = Tree.Element("testsuites", {"name": "qrun conform"})
    for each in found.runtimes:
        about = {"name": safe(each.title), "tests": str(len(each.cases)), "time": f"{each.seconds:.3f}"}
        suite, failures, skipped = Tree.SubElement(root, "testsuite", about), 0, 0
        for case in each.cases:
            name = {"classname": safe(f"{each.name}.{case.operator}"), "name": safe(case.id)}
            test = Tree.SubElement(suite, "testcase", name)
            if case.verdict in found.fail_on:
                failures += 1
                why = {"type": case.cause or case.verdict, "message": safe(describe_case(case))}
                Tree.SubElement(test, "failure", why).text = safe(elements_text(case))
            elif case.verdict in ("refused", "unsupported"):
                skipped += 1
                Tree.SubElement(test, "skipped", {"message": safe(describe_case(case))})
            elif case.verdict != "exact":
                Tree.SubElement(test, "system-out").text = safe(describe_case(case))
        suite.attrib |= {"failures": str(failures), "errors": "0", "skipped": str(skipped)}
    return xml_text(root)


def elements_text(case: CaseResult) -> str:
    """The number of elements that differ, and the first of them."""
    if not case.differing:
        return ""
    first = "; ".join(f"{e.output}{list(e.index)} is {e.got:g}, not {e.expected:g}" for e in case.elements)
    return f"{case.differing} of {case.total} elements differ{f': {first}' if first else ''}"


def _run(each: RuntimeResult, found: Judgement) -> dict[str, Any]:
    """SARIF's run for a runtime, with a result for each case that is not exact."""
    found_cases = [case for case in each.cases if case.verdict != "exact"]
    ids = sorted({case.cause or case.verdict for case in found_cases})
    rules = [
        {"id": id, "name": id, "shortDescription": {"text": id}, "defaultConfiguration": {"level": "error"}}
        for id in ids
    ]
    return {
        "tool": tool(f"qrun conform: {each.title}", rules),
        "automationDetails": {"id": f"qrun-conform/{each.name if each.name in RUNTIMES else 'cmd'}/"},
        "columnKind": "utf16CodeUnits",
        "invocations": [{"executionSuccessful": True, "exitCode": int(found.failed)}],
        "originalUriBaseIds": {
            EXPORTED: {"description": {"text": f"The folder of qrun conform export, suite {found.suite}"}}
        },
        "results": [_result(each, case, ids.index(case.cause or case.verdict)) for case in found_cases],
    }


def _result(each: RuntimeResult, case: CaseResult, rule: int) -> dict[str, Any]:
    fingerprint = hashlib.sha256(f"{each.name}\n{case.id}\n{case.cause or case.verdict}".encode()).hexdigest()[:32]
    name = {"name": case.operator, "fullyQualifiedName": case.id, "kind": "element"}
    more = elements_text(case)
    text = safe(f"{case.id}: {describe_case(case)}") + (f"\n{safe(more)}" if more else "")
    artifact = {"uri": f"{place_of(case)}/model.onnx", "uriBaseId": EXPORTED}
    file = {"artifactLocation": artifact, "region": REGION}
    places = {"physicalLocation": file, "logicalLocations": [name]}
    prints = {"primaryLocationLineHash": f"{fingerprint}:1", "qrunCase/v1": fingerprint}
    about = {
        "verdict": case.verdict,
        "profile": case.profile,
        "rule": case.rule,
        "basis": case.basis,
        "proved": case.proved,
    }
    return result((case.cause or case.verdict, rule), LEVELS[case.verdict], text, places, prints, about)


def _html(found: Judgement, argv: Sequence[str]) -> str:
    """The HTML document; it loads nothing from any address."""
    sheet = conform_sheet(found)
    rows = [
        ("suite", f"{found.suite}, {found.selected} cases"),
        ("made", describe_call(found)),
        ("again", tag("code", shlex.join(["qrun", *argv]))),
    ]
    rows += [("compared with", text) for text in dict.fromkeys(each.baseline for each in found.runtimes) if text]
    tiles = [_tile(each, sheet.style == GOOD) for each in found.runtimes]
    head = tag(
        "header", tag("h1", "Conformance"), facts(rows), tag("p", sheet.verdict), tag("div", tiles, class_="tiles")
    )
    return html_page(
        "qrun conform", [head, tag("main", join((_section(each, found.selected) for each in found.runtimes), "\n"))]
    )


def _tile(each: RuntimeResult, good: bool) -> Markup:
    """The share of exact cases; with a baseline, the number of cases that changed or are new."""
    number, what = (
        (str(len(each.cases)), "changed or new")
        if each.baseline
        else (percent(each.counts["exact"] / max(len(each.cases), 1)), "exact")
    )
    return tag(
        "div", tag("b", number, class_="good" if good else None), tag("span", f"{what}: {each.title}"), class_="tile"
    )


def _section(each: RuntimeResult, selected: int) -> Markup:
    shown = [v for v in VERDICTS if each.counts[v]]
    parts = [tag("h2", each.title), tag("p", summary(each, selected), class_="about")]
    parts += [tag("p", text, class_="about") for text in (describe_setup(each),) if text]
    if each.baseline and each.cases:
        parts += [tag("h3", "Changes"), table("changes", Grid.of(CHANGE_COLUMNS, group_changes(each.cases)))]
        parts.append(tag("h3", "Changed or new cases by operator"))
    if each.cases:
        parts.append(table("operators", verdict_grid("operator", by_operator(each.cases), shown)))
    causes, messages = group_causes(each.cases), group_messages(each.cases)
    if causes:
        parts += [tag("h3", "Causes"), table("causes", Grid.of(CAUSE_COLUMNS, causes))]
    if messages:
        parts += [tag("h3", "Refused and unsupported"), table("messages", Grid.of(MESSAGE_COLUMNS, messages))]
    return tag("section", parts)


FORMATS: Mapping[str, tuple[str, Callable[[Judgement, Sequence[str]], str]]] = {
    "text": (".txt", lambda found, argv: render(lambda screen: print_sheet(Out(screen, screen), conform_sheet(found)))),
    "json": (
        ".json",
        lambda found, argv: (
            document("conform", argv, fields(found), conform_sheet(found).answer(int(found.failed))) + "\n"
        ),
    ),
    "markdown": (".md", lambda found, argv: "\n".join(markdown_lines(conform_sheet(found))) + "\n"),
    "junit": (".xml", _junit),
    "sarif": (".sarif", lambda found, argv: sarif_text([_run(each, found) for each in found.runtimes])),
    "html": (".html", _html),
}
"""Suffix and function of each format."""
