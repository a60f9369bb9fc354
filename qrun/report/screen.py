"""The streams that reports are written to, each with its own width, colours and characters."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from qrun.declare.frozen import changeable, replace
from qrun.report.grid import GAP, Grid, grid_lines
from qrun.report.text import CI, ELLIPSIS, encodable, no_command, safe, shorten, width_of, words

if TYPE_CHECKING:
    from rich.console import Console

Piece = str | tuple[str, str]
STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
"""Styles of the levels."""
GOOD, BAD, OPEN = "bold green", "bold red", "bold"
"""Styles of a verdict: yes, no, and neither."""
HANGING = "    "
"""Indentation of a formula's second and later lines."""
NAME, PATH, NEXT = "cyan", "dim", "green"
"""Styles of names and code, of paths, and of what the reader can do next."""


class _Log:
    """The log of a CI job: a stream in which no name can act as a command to the job's runner."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(no_command(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Screen:
    """A stream that prints lines and grids.

    terminal: whether it can draw: tables then have a rule below the header.
    width:    columns that lines and tables shall fit into; None: as wide as the text is.
    color:    whether styles become escape codes.
    """

    def __init__(self, stream: IO[str], *, terminal: bool, width: int | None, color: bool) -> None:
        self._bare = stream
        self.stream = cast("IO[str]", _Log(stream)) if any(os.environ.get(name) for name in CI) else stream
        self.terminal = terminal
        self.width = width
        self.color = color
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.ellipsis = ELLIPSIS if encodable(ELLIPSIS, self.encoding) else "..."
        self._console: Console | None = None

    @classmethod
    def of(cls, stream: IO[str] | None, color: str = "auto") -> Screen:
        """Detects a stream's terminal, width (COLUMNS first), and colour (NO_COLOR, FORCE_COLOR, TERM)."""
        if stream is None:
            stream = io.StringIO()
        terminal = _is_terminal(stream)
        draws = terminal and not _is_dumb()
        return cls(stream, terminal=draws, width=_width(stream, terminal), color=_color(terminal, color))

    def clean(self, text: str) -> str:
        return safe(text, self.encoding)

    def shorten(self, text: str, width: int) -> str:
        return shorten(text, width, self.ellipsis)

    def write(self, text: str, unencodable: str = "backslashreplace") -> None:
        """Writes a text unchanged, such as JSON, and a newline. unencodable: as in ``str.encode``."""
        self.stream.write(text.encode(self.encoding, unencodable).decode(self.encoding) + "\n")

    def commands(self, text: str) -> None:
        """Writes lines that are meant as commands to the runner of a CI job."""
        self._bare.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding) + "\n")

    def line(self, *pieces: Piece) -> None:
        """Writes one line; a piece is a text or a (text, style) pair. Never wrapped: the caller knows where to
        break."""
        if not self.color:
            plain = "".join([p if isinstance(p, str) else p[0] for p in pieces])
            self.stream.write(self.clean(plain).rstrip() + "\n")
            return
        parts = [(self.clean(p), "") if isinstance(p, str) else (self.clean(p[0]), p[1]) for p in pieces]
        from rich.text import Text

        text = Text.assemble(*parts)
        text.rstrip()
        self.console.print(text, soft_wrap=True)

    def wrapped(self, first: Piece, rest: Piece, *pieces: Piece) -> None:
        """Writes a paragraph after `first`, later lines after `rest`; it breaks at spaces if the screen has a width.

        Text after three spaces, such as options to type, stays on one line where possible.
        """
        parts = [(self.clean(p), "") if isinstance(p, str) else (self.clean(p[0]), p[1]) for p in pieces]
        text = "".join([part for part, _ in parts])
        head, gap, hint = text.rpartition("   ")
        found = words(text) if self.width is not None else []
        if gap and self.width is not None and _width_of(rest) + width_of(hint) <= self.width:
            found = [*words(head), "", "", hint]
        begin = end = at = 0
        for word in found:
            if end > begin and _width_of(first) + width_of(text[begin : at + len(word)]) > (self.width or 0):
                self.line(first, *_slice(parts, begin, end))
                first, begin = rest, at
            elif end <= begin:
                begin = at
            end = at + len(word)
            at = end + 1
        self.line(first, *_slice(parts, begin, len(text)))

    def paragraphs(self, text: str, indent: str = "") -> None:
        """Wraps each paragraph, with a line between them; one that begins with a space keeps its lines and indent."""
        for number, part in enumerate(text.split("\n\n")):
            if number:
                self.line()
            if part.startswith(" "):
                for line in part.splitlines():
                    text = line.lstrip()
                    first = indent + " " * (len(line) - len(text))
                    self.wrapped(first, first + HANGING, text)
            else:
                self.wrapped(indent, indent, " ".join(part.split()))

    def facts(self, rows: Sequence[tuple[str, str]]) -> None:
        """Writes labels and values, each a paragraph; labels without a value are left out."""
        width = max((len(label) for label, _ in rows), default=0)
        for label, value in rows:
            if value:
                self.wrapped((f"  {label:<{width}}  ", "dim"), " " * (width + 4), value)

    def fits(self, grid: Grid) -> bool:
        """Whether the grid fits unchanged."""
        return self.width is None or grid.fits(self.width)

    def grid(self, grid: Grid) -> Grid:
        """Prints a grid, fitted to the screen, then the columns left out; returns the grid as it was printed."""
        columns = [replace(column, header=self.clean(column.header)) for column in grid.columns]
        grid = Grid(columns, [[self.clean(cell) for cell in row] for row in grid.rows], grid.styles)
        if self.width is not None:
            grid = grid.fit(self.width, self.ellipsis)
        rule = ("─" if encodable("─", self.encoding) else "-") if self.terminal else ""
        for pieces in grid_lines(grid, rule):
            self.line(*pieces)
        if grid.left_out:
            self.wrapped(GAP, GAP, (f"wider terminal or --json: {', '.join(grid.left_out)}", "dim"))
        return grid

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                file=self.stream,
                width=self.width or 10_000,
                height=100,
                color_system="auto" if self.color and self.terminal else "standard" if self.color else None,
                force_terminal=self.color,
                no_color=not self.color,
                markup=False,
                emoji=False,
                highlight=False,
            )
        return self._console


def render(draw: Callable[[Screen], None], width: int | None = None) -> str:
    """Returns as text what `draw` writes to a screen without colour. width: None for as wide as the text is."""
    stream = io.StringIO()
    draw(Screen(stream, terminal=False, width=width, color=False))
    return stream.getvalue()


def _width_of(piece: Piece) -> int:
    return width_of(piece if isinstance(piece, str) else piece[0])


def _slice(pieces: Iterable[tuple[str, str]], begin: int, end: int) -> Iterator[Piece]:
    """The characters from `begin` to `end` of the pieces, with their styles."""
    for text, style in pieces:
        yield text[max(begin, 0) : max(end, 0)], style
        begin, end = begin - len(text), end - len(text)


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def _is_dumb() -> bool:
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def _width(stream: IO[str], terminal: bool) -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return max(int(columns), 20)
    if not terminal:
        return None
    try:
        return max(os.get_terminal_size(stream.fileno()).columns or 80, 20)
    except (OSError, ValueError):
        return 80


def _color(terminal: bool, choice: str) -> bool:
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1":
        return True
    if os.environ.get("TTY_COMPATIBLE") == "0" or _is_dumb():
        return False
    return terminal


class LongWork(Protocol):
    """The work that a command is doing. state: amount done, total if known, and seconds left; None at first."""

    what: str
    unit: str
    state: tuple[int, int | None, float | None] | None


@changeable
class Out:
    """The two streams of a command: the result, and messages. progress: the line about long work, if there is one."""

    result: Screen
    messages: Screen
    quiet: bool = False
    verbose: int = 0
    progress: LongWork | None = None

    @classmethod
    def open(cls, *, color: str = "auto", quiet: bool = False, verbose: int = 0) -> Out:
        return cls(Screen.of(sys.stdout, color), Screen.of(sys.stderr, color), quiet, verbose)

    def note(self, text: str) -> None:
        """Prints a message beside the result; silent with --quiet."""
        if not self.quiet:
            self.messages.wrapped("note: ", "      ", text)

    def wrote(self, *files: str | None) -> None:
        """Says at the end of a command which files it wrote; silent with --quiet, and for stdout (-)."""
        for file in files:
            if file and file != "-" and not self.quiet:
                self.messages.line(f"wrote {file}")

    def notes(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.note(text)
