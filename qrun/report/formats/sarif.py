"""``qrun check`` as SARIF 2.1.0 (OASIS), in the form that GitHub's code scanning reads.

A model is a binary file: every result is placed on line 1, named by its node and tensor as logical locations, and
identified by fingerprints of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qrun.checking.check import Checked, Report
from qrun.checking.rules import Finding
from qrun.report.catalog import CatalogEntry, entry
from qrun.report.check import facts, fingerprints, headline
from qrun.report.codes import GROUPS
from qrun.report.formats._format import Asked, check_format
from qrun.report.json import text

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
REGION = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}


@check_format("sarif", suffix=".sarif")
def sarif(report: Report, asked: Asked) -> str:
    ids = dict.fromkeys(id for model in report.models for id in model.rules)
    ids |= dict.fromkeys(finding.rule for _, finding in report.findings)
    places = {id: number for number, id in enumerate(sorted(ids))}
    results = [
        _result(model, finding, places[finding.rule], fingerprint)
        for (model, finding), fingerprint in zip(report.findings, fingerprints(report), strict=True)
    ]
    run = {
        "tool": tool("qrun check", [_rule(entry(id, report.targets)) for id in places]),
        "columnKind": "utf16CodeUnits",
        "invocations": [{"executionSuccessful": True, "exitCode": int(report.failed)}],
        "artifacts": [{"location": _location(model)} for model in report.models],
        "results": results,
    }
    return sarif_text([run])


def tool(name: str, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The tool of a run: this version of a command, and the rules that it knows."""
    from qrun import __version__

    driver = {"name": "qrun", "fullName": name, "version": __version__, "semanticVersion": __version__, "rules": rules}
    return {"driver": driver}


def sarif_text(runs: Sequence[Mapping[str, Any]]) -> str:
    return text({"$schema": SCHEMA, "version": "2.1.0", "runs": runs}, indent=1) + "\n"


def _rule(found: CatalogEntry) -> dict[str, Any]:
    help_text = "\n\n".join(part for part in (found.text, f"Fix: {found.fix}." if found.fix else "") if part)
    more = {"helpUri": found.spec} if found.spec.startswith("https://") else {}
    return {
        "id": found.id,
        "name": found.name,
        "shortDescription": {"text": found.summary or found.name},
        "fullDescription": {"text": found.text or found.summary or found.name},
        "help": {"text": help_text or found.name},
        **more,
        "defaultConfiguration": {"level": found.level},
        "properties": {"tags": [GROUPS.get(found.id[:3], "qrun")]},
    }


def result(
    rule: tuple[str, int], level: str, text: str, places: Mapping[str, Any], prints: Mapping[str, str], more: Any
) -> dict[str, Any]:
    """rule: its id and its index among the rules; places: the file, and logical locations; prints: fingerprints;
    more: properties."""
    return {
        "ruleId": rule[0],
        "ruleIndex": rule[1],
        "level": level,
        "message": {"text": text},
        "locations": [places],
        "partialFingerprints": prints,
        "properties": more,
    }


def _location(model: Checked) -> dict[str, str]:
    """A relative URI below the source root, or an absolute one."""
    if Path(model.name).is_absolute():
        return {"uri": model.path.as_uri()}
    return {"uri": quote(os.fsencode(model.name)), "uriBaseId": "%SRCROOT%"}


def _result(model: Checked, finding: Finding, rule: int, fingerprint: str) -> dict[str, Any]:
    details = "".join(f"\n{label}: {value}" for label, value in facts(finding))
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": _location(model), "region": REGION}}
    logical = [
        {"name": name, "fullyQualifiedName": name, "kind": kind}
        for name, kind in ((finding.node, "element"), (finding.tensor, "value"))
        if name
    ]
    if logical:
        location["logicalLocations"] = logical
    prints = {"primaryLocationLineHash": f"{fingerprint}:1", "qrunFinding/v1": fingerprint}
    more = {"operator": finding.op, "expected": finding.expected, "got": finding.got}
    return result((finding.rule, rule), finding.level, headline(finding) + details, location, prints, more)
