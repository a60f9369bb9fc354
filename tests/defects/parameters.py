"""Defects of indices: batches, groups, steps, padding, channels, axes, rows and blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from defects.node import Defect, Node, Planted
from qrun.ir import Array

CONVS = ["qlinearconv-10", "convinteger-10"]
PRODUCTS = [*CONVS, "qlinearmatmul-", "matmulinteger-10"]
QUANTIZERS = ["quantizelinear-", "dequantizelinear-"]


def ignored(name: str) -> Defect:
    def defect(n: Node) -> Array | None:
        array = n.inputs.get(name)
        if array is None:
            return None
        return n.made(**{name: np.ones_like(array) if "scale" in name else np.zeros_like(array)})

    return defect


def changed(*names: str, change: Callable[[Array], Array | None]) -> Defect:
    """These inputs are read in another way."""

    def defect(n: Node) -> Array | None:
        made = {name: change(n.inputs[name]) for name in names if n.inputs.get(name) is not None}  # type: ignore[arg-type]
        made = {name: array for name, array in made.items() if array is not None}
        return n.made(**made) if made else None

    return defect


def changed_attributes(change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> Defect:
    """Attributes are read in another way; of an output that becomes larger, the first part counts."""

    def defect(n: Node) -> Array | None:
        made = change(n.node.attributes)
        if made is None:
            return None
        y = n.made(made)
        return y[tuple(slice(0, count) for count in n.expected.shape)] if y.ndim == n.expected.ndim else y

    return defect


def other_axis(n: Node) -> Array | None:
    scale, axis = n.inputs.get("y_scale", n.inputs.get("x_scale")), n.node.attributes.get("axis", 1)
    if scale is None or scale.ndim != 1 or scale.size < 2 or n.expected.ndim != 2:
        return None
    other = 1 - axis % 2
    return n.made({"axis": other}) if n.expected.shape[other] == scale.size else None


def rows_along_k(n: Node) -> Array | None:
    a, b, az, bz = (n.inputs.get(k) for k in ("A", "B", "a_zero_point", "b_zero_point"))
    if a is None or b is None or az is None or az.ndim != 1 or a.ndim != 2 or az.size != a.shape[1] or az.size < 2:
        return None
    right = b.astype(np.int64) - (0 if bz is None else bz.astype(np.int64))
    return ((a.astype(np.int64) - az) @ right).astype(np.int32)


def rows_of_a_along_k(n: Node) -> Array | None:
    """QLinearMatMul dequantizes A with its row parameters along the columns."""
    a, b, zero = (n.inputs.get(k) for k in ("a", "b", "a_zero_point"))
    if a is None or b is None or zero is None or a.ndim != 2 or zero.size != a.shape[1] or zero.size < 2:
        return None
    left = (a.astype(np.float64) - zero) * n.inputs["a_scale"]
    right = (b.astype(np.float64) - n.inputs["b_zero_point"]) * n.inputs["b_scale"]
    try:
        return n.coded(np.rint(left @ right / n.inputs["y_scale"]) + n.zero())
    except ValueError:
        return None


def scales_as_1_m_1_1(n: Node) -> Array | None:
    """Of QLinearConv, right for two dimensions only."""
    scale = n.inputs.get("w_scale")
    if scale is None or scale.size < 2 or n.expected.ndim == 4 or n.exact is None:
        return None
    along = scale.astype(np.float64).reshape(-1, *(1,) * (n.expected.ndim - 2))
    try:
        return n.coded(np.rint(n.exact / along * scale.reshape(1, -1, 1, 1).astype(np.float64)) + n.zero())
    except ValueError:
        return None


def first_image(array: Array) -> Array | None:
    return np.broadcast_to(array[:1], array.shape) if array.ndim > 2 and array.shape[0] > 1 else None


def first_channels(n: Node) -> Array | None:
    """Every group reads the channels of the first."""
    x, group = n.inputs.get("x"), n.node.attributes.get("group", 1)
    if x is None or group < 2:
        return None
    return n.made(x=np.concatenate([x[:, : x.shape[1] // group]] * group, 1))


def groups_interleaved(n: Node) -> Array | None:
    """Filter m reads group m % group, not m // (filters / group): right if each group has one filter."""
    group, w = n.node.attributes.get("group", 1), n.inputs.get("w")
    if w is None or group < 2 or w.shape[0] == group:
        return None
    order = np.argsort(np.arange(w.shape[0]) % group, kind="stable")
    sized = ("w", "w_scale", "w_zero_point", "B")
    moved = {
        k: v[order] for k, v in n.inputs.items() if k in sized and v is not None and v.ndim and v.shape[0] == w.shape[0]
    }
    return np.take(n.made(**moved), np.argsort(order), 1)


def channels_interleaved(n: Node) -> Array | None:
    """Group g reads the channels g, g + group, ..."""
    x, group = n.inputs.get("x"), n.node.attributes.get("group", 1)
    if x is None or group < 2 or x.shape[1] == group:
        return None
    return n.made(x=x[:, np.argsort(np.arange(x.shape[1]) % group, kind="stable")])


def steps(name: str, with_groups: bool) -> Defect:
    """strides or dilations are 1, in all or only in grouped convolutions."""

    def change(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        given = attributes.get(name)
        if given is None or max(given) == 1 or (with_groups and attributes.get("group", 1) == 1):
            return None
        return {name: tuple(1 for _ in given)}

    return changed_attributes(change)


def transposed_attribute(name: str) -> Defect:
    """strides or dilations of height and width are swapped."""

    def change(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        given = attributes.get(name)
        return {name: tuple(given[::-1])} if given is not None and tuple(given) != tuple(given[::-1]) else None

    return changed_attributes(change)


def pads_swapped(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    pads = tuple(attributes.get("pads") or ())
    half = len(pads) // 2
    return {"pads": pads[half:] + pads[:half]} if pads[half:] != pads[:half] else None


def pads_in_pairs(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Read as begin and end of each axis in turn, as other frameworks write them."""
    pads = tuple(attributes.get("pads") or ())
    made = pads[::2] + pads[1::2]
    return {"pads": made} if made != pads else None


def other_same(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    other = {"SAME_LOWER": "SAME_UPPER", "SAME_UPPER": "SAME_LOWER"}.get(attributes.get("auto_pad", ""))
    return {"auto_pad": other} if other else None


def padding_with_0(n: Node) -> Array | None:
    x, pads = n.inputs.get("x"), n.node.attributes.get("pads")
    if x is None or not pads or not any(pads):
        return None
    half = len(pads) // 2
    wide = np.pad(x, [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)])
    return n.made({"pads": (0,) * len(pads)}, x=wide)


def weights_packed_for_others(n: Node) -> Array | None:
    """A loop over the positions that a vector kernel leaves reads the weights that were packed for that kernel: of each
    four channels, filter by filter."""
    x, w, group = n.inputs.get("x"), n.inputs.get("w"), n.node.attributes.get("group", 1)
    if x is None or w is None or w.shape[2:].count(1) != w.ndim - 2 or w.dtype != np.int8 or group != 1:
        return None
    if (
        x.shape[2:] != n.expected.shape[2:]
        or any(n.node.attributes.get("pads") or ())
        or np.any(n.inputs["w_zero_point"])
    ):
        return None
    (filters, channels), size = w.shape[:2], int(np.prod(x.shape[2:]))
    shift = 128 if x.dtype == np.int8 else 0
    fixed = n.made().reshape(x.shape[0], filters, size)
    if n.exact is None or size % 8 == 0:
        return None
    scales = [np.asarray(n.inputs[k], np.float64).reshape(-1) for k in ("x_scale", "w_scale", "y_scale")]
    step = np.broadcast_to(scales[0] * scales[1] / scales[2], filters)
    real = n.exact.reshape(fixed.shape)
    for image, m, at in np.ndindex(fixed.shape):
        if at < size // 8 * 8:
            continue
        change = 0
        for c in range(-(-channels // 8) * 8):
            place = c % 8 * 8 + m % 8
            half, rest = divmod(place, 32)
            other = m // 8 * 8 + rest // 4, c // 8 * 8 + half * 4 + rest % 4
            code = shift + (int(x.reshape(*x.shape[:2], -1)[image, c, at]) if c < channels else 0)
            read = int(w[other[0], other[1], ...].item()) if other[0] < filters and other[1] < channels else 0
            change += code * (read - (int(w[m, c].item()) if c < channels else 0))
        whole = np.rint(real[image, m, at] + change * step[m]) + n.zero()
        fixed[image, m, at] = n.coded(whole)
    return fixed.reshape(n.expected.shape)


def tail(axis: int, width: int) -> Defect:
    """What is beyond whole vectors along an axis of the output repeats what was before."""

    def defect(n: Node) -> Array | None:
        y = n.expected
        if y.ndim < -axis or y.ndim <= axis or y.ndim == 0:
            return None
        count = y.shape[axis] // width * width
        if not count or count == y.shape[axis]:
            return None
        places = np.arange(y.shape[axis])
        return np.take(y, np.where(places < count, places, places - (y.shape[axis] - count)), axis)

    return defect


def flipped(array: Array) -> Array | None:
    return array[..., ::-1] if array.ndim > 2 and array.shape[-1] > 1 else None


def other_order(array: Array) -> Array | None:
    """Kernels read with the axes of height and width swapped."""
    return array.swapaxes(-1, -2) if array.ndim == 4 and array.shape[-1] == array.shape[-2] > 1 else None


def transposed(array: Array) -> Array | None:
    return array.swapaxes(-1, -2) if array.ndim > 1 and array.shape[-1] == array.shape[-2] > 1 else None


def parameters(change: Callable[[Array], Array], rank: int) -> Defect:
    """Scales and zero points of many elements, of this rank or a greater one, are read in another way."""
    names = (
        "w_scale",
        "w_zero_point",
        "a_scale",
        "a_zero_point",
        "b_scale",
        "b_zero_point",
        "x_scale",
        "x_zero_point",
        "y_scale",
        "y_zero_point",
    )

    def apply(array: Array) -> Array | None:
        return change(array) if array.size > 1 and (array.ndim == 1 if rank == 1 else array.ndim >= rank) else None

    return changed(*names, change=apply)


def wide_parameters(n: Node, place: Callable[[Array, int, int], Array]) -> Array | None:
    """Parameters along the axis picked by place(indices of x, block size, count), as blocks of one element."""
    axis, block = n.node.attributes.get("axis", 1), n.node.attributes.get("block_size", 0)
    x = n.inputs.get("x")
    if not block or x is None or not x.ndim:
        return None
    made = {}
    for name in ("x_scale", "x_zero_point", "y_scale", "y_zero_point"):
        array = n.inputs.get(name)
        if array is not None:
            made[name] = np.take(array, place(np.arange(x.shape[axis]), block, array.shape[axis]), axis)
    return n.made({"block_size": 1}, **made)


def blocks(place: Callable[[Array, int, int], Array]) -> Defect:
    return lambda n: wide_parameters(n, place)


def blocks_as_slices(n: Node) -> Array | None:
    """A loop over blocks that writes a slice for each, with the block's first parameter."""
    x, scale, zero = (n.inputs.get(name) for name in ("x", "y_scale", "y_zero_point"))
    axis = n.node.attributes.get("axis", 1)
    if (
        not n.node.attributes.get("block_size")
        or x is None
        or scale is None
        or zero is None
        or zero.dtype.kind not in "iu"
    ):
        return None
    axis %= x.ndim
    if axis == x.ndim - 1:
        return None
    y = np.zeros_like(n.expected)
    for before in np.ndindex(*x.shape[:axis]):
        for at in range(scale.shape[axis]):
            first = (*before, at, *(0,) * (x.ndim - axis - 1))
            y[(*before, at)] = n.coded(np.rint(x[(*before, at)].astype(np.float64) / scale[first]) + zero[first])
    return y


def axis_by_default(n: Node) -> Array | None:
    """A negative axis is taken for 1."""
    axis = n.node.attributes.get("axis", 1)
    return n.made({"axis": 1}) if axis < 0 and n.expected.ndim > 1 and axis % n.expected.ndim != 1 else None


def axis_ignored(n: Node) -> Array | None:
    return n.made({"axis": 1}) if n.node.attributes.get("axis", 1) != 1 and n.expected.ndim > 1 else None


def axis_from_end_off_by_one(n: Node) -> Array | None:
    """axis + rank - 1: the axis before; parameters are repeated or cut to fit."""
    axis, scale = n.node.attributes.get("axis", 1), n.inputs.get("y_scale", n.inputs.get("x_scale"))
    if axis >= 0 or scale is None or scale.ndim != 1 or n.node.attributes.get("block_size") or n.expected.ndim < 2:
        return None
    other = (axis + n.expected.ndim - 1) % n.expected.ndim
    names = [k for k in ("x_scale", "x_zero_point", "y_scale", "y_zero_point") if n.inputs.get(k) is not None]
    return n.made({"axis": other}, **{k: np.resize(n.inputs[k], n.expected.shape[other]) for k in names})  # type: ignore[arg-type]


PLANTED = [
    Planted("x_zero_point ignored", ignored("x_zero_point"), ["qlinearconv-10/types"], "wrong-parameter"),
    Planted("w_zero_point ignored", ignored("w_zero_point"), ["convinteger-10"], "wrong-parameter"),
    Planted("bias ignored", ignored("B"), ["qlinearconv-10/types"], "wrong-parameter"),
    Planted("y_zero_point ignored", ignored("y_zero_point"), ["qlinearmatmul-10/types"], "wrong-parameter"),
    Planted("b_scale ignored", ignored("b_scale"), ["qlinearmatmul-10/types"], "wrong-parameter"),
    Planted("scales on another axis", other_axis, ["quantizelinear-13/granularity", "ms.quantizelinear-1", "quantizelinear-21", "quantizelinear-25"], "wrong-scale-axis"),
    Planted("rows of zero points along K", rows_along_k, ["matmulinteger-10"], "wrong-scale-axis"),
    Planted("rows of A along K", rows_of_a_along_k, ["qlinearmatmul-"], "wrong-scale-axis"),
    Planted("w_scale as [1,M,1,1]", scales_as_1_m_1_1, ["qlinearconv-10"], "wrong-scale-axis"),
    Planted("each image is the first", changed("x", change=first_image), CONVS, "wrong-elements"),
    Planted("each batch of a is the first", changed("a", "A", change=first_image), ["qlinearmatmul-", "matmulinteger-10"], "wrong-elements"),
    Planted("each batch of b is the first", changed("b", "B", change=first_image), ["qlinearmatmul-", "matmulinteger-10"], "wrong-elements"),
    Planted("each batch of parameters is the first", parameters(lambda a: np.broadcast_to(a[:1], a.shape), 3), ["qlinearmatmul-", "matmulinteger-10"], "wrong-parameter"),
    Planted("each row or channel has the first parameter", parameters(lambda a: np.full_like(a, a[0]), 1), PRODUCTS, "wrong-parameter"),
    Planted("each row of a batch has the first parameter", parameters(lambda a: np.broadcast_to(a[..., :1, :1], a.shape), 3), ["qlinearmatmul-", "matmulinteger-10"], "wrong-parameter"),
    Planted("parameters in reverse", parameters(lambda a: a[::-1], 1), [*PRODUCTS, *QUANTIZERS], "wrong-parameter"),
    Planted("parameters shifted by one", parameters(lambda a: np.roll(a, 1), 1), [*PRODUCTS, *QUANTIZERS], "wrong-parameter"),
    Planted("each group reads the first channels", first_channels, CONVS, "wrong-geometry"),
    Planted("groups interleaved", groups_interleaved, CONVS, "wrong-geometry"),
    Planted("channels of groups interleaved", channels_interleaved, CONVS, "wrong-geometry"),
    Planted("strides ignored", steps("strides", False), CONVS, "wrong-geometry"),
    Planted("dilations ignored", steps("dilations", False), CONVS, "wrong-geometry"),
    Planted("strides ignored in groups", steps("strides", True), CONVS, "wrong-geometry"),
    Planted("dilations ignored in groups", steps("dilations", True), CONVS, "wrong-geometry"),
    Planted("strides transposed", transposed_attribute("strides"), CONVS, "wrong-geometry"),
    Planted("dilations transposed", transposed_attribute("dilations"), CONVS, "wrong-geometry"),
    Planted("begin and end of pads swapped", changed_attributes(pads_swapped), CONVS, "wrong-geometry"),
    Planted("pads read in pairs", changed_attributes(pads_in_pairs), CONVS, "wrong-geometry"),
    Planted("SAME_LOWER as SAME_UPPER", changed_attributes(other_same), CONVS, "wrong-geometry"),
    Planted("padding with code 0", padding_with_0, CONVS, "wrong-geometry"),
    Planted("pads counted in AveragePool", changed_attributes(lambda a: {"count_include_pad": 1} if a.get("pads") and not a.get("count_include_pad") else None),
            ["ms.qlinearaveragepool-1"], "pool-divisor"),
    Planted("kernels flipped", changed("w", change=flipped), CONVS, "wrong-geometry"),
    Planted("kernels transposed", changed("w", change=other_order), CONVS, "wrong-geometry"),
    Planted("b transposed", changed("b", "B", change=transposed), ["qlinearmatmul-", "matmulinteger-10"], "wrong-elements"),
    *(Planted(f"channels beyond vectors of {n}", tail(1, n), CONVS, "wrong-elements") for n in (8, 16, 32)),
    *(Planted(f"columns beyond vectors of {n}", tail(-1, n), [*PRODUCTS, *QUANTIZERS, "cast-", "dynamicquantizelinear-"], "wrong-elements") for n in (8, 16, 32, 64)),
    Planted("weights packed for another kernel", weights_packed_for_others, ["qlinearconv-10"], "wrong-elements"),
    Planted("rows beyond tiles of 4", tail(-2, 4), ["qlinearmatmul-", "matmulinteger-10"], "wrong-elements"),
    Planted("the last block takes the parameters of the one before", blocks(lambda at, size, count: np.where((at // size == count - 1) & (count > 1) & (len(at) % size > 0), count - 2, at // size)), QUANTIZERS, "wrong-scale-axis"),
    Planted("blocks interleaved", blocks(lambda at, size, count: at % count), QUANTIZERS, "wrong-scale-axis"),
    Planted("blocks one too long", blocks(lambda at, size, count: at // (size + 1)), QUANTIZERS, "wrong-scale-axis"),
    Planted("blocks as slices", blocks_as_slices, QUANTIZERS, "wrong-scale-axis"),
    Planted("a negative axis is 1", axis_by_default, QUANTIZERS, "wrong-scale-axis"),
    Planted("axis ignored", axis_ignored, QUANTIZERS, "wrong-scale-axis"),
    Planted("a negative axis is off by one", axis_from_end_off_by_one, QUANTIZERS, "wrong-scale-axis"),
]  # fmt: skip
