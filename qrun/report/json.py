"""JSON reports: one strict document, versioned by ``schema``; NaN and infinities are the strings nan, inf, -inf."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qrun.documents.record import encode
from qrun.report.answer import Answer
from qrun.report.text import BRACKETS


def document(command: str, argv: Sequence[str], body: Mapping[str, Any], answer: Answer | None = None) -> str:
    """The text of one report of `command`. answer: that of the call; None for a report without a call."""
    from qrun import __version__

    head = {"schema": f"qrun/{command}/1.0", "qrun": __version__, "command": ["qrun", *argv]}
    return text({**head, **(answer.fields(argv) if answer else {}), **body})


def text(value: Any, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """Encodes a value as JSON in ASCII, such that the runner of a CI job finds no command in a log that contains it."""
    made = json.dumps(encode(value), allow_nan=False, ensure_ascii=True, indent=indent, separators=separators)
    return BRACKETS.sub(r"#\\u0023", made)


def failure(command: str, argv: Sequence[str], error: Mapping[str, Any], code: int) -> str:
    title = " ".join(filter(None, ("error", error["code"], error["name"])))
    return document(command, argv, {"error": error}, Answer(code, f"{title}: {error['message']}", error["fixes"]))
