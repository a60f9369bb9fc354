"""Compare every tensor of a model between qrun and onnxruntime, bit for bit.

    python scripts/compare_ort.py MODEL.onnx X.npy [--time N]

onnxruntime runs on the CPU without graph optimizations, with every tensor as an output. Three comparisons:

1. the whole model in qrun's `ort` arithmetic: should be the same bits;
2. each node alone on onnxruntime's inputs, in `ort` arithmetic: shows which node is the cause;
3. each node alone, in exact arithmetic: wherever an integer differs, the exact quotient is computed with fractions. It
   must give qrun's answer, and lie so near a tie that float32 arithmetic cannot tell the sides apart.

Exit code 1 if a type or shape differs, or an integer differs whose exact answer is not the correctly rounded one, is
not known, or is farther from a tie than --margin. Floats are reported, not judged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import _exact_values
import numpy as np
import onnx

import qrun
from qrun.ops import Context
from qrun.running.plan import Step, plan

Array = np.ndarray[Any, np.dtype[Any]]
SAMPLE = 2000
MARGIN = 256 * 2.0**-22  # four float32 roundings of a quotient up to 256


@dataclass(frozen=True, slots=True)
class Difference:
    """An output that differs.

    step:   largest absolute difference; scale: largest absolute value.
    wrong:  differing elements where qrun's is not the correctly rounded value; -1 if the operator has no exact oracle.
    margin: largest distance of an exact quotient to a tie, among (at most SAMPLE) differing elements.
    """

    label: str
    op: str
    output: str
    count: int
    total: int
    step: float
    scale: float = float("nan")
    integer: bool = False
    wrong: int = -1
    margin: float = float("nan")

    def __str__(self) -> str:
        text = f"  {self.op:40} {self.label[-40:]:40} {self.count:>7} of {self.total:<9} max {self.step:<8.3g}"
        if self.wrong >= 0:
            text += f" not correctly rounded {self.wrong}, from a tie {self.margin:.2g}"
        return text if self.integer else f"{text} relative {self.step / self.scale:.1e}"


def with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with every tensor that a node makes as a graph output."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    present = {v.name for v in wide.graph.output}
    for node in model.graph.node:
        wide.graph.output.extend(onnx.ValueInfoProto(name=n) for n in node.output if n and n not in present)
    return wide


def onnxruntime_session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def all_tensors(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor as onnxruntime computes it."""
    wide = with_all_outputs(model)
    names = [v.name for v in wide.graph.output]
    return dict(zip(names, onnxruntime_session(wide).run(names, dict(feeds)), strict=True))


def whole(model: onnx.ModelProto, feeds: Mapping[str, Array], theirs: Mapping[str, Array]) -> list[Difference]:
    """All tensors of one run in `ort` arithmetic."""
    session = qrun.Session(model, arith="ort", backend="reference")
    ours = session.run(feeds, list(theirs))
    makers = {name: node for node in session.model.nodes for name in node.outputs}
    found = []
    for node in session.model.nodes:
        for name in node.outputs:
            if name and (difference := differ(makers[name].label, node.op, name, ours[name], theirs[name])):
                found.append(difference)
    return found


def each(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    theirs: Mapping[str, Array],
    arith: Literal["exact", "ort"] = "exact",
) -> list[Difference]:
    """Every node alone, on onnxruntime's inputs."""
    loaded = qrun.load(model)
    values = {**loaded.constants, **feeds, **theirs}
    return [d for step in plan(loaded).steps for d in one(step, values, theirs, arith)]


def one(
    step: Step, values: Mapping[str, Array], theirs: Mapping[str, Array], arith: Literal["exact", "ort"]
) -> Iterator[Difference]:
    node = step.node
    inputs = [values[name] if name else None for name in node.inputs]
    wanted = tuple(bool(name) for name in node.outputs)
    ctx = Context(arith, node.version, len(wanted), wanted, observing=False)
    kwargs = {**step.kwargs, "ctx": ctx} if step.definition.takes_context else step.kwargs
    made = step.definition(*inputs, **kwargs)
    for name, ours in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False):
        difference = differ(node.label, node.op, name, ours, theirs[name]) if name else None
        if difference is None:
            continue
        yield settle(difference, step, inputs, ours, theirs[name]) if arith == "exact" else difference


def differ(label: str, op: str, name: str, ours: Array, theirs: Array) -> Difference | None:
    """None if type, shape and values are equal; NaN equals NaN, and -0 equals 0."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return Difference(label, f"{op} {ours.dtype}{ours.shape} {theirs.dtype}{theirs.shape}", name, -1, ours.size, 0)
    if ours.tobytes() == theirs.tobytes():
        return None
    apart = differing(ours, theirs)
    if not apart.any():
        return None
    step = np.abs(ours[apart].astype(np.float64) - theirs[apart].astype(np.float64)).max()
    scale = float(np.abs(theirs.astype(np.float64)).max())
    integer = ours.dtype.kind in "iu"
    return Difference(label, op, name, int(apart.sum()), ours.size, float(step), scale, integer)


def differing(ours: Array, theirs: Array) -> Array:
    missing = (ours != ours) & (theirs != theirs)
    return np.asarray((ours != theirs) & ~missing)


def settle(found: Difference, step: Step, inputs: Sequence[Array | None], ours: Array, theirs: Array) -> Difference:
    """With the exact quotients of the differing elements."""
    if found.count < 0 or not found.integer:
        return found
    places = np.argwhere(differing(ours, theirs))
    wrong, margin = 0, 0.0
    for place in places[:: -(-len(places) // SAMPLE)]:
        at = tuple(int(i) for i in place)
        try:
            value, zero = _exact_values.quotient(step.node, inputs, at)
        except KeyError:
            return found
        wrong += int(ours[at]) != _exact_values.nearest(value, zero, ours.dtype)
        margin = max(margin, float(_exact_values.tie_distance(value)))
    return replace(found, wrong=wrong, margin=margin)


def times(model: onnx.ModelProto, feeds: Mapping[str, Array], runs: int) -> tuple[float, float]:
    """Fastest of `runs` interleaved runs in seconds: qrun, onnxruntime (without optimizations)."""
    ours, theirs = qrun.Session(model, backend="reference"), onnxruntime_session(model)
    calls: tuple[Callable[[], object], ...] = (lambda: ours.run(feeds), lambda: theirs.run(None, dict(feeds)))
    best = [float("inf"), float("inf")]
    for _ in range(runs):
        for place, call in enumerate(calls):
            start = perf_counter()
            call()
            best[place] = min(best[place], perf_counter() - start)
    return best[0], best[1]


def lines(found: Sequence[Difference], shown: int) -> Iterator[str]:
    """Integer tensors one by one, float tensors by operator."""
    exact = [d for d in found if d.integer or d.count < 0]
    yield from (str(d) for d in exact[:shown])
    if len(exact) > shown:
        yield f"  and {len(exact) - shown} more integer tensors"
    floats = [d for d in found if not d.integer and d.count >= 0]
    for op in dict.fromkeys(d.op for d in floats):
        group = [d for d in floats if d.op == op]
        count, total = sum(d.count for d in group), sum(d.total for d in group)
        worst = max(d.step / d.scale for d in group)
        yield f"  {op:40} {f'{len(group)} float tensors':40} {count:>7} of {total:<9} worst relative {worst:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("x", type=Path, help="the input as .npy")
    parser.add_argument("--margin", type=float, default=MARGIN, help="largest distance from a tie, in LSB (6e-5)")
    parser.add_argument("--shown", type=int, default=12, help="integer tensors shown of each comparison (12)")
    parser.add_argument("--time", type=int, default=0, metavar="N", help="also measure N interleaved runs")
    options = parser.parse_args()
    model = onnx.load(options.model)
    given = {t.name for t in model.graph.initializer}
    feeds = {next(v.name for v in model.graph.input if v.name not in given): np.load(options.x)}
    theirs = all_tensors(model, feeds)
    elements = sum(a.size for a in theirs.values())
    print(f"{options.model.name}: {len(model.graph.node)} nodes, {len(theirs)} tensors, {elements} elements")
    exact = each(model, feeds, theirs)
    for title, found in (
        ("whole model, ort arithmetic", whole(model, feeds, theirs)),
        ("node by node, ort arithmetic", each(model, feeds, theirs, "ort")),
        ("node by node, exact arithmetic", exact),
    ):
        count = sum(max(0, d.count) for d in found)
        print(f"{title}: {len(found)} tensors, {count} elements differ")
        print(*lines(found, options.shown), sep="\n", end="\n" if found else "")
    if options.time:
        ours, other = times(model, feeds, options.time)
        print(f"time, fastest of {options.time}: qrun {ours * 1e3:.1f} ms, onnxruntime {other * 1e3:.1f} ms")
    sys.exit(any(d.count < 0 or (d.integer and (d.wrong != 0 or d.margin > options.margin)) for d in exact))


if __name__ == "__main__":
    main()
