"""Whole processes, from the shell to the answer, for scripts/bench.py --startup:
qrun's commands and what they are held to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from _bench_cases import BenchError, Networks

COMMAND = "from qrun.cli import command; command()"
"""What the installed command runs."""
SCRIPT = """
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print([y.shape for y in session.run(None, {session.get_inputs()[0].name: numpy.load(sys.argv[2])})])
"""
"""What somebody would write who wants the same answer of onnxruntime."""
SESSION = """
import sys, time
import numpy
from qrun import Session
x = numpy.load(sys.argv[2])
start, used = time.perf_counter(), time.process_time()
session = Session(sys.argv[1])
session.run({session.inputs[0].name: x})
print(time.perf_counter() - start, time.process_time() - used)
"""
PEER_SESSION = """
import sys, time
import numpy, onnxruntime
x = numpy.load(sys.argv[2])
start, used = time.perf_counter(), time.process_time()
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {session.get_inputs()[0].name: x})
print(time.perf_counter() - start, time.process_time() - used)
"""
"""Session and first run of a program that has imported what it needs; both print their seconds, wall and CPU."""
NETWORKS = (("squeezenet", "qdq"), ("resnet50", "qop"), ("densenet121", "qdq"), ("transformer", "dynamic"))
DIGITS = Path(__file__).resolve().parents[1] / "models/digits"
QRUN, EMPTY, PEER, IMPORT = "qrun", "qrun, empty cache", "onnxruntime script", "import onnx"


@dataclass(frozen=True, slots=True)
class Process:
    """One process to be started again and again.

    job:    what it answers; processes of one job are compared.
    name:   who answers it.
    words:  arguments of Python.
    empty:  with a new, empty cache each time, instead of the one that stays.
    within: what counts is a part of the process, whose seconds, wall and CPU, it prints.
    """

    job: str
    name: str
    words: Sequence[str | Path]
    empty: bool = False
    within: bool = False


@dataclass(slots=True)
class Processes:
    """Processes started in turn, each time another one first. warm: the folder of qrun's cache that stays."""

    warm: str
    taken: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)

    def measure(self, processes: Sequence[Process], rounds: int) -> list[dict[str, Any]]:
        """The least milliseconds of each process, wall and CPU, and both by those of the process that it is held to.

        Raises BenchError for a process that fails.
        """
        for process in processes:
            self._once(process)  # fills the caches: qrun's, Python's and the system's
            self._once(process)
        for index in range(rounds):
            first = index % max(len(processes), 1)
            for process in [*processes[first:], *processes[:first]]:
                self.taken.setdefault((process.job, process.name), []).append(self._once(process))
        return [self.row(process, rounds) for process in processes]

    def row(self, process: Process, rounds: int) -> dict[str, Any]:
        row: dict[str, Any] = {"job": process.job, "process": process.name, "rounds": rounds}
        for kind, place in (("wall", 0), ("cpu", 1)):
            row[f"{kind}_ms"] = self._least(process.job, process.name, place) * 1e3
            for other in (PEER, IMPORT):
                if other != process.name and (process.job, other) in self.taken:
                    row[f"{kind}_ratio"] = row[f"{kind}_ms"] / (self._least(process.job, other, place) * 1e3)
        return row

    def _least(self, job: str, name: str, place: int) -> float:
        return min(pair[place] for pair in self.taken[job, name])

    def _once(self, process: Process) -> tuple[float, float]:
        """Wall and CPU seconds of one whole process, or of the part that it times."""
        # in a folder of its own, where no configuration file is found
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
            words = [sys.executable, *map(str, process.words)]
            given = environment(folder if process.empty else self.warm)
            start = perf_counter()
            started = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=given, cwd=folder)
            _, status, used = os.wait4(started.pid, 0)
            taken = perf_counter() - start
            started.returncode = os.waitstatus_to_exitcode(status)
            if started.returncode:
                said.seek(0)
                lines = said.read().decode(errors="replace").split("\n")
                told = [line for line in lines if line.strip()] or ["it ended without a word"]
                raise BenchError(f"{process.job}, {process.name}: {told[-1][:200]}")
            if process.within:
                said.seek(0)
                wall, cpu = map(float, said.read().split()[-2:])
                return wall, cpu
        return taken, used.ru_utime + used.ru_stime


def environment(cache: str, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that keeps its compiled modules, as installed ones are kept."""
    kept = {name: value for name, value in given.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "QRUN_CACHE_DIR": cache}


def runs(title: str, model: Path, x: Path, peer: bool) -> list[Process]:
    """One run of a model, with the whole screen, by a filled and an empty cache; the session and first run of a program
    in Python; if `peer`, onnxruntime's script and session too."""
    model, x, python = model.resolve(), x.resolve(), f"{title}, session and first run"
    words = ["-c", COMMAND, model, "--inputs", x]
    found = [Process(title, QRUN, words), Process(title, EMPTY, words, empty=True)]
    found += [Process(title, PEER, ["-c", SCRIPT, model, x])] if peer else []
    found += [Process(python, QRUN, ["-c", SESSION, model, x], within=True)]
    return found + ([Process(python, PEER, ["-c", PEER_SESSION, model, x], within=True)] if peer else [])


def look_ups() -> list[Process]:
    """Commands that compute nothing; `qrun check` is held to importing onnx."""
    check, model = "qrun check, one small model", DIGITS / "qoperator/model.onnx"
    jobs = ("qrun --help", "qrun explain QR301", "qrun ops")
    answers = [Process(job, QRUN, ["-c", COMMAND, *job.split()[1:]]) for job in jobs]
    judged = Process(check, QRUN, ["-c", COMMAND, "check", model])
    return [*answers, judged, Process(check, IMPORT, ["-c", "import onnx"])]


def processes(networks: Networks, models: Sequence[str], formats: Sequence[str], peer: bool) -> list[Process]:
    """Runs of the repository's network, and of those of NETWORKS that are asked for, or else of the first; look-ups."""
    found = runs("digits qop", DIGITS / "qoperator/model.onnx", DIGITS / "x.npy", peer)
    wanted = [(name, kind) for name, kind in NETWORKS if name in models and kind in formats]
    for name, kind in wanted or [(models[0], formats[0])]:
        found += runs(f"{name} {kind}", networks.path(name, kind), networks.input_file(name), peer)
    return found + look_ups()
