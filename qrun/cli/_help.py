"""The text of --help: lines are broken between words only; on a terminal, headings are bold and names cyan."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import click

from qrun.report.screen import NAME, Screen
from qrun.report.text import wrap

WIDTH = 80
BESIDE = 28
"""The widest name of an option that has its text on the same line."""
OPTION = re.compile(r"(?<!\S)--?\w[\w-]*")
COMMAND = re.compile(r"^( *)(qrun .*?)(?=  |$)")
"""A command to type, at the start of a line and up to its comment."""


class HelpText(click.HelpFormatter):
    """click's formatter with other line breaks and with colours."""

    def __init__(self, ctx: click.Context) -> None:
        screen = Screen.of(sys.stdout)
        super().__init__(width=max(40, min(WIDTH, screen.width or WIDTH)))
        self.color = ctx.color = screen.color

    def style(self, text: str, fg: str | None = None, bold: bool = False) -> str:
        return click.style(text, fg=fg, bold=bold or None) if self.color and text else text

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        start = f"Usage: {prog} "
        self._write_lines(args, start, len(start), f"{self.style('Usage:', bold=True)} {self.style(prog, NAME)} ")

    def write_heading(self, heading: str) -> None:
        self.write(f"{self.style(f'{heading}:', bold=True)}\n")

    def write_text(self, text: str) -> None:
        for number, part in enumerate(text.split("\n\n")):
            self.write("\n" * bool(number))
            self._write_lines(" ".join(part.split()), " " * self.current_indent, self.current_indent)

    def write_lines(self, lines: Iterable[str]) -> None:
        """Writes lines as they are: headings, which end with a colon, and commands, with a comment after two spaces."""
        for line in lines:
            heading = line.endswith(":")
            shown = COMMAND.sub(lambda found: found[1] + self.style(found[2], NAME), line)
            self.write(f"{' ' * self.current_indent}{self.style(line, bold=True) if heading else shown}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = BESIDE, col_spacing: int = 2) -> None:
        rows = list(rows)
        indent = self.current_indent + min(max(len(term) for term, _ in rows), col_max) + col_spacing
        options = any(OPTION.match(term) for term, _ in rows)
        for term, text in rows:
            head = " " * self.current_indent + term
            shown = OPTION.sub(lambda found: self.style(found[0], NAME), term) if options else self.style(term, NAME)
            shown = " " * self.current_indent + shown
            if len(head) + col_spacing > indent:
                self.write(f"{shown}\n")
                head = shown = ""
            self._write_lines(" ".join(text.split()), head.ljust(indent), indent, shown + " " * (indent - len(head)))

    def _write_lines(self, text: str, start: str, indent: int, shown: str | None = None) -> None:
        """Writes a paragraph after `start`, its later lines after `indent` spaces. shown: `start` with its colours."""
        first, *rest = wrap(text, max(self.width - indent, 20))
        self.write(f"{start if shown is None else shown}{first}".rstrip() + "\n")
        for line in rest:
            self.write(f"{' ' * indent}{line}\n")
