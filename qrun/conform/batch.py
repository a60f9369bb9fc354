"""The runner of cases in any program that runs many, one after the other."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from qrun.conform.commands import (
    PIECE,
    ROOM,
    SILENT,
    command_error,
    command_words,
    last_line,
    place_case,
    read_outputs,
    silence_error,
    start_error,
)
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
from qrun.conform.processes import FIRST, Processes
from qrun.conform.suite import Case

_LONGEST = 1 << 16
"""The most bytes of an answer's line."""
_KEYS = {"id", "ok", REFUSED, UNSUPPORTED}
"""The keys of answers. A JSON object with another key is something that the program logs."""
_LOOK = 1.0
"""Seconds after which to look whether a silent program has ended, though another process holds its stdout."""
_ENDING = 2.0
"""Seconds in which a program that closed its stdout may end by itself."""


class BatchRunner:
    """Runs cases in a program that reads a line of JSON for each and answers with one: ``batch:PROGRAM``.

    It reads ``{"id": "...", "model": PATH, "inputs": DIR, "outputs": DIR}``, with paths as in `CommandRunner`, and
    answers ``{}``, ``{"refused": "reason"}`` or ``{"unsupported": "reason"}``. Other lines are ignored, up to 1 MiB for
    a case. A program that ends or hangs loses the case; the next one starts it again.
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
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lost = 0

    def run(self, case: Case, limit: float) -> Response:
        """Run one case. Raises CallError if the program cannot be started, or answers none of the first cases."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="qrun-", ignore_cleanup_errors=True)
        paths = place_case(case, Path(self._folder.name))
        request = {"id": case.info.id, **dict(zip(("model", "inputs", "outputs"), map(str, paths), strict=True))}
        while True:
            fresh = self._program is None or not self._program.runs
            if fresh:
                self._start()
            assert self._program is not None
            answer = self._program.ask(request, limit)
            if isinstance(answer, dict):
                break
            code, told = self._program.end()
            self._program = None
            if answer or code or fresh:  # else it ended well, as a program may after an answer
                return self._lose(answer, code, told)
        self._processes.answered = True
        for kind in (REFUSED, UNSUPPORTED):
            if kind in answer:
                return Response({}, kind, " ".join(str(answer[kind]).split())[:400])
        if answer.get("ok", True) is not True:
            return Response({}, REFUSED, "")
        return read_outputs(case, paths[2])

    def close(self) -> None:
        """End the program and remove the folder, into which a process that it started may still write."""
        if self._program is not None:
            self._program.end()
            self._program = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        """Start the program. Raises CallError."""
        try:
            self._program = _Program(self._processes, self._words, self._poison)
        except OSError as error:
            raise start_error(BATCH, self._words[0], error) from None

    def _lose(self, answer: str, code: int | None, told: str) -> Response:
        """The response for a case without an answer. Raises CallError if no case of several had one, unless a signal
        ended the program, which is a verdict on it."""
        self.close()
        text = answer or f"{exit_text(code)}{f': {told}' if told else ''}"
        self._lost += 1
        if not self._processes.answered and self._lost >= SILENT and (answer or (code or 0) >= 0):
            raise silence_error(BATCH, self._words, self._lost, f"{text}{f': {told}' if answer and told else ''}")
        return Response({}, HUNG if answer.startswith(NO_ANSWER) else CRASHED, text)


NO_ANSWER = "no answer in"


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
        self._last: deque[bytes] = deque(maxlen=2)  # a program may write to stderr without end

    @property
    def runs(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def ask(self, request: dict[str, str], limit: float) -> dict[str, Any] | str:
        """Send a request and wait for the answer: an object, or the reason why there is none, "" if the program ended.

        What the program wrote before the request is thrown away.
        """
        self._read(self._out)
        lines, end = _Lines(request["id"]), perf_counter() + limit
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
                    return answer or ({} if answer is not None else "")
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
    """Finds the answer to the request `id` in what a program writes to stdout. size: the number of bytes so far."""

    def __init__(self, id: str) -> None:
        self._id, self._rest, self._skips = id, b"", False
        self.size = 0

    def add(self, data: bytes) -> dict[str, Any] | None:
        """Add bytes. Returns the answer once its line is complete."""
        self.size += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            skips, self._skips = self._skips, False
            found = None if skips or len(line) > _LONGEST else _answer(line)
            if found is not None and found.get("id", self._id) == self._id:
                return found
        if len(self._rest) > _LONGEST:
            self._rest, self._skips = b"", True
        return None


def _answer(line: bytes) -> dict[str, Any] | None:
    """The answer in a line; None if it has none."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.keys() <= _KEYS else None
