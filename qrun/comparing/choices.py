"""Turns ``--against`` and ``--arith`` into the two sides of a comparison, and the options into a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Unpack

from qrun.comparing.differences import EXACT as EXACTLY
from qrun.comparing.differences import NOISE, Tolerance
from qrun.comparing.emulated import EmulatedSide
from qrun.comparing.rewrites import with_unsigned_activations
from qrun.comparing.sides import PeerSide, QrunSide, Side
from qrun.ir import Model
from qrun.memory import ResourceLimits
from qrun.ops import Arith, integer_engine

EMULATED = ("avx2",)
AGAINST = ("ort", "ort-optimized", "onnx-ref", "reference", "native", "fused", "literal", *EMULATED)
"""The values of ``--against``."""
EXACT = ("reference", "native", *EMULATED)
"""Second sides that must equal the first bit for bit, floats included."""
_USUAL = Tolerance(eps=NOISE)


def tolerance(
    against: str | None = None, *, lsb: int = 0, rtol: float | None = None, atol: float | None = None
) -> Tolerance:
    """The tolerance of a comparison. Sides in EXACT must give equal bits. Otherwise the defaults are those of onnx's
    model tests; for one model on two sides they also allow the noise of sums, unless `atol` is given.

    against: the second side, see `sides`; None if the comparison is not one model on two sides.
    """
    usual = EXACTLY if against in EXACT else Tolerance() if against is None else _USUAL
    eps = usual.eps if atol is None else 0
    return Tolerance(lsb, usual.rtol if rtol is None else rtol, usual.atol if atol is None else atol, eps)


def has_tolerance(lsb: int, rtol: float | None, atol: float | None) -> bool:
    """Did the caller set a tolerance?"""
    return bool(lsb) or rtol is not None or atol is not None


def sides(
    model: Model, against: str, *, data: bytes | None = None, arith: Arith = "exact", **limits: Unpack[ResourceLimits]
) -> tuple[Side, Side]:
    """The first side, which is qrun, and the second side.

    against: one of AGAINST, or "" to compare qrun's exact arithmetic with `arith`. With a name, every qrun side
             computes in `arith`. Integer engines compute groups, so that qrun's sides then run with groups fused.
             "avx2" compares what onnxruntime computes on x86 CPUs without VNNI with what it computes on other CPUs;
             qrun emulates both.
    data:    the bytes of a model that was not read from a path. limits: memory and time for each run.
    Raises UnsupportedError if the other runtime is not installed.
    """
    engine = integer_engine(arith) is not None
    own: Callable[..., QrunSide] = partial(QrunSide, model, arith=arith, fuse=engine, **limits)
    peer: Callable[..., PeerSide] = partial(PeerSide, model, data=data, **limits)
    made: Mapping[str, Callable[[], tuple[Side, Side]]] = {
        "": lambda: (own(name="exact", arith="exact"), own(name=arith)),
        "ort": lambda: (own(), peer("ort")),
        "ort-optimized": lambda: (own(), peer("ort", optimize=True)),
        "onnx-ref": lambda: (own(), peer("onnx-ref")),
        "reference": lambda: (own(name="native", backend="native"), own(name="reference")),
        "native": lambda: (own(name="reference"), own(name="native", backend="native")),
        "fused": lambda: (own(name="literal", fuse=False), own(name="fused", fuse=True)),
        "literal": lambda: (own(name="fused", backend="native", fuse=True), own(name="literal", fuse=False)),
        "avx2": lambda: _emulated_sides(model, **limits),
    }
    return made[against]()


def _emulated_sides(model: Model, **limits: Unpack[ResourceLimits]) -> tuple[Side, Side]:
    """Both sides of an emulation: exact sums, and sums of saturating pairs."""
    seen = with_unsigned_activations(model)
    return (
        EmulatedSide(seen, name="exact", **limits),
        EmulatedSide(seen, name="avx2", saturating=True, **limits),
    )
