"""Random cases of the integer convolutions and matrix products: shapes, parameter forms and scales that hit ties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODES = ("generic", "pow2", "bigacc", "extreme")
EIGHT = (np.uint8, np.int8)
Rng = np.random.Generator


def codes(rng: Rng, type: Any, shape: tuple[int, ...], mode: str = "generic") -> np.ndarray:
    """Random 8-bit codes, sometimes a view that is not contiguous; small ones in pow2, so that ties are exact."""
    info = np.iinfo(type)
    if mode == "pow2":
        low, high = max(info.min, -4), 5
    else:
        low, high = info.min, info.max + 1
    if mode == "bigacc" and rng.random() < 0.5:
        low = high - 3
    array = rng.integers(low, high, shape).astype(type)
    if array.ndim > 1 and rng.random() < 0.3:
        array = np.asfortranarray(array)
    elif array.ndim and rng.random() < 0.2:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    return array


def zero_point(rng: Rng, type: Any, shape: tuple[int, ...] = ()) -> np.ndarray:
    info = np.iinfo(type)
    kind = rng.integers(4)
    if kind == 0:
        return np.full(shape, rng.choice([info.min, info.max, 0]), type)
    if kind == 1:
        return np.full(shape, 3, type)
    return np.asarray(rng.integers(info.min, info.max + 1, shape)).astype(type)


def scale(rng: Rng, mode: str, shape: tuple[int, ...] = (), output: bool = False) -> np.ndarray:
    if mode == "pow2":
        values = 2.0 ** rng.integers(-3, 4, shape)
    elif mode == "extreme":
        values = rng.choice([np.inf, -np.inf, np.nan, 3e9, 1e30, 1e-30, 1e-45, 1e-40, 0.0, -0.5, 1.0], shape)
    elif rng.random() < 0.3:
        values = 1 / rng.choice([90.0, 255.0, 6.0, 82.0], shape)
    else:
        values = np.exp(rng.normal(-4, 2, shape))
    if output and mode == "bigacc":
        values = np.asarray(values) * 2.0**24
    return np.asarray(values).astype(np.float32)


def form(rng: Rng, length: int) -> tuple[int, ...]:
    """Scalar, [1] or [length]."""
    return [(), (1,), (length,), (length,)][rng.integers(4)]


@dataclass
class ConvCase:
    x: np.ndarray
    w: np.ndarray
    x_zero: np.ndarray
    w_zero: np.ndarray
    x_scale: np.ndarray
    w_scale: np.ndarray
    y_scale: np.ndarray
    y_zero: np.ndarray
    bias: np.ndarray | None
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items() if k not in "xw"}
        return f"x {self.x.dtype}{self.x.shape} w {self.w.dtype}{self.w.shape} {shown}"

    @property
    def inputs(self) -> list[np.ndarray]:
        made = [self.x, self.x_scale, self.x_zero, self.w, self.w_scale, self.w_zero, self.y_scale, self.y_zero]
        return made if self.bias is None else [*made, self.bias]

    @property
    def runs_in_onnxruntime(self) -> bool:
        """Not: empty tensors (it reads unset memory), SAME with dilations (refused) or with strides of at least two
        more than the kernel (SAME_UPPER crops the begin)."""
        strides = self.attributes.get("strides", [])
        far = any(s > k + 1 for s, k in zip(strides, self.w.shape[2:], strict=False))
        same = self.attributes.get("auto_pad", "").startswith("SAME")
        return bool(self.x.size and self.w.size) and not (same and (far or "dilations" in self.attributes))

    @property
    def channel_zeros(self) -> list[int]:
        return np.broadcast_to(self.w_zero.reshape(-1), (self.w.shape[0],)).tolist()


def conv_case(rng: Rng, mode: str, types: tuple[Any, Any, Any] | None = None, rank: int = 0) -> ConvCase:
    rank = rank or int(rng.choice([1, 2, 2, 3]))
    x_type, w_type, y_type = types or tuple(EIGHT[i] for i in rng.integers(0, 2, 3))
    group = int(rng.choice([1, 1, 2, 3]))
    depth, per = (
        int(rng.choice([0, 1, 2, 3], p=[0.04, 0.36, 0.3, 0.3])),
        int(rng.choice([0, 1, 2], p=[0.04, 0.5, 0.46])),
    )
    batch = int(rng.choice([0, 1, 2], p=[0.05, 0.7, 0.25]))
    limit = {1: 8, 2: 5, 3: 3}[rank]
    size = [int(n) for n in rng.integers(0 if rng.random() < 0.05 else 1, limit + 1, rank)]
    kernel = [int(n) for n in rng.integers(1, 4 if rank < 3 else 3, rank)]
    attributes: dict[str, Any] = {}
    dilations = [1] * rank
    if rng.random() < 0.6:
        attributes["strides"] = [int(n) for n in rng.integers(1, 5, rank)]
    if rng.random() < 0.4:
        dilations = attributes["dilations"] = [int(n) for n in rng.integers(1, 4, rank)]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    mark = rng.random()
    if mark < 0.25 and all(size):
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER"]))
    elif mark < 0.35 and all(n >= e for n, e in zip(size, extent, strict=True)):
        attributes["auto_pad"] = "VALID"
    else:
        begin, end = rng.integers(0, 3, rank).tolist(), rng.integers(0, 3, rank).tolist()
        end = [max(f, e - n - b) for n, e, b, f in zip(size, extent, begin, end, strict=True)]
        if any(begin) or any(end):
            attributes["pads"] = begin + end
    if group > 1:
        attributes["group"] = group
    if rng.random() < 0.3:
        attributes["kernel_shape"] = kernel
    channels = group * per
    bias = None
    if mode == "bigacc":
        bias = rng.choice([2**31 - 1, -(2**31), 2**30, -(2**30), 2**31 - 70000], channels).astype(np.int32)
    elif rng.random() < 0.5:
        bias = (
            rng.integers(-3000, 3000, channels).astype(np.int32) if mode != "pow2" else np.full(channels, 5, np.int32)
        )
    return ConvCase(
        codes(rng, x_type, (batch, group * depth, *size), mode),
        codes(rng, w_type, (channels, depth, *kernel), mode),
        zero_point(rng, x_type, [(), (1,)][rng.integers(2)]),
        zero_point(rng, w_type, form(rng, channels)),
        scale(rng, mode, [(), (1,)][rng.integers(2)]),
        scale(rng, mode, form(rng, channels)),
        scale(rng, mode, output=True),
        zero_point(rng, y_type, [(), (1,)][rng.integers(2)]),
        bias,
        attributes,
    )


@dataclass
class MatMulCase:
    a: np.ndarray
    b: np.ndarray
    a_zero: np.ndarray
    b_zero: np.ndarray
    a_scale: np.ndarray
    b_scale: np.ndarray
    y_scale: np.ndarray
    y_zero: np.ndarray

    def __str__(self) -> str:
        shown = {k: v.tolist() for k, v in vars(self).items() if k not in "ab"}
        return f"a {self.a.dtype}{self.a.shape} b {self.b.dtype}{self.b.shape} {shown}"

    @property
    def inputs(self) -> list[np.ndarray]:
        left = [self.a, self.a_scale, self.a_zero, self.b, self.b_scale, self.b_zero]
        return [*left, self.y_scale, self.y_zero]


def operand_form(rng: Rng, shape: tuple[int, ...], *, columns: bool, plain: bool) -> tuple[int, ...]:
    """A parameter's shape: scalar, [1], [n] for a matrix, [...,n,1] or [...,1,n], leading ones."""
    if plain or len(shape) < 2:
        return [(), (1,)][rng.integers(2)]
    keep = -1 if columns else -2
    full = list(shape)
    full[-2 if columns else -1] = 1
    ones = [1] * len(shape)
    ones[keep] = shape[keep]
    choices = [(), (1,), tuple(full), tuple(ones)]
    if len(shape) == 2:
        choices.append((shape[keep],))
    return choices[rng.integers(len(choices))]


def matmul_case(rng: Rng, mode: str, types: tuple[Any, Any, Any] | None = None, plain: bool = False) -> MatMulCase:
    """plain: per-tensor parameters only."""
    a_type, b_type, y_type = types or tuple(EIGHT[i] for i in rng.integers(0, 2, 3))
    m, k, n = (int(v) for v in rng.choice([0, 1, 2, 3, 5], 3, p=[0.05, 0.2, 0.3, 0.25, 0.2]))
    if mode == "bigacc":
        m, n, k = min(m, 2), min(n, 2), int(rng.choice([17000, 33026, 34000]))
    lead = [(), (), (2,), (2, 3), (1,)][rng.integers(5)] if mode != "bigacc" else ()
    a_shape, b_shape = (*lead, m, k), (*lead, k, n)
    kind = rng.integers(8)
    if kind == 0:
        a_shape = (k,)
    if kind in (1, 2):
        b_shape = (k,) if kind == 1 else (k, n)
    if kind == 3:
        a_shape, b_shape = (k,), (k,)
    if kind == 4 and len(lead) == 2:
        a_shape, b_shape = (lead[0], 1, m, k), (1, lead[1], k, n)
    return MatMulCase(
        codes(rng, a_type, a_shape, mode),
        codes(rng, b_type, b_shape, mode),
        zero_point(rng, a_type, operand_form(rng, a_shape, columns=False, plain=plain)),
        zero_point(rng, b_type, operand_form(rng, b_shape, columns=True, plain=plain)),
        scale(rng, mode, operand_form(rng, a_shape, columns=False, plain=plain)),
        scale(rng, mode, operand_form(rng, b_shape, columns=True, plain=plain)),
        scale(rng, mode, output=True),
        zero_point(rng, y_type, [(), (1,)][rng.integers(2)]),
    )
