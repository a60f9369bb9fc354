"""Who may use emulated instruction sets, and what of a kernel is emulated."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.emulation import Emulated, emulated_sets, emulation, translated
from helpers.intrinsics import INSTRUCTIONS
from helpers.native import EMULATED

from qrun.native.emit.isa import available
from qrun.native.emit.spec import KernelSpec
from qrun.native.errors import Declined
from qrun.native.machine.cache import ObjectCache, default_directory
from qrun.native.machine.compile import Kernels
from qrun.native.machine.engine import Engine

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
