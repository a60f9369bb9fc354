"""Session, a model ready to run: its backend, plans and programs, made once and kept."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast, get_args, overload
from weakref import finalize

from qrun.errors import CallError, UnsupportedError, choose
from qrun.ir import Array, Model, TensorType
from qrun.ir.compound import to_runtime
from qrun.memory import Budget, Deadline, default_limit
from qrun.ops import Arith
from qrun.running.cpus import usable_cpus
from qrun.running.derived import SMALL
from qrun.running.engine import cache_refused, make_engine
from qrun.running.events import InsideEvent, NodeEvent, TensorInfo
from qrun.running.execution import RunLimits, RunResult
from qrun.running.kept.models import load_kept
from qrun.running.plan import BACKENDS
from qrun.running.runs import Runs

if TYPE_CHECKING:
    import onnx

    from qrun.native.machine.engine import Engine
    from qrun.running.profiling import Profile, Progress, TimedRunner

__all__ = ["InsideEvent", "NodeEvent", "RunResult", "Session", "TensorInfo"]

DEFAULTS = 8
"""The most sets of replaced defaults whose plans a session keeps; the oldest is dropped."""
T = TypeVar("T")
ARITHMETICS: tuple[Arith, ...] = get_args(Arith)


class Session:
    """A model ready to run.

    model:      a path, the bytes of a file, an onnx.ModelProto, or a loaded Model.
    backend:    ``reference``: exact numpy kernels; ``native``: kernels compiled for this CPU, with the same results,
                for the nodes that have one (the others run on the reference kernels; the events tell). None: native
                where it can run, else reference; then `fallback` says why.
    arith:      ``exact`` (the correctly rounded real value), ``ort`` or ``onnx-ref`` (those runtimes' float
                arithmetic).
    fuse:       run the graph with integer operators in place of DequantizeLinear-operator-QuantizeLinear groups, and
                tables in place of chains of pointwise nodes (qrun.passes says what stays equal); None: unless the
                reference backend is requested.
    threads:    of the native kernels; None: as many as the CPUs that this process may use.
    max_memory: bytes that a run may hold at once: its inputs while it needs them, every tensor that it makes, and its
                results; not the weights, which the model holds. None: 80 % of the free memory. A run that would need
                more is refused with MemoryLimitError, before it takes much if shapes tell.
    max_time:   seconds that a run may take, including the compilation of its kernels; None: no limit. A run that takes
                longer ends with TimeLimitError, after its current node or turn of a loop.
    cache:      where compiled native kernels are kept: True for the folder in the environment variable QRUN_CACHE_DIR,
                or the user's private cache folder, False for nowhere, or a directory. It must be this user's alone.
    isa:        a native instruction set; "" for the one in QRUN_ISA, or the best of this CPU.

    Raises QrunError: CallError, ModelError or UnsupportedError here, RunError in `run`.
    """

    def __init__(
        self,
        model: str | Path | bytes | onnx.ModelProto | Model,
        *,
        backend: str | None = None,
        arith: Arith = "exact",
        fuse: bool | None = None,
        threads: int | None = None,
        max_memory: int | None = None,
        max_time: float | None = None,
        cache: str | os.PathLike[str] | bool = True,
        isa: str = "",
    ) -> None:
        choose("backend", backend or BACKENDS[0], BACKENDS)
        choose("arith", arith, ARITHMETICS)
        if max_memory is not None and (not isinstance(max_memory, int) or max_memory < 0):
            raise _bad_argument("max_memory", "a number of bytes, or None", max_memory)
        if max_time is not None and (not isinstance(max_time, (int, float)) or not max_time >= 0):
            raise _bad_argument("max_time", "a number of seconds, or None", max_time)
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise _bad_argument("threads", "at least 1, or None", threads)
        if not isinstance(cache, (bool, str, os.PathLike)) or cache == "":
            raise _bad_argument("cache", "True, False or a folder", cache)
        if not isinstance(model, (str, Path, bytes, Model)) and not hasattr(model, "graph"):
            raise _bad_argument("model", "a path, bytes, an onnx.ModelProto or a qrun.Model", model)
        start = perf_counter_ns()
        self.model = model if isinstance(model, Model) else load_kept(model, backend != "reference" and cache)
        self._defaults = frozenset(value.name for value in self.model.defaults)
        self._replacing: dict[frozenset[str], Runs] = {}
        self.arith: Arith = arith
        self.threads = threads or usable_cpus()
        self._limits = RunLimits(max_memory, None if max_time == math.inf else max_time)
        self._engine, self.fallback = _engine(backend, isa, cache, self.threads)
        # Reference cycles would keep the threads of a dropped session alive until Python collects them.
        self._end = finalize(self, self._engine.end if self._engine else int)
        self._end.atexit = False
        self.backend = "native" if self._engine else "reference"
        self.fuse = backend != "reference" if fuse is None else fuse
        self._lock = threading.Lock()
        # Not a method: it would refer to the session, and a dropped session ends at once.
        self._runs_of = partial(_runs_of, self._engine, self.arith, self.fuse, self._limits)
        self._runs = self._runs_of(self.model)
        self.load_ns = perf_counter_ns() - start

    def __repr__(self) -> str:
        return f"<qrun.Session {self.model.label}: {len(self.model.nodes)} nodes, {self.backend}, {self.arith}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session's threads and free memory and files now, except the model's. It cannot run any more.

        A dropped session ends its threads too; files that it mapped may stay until Python's next garbage collection.
        """
        import gc

        self._runs = self._runs_of = cast(Any, _Closed())
        self._replacing.clear()
        self._engine = None
        self._end()
        gc.collect()

    @property
    def cache_refused(self) -> str:
        """Why compiled native kernels are not kept although a cache is wanted; "" if they are, or none is."""
        return cache_refused(self._engine) if self._engine else ""

    @property
    def max_memory(self) -> int | None:
        """Bytes that a run may hold at once; a new limit counts from the next run on."""
        return self._limits.max_memory

    @max_memory.setter
    def max_memory(self, nbytes: int | None) -> None:
        self._limits.max_memory = nbytes

    @property
    def max_time(self) -> float | None:
        """Seconds that a run may take; a new limit counts from the next run on."""
        return self._limits.max_time

    @max_time.setter
    def max_time(self, seconds: float | None) -> None:
        self._limits.max_time = seconds

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The inputs that must be fed."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The outputs of the graph."""
        return self.model.outputs

    def get_inputs(self) -> list[TensorType]:
        """`inputs`, under onnxruntime's name."""
        return list(self.inputs)

    def get_outputs(self) -> list[TensorType]:
        """`outputs`, under onnxruntime's name."""
        return list(self.outputs)

    @overload
    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]: ...
    @overload
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Array], run_options: None = None, /
    ) -> list[Array]: ...
    @overload
    def run(
        self, *, input_feed: Mapping[str, Array], output_names: Sequence[str] | None = None, run_options: None = None
    ) -> list[Array]: ...
    def run(
        self,
        feeds: Any = None,
        outputs: Any = None,
        run_options: object = None,
        *,
        output_names: Sequence[str] | None = None,
        input_feed: Mapping[str, Array] | None = None,
    ) -> dict[str, Array] | list[Array]:
        """Run once and return arrays by name; or call it as in onnxruntime, ``run(None, feeds)``,
        ``run(["y"], feeds)`` or ``run(output_names=None, input_feed=feeds)``, and get a list of arrays.

        feeds:   an array of the exact type and shape for each input (for strings any array of texts); a list of arrays
                 for a sequence, None for an empty optional value, a dict for a map; the results have the same forms.
        outputs: names (or the name) of any tensors of the graph; None: the graph's outputs.
        """
        if run_options is not None:
            raise _bad_argument("run_options", "None", run_options)
        if input_feed is not None:
            feeds, outputs = feeds or output_names, input_feed
        if isinstance(outputs, Mapping) and not isinstance(feeds, Mapping):
            names = [feeds] if isinstance(feeds, str) else list(feeds or (value.name for value in self.outputs))
            found = self.run(outputs, names)
            return [found[name] for name in names]
        repeated = self._runs.repeat(feeds) if outputs is None else None
        if repeated is not None:
            return repeated
        return {name: to_runtime(value) for name, value in self._run(feeds, outputs, False, False).outputs.items()}

    def values(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """As `run`, with sequences, maps and optional values in the form of ir/compound.py."""
        return dict(self._run(feeds, outputs, False, False).outputs)

    def execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, observe: bool = True
    ) -> RunResult:
        """Run once and return outputs with an event per node.

        observe: let kernels look for saturation, NaN and wrap-around, which costs time.
        """
        return self._run(feeds, outputs, observe, True)

    def _run(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None, observe: bool, timed: bool) -> RunResult:
        """Run the model once."""
        return self._of(feeds, outputs).run(feeds, outputs, observe, timed)

    def run_observed(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> RunResult:
        """Run as `execute` does, and keep the program of such runs for later processes. There is none without native
        kernels, and none of more than 20,000 steps."""
        return self._of(feeds, outputs).run_observed(feeds, outputs)

    def watch(
        self, feeds: Mapping[str, Array], see: Callable[[str, Array], None], tensors: Sequence[str] = ()
    ) -> RunResult:
        """Run once as `execute` does, and call `see` with the name and value of every tensor while it is in memory.

        A value is freed after its last use, so that no more memory is needed than for a run.
        tensors: names that are computed in any case; a fused graph may otherwise do without some.
        """
        return self._of(feeds).watch(feeds, see, tensors)

    def refuses(self, feeds: Mapping[str, Array], deadline: Deadline) -> bool:
        """Whether a run with these checked feeds ends in an error, as far as shapes and small values show it before the
        deadline. Always False without native kernels."""
        from qrun.running.trial import is_refused

        if self._engine is None:
            return False
        runs, budget = self._of(feeds), Budget(default_limit, deadline)
        given = [(name, x.shape, x.dtype.name, x.tobytes() if x.size <= SMALL else b"") for name, x in feeds.items()]
        return self.load_or_make(
            f"refuses {given!r}", lambda: is_refused(runs.prepare((), True), feeds, self.arith, budget)
        )

    def load_or_make(self, name: str, make: Callable[[], T]) -> T:
        """The plain values that `make` computes from the model, now or in an earlier process. name: identifies these
        values."""
        images = self._runs.images
        return images.values(name, make) if images else make()

    def _of(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> Runs:
        """The Runs that take these feeds. Feeds that replace default values need others, where these are no constants.

        Raises CallError for feeds that are no mapping."""
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            raise _no_feeds(self.model, feeds)
        replaced = self._defaults.intersection(feeds) if self._defaults else None
        if not replaced:
            return self._runs
        with self._lock:
            if replaced not in self._replacing:
                while len(self._replacing) >= DEFAULTS:
                    del self._replacing[next(iter(self._replacing))]
                self._replacing[replaced] = self._runs_of(self.model.with_fed_defaults(replaced))
            return self._replacing[replaced]

    def as_written(self, outputs: Sequence[str] | None = None) -> dict[int, str]:
        """The nodes, by index, that a run for these outputs does not fuse or tabulate, and why."""
        return dict(self._runs.prepare(self._runs.names(outputs), True).reasons)

    def profile(
        self,
        feeds: Mapping[str, Array],
        *,
        runs: int | None = None,
        warmup: int = 1,
        seconds: float = 3.0,
        progress: Progress | None = None,
    ) -> Profile:
        """Run repeatedly and return all timings: of `run`, alternating with as many runs that time the nodes. runs:
        None for as many as fit in `seconds`, 5 to 1000.

        The native backend makes its kernels and its program in the first two runs: these are not timed, and not counted
        as warm-up.
        """
        from qrun.running.profiling import measure_in_turns

        if runs is not None and (not isinstance(runs, int) or runs < 1):
            raise _bad_argument("runs", "at least 1, or None", runs)
        if not isinstance(warmup, int) or warmup < 0:
            raise _bad_argument("warmup", "0 or more", warmup)
        if not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise _bad_argument("seconds", "a number of seconds", seconds)
        plain, profiled = measure_in_turns(self.runners(feeds), runs, warmup, seconds, progress)
        return plain.with_nodes_of(profiled)

    def runners(self, feeds: Mapping[str, Array], settle: float = 0.0) -> tuple[TimedRunner, TimedRunner]:
        """The runner that runs the model on these inputs as `run` does, and the one that times the nodes; they are
        measured in turn. settle: as of TimedRunner, for other runners beside these."""
        from qrun.running.profiling import TimedRunner, plain_runs, profiled_runs

        prepare = 2 if self._engine is not None and self.model.nodes else 0
        plain, profiled = partial(self.run, feeds), partial(self.execute, feeds, observe=False)
        return (TimedRunner(plain_runs(plain), self.model, prepare, settle=settle),
                TimedRunner(profiled_runs(profiled), self.model, settle=settle))  # fmt: skip


class _Closed:
    """Replaces the parts of a closed session: every access raises CallError."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _closed_error()

    def __call__(self, *given: object) -> NoReturn:
        raise _closed_error()


def _closed_error() -> CallError:
    """The QR005 error of a session that was closed."""
    fixes = ["run it before close(), or inside its with block", "create a new Session"]
    return CallError("QR005", "this session is closed", fixes=fixes)


def _runs_of(engine: Engine | None, arith: Arith, fuse: bool, limits: RunLimits, model: Model) -> Runs:
    """The runs of a model with these settings."""
    return Runs(model, engine, arith, fuse, limits)


def _engine(
    backend: str | None, isa: str, cache: str | os.PathLike[str] | bool, threads: int
) -> tuple[Engine | None, str]:
    """The native engine, or None; and why there is none although the reference backend was not requested."""
    if backend == "reference":
        return None, ""
    try:
        return make_engine(isa, cache, threads), ""
    except UnsupportedError as error:
        if backend is not None:
            raise
        return None, dict(error.facts).get("got", str(error))


def _bad_argument(name: str, expected: str, got: object) -> CallError:
    """The QR005 error of an argument that is not usable."""
    shown = repr(got) if isinstance(got, (int, float, str)) else type(got).__name__
    return CallError("QR005", f"{name} is not valid", facts=[("expected", expected), ("got", shown[:80])])


def _no_feeds(model: Model, feeds: object) -> CallError:
    """The error of a call without a dict of inputs."""
    asked = [feeds] if isinstance(feeds, str) else feeds if isinstance(feeds, (list, tuple)) else [None]
    wanted = f", {feeds!r}" if all(isinstance(name, str) for name in asked) else ""
    given = "{" + ", ".join(f"{v.name!r}: array" for v in model.inputs[:3]) + "}"
    facts = [("expected", "a dict of arrays by input name"), ("got", type(feeds).__name__)]
    return CallError("QR005", "feeds must be a dict", facts=facts, fixes=[f"session.run({given}{wanted[:80]})"])
