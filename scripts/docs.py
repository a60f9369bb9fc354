#!/usr/bin/env python3
"""Write docs/rules.md from the docstrings of the rules: scripts/docs.py;
--check only compares, and exits 1 if it differs."""

from __future__ import annotations

import sys
from pathlib import Path

from qrun.checking.rules import RULES
from qrun.report.catalog import CatalogEntry, catalog
from qrun.report.codes import GROUPS
from qrun.report.markdown import escape

TARGET = Path(__file__).resolve().parents[1] / "docs" / "rules.md"
HEAD = """\
# What qrun finds

`qrun check` reports these codes; `qrun explain CODE` prints the same offline. `--select` and `--ignore` take codes,
prefixes such as `QR3`, and names. An error contradicts a specification, or the file; a warning is legal and will
surprise; notes are shown with `-v`. Made by `python scripts/docs.py`.
"""


def page() -> str:
    """The text of docs/rules.md."""
    parts = [HEAD]
    for group in sorted({id[:3] for id in catalog()}):
        entries = [entry for entry in catalog().values() if entry.id.startswith(group)]
        parts.append(f"## {group}: {GROUPS.get(group, group)}\n")
        rows = [f"| [{e.id}](#{anchor(e)}) | {e.name} | {e.level} | {escape(e.summary)} |" for e in entries]
        parts.append("\n".join(["| code | name | level | |", "| --- | --- | --- | --- |", *rows]) + "\n")
        parts += [section(entry) for entry in entries]
    return "\n".join(parts)


def anchor(entry: CatalogEntry) -> str:
    return f"{entry.id.lower()}-{entry.name}"


def section(entry: CatalogEntry) -> str:
    rule = RULES.get(entry.id)
    facts = [f"Level: {entry.level}{', an error in a run' if rule and rule.stops else ''}."]
    if rule and rule.runs:
        facts.append("Found while the model runs.")
    if entry.fix:
        facts.append(f"Fix: {escape(entry.fix)}.")
    if entry.spec:
        facts.append(f"[Specification]({entry.spec}).")
    parts = [f"### {entry.id} {entry.name}", escape(entry.text), " ".join(facts)]
    if rule:
        parts += [f"{heading}:\n\n```text\n{rule.sections[heading]}\n```" for heading in ("Bad", "Good")]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" not in arguments:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print("docs/rules.md differs from the rules' docstrings: run python scripts/docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
