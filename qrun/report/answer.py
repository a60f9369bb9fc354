"""What every JSON document says besides its data: the sentence of the screen, what the exit code means, what to type
next."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qrun.declare.frozen import frozen

EXITS: Mapping[int, str] = {
    0: "done, and the answer is yes",
    1: "done, and the answer is no: a finding at or above --fail-on, a difference",
    2: "the command is wrong: unknown option, no such file, missing input",
    3: "the model cannot be read: not ONNX, cut off, external data missing; qrun check reports that as a finding and exits with 1",
    4: "the model is fine, but qrun cannot run it: operator, opset or type",
    5: "the run failed: a limit of memory or time, or a node refused its values",
    70: "a bug in qrun",
    130: "interrupted with Ctrl-C",
    141: "the reader of stdout closed the pipe",
}
"""What each exit code means."""
OPTIONS = re.compile(r"--[a-z]+( \d+)?( --[a-z]+( \d+)?)*")
"""Options at the start of a suggestion: ``--rtol 0 --atol 0 shows why``."""


@frozen
class Answer:
    """The answer of a call.

    verdict: the sentence of the screen. next: commands, and options (``--lsb 0``) to add to this call; of an error, its
    fixes.
    """

    code: int
    verdict: str
    next: Sequence[str] = ()

    def fields(self, argv: Sequence[str]) -> dict[str, Any]:
        """The keys of the document. argv: the call's arguments."""
        again = [f"qrun {shlex.join(argv)} {text}" if OPTIONS.fullmatch(text) else text for text in self.next]
        told = {"code": self.code, "meaning": EXITS[self.code]}
        return {"verdict": self.verdict, "exit": told, "next": again, "exit_code": self.code}


def commands(lines: Iterable[str]) -> list[str]:
    """The commands in lines of a report, each once: three spaces, or the end of the line, end a command."""
    parts = (part.strip() for line in lines for part in line.split("   "))
    return list(dict.fromkeys(part for part in parts if part.startswith("qrun ")))
