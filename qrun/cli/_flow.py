"""The steps of run and profile before the run: read the model and its inputs, and prepare the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import Call, contradiction
from qrun.cli._options import OTHERS, conversion, limits, read_model
from qrun.declare.frozen import frozen
from qrun.errors import QrunError
from qrun.memory import Deadline

if TYPE_CHECKING:
    from qrun.io.inputs import Feeds
    from qrun.ir import Array, Model
    from qrun.memory import Deadline
    from qrun.peers import Peer
    from qrun.report.screen import Out
    from qrun.running.session import RunResult, Session


KEEPING = (None, "native")
OWN = (*KEEPING, "reference")
TRIALS = 4.0
"""Seconds for trying sizes of random inputs. Sizes that are not refused by then are used."""


@frozen
class Ready:
    """A model, its feeds and the backend that will run it. load_ns: to read the file; plan_ns: to prepare the backend.

    data: the bytes of a model that came from stdin.
    """

    model: Model
    feeds: Feeds
    extra: tuple[str, ...]
    session: Session | Peer
    label: str
    load_ns: int
    plan_ns: int
    data: bytes | None = None


def prepare(options: Mapping[str, Any], out: Out) -> Ready:
    """Makes model, feeds and backend from the options; notes go to stderr."""
    kept = options["backend"] in KEEPING and not options["no_cache"]
    if kept and options["model"] != "-":
        from qrun.ir.wire import read_ahead

        read_ahead(options["model"])
    start_other(options["backend"])
    import_module("qrun.running.session" if options["backend"] in OWN else "qrun.peers")  # before times are taken
    source = read_model(options["model"], options["inputs"])
    start = perf_counter_ns()
    model = _load(source, "stdin" if options["model"] == "-" else "", kept)
    loaded = perf_counter_ns()
    extra = _tensors_to_watch(model, options)
    names = [*(v.name for v in model.outputs), *extra]
    begin = perf_counter_ns()
    session, label = _session(model, source, names, options)
    planned = perf_counter_ns() if options["backend"] in OWN else begin + session.load_ns
    if fallback := getattr(session, "fallback", ""):
        out.note(f"native kernels cannot run here, so qrun uses the reference kernels: {fallback}")
    refused = getattr(session, "cache_refused", "")
    if refused:
        out.note(f"compiled kernels are not saved: {refused}")
    feeds = read_feeds(model, options, out, session=session)
    data = source if isinstance(source, bytes) else None
    return Ready(model, feeds, extra, session, label, loaded - start, planned - begin, data)


def read_feeds(
    model: Model,
    options: Mapping[str, Any],
    out: Out,
    specs: Sequence[str] | None = None,
    session: Session | Peer | None = None,
) -> Feeds:
    """Reads the inputs; notes go to stderr. specs: replaces the values of -i. session: one for this model."""
    from qrun.io.inputs import read_inputs

    feeds = read_inputs(
        model,
        options["inputs"] if specs is None else specs,
        shapes=options["shape"],
        random=options["random"],
        seed=options["seed"],
        max_memory=options["max_memory"],
        conversion=conversion(options),
        refuses=_refuses(model, session),
    )
    out.notes(feeds.notes)
    call: Call | None = click.get_current_context().find_object(Call)
    if call is not None:
        call.assumed, call.fits = feeds.assumed, feeds.fits
    return feeds


def _refuses(model: Model, session: Session | Peer | None) -> Callable[[Mapping[str, Array]], bool]:
    """Returns a function: whether a trial shows within TRIALS seconds that the model cannot run with some feeds."""

    @cache
    def own() -> tuple[Session | None, Deadline]:
        from qrun.running.session import Session

        native = session if isinstance(session, Session) and session.backend == "native" else None
        try:
            return native or Session(model), Deadline(TRIALS)
        except QrunError:  # another runtime may have the operators that qrun lacks
            return None, Deadline(TRIALS)

    def refuses(feeds: Mapping[str, Array]) -> bool:
        trying, deadline = own()
        return trying is not None and not deadline.passed and trying.refuses(feeds, deadline)

    return refuses


def _load(model: str | bytes, source: str, kept: bool) -> Model:
    if kept:
        from qrun.running.kept.models import load_kept

        return load_kept(model, source=source)
    from qrun.ir.load import load

    return load(model, source=source)


def _tensors_to_watch(model: Model, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The tensors that --tensor names. Raises CallError, before anything is run, if --output or --trace cannot be
    written."""
    if not (options.get("tensor") or options.get("output") or options["trace"]):
        return ()
    from qrun.io.inputs import files_read
    from qrun.io.outputs import check_target, check_trace, match_tensors

    outputs = {v.name for v in model.outputs}
    extra = tuple(name for name in match_tensors(model, options.get("tensor", ())) if name not in outputs)
    read = files_read(model, options["inputs"])
    if options.get("output"):
        names = [*(v.name for v in model.outputs), *extra]
        check_target(options["output"], names, read, stdout_taken=options["format"] == "json")
    if options["trace"]:
        check_trace(options["trace"], {**read, options.get("output") or "": "the file of --output"})
    return extra


def write_trace(ready: Ready, result: RunResult, options: Mapping[str, Any], out: Out) -> None:
    """Writes ``--trace``, the timeline of one run."""
    from qrun.io.files import replace_file

    text = trace_text(ready, result, options, out, options["trace"])
    with replace_file(options["trace"]) as stream:
        stream.write(text.encode())


def trace_text(ready: Ready, result: RunResult, options: Mapping[str, Any], out: Out, target: str) -> str:
    """The timeline of one run as a Chrome trace; notes if it has no nodes. target: its name in that note.

    For onnxruntime this takes one more run, with its profiler.
    """
    from qrun.report.trace import trace

    if options["backend"] == "ort" and not result.events:
        from qrun.peers import Peer
        from qrun.peers.ortprofile import ort_profiles

        assert isinstance(ready.session, Peer)
        result = ort_profiles(
            ready.session, ready.feeds.arrays, data=ready.data, threads=options["threads"], runs=1, warmup=0
        )[0].last
    if ready.model.nodes and not result.events:
        out.note(f"{target} has no node times: --backend {options['backend']} does not measure them")
    return trace(ready.model, result, load_ns=ready.load_ns, plan_ns=ready.plan_ns, backend=ready.session.backend)


def start_other(name: str | None) -> None:
    """Starts importing another runtime in the background if a backend, or a side of a comparison, is one."""
    runtime = (name or "").removesuffix("-optimized")
    if runtime in OTHERS:
        from qrun.child import start

        start(runtime)


def _session(
    model: Model, source: str | bytes, names: list[str], options: Mapping[str, Any]
) -> tuple[Session | Peer, str]:
    if options["backend"] in OWN:
        from qrun.running.session import Session

        own = {name: options[name] for name in ("backend", "arith", "threads", "fuse")}
        return Session(model, **own, cache=not options["no_cache"], **limits(options)), ""
    from qrun.peers import Peer

    if options["arith"] != "exact":
        given = [f"--{name} {options[name]}" for name in ("arith", "backend")]
        raise contradiction("--arith is for qrun's own backends; another runtime has its own arithmetic", given)
    data = source if isinstance(source, bytes) else None
    peer = Peer(model, options["backend"], data=data, outputs=names, threads=options["threads"], **limits(options))
    return peer, peer.label
