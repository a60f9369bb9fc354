"""Native products of few rows with codes of 4 bits, as sums of integers, equal the reference's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import Array, engine, every_isa, thin
from helpers.placed import run_placed
from helpers.sums import assert_bits
from native.test_coded import product, reference
from ops.test_ms_blocks import case

from qrun.native.emit.isa import ISAS, host_architecture, host_features
from qrun.native.emit.spec import VBMI

F = np.float32
DOTS = {"amx", "avx512vnni", "avxvnni", "avx512bw", "avx2", "neon-i8mm", "neon-dotprod"}
SIZES = (
    (1, 1, 1, 16), (1, 300, 70, 32), (2, 16, 9, 16), (3, 129, 33, 64), (1, 128, 32, 32), (4, 200, 40, 128), (5, 417, 3, 16),
    (2, 385, 9, 512), (1, 1100, 65, 256), (6, 161, 21, 32), (3, 700, 35, 32),
)  # fmt: skip
"""m, k, n, block size."""


def short(seed: int, zeros: str, bits: int = 20, **options: Any) -> tuple[list[Any], dict[str, int]]:
    """As `case`, 4 bits, with scales of so many bits, whose products with codes are float32 numbers."""
    inputs, attributes = case(seed, 4, zeros, **options)
    scales = inputs[2].view(np.uint32) & np.uint32(-(1 << 24 - bits) & 0xFFFFFFFF)
    inputs[2] = scales.view(F)
    return inputs, attributes


def full(seed: int, zeros: str = "", **options: Any) -> tuple[list[Any], dict[str, int]]:
    """As `case`, 4 bits, without zero points, with scales of 24 bits: weights are rounded."""
    inputs, attributes = case(seed, 4, "", **options)
    inputs[2][inputs[2] == 0] = 1
    inputs[2] = (inputs[2].view(np.uint32) | np.uint32(1)).view(F)
    return inputs, attributes


def kind(isa: str, rows: int, rounded: bool) -> str:
    """Of the kernel that serves so many rows."""
    if rounded:
        if isa in ("avx2", "avxvnni"):
            return "rounded_digits_256" if rows <= 1 else "coded_product"
        able = isa in ("amx", "avx512vnni") and VBMI in host_features(host_architecture())
        return "rounded_digits" if able and rows <= 2 else "coded_product"
    found = next(i for i in ISAS if i.name == isa)
    most = found.real_rows[1] * 2 // 5 if found.dots else 6
    return "digit_product" if isa in DOTS and rows <= most else "coded_product"


def is_rounded(inputs: list[Any]) -> bool:
    """Whether a scale has so many bits that weights are rounded."""
    return bool((inputs[2].view(np.uint32) & 1).any()) and inputs[3] is None


def assert_same(isa: str, inputs: list[Any], attributes: dict[str, int], label: str = "") -> None:
    made = product(isa, inputs, attributes)
    assert made.tight[0].spec.kind == kind(isa, len(inputs[0]), is_rounded(inputs))
    assert_bits(engine(isa).run(made, inputs[:1]), reference(inputs, attributes), label)


CASES = ((short, ""), (short, "packed"), (full, ""))


@thin(*SIZES, name="sizes")
@pytest.mark.parametrize("at_end", [True, False])
def test_sizes(isa: str, sizes: tuple[int, int, int, int], at_end: bool) -> None:
    m, k, n, block = sizes
    for number, (make, zeros) in enumerate(CASES):
        inputs, attributes = make(number, zeros, sizes=(m, k, n), block=block, bias=number == 0)
        want = reference(inputs, attributes)
        for threads in (1, 2):
            made = product(isa, inputs, attributes, threads)
            assert made.tight[0].spec.kind == kind(isa, m, make is full)
            assert_bits(run_placed(engine(isa, threads), made, inputs[:1], (0, 0), at_end), want, f"{zeros} {threads}")


def hostile(rng: np.random.Generator, k: int) -> list[Array]:
    """Rows with hairs beside a tie, that cancel, are huge, tiny, mixed in one block, zero in some blocks,
    or no numbers."""
    rows = [rng.standard_normal(k).astype(F) for _ in range(14)]
    rows[0][:] = 0
    rows[1][:] = 0
    rows[1][:3] = 1, F(2.0**-24), F(2.0**-90)
    rows[2][k // 2 :] = -rows[2][: k - k // 2]
    rows[3] *= F(1e37)
    rows[4][5] = np.inf
    rows[5][k - 1] = np.nan
    rows[6] = np.where(rng.random(k) < 0.5, F(-0.0), F(1e-44))
    rows[7] = np.where(rng.random(k) < 0.5, F(2.0**100), rows[7])
    rows[8] *= np.exp2(rng.integers(-60, 60, k)).astype(F)
    rows[9][: k // 3] = 0
    rows[10] = (rng.integers(0, 2, k) * 2 - 1).astype(F) * F(2 - 2.0**-23)
    rows[11] = F(np.finfo(F).max) * (rng.integers(0, 2, k) * 2 - 1).astype(F)
    rows[12][3], rows[12][9] = np.inf, -np.inf
    rows[13] = rng.integers(-(2**23), 2**23, k).astype(F) * np.exp2(rng.integers(-18, 18, k)).astype(F)
    return rows


@every_isa
def test_hostile_rows(isa: str) -> None:
    rng = np.random.default_rng(5)
    for make, k, zeros, block in (
        (short, 160, "", 32), (short, 93, "packed", 16), (short, 300, "packed", 64), (full, 160, "", 32), (full, 93, "", 16),
    ):  # fmt: skip
        inputs, attributes = make(1, zeros, sizes=(1, k, 43), block=block)
        if make is short and not zeros:
            inputs[2][:, ::2] = F(0.125)
        rows = hostile(rng, k)
        for number, row in enumerate(rows):
            inputs[0] = row[None]
            assert_same(isa, inputs, attributes, f"{make.__name__} {k} {number}")
        for first in range(0, len(rows), 2):
            inputs[0] = np.stack(rows[first : first + 2])
            assert_same(isa, inputs, attributes, f"{make.__name__} {k} from {first}")


@every_isa
def test_what_digits_lose(isa: str) -> None:
    """Elements below what the digits of their block count, which decide how the sum of the others is rounded."""
    inputs, attributes = short(7, "", sizes=(1, 64, 18), block=32)
    inputs[2][:], inputs[1][:] = 1, 0x99
    for size in range(-70, -2, 2):
        for sign in (1, -1):
            small = F(sign * 2.0**size * (1 - 2.0**-20))
            inputs[0][:] = 0
            inputs[0][0, 4:24] = small
            inputs[0][0, :4] = F(2.0**24), F(1), F(sign * -16 * 2.0**size), F(sign * 2.0**-60)
            assert_same(isa, inputs, attributes, f"{size} {sign}")


@every_isa
def test_sums_beside_ties(isa: str) -> None:
    """Integers and halves of them: sums that are ties between two float32 numbers, and hairs beside them."""
    rng = np.random.default_rng(6)
    inputs, attributes = short(2, "", sizes=(2, 96, 37), block=32)
    inputs[2][:] = 1
    inputs[1][:, :, :] = 0x99
    inputs[0][:] = 0
    for turn in range(6):
        inputs[0][:, :2] = F(2.0**24), F(1)
        inputs[0][0, 40] = F(2.0 ** -(20 * turn)) * (-1) ** turn
        inputs[0][1, 70 + turn] = F(rng.choice([2.0**-149, -(2.0**-149), 2.0**-40]))
        assert_same(isa, inputs, attributes, str(turn))


@every_isa
def test_greatest_digits(isa: str) -> None:
    """Elements whose digits are all 127 or -128, times codes of 15 and 0: no sum leaves its integers."""
    for value in (63 / 32 - 2.0**-23, 2 - 2.0**-23, 1.0, 65 / 64, 1 + 2.0**-23):
        for code, point in ((0xFF, 0x00), (0x00, 0xFF), (0xFF, 0x88), (0x00, 0x88)):
            inputs, attributes = short(3, "packed", sizes=(2, 64, 33), block=32)
            inputs[0] = np.stack([np.full(64, value, F), np.full(64, -value, F)])
            inputs[0][:, 1::2] *= F(1 - 2.0**-24) if value != 1 else F(1)
            inputs[1][:], inputs[3][:] = code, point
            assert_same(isa, inputs, attributes, f"{value} {code}")


@every_isa
def test_digits_that_are_left_out(isa: str) -> None:
    """Blocks of k of numbers that were float16 or int8, all of them, but for one element,
    or beside one of full numbers."""
    rng = np.random.default_rng(9)
    for make, zeros in CASES:
        inputs, attributes = make(5, zeros, sizes=(1, 300, 43), block=32)
        half, byte, rest = rng.standard_normal(128).astype(np.float16), rng.integers(-128, 128, 128), rng.random(44)
        for code in (F(0.0251234), F(0.5)):
            row = np.concatenate([half.clip(0.01, 2), byte * code, rest]).astype(F)[None]
            for place, number in ((0, row[0, 0]), (40, F(1e-5)), (131, F(2.0**-20)), (260, F(0))):
                inputs[0] = row.copy()
                inputs[0][0, place] = number
                assert_same(isa, inputs, attributes, f"{zeros} {code} {place}")
        inputs[0] = row[:, ::-1].copy()
        inputs[0][0, :44] = 0
        assert_same(isa, inputs, attributes, zeros)


@every_isa
def test_scales(isa: str) -> None:
    """Subnormal, zero, negative and huge ones take this kernel; those whose products are rounded do not."""
    inputs, attributes = short(4, "packed", sizes=(2, 70, 20), block=16)
    scales = inputs[2]
    scales[0], scales[1], scales[2] = F(2.0**-149), F(-0.0), F(2.0**-140 * 3)
    scales[3], scales[4] = F(2.0**120), F(-(2.0**-126))
    assert_same(isa, inputs, attributes)
    scales[7, 1] = np.nextafter(F(1), F(2))
    made = product(isa, inputs, attributes)
    assert made.tight[0].spec.kind == "coded_product"
    assert_bits(engine(isa).run(made, inputs[:1]), reference(inputs, attributes))
    for size in (2.0**-101, 2.0**101):
        inputs, attributes = full(4, sizes=(2, 70, 20), block=16)
        inputs[2][3, 2] = np.nextafter(F(size), F(2 * size))
        assert product(isa, inputs, attributes).tight[0].spec.kind == "coded_product"
    inputs, attributes = short(4, "", bits=21, sizes=(2, 70, 20), block=16)
    assert_same(isa, inputs, attributes)


@every_isa
def test_every_way_to_round_a_weight(isa: str) -> None:
    """Scales with all low bits, above and below where products take a bit more, with both signs; each code alone."""
    low, steps = np.arange(64, dtype=np.uint32), (1.0, 1.14, 1.15, 1.33, 1.34, 1.59, 1.61, 1.99)
    scales = np.concatenate([(np.full(64, step, F).view(np.uint32) & ~np.uint32(63)) + low for step in steps]).view(F)
    scales *= np.exp2(np.arange(len(scales)) % 7 * 30 - 90).astype(F)
    scales[::3] *= -1
    inputs, attributes = full(6, sizes=(2, 16, len(scales)), block=16)
    inputs[2] = scales[:, None]
    for code in range(16):
        inputs[1][:] = code | code << 4
        inputs[0][:] = 0
        inputs[0][0, code], inputs[0][1] = 1, F(2.0**-20)
        inputs[0][1, 3] = 1
        assert_same(isa, inputs, attributes, str(code))


@every_isa
def test_what_upper_digits_lose(isa: str) -> None:
    """A great element that meets weights of 0, and others so small that their upper digits are 0: what rounding adds to
    their weights is in no sum."""
    rng = np.random.default_rng(8)
    inputs, attributes = full(7, sizes=(2, 16, 1500), block=16)
    codes = rng.choice([11, 13, 15], (1500, 16)).astype(np.uint8)
    codes[:, 0] = 8
    inputs[1][:] = (codes[:, ::2] | codes[:, 1::2] << 4)[:, None]
    inputs[0] = (rng.integers(30000, 32000, (2, 16)) * 2.0**-38).astype(F)
    inputs[0][:, 0] = 1
    assert_same(isa, inputs, attributes)
