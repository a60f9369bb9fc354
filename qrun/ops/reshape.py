"""Views of the same elements: Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Identity. Repeated elements: Expand,
Tile. Others: CenterCropPad, Col2Im, ReverseSequence, TensorScatter, BitCast, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare import Later
from qrun.ir.types import DTYPES, NUMBERS, PACKED_BITS, shape_text, type_name
from qrun.ops._op import Array, Context, Shape, bad_attribute, bad_shape, misfit, one_of, op, refuse
from qrun.ops._shape import check_shape, claim, ints, same_length
from qrun.ops._signature import Whole
from qrun.ops.lowering.copies import moving_kernel, view_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel

if TYPE_CHECKING:
    from qrun.ops import _float
else:
    _float = Later("qrun.ops._float")


@op("Reshape", since=5, form="moves", native=view_kernel)
def reshape(data: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Give `data` a new shape, in row-major order; a view if possible.

    shape: 1-D int64. -1, at most once: the rest. 0: data's dimension at that place, or really 0 if allowzero.
    Refuses shapes of another size, and -1 where a zero-sized tensor leaves it open.
    """
    wanted = ints(shape, "shape")
    dims = list(wanted)
    for axis, n in enumerate(wanted):
        if n < -1:
            raise _misfit(data, wanted, "dimensions of -1 or more")
        if n == 0 and not allowzero:
            if axis >= data.ndim:
                raise _misfit(data, wanted, f"no 0 beyond axis {data.ndim - 1}: 0 copies a dimension of data")
            dims[axis] = data.shape[axis]
    if dims.count(-1) > 1:
        raise _misfit(data, wanted, "at most one -1")
    if -1 in dims:
        if allowzero and 0 in dims:
            raise _misfit(data, wanted, "not both 0 and -1 when allowzero is 1")
        rest = math.prod(n for n in dims if n != -1)
        if not rest or data.size % rest:
            expected = "no -1: a dimension of 0 leaves it open" if not rest else f"-1 or a divisor of {data.size}"
            raise _misfit(data, wanted, expected)
        dims[dims.index(-1)] = data.size // rest
    if math.prod(dims) != data.size:
        raise _misfit(data, wanted, f"{data.size} elements, as data {shape_text(data.shape)}")
    return data.reshape(check_shape(dims, data.itemsize, "shape"))


def _misfit(data: Array, shape: Sequence[int], expected: str) -> Exception:
    """The error of a shape that data does not fit."""
    what = f"data {shape_text(data.shape)} does not reshape to {list(shape)}"
    return misfit(what, "shape", expected, str(list(shape)), why="Reshape keeps the number of elements.")


@op("Flatten", since=1, form="moves", native=view_kernel)
def flatten(input: Array, *, axis: int = 1) -> Array:
    """Reshape `input` to a matrix [d_0 * ... * d_(axis-1), d_axis * ... * d_(r-1)]; a view if possible.

    axis: -r to r.
    """
    rank = input.ndim
    if not -rank <= axis <= rank:
        raise refuse(f"axis {axis} does not exist", "axis", f"-{rank} to {rank}", axis, code="QR204")
    split = axis + rank if axis < 0 else axis
    dims = (math.prod(input.shape[:split]), math.prod(input.shape[split:]))
    return input.reshape(check_shape(dims, input.itemsize, "input"))


def _squeeze(data: Array, axes: Sequence[int] | None) -> Array:
    """Remove axes of length 1; all of them if none are given. Raises OperatorError."""
    if axes is None:
        gone = tuple(axis for axis, n in enumerate(data.shape) if n == 1)
    else:
        gone = _float.axes_in(axes, data.ndim)
    for axis in gone:
        if data.shape[axis] != 1:
            what = f"axis {axis} has {data.shape[axis]} elements"
            got = f"axis {axis} of {shape_text(data.shape)}"
            raise misfit(what, "axes", "axes of length 1", got, why="Squeeze removes axes of length 1 only.")
    return data.reshape([n for axis, n in enumerate(data.shape) if axis not in gone])


@op("Squeeze", since=1, form="moves", native=view_kernel)
def squeeze_1(data: Array, *, axes: tuple[int, ...] = ()) -> Array:
    """Remove the given axes, which must have length 1; all such axes if none are given. A view where possible.

    Source: ONNX operators, Squeeze-11.
    """
    return _squeeze(data, axes or None)


@op("Squeeze", since=13, form="moves", native=view_kernel)
def squeeze(data: Array, axes: Array | None = None) -> Array:
    """Remove the given axes, which must have length 1; all such axes if `axes` is omitted. A view where possible.

    axes: 1-D int64, -r to r-1, each once; an empty one removes nothing.
    """
    return _squeeze(data, None if axes is None else ints(axes, "axes", scalar=True))


def _unsqueeze(data: Array, axes: Sequence[int]) -> Array:
    """Insert axes of length 1. Raises OperatorError."""
    rank = data.ndim + len(axes)
    new = set(_float.axes_in(axes, rank))
    rest = iter(data.shape)
    dims: Shape = tuple(1 if axis in new else next(rest) for axis in range(rank))
    return data.reshape(check_shape(dims, data.itemsize, "axes"))


@op("Unsqueeze", since=1, form="moves", native=view_kernel)
def unsqueeze_1(data: Array, *, axes: tuple[int, ...]) -> Array:
    """Insert axes of length 1 at the given positions of the output. A view if possible.

    Source: ONNX operators, Unsqueeze-11.
    """
    return _unsqueeze(data, axes)


@op("Unsqueeze", since=13, form="moves", native=view_kernel)
def unsqueeze(data: Array, axes: Array) -> Array:
    """Insert axes of length 1 at the given positions of the output. A view if possible.

    axes: 1-D int64, each once, -r to r-1 where r is the output's rank.
    """
    return _unsqueeze(data, ints(axes, "axes", scalar=True))


@op("Transpose", since=1, form="moves")
def transpose(data: Array, *, perm: tuple[int, ...] = ()) -> Array:
    """Permute the axes: axis i of the output is axis perm[i] of the input; reversed if perm is not given. A view."""
    order = perm or tuple(range(data.ndim))[::-1]
    if sorted(order) != list(range(data.ndim)):
        expected = f"0 to {data.ndim - 1}, each once" if data.ndim else "nothing for a scalar"
        raise bad_attribute("perm", expected, shape_text(order))
    return data.transpose(order)


@transpose.native
def _lower_transpose(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.copy import transpose_copy

    perm = site.attributes["perm"] or tuple(range(site.inputs[0].ndim))[::-1]
    return moving_kernel(site, lambda x, y: transpose_copy(site.engine, x.shape, x.dtype, perm))


@op("Identity", since=1, form="moves", native=view_kernel, compounds="passes")
def identity(input: Array) -> Array:
    """Return the input unchanged."""
    return input


@op("Expand", since=8, form="moves")
def expand(input: Array, shape: Array, *, ctx: Context) -> Array:
    """Broadcast input with `shape`, a 1-D int64 tensor.

    The same array if it has that shape. Raises OperatorError for shapes that do not broadcast.
    """
    wanted = ints(shape, "shape")
    dims = []
    for n, m in zip_longest(reversed(input.shape), reversed(wanted), fillvalue=1):
        if m < 0 or (n != m and 1 not in (n, m)):
            what = f"input {shape_text(input.shape)} does not expand to {shape_text(wanted)}"
            expected = f"a shape that broadcasts with {shape_text(input.shape)}"
            why = "axes are matched from the last; each pair must be equal, or one of them 1."
            raise misfit(what, "shape", expected, shape_text(wanted), why=why)
        dims.append(m if n == 1 else n)
    made = claim(ctx, dims[::-1], input.dtype, "shape")
    return input if made == input.shape else np.array(np.broadcast_to(input, made))


@op("Tile", since=6, form="moves")
def tile(input: Array, repeats: Array, *, ctx: Context) -> Array:
    """Repeat input repeats[i] times along each axis i; repeats is 1-D int64, with one number >= 0 per axis.

    Raises OperatorError for another length and for a negative number.
    """
    times = ints(repeats, "repeats")
    same_length(times, input.ndim, "repeats", "Tile: one number for each axis of input.")
    if any(n < 0 for n in times):
        raise refuse("a number of repeats is negative", "repeats", "0 or more", shape_text(times))
    claim(ctx, [n * m for n, m in zip(input.shape, times, strict=True)], input.dtype, "repeats")
    return np.tile(input, times)


@tile.native
@expand.native
def _lower_repeats(site: LoweringContext) -> NativeKernel:
    """The native kernel of Tile and Expand."""
    from qrun.ops.lowering.moves import repeat_kernel

    return repeat_kernel(site)


@op("CenterCropPad", since=18)
def center_crop_pad(input_data: Array, shape: Array, *, axes: tuple[int, ...] | None = None, ctx: Context) -> Array:
    """Crop axes that are longer than `shape` to their center, and pad shorter ones with zeros on both sides; exact.

    The smaller half is cut, or added, before. axes: the axes for which `shape` has numbers; all if left out.
    Raises OperatorError for axes and numbers that do not fit.
    """
    chosen = tuple(range(input_data.ndim)) if axes is None else _float.axes_in(axes, input_data.ndim)
    wanted = ints(shape, "shape")
    same_length(wanted, len(chosen), "shape", "one number for each axis")
    if min(wanted, default=0) < 0:
        raise misfit("a length is negative", "shape", "0 or more", shape_text(wanted))
    dims = list(input_data.shape)
    for axis, length in zip(chosen, wanted, strict=True):
        dims[axis] = length
    made = np.zeros(claim(ctx, dims, input_data.dtype, "shape"), input_data.dtype)
    if made.dtype == object:
        made[...] = ""
    there, here = [], []
    for old, new in zip(input_data.shape, dims, strict=True):
        kept = min(old, new)
        there.append(slice((old - kept) // 2, (old - kept) // 2 + kept))
        here.append(slice((new - kept) // 2, (new - kept) // 2 + kept))
    made[tuple(here)] = input_data[tuple(there)]
    return made


@op("Col2Im", since=18)
def col2im(
    input: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    ctx: Context,
) -> Array:
    """Adds columns of blocks at their places in an image: [N,C*block,L] to [N,C,image...].

    L counts the places of a block in the image with its pads. Numbers of floating point are added in float64 and
    rounded once, integers wrap. Raises OperatorError for shapes that do not fit, strings and bool.
    """
    image, block = ints(image_shape, "image_shape"), ints(block_shape, "block_shape")
    rank = len(image)
    step, gap, both = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * (2 * rank)
    lengths = {2 * rank, *(2 * len(given) for given in (block, step, gap)), len(both)}
    if not rank or len(lengths) > 1 or min((*step, *gap, *block)) < 1:
        raise refuse(
            "the geometry does not fit", "block_shape", f"{rank} positive numbers", shape_text(block), code="QR216"
        )
    full = [n + a + b for n, a, b in zip(image, both[:rank], both[rank:], strict=True)]
    out = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(full, block, gap, step, strict=True)]
    taps = math.prod(block)
    if input.ndim != 3 or input.shape[1] % taps or input.shape[2] != math.prod(max(n, 0) for n in out):
        expected = f"[N,C*{taps},{math.prod(max(n, 0) for n in out)}]"
        raise misfit("input does not fit the image", "input", expected, input)
    if input.dtype == object or input.dtype == bool:
        raise refuse("elements of this type cannot be added", "input", "numbers", type_name(input.dtype), code="QR203")
    wide = np.dtype(input.dtype if _float.is_integer(input.dtype) or input.dtype.kind == "c" else np.float64)
    channels = input.shape[1] // taps
    made = np.zeros(claim(ctx, (input.shape[0], channels, *full), wide, "image_shape"), wide)
    columns = input.reshape(input.shape[0], channels, *block, *out)
    with np.errstate(all="ignore"):
        for offset in itertools.product(*map(range, block)):
            spans = zip(offset, gap, step, out, strict=True)
            where = tuple(slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, s, n in spans)
            within: tuple[Any, ...] = (..., *where)
            taken: tuple[Any, ...] = (slice(None), slice(None), *offset)
            made[within] += columns[taken]
    middle: tuple[Any, ...] = (..., *(slice(a, a + n) for a, n in zip(both[:rank], image, strict=True)))
    inner = made[middle]
    return np.ascontiguousarray(inner) if wide == input.dtype else _float.narrow(inner, input.dtype)


@op("ReverseSequence", since=10, form="moves", wholes={"sequence_lens": Whole((("input", "time_axis"),))})
def reverse_sequence(
    input: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0, ctx: Context
) -> Array:
    """Reverse the first sequence_lens[b] elements along time_axis for each b of batch_axis; exact.

    sequence_lens int64 [batch], 0 to the time axis' length. Raises OperatorError for other lengths, and axes that are
    not 0 and 1.
    """
    if {batch_axis, time_axis} != {0, 1} or input.ndim < 2:
        got = f"time {time_axis}, batch {batch_axis}"
        raise refuse("the axes are not 0 and 1", "time_axis", "0 and 1, of rank 2 or more", got, code="QR204")
    ctx.claim(input.shape, input.itemsize)
    batch, most = input.shape[batch_axis], input.shape[time_axis]
    lengths = ints(sequence_lens, "sequence_lens") if sequence_lens.size <= 128 else tuple(sequence_lens.tolist())
    same_length(lengths, batch, "sequence_lens", "one number for each sequence")
    if lengths and (min(lengths) < 0 or max(lengths) > most):
        bad = max(lengths) if max(lengths) > most else min(lengths)
        raise refuse(f"a sequence has length {bad}", "sequence_lens", f"0 to {most}", str(bad), code="QR209")
    made = np.array(input, order="C")
    for number, length in enumerate(lengths):
        line: tuple[slice | int, ...] = (slice(length), number) if batch_axis else (number, slice(length))
        part = input[line]
        made[line] = part[::-1]
    return made


@op("TensorScatter", since=24)
def tensor_scatter(
    past_cache: Array,
    update: Array,
    write_indices: Array | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
    ctx: Context,
) -> Array:
    """Overwrite the rows of the cache from write_indices[b] on with `update` [B,...,rows,...]; exact.

    past_cache [B,...,longest,...], the rows along `axis`, which is not 0. write_indices int64 [B], 0 where they are
    left out. mode circular: after the last row comes the first.
    Raises OperatorError for shapes, rows and modes that do not fit.
    """
    dim = _float.axis_in(axis, past_cache.ndim)
    fits = update.ndim == past_cache.ndim and all(
        n == m or (a == dim and n <= m) for a, (n, m) in enumerate(zip(update.shape, past_cache.shape, strict=True))
    )
    if not dim or not fits:
        expected = f"{shape_text(past_cache.shape)}, or fewer along an axis that is not 0"
        raise misfit("update does not fit the cache", "update", expected, update)
    one_of("mode", mode, ("linear", "circular"))
    longest, rows = past_cache.shape[dim], update.shape[dim]
    starts = np.zeros(past_cache.shape[0], np.int64) if write_indices is None else write_indices
    if starts.shape != past_cache.shape[:1]:
        raise misfit("write_indices do not fit", "write_indices", f"[{past_cache.shape[0]}]", starts)
    most = longest - rows if mode == "linear" else longest - 1
    if starts.size and rows and (starts.min() < 0 or starts.max() > most):
        bad = int(starts.max() if starts.max() > most else starts.min())
        raise refuse(f"write_indices has {bad}", "write_indices", f"0 to {most}", str(bad), code="QR209")
    ctx.claim(past_cache.shape, past_cache.itemsize)
    made = np.array(past_cache, order="C")
    for number, start in enumerate(starts.tolist()):
        if rows:
            where = (start + np.arange(rows)) % longest
            np.moveaxis(made[number], dim - 1, 0)[where] = np.moveaxis(update[number], dim - 1, 0)
    return made


@op("BitCast", since=26)
def bit_cast(input: Array, *, to: int, ctx: Context) -> Array:
    """Reinterpret the bits as a different element type of the same width; exact. Source: ONNX operators, BitCast-26.

    Raises OperatorError for a type with another number of bits, and strings.
    """
    kind = DTYPES.get(to)
    bits = [_bits(input.dtype), _bits(kind)]
    if kind is None or not bits[0] or bits[0] != bits[1]:
        got = f"{to} {type_name(kind)}" if kind else str(to)
        expected = f"a type of {bits[0]} bits, as {type_name(input.dtype)}"
        raise refuse("the types have other bits", "to", expected, got, code="QR203")
    ctx.claim(input.shape, input.itemsize)
    if bits[0] < 8:
        return (input.view(np.uint8) & np.uint8((1 << bits[0]) - 1)).view(kind)
    truth = kind.kind == "b"
    made = np.array(input, order="C").view(np.uint8 if truth else kind)
    return np.asarray(made != 0) if truth else made


def _bits(kind: np.dtype[Any] | None) -> int:
    """The bits of an element; 0 for strings and for None."""
    return 0 if kind is None or kind.kind == "O" else PACKED_BITS.get(NUMBERS[kind], 8 * kind.itemsize)


@op("DepthToSpace", since=1, form="moves")
def depth_to_space(input: Array, *, blocksize: int, mode: str = "DCR", ctx: Context) -> Array:
    """Move channels into blocks of pixels: [N,C,H,W] becomes [N,C/b/b,H*b,W*b], where b = blocksize.

    mode: how the input's channels are counted: DCR by row in the block, column in the block, output channel;
    CRD by output channel, row, column. Exact.
    Raises OperatorError for another mode or rank, and for channels that b * b does not divide.
    """
    _check(input, blocksize, mode, ((1, "channels", blocksize * blocksize),))
    ctx.claim(input.shape, input.itemsize)
    n, c, h, w = input.shape
    rest = c // (blocksize * blocksize)
    if mode == "DCR":
        blocks = input.reshape(n, blocksize, blocksize, rest, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = input.reshape(n, rest, blocksize, blocksize, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, rest, h * blocksize, w * blocksize)


@op("SpaceToDepth", since=1, form="moves")
def space_to_depth(input: Array, *, blocksize: int, mode: str = "DCR", ctx: Context) -> Array:
    """Move blocks of pixels into channels: [N,C,H,W] becomes [N,C*b*b,H/b,W/b], where b = blocksize.

    mode: how the output's channels are counted, as in DepthToSpace. Exact.
    Raises OperatorError for another mode or rank, and for H or W that b does not divide.
    """
    _check(input, blocksize, mode, ((2, "rows", blocksize), (3, "columns", blocksize)))
    ctx.claim(input.shape, input.itemsize)
    n, c, h, w = input.shape
    blocks = input.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * blocksize * blocksize, h // blocksize, w // blocksize)


def _check(x: Array, block: int, mode: str, divided: tuple[tuple[int, str, int], ...]) -> None:
    """Raise OperatorError for an input that does not divide into blocks."""
    one_of("mode", mode, ("DCR", "CRD"))
    if not 1 <= block < 2**31:
        raise refuse("blocksize is out of range", "blocksize", "1 to 2147483647", block, code="QR204")
    if x.ndim != 4:
        raise misfit("input is not [N,C,H,W]", "input", "rank 4", x)
    for axis, what, divisor in divided:
        if x.shape[axis] % divisor:
            raise bad_shape("input", f"{what} in multiples of {divisor}, for blocksize {block}", x)


def _lower(site: LoweringContext, gathered: bool) -> NativeKernel:
    from qrun.ops.lowering.moves import depth_to_space_kernel

    return depth_to_space_kernel(site, site.attributes["blocksize"], site.attributes["mode"], gathered=gathered)


depth_to_space.native(partial(_lower, gathered=False))
space_to_depth.native(partial(_lower, gathered=True))
