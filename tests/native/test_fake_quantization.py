"""Functions that quantize and dequantize: native steps beside the reference kernel's, on every instruction set."""

from __future__ import annotations

import math

import numpy as np
from helpers.native import engine, every_isa
from helpers.support import assert_equal

from qrun.native.emit import conversions, expression
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.operation import Operand
from qrun.ops.qonnx import bipolar_quant, int_quant

F = np.float32


def test_every_rounding_has_its_function() -> None:
    assert [f"fake_quantize_{way}" for way in conversions.ROUNDINGS] == [*expression.FAKE_QUANTIZATIONS]


@every_isa
def test_steps(isa: str) -> None:
    rng = np.random.default_rng(3)
    for place, way in enumerate(conversions.ROUNDINGS):
        s, z = rng.uniform(0.01, 1, (5, 1)).astype(F), rng.integers(-2, 3, (5, 1)).astype(F)
        codes = rng.normal(size=(5, 37 + place)) * 9
        x = (np.where(rng.random(codes.shape) < 0.5, np.rint(codes * 2) / 2, codes) * s).astype(F)
        x[0, :8] = 0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 8388607.5 * s[0, 0], 3e38
        operands = [Operand(a.shape, a.dtype) for a in (x, s, z)]
        sign, run = way == "sign", engine(isa).run
        ends = (-math.inf, math.inf) if sign else (-16.0, 15.0)
        got = run(Elementwise(engine(isa), f"fake_quantize_{way}", operands, ends), [x, s, z])
        bits, mode = F(1 if sign else 5), "ROUND" if sign else way
        assert_equal(got, int_quant(x, s, z, bits, rounding_mode=mode), f"{isa} {way}")
        got = run(Elementwise(engine(isa), "bipolar", operands[:2]), [x, s])
        assert_equal(got, bipolar_quant(x, s), f"{isa} bipolar")
