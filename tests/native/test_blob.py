"""Images of compiled kernels: what becomes one, what runs, and that LLVM is not needed for those that were kept."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.native import every_isa

from qrun.native.emit.isa import ISAS, Isa, _of_cpuinfo, _of_llvm, available
from qrun.native.errors import Declined
from qrun.native.kernels.conv import Conv
from qrun.native.machine import blob
from qrun.native.machine.blob import blob_of, load_blobs
from qrun.native.machine.codegen import compile_object, llvm
from qrun.native.machine.engine import Engine
from qrun.native.proof.epilogue import Target

pytestmark = pytest.mark.skipif(not blob.USABLE, reason="blobs are for Linux on x86-64")

ADD = """
@table = internal constant [4 x i64] [i64 5, i64 6, i64 7, i64 8]
define i64 @kernel(ptr %a, ptr %b) {
  %i = ptrtoint ptr %a to i64
  %p = getelementptr i64, ptr @table, i64 %i
  %v = load i64, ptr %p
  %w = call i64 @helper(i64 %v)
  ret i64 %w
}
define i64 @helper(i64 %v) noinline {
  %w = add i64 %v, 100
  ret i64 %w
}
"""
NEEDS_LINKER = {
    "undefined function": "declare i64 @absent(i64)\ndefine i64 @kernel(i64 %a) {\n  %v = call i64 @absent(i64 %a)\n  ret i64 %v\n}",
    "variable": "@count = internal global i64 1\ndefine i64 @kernel() {\n  %v = load i64, ptr @count\n  store i64 3, ptr @count\n  ret i64 %v\n}",
    "address in data": "@table = internal constant [1 x ptr] [ptr @kernel]\ndefine ptr @kernel(i64 %i) {\n  %p = getelementptr ptr, ptr @table, i64 %i\n  %v = load ptr, ptr %p\n  ret ptr %v\n}",
}


def isa() -> Isa:
    return next(isa for isa in ISAS if isa.name == "generic")


def run(engine: Engine) -> np.ndarray:
    x, w = np.arange(24, dtype=np.uint8).reshape(1, 8, 3), np.arange(-64, 64, dtype=np.int8).reshape(16, 8, 1)
    target = Target(np.float32(1), np.ones(1, np.float32), np.float32(30), "u8", 3)
    return engine.run(Conv(engine, x.shape, w, x_zero_point=np.uint8(0), target=target), [x])


def test_code_and_its_constants_run_wherever_they_lie() -> None:
    found = blob_of(compile_object(ADD, isa(), flat=True))
    assert found is not None
    for _ in range(3):
        code = load_blobs([found])[0]
        kernel = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(code.get_function_address("kernel"))
        assert [kernel(i, 0) for i in range(4)] == [105, 106, 107, 108]
        helper = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.get_function_address("helper"))
        assert helper(1) == 101


@pytest.mark.parametrize("what", NEEDS_LINKER)
def test_what_needs_a_linker_becomes_none(what: str) -> None:
    assert blob_of(compile_object(NEEDS_LINKER[what], isa(), flat=True)) is None


def test_what_is_no_object_becomes_none() -> None:
    body = compile_object(ADD, isa(), flat=True)
    foreign = body[:18] + b"\xb7\0" + body[20:]
    for bad in (b"", b"\x7fELF", body[:40], body[:64], body[: len(body) // 2], foreign, b"MZ" + body[2:]):
        assert blob_of(bad) is None


@pytest.mark.parametrize("bad", [b"\0" * 8, b"\1\0\0\0\5\0\0\0", b"\0\0\0\0\4\0\0\0abcde"])
def test_broken_blobs_are_refused(bad: bytes) -> None:
    with pytest.raises(OSError, match="not a blob"):
        load_blobs([bad])


def test_code_cannot_be_written() -> None:
    found = blob_of(compile_object(ADD, isa(), flat=True))
    assert found is not None
    code = load_blobs([found])[0]
    start = code.get_function_address("kernel")
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [(*(int(end, 16) for end in line.split()[0].split("-")), line.split()[1]) for line in lines]
    assert [rights for first, end, rights in spans if first <= start < end] == ["r-xp"]


@every_isa
def test_kernels_run_as_blobs_and_as_objects(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y = run(Engine.create(isa, tmp_path / "c"))
    assert {path.suffix for path in (tmp_path / "c").iterdir()} == {".blob"}
    monkeypatch.setattr(blob, "USABLE", False)
    assert np.array_equal(run(Engine.create(isa, tmp_path / "c")), y)
    assert {path.suffix for path in (tmp_path / "c").iterdir()} == {".blob", ".o"}


def test_where_blobs_may_not_run_llvm_loads_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y = run(Engine.create(cache=tmp_path / "c"))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "not allowed")

    monkeypatch.setattr(blob, "_protect", refuse)
    engine = Engine.create(cache=tmp_path / "c")
    assert np.array_equal(run(engine), y)
    assert (engine.kernels.loaded, engine.kernels.compiled) == (1, 1)


def test_kept_kernels_do_not_load_llvm(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from qrun.native.kernels.conv import Conv; "
        "from qrun.native.machine.engine import Engine; from qrun.native.proof.epilogue import Target; "
        f"e = Engine.create(cache={str(tmp_path / 'c')!r}); x = np.ones((1, 4, 3), np.uint8); "
        "t = Target(np.float32(1), np.ones(1, np.float32), np.float32(1), 'u8', 0); "
        "y = e.run(Conv(e, x.shape, np.ones((4, 4, 1), np.int8), x_zero_point=np.uint8(0), target=t), [x]); "
        "print(int(y.sum()), 'llvmlite' in sys.modules, '_hashlib' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stdout
        for _ in range(2)
    ]
    assert [line.split() for line in said] == [["48", "True", "False"], ["48", "False", "False"]]


def test_without_llvm_new_kernels_are_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y = run(Engine.create(cache=tmp_path / "c"))
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    monkeypatch.setattr("qrun.native.machine.codegen.library", lambda: None)
    llvm.cache_clear()
    assert np.array_equal(run(Engine.create(cache=tmp_path / "c")), y)
    with pytest.raises(Declined, match=r"^llvmlite cannot be loaded: .*llvmlite\.binding"):
        run(Engine.create(cache=None))


def test_linux_tells_the_features_that_llvm_finds() -> None:
    needed = {"sse4.1", "sse4.2"}.union(*(found.needs for found in ISAS if found.architecture == "x86_64"))
    assert _of_cpuinfo() & needed == _of_llvm() & needed
    assert available()
