"""The kernels of every AArch64 instruction set, bit for bit, under qemu-user; and what objects are made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.aarch64 import AARCH64, BY_NAME, Foreign, Object, Unlinked, every_aarch64, needs_qemu
from helpers.float32 import UNARY, P, Q, function
from helpers.native import ISAS, Array, codes, engine, exact_result, nearest32
from helpers.native_cases import OUTPUTS, RATIOS, SPECIAL, conv_case, critical, reference, target_of
from helpers.sums import operands
from helpers.widths import WIDTHS, alike, width
from native.test_coded import planned as planned_in_codes
from native.test_coded import reference as coded_reference
from native.test_functions import CAST, hard
from native.test_group_query import turned
from ops.test_ms_blocks import case as coded_case

from qrun.ir.types import NUMBERS
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import KernelSpec, taps_per_turn
from qrun.native.kernels.conv import Conv
from qrun.native.kernels.copy import slice_copy, transpose_copy
from qrun.native.kernels.decoder import Heads, RaggedMask, RaggedPresent, Rotary
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.kernels.float_conv import FloatConv
from qrun.native.kernels.fma_product import FloatMatmul
from qrun.native.kernels.indexed import Gathered, NamedRows
from qrun.native.kernels.quantize import Factors, Quantized, Scaled, Scaling
from qrun.native.kernels.reduce import IntegerReduction, Reduction
from qrun.native.kernels.results import Results
from qrun.native.kernels.rowwise import LayerNorm, RmsNorm
from qrun.native.kernels.softmax import SoftmaxF32
from qrun.native.kernels.stacked import RowTerms, Stack
from qrun.native.machine.codegen import compile_object, llvm, target_machine
from qrun.native.machine.compile import kernel_text
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Operation
from qrun.native.proof.epilogue import Target, prove
from qrun.ops._chains import chained_products
from qrun.ops.conv import conv, conv_integer
from qrun.ops.layernorm import layer_normalization, rms_normalization
from qrun.ops.reduce import reduce_max, reduce_mean, reduce_sum, softmax

F = np.float32
FORMS = ("y32", "x32", "f64", "ort", "table")
PRODUCTS = ("dense", "depthwise")


class Case(NamedTuple):
    """An operation, planned for any engine, on one array or several."""

    label: str
    plan: Callable[[Engine], Operation]
    x: Array | tuple[Array, ...]
    want: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.x if isinstance(self.x, tuple) else (self.x,)


def random_cases() -> Iterator[Case]:
    rng = np.random.default_rng(70)
    for number in range(36):
        case = conv_case(rng)
        if case is None:
            continue
        arith = ("exact", "ort", "integer")[number % 3]
        if arith == "integer":
            want = conv_integer(case["x"], case["w"], case["x_zero_point"], case["w_zero_point"], **case["geometry"])
        else:
            want = reference(case, arith)
        shapes = f"{case['x'].dtype}{case['x'].shape} {case['w'].dtype}{case['w'].shape} {case['geometry']}"
        yield Case(f"{number} {arith} {shapes}", planner(case, arith), case["x"], want)


def planner(case: dict[str, Any], arith: str) -> Callable[[Engine], Conv]:
    target = None if arith == "integer" else target_of(case, arith)

    def plan(engine: Engine) -> Conv:
        return Conv(
            engine, case["x"].shape, case["w"], x_zero_point=case["x_zero_point"], w_zero_point=case["w_zero_point"],
            bias=case["B"] if target else None, target=target, **case["geometry"],
        )  # fmt: skip

    return plan


def extreme_cases() -> Iterator[Case]:
    """Products that leave 16 bits when they are added; enough weights for the next panel's to be fetched ahead."""
    rng = np.random.default_rng(71)
    for kind, w_kind in itertools.product(("u8", "s8"), repeat=2):
        for k, n, rows in ((800, 272, 18), (24, 9, 3), (28, 20, 11), (30, 5, 2)):
            x, w = (np.where(codes(rng, s, t) < 9, *ends(t)) for s, t in (((1, k, rows), kind), ((n, k, 1), w_kind)))
            x[:, :, 0], x[:, :, 1] = ends(kind)
            w[0], w[1] = ends(w_kind)
            case = {"x": x, "w": w, "x_zero_point": codes(rng, (), kind), "w_zero_point": codes(rng, (), w_kind),
                    "B": None, "geometry": {}}  # fmt: skip
            want = conv_integer(x, w, case["x_zero_point"], case["w_zero_point"])
            yield Case(f"extremes {kind} {w_kind} {k}", planner(case, "integer"), x, want)


def ends(kind: str) -> tuple[Any, Any]:
    limits = np.iinfo({"u8": np.uint8, "s8": np.int8}[kind])
    return limits.dtype.type(limits.min), limits.dtype.type(limits.max)


def step_cases() -> Iterator[Case]:
    """Every form, dense and depthwise, driven to each step and one below it: accumulators are biases."""
    names = [*RATIOS, *SPECIAL]
    count = itertools.count()
    for form, (out, zero) in itertools.product(FORMS, OUTPUTS):
        for name in names[next(count) % 5 :: 5]:
            scales = tuple(F(v) for v in {**RATIOS, **SPECIAL}[name])
            points = critical(scales, out, zero)
            points = points[np.abs(points) < (2**21 if form in ("y32", "x32") else 2**31)]
            target = Target(
                scales[0], np.array([scales[1]], F), scales[2], out, zero, "ort" if form == "ort" else "exact"
            )
            if serves(target, points, form):
                want = np.array([result(int(acc), scales, target) for acc in points])
                yield planted(f"{form} {out} {zero} {name}", target, points, want, next(count) % 2)


def serves(target: Target, points: Array, form: str) -> bool:
    if form in ("table", "ort"):
        return True
    proven = prove(target, points.min(keepdims=True), points.max(keepdims=True))
    return bool(getattr(proven, form)[0]) and (form != "f64" or not proven.x32[0])


def result(acc: int, scales: tuple[Any, ...], target: Target) -> int:
    if target.arith == "exact":
        return exact_result(acc, *scales, target.out, target.zero_point)
    low, high = (-128, 127) if target.out == "s8" else (0, 255)
    with np.errstate(all="ignore"):
        rounded = np.rint(F(acc) * (scales[0] * scales[1] / scales[2]))
    return low if np.isnan(rounded) else int(np.clip(rounded + target.zero_point, low, high))


def planted(label: str, target: Target, points: Array, want: Array, depthwise: int) -> Case:
    n, rows = len(points), 7
    inputs = n if depthwise else 4
    form = label.split()[0]

    def plan(engine: Engine) -> Conv:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Results, "form", lambda self, channels: form)
            w, zero = np.zeros((n, inputs // (n if depthwise else 1), 1), np.int8), np.array(9, np.uint8)
            return Conv(
                engine, (1, inputs, rows), w, x_zero_point=zero, bias=points.astype(np.int32), target=target,
                group=n if depthwise else 1,
            )  # fmt: skip

    kind = {"u8": np.uint8, "s8": np.int8}[target.out]
    want = np.repeat(want.astype(kind)[None, :, None], rows, axis=2)
    return Case(f"{label} {'depthwise' if depthwise else 'dense'}", plan, np.full((1, inputs, rows), 9, np.uint8), want)


def copy_cases() -> Iterator[Case]:
    rng = np.random.default_rng(72)
    for dtype in (np.uint8, np.int16, np.float32, np.int64):
        x = rng.integers(0, 100, (2, 6, 5, 7)).astype(dtype)
        for perm in ((0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3)):
            yield Case(f"transpose {perm}", partial(plan_transposed, x, perm), x, x.transpose(perm))
        yield Case("slice", partial(plan_sliced, x), x, x[1:, ::-2, 1:4, ::3])


def plan_transposed(x: Array, perm: tuple[int, ...], engine: Engine) -> Operation:
    return transpose_copy(engine, x.shape, x.dtype, perm)


def plan_sliced(x: Array, engine: Engine) -> Operation:
    return slice_copy(engine, x.shape, x.dtype, (1, 5, 1, 0), (1, -2, 1, 3), (1, 3, 3, 3))


def float_cases() -> Iterator[Case]:
    """Functions and rows of float32, none of which float64 leaves in doubt: there is no Python to ask."""
    rng = np.random.default_rng(73)
    x = rng.normal(0, 2, (3, 45)).astype(F)
    for name in UNARY:
        values = np.abs(x) if name == "sqrt" else x
        yield Case(name, partial(plan_function, name, values), values, function(name)(values))
    scale = rng.normal(1, 0.3, 45).astype(F)
    standard = np.asarray(layer_normalization(x, scale, scale)[0])
    yield Case("standardize", lambda e: LayerNorm(e, x.shape, scale, scale, float(F(1e-5))), x, standard)
    rms = rms_normalization(x, scale)
    yield Case("rms", lambda e: RmsNorm(e, x.shape, scale, float(F(1e-5))), x, rms)
    yield Case("shares", lambda e: SoftmaxF32(e, x.shape, 45), x, softmax(x))
    yield Case("mean", lambda e: Reduction(e, "mean", x.shape, 45, (3,)), x, reduce_mean(x, (1,), False))
    yield from rotary_cases()
    greatest = reduce_max(x, (1,), False)
    yield Case("greatest", lambda e: Reduction(e, "greatest", x.shape, 45, (3,)), x, greatest)
    yield from product_cases()
    yield from cast_cases()
    yield from index_cases()


def cast_cases() -> Iterator[Case]:
    for source, to in (("float32", "int64"), ("float32", "uint8"), ("float64", "uint64"), ("uint64", "float64")):
        x, wanted = hard(np.dtype(source)), np.dtype(to)

        def plan(engine: Engine, x: Array = x, to: str = to) -> Elementwise:
            return Elementwise(engine, f"to_{to}", [Operand(x.shape, x.dtype)])

        yield Case(f"{source} to {to}", plan, x, np.asarray(CAST(x, to=NUMBERS[wanted])))


def index_cases() -> Iterator[Case]:
    """Rows that indices name, and rows of integers as one each."""
    rng = np.random.default_rng(77)
    for dtype, index, run in ((np.uint8, np.int32, 3), (np.float32, np.int64, 70)):
        x = rng.integers(0, 200, (5, run)).astype(dtype)
        indices = np.array([4, -5, 0, -1], index)

        def rows(engine: Engine, x: Array = x, indices: Array = indices) -> Gathered:
            places, made = NamedRows((5,), 1, False, 1, x.shape[1]), (4, x.shape[1])
            return Gathered(engine, x.dtype, indices.dtype, (x.shape, (4,)), places, made)

        yield Case(f"rows of {x.dtype}", rows, (x, indices), x[[4, 0, 0, 4]])
    for dtype, kind, reduced in ((np.int64, "sum", reduce_sum), (np.int16, "mean", reduce_mean)):
        x = rng.integers(-30000, 30000, (3, 37)).astype(dtype)

        def one(engine: Engine, x: Array = x, kind: str = kind) -> IntegerReduction:
            return IntegerReduction(engine, kind, x.dtype, x.shape, 37, (3,))

        yield Case(f"{kind} of {x.dtype}", one, x, reduced(x, (1,), False))


def rotary_cases() -> Iterator[Case]:
    rng = np.random.default_rng(78)
    x, ends = rng.standard_normal((2, 3, 2, 45)).astype(F), np.full(2, 6, np.int32)
    cos, sin = rng.standard_normal((2, 9, 21)).astype(F)
    for pairs in (False, True):
        plan = partial(plan_rotary, x.shape, cos.shape, pairs)
        yield Case(f"rotary {pairs}", plan, (x, ends, cos, sin), turned(x, cos[4:6], sin[4:6], pairs=pairs))
    yield Case("rotary copy", partial(plan_rotary, x.shape, None, False), (x, ends), x)
    past, given = rng.standard_normal((2, 3, 5, 45)).astype(F), np.int32([4, 1])
    rows = np.zeros((2, 3, 8, 45), F)
    rows[0, :, :5], rows[1, :, :2] = np.concatenate([past[0, :, :3], x[0]], axis=1), x[1]
    yield Case("ragged present", partial(plan_present, past.shape, x.shape), (past, x, given), rows)
    hidden = np.full((2, 2, 41), -np.inf, F)
    hidden[0, 0, 2:4] = hidden[0, 1, 3:5] = hidden[1, 0, :1] = hidden[1, 1, :2] = 0
    yield Case("ragged mask", plan_mask, (given,), hidden)


def plan_present(past: tuple[int, int, int, int], shape: tuple[int, int, int, int], engine: Engine) -> Operation:
    return RaggedPresent(engine, past, Heads.plain(shape), (2,), (1, 6), 8)


def plan_mask(engine: Engine) -> Operation:
    return RaggedMask(engine, (2,), (1, 9), (2, 2, 41), (2, 2, 41), True, 2)


def plan_rotary(
    shape: tuple[int, int, int, int], angles: tuple[int, int] | None, pairs: bool, engine: Engine
) -> Operation:
    return Rotary(engine, Heads.plain(shape), (2,), (6, 6), angles, 4, pairs, shape)


def product_cases() -> Iterator[Case]:
    """Products and convolutions of float32: of one block and several, with what is added before and behind."""
    rng = np.random.default_rng(74)
    for kind in ("normal", "ties", "cancelling", "special"):
        for m, k, n in ((1, 40, 70), (5, 300, 9), (23, 140, 33)):
            a, b = operands(kind, rng, m, k, n)
            c = rng.standard_normal(n).astype(F)
            alpha = float(F(0.3))
            scaled = {"constant": c, "alpha": alpha, "begins": True}
            forms = (({}, {}), ({"constant": c}, {"bias": c}), (scaled, {"first": c, "alpha": alpha}))
            for number, (options, added) in enumerate(forms):
                want = chained_products(a, b, a.dtype, **added)
                label, turned = f"{kind} {m}x{k}x{n} {number}", np.ascontiguousarray(b.T)
                yield Case(label, partial(plan_product, a.shape, b, {**options, "weights": b}), a, want)
                yield Case(f"{label} fed", partial(plan_product, a.shape, b, options), (a, b), want)
                plan = partial(plan_product, a.shape, turned, {**options, "turned": True})
                yield Case(f"{label} turned", plan, (a, turned), want)
    for kind in ("normal", "special"):
        for x_shape, w_shape, group in (
            ((2, 5, 6, 7), (9, 5, 3, 3), 1),
            ((2, 21, 6, 7), (21, 1, 3, 3), 21),
            ((2, 18, 9, 8), (11, 18, 3, 3), 1),
            ((1, 40, 4, 5), (11, 40, 3, 3), 1),
            ((1, 8, 4, 5), (8, 2, 3, 3), 4),
        ):
            x, w = (np.ravel(v) for v in operands(kind, rng, int(np.prod(x_shape)), 1, int(np.prod(w_shape))))
            x, w, bias = x.reshape(x_shape), w.reshape(w_shape), rng.standard_normal(w_shape[0]).astype(F)
            with np.errstate(all="ignore"):
                want = np.asarray(conv(x, w, bias, group=group, pads=(1, 1, 1, 1)))
            yield Case(f"{kind} conv {w_shape}", partial(plan_float_conv, x.shape, w, bias, group), x, want)
    yield from coded_cases()


def coded_cases() -> Iterator[Case]:
    """Products with weights in codes, of few rows and of more."""
    for m, bits, zeros, block in (
        (1, 4, "", 32),
        (2, 4, "packed", 16),
        (4, 2, "", 64),
        (30, 4, "", 32),
        (3, 8, "float", 16),
    ):
        inputs, attributes = coded_case(m, bits, zeros, sizes=(m, 290, 21), block=block)
        inputs[0] *= np.exp2(np.random.default_rng(m).integers(-40, 40, inputs[0].shape)).astype(F)
        want = coded_reference(inputs, attributes)
        yield Case(
            f"coded {m} {bits} {zeros}",
            partial(planned_in_codes, inputs=inputs, attributes=attributes),
            inputs[0],
            want,
        )


def run_cases() -> Iterator[Case]:
    """What makes and takes parameters of a run, but for what is packed in an order of the instruction set's own."""
    rng = np.random.default_rng(76)
    x, scale, zero = rng.normal(0, 3, (5, 67)).astype(F), F(0.03), 99
    x[0, :4] = scale * F(0.5), -scale * F(2.5), 1e9, -1e9
    parameters = np.array([scale, F(1) / scale, 0], F).view(np.int32)
    parameters[2] = zero
    want = np.clip(np.rint(x / scale) + F(zero), 0, 255).astype(np.uint8)
    yield Case("codes", lambda e: Quantized(e, x.shape), (x, parameters), want)
    a = codes(rng, (6, 37), "u8")
    terms = (a.sum(axis=1, dtype=np.int32) - 37 * 7) * np.int32(128 - 3)
    yield Case("row terms", lambda e: RowTerms(stack_of(e, a), 7, 3), a, terms)


def stack_of(engine: Engine, a: Array) -> Stack:
    return Stack(engine, Operand(a.shape, a.dtype), Operand((a.shape[1], 9), np.dtype(np.uint8)), Results(None, None))


def scaled_cases() -> Iterator[Case]:
    """Sums whose real values lie next to middles of float32 numbers, with factors in lanes of AArch64."""
    rng = np.random.default_rng(77)
    acc = (rng.integers(2**24, 2**31 - 1, (9, 4)) | 1).astype(np.int32)
    acc[::2] = (acc[::2] >> 8 << 8) + 128
    right, bias = (1 + rng.integers(1, 2**20, 4) * 2.0**-23).astype(F), rng.normal(0, 2.0**-30, 4).astype(F)
    reach = right.astype("d") * 2.0**-18
    factors = np.stack([right, reach, np.zeros(4), bias]).astype("d").view(np.uint8).reshape(-1)
    exact = [[nearest32(int(v) * Fraction(float(r)) + Fraction(float(b))) for v, r, b in zip(row, right, bias, strict=True)]
             for row in acc]  # fmt: skip
    yield Case("real", partial(plan_scaled, "real"), (acc, factors), np.array(exact))
    single = np.stack([right, bias]).view(np.uint8).reshape(-1)
    yield Case("ort", partial(plan_scaled, "ort"), (acc, single), acc.astype(F) * right + bias)


def plan_scaled(form: str, engine: Engine) -> Operation:
    one = np.ones(1, F)
    return Scaled(Factors(engine, Scaling(4, form, one, one)), (9, 4), (9, 4))


def plan_product(shape: tuple[int, ...], b: Array, options: dict[str, Any], engine: Engine) -> Operation:
    return FloatMatmul(engine, shape, b.shape, **options)


def plan_float_conv(shape: tuple[int, ...], w: Array, bias: Array, group: int, engine: Engine) -> Operation:
    return FloatConv(engine, shape, w, bias=bias, group=group, pads=(1, 1, 1, 1))


def plan_function(name: str, x: Array, engine: Engine) -> Operation:
    return Elementwise(engine, name, [Operand(x.shape, x.dtype)], (P, Q))


def refused(*operands: Array) -> Array:
    raise AssertionError("float64 decides these")


@cache
def cases() -> tuple[list[Case], list[Case]]:
    """Those that are planned as users' are, and those that force a form."""
    own = [*scaled_cases()] * 3
    return [*random_cases(), *extreme_cases(), *copy_cases(), *float_cases(), *run_cases()], [*own, *step_cases()]


@needs_qemu
@every_aarch64
def test_kernels_are_exact(isa: str, tmp_path: Path) -> None:
    """Equal to the references, to the definition, and to what this machine's own instruction sets make of the plans.
    What is made by the kernels of a set before it, that set has run."""
    place, first = AARCH64.index(isa), next(name for name in AARCH64 if width(BY_NAME[name]) == width(BY_NAME[isa]))
    plain, forced = cases()
    if isa != first:
        planner = Engine(BY_NAME[isa], Unlinked())
        made = [(case, [part.spec for part in case.plan(planner).tight]) for case in plain]
        plain = [case for case, all_of in made if any(s.kind in PRODUCTS or not alike(s, first) for s in all_of)]
    forced = forced[place % 3 :: 3] if place else forced
    foreign, own = Foreign(isa), engine(ISAS[place % len(ISAS)])
    got = [foreign.run(case.plan(foreign), case.arrays) for case in plain + forced]
    foreign.finish(tmp_path)
    for case, y in zip(plain + forced, got, strict=True):
        assert y.dtype == case.want.dtype
        assert np.array_equal(y, case.want, equal_nan=y.dtype == F), case.label
    for case, y in zip(plain, got, strict=False):
        assert np.array_equal(y, own.run(case.plan(own), case.arrays), equal_nan=y.dtype == F), case.label
    specs = [spec for spec in foreign.program.kernels if spec.kind in PRODUCTS]
    products = set(itertools.product(PRODUCTS, FORMS, ("u8", "s8")))
    products |= {("dense", "i32", "i32"), ("depthwise", "i32", "i32")}
    assert {(s.kind, s.form, s.out) for s in specs} == products
    signs = {(s.signed, s.vectors) for s in specs if s.kind == "dense"}
    assert signs == set(itertools.product((False, True), (1, 2, 3, 4)))
    assert {s.unroll for s in specs} >= set(range(1, 9))
    assert any(s.prefetch for s in specs)


def specs(isa: Isa) -> Iterator[KernelSpec]:
    """Every kind and form."""
    planner = Engine(isa, Unlinked())
    yield from {
        section.spec
        for case in (*copy_cases(), *float_cases(), *run_cases(), *scaled_cases())
        for section in case.plan(planner).tight
    }
    for kind, unroll in (("dense", 4), ("depthwise", 1)):
        for form in (*FORMS, "i32"):
            vectors = max(isa.rows) if form != "i32" else 1
            rows = 2 if form == "table" else isa.rows[vectors] if kind == "dense" else 4
            yield KernelSpec(kind, isa.name, rows, vectors, unroll, form, "i32" if form == "i32" else "s8", True, 2)
    for form in FORMS[:4] if taps_per_turn(isa) > 1 else ():
        for unroll in (1, 2):
            yield KernelSpec("interleaved", isa.name, 4, 4, unroll, form, "s8", True)
    for form in ("each", "table"):
        for rows in (0, 4 * isa.lanes):
            yield KernelSpec("softmax", isa.name, rows, 1, 1, form, "s8", True)


@pytest.mark.parametrize("isa", BY_NAME.values(), ids=list(BY_NAME))
def test_objects_need_nothing_from_elsewhere(isa: Isa) -> None:
    """No calls of memcpy or the like: an object is complete, whatever process loads it. Every third kernel on all but
    two sets, where it is another one than on the set that stands for those of its width."""
    place, all_specs = list(BY_NAME).index(isa.name), [*specs(isa)]
    first = next((name for name in WIDTHS if width(BY_NAME[name]) == width(isa)), isa.name)
    others = (spec for spec in all_specs[place % 3 :: 3] if isa.name == first or not alike(spec, first))
    for spec in all_specs if isa.name in (AARCH64[0], *ISAS[:1]) else others:
        found = Object(compile_object(kernel_text(spec), isa))
        assert found.machine == {"x86_64": 62, "aarch64": 183}[isa.architecture]
        assert found.undefined == [], spec


def test_undefined_symbols_are_seen() -> None:
    text = "declare void @memcpy()\ndefine void @kernel() {\n  call void @memcpy()\n  ret void\n}\n"
    for isa in BY_NAME.values():
        assert Object(compile_object(text, isa)).undefined == ["memcpy"]


DOTS = {"neon-i8mm": {"usdot", "sudot"}, "neon-dotprod": {"sdot"}, "neon": {"smull", "smull2"}}


@every_aarch64
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("unroll", [3, 4])
def test_the_dot_product_is_that_of_the_instruction_set(isa: str, signed: bool, unroll: int) -> None:
    spec = KernelSpec("dense", isa, 2, 2, unroll, "y32", "u8", signed)
    words = set(target_machine(BY_NAME[isa]).emit_assembly(llvm().parse_assembly(kernel_text(spec))).split())
    found = words & set().union(*DOTS.values(), {"udot"})
    assert found
    assert found <= DOTS[isa]
    assert ("eor" in words) == (signed == (isa == "neon-i8mm")), "only activations of the other sign are flipped"
