"""Made-up devices run the probe: what was planted in them is read, also what no known engine does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from probe.devices import Device, disturbed, drawn

from qrun.arithmetics.family import CHOICES
from qrun.probe.design import Branch, branches, signal
from qrun.probe.models import form_branches
from qrun.probe.reading import Reading, read

Array = np.ndarray[Any, Any]


def read_device(device: Device, known: Sequence[Branch] | None = None) -> Reading:
    known = branches() if known is None else known
    return read(device.run(known), known)


def planted(device: Device, found: Reading) -> bool:
    """Whether each choice of the device is among those read."""
    return all(getattr(device, choice) in found.values(choice) for choice in CHOICES)


@pytest.mark.parametrize("seed", range(6))
def test_choices_that_nobody_combines_are_read(seed: int) -> None:
    device = drawn(np.random.default_rng(seed))
    found = read_device(device)
    assert planted(device, found), device
    assert found.best[0].differing == 0
    assert (found.sums, found.bias, found.padding, found.relu) == ("integers", "integers", "zero point", "zero point")


@pytest.mark.parametrize("seed", range(100, 102))
def test_they_are_read_though_one_code_in_a_hundred_is_disturbed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    device = drawn(rng)
    found = read(disturbed(device.run(branches()), rng))
    assert planted(device, found), device
    assert found.sums == "integers"


@pytest.mark.parametrize("code", [None, 0, -128])
def test_the_code_that_pads_is_read(code: int | None) -> None:
    want = "zero point" if code is None else f"code {code}"
    assert read_device(Device(padding=code)).padding == want


def test_padding_of_uint8_is_named_by_its_codes() -> None:
    codes = Device(padding=-128).run(branches())
    assert read(codes, unsigned=True).padding == "code 0"


@pytest.mark.parametrize(("code", "want"), [(None, "zero point"), (0, "code 0"), (-128, "nowhere")])
def test_where_a_relu_clips_is_read(code: int | None, want: str) -> None:
    assert read_device(Device("double", "31 bits", "high half", "away", relu=code)).relu == want


@pytest.mark.parametrize(("device", "want"), [(Device(), "integers"), (Device(bias="float", hold="float32"), "floats")])
def test_where_a_bias_is_added_is_read(device: Device, want: str) -> None:
    found = read_device(device)
    assert found.bias == want
    assert planted(device, found)
    assert found.best[0].differing == 0


def test_a_device_without_zero_points_is_read_in_its_form() -> None:
    device = Device("double", "31 bits", "high half", "away", least=-127)
    found = read_device(device, form_branches("symmetric"))
    assert "tfl-double" in [fit.arithmetic.name for fit in found.families]
    assert (found.least, found.padding) == (-127, "")


@pytest.mark.parametrize(
    ("bits", "saturates", "want"), [(20, True, "saturates"), (16, False, "wraps"), (32, False, "wraps")]
)
def test_a_narrow_accumulator_does_not_hide_the_choices(bits: int, saturates: bool, want: str) -> None:
    """The width is read where it is asked, and its effect on other sums is not taken for another arithmetic."""
    known = [
        branch for branch in branches() if np.abs(branch.sums).max() < 1 << (bits - 1) or branch.name == f"width_{bits}"
    ]
    device = Device("double", "31 bits", "high half", "away", bits=bits, saturates=saturates)
    found = read_device(device, known)
    assert {width.bits: width.behaviour for width in found.widths}[bits] == want


@pytest.mark.parametrize("divide", ["quotient", "reciprocal"])
@pytest.mark.parametrize("place", ["after", "before"])
def test_sums_of_floats_are_read(divide: str, place: str) -> None:
    """Floats that are summed in whatever order."""
    f32, rng = np.float32, np.random.default_rng(6)
    codes = {}
    for branch in branches():
        order = rng.permutation(signal().size)
        x = (signal().astype(f32) - f32(branch.offset)) * branch.scales.x
        total = np.zeros(branch.sums.size, f32)
        for k in order:
            total += x[k] * (branch.weights[:, k].astype(f32) * branch.scales.w)
        if branch.bias is not None:
            total += branch.bias.astype(f32) * (branch.scales.x * branch.scales.w)
        value = total / branch.scales.y if divide == "quotient" else total * (f32(1) / branch.scales.y)
        rounded = np.rint(value + f32(branch.zero)) if place == "before" else np.rint(value) + branch.zero
        low = branch.zero if branch.relu else -128
        codes[branch.name] = np.clip(rounded, low, 127).astype(np.int8)
    found = read(disturbed(codes, rng))
    assert found.sums == "floats"
    assert found.best == ()
    assert found.floats is not None
    assert (found.floats.divide, found.floats.ties, found.floats.zero) == (divide, "even", place)
    assert (found.padding, found.relu) == ("zero point", "zero point")


@pytest.mark.parametrize("saturates", [True, False])
@pytest.mark.parametrize("bits", [16, 20])
def test_the_choices_are_read_from_sums_within_a_narrow_accumulator(bits: int, saturates: bool) -> None:
    found = read_device(Device("double", "31 bits", "high half", "away", bits=bits, saturates=saturates))
    assert found.narrow is not None
    assert found.narrow.bits == bits
    assert "tfl-double" in [fit.arithmetic.name for fit in found.families]
    assert found.best[0].differing == 0
