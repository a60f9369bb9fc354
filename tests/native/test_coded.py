"""Native products with weights of 2, 4 and 8 bits equal the reference's, bit for bit."""

from __future__ import annotations

from itertools import product as combinations
from typing import Any

import numpy as np
import pytest
from helpers.native import Array, engine, every_isa, thin
from helpers.passes import Graph
from helpers.placed import natively, reference_nodes, run_placed, same_runs, schedules
from helpers.sums import assert_bits
from helpers.support import MS, node_model
from ops.test_ms_blocks import ZEROS, case
from oracle.blocks import BFLOAT16

import qrun
from qrun.native.kernels.coded import CodedMatmul, CodedWeights
from qrun.native.machine.engine import Engine
from qrun.ops import Context, find
from qrun.ops.matmulnbits import check_weights

F = np.float32
SIZES = (
    (1, 1, 1, 16), (1, 300, 70, 32), (2, 16, 9, 16), (3, 129, 33, 64), (5, 128, 32, 32), (6, 200, 40, 128), (9, 17, 3, 16),
    (13, 260, 70, 256), (70, 144, 20, 16), (130, 385, 9, 512), (1, 1030, 200, 1024), (17, 770, 150, 128),
)  # fmt: skip
"""m, k, n, block size."""
FORMS = list(combinations((2, 4, 8), ZEROS))


def product(isa: str, inputs: list[Any], attributes: dict[str, int], threads: int = 1) -> CodedMatmul:
    """The operation for this instruction set."""
    return planned(engine(isa, threads), inputs, attributes)


def planned(engine: Engine, inputs: list[Any], attributes: dict[str, int]) -> CodedMatmul:
    """The operation, as the operator's lowering makes it."""
    a, *rest = inputs
    weights = check_weights(a, rest, [attributes[name] for name in ("K", "N", "bits", "block_size")], 0)
    zeros = None if weights.zero_points is None else weights.zeros()
    codes = weights.codes.reshape(len(weights.codes), -1)
    coded = CodedWeights(codes, weights.scales, zeros, weights.bits, weights.block, weights.depth)
    return CodedMatmul(engine, a.shape, coded, bias=rest[4])


def reference(inputs: list[Any], attributes: dict[str, int]) -> Array:
    with np.errstate(all="ignore"):
        made: Array = find(MS, "MatMulNBits", 1)(*inputs, **attributes, ctx=Context())
    return made


@thin(*SIZES, name="sizes")
@pytest.mark.parametrize("at_end", [True, False])
def test_sizes(isa: str, sizes: tuple[int, int, int, int], at_end: bool) -> None:
    m, k, n, block = sizes
    for number, (bits, zeros) in enumerate(FORMS):
        inputs, attributes = case(number, bits, zeros, sizes=(m, k, n), block=block, bias=number % 2 == 0)
        want = reference(inputs, attributes)
        for threads in (1, 2):
            made = product(isa, inputs, attributes, threads)
            assert made.tight[0].spec.kind == "coded_product"
            got = run_placed(engine(isa, threads), made, inputs[:1], (0, 0), at_end)
            assert_bits(got, want, f"{bits} {zeros} {threads}")


@every_isa
def test_edges(isa: str) -> None:
    """k beside groups of codes and blocks of 256, columns beside vectors and panels, rows beside strips."""
    lanes = engine(isa).isa.lanes
    depths = ((1, k, 5) for k in (3, 4, 5, 7, 8, 9, 15, 17, 255, 256, 257, 511, 513, 4097))
    columns = ((2, 40, n) for vectors in (1, 2, 4, 8) for n in range(vectors * lanes - 1, vectors * lanes + 2))
    rows = ((m, 270, 20) for m in (*range(1, 15), 24, 25))
    for number, sizes in enumerate((*depths, *columns, *rows)):
        bits, zeros = FORMS[number % len(FORMS)]
        inputs, attributes = case(number, bits, zeros, sizes=sizes, block=16 << number % 6, bias=number % 2 == 0)
        want = reference(inputs, attributes)
        threads = 1 + number % 4
        got = engine(isa, threads).run(product(isa, inputs, attributes, threads), inputs[:1])
        assert_bits(got, want, f"{sizes} {bits} {zeros} {threads}")


@every_isa
def test_kinds_of_numbers(isa: str) -> None:
    """Rows that cancel, are huge, subnormal, or no numbers; scales of all kinds."""
    rng = np.random.default_rng(3)
    for bits, zeros in FORMS:
        for block in (16, 64):
            inputs, attributes = case(1, bits, zeros, sizes=(8, 301, 21), block=block, bias=True)
            rows = rng.standard_normal((8, 301)).astype(F)
            rows[1, :3] = 1, F(2.0**-24), F(2.0**-90)
            rows[2, 150:300] = -rows[2, :150]
            rows[3] *= F(1e37)
            rows[4, 5] = np.inf
            rows[5, 300] = np.nan
            rows[6] = np.where(rng.random(301) < 0.5, F(-0.0), F(1e-44))
            rows[7] = np.where(rng.random(301) < 0.5, F(2.0**100), rows[7])
            inputs[0] = rows
            kinds = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1e-38, 3e38], F)
            inputs[2][::2] = np.where(rng.random(inputs[2][::2].shape) < 0.1, rng.choice(kinds), inputs[2][::2])
            inputs[5][3] = np.nan
            want = reference(inputs, attributes)
            for part in (slice(0, 8), slice(0, 3), slice(6, 7), slice(4, 6)):
                made = product(isa, [rows[part], *inputs[1:]], attributes)
                assert_bits(engine(isa).run(made, [rows[part]]), want[part], f"{bits} {zeros} {block} {part}")


@every_isa
def test_every_code(isa: str) -> None:
    """Each code with each zero point: the weights, one by one."""
    for bits in (2, 4, 8):
        count = 2**bits
        depth = block = max(16, count)
        b = np.zeros((count, 1, block * bits // 8), np.uint8)
        for code in range(count):
            b[:, 0, code * bits // 8] |= np.uint8(code << code * bits % 8)
        a = np.eye(count, depth, dtype=F)
        scales = np.random.default_rng(bits).standard_normal((count, 1)).astype(F)
        zeros = np.arange(count, dtype=np.uint8)[:, None]
        attributes = {"K": depth, "N": count, "bits": bits, "block_size": block}
        inputs = [a, b, scales, zeros, None, None]
        want = (np.arange(count, dtype=F)[:, None] - np.arange(count, dtype=F)) * scales[:, 0] + F(0)
        assert_bits(engine(isa).run(product(isa, inputs, attributes), [a]), want, str(bits))
        assert_bits(engine(isa).run(product(isa, [a[1:2], *inputs[1:]], attributes), [a[1:2]]), want[1:2], str(bits))


@every_isa
def test_weights_that_round(isa: str) -> None:
    """Scales with all their bits: (code - zero point) * scale is rounded to float32 before it is multiplied."""
    inputs, attributes = case(2, 8, "packed", sizes=(4, 64, 9), block=16)
    inputs[2] = np.nextafter(F(1), F(2)) * np.exp2(np.random.default_rng(1).integers(-40, 40, inputs[2].shape)).astype(
        F
    )
    inputs[0][1:] = 0
    inputs[0][1, 5], inputs[0][2, 6] = 1, F(1.5)
    assert_bits(engine(isa).run(product(isa, inputs, attributes), inputs[:1]), reference(inputs, attributes))


def test_nodes_run_natively_and_as_part_of_a_program() -> None:
    for seed, (bits, zeros) in enumerate((b, z) for b in (2, 4, 8) for z in ZEROS):
        for groups in (False, True):
            inputs, attributes = case(seed, bits, zeros, groups=groups, bias=seed % 2 == 0)
            options: Any = {"domain": MS, "opset": 17, "constants": range(1, 6)}
            model, feeds = node_model("MatMulNBits", inputs, {**attributes, "accuracy_level": 4}, **options)
            natively(model, feeds)
    session = qrun.Session(model, backend="native")
    session.run(feeds)
    session.run(feeds)
    assert not reference_nodes(session)


def test_weights_of_other_blocks_are_not_rounded_to_the_type_of_the_node() -> None:
    """With g_idx float16 and bfloat16 nodes multiply the float32 numbers that their codes stand for."""
    for seed, (dtype, bits, zeros) in enumerate(combinations((np.float16, BFLOAT16), (2, 4, 8), ZEROS)):
        inputs, attributes = case(seed, bits, zeros, dtype=dtype, groups=True, sizes=(3, 70, 9), block=16)
        model, feeds = node_model("MatMulNBits", inputs, attributes, domain=MS, outputs=[dtype], constants=range(1, 6))
        session = same_runs(model, feeds, times=2)
        assert not reference_nodes(session), f"{dtype} {bits} {zeros}"


def test_scales_that_are_no_numbers_are_told_by_both_backends() -> None:
    for groups in (False, True):
        inputs, attributes = case(1, 4, "", sizes=(2, 64, 4), block=32, groups=groups)
        inputs[2][1, 1] = np.inf
        watched = natively(*node_model("MatMulNBits", inputs, attributes, domain=MS, opset=17, constants=range(1, 6)))
        assert [o.kind for o in watched.events[0].observations] == ["bad-scale"]


def test_float16_products_run_natively() -> None:
    """Sums are float32, and are rounded to the type at the end; scales and zero points are of the type, too."""
    for seed, (dtype, (bits, zeros)) in enumerate(combinations((np.float16, BFLOAT16), FORMS)):
        inputs, attributes = case(seed, bits, zeros, dtype=dtype, sizes=(3, 270, 9), block=32, bias=True)
        model, feeds = node_model("MatMulNBits", inputs, attributes, domain=MS, outputs=[dtype], constants=range(1, 6))
        assert not reference_nodes(same_runs(model, feeds, times=2)), f"{dtype} {bits} {zeros}"


def test_relu_and_clip_behind_a_product_are_its_own() -> None:
    rng = np.random.default_rng(5)
    for seed, (name, limits) in enumerate((("Relu", ()), ("Clip", (-0.5, 0.25)))):
        inputs, attributes = case(seed, 4, "packed", sizes=(3, 270, 33), block=32, bias=True)
        g = Graph()
        x = g.feed(inputs[0])
        constants = [g.const(array) if array is not None else "" for array in inputs[1:]]
        y = g.node("MatMulNBits", x, *constants, domain=MS, **attributes)
        g.output(g.node(name, y, *(g.const(F(limit)) for limit in limits)))
        feeds = {x: rng.standard_normal(inputs[0].shape).astype(F)}
        (schedule,) = schedules(same_runs(g.proto(), feeds, times=2))
        assert [call.section.spec.form for call in schedule.calls] == ["bias+limits"]


def declined(inputs: list[Any], attributes: dict[str, Any], constants: Any = range(1, 6), **options: Any) -> str:
    model, feeds = node_model(
        "MatMulNBits", inputs, attributes, domain=MS, opset=17, constants=constants, outputs=[inputs[0].dtype]
    )
    result = qrun.Session(model, backend="native", **options).execute(feeds)
    assert result.events[0].backend == "reference"
    return result.events[0].why


def test_reasons() -> None:
    inputs, attributes = case(1, 4, "", sizes=(2, 40, 4), block=16)
    assert "accuracy_level 4 in ort" in declined(inputs, {**attributes, "accuracy_level": 4}, arith="ort")
    assert "scales is not constant" in declined(inputs, attributes, [1])
