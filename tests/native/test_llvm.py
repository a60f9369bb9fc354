"""LLVM called in llvmlite's library alone: the code that llvmlite makes of it, in as many threads,
without its modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import llvmlite
import pytest
from helpers.native import ISAS

from qrun.native.emit.isa import available, choose
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine import blob, codegen
from qrun.native.machine.compile import kernel_text

pytestmark = pytest.mark.skipif(not (ISAS and blob.USABLE), reason="LLVM loads objects on this machine")
WRONG = {
    "LLVM IR is wrong: .*expected": "define i64 @kernel( {",
    "LLVM IR is wrong: .*does not dominate": "define i64 @kernel() {\n %a = add i64 %b, 1\n %b = add i64 1, 1\n ret i64 %a\n}",
}


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another release of llvmlite."""
    monkeypatch.setattr(codegen, "KNOWN", ("0.0.",))
    codegen.library.cache_clear()
    yield
    codegen.library.cache_clear()


def texts() -> list[str]:
    names = [isa.name for isa in available()]
    return [kernel_text(KernelSpec("dense", name, 2, 1, 1, "i32", "i32", False)) for name in names]


def test_the_installed_release_is_known() -> None:
    assert llvmlite.__version__.startswith(codegen.KNOWN)
    assert codegen.library() is not None


def test_the_code_is_that_of_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [codegen.compile_object(text, isa, flat=True) for text, isa in zip(texts(), available(), strict=True)]
    monkeypatch.setattr(codegen, "library", lambda: None)
    assert [
        codegen.compile_object(text, isa, flat=True) for text, isa in zip(texts(), available(), strict=True)
    ] == alone


@pytest.mark.usefixtures("unknown")
def test_of_other_releases_llvmlite_itself_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codegen.library() is None
    called, real = [], codegen.llvm
    monkeypatch.setattr(codegen, "llvm", lambda: called.append(1) or real())
    codegen.begin()
    assert called
    assert codegen.compile_object(texts()[0], available()[0], flat=True)


@pytest.mark.parametrize("told", WRONG)
def test_wrong_ir_is_refused(told: str) -> None:
    for _ in range(3):
        with pytest.raises(RuntimeError, match=told):
            codegen.compile_object(WRONG[told], choose(), flat=True)
    assert codegen.compile_object(texts()[0], available()[0], flat=True)


def test_compiling_imports_no_module_of_llvmlite() -> None:
    source = (
        "import sys\nfrom qrun.native.machine.engine import Engine\nengine = Engine.create()\nengine.kernels.runner(engine.isa)\n"
        "assert engine.kernels.compiled == 1\nprint(*[name for name in sys.modules if name.startswith('llvmlite.')])"
    )
    shown = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["llvmlite._version"]
