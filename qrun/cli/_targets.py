"""``-o [FORMAT=]FILE``: the reports that a command also writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Target = tuple[str, str]
"""Format and file."""


def targets(specs: Sequence[str], suffixes: Mapping[str, str], read: Mapping[str, str]) -> list[Target]:
    """What the options name. suffixes: of each format; read: files of the call that are no targets, and what they are.

    Raises CallError, before the work, for a format that is not known, and for a report that cannot go where it should.
    """
    from qrun.io.outputs import check_trace
    from qrun.report.formats import target

    taken, found = dict(read), []
    for spec in specs:
        format, file = target(spec, suffixes)
        check_trace(file, taken)
        taken[file] = "another report of this call"
        found.append((format, file))
    return found


def write_reports(found: Sequence[Target], text: Callable[[str], str]) -> None:
    """text: of a report in this format."""
    from qrun.io.files import replacing

    for format, file in found:
        with replacing(file) as stream:
            stream.write(text(format).encode("utf-8", "backslashreplace"))
