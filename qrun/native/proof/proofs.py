"""What searches for constants found, kept on disk. It is never believed: found constants are proven again when read."""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.isa import Isa, host_architecture
from qrun.native.emit.spec import BOUND_VECTORS, KernelSpec
from qrun.native.machine.cache import digest
from qrun.native.machine.call import invoke
from qrun.native.machine.compile import Kernels
from qrun.native.machine.memory import Ints
from qrun.native.proof.epilogue import Guess, Proven, Target, prove
from qrun.native.proof.thresholds import Floats


@frozen
class Bounds:
    """What Search takes to find bounds. Calls give float64 [2, n] for inverse [n], halves and weights [steps]."""

    kernels: Kernels
    isa: Isa

    @classmethod
    def of(cls, kernels: Kernels, isa: Isa) -> Bounds | None:
        """Bounds computed on this instruction set; None if this machine has another architecture."""
        return cls(kernels, isa) if isa.architecture == host_architecture() else None

    def __call__(self, inverse: Floats, halves: Floats, weights: Floats) -> Floats:
        rows = BOUND_VECTORS * max(self.isa.lanes // 2, 2)
        tiles = -(-len(inverse) // rows)
        room = np.empty((3, tiles * rows))
        room[0, : len(inverse)] = inverse
        room[0, len(inverse) :] = 1
        arrays = {"inverse*": room[0], "low*": room[1], "high*": room[2], "halves*": halves, "weights*": weights}
        words = {"split": int(np.count_nonzero(halves < 0)), "steps": len(halves), "tiles": tiles}
        kernel = self.kernels.get(KernelSpec("bounds", self.isa.name, rows, BOUND_VECTORS, 1, "i32", "i32", False))
        arguments = kernel.struct(words, arrays)
        invoke(kernel, arguments.ctypes.data, 0)
        return room[1:, : len(inverse)]


_FEW = 16
_SOURCES = ("emit/spec.py", *(f"proof/{name}.py" for name in ("epilogue", "proofs", "search", "thresholds")))


def proven(target: Target, low: Ints, high: Ints, kernels: Kernels, isa: Isa) -> Proven:
    """As `prove`, but what was searched before is looked up in the kernels' cache, and what is searched now is kept there."""
    if len(low) < _FEW or (target.w_scale == target.w_scale[0]).all():
        return prove(target, low, high, isa.fma)
    bounds, kept = Bounds.of(kernels, isa), kernels.cache
    if kept.refused:
        return prove(target, low, high, isa.fma, None, bounds)
    key = _key(target, low, high, isa.fma)
    guess = _decoded(kept.load(key, ".proof"), len(low))
    found = prove(target, low, high, isa.fma, guess, bounds)
    if guess is None or not np.array_equal(found.a, guess.a):
        kept.save(key, found.a.tobytes() + found.b.tobytes(), ".proof")
    return found


def _decoded(body: bytes | None, channels: int) -> Guess | None:
    if body is None or len(body) != 8 * channels:
        return None
    values = np.frombuffer(body, np.float32)
    return Guess(values[:channels], values[channels:])


def _key(target: Target, low: Ints, high: Ints, fma: bool) -> str:
    """Names everything that the search depends on."""
    numbers = (target.x_scale, target.w_scale, target.y_scale, low, high)
    inputs = digest(*(np.asarray(array).tobytes() for array in numbers))
    return f"proof {_sources()} {target.out} {target.zero_point} {fma} {inputs}"


@cache
def _sources() -> str:
    package = resources.files("qrun.native")
    return digest(*(package.joinpath(*name.split("/")).read_bytes() for name in _SOURCES))
