#!/usr/bin/env python3
"""Write the man page docs/qrun.1 from the commands' own help: scripts/man.py;
--check only compares, and exits 1 if it differs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from qrun import __version__
from qrun.cli._base import COMMANDS, Argument, Command
from qrun.cli._group import CLOSING, ENVIRONMENT, USAGE, group
from qrun.report.codes import TOPICS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "qrun.1"


def roff(text: str) -> str:
    """The text as roff prints it: no sign of it is an instruction, and a minus can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))


def page() -> str:
    """The text of the man page."""
    title, _, usage = USAGE.partition("\n\n")
    parts = [
        f'.TH QRUN 1 "" "qrun {__version__}" "User Commands"',
        f".SH NAME\n{roff(title)}",
        ".SH SYNOPSIS\n.B qrun\n.I MODEL\n[\\fIOPTIONS\\fR]\n.br\n.B qrun\n.I COMMAND\n[\\fIOPTIONS\\fR]",
        ".SH EXAMPLES", block(usage.partition("Examples:\n")[2].rstrip()), ".SH COMMANDS",
    ]  # fmt: skip
    for name, (_, about) in COMMANDS.items():
        command = group.get_command(click.Context(group), name)
        assert isinstance(command, Command)
        parts += described(name, about, command)
    parts += [".SH ENVIRONMENT", *(entry(name, about) for name, about in ENVIRONMENT)]
    parts += [".SH EXIT STATUS", block(TOPICS["exit-codes"]), ".SH NOTES", roff(CLOSING)]
    return "\n".join(parts) + "\n"


def described(name: str, about: str, command: Command) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=click.Context(group, info_name="qrun"))
    yield f".SS qrun {' '.join([name, *command.collect_usage_pieces(context)])}".replace("-", "\\-")
    yield roff(about)
    if command.examples:
        yield ".PP"
        yield block("\n".join(command.examples))
    for param in command.get_params(context):
        if isinstance(param, Argument) and param.about:
            yield entry(param.make_metavar(context), param.about)
        elif not isinstance(param, Argument) and (record := param.get_help_record(context)):
            yield entry(*record)
    if command.notes:
        yield f".PP\n{roff(command.notes)}"


def entry(term: str, text: str) -> str:
    """An option, or a variable, with what it is for."""
    return f".TP\n.B {roff(term)}\n{roff(' '.join(text.split()))}"


def block(text: str) -> str:
    """Lines that stay as they are."""
    return f".nf\n{roff(text)}\n.fi"


def main(arguments: Sequence[str]) -> int:
    text = page()
    if "--check" not in arguments:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print("docs/qrun.1 differs from the commands' help: run python scripts/man.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
