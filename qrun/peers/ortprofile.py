"""Profiles a model with onnxruntime's own profiler, and maps the times back to the nodes of the model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from pickle import PickleBuffer
from types import TracebackType
from typing import Any

import numpy as np
import onnx

from qrun.child import RemoteObject
from qrun.declare import grouped
from qrun.errors import UnsupportedError
from qrun.ir import Array, Model, Node
from qrun.ir.types import BY_ONNX_NAME
from qrun.peers import Limits, Loaded, Peer, encode_feeds, external_settings, loading_limit, proto_of
from qrun.peers.ortnodes import OptimizedNode, covers, unmark, with_marks
from qrun.running.events import NodeEvent, TensorInfo
from qrun.running.profiling import Profile, Progress, TimedRunner, measure_in_turns
from qrun.running.session import RunResult, Session

EVENTS = 50_000
"""The most node times to collect: onnxruntime writes a kilobyte for each."""
SPINNING, OWN_SPINNING = 0.03, 0.002
"""Seconds for which the threads of onnxruntime, and of qrun, spin after a run."""
_MICROSECOND = 1000


class Profiler:
    """A model in onnxruntime with its profiler on and Peer's settings. A context manager, as it has a folder on disk.

    Raises UnsupportedError if onnxruntime refuses the model, or crashes.
    """

    def __init__(
        self, model: Model, *, data: bytes | None = None, threads: int | None = None, limits: Limits = (None, None)
    ) -> None:
        self.model = model
        self._folder = tempfile.TemporaryDirectory(prefix="qrun-")
        folder = Path(self._folder.name)
        try:
            settings = {
                "optimized_model_external_initializers_file_name": "weights",
                "optimized_model_external_initializers_min_size_in_bytes": "256",
            }
            options = {
                "threads": threads or 0,
                "settings": {**settings, **external_settings(model)},
                "profile": str(folder / "profile"),
                "optimized": str(folder / "model.onnx"),
            }
            marked = with_marks(model, proto_of(model, data, ())).SerializeToString()
            remote = RemoteObject(
                "load", lambda: ("ort", loading_limit(limits[0], model, threads), PickleBuffer(marked), options)
            )
            optimized = onnx.load_model(folder / "model.onnx", load_external_data=False)
        except Exception as error:
            self._folder.cleanup()
            facts = [("got", " ".join(str(error).split())[:400])]
            raise UnsupportedError(
                "QR013", "onnxruntime's profiler cannot load this model", where=[model.label], facts=facts
            ) from error
        self.nodes = covers(model, list(optimized.graph.node))
        self._loaded = Loaded(model, "onnxruntime's profiler", limits, remote, (), encode_feeds, list)

    def __enter__(self) -> Profiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def runner(self, feeds: Mapping[str, Array], settle: float = 0.0) -> TimedRunner:
        """A runner with the profiler on, of at most EVENTS node times. Runs raise RunError with onnxruntime's words."""
        return self._loaded.runner(feeds, settle, max(EVENTS // max(len(self.nodes), 1), 5))

    def finish(self, plain: Profile, profiled: Profile, macs: Mapping[int, int]) -> Profile:
        """Add the nodes' times of runs with the profiler (`profiled`) to `plain`, the profile of runs without it;
        return `plain` unchanged if the profiler did not record all runs.

        macs: the known multiply-adds, by node of the model.
        """
        found = json.loads(Path(self._loaded.finish()).read_text(encoding="utf-8"))
        runs = len(profiled.run_ns)
        times = grouped((_name(event), event) for event in _outermost(found, self.nodes))
        whole = [event for event in found if event["name"] == "model_run"][-runs:]
        if len(whole) < runs:
            return plain
        events: list[NodeEvent] = []
        rows, taken = [], set[int]()
        for number, (ran, name) in enumerate(_pair_nodes(self.nodes, times)):
            mine = times.get(name, [])[-runs:]
            if len(mine) == runs:
                index = ran.named if ran.members and ran.named not in taken else len(self.model.nodes) + number
                taken.add(index)
                events.append(self._event(index, ran, mine[-1], macs if index == ran.named else {}, whole[-1]["ts"]))
                rows.append([event["dur"] * _MICROSECOND for event in mine])
        order = sorted(range(len(events)), key=lambda at: events[at].start_ns)
        node_ns = np.array([rows[at] for at in order], np.int64).reshape(len(rows), runs)
        last = replace(
            plain.last,
            events=tuple(events[at] for at in order),
            start_ns=0,
            duration_ns=whole[-1]["dur"] * _MICROSECOND,
        )
        profiled_ns = tuple(event["dur"] * _MICROSECOND for event in whole)
        return replace(plain, node_ns=node_ns, last=last, profiled_ns=profiled_ns, unit_ns=_MICROSECOND)

    def _event(
        self, index: int, ran: OptimizedNode, event: Mapping[str, Any], macs: Mapping[int, int], begin: int
    ) -> NodeEvent:
        """A node's event from an event of onnxruntime's profile."""
        proto, nodes = ran.proto, self.model.nodes
        name = unmark(self.model, proto.name)
        if ran.members and not name:
            name = f"{nodes[ran.named].label}/{proto.op_type}"
        inputs, outputs = ([unmark(self.model, n) for n in names if n] for names in (proto.input, proto.output))
        node = Node(index, name, proto.domain, proto.op_type, 1, tuple(inputs), tuple(outputs))
        args = event["args"]
        return NodeEvent(
            index,
            (event["ts"] - begin) * _MICROSECOND,
            event["dur"] * _MICROSECOND,
            _infos(inputs, args.get("input_type_shape") or []),
            _infos(outputs, args.get("output_type_shape") or []),
            sum(macs.get(member, 0) for member in ran.members),
            "ort",
            group=ran.members,
            node=node,
        )


def ort_profiles(
    peer: Peer,
    feeds: Mapping[str, Array],
    *,
    data: bytes | None = None,
    threads: int | None = None,
    runs: int | None = None,
    warmup: int = 1,
    seconds: float = 3.0,
    progress: Progress | None = None,
    session: Session | None = None,
    macs: Mapping[int, int] | None = None,
) -> list[Profile]:
    """Profile onnxruntime, and `session` in turn with it if given. Returns the session's profile first.

    peer:    onnxruntime without its profiler, which slows runs down. It gives the times of whole runs; the times of
             nodes come from as many runs of another session with the profiler, or as many as EVENTS allows.
    data, threads: as for the peer. seconds: the time for each runtime that takes turns.
    macs:    multiply-adds by node of the model, if no session is given.
    """
    settle = 0.0 if threads == 1 else SPINNING
    runners = [*session.runners(feeds, OWN_SPINNING if session.threads > 1 else 0.0)] if session else []
    runners.append(peer.runner(feeds, settle))
    with ExitStack() as stack:
        profiler = None
        if all(array.dtype.kind != "V" for array in feeds.values()):
            with suppress(UnsupportedError):
                profiler = stack.enter_context(Profiler(peer.model, data=data, threads=threads, limits=peer.limits))
        if profiler is not None:
            runners.append(profiler.runner(feeds, settle))
        found = measure_in_turns(runners, runs, warmup, seconds * len(runners), progress)
        if session is not None:
            found[:2] = [found[0].with_nodes_of(found[1])]
            macs = multiply_adds(found[0].last)
        if profiler is not None:
            found[-2:] = [profiler.finish(found[-2], found[-1], macs or {})]
    return found


def multiply_adds(result: RunResult) -> dict[int, int]:
    """The multiply-adds of qrun's nodes, by index."""
    return {event.index: event.macs for event in result.events}


def _name(event: Mapping[str, Any]) -> str:
    """The node's name in a profile event."""
    return str(event["name"]).removesuffix("_kernel_time")


def _outermost(events: Sequence[dict[str, Any]], nodes: Sequence[OptimizedNode]) -> list[dict[str, Any]]:
    """The events of nodes without those inside an If, Loop or Scan, whose time is part of the outer node's.

    events: in the order in which they end.
    """
    names = {ran.proto.name for ran in nodes}
    around = {ran.proto.name for ran in nodes if any(a.HasField("g") or a.graphs for a in ran.proto.attribute)}
    found: list[dict[str, Any]] = []
    for event in events:
        if event["cat"] != "Node":
            continue
        begin = event["ts"] if _name(event) in around else float("inf")
        while found and (found[-1]["ts"] > begin or (found[-1]["ts"] == begin and _name(found[-1]) not in names)):
            found.pop()
        found.append(event)
    return found


def _pair_nodes(
    nodes: Sequence[OptimizedNode], times: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[OptimizedNode, str]]:
    """Yield the nodes with their names in the profile, where a nameless node is ``Op_index``; then profiled nodes that
    are not among `nodes`.

    Nameless nodes come from the bodies of operators for which onnxruntime has no kernel.
    """
    named = {ran.proto.name for ran in nodes if ran.proto.name}
    spare: dict[str, list[str]] = {}
    for name in sorted(times.keys() - named, key=lambda name: int(times[name][0]["args"]["node_index"])):
        spare.setdefault(times[name][0]["args"]["op_name"], []).append(name)
    for ran in nodes:
        others = spare.get(ran.proto.op_type)
        yield ran, ran.proto.name or (others.pop(0) if others else "")
    for op, names in spare.items():
        yield from ((OptimizedNode(onnx.NodeProto(op_type=op, name=name), (), -1), name) for name in names)


def _infos(names: Sequence[str], shapes: Sequence[Mapping[str, Sequence[int]]]) -> tuple[TensorInfo, ...]:
    """Tensors with the shapes and types of a profile event."""
    found = []
    for name, entry in zip(names, shapes, strict=False):
        for kind, shape in entry.items():
            if kind in BY_ONNX_NAME:
                found.append(TensorInfo(name, BY_ONNX_NAME[kind], tuple(int(n) for n in shape)))
    return tuple(found)
