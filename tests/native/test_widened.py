"""Products on 16-bit copies of activations: every size around pieces, vectors and blocks, all codes, all weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.native import LIMITS, SETS, TYPES, codes, emulating, engine
from helpers.native_cases import reference, run, target_of

from qrun.native.emit.isa import ISAS as ALL
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels import copied
from qrun.native.kernels.conv import Conv
from qrun.native.kernels.copied import WIDENED_ROWS
from qrun.native.machine.codegen import compile_object
from qrun.native.machine.compile import kernel_text
from qrun.native.proof.epilogue import Target
from qrun.ops.conv import conv_integer

MINE = [isa.name for isa in ALL if isa.widens]


def every_own(test: Callable[..., None]) -> Callable[..., None]:
    """Parametrize `isa`."""
    return emulating(pytest.mark.parametrize("isa", [name for name in MINE if name in SETS])(test))


def case_of(rng: np.random.Generator, kinds: tuple[str, str, str], number: int, extreme: bool) -> dict[str, Any]:
    shape, w_shape, geometry = edges.WIDENED[number]
    x, w = codes(rng, shape, kinds[0]), codes(rng, w_shape, kinds[1])
    zero = codes(rng, (w_shape[0],), kinds[1])
    if extreme:
        x = np.asarray(rng.choice(LIMITS[kinds[0]], shape), TYPES[kinds[0]])
        w = np.asarray(rng.choice(LIMITS[kinds[1]], w_shape), TYPES[kinds[1]])
        zero = np.asarray(rng.choice(LIMITS[kinds[1]], w_shape[0]), TYPES[kinds[1]])
    return {
        "x": x, "x_zero_point": codes(rng, (), kinds[0]), "w": w, "w_zero_point": zero,
        "w_scale": (rng.uniform(0.01, 0.03, w_shape[0]) / np.sqrt(np.prod(w_shape[1:]))).astype(np.float32),
        "y_zero_point": codes(rng, (), kinds[2]), "out": kinds[2],
        "B": rng.integers(-900, 900, w_shape[0]).astype(np.int32), "geometry": geometry,
    }  # fmt: skip


def planned(case: dict[str, Any], isa: str, threads: int) -> Conv:
    return Conv(
        engine(isa, threads), case["x"].shape, case["w"], x_zero_point=case["x_zero_point"],
        w_zero_point=case["w_zero_point"], bias=case["B"], target=target_of(case), **case["geometry"],
    )  # fmt: skip


@pytest.mark.parametrize("near", [1, 1 << 17])
@pytest.mark.parametrize("threads", [1, 2])
@every_own
def test_all_codes_and_weights(isa: str, threads: int, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "_NEAR", near)
    monkeypatch.setattr(copied, "_FEW", 1 << 30)
    rng = np.random.default_rng(12)
    for number in range(len(edges.WIDENED)):
        for kinds in (("u8", "s8", "u8"), ("s8", "u8", "s8"), ("u8", "u8", "s8")):
            for extreme in (False, True):
                case = case_of(rng, kinds, number, extreme)
                plan = planned(case, isa, threads)
                assert {section.spec.kind for section in plan.tight} == {"widened"}
                assert np.array_equal(run(plan, case["x"]), reference(case)), (edges.WIDENED[number], kinds, extreme)


@every_own
def test_few_rows_are_read_in_place(isa: str) -> None:
    rng = np.random.default_rng(14)
    w, zero = codes(rng, (40, 20, 1), "s8"), np.uint8(128)
    target = Target(np.float32(0.3), np.full(40, 0.01, np.float32), np.float32(0.3), "u8", 7)
    for rows, results, kind in ((15, target, "dense"), (16, target, "widened"), (16, None, "widened")):
        plan = Conv(engine(isa), (1, 20, rows), w, x_zero_point=zero, target=results)
        assert {section.spec.kind for section in plan.tight} == {kind}


@every_own
def test_sums_of_panels_that_overlap(isa: str) -> None:
    """int32 results are four bytes, also where the last panel begins."""
    rng = np.random.default_rng(15)
    for channels in (9, 15, 17, 25, 40, 41, 100):
        for x_zero in (np.uint8(3), np.uint8(140)):
            x, w = codes(rng, (2, 20, 33), "u8"), codes(rng, (channels, 20, 1), "s8")
            plan = Conv(engine(isa), x.shape, w, x_zero_point=x_zero)
            assert {section.spec.kind for section in plan.tight} <= {"widened", "clipped"}
            assert np.array_equal(run(plan, x), conv_integer(x, w, np.array(x_zero))), f"{channels} channels, {x_zero}"


@pytest.mark.parametrize("name", MINE)
def test_compiles_for_every_cpu(name: str) -> None:
    isa = next(isa for isa in ALL if isa.name == name)
    for vectors in range(1, isa.vectors + 1):
        for out, form in (("u8", "y32"), ("s8", "x32"), ("u8", "f64"), ("u8", "ort")):
            for signed in (False, True):
                spec = KernelSpec("widened", name, WIDENED_ROWS[vectors], vectors, 1, form, out, signed)
                assert compile_object(kernel_text(spec), isa)
