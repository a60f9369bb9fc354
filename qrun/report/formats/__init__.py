"""The formats of ``qrun check``. Each is declared by a module here, which is imported when the format is requested."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from qrun.declare.registry import sources
from qrun.errors import CallError, close_matches
from qrun.report.formats._format import FORMATS, Asked, check_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qrun.checking.check import Report
    from qrun.report.screen import Screen


@cache
def suffixes() -> Mapping[str, str]:
    """The suffix of every format, ``full`` first; "" if it has none. It reads sources and imports no format."""
    text = b"\n".join(sources(__name__).values()).decode()
    found = re.findall(r'^@check_format\(\s*"(\w+)"(?:[^)]*suffix="([^"]+)")?', text, re.M)
    named = dict(found or [(made.name, made.suffix) for made in FORMATS.values()])
    return {name: named[name] for name in sorted(named, key=lambda name: (name != "full", name))}


def target(spec: str, known: Mapping[str, str]) -> tuple[str, str]:
    """Splits ``FILE`` or ``FORMAT=FILE`` into format and file. known: suffixes by format. Raises CallError if there is
    no such format."""
    name, sign, file = spec.partition("=")
    if sign and name in known and file:
        return name, file
    end = ".sarif" if spec.endswith(".sarif.json") else Path(spec).suffix.lower()
    if end in known.values() and end:
        return next(format for format, suffix in known.items() if suffix == end), spec
    usual = "sarif" if "sarif" in known else next(iter(known))
    fix = f"-o {usual}={spec} names the format"
    if sign and file:
        near = close_matches(name, known)
        fix = f"did you mean -o {near[0]}={file}?" if near else f"-o {usual}={file}, or another format before ="
    expected = f"a file with the suffix {' '.join(filter(None, known.values()))}, or FORMAT=FILE"
    facts = [("expected", expected), ("formats", ", ".join(known))]
    raise CallError("QR005", f"-o {spec}: the format is not known", facts=facts, fixes=[fix])


def print_report(screen: Screen, format: str, report: Report, asked: Asked) -> None:
    """Prints the report in one format to a stream."""
    found = FORMATS[format]
    if found.draws:
        found.make(screen, report, asked)
    else:
        screen.write(found.make(report, asked).rstrip("\n"), found.unencodable)


def report_text(format: str, report: Report, asked: Asked) -> str:
    """The report as the text of a file."""
    found = FORMATS[format]
    if not found.draws:
        return str(found.make(report, asked))
    from qrun.report.screen import render

    return render(lambda screen: found.make(screen, report, asked))


__all__ = ["FORMATS", "Asked", "check_format", "print_report", "report_text", "suffixes", "target"]
