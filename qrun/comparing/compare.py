"""``qrun.compare``: compares one model on two sides, or a float model with its quantized version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args, overload

from qrun.comparing.accuracy import SECONDS, Accuracy, accuracy
from qrun.comparing.choices import AGAINST, has_tolerance, sides, tolerance
from qrun.comparing.comparison import Comparison
from qrun.comparing.runtimes import compare_runtimes
from qrun.errors import CallError, choose
from qrun.ir import Array, Model
from qrun.ir.load import load
from qrun.ops import Arith

if TYPE_CHECKING:
    import onnx

    Source = str | Path | bytes | onnx.ModelProto | Model
Feeds = Mapping[str, Array]


@overload
def compare(
    model: Source,
    other: None = None,
    feeds: Feeds | Sequence[Feeds] | None = None,
    *,
    against: str = "ort",
    arith: Arith = "exact",
    isolate: bool = False,
    lsb: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    max_memory: int | None = None,
    max_time: float | None = None,
) -> Comparison: ...
@overload
def compare(
    model: Source,
    other: Source,
    feeds: Feeds | Sequence[Feeds] | None = None,
    *,
    lsb: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    min_sqnr: float | None = None,
    budget: float | None = SECONDS,
    max_memory: int | None = None,
    max_time: float | None = None,
) -> Accuracy: ...
def compare(
    model: Source,
    other: Source | None = None,
    feeds: Feeds | Sequence[Feeds] | None = None,
    *,
    against: str = "ort",
    arith: Arith = "exact",
    isolate: bool = False,
    lsb: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    min_sqnr: float | None = None,
    budget: float | None = SECONDS,
    max_memory: int | None = None,
    max_time: float | None = None,
) -> Comparison | Accuracy:
    """Find where a model's results differ between two runtimes and why, or what quantization costs, node by node.

    model, other: paths, bytes, onnx.ModelProto or loaded models. Without `other`, the model is compared with itself on
                  the side `against`; with it, `model` is the float model and `other` was quantized from it.
    feeds:      arrays by input name; for two models also a sequence of such mappings.
    against:    ort, ort-optimized, onnx-ref, reference, native, fused or literal, as ``qrun compare --against``.
    arith:      the arithmetic of qrun's side.
    isolate:    feed every node the other side's values, so that only nodes that cause a difference differ.
    lsb, rtol, atol: the tolerance, in steps and as in numpy.isclose; None: the defaults of ``qrun compare``.
    min_sqnr:   dB that each output must reach, in place of rtol and atol. If none of these is given, comparing a float
                model with a quantized one always passes.
    budget:     seconds for measuring what each node costs; None for no limit.
    max_memory: bytes that a run may hold; None: 80 % of the free memory.
    max_time:   seconds that a run may take; None: no limit.

    A Comparison has `equal`, `first`, `differing`, `outputs` and `arithmetic`; an Accuracy `equal`, `passed`,
    `outputs`, `costs` and `suggestion`. A notebook shows both as the terminal does. Raises QrunError as Session does.
    """
    several = [feeds] if isinstance(feeds, Mapping) else list(feeds or ())
    first = load(model) if not isinstance(model, Model) else model
    if not several:
        raise _no_inputs_error(first, "model" if other is None else "model, other")
    if other is not None:
        second = load(other) if not isinstance(other, Model) else other
        return accuracy(
            first,
            second,
            several,
            tolerance=tolerance(lsb=lsb, rtol=rtol, atol=atol) if has_tolerance(lsb, rtol, atol) else None,
            min_sqnr=min_sqnr,
            max_memory=max_memory,
            max_time=max_time,
            seconds=math.inf if budget is None else budget,
        )
    choose("against", against, AGAINST)
    choose("arith", arith, get_args(Arith))
    if len(several) > 1:
        facts, fixes = (
            [("got", str(len(several)))],
            ["for several sets: [qrun.compare(model, feeds=one) for one in feeds]"],
        )
        raise CallError("QR005", "to compare one model on two sides, give one set of inputs", facts=facts, fixes=fixes)
    given = model if isinstance(model, (str, Path, Model, bytes)) else model.SerializeToString()
    data = given if isinstance(given, bytes) else None
    a, b = sides(first, against, data=data, arith=arith, max_memory=max_memory, max_time=max_time)
    return compare_runtimes(a, b, several[0], tolerance(against, lsb=lsb, rtol=rtol, atol=atol), isolate=isolate)


def _no_inputs_error(model: Model, models: str) -> CallError:
    """The QR001 error of a comparison without inputs."""
    names = "{" + ", ".join(f"{v.name!r}: array" for v in model.inputs[:3]) + "}"
    call = f"qrun.compare({models}, feeds={names})"
    return CallError("QR001", "no inputs were given", where=[model.label], fixes=["-i FILE, or --random"], calls=[call])
