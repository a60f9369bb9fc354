#!/usr/bin/env python3
"""Write what is made from the code and the pages: docs/rules.md from the docstrings of the rules; docs/glossary.md from
`qrun explain glossary`; llms.txt from docs/index.md; SKILL.md from the commands' help, `qrun explain`, the schemas and
the questions of docs/index.md.

scripts/docs.py writes them; --check only compares, and exits 1 if one differs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from qrun.checking.rules import RULES
from qrun.cli._base import COMMANDS, Command
from qrun.cli._group import USAGE, group
from qrun.report.catalog import CatalogEntry, catalog
from qrun.report.codes import GROUPS, TOPICS
from qrun.report.glossary import GLOSSARY
from qrun.report.markdown import escape

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ABOUT = USAGE.partition("\n")[0].partition(" - ")[2]
HEAD = """\
# What qrun finds

`qrun check` reports these codes; `qrun explain CODE` prints the same offline. `--select` and `--ignore` take codes,
prefixes such as `QR3`, and names. An error contradicts a specification, or the file; a warning is legal but
likely to surprise; notes are shown with `-v`. Made by `python scripts/docs.py`.
"""
GLOSSARY_HEAD = """\
# Glossary

Words of the screens and of these pages; `qrun explain WORD` prints one offline. Made by `python scripts/docs.py`.

| word | meaning |
| --- | --- |"""
SKILL = """\
---
name: qrun
description: "{about}, with the command qrun. Use it when an int8 model is inaccurate or slow, differs between runtimes or machines, or needs a gate in CI."
---

# qrun

Made by `python scripts/docs.py` from the commands' help and docs/index.md. Read the exit code first, then stdout; add
`--json` for one JSON document. Nothing is sent over the network and no model is changed.

## Which command answers which question

{questions}

## Commands

{commands}

## Inputs

```text
{inputs}
```

## Exit codes

```text
{codes}
```

## JSON

```text
{json}
```

| schema | what |
| --- | --- |
{schemas}

## More, offline

`qrun COMMAND -h` lists all options. `qrun explain NAME` explains a rule (`QR409`), an operator, a cause of a difference
(`qrun explain causes`) or a topic: {topics}.
"""


def rules() -> str:
    """The text of docs/rules.md."""
    parts = [HEAD]
    for prefix in sorted({id[:3] for id in catalog()}):
        entries = [entry for entry in catalog().values() if entry.id.startswith(prefix)]
        parts.append(f"## {prefix}: {GROUPS.get(prefix, prefix)}\n")
        rows = [f"| [{e.id}](#{anchor(e)}) | {e.name} | {e.level} | {escape(e.summary)} |" for e in entries]
        parts.append("\n".join(["| code | name | level | |", "| --- | --- | --- | --- |", *rows]) + "\n")
        parts += [section(entry) for entry in entries]
    return "\n".join(parts)


def anchor(entry: CatalogEntry) -> str:
    return f"{entry.id.lower()}-{entry.name}"


def section(entry: CatalogEntry) -> str:
    rule = RULES.get(entry.id)
    facts = [f"Level: {entry.level}."]
    if rule and rule.stops:
        same = entry.level == "error"
        facts = [
            "Level: error in `qrun check` and `qrun run`."
            if same
            else f"Level: {entry.level} in `qrun check`; error in `qrun run`."
        ]
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


def glossary() -> str:
    """The text of docs/glossary.md: commands and options stand in code."""
    command = re.compile(r"(qrun [a-z]+(?: --[a-z-]+(?: literal| avx2)?| [a-z]+(?= tells))?|--[a-z-]+)")
    rows = ["| `" + word + "` | " + command.sub(r"`\1`", escape(meaning)) + " |" for word, meaning in GLOSSARY.items()]
    return "\n".join([GLOSSARY_HEAD, *rows]) + "\n"


def llms() -> str:
    """The text of llms.txt (llmstxt.org): every page with its first sentence; those for builders are optional."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    parts = [f"# qrun\n\n> {ABOUT}\n\nSKILL.md: which command answers which question, exit codes and JSON schemas.\n"]
    for caption, names in re.findall(r":caption: ([^\n]+)\n:maxdepth: 1\n\n(.*?)\n```", index, re.S):
        lines = [f"- [{title}](docs/{name}.md): {about}" for name in names.split() for title, about in [summary(name)]]
        heading = "Optional" if "internals/" in names else caption
        parts.append("\n".join([f"## {heading}\n", *lines]) + "\n")
    return "\n".join(parts)


def summary(name: str) -> tuple[str, str]:
    """The title of a page, and the first sentence below it."""
    title, _, rest = (DOCS / f"{name}.md").read_text(encoding="utf-8").partition("\n\n")
    lead = rest.partition("\n\n")[0]
    if not re.match(r"\w|`q|`s", lead):
        raise ValueError(f"docs/{name}.md does not begin with a sentence")
    plain = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*", r"\1", lead).split())
    return title.removeprefix("# "), re.split(r"(?<=[.?!])\s+", plain)[0].rstrip(":")


def skill() -> str:
    """The text of SKILL.md."""
    return SKILL.format(
        about=ABOUT.capitalize().replace("onnx", "ONNX"),
        questions="\n".join(questions()),
        commands="\n\n".join(described(name, about) for name, (_, about) in COMMANDS.items()),
        inputs=TOPICS["inputs"],
        codes=TOPICS["exit-codes"],
        json=TOPICS["json"],
        schemas="\n".join(schemas()),
        topics=", ".join(TOPICS),
    )


def questions() -> Iterator[str]:
    """The rows of the table of questions in docs/index.md, without the column of pages."""
    text = (DOCS / "index.md").read_text(encoding="utf-8").partition("| question | command |")
    for line in (text[1] + text[2]).partition("\n\n")[0].splitlines():
        question, command = line.split(" | ")[:2]
        yield f"{question} | {command} |"


def described(name: str, about: str) -> str:
    command = group.get_command(click.Context(group), name)
    assert isinstance(command, Command)
    examples = "\n".join(command.examples)
    return f"`qrun {name}`: {about}" + (f"\n\n```text\n{examples}\n```" if examples else "")


def schemas() -> Iterator[str]:
    for path in sorted((ROOT / "qrun" / "schemas").glob("*.json")):
        yield f"| `qrun/schemas/{path.name}` | {json.loads(path.read_text(encoding='utf-8'))['title']} |"


PAGES = {"docs/rules.md": rules, "docs/glossary.md": glossary, "llms.txt": llms, "SKILL.md": skill}


def main(arguments: list[str]) -> int:
    wrong = 0
    for name, made in PAGES.items():
        path, text = ROOT / name, made()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{name} differs from what it is made of: run python scripts/docs.py", file=sys.stderr)
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
