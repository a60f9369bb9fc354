"""The probe: its sums are what it says, every pair of families is told apart, and what it reads is what was planted."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call
from probe.devices import Device, disturbed

from qrun.arithmetics import FAMILIES, Arithmetic
from qrun.arithmetics.family import CHOICES
from qrun.probe import models
from qrun.probe.combinations import combinations
from qrun.probe.design import HIGH, LOW, RUNGS, branches, ladder, signal
from qrun.probe.reading import Reading, as_codes, read

Array = np.ndarray[Any, Any]
OTHER_SCALES = ("ladder", "tie", "large", "gain", "single")
SHIFTS = {name for name, row in FAMILIES.items() if row.hold == "power of two"}


def outputs(arithmetic: Arithmetic) -> dict[str, Array]:
    """The codes that an arithmetic with an int32 accumulator gives; random ones where it has no such multiplier."""
    rng = np.random.default_rng(7)
    made = {}
    for branch in branches():
        sums = (branch.sums + (1 << 31)) % (1 << 32) - (1 << 31)
        codes = arithmetic.codes(sums, branch.scales, branch.zero, LOW, HIGH).astype(np.int8)
        foreign = arithmetic.name in SHIFTS and not branch.ties and branch.name.startswith(OTHER_SCALES)
        made[branch.name] = rng.integers(LOW, HIGH + 1, codes.size).astype(np.int8) if foreign else codes
    return made


def names(found: Reading) -> list[str]:
    return [fit.arithmetic.name for fit in found.families]


def test_weights_make_the_sums() -> None:
    for branch in branches():
        x = signal().astype(np.int64) - branch.offset
        bias = 0 if branch.bias is None else branch.bias
        assert (branch.weights.astype(np.int64) @ x + bias == branch.sums).all(), branch.name
        neighbours = np.abs(branch.weights.astype(np.int64))
        if branch.name != "pairs":  # elsewhere no pair of products leaves int16, also not of codes of 255
            assert (neighbours[:, :-1] + neighbours[:, 1:]).max() <= 128, branch.name


def test_the_ladder_is_exact() -> None:
    """sx * sw / sy is 2^-8 * (1 + d) in real numbers, and each sum at d = 0 is a tie."""
    for branch, d in zip(ladder(), RUNGS, strict=True):
        x, w, y = (Fraction(float(part)) for part in (branch.scales.x, branch.scales.w, branch.scales.y))
        off = x * w / y * 256 - 1
        assert off == 0 if d == 0 else abs(float(off) / d - 1) < 1e-3, d
        assert all(Fraction(int(n), 128).denominator == 1 and int(n) // 128 % 2 for n in branch.sums)


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_is_named_alone(name: str) -> None:
    found = read(outputs(FAMILIES[name]))
    assert names(found) == [name]
    assert found.best[0].differing == 0
    assert found.next is not None
    assert found.next.differing > 3
    for choice in CHOICES:
        assert getattr(FAMILIES[name], choice) in found.values(choice)


def test_the_truth_is_first_though_one_code_in_a_hundred_is_disturbed() -> None:
    rng = np.random.default_rng(11)
    for name in list(FAMILIES)[::4]:
        codes = {
            key: np.where(rng.random(c.size) < 0.01, np.clip(c + rng.choice([-1, 1], c.size), LOW, HIGH), c)
            for key, c in outputs(FAMILIES[name]).items()
        }
        assert read(codes).fits[0].arithmetic.name == name, name


def test_a_combination_that_nobody_has_is_read() -> None:
    """An arithmetic without a name: its choices are read, and no family is named."""
    unknown = [each for each in combinations() if each.name not in FAMILIES]
    for each in np.random.default_rng(13).choice(len(unknown), 12, replace=False):
        planted = unknown[each]
        found = read(outputs(planted))
        assert found.best[0].differing == 0
        for choice in CHOICES:
            assert getattr(planted, choice) in found.values(choice), planted.name
        same = outputs(planted)
        for name in names(found):  # a family is named only if it gives the same codes
            assert all((same[key] == codes).all() for key, codes in outputs(FAMILIES[name]).items()), (
                planted.name,
                name,
            )


@pytest.mark.parametrize("change", ["float", "uint8", "padded", "missing", "int32"])
def test_dumps_of_many_forms_are_read(change: str) -> None:
    codes = outputs(FAMILIES["tfl-double"])
    dump: Mapping[str, Array] = codes
    known = {branch.name: branch for branch in branches()}
    if change == "float":
        dump = {
            n: ((c.astype(np.float64) - known[n].zero) * known[n].scales.y).astype(np.float32) for n, c in codes.items()
        }
    if change == "uint8":
        dump = {n: (c.astype(np.int16) + 128).astype(np.uint8) for n, c in codes.items()}
    if change == "padded":
        dump = {n: np.append(c, np.zeros(-c.size % 32, np.int8)).reshape(1, 1, 1, -1) for n, c in codes.items()}
    if change == "missing":
        dump = {n: c for n, c in codes.items() if not n.startswith(("tie_0", "ladder_1", "width"))}
    if change == "int32":
        dump = {n: c.astype(np.int32) for n, c in codes.items()}
    found = read({n: as_codes(known[n], values) for n, values in dump.items()})
    assert names(found) == ["tfl-double"]


@pytest.mark.parametrize("form", models.FORMS)
def test_models_are_valid_and_qrun_is_exact(form: str) -> None:
    model = models.model(form)
    onnx.checker.check_model(model, full_check=True)
    import qrun

    made = qrun.Session(model).run({"x": models.feed(form)})
    known = {branch.name: branch for branch in models.form_branches(form)}
    found = read(
        {n: as_codes(known[n], values) for n, values in made.items()}, tuple(known.values()), models.is_unsigned(form)
    )
    assert "exact" in names(found)
    assert found.best[0].differing == 0
    assert found.least == (0 if form == "qdq-uint8" else -128)
    assert found.pairs == "exact"
    assert {width.behaviour for width in found.widths} <= {"exact", "wraps", "exact or saturates"}
    assert found.padding == ("" if form in ("matmul", "symmetric") else "zero point")
    assert found.relu == ("" if form in ("matmul", "qlinear") else "zero point")


def test_onnxruntime_is_named() -> None:
    done = call("probe", "--runtime", "ort", "--form", "qlinear")
    assert done.code == 0
    assert "fp32; 0 of" in done.out.splitlines()[0]


def test_floats_are_not_named_as_integers() -> None:
    """onnxruntime does not fuse these nodes on x86: it multiplies floats, divides and rounds."""
    done = call("probe", "--runtime", "ort", "--form", "qdq", "--json")
    assert done.code == 0
    form = done.json["forms"][0]
    assert (form["sums"], form["families"], form["bias"]) == ("floats", [], "")
    assert {key: form["floats"][key] for key in ("divide", "ties", "zero", "differing")} == {
        "divide": "quotient", "ties": "even", "zero": "after", "differing": 0,
    }  # fmt: skip
    assert (form["padding"], form["relu"]) == ("zero point", "zero point")


def test_codes_of_nothing_are_named_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "d.npz", **{b.name: rng.integers(-128, 128, b.sums.size).astype(np.int8) for b in branches()})  # type: ignore[arg-type]
    done = call("probe", "--read", str(tmp_path / "d.npz"))
    assert done.code == 1
    assert "no arithmetic that qrun knows explains these codes" in done.out


@pytest.mark.parametrize(
    ("name", "bits", "form"), [("saturates", 16, np.int16), ("saturates", 20, 20), ("wraps", 16, 16)]
)
def test_a_narrow_accumulator_is_seen(name: str, bits: int, form: Any) -> None:
    end = 1 << (bits - 1)
    codes = outputs(FAMILIES["exact"])
    branch = next(b for b in branches() if b.name == f"width_{bits}")
    sums = np.clip(branch.sums, -end, end - 1) if name == "saturates" else (branch.sums + end) % (2 * end) - end
    codes[branch.name] = FAMILIES["exact"].codes(sums, branch.scales, branch.zero, LOW, HIGH)
    assert {w.bits: w.behaviour for w in read(codes).widths}[bits] == name


def test_a_dump_without_outputs_of_the_probe(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", other=np.zeros(3))
    done = call("probe", "--read", str(tmp_path / "d.npz"))
    assert done.code == 2
    assert "has no output of the probe" in done.err


def test_one_of_three_ways() -> None:
    assert "needs one of --runtime, --read and -o" in call("probe").err
    assert call("probe", "--runtime", "ort", "-o", "x").code == 2


def test_a_written_probe_is_read_back(tmp_path: Path) -> None:
    assert call("probe", "-o", str(tmp_path / "probe")).code == 0
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "probe" / "probe-qlinear.onnx"))
    made = session.run(None, {"x": np.load(tmp_path / "probe" / "probe-qlinear.npy")})
    np.savez(tmp_path / "dump.npz", **dict(zip([o.name for o in session.get_outputs()], made, strict=True)))
    done = call("probe", "--read", str(tmp_path / "dump.npz"), "--json")
    assert done.code == 0
    assert [family["name"] for family in done.json["forms"][0]["families"]] == ["fp32"]


def read_dump(path: Path, dump: Mapping[str, Array], *options: str) -> Any:
    np.savez(path / "d.npz", **dump)  # type: ignore[arg-type]
    return call("probe", "--read", str(path / "d.npz"), *options)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (Device(padding=0), "wrong padding: code 0"),
        (Device(relu=-128), "wrong Relu: clips nowhere"),
        (Device("double", "31 bits", "high half", "away", bits=16, saturates=True), "sums beyond 16 bits saturate"),
    ],
)
def test_the_first_line_names_what_the_device_does_wrong(device: Device, told: str, tmp_path: Path) -> None:
    done = read_dump(tmp_path, device.run(branches()), "-q")
    assert done.code == 0
    assert told in " ".join(done.out.split())


def test_a_device_without_defects_has_none_in_the_first_line(tmp_path: Path) -> None:
    done = read_dump(tmp_path, Device().run(branches()), "-q")
    assert "wrong" not in done.out
    assert "beyond" not in done.out


def test_the_first_line_counts_the_codes_of_the_family_that_it_names(tmp_path: Path) -> None:
    """Another combination may be a few codes nearer."""
    rng, device = np.random.default_rng(3), Device("double", "31 bits", "high half", "away")
    dump = disturbed(device.run(branches()), rng, 0.03)
    form = read_dump(tmp_path, dump, "--json").json["forms"][0]
    said = read_dump(tmp_path, dump, "-q").out
    assert f"tfl-double; {form['families'][0]['differing']} of" in said


def test_a_dump_of_one_value_is_not_read(tmp_path: Path) -> None:
    done = read_dump(tmp_path, {b.name: np.zeros(b.sums.size, np.int8) for b in branches()})
    assert done.code == 1
    assert "all codes are 0: the dump does not hold what the device computed" in " ".join(done.out.split())


def test_outputs_that_do_not_show_the_arithmetic(tmp_path: Path) -> None:
    """No arithmetic was tried, so that none is said to fit."""
    done = read_dump(tmp_path, {"relu": Device().run(branches())["relu"]})
    assert done.code == 1
    assert "these outputs do not show the arithmetic" in done.out
    assert "Save the outputs ladder_" in done.out


def test_codes_stored_as_floats_are_not_missing(tmp_path: Path) -> None:
    done = read_dump(tmp_path, {n: c.astype(np.float32) for n, c in Device().run(branches()).items()})
    said = " ".join(done.out.split())
    assert "outputs cannot be read as codes" in said
    assert "whole numbers: save codes as int8 or uint8" in said
    assert "missing" not in said


def test_other_scales_and_other_arithmetics_get_different_advice(tmp_path: Path) -> None:
    dump = Device().run(branches())
    assert "--form" in read_dump(tmp_path, {n: c[::-1] for n, c in dump.items()}).out
    rng = np.random.default_rng(4)
    assert "--lsb 1" in read_dump(tmp_path, disturbed(dump, rng, 0.15)).out


@pytest.mark.parametrize("form", ["qlinear", "qdq", "matmul", "shifts", "symmetric"])
def test_the_form_is_known_by_the_names_of_its_outputs(form: str, tmp_path: Path) -> None:
    known = models.form_branches(form)
    found = read_dump(tmp_path, Device("double", "31 bits", "high half", "away").run(known), "--json").json["forms"][0]
    assert found["form"] == form
    assert found["missing"] == []


def test_the_least_code_of_uint8_is_one_of_uint8(tmp_path: Path) -> None:
    known = models.form_branches("qdq-uint8")
    dump = {n: (c.astype(np.int16) + 128).astype(np.uint8) for n, c in Device().run(known).items()}
    assert read_dump(tmp_path, dump, "--json").json["forms"][0]["least_code"] == 0


def test_the_readme_is_named_as_a_path(tmp_path: Path) -> None:
    done = call("probe", "-o", f"{tmp_path / 'probe'}/")
    assert str(tmp_path / "probe" / "README.md") in done.err.replace("\n", "").replace(" ", "")
