"""Functions of 8-bit codes given as tables: every form on every instruction set, sizes, gaps, threads, lowerings."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.aarch64 import Foreign, every_aarch64, needs_qemu
from helpers.native import EMULATED, ISAS, OBJECTS, TYPES, Array, Guarded, codes, engine, every_isa, thin
from helpers.pointwise import Rows, bits, guarded, rows_of, sizes
from helpers.support import MS, assert_equal, node_model

import qrun
from qrun.native.emit.spec import VBMI
from qrun.native.errors import Declined
from qrun.native.kernels import point
from qrun.native.kernels.point import Lines, Point
from qrun.native.proof.fits import CodeProduct, CodeSum, Expected, expected_lines, fit_lines, fused_add
from qrun.ops.qlinearbinary import qlinear_sigmoid

F = np.float32


def tables(kind: str, rng: np.random.Generator) -> dict[str, Array]:
    """Functions by name, of uint8 or int8 codes."""
    x = bits(kind).astype(np.float64)
    other = "s8" if kind == "u8" else "u8"

    def rounded(values: Array, out: str) -> Array:
        info = np.iinfo(TYPES[out])
        return np.clip(np.rint(values), info.min, info.max).astype(TYPES[out])

    return {
        "copy": bits(kind), "clamp": np.clip(bits(kind), 7, 99).astype(TYPES[kind]), "other type": bits(other),
        "random": codes(rng, (256,), kind), "flat": np.full(256, 7, TYPES[kind]), "low": np.full(256, 0, np.uint8),
        "high": np.full(256, 127, np.int8), "line": rounded(x * 0.37 - 5, other), "falling": rounded(40 - 1.7 * x, kind),
        "steep": rounded(97.3 * x - 3, "u8"), "step": np.where(x < 3, 9, 250).astype(np.uint8),
        "halves": rounded(x / 2, other), "odd halves": rounded(x / 2 + 0.5, kind), "sixths": rounded(x / 6, kind),
        "sigmoid": rounded(255 / (1 + np.exp(-x / 30)), "u8"),
    }  # fmt: skip


def cases() -> Iterator[tuple[str, str, Array]]:
    rng = np.random.default_rng(4)
    for kind in ("u8", "s8"):
        for name, table in tables(kind, rng).items():
            yield kind, name, table


@pytest.fixture
def without_vbmi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point, "_host", frozenset)


@every_isa
@pytest.mark.parametrize("features", ["all", "none"])
def test_every_code_of_every_form(isa: str, features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if features == "none" or isa in EMULATED:
        monkeypatch.setattr(point, "_host", lambda: frozenset({VBMI} if features == "all" else ()))
    x = np.concatenate([np.arange(256), np.arange(255)]).astype(np.uint8)
    seen = set()
    for kind, name, table in cases():
        operation = Point(engine(isa), x.shape, table, x_type=np.dtype(TYPES[kind]))
        seen.add(operation.tight[0].spec.form)
        assert_equal(engine(isa).run(operation, [x.view(TYPES[kind])]), table[x], f"{kind} {name} {seen}")
    lanes = engine(isa).isa.lanes
    others = {"affine", "shuffle"} if lanes > 4 else {"affine", "table"}
    assert seen in ({"clamp"} | others, {"clamp", "permute"}), seen


@every_isa
def test_every_code_of_tables_for_each_channel(isa: str) -> None:
    rng = np.random.default_rng(5)
    for kind in ("u8", "s8"):
        for channels in (1, 3, 70, 200):
            lines = np.stack([np.clip(np.rint(bits(kind) * rng.uniform(-2, 2) + rng.uniform(0, 200)), 0, 255)
                              for _ in range(channels)]).astype(np.uint8)  # fmt: skip
            mixed = lines.copy()
            mixed[channels // 3 : channels // 3 + 2] = codes(rng, (256,), "u8")
            rough = codes(rng, (channels, 256), "u8")
            for table, form in ((lines, "affines"), (mixed, "mixed"), (rough, "tables")):
                x = np.broadcast_to(np.arange(256, dtype=np.uint8), (1, channels, 256)).view(TYPES[kind])
                operation = Point(engine(isa), x.shape, table, x_type=x.dtype, axis=1)
                assert_equal(engine(isa).run(operation, [x]), table[None], f"{kind} {channels} {form}")
                forms = {section.spec.form for section in operation.tight}
                if channels == 200:
                    assert forms == ({"affines", "tables"} if form == "mixed" else {form})


@pytest.mark.parametrize("at_end", [True, False])
@every_isa
def test_sizes_and_gaps(isa: str, at_end: bool, monkeypatch: pytest.MonkeyPatch, without_vbmi: None) -> None:
    guard, rng = Guarded(), np.random.default_rng(6)
    native = engine(isa)
    guard.hold(monkeypatch, at_end, point)
    functions = tables("u8", rng)
    for columns in sizes(isa):
        for rows_count in (1, 3):
            x = codes(rng, (1, columns, rows_count, 1), "u8")
            for name, axis in (("clamp", None), ("line", None), ("random", None), ("line", 1), ("random", 1)):
                table = functions[name]
                each = table if axis is None else np.tile(table, (columns, 1))
                operation = Point(native, x.shape, each, x_type=x.dtype, axis=axis)
                for strides in ((0, 0), (columns + 3, 0), (0, columns + 1), (columns + 2, columns + 5)):
                    got = Rows(operation, strides, guarded(guard, at_end)).run(native, [x])
                    want = rows_of(table[x], "channels")
                    assert np.array_equal(got, want), (columns, rows_count, name, axis, strides)


@every_isa
def test_threads_share_rows_and_columns(isa: str) -> None:
    rng = np.random.default_rng(7)
    many = engine(isa, 3)
    for shape, strides in (((1, 40000, 3, 1), (0, 0)), ((1, 70, 900, 1), (75, 80)), ((2, 1, 300, 301), (0, 0))):
        x = codes(rng, shape, "u8")
        for table in (codes(rng, (256,), "s8"), bits("u8")):
            operation = Point(many, shape, table, x_type=x.dtype)
            assert operation.sections(strides)[0].tiles > 1
            got = Rows(operation, strides, lambda count: np.empty(count, np.uint8)).run(many, [x])
            assert np.array_equal(got, rows_of(table[x], "any"))


@every_isa
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (0, 5), (2, 3, 4, 5, 6)])
def test_any_shape(isa: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(8)
    x, table = codes(rng, shape, "s8"), codes(rng, (256,), "u8")
    operation = Point(engine(isa), shape, table, x_type=x.dtype)
    assert_equal(engine(isa).run(operation, [x]), table[x.view(np.uint8)])
    assert bool(operation.tight) == bool(x.size)
    if shape:
        each = codes(rng, (shape[-1], 256), "u8")
        last = Point(engine(isa), shape, each, x_type=x.dtype, axis=-1)
        want = each[np.broadcast_to(np.arange(shape[-1]), shape), x.view(np.uint8)]
        assert_equal(engine(isa).run(last, [x]), want)


def test_what_is_declined() -> None:
    native, x = engine(ISAS[0]), np.zeros(256, np.uint8)
    with pytest.raises(Declined, match="8-bit"):
        Point(native, (3,), x.astype(np.int32), x_type=x.dtype)
    with pytest.raises(Declined, match="axis 0"):
        Point(native, (3, 4, 5), np.zeros((3, 256), np.uint8), x_type=x.dtype, axis=0)
    with pytest.raises(ValueError, match="tables"):
        Point(native, (3, 4), np.zeros((3, 256), np.uint8), x_type=x.dtype, axis=1)
    with pytest.raises(ValueError, match="cannot lie"):
        Point(native, (3, 4), x, x_type=x.dtype).sections((3, 0))


@pytest.mark.parametrize("fma", [True, False])
def test_lines_are_found_for_what_requantizes(fma: bool) -> None:
    rng = np.random.default_rng(9)
    x = np.arange(256)
    made = [np.rint((x - rng.integers(256)) * np.exp(rng.uniform(-4, 1))) + rng.integers(256) for _ in range(60)]
    made += [np.rint((x - 128) * scale) + 128 for scale in (1, 0.5, 0.25, -0.5, 1 / 90, 1 / 6, 3 / 82, 2, 100)]
    good, _, _, _ = fit_lines(np.clip(np.stack(made), 0, 255).astype(np.int64), (0, 255), fma)
    assert good.all(), np.flatnonzero(~good)


@pytest.mark.parametrize("fma", [True, False])
def test_expected_lines_are_tried_and_never_believed(fma: bool) -> None:
    """Good lines are taken as they are, bad ones cost a search; what is taken gives every entry."""
    x, zeros = np.arange(256), np.arange(256)
    near = CodeSum(0.37, 0.21, 120, 7, 131)
    added = np.rint(0.37 * (x - 120) + 0.21 * (zeros[:, None] - 7)) + 131
    multiplied = np.rint(0.0131 * (x - 120) * (zeros[:, None] - 7)) + 131
    for estimate, values in ((near, added), (CodeProduct(0.0131, 120, 7, 131), multiplied)):
        tables = np.clip(values, 0, 255).astype(np.int64)
        lines = expected_lines(estimate, zeros)
        good, a, b, add = fit_lines(tables, (0, 255), fma, lines)
        assert good.all()
        assert np.count_nonzero(a == lines.slopes.astype(F)) > 200
        for bad in (np.nan, np.inf, 1e300, -5.0, 0.0):
            wrong = Expected(np.full(256, bad), lines.offsets)
            for misled in (wrong, Expected(lines.slopes, wrong.slopes)):
                good, a, b, add = fit_lines(tables, (0, 255), fma, misled)
                assert good.all()
                product, offset = a.astype(float)[:, None] * x, b.astype(float)[:, None]
                value = fused_add(product, offset) if fma else (product.astype(F) + b[:, None]).astype(float)
                assert_equal(np.clip(np.rint(value) + add, 0, 255).astype(np.int64), tables)


def test_a_fused_sum_is_rounded_once() -> None:
    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal(4000).astype(F).astype(np.float64) for _ in range(2))
    c = (rng.standard_normal(4000) * 2.0 ** rng.integers(-70, 10, 4000)).astype(F).astype(np.float64)
    got = fused_add(a * b, c)
    for i in range(0, 4000, 7):
        exact = Fraction(a[i]) * Fraction(b[i]) + Fraction(c[i])
        near = [np.nextafter(F(got[i]), F(end)) for end in (-np.inf, np.inf)]
        assert all(abs(Fraction(float(n)) - exact) >= abs(Fraction(got[i]) - exact) for n in near)
    tie = fused_add(np.array([1 + 2.0**-24]), np.array([2.0**-80]))
    assert tie == np.float64(F(1 + 2.0**-23))


@needs_qemu
@every_aarch64
def test_aarch64(isa: str, tmp_path: Path) -> None:
    native, rng, found = Foreign(isa), np.random.default_rng(11), []
    x = np.concatenate([np.arange(256), np.arange(255)]).astype(np.uint8)
    for kind, name, table in cases():
        operation = Point(native, x.shape, table, x_type=np.dtype(TYPES[kind]))
        found.append((native.run(operation, [x.view(TYPES[kind])]), table[x], (kind, name)))
    for columns in (1, 15, 16, 17, 33):
        x = codes(rng, (2, columns, 5), "s8")
        lines = np.stack([np.clip(np.rint(bits("s8") * 0.3 + i), 0, 255) for i in range(columns)]).astype(np.uint8)
        operation = Point(native, x.shape, lines, x_type=x.dtype, axis=1)
        want = lines[np.arange(columns)[:, None], x.view(np.uint8)]
        found.append((native.run(operation, [x]), want, columns))
    native.finish(tmp_path)
    for got, want, message in found:
        assert_equal(np.ascontiguousarray(got), want, str(message))


def quantized(op_type: str, kind: str, scales: tuple[float, float] = (0.05, 1 / 255), **attributes: Any) -> Any:
    x = codes(np.random.default_rng(12), (2, 40, 5, 3), kind)
    zeros = [np.array(zero).astype(TYPES[kind]) for zero in (100, 7)]
    inputs = [x, np.array(F(scales[0])), zeros[0], np.array(F(scales[1])), zeros[1]]
    return node_model(op_type, inputs, attributes, domain=MS, outputs=[x.dtype], constants=range(1, 5))


def plain(op_type: str, x: Array, *parameters: Any, opset: int = 21, **attributes: Any) -> Any:
    constants = range(1, 1 + len(parameters))
    return node_model(op_type, [x, *parameters], attributes, outputs=[x.dtype], constants=constants, opset=opset)


S8 = codes(np.random.default_rng(13), (3, 40, 7), "s8")
MODELS = {
    "sigmoid u8": quantized("QLinearSigmoid", "u8"), "sigmoid s8": quantized("QLinearSigmoid", "s8"),
    "leaky": quantized("QLinearLeakyRelu", "u8", (0.02, 0.03), alpha=0.1),
    "leaky saturated": quantized("QLinearLeakyRelu", "s8", (0.2, 0.003)),
    "bad scale": quantized("QLinearSigmoid", "u8", (0.05, -1.0)), "nan": quantized("QLinearLeakyRelu", "u8", (0.0, 0.0)),
    "relu": plain("Relu", S8), "abs": plain("Abs", S8), "neg": plain("Neg", S8), "sign": plain("Sign", S8),
    "clip": plain("Clip", S8, np.array(-5, np.int8), np.array(44, np.int8)),
    "clip backwards": plain("Clip", S8, np.array(5, np.int8), np.array(-4, np.int8)),
    "no clip": plain("Clip", S8.view(np.uint8)),
}  # fmt: skip


@pytest.mark.parametrize("arith", ["exact", "ort"])
@thin(*MODELS, name="name", other=4)
def test_sessions_equal_the_reference(isa: str, name: str, arith: str) -> None:
    model, feeds = MODELS[name]
    want = qrun.Session(model, arith=arith, backend="reference").execute(feeds)
    session = qrun.Session(model, arith=arith, backend="native", isa=isa, cache=OBJECTS, fuse=False)
    for _ in range(3):
        got = session.execute(feeds)
        assert_equal(got.outputs["y0"], want.outputs["y0"], name)
    first = (
        qrun.Session(model, arith=arith, backend="native", isa=isa, cache=OBJECTS, fuse=False).execute(feeds).events[0]
    )
    assert (first.backend, first.why) == ("native", "")
    ours, theirs = (sorted((o.kind, o.param, o.detail) for o in r.observations if o.kind != "saturated")
                    for r in (first, want.events[0]))  # fmt: skip
    assert ours == theirs
    if "saturated" in name:
        assert {o.kind for o in first.observations} == {"saturated"}


def test_the_sigmoid_of_all_codes_is_the_reference_kernels() -> None:
    x = bits("u8")
    parameters = [np.array(F(0.05)), np.array(100, np.uint8), np.array(F(1 / 255)), np.array(7, np.uint8)]
    model, feeds = node_model("QLinearSigmoid", [x, *parameters], domain=MS, outputs=[np.uint8], constants=range(1, 5))
    got = qrun.Session(model, backend="native", cache=OBJECTS, fuse=False).run(feeds)["y0"]
    assert_equal(got, qlinear_sigmoid(x, *parameters))


def test_columns_that_change_often_between_lines_and_none_take_tables_alone() -> None:
    def runs(good: list[bool]) -> list[tuple[int, int, bool]]:
        return Lines(np.array(good, bool), np.ones(len(good), F), np.zeros(len(good), F), 0, "u8", False).runs()

    assert runs([]) == []
    assert runs([True, True, False]) == [(0, 2, True), (2, 3, False)]
    assert runs([True, False] * 4) == [(n, n + 1, n % 2 == 0) for n in range(8)]
    assert runs([True, False] * 5) == [(0, 10, False)]
