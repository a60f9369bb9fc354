"""The runners of cases in any program: one starts it for each case, the other asks one process after case."""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter

from qrun.conform.answers import ROOM, TWICE, Answer, AnswerReader, request_line, shorten
from qrun.conform.processes import FIRST, Processes
from qrun.conform.runtimes import (
    BATCH,
    COMMAND,
    CRASHED,
    HUNG,
    NO_FACTS,
    PLACES,
    REFUSED,
    UNSUPPORTED,
    Response,
    exit_text,
)
from qrun.conform.suite import Case, write_case
from qrun.errors import CallError, QrunError
from qrun.ir import Array
from qrun.ir.tensorfile import read_tensor
from qrun.memory import Budget

ENDS = {0: None, 2: REFUSED, 3: UNSUPPORTED}
"""Exit codes of a command that ran, that refuses the model, and that does not have the operator or type."""
SILENT = 3
"""The number of cases after which a program that has not answered any cannot be run."""
NO_ANSWER = "no answer in"
_PIECE = 1 << 16
"""The most bytes of one read."""
_LOOK = 1.0
"""Seconds after which to look whether a silent program has ended, though another process holds its stdout."""
_ENDING = 2.0
"""Seconds in which a program that closed its stdout may end by itself."""


class ProgramRunner:
    """Runs cases in a program; `CommandRunner` and `BatchRunner` ask it in different ways.

    A case is three paths, the words of PLACES. model: an .onnx file. inputs: a folder with input_0.pb, input_1.pb, ...,
    one TensorProto each, in the order of the graph's inputs. outputs: an empty folder, into which the program writes
    output_0.pb, ...
    """

    version = ""
    facts = NO_FACTS
    kind: str
    """COMMAND or BATCH."""

    def __init__(self, processes: Processes, text: str, poison: int = FIRST) -> None:
        self._processes, self._poison, self._lost = processes, poison, 0
        if sys.platform == "win32":
            raise _command_error(self.kind, text, "Windows, where qrun cannot wait for a program's pipes")
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise _command_error(self.kind, text, str(error)) from None
        if not self._words:
            raise _command_error(self.kind, text, "no program")

    def run(self, case: Case, limit: float) -> Response:
        """Run one case. Raises CallError if the program cannot be started, or answers none of the first cases."""
        with _case_folder(case) as paths:
            answer = self._ask(case, paths, limit)
            if isinstance(answer, Response):
                return answer
            self._processes.answered = True
            for kind, reason in answer.items():
                if kind in (REFUSED, UNSUPPORTED):
                    return Response({}, kind, shorten(_hide_paths(reason, paths)))
            return _read_outputs(case, paths[2])

    def close(self) -> None:
        """End the program, if it runs between cases."""

    def _ask(self, case: Case, paths: Sequence[Path], limit: float) -> Answer | Response:
        """The program's answer to a case, or the response for a case without one. Raises as `run`."""
        raise NotImplementedError

    def _start(self, words: Sequence[str], talks: bool) -> _Process:
        """Start the program. Raises CallError."""
        try:
            return _Process(self._processes, words, self._poison, talks)
        except OSError as error:
            program = words[0]
            raise _command_error(self.kind, program, f"{error.strerror or error}: {program}") from None

    def _lose(self, why: str, code: int | None, last: str) -> Response:
        """The response for a case without an answer. why: the reason, "" if the program ended; code, last: see
        `_Process.end`.

        Raises CallError if no case of several had an answer, unless a signal ended the program: that is a verdict.
        """
        text = why or _end_text(code, last)
        self._lost += 1
        if not self._processes.answered and self._lost >= SILENT and (why or (code or 0) >= 0):
            got = f"no answer to the first {self._lost} cases; the last: {text}{f': {last}' if why and last else ''}"
            raise _command_error(self.kind, " ".join(self._words), got)
        return Response({}, HUNG if why.startswith(NO_ANSWER) else CRASHED, text)


class CommandRunner(ProgramRunner):
    """Runs each case in a process of its own: ``cmd:PROGRAM {model} {inputs} {outputs}``, with the paths for these
    words. The process group is killed in the end.

    Raises CallError if the text does not name all of these places and a program, or another word in braces.
    """

    kind = COMMAND

    def __init__(self, processes: Processes, text: str, poison: int = FIRST) -> None:
        super().__init__(processes, text, poison)
        other = ", ".join(place for place in re.findall(r"(?<!\$)\{\w+\}", text) if place not in PLACES)
        missing = ", ".join(place for place in PLACES if not any(place in word for word in self._words))
        if missing:
            raise _command_error(COMMAND, text, f"no {missing}{f', but {other}' if other else ''}")
        if other:
            raise _command_error(COMMAND, text, f"unknown: {other}")

    def _ask(self, case: Case, paths: Sequence[Path], limit: float) -> Answer | Response:
        words = self._words
        for place, path in zip(PLACES, paths, strict=True):
            words = [word.replace(place, str(path)) for word in words]
        process = self._start(words, talks=False)
        ended = process.wait(limit)
        code, last = process.end()
        last = _hide_paths(last, paths)
        if not ended:
            return self._lose(f"{NO_ANSWER} {limit:g} s", code, last)
        self._processes.answered = True
        if code not in ENDS:
            return Response({}, CRASHED, _end_text(code, last))
        kind = ENDS[code]
        return {kind: last or exit_text(code)} if kind else {}


class BatchRunner(ProgramRunner):
    """Runs cases in a program that reads a line of JSON for each and answers with one: ``batch:PROGRAM``.

    It reads ``{"id": "...", "model": PATH, "inputs": DIR, "outputs": DIR}`` and answers as `AnswerReader` says. A
    program that ends, hangs, or answers anything else, loses the case; the next one starts it again.
    Raises CallError if the text names no program, or one of PLACES.
    """

    kind = BATCH

    def __init__(self, processes: Processes, text: str, poison: int = FIRST) -> None:
        super().__init__(processes, text, poison)
        for place in PLACES:
            if any(place in word for word in self._words):
                raise _command_error(BATCH, text, f"{place}; a batch program reads its paths from stdin")
        self._process: _Process | None = None

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _ask(self, case: Case, paths: Sequence[Path], limit: float) -> Answer | Response:
        request = {"id": case.info.id, **dict(zip(("model", "inputs", "outputs"), map(str, paths), strict=True))}
        while True:
            if self._process is not None and not self._process.runs:
                self.close()
            fresh = self._process is None
            if self._process is None:
                self._process = self._start(self._words, talks=True)
            answer = self._process.ask(request, limit)
            if isinstance(answer, dict):
                return answer
            code, last = self._process.end()
            self._process = None
            if answer or code or fresh:  # else it ended well, as a program may after an answer
                return self._lose(_hide_paths(answer, paths), code, _hide_paths(last, paths))


class _Process:
    """A process of a program, one of `processes`. talks: does it read requests and answer them? Raises OSError if it
    cannot be started."""

    def __init__(self, processes: Processes, words: Sequence[str], poison: int, talks: bool) -> None:
        pipe = subprocess.PIPE if talks else subprocess.DEVNULL
        self._processes = processes
        self._process = processes.start(words, poison, stdin=pipe, stdout=pipe, stderr=subprocess.PIPE)
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._streams = [stream for stream in streams if stream is not None]
        *talk, self._log = (stream.fileno() for stream in self._streams)
        self._in, self._out = talk or (-1, -1)
        for place in (*talk, self._log):
            os.set_blocking(place, False)
        self._reading = [*talk[1:], self._log]
        self._asked = set[str]()
        self._last: deque[bytes] = deque(maxlen=2)  # a program may write to stderr without end

    @property
    def runs(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def wait(self, limit: float) -> bool:
        """Wait for the end of the process and of its stderr. Returns False if the time was over before."""
        end = perf_counter() + limit
        while self._reading and (left := end - perf_counter()) > 0:
            if select.select(self._reading, [], [], left)[0]:
                self._read(self._log)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(end - perf_counter(), 0))
            return not self._reading
        return False

    def ask(self, request: Mapping[str, str], limit: float) -> Answer | str:
        """Send a request and wait for the answer: an object, or the reason why there is none, "" if the program ended.

        What the program wrote before the request is thrown away, unless it is another answer to an earlier one.
        """
        reader = AnswerReader("", self._asked)
        while reader.size < ROOM and (data := self._read(self._out)):
            if reader.add(data) is not None:
                return TWICE
        self._asked.add(request["id"])
        reader, end = AnswerReader(request["id"], self._asked), perf_counter() + limit
        pending = request_line(request)
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
                answer = reader.add(data)
                if answer is not None or not data:
                    return "" if answer is None else answer
                if reader.size > ROOM:
                    return f"wrote {ROOM} bytes and no answer"
            elif not ready and not self.runs:
                return ""
        return f"{NO_ANSWER} {limit:g} s"

    def end(self) -> tuple[int | None, str]:
        """End the process group. Returns the exit code, None if the process had to be killed, and the last line on its
        stderr."""
        code = self._process.poll()
        if code is None and self._out not in self._reading and self._out >= 0:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_ENDING)
        self._processes.end(self._process)
        self._read(self._log)
        for stream in self._streams:
            with suppress(OSError):
                stream.close()
        return code, _last_line(self._last)

    def _read(self, place: int) -> bytes:
        """Read what stdout or stderr holds at once, b"" at its end."""
        try:
            data = os.read(place, _PIECE)
        except BlockingIOError:
            return b""
        if not data and place in self._reading:
            self._reading.remove(place)
        if place == self._log and data:
            self._last.append(data)
        return data


def _last_line(pieces: deque[bytes]) -> str:
    """The last line of text that is not empty, in the last pieces of a program's stderr."""
    lines = [line for line in b"".join(pieces).decode(errors="replace").splitlines() if line.strip()]
    return shorten(lines[-1]) if lines else ""


def _end_text(code: int | None, last: str) -> str:
    """``exit code 7: no such file``. last: see `_Process.end`."""
    return f"{exit_text(code)}{f': {last}' if last else ''}"


@contextmanager
def _case_folder(case: Case) -> Iterator[tuple[Path, Path, Path]]:
    """A temporary folder with a case, as the paths of PLACES."""
    with tempfile.TemporaryDirectory(prefix="qrun-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "out").mkdir()
        write_case(case, folder)
        yield folder / "model.onnx", folder / "test_data_set_0", folder / "out"


def _hide_paths(text: str, paths: Sequence[Path]) -> str:
    """A text with the words of PLACES for their paths, which differ from case to case."""
    for place, path in zip(PLACES, paths, strict=True):
        text = text.replace(str(path), place)
    return text


def _read_outputs(case: Case, folder: Path) -> Response:
    """A case's response from the files that a program wrote."""
    found: dict[str, Array | None] = {}
    budget = Budget(ROOM + 2 * sum(array.nbytes for array in case.expected.values()))
    for index, name in enumerate(case.expected or ["y0"]):
        path = folder / f"output_{index}.pb"
        if not path.exists():
            found[name] = None
            continue
        try:
            found[name] = read_tensor(path, budget)[1]
        except Exception as error:
            why = error.message if isinstance(error, QrunError) else type(error).__name__
            return Response({}, CRASHED, f"{path.name} is not a tensor: {why.replace(str(folder), PLACES[2])}")
    return Response(found)


def _command_error(kind: str, text: str, got: str) -> CallError:
    """The QR005 error of a --runtime option that names a program."""
    return CallError(
        "QR005",
        f"--runtime {kind}{text[:80]}: this command cannot run cases",
        facts=[("expected", " ".join([f"{kind}PROGRAM", *(PLACES if kind == COMMAND else ())])), ("got", got)],
        fixes=["qrun explain conform has the protocol"],
    )
