"""What scripts/bench.py measures: the networks, their batches, and engines timed in turn on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _batch import batched, images
from _engines import PACKAGES, QDQ_ONLY, Array, Checker, Feeds, Runner, installed, read, same
from _peak import Peak
from _workers import Worker, WorkerError

BURST = 3
STEP = 1 / 255
"""One step of a quantized softmax: outputs of random networks are that small."""


class BenchError(Exception):
    """What makes the benchmark impossible, in one line."""


class Skipped(Exception):
    """Why an engine is not timed: a state of two words at most, and the whole reason."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


@dataclass(frozen=True, slots=True)
class Case:
    network: str
    format: str
    threads: int
    batch: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.network} {self.format}, {threads}, batch {self.batch}"


@dataclass(slots=True)
class Networks:
    """Model files by network, format and batch: those of `folder`, and those made in `scratch`."""

    folder: Path | None
    scratch: Path
    _checked: set[Path] = field(default_factory=set)

    def path(self, name: str, kind: str, batch: int = 1) -> Path:
        """Raises BenchError for a file that is missing and cannot be made."""
        source = self._file(name, f"{kind}.onnx")
        if batch == 1:
            return source
        target = self.scratch / f"{name}-{kind}-b{batch}.onnx"
        if target not in self._checked:
            x = self.input(name)
            if not isinstance(x, np.ndarray):
                raise BenchError(f"{name} has several inputs: batch 1 only")
            self._expand(source, target, x, batch)
            self._checked.add(target)
        return target

    def has(self, name: str, kind: str) -> bool:
        """Whether the file is there, or can be made."""
        if any(folder and (folder / f"{name}-{kind}.onnx").exists() for folder in (self.folder, self.scratch)):
            return True
        try:
            from make_networks import NAMES, formats_of
        except ImportError:
            return False
        return name in NAMES and kind in formats_of(name)

    def takes(self, name: str, kind: str, batch: int) -> bool:
        """Whether the network can be measured with `batch` inputs in a run."""
        try:
            from make_networks import NAMES, takes_batches
        except ImportError:
            return True
        return batch == 1 or name not in NAMES or takes_batches(name, kind)

    def input(self, name: str, batch: int = 1) -> Feeds:
        x = read(self.input_file(name))
        return images(x, batch) if isinstance(x, np.ndarray) else x

    def input_file(self, name: str) -> Path:
        return self._file(name, "x.npy", "x.npz")

    def _file(self, name: str, *endings: str) -> Path:
        """The file with one of these endings."""

        def found() -> Path | None:
            paths = [f / f"{name}-{ending}" for f in (self.folder, self.scratch) if f is not None for ending in endings]
            return next((path for path in paths if path.exists()), None)

        if path := found():
            return path
        try:
            from make_networks import NAMES, make
        except ImportError as error:
            raise BenchError(f"making {name} needs {error.name}: pip install onnx-qrun[dev]") from None
        if name not in NAMES:
            where = f" in {self.folder}" if self.folder else ""
            raise BenchError(f"there is no {name}-{endings[0]}{where}; networks that can be made: {', '.join(NAMES)}")
        make(name, self.scratch)
        return found() or self.scratch / f"{name}-{endings[0]}"

    def _expand(self, source: Path, target: Path, x: Array, batch: int) -> None:
        """Write the batched model; its outputs must be those of single images, of the same engine."""
        batched(source, target, batch)
        engine, many = "ort" if installed("ort") else "reference", images(x, batch)
        with Worker(Runner, engine, source, x, 1, "") as one, Worker(Runner, engine, target, many, 1, "") as all_:
            pairs = zip(one.ask("each", many), all_.ask("outputs"), strict=True)
            if not all(same(a, b) for a, b in pairs):
                raise BenchError(f"{target.name}: a batch of {batch} gives other outputs than {batch} single images")


@dataclass(frozen=True, slots=True)
class Truth:
    """The reference backend's outputs for a model, its multiply-adds, and what is wrong with the native backend."""

    outputs: Sequence[Array]
    macs: int
    wrong: str


class Bench:
    """Times cases. isa: qrun's instruction set, "" if it has none here."""

    def __init__(self, networks: Networks, engines: Sequence[str], rounds: int, cache: str, isa: str) -> None:
        self.networks, self.engines, self.rounds, self.cache, self.isa = networks, engines, rounds, cache, isa
        self._truths: dict[Path, Truth] = {}

    def run(self, case: Case) -> dict[str, Any]:
        """Everything about one case; raises BenchError or WorkerError if the model itself is not usable."""
        path = self.networks.path(case.network, case.format, case.batch)
        x = self.networks.input(case.network, case.batch)
        truth = self.truth(path, x, case.threads)
        with ExitStack() as stack:
            workers: dict[str, Worker] = {}
            found: dict[str, dict[str, Any]] = {}
            for engine in self.engines:
                try:
                    workers[engine], found[engine] = self._open(engine, case, x, truth)
                    stack.enter_context(workers[engine])
                except Skipped as skipped:
                    found[engine] = {"state": skipped.state, "reason": str(skipped)}
            peak = f"peak x {case.threads}"
            if self.isa:
                workers[peak] = stack.enter_context(Worker(Peak, self.isa, case.threads))
            taken, lost = interleaved(workers, self.rounds)
        best = max(taken.pop(peak, []), default=0.0)
        for engine, seconds in taken.items():
            found[engine] |= summary(seconds, truth.macs)
        for engine, reason in lost.items():
            found[engine] = {"state": "crashed", "reason": reason}
        facts = {"model": case.network, "format": case.format, "threads": case.threads, "batch": case.batch}
        return {**facts, "macs": truth.macs, "peak_gmacs": best / 1e9, "engines": found, "ratios": ratios(found)}

    def truth(self, path: Path, x: Feeds, threads: int) -> Truth:
        """Made once per model; the native backend is checked with as many threads as are asked first."""
        if path not in self._truths:
            with Worker(Checker, path, x, self.cache) as checker:
                outputs, macs, wrong = checker.ask("outputs"), checker.ask("macs"), ""
                if "qrun" in self.engines:
                    try:
                        wrong = checker.ask("native", threads)
                    except WorkerError as error:
                        wrong = f"comparing it with the reference backend: {error}"
                self._truths[path] = Truth(outputs, macs, wrong)
        return self._truths[path]

    def _open(self, engine: str, case: Case, x: Feeds, truth: Truth) -> tuple[Worker, dict[str, Any]]:
        """The engine, warm, and what is known of it. Raises Skipped."""
        if not installed(engine):
            raise Skipped("not installed", f"pip install {PACKAGES[engine]}")
        kind = "qdq" if engine in QDQ_ONLY and case.format == "qop" else case.format
        if not self.networks.has(case.network, kind):
            raise Skipped("no file", f"needs {case.network}-{kind}.onnx")
        path = self.networks.path(case.network, kind, case.batch)
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(case.threads)}
        try:
            worker = Worker(Runner, engine, path, x, case.threads, self.cache, environment=threads)
        except WorkerError as error:
            raise Skipped("crashed" if error.dead else "refused", str(error)) from None
        off, size, wrong = judge(engine, worker.ask("outputs"), truth)
        if wrong:
            worker.close()
            raise Skipped("wrong result", wrong)
        return worker, {"state": "ok", "file": path.name, "max_difference": off, "max_output": size}


def judge(engine: str, outputs: Sequence[Array], truth: Truth) -> tuple[float, float, str]:
    """Largest difference to the reference, largest output, and why it is too large ("" if it is not).

    qrun: integers must be equal bit for bit, in all tensors of the graph, floats within 1e-5. Other engines round
    otherwise: a quarter of the largest output.
    """
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(outputs, truth.outputs, strict=True)
    ]
    if any(a.shape != b.shape for a, b in pairs):
        return float("nan"), float("nan"), "another shape"
    off = max((float(np.abs(a - b).max(initial=0)) for a, b in pairs), default=0.0)
    size = max((float(np.abs(b).max(initial=0)) for _, b in pairs), default=0.0)
    if PACKAGES[engine] != "qrun":
        return off, size, "" if off <= size / 4 + STEP else f"differs by {off:.3g}, the largest output is {size:.3g}"
    if engine == "qrun" and truth.wrong:
        return off, size, truth.wrong
    exact = all(same(a, b) for a, b in zip(outputs, truth.outputs, strict=True) if b.dtype.kind in "iu")
    return off, size, "" if exact and off <= 1e-5 * size else f"differs by {off:.3g} from the reference backend"


def interleaved(workers: dict[str, Worker], rounds: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """What bursts of all workers gave; in each round another one begins. Also those that did not live to the end."""
    taken: dict[str, list[float]] = {name: [] for name in workers}
    lost: dict[str, str] = {}
    for index in range(rounds):
        names = list(taken)
        first = index % max(len(names), 1)
        for name in names[first:] + names[:first]:
            try:
                taken[name] += workers[name].ask("burst", BURST)
            except WorkerError as error:
                lost[name] = str(error)
                del taken[name]
    return taken, lost


def summary(seconds: Sequence[float], macs: int) -> dict[str, Any]:
    best = min(seconds)
    shared = {"min_ms": best * 1e3, "median_ms": median(seconds) * 1e3, "runs": len(seconds)}
    return {**shared, "gmacs": macs / best / 1e9}


def share_peaks(results: Sequence[dict[str, Any]]) -> None:
    """Give all cases of a number of threads the best peak measured with it, and each engine its share of that."""
    peaks: dict[int, float] = {}
    for result in results:
        peaks[result["threads"]] = max(result["peak_gmacs"], peaks.get(result["threads"], 0.0))
    for result in results:
        peak = result["peak_gmacs"] = peaks[result["threads"]]
        for engine in result["engines"].values():
            if "gmacs" in engine:
                engine["peak_share"] = engine["gmacs"] / peak if peak else None


def ratios(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """qrun's time divided by each other engine's."""
    timed = {name: found for name, found in engines.items() if "min_ms" in found}
    ours = timed.pop("qrun", None)
    if ours is None:
        return {}
    kinds = ("min", "median")
    return {name: {kind: ours[f"{kind}_ms"] / other[f"{kind}_ms"] for kind in kinds} for name, other in timed.items()}
