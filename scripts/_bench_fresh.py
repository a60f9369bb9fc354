"""Start-up times and peak memory of scripts/bench.py: engines in new processes, in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from _bench_cases import BenchError, Networks
from _engines import QDQ_ONLY, installed
from _workers import TIMEOUT

SCRIPT = Path(__file__).with_name("_fresh.py")
RUNS = 6


@dataclass(frozen=True, slots=True)
class Fresh:
    """Engines with one network, each time in a new process. warm: a folder of qrun's kernels that stays."""

    networks: Networks
    name: str
    format: str
    threads: int
    warm: str

    def startup(self, engines: Sequence[str], times: int) -> list[dict[str, Any]]:
        """Median milliseconds of each engine, of qrun with an empty and a filled cache.

        setup_ms: making the session and the first run, less a later run: all that happens once.
        """
        reasons = {engine: self._reason(engine) for engine in engines}
        usable = [engine for engine in engines if not reasons[engine]]
        ways = [(e, w) for e in usable for w in (("empty cache", "filled cache") if e == "qrun" else ("",))]
        taken: dict[tuple[str, str], list[dict[str, float]]] = {way: [] for way in ways}
        for index in range(times):
            first = index % max(len(ways), 1)
            for engine, way in ways[first:] + ways[:first]:
                taken[engine, way].append(_spans(self._once(engine, empty=way == "empty cache")))
        facts = {"model": self.name, "format": self.format, "threads": self.threads}
        rows: list[dict[str, Any]] = []
        for (engine, way), spans in taken.items():
            middle = {key: median(span[key] for span in spans) for key in spans[0]}
            rows.append({**facts, "engine": engine, "cache": way, "times": times, **middle})
        return rows + [{**facts, "engine": e, "cache": "", "state": why} for e, why in reasons.items() if why]

    def memory(self, engines: Sequence[str], times: int) -> list[dict[str, Any]]:
        """The largest resident set of a process that loads the network and runs it a few times,
        the least of `times`."""
        rows = []
        for engine in engines:
            row = {"model": self.name, "format": self.format, "threads": self.threads, "engine": engine}
            try:
                found = [self._once(engine) for _ in range(times)]
                base, most = min(f["base"] for f in found), min(f["peak"] for f in found)
                rows.append({**row, "imports_mib": base / 2**20, "peak_mib": most / 2**20})
            except BenchError as reason:
                rows.append({**row, "state": str(reason)})
        return rows

    def _reason(self, engine: str) -> str:
        """Why the engine cannot run, or ""; fills qrun's cache and the system's file cache."""
        try:
            self._once(engine)
        except BenchError as reason:
            return str(reason)
        return ""

    def _once(self, engine: str, empty: bool = False) -> dict[str, Any]:
        """What _fresh.py says, and `process`: seconds from start to end of the whole process."""
        if not installed(engine):
            raise BenchError("not installed")
        path = self.networks.path(self.name, "qdq" if engine in QDQ_ONLY and self.format == "qop" else self.format)
        with tempfile.TemporaryDirectory() as folder:
            cache = folder if empty else self.warm
            words = [
                sys.executable,
                SCRIPT,
                engine,
                path,
                self.networks.input_file(self.name),
                self.threads,
                cache,
                RUNS,
            ]
            threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(self.threads)}
            environment = {**os.environ, **threads}
            start = perf_counter()
            done = subprocess.run(
                [str(w) for w in words], capture_output=True, text=True, timeout=TIMEOUT, env=environment
            )
            taken = perf_counter() - start
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise BenchError(lines[-1][:200] if lines else f"ended with exit code {done.returncode}")
        return {**json.loads(done.stdout.splitlines()[-1]), "process": taken}


def _spans(found: dict[str, Any]) -> dict[str, float]:
    steady = median(found["runs"][1:])
    whole = found["process"] - sum(found["runs"][1:])
    spans = {"create": found["create"], "first_run": found["runs"][0], "later_run": steady}
    spans |= {"setup": found["create"] + found["runs"][0] - steady, "imports": found["imports"], "process": whole}
    return {f"{name}_ms": seconds * 1e3 for name, seconds in spans.items()}
