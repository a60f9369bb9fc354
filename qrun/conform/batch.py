"""The runner of cases in any program that runs many, one after the other."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections import deque
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from qrun.conform.commands import (
    PIECE,
    ROOM,
    SILENT,
    case_folder,
    command_error,
    command_words,
    hide_paths,
    last_line,
    read_outputs,
    shorten,
    silence_error,
    start_error,
)
from qrun.conform.processes import FIRST, Processes
from qrun.conform.runtimes import (
    BATCH,
    CRASHED,
    HUNG,
    NO_FACTS,
    PLACES,
    REFUSED,
    UNSUPPORTED,
    Response,
    exit_text,
)
from qrun.conform.suite import Case

_LOOK = 1.0
"""Seconds after which to look whether a silent program has ended, though another process holds its stdout."""
_ENDING = 2.0
"""Seconds in which a program that closed its stdout may end by itself."""


class BatchRunner:
    """Runs cases in a program that reads a line of JSON for each and answers with one: ``batch:PROGRAM``.

    It reads ``{"id": "...", "model": PATH, "inputs": DIR, "outputs": DIR}``, with paths as in `CommandRunner`, and
    answers ``{}``, ``{"refused": "reason"}`` or ``{"unsupported": "reason"}``, perhaps with the id. Lines that are not
    JSON objects are ignored, up to 1 MiB for a case. A program that ends, hangs, or answers anything else, loses the
    case; the next one starts it again.
    Raises CallError if the text names no program, or a place of `CommandRunner`.
    """

    version = ""
    facts = NO_FACTS

    def __init__(self, processes: Processes, text: str, poison: int = FIRST) -> None:
        self._processes, self._words, self._poison = processes, command_words(BATCH, text), poison
        for place in PLACES:
            if any(place in word for word in self._words):
                raise command_error(BATCH, text, f"{place}; a batch program reads its paths from stdin")
        self._program: _Program | None = None
        self._lost = 0

    def run(self, case: Case, limit: float) -> Response:
        """Run one case. Raises CallError if the program cannot be started, or answers none of the first cases."""
        with case_folder(case) as paths:
            answer = self._ask(case, paths, limit)
            if isinstance(answer, Response):
                return answer
            self._processes.answered = True
            for kind in (REFUSED, UNSUPPORTED):
                if kind in answer:
                    return Response({}, kind, shorten(hide_paths(answer[kind], paths)))
            return read_outputs(case, paths[2])

    def close(self) -> None:
        """End the program."""
        if self._program is not None:
            self._program.end()
            self._program = None

    def _ask(self, case: Case, paths: tuple[Path, ...], limit: float) -> dict[str, Any] | Response:
        """The program's answer, or the response for a case without one. Raises as `run`."""
        request = {"id": case.info.id, **dict(zip(("model", "inputs", "outputs"), map(str, paths), strict=True))}
        while True:
            fresh = self._program is None or not self._program.runs
            if fresh:
                self._start()
            assert self._program is not None
            answer = self._program.ask(request, limit)
            if isinstance(answer, dict):
                return answer
            code, told = self._program.end()
            self._program = None
            if answer or code or fresh:  # else it ended well, as a program may after an answer
                return self._lose(hide_paths(answer, paths), code, hide_paths(told, paths))

    def _start(self) -> None:
        """Start the program. Raises CallError."""
        try:
            self._program = _Program(self._processes, self._words, self._poison)
        except OSError as error:
            raise start_error(BATCH, self._words[0], error) from None

    def _lose(self, answer: str, code: int | None, told: str) -> Response:
        """The response for a case without an answer. Raises CallError if no case of several had one, unless a signal
        ended the program, which is a verdict on it."""
        text = answer or f"{exit_text(code)}{f': {told}' if told else ''}"
        self._lost += 1
        if not self._processes.answered and self._lost >= SILENT and (answer or (code or 0) >= 0):
            raise silence_error(BATCH, self._words, self._lost, f"{text}{f': {told}' if answer and told else ''}")
        return Response({}, HUNG if answer.startswith(NO_ANSWER) else CRASHED, text)


NO_ANSWER = "no answer in"
TWICE = "answered twice"


class _Program:
    """A program that answers requests, one of `processes`. Raises OSError if it cannot be started."""

    def __init__(self, processes: Processes, words: list[str], poison: int) -> None:
        pipe = subprocess.PIPE
        self._processes = processes
        self._process = processes.start(words, poison, stdin=pipe, stdout=pipe, stderr=pipe)
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._in, self._out, self._log = (stream.fileno() for stream in streams if stream is not None)
        for place in (self._in, self._out, self._log):
            os.set_blocking(place, False)
        self._reading = [self._out, self._log]
        self._asked = set[str]()
        self._last: deque[bytes] = deque(maxlen=2)  # a program may write to stderr without end

    @property
    def runs(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def ask(self, request: dict[str, str], limit: float) -> dict[str, Any] | str:
        """Send a request and wait for the answer: an object, or the reason why there is none, "" if the program ended.

        What the program wrote before the request is thrown away, unless it is another answer to an earlier one.
        """
        lines = _Lines("", self._asked)
        while lines.size < ROOM and (data := self._read(self._out)):
            if lines.add(data) is not None:
                return TWICE
        self._asked.add(request["id"])
        lines, end = _Lines(request["id"], self._asked), perf_counter() + limit
        pending = json.dumps(request).encode() + b"\n"
        while (left := end - perf_counter()) > 0:
            ready, writable, _ = select.select(self._reading, [self._in] if pending else [], [], min(left, _LOOK))
            if writable:
                try:
                    pending = pending[os.write(self._in, pending) :]
                except OSError:
                    pending = b""  # the program ended; the end of its stdout follows
            if self._log in ready:
                self._read(self._log)
            if self._out in ready:
                data = self._read(self._out)
                answer = lines.add(data)
                if answer is not None or not data:
                    return "" if answer is None else answer
                if lines.size > ROOM:
                    return f"wrote {ROOM} bytes and no answer"
            elif not ready and not self.runs:
                return ""
        return f"{NO_ANSWER} {limit:g} s"

    def end(self) -> tuple[int | None, str]:
        """End the process group. Returns the exit code, None if the process had to be killed, and the last line on its
        stderr."""
        code = None
        if self._out not in self._reading:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_ENDING)
        else:
            code = self._process.poll()
        self._processes.end(self._process)
        self._read(self._log)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        return code, last_line(self._last)

    def _read(self, place: int) -> bytes:
        """Read what stdout or stderr holds at once, b"" at its end."""
        try:
            data = os.read(place, PIECE)
        except BlockingIOError:
            return b""
        if not data and place in self._reading:
            self._reading.remove(place)
        if place == self._log and data:
            self._last.append(data)
        return data


class _Lines:
    """Finds the answer to the request `id` in what a program writes to stdout. asked: the ids up to now; size: the
    bytes so far."""

    def __init__(self, id: str, asked: set[str]) -> None:
        self._id, self._asked, self._rest = id, asked, b""
        self.size = 0

    def add(self, data: bytes) -> dict[str, Any] | str | None:
        """Add bytes. Returns the answer once its line is complete, or what is wrong with it."""
        self.size += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = [answer for line in lines if (answer := self._read_line(line)) is not None]
        return TWICE if len(found) > 1 and isinstance(found[0], dict) else found[0] if found else None

    def _read_line(self, line: bytes) -> dict[str, Any] | str | None:
        """The answer in a line, or what is wrong with it. None for a line that is not a JSON object, and for an answer
        to an earlier request."""
        if not line.lstrip().startswith(b"{"):
            return None
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return None
        id = found.pop("id", self._id)
        if id != self._id:
            return None if isinstance(id, str) and id in self._asked else f"answered for case {shorten(str(id))}"
        ((key, value),) = found.items() if len(found) == 1 else [("", None)]
        if not found or (key == "ok" and value is True) or (key in (REFUSED, UNSUPPORTED) and isinstance(value, str)):
            return found  # type: ignore[no-any-return]
        got = shorten(line.decode(errors="replace"), 100)
        return f'answered \'{got}\', which is none of {{}}, {{"refused": ...}}, {{"unsupported": ...}}'
