"""What the tests of the native engine share: instruction sets, random cases, exact integers, guarded memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle.cast import nearest

from helpers.emulation import emulated_sets, emulation
from qrun.native.emit.isa import available
from qrun.native.machine.engine import Engine

Array = np.ndarray[Any, Any]
Test = Callable[..., None]
ISAS = [isa.name for isa in available()]
"""Those that this CPU can run, best first."""
EMULATED = list(emulated_sets())
"""Those that it lacks and that are emulated, best first."""
SETS = ISAS + EMULATED
emulating = pytest.mark.usefixtures("emulation")
"""For tests that name a set of EMULATED other than through `engine`; every_isa, thin and needs_amx do it themselves."""
THOROUGH = ISAS[: 1 + ("amx" in ISAS)]
"""The best instruction set, and avx512vnni behind amx: that differs from it by its products only."""


def every_isa(test: Test) -> Test:
    """Parametrize `isa`."""
    return emulating(pytest.mark.parametrize("isa", SETS)(test))


def needs_amx(test: Test) -> Test:
    missing = pytest.mark.skipif("amx" not in SETS, reason="AMX cannot be used here, nor AVX2 to emulate it")
    return emulating(missing(test))


def thin(
    *values: Any,
    best: int = 1,
    other: int = 3,
    name: str = "value",
    products: bool = False,
    sets: Sequence[str] = SETS,
) -> Callable[[Test], Test]:
    """Parametrize `isa` and `name` together: every value (or every `best`-th one) on the best instruction set, every
    `other`-th one on the others, half as many on emulated ones, starting elsewhere on each. products: amx does not
    count as an other one. sets: which there are."""
    first = [isa for isa in THOROUGH if isa in sets][0 if products else -1 :]
    cases = [(isa, v) for isa in first for v in values[::best]]
    for i, isa in enumerate(isa for isa in sets if isa not in first):
        step = 2 * other if isa in EMULATED else other
        cases += [(isa, v) for v in values[(i + 1) % min(step, len(values)) :: step]]
    return lambda test: emulating(pytest.mark.parametrize(("isa", name), cases)(test))


LIMITS = {"u8": (0, 255), "s8": (-128, 127)}
TYPES = {"u8": np.uint8, "s8": np.int8}


_OWN = None if "QRUN_TEST_OBJECTS" in os.environ else tempfile.TemporaryDirectory(prefix="qrun-tests-")
OBJECTS = Path(_OWN.name if _OWN else os.environ["QRUN_TEST_OBJECTS"])
"""Compiled kernels of one test run, shared by its processes: conftest makes it and removes it."""


@cache
def engine(isa: str, threads: int = 1) -> Engine:
    with emulation():
        return Engine.create(isa, OBJECTS, threads)


def codes(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    """8-bit values of the whole range."""
    return rng.integers(0, 256, shape).astype(np.uint8).view(TYPES[kind])


def exact_result(acc: int, x_scale: Any, w_scale: Any, y_scale: Any, out: str, zero: int) -> int:
    """saturate(RNE(acc * x_scale * w_scale / y_scale) + zero) from the definition; IEEE for what is not finite."""
    low, high = LIMITS[out]
    factors = [float(x_scale), float(w_scale), float(y_scale)]
    if not all(np.isfinite(factors)) or factors[2] == 0:
        with np.errstate(all="ignore"):
            value = np.float64(acc) * (np.float64(factors[0]) * np.float64(factors[1]) / np.float64(factors[2]))
        if np.isnan(value):
            return low
        if np.isinf(value):
            return high if value > 0 else low
        return zero
    rounded = round(Fraction(acc) * Fraction(factors[0]) * Fraction(factors[1]) / Fraction(factors[2]))
    return min(max(rounded + zero, low), high)


def nearest32(value: Fraction) -> Any:
    """The float32 nearest to a real number, ties to even, from the definition."""
    return np.float32(nearest(value, np.float32))


class Guarded:
    """Memory between two unreadable pages: touching anything beyond it kills the process."""

    def __init__(self) -> None:
        self.page = mmap.PAGESIZE
        self.maps: list[Any] = []
        self.protect = ctypes.CDLL(None, use_errno=True).mprotect

    def take(self, size: int, at_end: bool) -> Array:
        """uint8 [size], its first or its last byte next to an unreadable page."""
        pages = -(-max(size, 1) // self.page)
        memory = mmap.mmap(-1, (pages + 2) * self.page)
        whole = np.frombuffer(memory, np.uint8)
        self.maps.append((memory, whole))
        base = whole.ctypes.data
        for place in (0, pages + 1):
            assert self.protect(ctypes.c_void_p(base + place * self.page), ctypes.c_size_t(self.page), 0) == 0
        start = self.page + (pages * self.page - size if at_end else 0)
        return whole[start : start + size]

    def hold(self, monkeypatch: pytest.MonkeyPatch, at_end: bool, *modules: Any) -> None:
        """Put every array that these modules align next to an unreadable page,
        as far as its 64-byte alignment allows."""

        def aligned(shape: tuple[int, ...] | int, dtype: Any, fill: int | None = None) -> Array:
            shape = (shape,) if isinstance(shape, int) else shape
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            whole = self.take(-(-size // 64) * 64 if at_end else size, at_end)
            array = whole[:size].view(dtype).reshape(shape)
            if fill is not None:
                array[...] = fill
            return array

        def aligned_copy(values: Array, dtype: Any = None) -> Array:
            made = aligned(values.shape, values.dtype if dtype is None else dtype)
            made[...] = values
            return made

        for module in modules:
            own = [function for function in (aligned, aligned_copy) if hasattr(module, function.__name__)]
            assert own, module.__name__
            for function in own:
                monkeypatch.setattr(module, function.__name__, function)
