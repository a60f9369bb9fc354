"""Loops of only multiply-adds or only loads, which measure the machine's peak throughput."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import xor

from qrun.declare.frozen import frozen
from qrun.native.emit.flow import Flow, functions
from qrun.native.emit.isa import Isa
from qrun.native.emit.values import Value

ACCUMULATORS, UNROLL = 12, 4
LOADS = 8
"""Vectors that the reading loop loads per iteration, each into its own accumulator."""


@frozen
class Instruction:
    """Inline assembly that adds products of operands 2 and 3 to operand 0; operand 1 is scratch.

    If that takes several instructions, they are those of the fastest kernel, in the same proportions: two sums of 16
    bits are added before they are widened (vpmaddubsw).
    macs: multiply-adds of the whole sequence; lanes: int32 values per vector; kind: LLVM's register constraint.
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
    loops: dict[str, Callable[..., Value]] = {
        "i64 @products(i64 %steps)": partial(_products, INSTRUCTIONS[isa.dot]),
        "i64 @floats(i64 %steps)": partial(_floats, isa),
        "i64 @reads(ptr %address, i64 %bytes, i64 %turns)": partial(_reads, isa),
    }
    return functions({**loops, "i64 @tiles(i64 %steps, ptr %settings)": _tiles} if isa.tiles else loops)


def _products(instruction: Instruction, w: Flow, steps: Value) -> Value:
    """Write a loop of dot-product instructions without memory access; returns a sum that uses all of them."""
    vector = f"<{instruction.lanes} x i32>"
    pair, kind = f"{{ {vector}, {vector} }}", instruction.kind
    assembly = instruction.text.replace("\n", "\\0A")
    call = f'call {pair} asm sideeffect "{assembly}", "=&{kind},=&{kind},{kind},{kind},0"'
    ones = w.value(vector, 0x01010101)

    def step(total: Value, number: int) -> Value:
        made = w.let(pair, f"{call}({vector} {ones}, {vector} {ones}, {vector} {total})")
        return w.let(vector, f"extractvalue {pair} {made}, 0")

    return _loop(w, vector, steps, step)


def _floats(isa: Isa, w: Flow, steps: Value) -> Value:
    """A loop of fused multiply-adds where the instruction set has them, else of products and sums."""
    factor = steps.sitofp("float").splat(isa.lanes)
    others = [factor] if isa.fma else [factor + factor for _ in range(10)]

    def step(total: Value, number: int) -> Value:
        other = others[number % len(others)]
        if isa.fma:
            return w.call(total.kind, f"llvm.fma.v{isa.lanes}f32", factor, other, total)
        return factor * other + total

    return _loop(w, factor.kind, steps, step)


def _loop(w: Flow, vector: str, steps: Value, step: Callable[[Value, int], Value]) -> Value:
    """Write the loop. The accumulators are independent, so that only throughput counts; `step` gets each one's
    number."""
    with w.loop(0, steps, 1, [w.zero(vector)] * ACCUMULATORS, once=True) as turn:
        sums = turn.carried
        for _ in range(UNROLL):
            sums = [step(total, number) for number, total in enumerate(sums)]
        turn.next(*sums)
    return _total([value.bitcast("i32") for value in turn.carried])


def _total(values: Sequence[Value]) -> Value:
    """A number that depends on all of these vectors, so that LLVM keeps the loop."""
    return reduce(xor, values).extract(0).sext("i64")


def _reads(isa: Isa, w: Flow, address: Value, size: Value, turns: Value) -> Value:
    """Write a loop that reads `size` bytes `turns` times; returns a sum that uses all of them."""
    vector, width = f"<{isa.lanes} x i32>", isa.lanes * 4
    with w.loop(0, turns, 1, [w.zero(vector)] * LOADS, once=True) as turn:
        with w.loop(0, size, LOADS * width, turn.carried, once=True) as read:
            here = address + read.index
            read.next(*(total + (here + j * width).load(vector, 16) for j, total in enumerate(read.carried)))
        turn.next(*read.carried)
    return _total(turn.carried)


def _tiles(w: Flow, steps: Value, settings: Value) -> Value:
    """A loop over AMX products: four tiles of sums, of two tiles of activations and two of weights, all zero."""
    w.run("llvm.x86.ldtilecfg", settings)
    for tile in range(8):
        w.run("llvm.x86.tilezero", ("i8", str(tile)))
    with w.loop(0, steps, 1, once=True):
        for sums in range(4):
            w.run("llvm.x86.tdpbusd", *(("i8", str(tile)) for tile in (sums, 4 + sums % 2, 6 + sums // 2)))
    w.run("llvm.x86.tilerelease")
    return w.value("i64", 0)
