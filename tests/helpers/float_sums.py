"""Random products and convolutions of floats, and the sums that their results are.

``cd tests; python -m helpers.float_sums ROUNDS [SEED [ISA]]`` compares as many as one likes with the real sums: each
element is within the bound of numerics.md, F1, and the native backend gives the bits of the reference."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
from oracle.cast import nearest
from oracle.chains import ordered_product, reaches, transposed_terms, window_terms

from helpers.native import Array
from helpers.placed import same_runs
from helpers.sums import KINDS, assert_bits, operands
from helpers.support import assert_equal, node_model, run_qrun

F = np.float32
NARROW_KINDS = ("normal", "cancelling", "signs")
"""Kinds of numbers that narrow types have."""


class Case(NamedTuple):
    """A node; constants: which of its inputs are."""

    op: str
    inputs: Sequence[Array | None]
    attributes: dict[str, Any]
    constants: Sequence[int] = ()

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        kept = [place for place in self.constants if place < len(self.inputs)]
        outputs = (np.asarray(self.inputs[0]).dtype,)
        return node_model(self.op, self.inputs, self.attributes, constants=kept, outputs=outputs, opset=22)

    def __str__(self) -> str:
        shapes = " ".join(f"{x.dtype}{list(x.shape)}" for x in self.inputs if x is not None)
        return f"{self.op} {shapes} {self.attributes} constants {tuple(self.constants)}"


class Sums(NamedTuple):
    """Elements [m,n] of a result, which are alpha * a @ b + added. begins: whether sums begin with what is added."""

    y: Array
    a: Array
    b: Array
    alpha: float = 1.0
    added: Array | None = None
    begins: bool = False


def sums_of(case: Case, y: Array) -> Iterator[Sums]:
    """What all elements of a result y of the case are."""
    given = [None if x is None else x.astype(F) for x in case.inputs]
    a, b, c = (*given, None)[:3]
    assert a is not None
    assert b is not None
    yield from {"Gemm": _gemm, "Conv": _conv, "ConvTranspose": _transposed}.get(case.op, _matmul)(
        case.attributes, a, b, c, y
    )


def _matmul(attributes: dict[str, Any], a: Array, b: Array, c: Array | None, y: Array) -> Iterator[Sums]:
    a = a.swapaxes(-1, -2) if attributes.get("transA") else a
    b = b.swapaxes(-1, -2) if attributes.get("transB") else b
    a, b = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    whole = y.reshape(*lead, a.shape[-2], b.shape[-1])
    for index in np.ndindex(*lead):
        yield Sums(whole[index], a[index], b[index], float(F(attributes.get("alpha", 1))))


def _gemm(attributes: dict[str, Any], a: Array, b: Array, c: Array | None, y: Array) -> Iterator[Sums]:
    a, b = (a.T if attributes.get("transA") else a), (b.T if attributes.get("transB") else b)
    alpha, beta = (float(F(attributes.get(name, 1))) for name in ("alpha", "beta"))
    yield Sums(y, a, b, alpha, None if c is None else c.astype(np.float64) * beta, begins=True)


def _geometry(attributes: dict[str, Any], rank: int) -> tuple[int, list[int], list[int], list[int]]:
    names = (("strides", 1), ("dilations", 1), ("pads", 0))
    strides, dilations, pads = (list(attributes.get(n) or [x] * rank * (2 - x)) for n, x in names)
    return attributes.get("group", 1), strides, dilations, pads


def _conv(attributes: dict[str, Any], x: Array, w: Array, bias: Array | None, y: Array) -> Iterator[Sums]:
    group, *geometry = _geometry(attributes, x.ndim - 2)
    each, pixels = len(w) // group, int(np.prod(y.shape[2:]))
    parts = y.reshape(len(y), group, each, pixels).transpose(1, 0, 3, 2).reshape(group, -1, each)
    for g, (rows, columns) in enumerate(zip(*window_terms(x, w, group, *geometry), strict=True)):
        added = None if bias is None else bias[g * each : (g + 1) * each]
        yield Sums(parts[g], rows, columns, added=added)


def _transposed(attributes: dict[str, Any], x: Array, w: Array, bias: Array | None, y: Array) -> Iterator[Sums]:
    group, strides, dilations, pads = _geometry(attributes, x.ndim - 2)
    each, begin = w.shape[1], pads[: x.ndim - 2]
    terms = transposed_terms(x, w, group, strides, dilations, begin, y.shape[2:])
    for place, pairs in terms.items():
        for g, (rows, columns) in enumerate(zip(*pairs, strict=True)):
            own = slice(g * each, (g + 1) * each)
            yield Sums(y[(slice(None), own, *place)], rows, columns, added=None if bias is None else bias[own])


def ordered(case: Case, y: Array) -> list[Array]:
    """The elements of `sums_of` as F1 orders their sums, step by step; y: any result."""
    made = []
    with np.errstate(all="ignore"):
        for part in sums_of(case, y):
            added = None if part.added is None else part.added.astype(F)
            more = (added, None) if part.begins else (None, added)
            made.append(ordered_product(part.a, part.b, part.alpha, *more))
    return made


def assert_ordered(case: Case, y: Array, want: Sequence[Array]) -> None:
    """Every element of float32 is the sum that `ordered` made, bit for bit."""
    for part, array in zip(sums_of(case, y), want, strict=True):
        assert_bits(np.ascontiguousarray(part.y), array, str(case))


def assert_within(case: Case, y: Array) -> int:
    """Every element is as near to the real sum as F1 says; how many could be compared: no step of their sums
    overflows."""
    found = 0
    for part in sums_of(case, y):
        for row, elements in zip(part.y, reaches(part.a, part.b, part.alpha, part.added), strict=True):
            for value, (real, reach, size) in zip(row.tolist(), elements, strict=True):
                if size >= 2**127:
                    continue
                low, high = (nearest(real + side * reach, y.dtype) for side in (-1, 1))
                exact = y.dtype != F or abs(value - real) <= reach
                assert low <= value <= high and exact, f"{case}: {value}, real sum {float(real)}, reach {float(reach)}"  # noqa: PT018
                found += 1
    return found


DEPTHS = (0, 1, 255, 256, 257, 513, 4097)
"""k, around blocks of 256."""
FACTORS = ((1.0, 1.0), (0.3, -1.7), (-1.0, 0.0), (1e30, 1.0))
"""alpha and beta."""
WINDOWS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("Conv", (1, 57, 3, 4), (5, 57, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("Conv", (2, 12, 3, 3), (8, 3, 3, 2), {"group": 4, "pads": (1, 0, 0, 1), "strides": (1, 2)}),
    ("Conv", (1, 8, 3, 3), (8, 4, 3, 3), {"group": 2, "pads": (1, 1, 1, 1), "dilations": (2, 1)}),
    ("Conv", (1, 8, 1, 75), (8, 4, 1, 65), {"group": 2}),
    ("Conv", (1, 17, 4, 5), (17, 1, 3, 3), {"group": 17, "pads": (1, 1, 1, 1)}),
    ("Conv", (1, 17, 18, 17), (17, 1, 17, 16), {"group": 17, "pads": (0, 1, 0, 0)}),
    ("Conv", (2, 300, 3), (9, 300, 1), {}),
    ("Conv", (1, 3, 2, 3, 3), (4, 3, 2, 2, 2), {"pads": (1, 0, 0, 1, 1, 0)}),
    ("ConvTranspose", (1, 130, 3), (130, 5, 3), {"pads": (1, 0)}),
    ("ConvTranspose", (2, 6, 2, 3), (6, 4, 3, 3), {"strides": (2, 3), "pads": (1, 0, 0, 1), "group": 2}),
    ("ConvTranspose", (1, 4, 2, 2, 1), (4, 3, 2, 1, 2), {"strides": (2, 1, 1)}),
)
"""Operator, image, kernel, geometry: one block, several, and every kind of kernel."""


def order_cases(kind: str) -> Iterator[Case]:
    """Sums of numbers of a kind in which every part of the order shows."""
    rng = np.random.default_rng(len(kind))
    for k in DEPTHS:
        a, b = operands(kind, rng, *((3, k, 9) if k < 4097 else (2, k, 3)))
        yield Case("MatMul", [a, b], {}, (1,) * (k % 2))
        if k == 4097:
            continue
        for number, (alpha, beta) in enumerate(FACTORS):
            factors = {"alpha": float(F(alpha)), "beta": float(F(beta))}
            c = rng.choice(np.array([0, -0.0, 1, -0.37, 1e-40], F), [(3, 9), (9,), (3, 1), ()][(number + k) % 4])
            yield Case("Gemm", [a, b, c], factors, ((), (1,), (1, 2))[k % 3])
        yield Case("Gemm", [a, b], {"alpha": 0.3}, (1,) * (k % 2))
        yield Case("com.microsoft::FusedMatMul", [a, b], {"alpha": 0.3})
    for op, x_shape, w_shape, geometry in WINDOWS:
        x, w = _image(rng, kind, (x_shape, w_shape))
        if op == "ConvTranspose":
            w = np.nan_to_num(w, nan=2, posinf=3, neginf=-3)
        channels = w_shape[0] if op == "Conv" else w_shape[1] * geometry.get("group", 1)
        bias = rng.choice(np.array([0, -0.0, 1.5, -0.37], F), channels)
        yield Case(op, [x, w, bias], geometry, (1, 2))
        yield Case(op, [x, w], geometry, (1,))


def random_case(seed: int) -> Case:
    """A product or a convolution of finite numbers."""
    rng = np.random.default_rng(seed)
    makers: list[Callable[[np.random.Generator, str], Case]]
    makers = [_random_matmul, _random_gemm, _random_gemm, _random_fused, _random_conv, _random_transposed]
    dtype = rng.choice(np.array([F, np.float16, ml_dtypes.bfloat16]), p=[0.8, 0.1, 0.1])
    kind = str(rng.choice(KINDS if dtype is F else NARROW_KINDS))
    made = makers[rng.integers(len(makers))](rng, kind)
    held = [place for place in range(len(made.inputs)) if rng.random() < 0.5]
    inputs = [None if x is None else np.ascontiguousarray(x.astype(dtype)) for x in made.inputs]
    return made._replace(inputs=inputs, constants=held)


def _size(rng: np.random.Generator) -> tuple[int, int, int]:
    """m, k and n: many k are short, some several blocks."""
    m, n = (int(rng.choice([1, 2, 3, 5, 8, 17])) for _ in range(2))
    k = (
        int(rng.choice([1, 2, 7, 33, 255, 256, 257, 511, 513, 1100]))
        if rng.random() < 0.5
        else int(rng.integers(1, 90))
    )
    return m if m * n * k < 20000 else 1, k, n


def _random_matmul(rng: np.random.Generator, kind: str) -> Case:
    m, k, n = _size(rng)
    a, b = operands(kind, rng, m, k, n)
    left, right = [((), ()), ((2,), ()), ((), (2,)), ((2, 1), (1, 3))][rng.integers(4)]
    a = np.stack([a, *(operands(kind, rng, m, k, n)[0] for _ in range(int(np.prod(left)) - 1))])
    b = np.stack([b, *(operands(kind, rng, m, k, n)[1] for _ in range(int(np.prod(right)) - 1))])
    return Case("MatMul", [a.reshape(*left, m, k), b.reshape(*right, k, n)], {})


def _factor(rng: np.random.Generator) -> float:
    return float(rng.choice(np.array([1, 1, -1, 0.5, 0.3, -1.7, 1e-3, 0], F)))


def _random_gemm(rng: np.random.Generator, kind: str) -> Case:
    m, k, n = _size(rng)
    a, b = operands(kind, rng, m, k, n)
    turns = {"transA": int(rng.integers(2)), "transB": int(rng.integers(2))}
    inputs: list[Array | None] = [a.T if turns["transA"] else a, b.T if turns["transB"] else b]
    shape = [None, (m, n), (n,), (1, n), (m, 1), (1,), (1, 1), ()][rng.integers(8)]
    if shape is not None:
        size = min(float(np.abs(a.astype("d") @ b.astype("d")).max()), 1e37)
        inputs.append(np.asarray(rng.standard_normal(shape) * size).astype(F))
    return Case("Gemm", inputs, {**turns, "alpha": _factor(rng), "beta": _factor(rng)})


def _random_fused(rng: np.random.Generator, kind: str) -> Case:
    m, k, n = _size(rng)
    a, b = operands(kind, rng, m, k, n)
    turns = {"transA": int(rng.integers(2)), "transB": int(rng.integers(2))}
    inputs = [a.T if turns["transA"] else a, b.T if turns["transB"] else b]
    return Case("com.microsoft::FusedMatMul", inputs, {**turns, "alpha": _factor(rng)})


def _windows(rng: np.random.Generator) -> tuple[int, list[int], dict[str, list[int]]]:
    """Spatial axes, the kernel, and a geometry."""
    rank = int(rng.integers(1, 4))
    kernel = [int(n) for n in rng.integers(1, 4 if rank < 3 else 3, rank)]
    geometry = {
        "strides": [int(n) for n in rng.integers(1, 3, rank)],
        "dilations": [int(n) for n in rng.integers(1, 3, rank)],
        "pads": [int(n) for n in rng.integers(0, 2, 2 * rank)],
    }
    return rank, kernel, geometry


def _channels(rng: np.random.Generator, rank: int) -> tuple[int, int, int]:
    """Groups, and inputs and outputs of each."""
    group = int(rng.choice([1, 1, 2, 5, 17]))
    deep = int(rng.choice([1, 2, 4, 9, *([40, 70] if rank < 3 and group < 5 else [])]))
    return group, 1 if group == 17 else deep, int(rng.choice([1, 2, 3]))


def _image(rng: np.random.Generator, kind: str, shapes: Sequence[Sequence[int]]) -> list[Array]:
    x, w = operands(kind, rng, int(np.prod(shapes[0])), 1, int(np.prod(shapes[1])))
    return [x.reshape(shapes[0]), w.reshape(shapes[1])]


def _random_conv(rng: np.random.Generator, kind: str) -> Case:
    rank, kernel, geometry = _windows(rng)
    group, depth, each = _channels(rng, rank)
    extent = [(n - 1) * d + 1 for n, d in zip(kernel, geometry["dilations"], strict=True)]
    size = [n + int(rng.integers(0, 4)) for n in extent]
    images = int(rng.integers(1, 3))
    inputs: list[Array | None] = [*_image(rng, kind, ((images, group * depth, *size), (group * each, depth, *kernel)))]
    if rng.random() < 0.6:
        inputs.append(rng.standard_normal(group * each).astype(F))
    return Case("Conv", inputs, {"group": group, **geometry})


def _random_transposed(rng: np.random.Generator, kind: str) -> Case:
    rank, kernel, geometry = _windows(rng)
    group, depth, each = _channels(rng, rank)
    size = [int(n) + 1 for n in rng.integers(1, 4, rank)]
    inputs: list[Array | None] = [*_image(rng, kind, ((1, group * depth, *size), (group * depth, each, *kernel)))]
    if rng.random() < 0.6:
        inputs.append(rng.standard_normal(group * each).astype(F))
    longest = [max(s, d) for s, d in zip(geometry["strides"], geometry["dilations"], strict=True)]
    padding = [int(rng.integers(0, n)) for n in longest]
    return Case("ConvTranspose", inputs, {"group": group, **geometry, "output_padding": padding})


def compare(seed: int, isa: str = "") -> int:
    """Raises AssertionError where a backend is wrong; how many elements were compared."""
    case = random_case(seed)
    model, feeds = case.model()
    y = np.asarray(run_qrun(model, feeds)[0])
    same = assert_bits if y.dtype == F else assert_equal
    same_runs(model, feeds, times=2, same=same, isa=isa, threads=1 + seed % 4)
    return assert_within(case, y)


def main() -> None:
    from helpers.emulation import emulation

    rounds, seed, isa = (*sys.argv[1:], *("100", "0", "")[len(sys.argv) - 1 :])
    bad = found = 0
    with emulation():
        for number in range(int(seed), int(seed) + int(rounds)):
            try:
                found += compare(number, isa)
            except Exception as error:
                bad += 1
                print(f"seed {number}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"{rounds} cases from seed {seed}{' on ' * bool(isa)}{isa}, {found} elements, {bad} bad")


if __name__ == "__main__":
    main()
