"""Loops of nothing but multiply-adds, or nothing but loads: what a machine can do at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qrun.declare.frozen import frozen
from qrun.native.emit.isa import Isa

ACCUMULATORS, UNROLL = 12, 4
LOADS = 8
"""Vectors that the reading loop loads at a time, each to an accumulator of its own."""


@frozen
class Instruction:
    """Inline assembly that adds products of operands 2 and 3 to 0; operand 1 is scratch.

    Where it takes several instructions, those of the fastest kernel, in its proportions: two sums of 16 bits are added
    before they are widened (vpmaddubsw).
    macs: multiply-adds of all of it; lanes: int32 values per vector; kind: LLVM's register constraint.
    """

    name: str
    macs: int
    lanes: int
    kind: str
    text: str


INSTRUCTIONS = {
    "vnni512": Instruction("vpdpbusd zmm", 64, 16, "v", "vpdpbusd $3, $2, $0"),
    "vnni256": Instruction("vpdpbusd ymm", 32, 8, "x", "{vex} vpdpbusd $3, $2, $0"),
    "madd512": Instruction("vpmaddwd zmm", 32, 16, "v", "vpmaddwd $3, $2, $1\nvpaddd $1, $0, $0"),
    "madd256": Instruction(
        "vpmaddubsw ymm",
        64,
        8,
        "x",
        "vpmaddubsw $3, $2, $1\nvpmaddwd $2, $1, $1\nvpaddd $1, $0, $0\nvpmaddubsw $3, $2, $1\nvpaddw $2, $1, $1",
    ),
    "generic": Instruction("pmaddwd xmm", 8, 4, "x", "movdqa $2, $1\npmaddwd $3, $1\npaddd $1, $0"),
    "usdot": Instruction("usdot", 16, 4, "w", "usdot $0.4s, $2.16b, $3.16b"),
    "sdot": Instruction("sdot", 16, 4, "w", "sdot $0.4s, $2.16b, $3.16b"),
    "smull": Instruction("smull", 8, 4, "w", "smull $1.8h, $2.8b, $3.8b\nsadalp $0.4s, $1.8h"),
}


def peak_text(isa: Isa) -> str:
    """LLVM IR of the loops: products(steps), floats(steps), reads(address, bytes, turns), tiles(steps, settings)."""
    return "\n".join([_products(INSTRUCTIONS[isa.dot]), _floats(isa), _reads(isa), *([_tiles()] if isa.tiles else [])])


def _products(instruction: Instruction) -> str:
    vector = f"<{instruction.lanes} x i32>"
    pair = f"{{ {vector}, {vector} }}"
    kind, assembly = instruction.kind, instruction.text.replace("\n", "\\0A")
    call = f'call {pair} asm sideeffect "{assembly}", "=&{kind},=&{kind},{kind},{kind},0"'
    ones = "<" + ", ".join(["i32 16843009"] * instruction.lanes) + ">"

    def step(sums: str, made: str) -> list[str]:
        return [
            f"%p{made} = {call}({vector} {ones}, {vector} {ones}, {vector} {sums})",
            f"%s{made} = extractvalue {pair} %p{made}, 0",
        ]

    return _loop("products", vector, step)


def _floats(isa: Isa) -> str:
    """Multiply-adds with one rounding where the instruction set has them, else products and sums."""
    vector = f"<{isa.lanes} x float>"
    fma = f"llvm.fma.v{isa.lanes}f32"

    def step(sums: str, made: str) -> list[str]:
        if isa.fma:
            return [f"%s{made} = call {vector} @{fma}({vector} %factor, {vector} %factor, {vector} {sums})"]
        return [f"%p{made} = fmul {vector} %factor, %factor.{made[-1]}", f"%s{made} = fadd {vector} %p{made}, {sums}"]

    first = [
        "%number = sitofp i64 %steps to float",
        f"%one = insertelement {vector} zeroinitializer, float %number, i64 0",
        f"%factor = shufflevector {vector} %one, {vector} %one, <{isa.lanes} x i32> zeroinitializer",
        *(f"%factor.{n} = fadd {vector} %factor, %factor" for n in range(0 if isa.fma else 10)),
    ]
    declared = f"declare {vector} @{fma}({vector}, {vector}, {vector})\n" if isa.fma else ""
    return declared + _loop("floats", vector, step, first)


def _loop(name: str, vector: str, step: Any, first: Sequence[str] = ()) -> str:
    """LLVM IR of int64 name(int64 steps): a loop with independent accumulators, so that only throughput counts."""
    lines = [f"define i64 @{name}(i64 %steps) {{", "entry:", *first, "br label %loop", "loop:"]
    lines += ["%step = phi i64 [ 0, %entry ], [ %next, %loop ]"]
    for j in range(ACCUMULATORS):
        lines.append(f"%s0_{j} = phi {vector} [ zeroinitializer, %entry ], [ %s{UNROLL}_{j}, %loop ]")
    for i in range(UNROLL):
        for j in range(ACCUMULATORS):
            lines += step(f"%s{i}_{j}", f"{i + 1}_{j}")
    lines += ["%next = add i64 %step, 1", "%more = icmp ult i64 %next, %steps"]
    lines += ["br i1 %more, label %loop, label %done", "done:"]
    kept = [f"%s{UNROLL}_{j}" for j in range(ACCUMULATORS)]
    lanes = f"<{vector[1:].split()[0]} x i32>"
    lines += [f"%b{j} = bitcast {vector} {value} to {lanes}" for j, value in enumerate(kept)]
    lines += _total([f"%b{j}" for j in range(len(kept))], lanes)
    return "\n".join([*lines, "}"])


def _total(values: Sequence[str], vector: str) -> list[str]:
    """Lines that return a number for which all of these vectors are needed."""
    lines, last = [], values[0]
    for n, value in enumerate(values[1:]):
        lines.append(f"%x{n} = xor {vector} {last}, {value}")
        last = f"%x{n}"
    return [*lines, f"%lane = extractelement {vector} {last}, i64 0", "%wide = sext i32 %lane to i64", "ret i64 %wide"]


def _reads(isa: Isa) -> str:
    vector, width = f"<{isa.lanes} x i32>", isa.lanes * 4
    lines = ["define i64 @reads(i64 %address, i64 %bytes, i64 %turns) {", "entry:"]
    lines += ["%base = inttoptr i64 %address to ptr", "br label %turn", "turn:"]
    lines += ["%t = phi i64 [ 0, %entry ], [ %t1, %turned ]"]
    lines += [f"%o{j} = phi {vector} [ zeroinitializer, %entry ], [ %s{j}, %turned ]" for j in range(LOADS)]
    lines += ["br label %read", "read:", "%at = phi i64 [ 0, %turn ], [ %next, %read ]"]
    lines += [f"%a{j} = phi {vector} [ %o{j}, %turn ], [ %s{j}, %read ]" for j in range(LOADS)]
    for j in range(LOADS):
        lines += [f"%i{j} = add i64 %at, {j * width}", f"%p{j} = getelementptr i8, ptr %base, i64 %i{j}"]
        lines += [f"%v{j} = load {vector}, ptr %p{j}, align 16", f"%s{j} = add {vector} %a{j}, %v{j}"]
    lines += [f"%next = add i64 %at, {LOADS * width}", "%more = icmp ult i64 %next, %bytes"]
    lines += ["br i1 %more, label %read, label %turned", "turned:", "%t1 = add i64 %t, 1"]
    lines += ["%again = icmp ult i64 %t1, %turns", "br i1 %again, label %turn, label %done", "done:"]
    return "\n".join([*lines, *_total([f"%s{j}" for j in range(LOADS)], vector), "}"])


def _tiles() -> str:
    """A loop over AMX products: four tiles of sums, of two tiles of activations and two of weights, all zero."""
    lines = ["define i64 @tiles(i64 %steps, i64 %settings) {", "entry:", "%config = inttoptr i64 %settings to ptr"]
    lines += ["call void @llvm.x86.ldtilecfg(ptr %config)"]
    lines += [f"call void @llvm.x86.tilezero(i8 {tile})" for tile in range(8)]
    lines += ["br label %loop", "loop:", "%step = phi i64 [ 0, %entry ], [ %next, %loop ]"]
    for sums in range(4):
        lines.append(f"call void @llvm.x86.tdpbusd(i8 {sums}, i8 {4 + sums % 2}, i8 {6 + sums // 2})")
    lines += ["%next = add i64 %step, 1", "%more = icmp ult i64 %next, %steps", "br i1 %more, label %loop, label %done"]
    lines += ["done:", "call void @llvm.x86.tilerelease()", "ret i64 0", "}"]
    lines += ["declare void @llvm.x86.ldtilecfg(ptr)", "declare void @llvm.x86.tilezero(i8)"]
    lines += ["declare void @llvm.x86.tdpbusd(i8, i8, i8)", "declare void @llvm.x86.tilerelease()"]
    return "\n".join(lines)
