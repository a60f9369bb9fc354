"""Functions of two 8-bit codes: sums and products that equal the reference for all pairs, broadcasts,
gaps, lowerings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.aarch64 import Foreign, every_aarch64, needs_qemu
from helpers.native import ISAS, LIMITS, OBJECTS, TYPES, Array, Guarded, codes, engine, every_isa, thin
from helpers.placed import natively, same_refusal
from helpers.pointwise import SCALES, ZEROS, Rows, guarded, pair_table, rows_of, sizes
from helpers.support import MS, assert_equal, node_model

import qrun
from qrun.native.errors import Declined
from qrun.native.kernels import point
from qrun.native.kernels.copy import broadcast_copy
from qrun.native.kernels.point import PairLookup, row_shapes
from qrun.native.machine.engine import Engine
from qrun.native.proof import fits
from qrun.native.proof.fits import CodeProduct, CodeSum, fit_pair

F = np.float32
FORMS = {"add": ("int", "fma", "f64", "table"), "mul": ("mul", "table")}


def forced(
    native: Engine,
    form: str,
    shapes: Any,
    table: Array,
    kind: str,
    near: CodeSum | CodeProduct | None,
    patch: pytest.MonkeyPatch,
) -> PairLookup | None:
    """The operation in this form, or None if the form does not prove."""
    with patch.context() as context:
        if form in ("fma", "f64"):
            context.setattr(fits, "_ints", lambda *_: iter(()))
        if form == "f64":
            context.setattr(fits, "_chains", lambda *_: iter(()))
        made = PairLookup(native, shapes, table, x_type=np.dtype(TYPES[kind]), near=None if form == "table" else near)
    return made if made.kernel.form == form else None


def pairs() -> tuple[Array, Array]:
    """All pairs of codes, and some more."""
    a, b = (grid.reshape(-1) for grid in np.meshgrid(np.arange(256), np.arange(256), indexing="ij"))
    return np.append(a, a[:37]).astype(np.uint8), np.append(b, b[99:136]).astype(np.uint8)


@thin(*product(("add", "mul"), ("u8", "s8"), SCALES), other=4)
def test_all_pairs(isa: str, value: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    name, kind, scales = value
    a, b = pairs()
    proven = set()
    for zeros, arith in product(ZEROS, ("exact", "ort")):
        table, near = pair_table(name, kind, SCALES[scales], zeros, arith)
        for form in FORMS[name]:
            operation = forced(engine(isa), form, (a.shape, a.shape), table, kind, near, monkeypatch)
            assert operation is not None or (form, arith) != ("f64", "exact"), zeros
            if operation is not None:
                proven.add(form)
                got = engine(isa).run(operation, [a.view(TYPES[kind]), b.view(TYPES[kind])])
                assert_equal(got, table[a, b], f"{zeros} {arith} {form}")
    assert "table" in proven
    if name == "mul" or scales in ("plain", "equal", "average", "1/255", "near", "negative"):
        assert proven & {"int", "mul"}, proven


@pytest.mark.parametrize("fma", [True, False])
def test_random_scales_nearly_always_prove(fma: bool) -> None:
    rng = np.random.default_rng(20)
    forms: list[str] = []
    for number in range(40):
        name, arith = ("add", "mul")[number % 2], ("exact", "ort")[number // 2 % 2]
        a, b = np.exp(rng.uniform(-5, 0, 2))
        scales = (a, b, max(a, b) * rng.uniform(0.5, 2) if name == "add" else a * b * rng.uniform(0.3, 3))
        zeros = tuple(int(zero) for zero in rng.integers(0, 256, 3))
        table, near = pair_table(name, "u8", scales, zeros, arith)
        found = fit_pair(table.astype(np.int64), near, LIMITS["u8"], fma, False)
        forms.append(found[0] if found else "table")
    assert forms.count("table") <= (0 if fma else 1), forms
    assert forms.count("int") >= 14, forms


TIES = {
    "one operand": (0.0137, 0.0291, 6 * 0.0137), "both": (0.01, 0.03, 0.06), "decimal": (0.05, 0.02, 0.07),
    "large": (0.3, 0.11, 0.2), "small": (0.00031, 0.02, 0.04), "fractions": (7 / 13, 11 / 17, 7 / 13 * 10 / 3), "unlike": (0.7, 1e-4, 0.7 * 6),
    "beyond": (3, 7, 0.011),
}  # fmt: skip


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("name", TIES)
def test_ties_and_what_nearly_is_one_need_no_table(name: str, fma: bool) -> None:
    for kind, zeros in product(("u8", "s8"), ((0, 0, 0), (3, 7, 9), (100, 5, 127))):
        table, near = pair_table("add", kind, TIES[name], zeros)
        order = np.arange(256) ^ (128 if kind == "s8" else 0)
        found = fit_pair(table[order][:, order].astype(np.int64), near, LIMITS[kind], fma, kind == "s8")
        assert found is not None, (kind, zeros)


def test_single_precision_misses_some_ties() -> None:
    table, near = pair_table("add", "u8", TIES["one operand"], ZEROS[1])
    found = fit_pair(table.astype(np.int64), near, LIMITS["u8"], True, False)
    assert found is not None
    assert found[0] == "f64"


@pytest.mark.parametrize("at_end", [True, False])
@every_isa
def test_sizes_and_gaps(isa: str, at_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, rng, native = Guarded(), np.random.default_rng(21), engine(isa)
    guard.hold(monkeypatch, at_end, point)
    for name in ("add", "mul"):
        table, near = pair_table(name, "s8", SCALES["plain"], ZEROS[1])
        for columns, count, form in product(sizes(isa), (1, 3), FORMS[name]):
            a, b = (codes(rng, (1, columns, count), "s8") for _ in range(2))
            operation = forced(native, form, (a.shape, a.shape), table, "s8", near, monkeypatch)
            assert operation is not None
            for strides in ((0, 0, 0), (columns + 3, 0, 0), (0, columns + 1, columns + 7)):
                got = Rows(operation, strides, guarded(guard, at_end)).run(native, [a, b])
                want = rows_of(table[a.view(np.uint8), b.view(np.uint8)], "channels")
                assert np.array_equal(got, want), (name, columns, count, form, strides)


BROADCASTS = {
    "squeeze and excite": ((2, 70, 5, 3), (2, 70, 1, 1), "channels"),
    "channels": ((2, 70, 5, 3), (70, 1, 1), "channels"), "other side": ((1, 70, 1, 1), (2, 70, 5, 3), "channels"),
    "images": ((3, 20, 4, 2), (1, 20, 4, 2), "channels"), "one to many": ((3, 20, 1, 1), (1, 20, 4, 2), "channels"),
    "last axis": ((2, 5, 66), (66,), "rows"), "positions": ((2, 5, 66), (1, 5, 66), "rows"),
    "tokens": ((2, 5, 66), (2, 1, 66), "rows"), "matrix": ((7, 33), (1, 33), "rows"), "few": ((2, 3, 4, 4), (3, 1, 1), "channels"),
    "ones": ((2, 1, 1, 5), (1, 5), "rows"), "nothing": ((0, 3), (1, 3), "rows"), "added axes": ((5,), (1, 1, 5), "rows"),
    "all but the first": ((4, 5, 3, 3), (5, 3, 3), "rows"), "one channel": ((2, 1, 3, 40), (1, 1, 3, 40), "rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROADCASTS)
@every_isa
def test_broadcasts(isa: str, name: str) -> None:
    left, right, order = BROADCASTS[name]
    rng, guard = np.random.default_rng(22), Guarded()
    table, near = pair_table("mul", "u8", SCALES["plain"], ZEROS[1])
    for first, second, threads in ((left, right, 1), (right, left, 3)):
        native = engine(isa, threads)
        a, b = codes(rng, first, "u8"), codes(rng, second, "u8")
        operation = PairLookup(native, (first, second), table, x_type=a.dtype, near=near)
        assert operation.order == order
        want = table[a, b]
        assert_equal(np.ascontiguousarray(native.run(operation, [a, b])), want)
        columns = operation.result.columns(order)
        strides = [columns + extra for extra in (2, 3, 5)]
        if all(len(shape) == len(left) for shape in (left, right)):
            got = Rows(operation, strides, guarded(guard, True)).run(native, [a, b])
            assert np.array_equal(got, rows_of(want, order))


@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), ()), ((2, 1, 4), (1, 3, 1)), ((2, 70, 5, 3), (2, 1, 5, 3)), ((2, 3, 2, 5), (2, 1, 2, 1)),
               ((2, 3, 4, 5, 6), (2, 3, 1, 5, 1))]
)  # fmt: skip
def test_other_broadcasts_are_declined(shapes: Any) -> None:
    table, _ = pair_table("mul", "u8", SCALES["plain"], ZEROS[1])
    with pytest.raises(Declined, match="broadcast"):
        PairLookup(engine(ISAS[0]), shapes, table, x_type=np.dtype(np.uint8))


def test_shapes_to_which_operands_are_repeated() -> None:
    for first, second, want in (
        ((2, 3), (3,), ((2, 3), (3,))),
        ((1, 1, 256), (1, 512, 1), ((1, 1, 256), (1, 512, 256))),
        ((1, 512, 1), (1, 1, 256), ((1, 512, 256), (1, 1, 256))),
        ((2, 3, 1, 5, 1), (2, 1, 4, 1, 6), ((2, 3, 4, 5, 6),) * 2),
    ):
        assert row_shapes(first, second) == want
    native, dtype = engine(ISAS[0]), np.dtype(np.uint8)
    assert native.run(broadcast_copy(native, (), dtype, (3,)), [np.array(7, dtype)]).tolist() == [7, 7, 7]
    for shape in ((2,), (3, 1), (1, 1)):
        with pytest.raises(ValueError, match="does not broadcast"):
            broadcast_copy(native, shape, dtype, (3,))


def test_what_is_refused() -> None:
    table, _ = pair_table("add", "u8", SCALES["plain"], ZEROS[1])
    native = engine(ISAS[0])
    with pytest.raises(Declined, match="8-bit"):
        PairLookup(native, ((3,), (3,)), table, x_type=np.dtype(np.int32))
    with pytest.raises(ValueError, match="pairs"):
        PairLookup(native, ((3,), (3,)), table[:5], x_type=np.dtype(np.uint8))
    with pytest.raises(ValueError, match="broadcast"):
        PairLookup(native, ((3,), (4,)), table, x_type=np.dtype(np.uint8))


def test_estimates_that_mislead_end_in_the_table() -> None:
    table, _ = pair_table("add", "u8", SCALES["plain"], ZEROS[1])
    for near in (CodeSum(np.nan, 1, 0, 0, 0), CodeSum(np.inf, 1, 0, 0, 0), CodeSum(0, 0, 0, 0, 0), CodeSum(1e30, 1e-30, 0, 0, 0),
                 CodeSum(1, 1, 0, 0, 0), CodeProduct(0, 1, 1, 1), CodeProduct(np.inf, 1, 1, 1), CodeProduct(3, 1, 1, 1)):  # fmt: skip
        assert fit_pair(table.astype(np.int64), near, LIMITS["u8"], True, False) is None


@needs_qemu
@every_aarch64
def test_aarch64(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native, found = Foreign(isa), []
    rng = np.random.default_rng(23)
    a, b = pairs()
    for name, kind, scales in product(("add", "mul"), ("u8", "s8"), ("plain", "average", "1/90")):
        table, near = pair_table(name, kind, SCALES[scales], ZEROS[1])
        for form in FORMS[name]:
            for x, y in ((a[::7], b[::7]), (a[:13], b[:13])):
                operation = forced(native, form, (x.shape, x.shape), table, kind, near, monkeypatch)
                if operation is not None:
                    got = native.run(operation, [x.view(TYPES[kind]), y.view(TYPES[kind])])
                    found.append((got, table[x, y], (name, kind, scales, form)))
    table, near = pair_table("mul", "u8", SCALES["plain"], ZEROS[1])
    for first, second, _ in BROADCASTS.values():
        x, y = codes(rng, first, "u8"), codes(rng, second, "u8")
        operation = PairLookup(native, (first, second), table, x_type=x.dtype, near=near)
        found.append((native.run(operation, [x, y]), table[x, y], (first, second)))
    native.finish(tmp_path)
    for got, want, message in found:
        assert_equal(np.ascontiguousarray(got), want, str(message))


def model(
    op_type: str, kind: str, shapes: Any, scales: Any = (0.02, 0.03, 0.041), constants: Any = (), **zeros: Any
) -> tuple[Any, Any]:
    rng = np.random.default_rng(24)
    a, b = (codes(rng, shape, kind) for shape in shapes)
    za, zb, zc = (np.array(zeros.get(n, z)).astype(TYPES[kind]) for n, z in (("a", 3), ("b", 250), ("c", 5)))
    sa, sb, sc = (np.array(F(scale)) for scale in scales)
    return node_model(
        op_type, [a, sa, za, b, sb, zb, sc, zc], domain=MS, outputs=[a.dtype], constants=[1, 2, 4, 5, 6, 7, *constants]
    )


SAME = ((2, 5, 9, 7),) * 2
RUNS: dict[str, Callable[[str], tuple[Any, Any]]] = {
    "same": lambda op: model(op, "u8", SAME), "signed": lambda op: model(op, "s8", SAME),
    "large": lambda op: model(op, "u8", ((1, 8, 100, 101),) * 2), "1/90": lambda op: model(op, "s8", SAME, (1, 1, 90)),
    "saturated": lambda op: model(op, "u8", SAME, (1, 1, 0.02)), "nan": lambda op: model(op, "u8", SAME, (0, 0, 0)),
    "bad scale": lambda op: model(op, "u8", SAME, (-0.02, 0.03, 0.05)),
    "row": lambda op: model(op, "u8", ((4, 66), (66,))), "row first": lambda op: model(op, "u8", ((66,), (4, 66))),
    "columns": lambda op: model(op, "s8", ((2, 70, 5, 3), (2, 70, 1, 1))),
    "columns first": lambda op: model(op, "s8", ((2, 70, 1, 1), (2, 70, 5, 3)), (1, 1, 90)),
    "constant": lambda op: model(op, "u8", SAME, constants=[3]), "first constant": lambda op: model(op, "u8", SAME, constants=[0]),
    "constant number": lambda op: model(op, "s8", ((2, 3, 4), ()), constants=[3]),
    "first constant number": lambda op: model(op, "s8", ((1,), (2, 3, 4)), (1, 1, 90), constants=[0]),
    "constant channels": lambda op: model(op, "u8", ((2, 70, 5, 3), (70, 1, 1)), constants=[3]),
    "constant channels first": lambda op: model(op, "u8", ((1, 70, 1), (2, 70, 5)), (1, 1, 90), constants=[0]),
    "constant row": lambda op: model(op, "s8", ((4, 66), (66,)), constants=[3]),
    "constant adds axes": lambda op: model(op, "s8", ((66,), (1, 1, 66)), constants=[3]),
    "numbers": lambda op: model(op, "u8", ((), (1,))), "empty": lambda op: model(op, "u8", ((0, 3), (0, 3))),
    "each along an axis": lambda op: model(op, "u8", ((1, 1, 256), (1, 51, 1))),
    "each along an axis, signed": lambda op: model(op, "s8", ((2, 1, 4), (1, 3, 1)), (1, 1, 90)),
    "along no row": lambda op: model(op, "u8", ((5, 1), (1, 66))), "a number": lambda op: model(op, "s8", ((1, 1), (1, 512))),
    "one image for all": lambda op: model(op, "u8", ((2, 70, 5, 3), (2, 1, 5, 3))),
    "some axes": lambda op: model(op, "s8", ((2, 3, 4, 5, 6), (2, 3, 1, 5, 1))),
    "both repeated": lambda op: model(op, "u8", ((2, 3, 1, 5, 1), (2, 1, 4, 1, 6))),
    "nothing repeated": lambda op: model(op, "u8", ((1, 0, 1), (3, 1, 4))),
    "empty channels": lambda op: model(op, "u8", ((2, 0, 3), (0, 1)), constants=[3]),
}  # fmt: skip


@pytest.mark.parametrize("arith", ["exact", "ort", "onnx-ref"])
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@thin(*RUNS, name="name", other=6)
def test_sessions_equal_the_reference(isa: str, name: str, op_type: str, arith: str) -> None:
    made, feeds = RUNS[name](op_type)
    natively(made, feeds, arith=arith, isa=isa, fuse=False)


@pytest.mark.parametrize("place", [1, 2, 4, 5, 6, 7])
def test_parameters_that_may_change_are_left_to_the_reference(place: int) -> None:
    made, feeds = model("QLinearAdd", "u8", SAME)
    names = ["A", "A_scale", "A_zero_point", "B", "B_scale", "B_zero_point", "C_scale", "C_zero_point"]
    tensor = next(t for t in made.graph.initializer if t.name == f"i{place}")
    made.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    feeds = {**feeds, tensor.name: onnx.numpy_helper.to_array(tensor)}
    event = qrun.Session(made, backend="native", cache=OBJECTS, fuse=False).execute(feeds).events[0]
    assert (event.backend, event.why) == ("reference", f"{names[place]} is not constant")


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_refusals_are_those_of_the_reference(op_type: str) -> None:
    same_refusal(*model(op_type, "u8", ((2, 3), (2, 4))))
    for place, wrong in ((1, np.ones(3, F)), (7, np.ones(2, np.uint8)), (5, np.ones((), np.int8))):
        inputs = [np.zeros(3, np.uint8), np.array(F(1)), np.array(0, np.uint8)] * 2
        inputs += [np.array(F(1)), np.array(0, np.uint8)]
        inputs[place] = wrong
        same_refusal(*node_model(op_type, inputs, domain=MS, outputs=[np.uint8], constants=[1, 2, 4, 5, 6, 7]))
