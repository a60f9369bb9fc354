"""``qrun check`` as JUnit XML: a test suite per model, a test case per rule and per vector.

A finding below --fail-on is text of a case that passed. A vector that failed for a reason that was not selected is a
skipped case, not one that passed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree as Tree

from qrun.checking.check import Checked, Report
from qrun.checking.rules import Finding
from qrun.report.catalog import entry
from qrun.report.check import facts, headline
from qrun.report.formats._format import Asked, check_format
from qrun.report.text import BRACKETS, safe

_COLONS = re.compile(r"^(\s*):(?=:)", re.MULTILINE)


@check_format("junit", suffix=".xml", unencodable="xmlcharrefreplace")
def junit(report: Report, asked: Asked) -> str:
    suites = [_suite(report, model) for model in report.models]
    root = Tree.Element("testsuites", {"name": "qrun check", **_sums(suites)})
    root.extend(suites)
    return xml_text(root)


def xml_text(root: Tree.Element) -> str:
    """The document, such that the runner of a CI job finds no command in a log that contains it."""
    Tree.indent(root)
    made = Tree.tostring(root, encoding="unicode")
    made = _COLONS.sub(r"\1&#58;", BRACKETS.sub("#&#35;", made))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{made}\n'


def _suite(report: Report, model: Checked) -> Tree.Element:
    by_rule: dict[str, list[Finding]] = {id: [] for id in model.rules}
    for finding in model.findings:
        if not finding.rule.startswith("QR5"):
            by_rule.setdefault(finding.rule, []).append(finding)
    suite = Tree.Element("testsuite", {"name": safe(model.name)})
    for id, findings in by_rule.items():
        case = _case(suite, model, f"{id} {entry(id, report.targets).name}", 0)
        _fill(case, report, findings)
    for vector in model.vectors:
        case = _case(suite, model, vector.name, vector.duration_ns)
        own = [f for f in vector.findings if any(f is kept for kept in model.findings) and f.rule.startswith("QR5")]
        _fill(case, report, own)
        if (vector.status == "skipped" and case.find("failure") is None) or (vector.status == "failed" and not own):
            Tree.SubElement(case, "skipped", {"message": safe(vector.reason)})
    counts = {tag: sum(case.find(found) is not None for case in suite) for tag, found in _KINDS.items()}
    times = {"time": f"{model.duration_ns / 1e9:.3f}"}
    suite.attrib |= {"tests": str(len(suite)), **{k: str(v) for k, v in counts.items()}, **times}
    return suite


_KINDS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _case(suite: Tree.Element, model: Checked, name: str, nanoseconds: int) -> Tree.Element:
    seconds = f"{nanoseconds / 1e9:.3f}"
    return Tree.SubElement(suite, "testcase", {"classname": safe(model.name), "name": safe(name), "time": seconds})


def _fill(case: Tree.Element, report: Report, findings: Sequence[Finding]) -> None:
    failing = [f for f in findings if report.is_failing(f)]
    if failing:
        failure = Tree.SubElement(case, "failure", {"type": failing[0].rule, "message": headline(failing[0])})
        failure.text = "\n\n".join(map(_block, failing))
    others = [f for f in findings if not report.is_failing(f)]
    if others:
        Tree.SubElement(case, "system-out").text = "\n\n".join(f"{f.level}: {_block(f)}" for f in others)


def _block(finding: Finding) -> str:
    return "\n".join([headline(finding), *(f"  {label}: {text}" for label, text in facts(finding))])


def _sums(suites: Iterable[Tree.Element]) -> Mapping[str, str]:
    found = list(suites)
    sums = {key: str(sum(int(s.attrib[key]) for s in found)) for key in ("tests", *_KINDS)}
    return {**sums, "time": f"{sum(float(s.attrib['time']) for s in found):.3f}"}
