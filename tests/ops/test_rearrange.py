"""CenterCropPad, Col2Im, ReverseSequence, TensorScatter, BitCast, Unique, MaxUnpool: element by element."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_rounded, qrun_node
from helpers.support import assert_equal

import qrun
from qrun.ir.types import DTYPES, NUMBERS, PACKED_BITS

F, D, BF = np.float32, np.float64, ml_dtypes.bfloat16


def words(x: np.ndarray) -> np.ndarray:
    made = np.empty(x.shape, object)
    made[...] = [[f"w{v}" for v in row] for row in x.tolist()]
    return made


def test_center_crop_pad() -> None:
    for seed in range(24):
        rng = np.random.default_rng(seed)
        old, new = rng.integers(0, 6, 3), rng.integers(0, 6, 3)
        x = rng.integers(1, 99, old).astype((F, np.uint8, np.int64, BF)[seed % 4])
        axes = None if seed % 3 else [2, -3]
        if axes:
            new[1] = old[1]
        want = np.zeros(new, x.dtype)
        for at in np.ndindex(*new):
            place = []
            for n, o, w in zip(at, old, new, strict=True):
                place.append(n + (o - w) // 2 if o >= w else n - (w - o) // 2)
            if all(0 <= p < o for p, o in zip(place, old, strict=True)):
                want[at] = x[tuple(place)]
        shape = new if axes is None else np.array([new[2], new[0]])
        made = qrun_node("CenterCropPad", [x, shape], {"axes": axes} if axes else {})
        assert_equal(made, want, f"seed {seed}")


@pytest.mark.parametrize("dtype", [F, D, BF, np.int8, np.uint32])
def test_col2im(dtype: Any) -> None:
    peer = Peer()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        rank = 1 + seed % 3 if dtype == D else 2
        image, block, step, gap = (rng.integers(low, high, rank) for low, high in ((3, 6), (1, 4), (1, 3), (1, 3)))
        pads = rng.integers(0, 2, 2 * rank)
        out = (image + pads[:rank] + pads[rank:] - (block - 1) * gap - 1) // step + 1
        if out.min() < 1:
            continue
        x = (rng.normal(size=(2, 2 * int(block.prod()), int(out.prod()))) * 9).astype(dtype)
        want = np.zeros((2, 2, *image), D if np.dtype(dtype).kind not in "iu" else np.int64)
        for c, (tap, kernel) in itertools.product(range(2), enumerate(np.ndindex(*block))):
            for number, at in enumerate(np.ndindex(*out)):
                place = np.array(at) * step + np.array(kernel) * gap - pads[:rank]
                if (place >= 0).all() and (place < image).all():
                    want[(slice(None), c, *place)] += x[:, c * int(block.prod()) + tap, number].astype(want.dtype)
        attributes = {"strides": step.tolist(), "dilations": gap.tolist(), "pads": pads.tolist()}
        made = qrun_node("Col2Im", [x, image, block], attributes)
        if want.dtype == D:
            assert_rounded(made, want, f"seed {seed}")
        else:
            assert_equal(made, want.astype(dtype), f"seed {seed}")
        if dtype == F:
            peer.check("Col2Im", [x, image, block], attributes, message=f"seed {seed}", rtol=1e-4, atol=1e-4)
    if dtype == F:
        peer.finish(0.9)


def test_reverse_sequence() -> None:
    peer = Peer()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 99, (3, 4, 2)).astype((F, np.int64, np.uint8, D)[seed % 4])
        time = seed % 2
        lengths = rng.integers(0, x.shape[time] + 1, x.shape[1 - time])
        want = x.copy()
        for b, length in enumerate(lengths):
            for t in range(length):
                there, here = ((b, length - 1 - t), (b, t)) if time else ((length - 1 - t, b), (t, b))
                want[here] = x[there]
        attributes = {"time_axis": time, "batch_axis": 1 - time}
        assert_equal(qrun_node("ReverseSequence", [x, lengths], attributes), want, f"seed {seed}")
        peer.check("ReverseSequence", [x, lengths], attributes, message=f"seed {seed}", rtol=0, atol=0)
    peer.finish(0.9)


def test_tensor_scatter() -> None:
    for seed in range(24):
        rng = np.random.default_rng(seed)
        shape = (2, 3, 4, 5)
        axis, circular = (1, 2, 3, -2)[seed % 4], seed // 4 % 2
        longest, rows = shape[axis], int(rng.integers(0, shape[axis] + 1))
        cache = rng.normal(size=shape).astype(F)
        update = rng.normal(size=[rows if a == axis % 4 else n for a, n in enumerate(shape)]).astype(F)
        starts = rng.integers(0, longest if circular else longest - rows + 1, 2)
        given = starts if seed % 3 else None
        want = cache.copy()
        for prefix in np.ndindex(*shape[: axis % 4]):
            for row in range(rows):
                place = (row + (int(starts[prefix[0]]) if given is not None else 0)) % longest
                want[(*prefix, place)] = update[(*prefix, row)]
        attributes = {"axis": axis, "mode": "circular" if circular else "linear"}
        made = qrun_node("TensorScatter", [cache, update, given], attributes, opset=24)
        assert_equal(made, want, f"seed {seed}")


def test_bit_cast_between_all_types_of_as_many_bits() -> None:
    rng = np.random.default_rng(0)
    sizes: dict[int, list[np.dtype[Any]]] = {}
    for number, kind in DTYPES.items():
        if kind.kind != "O" and PACKED_BITS.get(number) != 6:
            sizes.setdefault(PACKED_BITS.get(number, 8 * kind.itemsize), []).append(kind)
    for bits, kinds in sizes.items():
        for a, b in itertools.product(kinds, kinds):
            count = 1 if a.kind == "b" else bits
            codes = rng.integers(0, 2**count if count < 63 else 2**63, 24, np.uint64)
            code = np.dtype(f"u{a.itemsize}" if a.itemsize <= 8 else "u8")
            x = np.resize(codes, 24 * max(a.itemsize // 8, 1)).astype(code).view(a)
            made = qrun_node("BitCast", [x], {"to": NUMBERS[b]}, opset=26, outputs=[b], ir_version=13)
            assert made.dtype == b
            back = made.view(np.uint8) & (2**bits - 1 if bits < 8 else 255)
            there = x.view(np.uint8) & (2**bits - 1 if bits < 8 else 255)
            assert back.tobytes() == ((there != 0).astype(np.uint8) if b.kind == "b" else there).tobytes(), (a, b)


def unique_by_hand(x: list[Any], ascending: bool) -> tuple[list[Any], list[int], list[int], list[int]]:
    seen: list[Any] = []
    for item in x:
        if item not in seen:
            seen.append(item)
    if ascending:
        seen.sort()
    return seen, [x.index(v) for v in seen], [seen.index(v) for v in x], [x.count(v) for v in seen]


def test_unique() -> None:
    peer = Peer()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shape = tuple(int(n) for n in rng.integers(1, 5, 3))
        x = rng.integers(0, 3, shape).astype((F, np.int64, np.int8, D, np.uint16)[seed % 5])
        axis = (None, 0, 1, -1)[seed % 4]
        ascending = seed // 4 % 2
        rows = x.reshape(-1).tolist() if axis is None else np.moveaxis(x, axis, 0).reshape(shape[axis], -1).tolist()
        want, *places = unique_by_hand(rows, bool(ascending))
        attributes = {"sorted": ascending, **({} if axis is None else {"axis": axis})}
        outputs = [x.dtype, *[np.int64] * 3]
        y, *told = qrun_node("Unique", [x], attributes, outputs=outputs)
        got = y.tolist() if axis is None else np.moveaxis(y, axis, 0).reshape(len(want), -1).tolist()
        assert got == want, f"seed {seed}"
        assert [t.tolist() for t in told] == places, f"seed {seed}"
        peer.check("Unique", [x], attributes, message=f"seed {seed}", rtol=0, atol=0, outputs=outputs)
    peer.finish(0.5)


def test_unique_of_other_elements() -> None:
    y, places, inverse, counts = qrun_node(
        "Unique", [words(np.array([[2, 1], [2, 3]]))], outputs=[np.dtype(object), *[np.int64] * 3]
    )
    assert (y.tolist(), places.tolist(), inverse.tolist(), counts.tolist()) == (
        ["w1", "w2", "w3"], [1, 0, 3], [1, 0, 1, 2], [1, 2, 1],
    )  # fmt: skip
    y, places, _, counts = qrun_node("Unique", [np.array([np.nan, 0, -0.0, np.nan], F)], outputs=[F, *[np.int64] * 3])
    assert y[0] == 0
    assert np.isnan(y[1:]).all()
    assert (places.tolist(), counts.tolist()) == ([1, 0, 3], [2, 1, 1])
    assert [a.shape for a in qrun_node("Unique", [np.zeros((0, 2), F)], outputs=[F, *[np.int64] * 3])] == [(0,)] * 4


def test_max_unpool_undoes_max_pool() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = rng.permutation(2 * 2 * 4 * 6).reshape(2, 2, 4, 6).astype(F)
        size = {"kernel_shape": [2, 2], "strides": [2, 2]}
        y, places = qrun_node("MaxPool", [x], size, outputs=[F, np.int64])
        made = qrun_node("MaxUnpool", [y, places], size)
        assert_equal(made, np.where(np.isin(x, y), x, F(0)))
        wide = qrun_node("MaxUnpool", [y, places, np.array([2, 2, 5, 7])], size)
        assert_equal(wide, np.pad(made, ((0, 0), (0, 0), (0, 1), (0, 1))))


X = np.ones((2, 3, 4), F)


@pytest.mark.parametrize(
    ("text", "op_type", "inputs", "attributes"),
    [
        ("shape has 2 numbers", "CenterCropPad", [X, np.array([1, 1])], {}),
        ("a length is negative", "CenterCropPad", [X, np.array([1, 1, -1])], {}),
        ("axis is named twice", "CenterCropPad", [X, np.array([1, 1])], {"axes": [0, -3]}),
        ("geometry does not fit", "Col2Im", [X, np.array([3, 3]), np.array([2])], {}),
        ("geometry does not fit", "Col2Im", [X, np.array([3, 3]), np.array([1, 1])], {"pads": [0, 1, 0, 1, 0]}),
        ("input does not fit the image", "Col2Im", [X, np.array([3, 3]), np.array([1, 3])], {}),
        ("axes are not 0 and 1", "ReverseSequence", [X, np.array([1, 1])], {"time_axis": 2}),
        ("a sequence has length 4", "ReverseSequence", [X, np.array([1, 4])], {"time_axis": 1, "batch_axis": 0}),
        ("sequence_lens has 1 numbers", "ReverseSequence", [X, np.array([1])], {"time_axis": 1, "batch_axis": 0}),
        ("update does not fit", "TensorScatter", [X, X[:1]], {}),
        ("update does not fit", "TensorScatter", [X, X], {"axis": 0}),
        ("mode is bad", "TensorScatter", [X, X], {"mode": "bad"}),
        ("write_indices has 1", "TensorScatter", [X, X, np.array([0, 1])], {}),
        ("write_indices do not fit", "TensorScatter", [X, X, np.array([0])], {}),
        ("the types have other bits", "BitCast", [X], {"to": 11}),
        ("the types have other bits", "BitCast", [X], {"to": 8}),
        ("sorted is 2", "Unique", [X], {"sorted": 2}),
        ("index 30 is out of bounds", "MaxUnpool", [X, np.full(X.shape, 30)], {"kernel_shape": [2]}),
    ],
)  # fmt: skip
def test_refusals(text: str, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node(op_type, inputs, attributes, opset=26 if op_type == "BitCast" else 24, outputs=[F])
