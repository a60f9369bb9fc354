"""Native copies: other orders, slices, pads, shuffles, repeats, blocks and triangles of elements of every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import edges
from helpers.models import make_model, typed
from helpers.native import ISAS, OBJECTS, Array, engine, every_isa
from helpers.placed import natively, run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width, thin_width
from onnx import helper

import qrun
from qrun.native.errors import Declined
from qrun.native.kernels.copy import (
    Loop,
    Triangle,
    arrange,
    copies,
    merge,
    pad_copy,
    shuffle_copy,
    slice_copy,
    transpose_copy,
    view,
)
from qrun.native.kernels.rearrange import depth_to_space_copy, tile_copy
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand
from qrun.native.plan.fusing import fuse, shuffle_groups

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SIZES = (np.uint8, np.int16, np.float32, np.int64)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Elements of any bits."""
    itemsize = np.dtype(dtype).itemsize
    return rng.integers(0, 256, (*shape, itemsize)).astype(np.uint8).view(dtype).reshape(shape)


@thin_width(*edges.ARRANGED, name="shape", other=4)
def test_orders_are_exchanged_within_the_operands(isa: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(shape))
    for dtype in SIZES if shape[-1] < 40 else SIZES[::2]:
        x, operand = numbers(rng, shape, dtype), Operand(shape, np.dtype(dtype))
        row = shape[1] * np.dtype(dtype).itemsize
        for source, result in (("plain", "channels"), ("channels", "plain"), ("channels", "channels")):
            operation = arrange(engine(isa), operand, source, operand, result)
            for gap in (0, 24) if row else (0,):
                strides = [(row + gap) * bool(gap) if order == "channels" else 0 for order in (source, result)]
                for at_end in (True, False):
                    y = run_placed(engine(isa), operation, [x], strides, at_end)
                    assert_equal(y, x, f"{isa} {shape} {dtype} {source} {result} {gap}")


@every_isa
@pytest.mark.parametrize("shape", [(1, 3, 6, 20), (2, 4, 5, 16), (1, 64, 4, 18), (1, 2, 33), (2, 3, 17)])
def test_a_border_is_left_alone(isa: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    border = (2, 1, 3, 2) if len(shape) == 4 else (0, 2, 0, 1)
    for dtype in (np.uint8, np.float32):
        x = numbers(rng, shape, dtype)
        result = Operand(shape, np.dtype(dtype), border, 7)
        operation = arrange(engine(isa), Operand(shape, np.dtype(dtype)), "plain", result, "channels")
        assert_equal(run_placed(engine(isa), operation, [x], (0, 0)), x, f"{isa} {shape}")
        assert_equal(engine(isa).run(operation, [x]), x)


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(24), name="seed", other=5)
def test_transposes_slices_and_pads(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    native = engine(isa, threads)
    for _ in range(6):
        dtype = np.dtype(SIZES[rng.integers(4)])
        rank = int(rng.integers(0, 6))
        shape = tuple(int(n) for n in rng.integers(1, (100, 100, 40, 20, 9, 6)[rank], rank))
        order: Any = rng.choice(["plain", "channels"]) if rank > 2 else "plain"
        x, case = numbers(rng, shape, dtype), f"{isa} seed {seed} {shape} {dtype} {order}"
        perm = [int(a) for a in rng.permutation(rank)]
        operation = transpose_copy(native, shape, dtype, perm, order)
        assert_equal(run_placed(native, operation, [x], (0, 0)), x.transpose(perm), f"{case} {perm}")
        starts = [int(rng.integers(0, n)) for n in shape]
        steps = [int(s) for s in rng.choice([1, 1, 2, 3, -1, -2], rank)]
        counts = [int(rng.integers(0, ((n - 1 - a) // s if s > 0 else a // -s) + 2))
                  for n, a, s in zip(shape, starts, steps, strict=True)]  # fmt: skip
        picked = [a + s * np.arange(n) for a, s, n in zip(starts, steps, counts, strict=True)]
        operation = slice_copy(native, shape, dtype, starts, steps, counts, order)
        want = x[np.ix_(*picked)] if rank else x
        assert_equal(run_placed(native, operation, [x], (0, 0)), want, f"{case} {starts} {steps} {counts}")
        begin = [int(n) for n in rng.integers(-2, 4, rank)]
        end = [max(int(e), -n - b) for e, n, b in zip(rng.integers(-2, 4, rank), shape, begin, strict=True)]
        fill = numbers(rng, (), dtype)
        operation = pad_copy(native, shape, fill, begin, end, order)
        want = pad_by_hand(x, fill, begin, end)
        assert_equal(run_placed(native, operation, [x], (0, 0)), want, f"{case} {begin} {end}")


def pad_by_hand(x: Array, fill: Array, begin: list[int], end: list[int]) -> Array:
    if not x.ndim:
        return x
    whole = np.pad(x, [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)], constant_values=fill)
    cut = tuple(slice(max(-b, 0), n - max(-e, 0)) for b, e, n in zip(begin, end, whole.shape, strict=True))
    return np.ascontiguousarray(whole[cut])


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(
    *[(g, n) for g in (1, 2, 3, 4, 5, 8, 12) for n in (1, 3, 15, 16, 17, 31, 32, 33, 68)], name="groups", other=6
)
def test_channel_shuffles(isa: str, groups: tuple[int, int], threads: int) -> None:
    g, n = groups
    rng = np.random.default_rng(g * n)
    native = engine(isa, threads)
    for spatial in ((3, 5), (49,), (4, 4)):
        for dtype in (np.uint8, np.float32) if n < 30 else (np.int8,):
            x = numbers(rng, (2, g * n, *spatial), dtype)
            want = x.reshape(2, g, n, *spatial).swapaxes(1, 2).reshape(x.shape)
            operation = shuffle_copy(native, x.shape, x.dtype, g)
            row = g * n * x.itemsize
            for strides in ((0, 0), (row + 3, row + 9)):
                assert_equal(run_placed(native, operation, [x], strides), want, f"{isa} {groups} {spatial} {strides}")


def test_large_copies_are_shared_by_threads() -> None:
    rng = np.random.default_rng(2)
    for threads in (1, 3):
        native = engine(ISAS[0], threads)
        for shape in ((1, 64, 56, 56), (1, 3, 224, 224), (200000,)):
            x = rng.integers(0, 256, shape).astype(np.uint8)
            operation = transpose_copy(native, shape, x.dtype, range(len(shape))[::-1])
            assert threads == 1 or sum(s.tiles for s in operation.tight) >= 3 or len(shape) == 1
            assert np.array_equal(native.run(operation, [x]), x.T)


def test_more_axes_than_a_kernel_has() -> None:
    rng = np.random.default_rng(3)
    native = engine(ISAS[0])
    x = rng.integers(0, 256, (2, 3, 2, 3, 2, 3, 2, 5)).astype(np.uint8)
    perm = (7, 1, 5, 3, 6, 0, 4, 2)
    operation = transpose_copy(native, x.shape, x.dtype, perm)
    assert 1 < len(operation.tight) <= 64
    assert_equal(run_placed(native, operation, [x], (0, 0)), x.transpose(perm))
    with pytest.raises(Declined, match="too many axes"):
        transpose_copy(native, (70, 71, 72, 73, 74, 75, 76), x.dtype, (6, 4, 2, 0, 1, 3, 5)).sections((0, 0))


def test_views_are_copied_only_where_they_stand_alone() -> None:
    native = engine(ISAS[0])
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    assert view(native, (2, 3, 4), (4, 6), x.dtype).view
    assert_equal(native.run(view(native, (2, 3, 4), (4, 6), x.dtype), [x]), x.reshape(4, 6))
    assert_equal(native.run(view(native, (), (1, 1), x.dtype), [x[0, 0, 0]]), x[:1, :1, 0])
    for shape in ((0, 3), (3, 0, 2)):
        assert native.run(view(native, (0,), shape, x.dtype), [x[:0, 0, 0]]).shape == shape
    last, first = (
        transpose_copy(native, x.shape, x.dtype, (0, 2, 1)),
        transpose_copy(native, (1, 2, 3, 4), x.dtype, (0, 3, 1, 2)),
    )
    assert [(t.view, t.source_order, t.result_order) for t in (last, first)] == [
        (True, "channels", "plain"), (True, "plain", "channels")]  # fmt: skip
    assert_equal(run_placed(native, first, [x[None]], (0, 0)), x[None].transpose(0, 3, 1, 2))


def test_what_does_not_fit_is_refused() -> None:
    native, u8 = engine(ISAS[0]), np.dtype(np.uint8)
    with pytest.raises(ValueError, match="not among 4"):
        slice_copy(native, (4,), u8, [1], [2], [3])
    with pytest.raises(ValueError, match="not among 4"):
        slice_copy(native, (4,), u8, [3], [-1], [5])
    with pytest.raises(ValueError, match="removes more"):
        pad_copy(native, (2,), np.uint8(0), [-1], [-2])
    with pytest.raises(ValueError, match="no 3 groups"):
        shuffle_copy(native, (1, 8, 4), u8, 3)
    with pytest.raises(ValueError, match="as many elements"):
        view(native, (2, 3), (5,), u8)
    with pytest.raises(ValueError, match="in another order"):
        arrange(native, Operand((2, 3), u8), "plain", Operand((3, 2), u8), "plain")
    with pytest.raises(Declined, match="16 bytes"):
        transpose_copy(native, (2, 3), np.dtype(np.complex128), (1, 0))
    operation = transpose_copy(native, (1, 3, 4), u8, (0, 2, 1), "channels")
    for strides in ((2, 0), (0, 3)):
        with pytest.raises(ValueError, match="cannot lie"):
            operation.sections(strides)
    with pytest.raises(ValueError, match="not known"):
        slice_copy(native, (1, 3, 4), u8, [0] * 3, [1] * 3, [1, 3, 4], "any").sections((4, 4))
    with pytest.raises(ValueError, match="begins before"):
        list(copies(native, [Loop(3, (-1, 1))], (1, 0), 1))


def test_neighbouring_loops_become_one() -> None:
    assert merge([Loop(2, (12, 12)), Loop(3, (4, 4)), Loop(4, (1, 1))]) == [Loop(24, (1, 1))]
    assert merge([Loop(4, (1, 3)), Loop(3, (4, 1)), Loop(1, (99, 99))]) == [Loop(4, (1, 3)), Loop(3, (4, 1))]


def shuffle_model(groups: int, shape: tuple[int, ...], middle: list[int], perm: list[int]) -> onnx.ModelProto:
    """A pool, a channel shuffle as exporters write it, and a pool."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], "first", kernel_shape=[1] * (len(shape) - 2)),
        helper.make_node("Reshape", ["a", "apart"], ["b"], "apart"),
        helper.make_node("Transpose", ["b"], ["c"], "swap", perm=perm),
        helper.make_node("Reshape", ["c", "together"], ["d"], "together"),
        helper.make_node("MaxPool", ["d"], ["y"], "last", kernel_shape=[1] * (len(shape) - 2)),
    ]
    shapes = {"apart": middle, "together": shape}
    return make_model(nodes, {"x": typed(np.uint8, shape)}, {"y": typed(np.uint8)}, shapes, opset=17)


@pytest.mark.parametrize(
    ("groups", "shape", "middle", "perm"),
    [
        (4, (1, 24, 5, 6), [1, 4, 6, 5, 6], [0, 2, 1, 3, 4]),
        (3, (2, 48, 4, 4), [2, 3, 16, 4, 4], [0, 2, 1, 3, 4]),
        (2, (1, 64, 3, 3), [2, 32, 9], [1, 0, 2]),
        (0, (1, 24, 5, 6), [1, 4, 6, 5, 6], [0, 2, 1, 4, 3]),
        (0, (1, 24, 5, 6), [1, 24, 6, 5], [0, 1, 3, 2]),
    ],
)
def test_shuffles_are_found_in_programs(
    groups: int, shape: tuple[int, ...], middle: list[int], perm: list[int]
) -> None:
    model = shuffle_model(groups, shape, middle, perm)
    x = np.random.default_rng(4).integers(0, 256, shape).astype(np.uint8)
    same_everywhere(model, {"x": x})
    same_everywhere(model, {"x": x}, ["c", "y"])
    native = engine(ISAS[0])
    first = view(native, shape, middle, x.dtype)
    swap = transpose_copy(native, middle, x.dtype, perm)
    last = view(native, swap.result.shape, shape, x.dtype)
    assert shuffle_groups(first, swap, last) == groups


def test_a_shuffle_whose_parts_are_used_is_left_alone() -> None:
    from qrun.native.plan.items import Task

    native, u8 = engine(ISAS[0]), np.dtype(np.uint8)
    shape, middle = (1, 8, 4), (1, 2, 4, 4)
    operations = [view(native, shape, middle, u8), transpose_copy(native, middle, u8, (0, 2, 1, 3)),
                  view(native, (1, 4, 2, 4), shape, u8)]  # fmt: skip
    items = [Task(o, (n,), n + 1) for n, o in enumerate(operations)]
    assert [i.operation.order for i in fuse(native, items, [3])] == ["channels"] * 3
    assert fuse(native, items, [2, 3]) == items
    assert fuse(native, items[1:], [3]) == items[1:]


NODES: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("Transpose", [(2, 3, 4, 5)], {"perm": [0, 2, 3, 1]}, 17),
    ("Transpose", [(2, 3, 4, 5)], {"perm": [0, 3, 1, 2]}, 17),
    ("Transpose", [(2, 3, 4, 5)], {}, 17),
    ("Reshape", [(2, 3, 4), [4, -1]], {}, 17),
    ("Flatten", [(2, 3, 4)], {"axis": 2}, 17),
    ("Squeeze", [(2, 1, 4), [1]], {}, 17),
    ("Squeeze", [(2, 1, 4)], {"axes": [1]}, 11),
    ("Unsqueeze", [(2, 4), [0, 3]], {}, 17),
    ("Unsqueeze", [(2, 4)], {"axes": [1]}, 11),
    ("Identity", [(2, 4)], {}, 17),
    ("Identity", [()], {}, 17),
    ("Slice", [(3, 8, 6, 6), [1, 0, 5], [3, 9, -9], [1, 3, 2], [1, 2, -2]], {}, 17),
    ("Slice", [(3, 8)], {"starts": [1], "ends": [7], "axes": [1]}, 9),
    ("Slice", [(3, 8), [5], [2], [1]], {}, 17),
    ("Pad", [(2, 3, 4, 5), [0, 0, 1, 2, 0, 1, 0, 1], np.uint8(9)], {}, 17),
    ("Pad", [(2, 3, 4), [1, -2], None, [2]], {}, 18),
    ("Pad", [(2, 3)], {"pads": [0, 1, 2, -1], "value": 3.0}, 10),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16])
@pytest.mark.parametrize(("op_type", "inputs", "attributes", "opset"), NODES)
def test_nodes_that_move_elements(
    op_type: str, inputs: list[Any], attributes: dict[str, Any], opset: int, dtype: Any
) -> None:
    if op_type == "Pad" and (opset < 11) != (dtype == np.float16):
        dtype = np.float16 if opset < 11 else np.uint8
    shape, *rest = inputs
    x = np.random.default_rng(5).integers(0, 100, shape).astype(dtype)
    given = [np.asarray(v, dtype if isinstance(v, np.uint8) else np.int64) if v is not None else None for v in rest]
    model = node_model(op_type, [x, *given], attributes, opset=opset, outputs=[dtype], constants=range(1, len(inputs)))
    assert natively(*model).events[0].sections == ()


def test_movements_between_kernels() -> None:
    """Operands that lie channels-last, in C order and with gaps, moved in one program."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2]),
        helper.make_node("Slice", ["a", "from", "to", "axis"], ["b"]),
        helper.make_node("Pad", ["b", "pads", "nine"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Transpose", ["d"], ["e"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["e", "flat"], ["f"]),
        helper.make_node("Transpose", ["e"], ["g"], perm=[0, 3, 1, 2]),
        helper.make_node("MaxPool", ["g"], ["h"], kernel_shape=[2, 2]),
        helper.make_node("Transpose", ["a"], ["i"], perm=[0, 1, 3, 2]),
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["j"]),
        helper.make_node("MaxPool", ["j"], ["k"], kernel_shape=[1, 1]),
    ]
    pads = [0, 1, 1, 2, 0, 0, 2, 1]
    values = {"from": [2], "to": [19], "axis": [1], "pads": pads, "flat": [2, -1], "nine": np.int8(9)}
    x = {"x": typed(np.int8, [2, 21, 9, 12])}
    model = make_model(nodes, x, dict.fromkeys("fhik", typed(np.int8)), values, opset=17)
    data = np.random.default_rng(6).integers(-128, 128, (2, 21, 9, 12)).astype(np.int8)
    for outputs_ in (None, list("abcdefghijk")):
        for threads in (1, 2):
            same_everywhere(model, {"x": data}, outputs_, threads=threads)


def test_pads_claim_their_memory() -> None:
    model, feeds = node_model(
        "Pad", [np.zeros((2, 3), np.uint8), np.array([0, 0, 0, 9000])], outputs=[np.uint8], constants=[1]
    )
    session = qrun.Session(model, backend="native", cache=OBJECTS)
    session.run(feeds)
    session.max_memory = 10000
    with pytest.raises(qrun.MemoryLimitError):
        session.run(feeds)


def test_kernels_of_copies_are_few() -> None:
    native = Engine.create(ISAS[0])
    for n in range(3, 30):
        operand = Operand((1, 64, n, 7 * n), np.dtype(np.uint8))
        for source, result in (("plain", "channels"), ("channels", "plain")):
            arrange(native, operand, source, operand, result).sections((0, 0))
    assert native.kernels.compiled <= 8


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(12), name="seed", other=4)
def test_repeats_and_blocks(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    native = engine(isa, threads)
    for _ in range(4):
        dtype = np.dtype(SIZES[rng.integers(4)])
        rank, lead = int(rng.integers(0, 5)), int(rng.integers(0, 2))
        shape = tuple(int(n) for n in rng.choice([1, 1, 2, 3, 7, 16, 33], rank))
        times = [int(n) for n in rng.choice([0, 1, 1, 2, 3, 5, 17], lead + rank, p=[0.04, *[0.16] * 6])]
        order: Any = rng.choice(["plain", "channels"]) if rank > 2 and not lead else "plain"
        x, case = rng.integers(0, 100, shape).astype(dtype), f"{isa} {dtype} {shape} {times} {order}"
        operation = tile_copy(native, shape, dtype, times, order)
        assert_equal(run_placed(native, operation, [x], (0, 0)), np.tile(x, times), case)
        b, rest, h, w = (int(n) for n in rng.integers(1, (5, 20, 9, 9)))
        x = rng.integers(0, 100, (2, b * b * rest, h, w)).astype(dtype)
        order = rng.choice(["plain", "channels"])
        wide = np.empty((2, rest, h * b, w * b), dtype)
        steps = [(b * rest, rest, 1), (b, 1, b * b)][rng.integers(2)]
        for row in range(b):
            for column in range(b):
                first = row * steps[0] + column * steps[1]
                wide[:, :, row::b, column::b] = x[:, first :: steps[2]][:, :rest]
        case = f"{isa} {dtype} {x.shape} {b} {steps} {order}"
        there = depth_to_space_copy(native, x.shape, dtype, b, steps, order)
        assert_equal(run_placed(native, there, [x], (0, 0)), wide, case)
        back = depth_to_space_copy(native, x.shape, dtype, b, steps, order, gathered=True)
        assert_equal(run_placed(native, back, [wide], (0, 0)), x, case)


MOVING: list[tuple[str, list[Any], dict[str, Any], int, int]] = [
    ("Split", [(6, 4)], {"axis": 0}, 11, 3),
    ("Split", [(6, 5)], {"axis": -1, "split": [2, 0, 3]}, 11, 3),
    ("Split", [(2, 7, 3, 5), [1, 4, 2]], {"axis": 1}, 17, 3),
    ("Split", [(2, 7, 3, 5), [7]], {"axis": 1}, 17, 1),
    ("Split", [(7, 3)], {"axis": 0, "num_outputs": 3}, 18, 3),
    ("Split", [(0, 3)], {"axis": 0}, 13, 2),
    ("Expand", [(3, 1), [2, 3, 6]], {}, 13, 1),
    ("Expand", [(), [2, 3]], {}, 13, 1),
    ("Expand", [(1, 4), [1, 1, 1]], {}, 13, 1),
    ("Expand", [(2, 1, 5, 1), [2, 3, 5, 7]], {}, 13, 1),
    ("Expand", [(2, 1), [2, 0]], {}, 13, 1),
    ("Expand", [(1, 2, 1, 2, 1, 2), [3, 2, 3, 2, 3, 2]], {}, 13, 1),
    ("Tile", [(2, 3), [3, 2]], {}, 13, 1),
    ("Tile", [(2, 3, 4, 5), [1, 2, 3, 2]], {}, 13, 1),
    ("DepthToSpace", [(2, 12, 3, 5)], {"blocksize": 2}, 13, 1),
    ("DepthToSpace", [(1, 18, 4, 3)], {"blocksize": 3, "mode": "CRD"}, 13, 1),
    ("SpaceToDepth", [(2, 3, 4, 6)], {"blocksize": 2}, 13, 1),
    ("Gather", [(5, 4), -2], {"axis": 0}, 13, 1),
    ("Gather", [(5,), 3], {}, 13, 1),
    ("Gather", [(2, 9, 5), [1, 4, 7]], {"axis": 1}, 13, 1),
    ("Gather", [(2, 9, 5), [3, 3, -1, -1]], {"axis": 1}, 13, 1),
    ("Gather", [(3, 4), [[3, 2], [1, 0]]], {"axis": -1}, 13, 1),
    ("SpaceToDepth", [(70, 3, 6, 6)], {"blocksize": 3}, 13, 1),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64, np.float16])
@pytest.mark.parametrize(("op_type", "inputs", "attributes", "opset", "outputs"), MOVING)
def test_nodes_that_cut_repeat_and_choose(
    op_type: str, inputs: list[Any], attributes: dict[str, Any], opset: int, outputs: int, dtype: Any
) -> None:
    shape, *rest = inputs
    x = np.random.default_rng(5).integers(0, 100, shape).astype(dtype)
    given = [v if v is None or isinstance(v, np.ndarray) else np.asarray(v, np.int64) for v in rest]
    constants = range(1, len(inputs))
    model = node_model(op_type, [x, *given], attributes, opset=opset, outputs=[dtype] * outputs, constants=constants)
    assert natively(*model).events[0].sections == ()


def test_parts_that_nobody_reads_are_not_made() -> None:
    nodes = [helper.make_node("Split", ["x"], ["", "b", ""], axis=1), helper.make_node("Relu", ["b"], ["y"])]
    x = np.random.default_rng(1).normal(0, 1, (2, 9, 4)).astype(np.float32)
    model = make_model(nodes, {"x": x.shape}, dict.fromkeys("yb"), opset=13)
    events = same_everywhere(model, {"x": x}).events
    assert [event.backend for event in events] == ["native", "native"]


def test_cuts_and_repeats_between_kernels() -> None:
    """Operands that lie channels-last, in C order and with gaps, moved in one program."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2]),
        helper.make_node("Split", ["a"], ["b", "c"], axis=1),
        helper.make_node("DepthToSpace", ["b"], ["d"], blocksize=2),
        helper.make_node("MaxPool", ["d"], ["e"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("SpaceToDepth", ["c"], ["f"], blocksize=2),
        helper.make_node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2]),
        helper.make_node("Concat", ["b", "c", "b"], ["h"], axis=1),
        helper.make_node("Tile", ["e", "times"], ["i"]),
        helper.make_node("MaxPool", ["i"], ["j"], kernel_shape=[2, 2]),
        helper.make_node("Split", ["x"], ["k", "l"], axis=2),
        helper.make_node("Concat", ["l", "k"], ["m"], axis=2),
        helper.make_node("Identity", ["a"], ["n"]),
        helper.make_node("MaxPool", ["n"], ["o"], kernel_shape=[3, 2]),
        helper.make_node("Gather", ["o", "odd"], ["p"], axis=1),
        helper.make_node("MaxPool", ["p"], ["q"], kernel_shape=[2, 2]),
    ]
    constants = {"times": np.array([1, 2, 1, 3]), "odd": np.array([1, 3, 5])}
    data = np.random.default_rng(6).integers(-128, 128, (2, 16, 10, 12)).astype(np.int8)
    model = make_model(nodes, {"x": data}, dict.fromkeys("ghjmq", typed(np.int8)), constants, opset=17)
    nodes[0].attribute.append(helper.make_attribute("pads", [0, 0, 1, 1]))
    model.graph.node[0].CopyFrom(nodes[0])
    for outputs_ in (None, list("abcdefghijklmnopq")):
        for threads in (1, 2):
            natively(model, {"x": data}, outputs_, threads=threads)


@pytest.mark.parametrize("upper", [True, False])
@every_width
def test_elements_on_one_side(isa: str, upper: bool) -> None:
    rng = np.random.default_rng(81)
    for dtype in (np.uint8, np.float16, np.float32, np.int64):
        for shape in ((1, 1), (3, 5), (5, 3), (2, 4, 70), (2, 3, 40, 17), (1, 9)):
            x = rng.integers(1, 100, shape).astype(dtype)
            for diagonal in (-60, -3, -1, 0, 1, 2, 16, 70, 2**40):
                for threads in (1, 3):
                    made = Triangle(engine(isa, threads), Operand(shape, x.dtype), diagonal, upper)
                    want = x.copy()
                    for place in np.ndindex(shape):
                        i, j = place[-2:]
                        if upper == (j < i + diagonal):
                            want[place] = 0
                    for at_end in (True, False):
                        got = run_placed(engine(isa, threads), made, [x], (0, 0), at_end)
                        assert got.tobytes() == want.tobytes(), (dtype, shape, diagonal)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int64, np.uint8, np.bool_])
def test_triangle_nodes(dtype: Any) -> None:
    rng = np.random.default_rng(82)
    for shape in ((3, 5), (2, 3, 4, 33), (2, 0, 3), (0, 3, 3), (3, 0), (70, 70)):
        x = np.where(rng.random(shape) < 0.2, -0.0, rng.normal(0, 9, shape)).astype(dtype)
        for upper in (0, 1):
            for k in (None, -100, -2, 0, 1, 2**62, -(2**63)):
                given, constants = ([x], []) if k is None else ([x, np.array(k)], [1])
                natively(
                    *node_model("Trilu", given, {"upper": upper}, outputs=[dtype], constants=constants),
                    threads=1 + upper,
                )


def test_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="has no matrices"):
        Triangle(engine("generic"), Operand((3,), np.dtype(np.float32)), 0, upper=True)
