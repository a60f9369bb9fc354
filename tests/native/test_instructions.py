"""Emulated instructions against their definitions, and against the hardware where it has them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.emulation import translated, usable
from helpers.intrinsics import BYTES, DOUBLES, FLOATS, INSTRUCTIONS, INTS, LONGS, MASK, ROW, WORDS
from helpers.native import Array, Guarded, codes

from qrun.native.emit.flow import Flow
from qrun.native.emit.isa import ISAS, Isa, available
from qrun.native.emit.values import constants
from qrun.native.machine.codegen import compile_object, load_object

AVX2 = next(isa for isa in ISAS if isa.name == "avx2")
pytestmark = pytest.mark.skipif(AVX2 not in available(), reason="this CPU has no AVX2")
TYPES = {BYTES: np.int8, WORDS: np.int16, INTS: np.int32, FLOATS: np.float32, "<8 x i32>": np.int32, "i16": np.int16,
         DOUBLES: np.int64, LONGS: np.int64}  # fmt: skip
"""float64 only moves: its bits are compared."""
COUNTS = {BYTES: 64, WORDS: 32, INTS: 16, FLOATS: 16, "<8 x i32>": 8, "i16": 1, DOUBLES: 8, LONGS: 8}
I64 = np.int64
TILE_CODE = [n for n, instruction in INSTRUCTIONS.items() if instruction.tiles]
sides = pytest.mark.parametrize("side", ["emulated", "hardware"])


def hardware() -> Isa:
    """All that this CPU has of what INSTRUCTIONS need."""
    every = {i.feature for i in INSTRUCTIONS.values()}.union(*(i.needs for i in ISAS if i.architecture == "x86_64"))
    return replace(AVX2, features=",".join(f"+{name}" for name in sorted(usable() & every - AVX2.needs)))


def compiled(w: Flow, side: str, *names: str) -> Callable[..., None]:
    """A function of pointers; skips the test if the hardware lacks one of these instructions."""
    lacking = {INSTRUCTIONS[name].feature for name in names} - usable()
    if side == "hardware" and lacking:
        pytest.skip(f"this CPU has no {', '.join(sorted(lacking))}")
    w.do("ret i64 0")
    text = w.function("define i64 @kernel(ptr %p0, ptr %p1, ptr %p2, ptr %p3, ptr %p4)")
    isa = hardware() if side == "hardware" else AVX2
    code = load_object(compile_object(text if side == "hardware" else translated(text, frozenset()), isa), isa)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5)(code.get_function_address("kernel"))

    def run(*pointers: int) -> None:
        assert code
        function(*pointers, *[0] * (5 - len(pointers)))

    return run


def start() -> Flow:
    w = Flow()
    w.label("entry")
    return w


def wrapped(sums: Array) -> Array:
    return sums.astype(np.uint64).astype(np.uint32).view(np.int32)


def packed(element: Any, lane: int) -> Callable[[Array, Array], Array]:
    info = np.iinfo(element)
    return lambda a, b: np.concatenate([v.reshape(4, lane) for v in (a, b)], 1).clip(info.min, info.max).astype(element)


def dot(a: Array, b: Array, start: Array | int = 0) -> Array:
    return wrapped(start + (a.astype(I64) * b).reshape(-1, 32 // (8 * b.itemsize)).sum(1))


def shuffled(a: Array, places: Array) -> Array:
    found = a.reshape(4, 16)[np.arange(64) // 16, places & 15]
    return np.where(places < 0, 0, found)


def converted(values: Array, kept: Array, mask: Array) -> Array:
    exact = values.astype(np.float64)
    fits = (exact >= -(2.0**31)) & (np.rint(exact) < 2.0**31)
    made = np.where(fits, np.rint(np.where(fits, exact, 0)), -(2.0**31)).astype(np.int32)
    return np.where(mask.view(np.uint16) >> np.arange(16) & 1, made, kept)


DEFINITIONS: dict[str, Callable[..., Array]] = {
    "x86.avx512.packssdw.512": packed(np.int16, 4),
    "x86.avx512.packsswb.512": packed(np.int8, 8),
    "x86.avx512.packuswb.512": packed(np.uint8, 8),
    "x86.avx512.pmaddw.d.512": dot,
    "x86.avx512.pshuf.b.512": shuffled,
    "x86.avx512.mask.cvtps2dq.512": converted,
    "x86.avx512.vpermi2var.qi.512": lambda a, places, b: np.concatenate([a, b])[places & 127],
    "x86.avx512.vpermi2var.pd.512": lambda a, places, b: np.concatenate([a, b])[places & 15],
}
for _count in ("512", "256"):
    DEFINITIONS[f"x86.avx512.vpdpbusd.{_count}"] = lambda c, a, b: dot(a.view(np.uint8), b.view(np.int8), c.astype(I64))
    DEFINITIONS[f"x86.avx512.vpdpwssd.{_count}"] = lambda c, a, b: dot(
        a.view(np.int16), b.view(np.int16), c.astype(I64)
    )


def operand(rng: np.random.Generator, kind: str, extreme: bool) -> Array:
    """Values of all sizes, or ends and what is next to them."""
    count, dtype = COUNTS[kind], TYPES[kind]
    if kind == FLOATS:
        ends = [
            2.0**31,
            -(2.0**31),
            2147483520.0,
            -2147483904.0,
            np.inf,
            -np.inf,
            np.nan,
            0.5,
            1.5,
            -2.5,
            -0.5,
            8388609,
        ]
        values = rng.choice(ends, count) if extreme else rng.normal(0, 10.0 ** rng.integers(0, 11, count))
        return np.asarray(values, np.float32)
    if not extreme:
        values = rng.integers(-(2**63), 2**63 - 1, count) >> rng.integers(32, 64, count)
        return (
            values.astype(dtype)
            if rng.random() < 0.5
            else rng.integers(0, 256, count * 8).astype(np.uint8).view(dtype)[:count]
        )
    part = rng.choice([np.int8, np.int16, dtype])
    info = np.iinfo(part)
    size = count * np.dtype(dtype).itemsize // np.dtype(part).itemsize
    if not size:
        return np.full(count, -1, dtype)
    return rng.choice([info.min, info.min + 1, -1, 0, 1, info.max], size).astype(part).view(dtype)


@sides
@pytest.mark.parametrize("name", DEFINITIONS)
def test_vector_instructions(name: str, side: str) -> None:
    instruction, w = INSTRUCTIONS[name], start()
    kinds = [kind for kind in instruction.operands if kind != "i32"]
    *sources, target = (w.value("ptr", f"%p{i}") for i in range(len(kinds) + 1))
    values = [source.load(kind) for kind, source in zip(kinds, sources, strict=True)]
    values += [w.value("i32", 4)] * ("i16" in kinds)
    target.store(w.call(instruction.result, f"llvm.{name}", *values))
    run, rng = compiled(w, side, name), np.random.default_rng(1)
    result = np.zeros(COUNTS[instruction.result], TYPES[instruction.result])
    for number in range(300):
        operands = [operand(rng, kind, bool(number % 2)) for kind in kinds]
        run(*(array.ctypes.data for array in (*operands, result)))
        want = np.ascontiguousarray(DEFINITIONS[name](*operands)).reshape(-1).view(result.dtype)
        assert np.array_equal(result, want), (number, operands, result, want)


@sides
@pytest.mark.parametrize("at_end", [True, False])
def test_masked_bytes(side: str, at_end: bool) -> None:
    """Masked ones may lie in unreadable pages."""
    names, w = ("masked.load.v64i8.p0", "masked.store.v64i8.p0"), start()
    source, target, bits, rest, copy = (w.value("ptr", f"%p{i}") for i in range(5))
    mask = bits.load("i64").bitcast(MASK)
    found = w.call(BYTES, f"llvm.{names[0]}", source, ("i32", "1"), mask, rest.load(BYTES))
    copy.store(found)
    w.run(f"llvm.{names[1]}", found, target, ("i32", "1"), mask)
    run, rng, guard = compiled(w, side, *names), np.random.default_rng(2), Guarded()
    for count in (0, 1, 7, 16, 33, 63, 64):
        before = 0 if at_end else 64 - count
        x, y = guard.take(count, at_end), guard.take(count, at_end)
        x[:], kept, got = codes(rng, (count,), "u8"), codes(rng, (64,), "u8"), np.zeros(64, np.uint8)
        on = rng.random(64) < 0.7
        on[:before] = on[before + count :] = False
        bits = np.packbits(on, bitorder="little")
        run(x.ctypes.data - before, y.ctypes.data - before, *(array.ctypes.data for array in (bits, kept, got)))
        whole = np.pad(x, (before, 64 - before - count))
        assert np.array_equal(got, np.where(on, whole, kept)), count
        assert np.array_equal(y, np.where(on, whole, 0)[before : before + count]), count


def sizes(rows: list[int], widths: list[int]) -> Array:
    """The configuration of tiles 0, 1, ...: their rows and the bytes of each."""
    config = np.zeros(ROW, np.uint8)
    config[0], config[48 : 48 + len(rows)], config[16 : 16 + 2 * len(rows) : 2] = 1, rows, widths
    return config


@sides
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("signed", [False, True])
def test_tiles(signed: bool, at_end: bool, side: str) -> None:
    """Products of every size, with rows any number of bytes apart between unreadable pages; sums wrap."""
    product, w = f"x86.tdp{'bssd' if signed else 'busd'}", start()
    config, places = (w.value("ptr", f"%p{i}") for i in range(2))
    w.run("llvm.x86.ldtilecfg", config)
    strides = [(config + ROW + 8 * i).load("i64") for i in range(4)]
    pointers = [(places + 8 * i).load("ptr") for i in range(4)]
    for tile in range(3):
        w.run("llvm.x86.tileloadd64", ("i8", f"{tile}"), pointers[tile], strides[tile])
    w.run(f"llvm.{product}", ("i8", "0"), ("i8", "1"), ("i8", "2"))
    w.run("llvm.x86.tilestored64", ("i8", "0"), pointers[3], strides[3])
    w.run("llvm.x86.tilerelease")
    run, rng, guard = compiled(w, side, *TILE_CODE), np.random.default_rng(3), Guarded()
    for m, k, n in ((16, 16, 16), (1, 1, 1), (5, 3, 7), (16, 1, 2), (2, 16, 9), (13, 8, 16), (1, 16, 16)):
        for apart in (0, 3, 64):
            shapes, held, views = ((m, 4 * n), (m, 4 * k), (k, 4 * n), (m, 4 * n)), [], []
            for rows, width in shapes:
                memory = guard.take(rows * (width + apart) - apart, at_end)
                held.append(memory)
                views.append(np.lib.stride_tricks.as_strided(memory, (rows, width), (width + apart, 1)))
                memory[:] = codes(rng, memory.shape, "u8") if rng.random() < 0.7 else 0x7F
            before = held[3].copy()
            config = np.append(
                sizes([m, m, k], [4 * n, 4 * k, 4 * n]), np.array([v.strides[0] for v in views]).view(np.uint8)
            )
            addresses = np.array([array.ctypes.data for array in held])
            run(config.ctypes.data, addresses.ctypes.data)
            sums, a, b = (np.ascontiguousarray(view) for view in views[:3])
            a = a.view(np.int8 if signed else np.uint8).astype(I64)
            b = b.view(np.int8).reshape(k, n, 4).transpose(0, 2, 1).reshape(4 * k, n)
            want = wrapped(sums.view(np.int32) + a @ b)
            assert np.array_equal(np.ascontiguousarray(views[3]).view(np.int32), want), (m, k, n, apart)
            views[3][:] = np.lib.stride_tricks.as_strided(before, (m, 4 * n), (4 * n + apart, 1))
            assert np.array_equal(held[3], before), "something between rows was written"


GOOD = sizes([4, 4, 2], [32, 8, 32])
LOAD = "call void @llvm.x86.tileloadd64(i8 {}, ptr %config, i64 64)"
RELEASE = "call void @llvm.x86.tilerelease()"
PRODUCT = "call void @llvm.x86.tdpbusd(i8 {}, i8 {}, i8 {})"
REFUSED = {
    "not configured": (GOOD, [RELEASE, LOAD.format(0)]),
    "no such tile": (GOOD, [LOAD.format(5)]),
    "rows differ": (sizes([4, 3, 2], [32, 8, 32]), [PRODUCT.format(0, 1, 2)]),
    "depths differ": (sizes([4, 4, 3], [32, 8, 32]), [PRODUCT.format(0, 1, 2)]),
    "columns differ": (sizes([4, 4, 2], [32, 8, 28]), [PRODUCT.format(0, 1, 2)]),
    "one tile twice": (sizes([2, 2, 2], [8, 8, 8]), [PRODUCT.format(0, 1, 1)]),
    "too many rows": (sizes([17], [8]), []),
    "too wide": (sizes([4], [65]), []),
    "no rows": (sizes([0], [8]), []),
    "palette": (GOOD * np.where(np.arange(ROW), 1, 0).astype(np.uint8), []),
    "reserved": (GOOD + (np.arange(ROW) == 9).astype(np.uint8), []),
}
RUN_EACH = """
import ctypes, os, sys
from qrun.native.machine.cache import ObjectCache
from qrun.native.machine.codegen import compile_object, load_object
from qrun.native.machine.compile import Kernels
from qrun.native.emit.isa import ISAS
isa = next(isa for isa in ISAS if isa.name == "avx2")
for text in sys.stdin.read().split("|"):
    child = os.fork()
    if not child:
        code = load_object(compile_object(text, isa), isa)
        os._exit(ctypes.CFUNCTYPE(ctypes.c_int64)(code.get_function_address("kernel"))())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_what_the_hardware_refuses_ends_the_process() -> None:
    texts = []
    declared = [f"declare void @llvm.{n}({', '.join(INSTRUCTIONS[n].operands)})" for n in TILE_CODE]
    for config, lines in [(GOOD, [LOAD.format(0), PRODUCT.format(0, 1, 2)]), *REFUSED.values()]:
        body = ["entry:", "%config = alloca [1024 x i8], align 64"]
        body.append(f"store {BYTES} {constants('i8', config.tolist())}, ptr %config")
        body += ["call void @llvm.x86.ldtilecfg(ptr %config)", *lines, RELEASE, "ret i64 0"]
        texts.append(translated("\n".join([*declared, "define i64 @kernel() {", *body, "}"]), frozenset()))
    child = [sys.executable, "-c", RUN_EACH]
    done = subprocess.run(child, input="|".join(texts), capture_output=True, text=True, check=True)
    ends = [int(line) for line in done.stdout.split()]
    assert dict(zip(["", *REFUSED], ends, strict=True)) == {"": 0} | dict.fromkeys(REFUSED, -signal.SIGILL)
