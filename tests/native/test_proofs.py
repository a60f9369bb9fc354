"""Proofs: constants that were kept are proven again, bounds are the same whatever computes them,
and why a form was chosen."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS, LIMITS, Array, codes, engine, every_isa, exact_result
from helpers.native_cases import run

from qrun.native.emit.isa import Isa
from qrun.native.kernels.conv import Gemm
from qrun.native.kernels.results import Results
from qrun.native.machine.compile import Kernels
from qrun.native.machine.engine import Engine
from qrun.native.proof.epilogue import Bounds, Guess, Proven, Target, prove, prove_forms
from qrun.native.proof.search import Search, exact_steps, numpy_bounds

F = np.float32
N = 70


def case(seed: int = 3, out: str = "u8", zero: int = 7) -> tuple[Target, Array, Array]:
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.001, 0.03, N).astype(F)
    reach = rng.integers(20_000, 400_000, N)
    return Target(F(0.02), scales, F(0.05), out, zero), -reach, reach + 5


def isa(name: str = ISAS[0] if ISAS else "") -> Isa:
    return engine(name).isa


def kernels(directory: Path, isa: str = "") -> Kernels:
    return Engine.create(isa, directory).kernels


def same(a: Proven, b: Proven) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("y32", "x32", "f64", "a", "b", "m", "why")
    )


def no_search(*_: object) -> Any:
    raise AssertionError("searched again")


@every_isa
def test_kept_constants_are_those_found(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, low, high = case()
    own = engine(isa).isa
    found = prove_forms(target, low, high, kernels(tmp_path / "c", isa), own)
    assert same(found, prove(target, low, high, own.fma))
    assert found.x32.mean() > 0.9
    monkeypatch.setattr(Search, "_factors", no_search)
    assert same(prove_forms(target, low, high, kernels(tmp_path / "c", isa), own), found)
    assert len(list((tmp_path / "c").glob("*.proof"))) == 1


def test_what_no_search_finds_is_not_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, low, high = case()
    target = Target(F(1), np.resize(np.array([3, 7, 9], F), N), F(82), "u8", 0)
    found = prove_forms(target, low, high, kernels(tmp_path / "c"), isa())
    assert not found.x32.all()
    monkeypatch.setattr(Search, "_trials", no_search)
    assert same(prove_forms(target, low, high, kernels(tmp_path / "c"), isa()), found)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "long", "writable", "link", "other"])
def test_a_bad_entry_is_searched_anew(tmp_path: Path, damage: str) -> None:
    target, low, high = case()
    found = prove_forms(target, low, high, kernels(tmp_path / "c"), isa())
    (entry,) = (tmp_path / "c").glob("*.proof")
    content = entry.read_bytes()
    if damage == "flip":
        entry.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif damage == "writable":
        entry.chmod(0o666)
    elif damage == "link":
        entry.rename(tmp_path / "elsewhere")
        entry.symlink_to(tmp_path / "elsewhere")
    elif damage == "other":
        other = prove_forms(*case(4), kernels(tmp_path / "d"), isa())
        assert not np.array_equal(other.a, found.a) or not np.array_equal(other.b, found.b)
        os.replace(next((tmp_path / "d").glob("*.proof")), entry)
    else:
        entry.write_bytes({"cut": content[:50], "empty": b"", "long": content + b"0"}[damage])
    assert same(prove_forms(target, low, high, kernels(tmp_path / "c"), isa()), found)
    assert entry.read_bytes() == content
    assert not entry.is_symlink()


def test_other_inputs_have_other_entries(tmp_path: Path) -> None:
    target, low, high = case()
    others: list[tuple[Target, Array, Array, Isa]] = [
        (target, low, high, isa()),
        (replace(target, x_scale=F(0.021)), low, high, isa()),
        (replace(target, w_scale=np.nextafter(target.w_scale, F(1))), low, high, isa()),
        (replace(target, y_scale=F(0.051)), low, high, isa()),
        (replace(target, out="s8"), low, high, isa()),
        (replace(target, zero_point=8), low, high, isa()),
        (target, low - 1, high, isa()),
        (target, low, high + 1, isa()),
        (target, low[:-1], high[:-1], isa()),
        (target, low, high, engine("generic").isa),
    ]
    for number, (one, first, last, own) in enumerate(others):
        one = replace(one, w_scale=one.w_scale[: len(first)])
        assert same(prove_forms(one, first, last, kernels(tmp_path / "c"), own), prove(one, first, last, own.fma))
        assert len(list((tmp_path / "c").glob("*.proof"))) == number + 1


NONSENSE = {
    "zero": (0, 0), "none": (1, 0), "negative": (-1, -0.01), "one": (1, 1), "infinite": (np.inf, 1), "nan": (np.nan, 1),
    "nan too": (1, np.nan), "huge": (3e38, 3e38), "tiny": (1e-45, 1e-45), "half": (0.5, 0.02),
}  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NONSENSE)
def test_kept_constants_are_never_believed(isa: str, name: str) -> None:
    target, low, high = case(5, "s8", -3)
    fma = engine(isa).isa.fma
    want = prove(target, low, high, fma)
    a, b = (np.full(N, value, F) for value in NONSENSE[name])
    a[::3], b[::3] = want.a[::3], want.b[::3]
    got = prove(target, low, high, fma, Guess(a, b))
    assert np.array_equal(got.a[got.x32], want.a[got.x32])
    assert np.array_equal(got.b[got.x32], want.b[got.x32])
    assert got.x32[::3].all() == want.x32[::3].all()
    assert not got.x32[a == 0].any()
    close = prove(target, low, high, fma, Guess(want.a, np.nextafter(want.b, F(1))))
    for channel in range(0, N, 7):
        if close.x32[channel]:
            points = critical(target, channel, low[channel], high[channel])
            p = (points.astype(F) * close.a[channel]).astype(np.float64) * close.b[channel]
            results = np.clip(np.rint(p if fma else p.astype(F)) + target.zero_point, *LIMITS[target.out])
            assert results.tolist() == exact(target, channel, points)


def critical(target: Target, channel: int, low: int, high: int) -> Array:
    scale = target.w_scale[channel : channel + 1]
    steps = exact_steps(target.x_scale, scale, target.y_scale, LIMITS[target.out][0], target.zero_point).steps[0]
    return np.unique(np.clip(np.concatenate([steps, steps - 1, [low, high]]), low, high))


def exact(target: Target, channel: int, points: Array) -> list[int]:
    scales = (target.x_scale, target.w_scale[channel], target.y_scale)
    return [exact_result(int(acc), *scales, target.out, target.zero_point) for acc in points]


@every_isa
def test_a_kernel_with_kept_constants_is_exact(isa: str, tmp_path: Path) -> None:
    """Columns of zero weights: each result is that of its bias, a step or one below it."""
    scale, width = F(0.0371), 510
    target = Target(F(0.11), np.full(width, scale, F), F(0.23), "u8", 119)
    target.w_scale[::2] = F(0.0372)
    points = np.concatenate([critical(target, i, -(2**20), 2**20)[i % 2 :: 2] for i in (0, 1)])
    bias = np.resize(points, width).astype(np.int32)
    want = [exact(target, channel, bias[channel : channel + 1])[0] for channel in range(width)]
    w, x = np.zeros((4, width), np.int8), np.full((3, 4), 9, np.uint8)
    for _ in range(2):
        own = Engine.create(isa, tmp_path / "c")
        plan = Gemm(own, x.shape, w, x_zero_point=np.array(9, np.uint8), bias=bias, target=target)
        assert run(plan, x)[1].tolist() == want
    assert own.kernels.compiled == 0
    assert len(list((tmp_path / "c").glob("*.proof"))) == 1


@every_isa
@pytest.mark.parametrize("zero", [0, 7, 128, 255])
def test_compiled_bounds_are_those_of_numpy(isa: str, zero: int) -> None:
    rng = np.random.default_rng(zero)
    halves = np.arange(1, 256) - zero - 0.5
    bounds = Bounds.of(engine(isa).kernels, engine(isa).isa)
    assert bounds is not None
    for count in (1, 15, 16, 31, 32, 33, 100):
        inverse = np.append(1 / np.exp2(rng.uniform(-30, 9, count - 1)), 90.0)
        assert np.array_equal(bounds(inverse, halves, 1 / halves), numpy_bounds(inverse, halves, 1 / halves)), count


def test_the_search_does_not_depend_on_what_computes_bounds() -> None:
    bounds = Bounds.of(engine(ISAS[0]).kernels, isa())
    for seed, (out, zero) in enumerate([("u8", 0), ("u8", 255), ("s8", -128), ("s8", 5)]):
        target, low, high = case(seed, out, zero)
        scales = (target.w_scale * np.exp2(np.random.default_rng(seed).integers(-20, 14, N))).astype(F)
        scales[:4] = F(0), F(np.nan), F(2.5 / 90), F(-1)
        target = replace(target, w_scale=scales)
        assert same(prove(target, low, high, True, None, bounds), prove(target, low, high))


@pytest.mark.parametrize(
    ("scales", "reach", "form", "why"),
    [
        ((0.02, 0.013, 0.05), 2**18, "y32", ""),
        ((0.02, 0.00013, 0.5), 2**23, "x32", "a step beyond 2^22"),
        ((0.02, 0.013, 0.05), 2**27, "x32", "sums beyond 2^26"),
        ((0.02, 0.000013, 0.5), 2**29, "f64", "a step beyond 2^24"),
        ((1, 1, 1), 2**24, "f64", "results beyond 2^22 before they saturate"),
        ((3, 1, 82), 2**14, "table", "exact ties, which float64 misses"),
        ((-1, 1, 90), 2**14, "table", "a multiplier that is zero, negative, not finite or at least 512"),
        ((1, 0, 90), 2**14, "table", "a multiplier that is zero, negative, not finite or at least 512"),
    ],
)
def test_results_tell_why_no_cheaper_form_serves(scales: tuple[float, ...], reach: int, form: str, why: str) -> None:
    x, w, y = (F(v) for v in scales)
    target, ends = Target(x, np.array([w]), y, "u8", 0), np.array([reach])
    results = Results(target, prove(target, -ends, ends))
    assert results.form(slice(0, 1)) == form
    assert results.why(form, np.arange(1)) == why


def test_results_tell_how_many_channels_are_to_blame() -> None:
    target = Target(F(1), np.array([1.23, 3, 2.4, 7], F), F(82), "u8", 0)
    ends = np.full(4, 2**13)
    results = Results(target, prove(target, -ends, ends))
    form = results.form(slice(0, 4))
    assert results.why(form, np.arange(4)).endswith("(2 of 4 channels)")
    assert Results(None, None).why("i32", np.arange(4)) == ""
    assert Results(replace(target, arith="ort"), None).why("ort", np.arange(4)) == ""


@every_isa
def test_sections_tell_why(isa: str) -> None:
    rng = np.random.default_rng(8)
    w = codes(rng, (64, 80), "s8")
    target = Target(F(3), np.ones(80, F), F(82), "u8", 0)
    plan = Gemm(engine(isa), (5, 64), w, x_zero_point=np.array(0, np.uint8), target=target)
    for section in plan.tight:
        assert (section.spec.form, section.why) == ("table", "exact ties, which float64 misses")
