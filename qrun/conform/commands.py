"""The runner of cases in any program, one process for each case."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from time import perf_counter

from qrun.conform.processes import FIRST, Processes
from qrun.conform.runtimes import (
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

REFUSES, LACKS = 2, 3
"""Exit codes of a program that refuses a model, and of one that does not have the operator or type."""
ROOM = 1 << 20
"""Bytes that a program may write beyond twice the size of the expected outputs."""
SILENT = 3
"""The number of cases after which a program that has not answered any cannot be run."""
PIECE = 1 << 16
"""The most bytes of one read of stderr."""


class CommandRunner:
    """Runs cases in a program: ``cmd:PROGRAM {model} {inputs} {outputs}``.

    model:   path of an .onnx file. inputs: a folder with input_0.pb, input_1.pb, ..., one TensorProto each, in the
             order of the graph's inputs. outputs: an empty folder, into which the program writes output_0.pb, ...
    Raises CallError if the text does not name all of these places and a program, or another word in braces.
    """

    version = ""
    facts = NO_FACTS

    def __init__(self, processes: Processes, text: str, poison: int = FIRST) -> None:
        self._processes, self._words, self._poison = processes, command_words(COMMAND, text), poison
        self._lost = 0
        other = [place for place in re.findall(r"(?<!\$)\{\w+\}", text) if place not in PLACES]
        missing = [place for place in PLACES if not any(place in part for part in self._words)]
        if missing or other:
            lacks, has = f"no {', '.join(missing)}" if missing else "", ", ".join(other)
            raise command_error(COMMAND, text, f"{lacks}, but {has}" if lacks and has else lacks or f"unknown: {has}")

    def run(self, case: Case, limit: float) -> Response:
        """Run one case in a new process group, which is killed as a whole in the end. Raises CallError if the program
        cannot be started, or hangs in each of the first cases."""
        with case_folder(case) as paths:
            places = dict(zip(PLACES, map(str, paths), strict=True))
            command = self._words
            for place, path in places.items():
                command = [part.replace(place, path) for part in command]
            try:
                done, told = self._run_command(command, limit)
            except OSError as error:
                raise start_error(COMMAND, command[0], error) from None
            told = hide_paths(told, paths)
            if done is None:
                text = f"no answer in {limit:g} s"
                self._lost += 1
                if not self._processes.answered and self._lost >= SILENT:
                    raise silence_error(COMMAND, self._words, self._lost, text)
                return Response({}, HUNG, text)
            self._processes.answered = True
            if done:
                kind = {REFUSES: REFUSED, LACKS: UNSUPPORTED}.get(done, CRASHED)
                return Response(
                    {}, kind, told if kind != CRASHED and told else f"{exit_text(done)}{f': {told}' if told else ''}"
                )
            return read_outputs(case, paths[2])

    def close(self) -> None:
        """Do nothing, as nothing runs between cases."""

    def _run_command(self, command: list[str], limit: float) -> tuple[int | None, str]:
        """Run a command. Returns its exit code, None if the time was over, and the last line on its stderr."""
        process = self._processes.start(
            command, self._poison, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        last: deque[bytes] = deque(maxlen=2)  # a program may write to stderr without end
        pieces = iter(partial(os.read, process.stderr.fileno(), PIECE), b"")
        reader = Thread(target=last.extend, args=(pieces,), daemon=True)
        reader.start()
        end = perf_counter() + limit
        reader.join(limit)
        try:
            process.wait(max(end - perf_counter(), 0))
            hung = reader.is_alive()
        except subprocess.TimeoutExpired:
            hung = True
        self._processes.end(process)
        reader.join(1)
        if not reader.is_alive():  # else a process that left the group holds the other end of the pipe
            process.stderr.close()
        return (None, "") if hung else (process.returncode, last_line(last))


def last_line(pieces: deque[bytes]) -> str:
    """The last line of text that is not empty, in the last pieces of a program's stderr."""
    lines = [line for line in b"".join(pieces).decode(errors="replace").splitlines() if line.strip()]
    return shorten(lines[-1]) if lines else ""


@contextmanager
def case_folder(case: Case) -> Iterator[tuple[Path, Path, Path]]:
    """A temporary folder with a case, as the paths of PLACES."""
    with tempfile.TemporaryDirectory(prefix="qrun-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "out").mkdir()
        write_case(case, folder)
        yield folder / "model.onnx", folder / "test_data_set_0", folder / "out"


def hide_paths(text: str, paths: Sequence[Path]) -> str:
    """A text with the words of PLACES for their paths, which differ from case to case."""
    for place, path in zip(PLACES, paths, strict=True):
        text = text.replace(str(path), place)
    return text


def shorten(text: str, most: int = 400) -> str:
    """A text in one line of at most `most` characters."""
    return " ".join(text[: 4 * most].split())[:most]


def read_outputs(case: Case, folder: Path) -> Response:
    """A case's response from the files that a command wrote."""

    found: dict[str, Array | None] = {}
    budget = Budget(ROOM + 2 * sum(array.nbytes for array in case.expected.values()))
    for index, name in enumerate(case.expected or ["y0"]):
        path = folder / f"output_{index}.pb"
        if not path.exists():
            found[name] = None
            continue
        try:
            found[name] = read_tensor(path, budget)[1]
        except QrunError as error:
            told = error.message.replace(str(folder), PLACES[2])
            return Response({}, CRASHED, f"output_{index}.pb is not a tensor: {told}")
        except Exception as error:
            return Response({}, CRASHED, f"output_{index}.pb is not a tensor: {type(error).__name__}")
    return Response(found)


def command_words(kind: str, text: str) -> list[str]:
    """The words of a command. Raises CallError if it has none."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise command_error(kind, text, str(error)) from None
    if not words:
        raise command_error(kind, text, "no program")
    return words


def start_error(kind: str, program: str, error: OSError) -> CallError:
    """The QR005 error of a program that cannot be started."""
    return command_error(kind, program, f"{error.strerror or error}: {program}")


def silence_error(kind: str, words: list[str], lost: int, text: str) -> CallError:
    """The QR005 error of a program without an answer to the first cases. text: how it lost the last of them."""
    return command_error(kind, " ".join(words), f"no answer to the first {lost} cases; the last: {text}")


def command_error(kind: str, text: str, got: str) -> CallError:
    """The QR005 error of a --runtime option that names a program."""
    return CallError(
        "QR005",
        f"--runtime {kind}{text[:80]}: this command cannot run cases",
        facts=[("expected", " ".join([f"{kind}PROGRAM", *(PLACES if kind == COMMAND else ())])), ("got", got)],
        fixes=["qrun explain conform has the protocol"],
    )
