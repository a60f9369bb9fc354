"""Which instruction sets a machine has, by its architecture and features, and who may use emulated ones."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.cli import call
from helpers.emulation import Emulated, emulated_sets, emulation, translated
from helpers.intrinsics import INSTRUCTIONS
from helpers.native import EMULATED, SETS
from helpers.widths import BY_NAME, WIDTHS, differing, one_for_all, width

from qrun.native.emit import isa
from qrun.native.emit.isa import ISAS, available, choose, host_features
from qrun.native.emit.spec import KernelSpec
from qrun.native.errors import Declined
from qrun.native.machine.cache import ObjectCache, default_directory
from qrun.native.machine.compile import Kernels
from qrun.native.machine.engine import Engine


def machine(monkeypatch: pytest.MonkeyPatch, name: str, features: set[str], permission: bool = True) -> list[str]:
    """The instruction sets of a machine that has these features."""
    monkeypatch.setattr("platform.machine", lambda: name)
    monkeypatch.setattr(isa, "host_features", lambda architecture: frozenset(features))
    monkeypatch.setattr(isa, "permit_tiles", lambda: permission)
    return [found.name for found in available()]


def test_names_are_unique() -> None:
    assert len({found.name for found in ISAS}) == len(ISAS)


@pytest.mark.parametrize(
    ("features", "want"),
    [
        ({"lse", "dotprod", "i8mm", "sve"}, ["neon-i8mm", "neon-dotprod", "neon"]),
        ({"lse", "dotprod"}, ["neon-dotprod", "neon"]),
        ({"i8mm"}, ["neon"]),
        (set(), ["neon"]),
    ],
)
@pytest.mark.parametrize("name", ["aarch64", "arm64", "ARM64"])
def test_aarch64(name: str, features: set[str], want: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine(monkeypatch, name, features) == want
    assert choose().name == want[0]
    with pytest.raises(Declined, match=rf"'avx2' cannot run on this CPU; usable here: {', '.join(want)}$"):
        choose("avx2")
    with pytest.raises(Declined, match="'armv7' is not an instruction set"):
        choose("armv7")


def test_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = set().union(*(found.needs for found in ISAS))
    others = ["avx512vnni", "avxvnni", "avx512bw", "avx2", "generic"]
    assert machine(monkeypatch, "x86_64", everything) == ["amx", *others]
    assert machine(monkeypatch, "x86_64", everything, permission=False) == others
    with pytest.raises(Declined, match="'amx' cannot run on this CPU; usable here: avx512vnni"):
        choose("amx")
    assert machine(monkeypatch, "x86_64", everything - {"amx-int8"}) == others
    assert machine(monkeypatch, "AMD64", {"sse2"}) == ["generic"]
    with pytest.raises(Declined, match=r"'neon' cannot run on this CPU; usable here: generic$"):
        choose("neon")


@pytest.mark.parametrize("name", ["riscv64", "armv7l", "aarch64_be", "i686", ""])
def test_other_machines_have_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine(monkeypatch, name, {"neon"}) == []


def test_dot_products_get_the_type_they_take() -> None:
    shifts = {found.name: (found.shift(signed=False), found.shift(signed=True)) for found in ISAS}
    assert {name: shift for name, shift in shifts.items() if shift != (0, 128)} == {
        "neon-dotprod": (-128, 0),
        "neon": (-128, 0),
    }


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ({16: 0, 26: 0}, set()),
        ({16: 1 << 8 | 1 << 20, 26: 0}, {"lse", "dotprod"}),
        ({16: 1 << 8 | 1 << 20, 26: 1 << 13}, {"lse", "dotprod", "i8mm"}),
        ({16: ~(1 << 8 | 1 << 20), 26: ~(1 << 13)}, set()),
    ],
)
def test_features_of_linux(words: dict[int, int], want: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def getauxval(entry: int) -> int:
        return words[entry]

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(getauxval=getauxval))
    assert host_features("aarch64") == want


@pytest.mark.parametrize("on", [set(), {"FEAT_LSE", "FEAT_DotProd"}, {"FEAT_LSE", "FEAT_DotProd", "FEAT_I8MM"}])
def test_features_of_macos(on: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def sysctlbyname(name: bytes, value: Any, *rest: object) -> int:
        feature = name.decode().removeprefix("hw.optional.arm.")
        value._obj.value = feature in on
        return -1 if feature == "FEAT_I8MM" and feature not in on else 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=sysctlbyname))
    names = {"FEAT_LSE": "lse", "FEAT_DotProd": "dotprod", "FEAT_I8MM": "i8mm"}
    assert host_features("aarch64") == {names[feature] for feature in on}


def test_features_of_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert host_features("aarch64") == set()


@pytest.mark.parametrize("place", ["docs/configuration.md", "docs/internals/kernels.md", "qrun explain environment"])
def test_every_set_is_told(place: str) -> None:
    """Where users read what QRUN_ISA may be."""
    page = Path(__file__).parents[2] / place
    text = page.read_text(encoding="utf-8") if page.exists() else call(*place.split()[1:]).out
    assert [found.name for found in ISAS if not re.search(rf"(?<![\w-]){found.name}(?![\w-])", text)] == []


def test_widths() -> None:
    """One set of each stands for all: only the planners of products of bytes read what they differ in."""
    x86 = {name: width(found) for name, found in BY_NAME.items() if found.architecture == "x86_64"}
    assert x86["amx"] == x86["avx512vnni"] == x86["avx512bw"] != x86["avx2"] == x86["avxvnni"] != x86["generic"]
    assert {width(BY_NAME[name]) for name in SETS} == {width(BY_NAME[name]) for name in WIDTHS}
    for found in ISAS:
        alike = [other.vectors for other in ISAS if width(other) == width(found)]
        assert alike.count(found.vectors) == len(alike)
    reads = re.compile(r"isa\.(dot|rows|tiles|clips|dots|widens|shift)\b")
    planners = (Path(isa.__file__).parents[1] / "kernels").glob("*.py")
    products = {"conv", "copied", "product", "recurrent", "stacked"}
    assert {path.stem for path in planners if reads.search(path.read_text())} == products


@pytest.mark.skipif(len(SETS) == len(WIDTHS), reason="no two instruction sets of one width here")
def test_another_kernel_on_a_set_of_the_same_width_is_found() -> None:
    name = next(name for name in SETS if name not in WIDTHS and width(BY_NAME[name]) != width(BY_NAME["amx"]))
    alone = KernelSpec("dense", name, 2, 2, 4, "y32", "u8", True)
    assert differing(alone)
    with pytest.raises(AssertionError, match="every_isa is for these kernels"), one_for_all():
        Kernels().get(alone)
    same = KernelSpec("elementwise", name, 4, 1, 1, "add:0,1", "f32", False, operands="ff")
    with one_for_all():
        Kernels().get(same)


needs_emulation = pytest.mark.skipif(not EMULATED, reason="this CPU has every instruction set, or not AVX2")


def test_what_is_not_emulated_is_said() -> None:
    text = "declare <16 x i32> @llvm.x86.avx512.new.512(<16 x i32>)"
    with pytest.raises(NotImplementedError, match=r"no emulation of x86\.avx512\.new\.512$"):
        translated(text, frozenset())


def test_what_the_cpu_has_is_not_emulated() -> None:
    for name, instruction in INSTRUCTIONS.items():
        call = f"call {instruction.result} @llvm.{name}({', '.join(instruction.operands)})"
        assert call in translated(call, frozenset({instruction.feature}))
        assert call not in translated(call, frozenset())


@needs_emulation
def test_sets_are_emulated_by_name_and_on_demand_only(tmp_path: Path) -> None:
    name, own = EMULATED[0], available()
    with pytest.raises(Declined, match="cannot run on this CPU"):
        Engine.create(name)
    with emulation():
        assert available() == own
        assert Engine.create().isa == own[0]
        assert Engine.create(name, tmp_path / "kept").isa == emulated_sets()[name]
        assert Engine.create(name, default_directory()).kernels.cache.directory is None
    with pytest.raises(Declined, match="cannot run on this CPU"):
        Engine.create(name)


@needs_emulation
def test_kept_code_is_of_this_cpu_or_emulated(tmp_path: Path) -> None:
    """Neither is ever taken for the other."""
    spec = KernelSpec("dense", EMULATED[-1], 2, 1, 1, "i32", "i32", False)
    for kernels in (Emulated(ObjectCache(tmp_path / "c")), Kernels(ObjectCache(tmp_path / "c"))):
        kernels.get(spec)
        assert (kernels.compiled, kernels.loaded) == (1, 0)
