"""The peak of the instruction that multiplies and adds 8-bit integers, measured by a loop that does nothing else."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from time import perf_counter
from typing import Any

ACCUMULATORS = 12
UNROLL = 4
STEPS = 50_000


@dataclass(frozen=True, slots=True)
class Instruction:
    """Inline assembly that adds products of operands 2 and 3 to 0; operand 1 is scratch.

    macs: multiply-adds per instruction; lanes: int32 values per vector; kind: LLVM's register constraint.
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
    "madd256": Instruction("vpmaddwd ymm", 16, 8, "x", "vpmaddwd $3, $2, $1\nvpaddd $1, $0, $0"),
    "generic": Instruction("pmaddwd xmm", 8, 4, "x", "movdqa $2, $1\npmaddwd $3, $1\npaddd $1, $0"),
    "usdot": Instruction("usdot", 16, 4, "w", "usdot $0.4s, $2.16b, $3.16b"),
    "sdot": Instruction("sdot", 16, 4, "w", "sdot $0.4s, $2.16b, $3.16b"),
    "smull": Instruction("smull", 8, 4, "w", "smull $1.8h, $2.8b, $3.8b\nsadalp $0.4s, $1.8h"),
}


class Peak:
    """The loop for one dot product of qrun's instruction sets (Isa.dot), compiled for the given CPU and features.

    threads: how many run it at once.
    """

    def __init__(self, dot: str, cpu: str, features: str, threads: int = 1) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
        self.instruction = INSTRUCTIONS[dot]
        self.threads = threads
        target = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=1)
        module = llvm.parse_assembly(loop(self.instruction))
        self._engine: Any = llvm.create_mcjit_compiler(module, target)
        self._engine.finalize_object()
        signature = ctypes.CFUNCTYPE(None, ctypes.c_int64)
        self._function = signature(self._engine.get_function_address("peak"))

    def burst(self, times: int) -> list[float]:
        """Multiply-adds per second of `times` runs, of all threads together."""
        macs = ACCUMULATORS * UNROLL * STEPS * self.instruction.macs * self.threads
        return [macs / self._once() for _ in range(times)]

    def _once(self) -> float:
        start = threading.Barrier(self.threads)
        spans: list[tuple[float, float]] = []

        def work() -> None:
            start.wait()
            begin = perf_counter()
            self._function(STEPS)
            spans.append((begin, perf_counter()))

        helpers = [threading.Thread(target=work, daemon=True) for _ in range(self.threads - 1)]
        for helper in helpers:
            helper.start()
        work()
        for helper in helpers:
            helper.join()
        return max(end for _, end in spans) - min(begin for begin, _ in spans)


def loop(instruction: Instruction) -> str:
    """LLVM IR: void peak(int64 steps), with independent accumulators so that only throughput counts."""
    vector = f"<{instruction.lanes} x i32>"
    pair = f"{{ {vector}, {vector} }}"
    kind, text = instruction.kind, instruction.text.replace("\n", "\\0A")
    call = f'call {pair} asm sideeffect "{text}", "=&{kind},=&{kind},{kind},{kind},0"'
    ones = "<" + ", ".join(["i32 16843009"] * instruction.lanes) + ">"
    lines = ["define void @peak(i64 %steps) {", "entry:", "  br label %loop", "loop:"]
    lines += ["  %step = phi i64 [ 0, %entry ], [ %next, %loop ]"]
    for j in range(ACCUMULATORS):
        lines.append(f"  %s0_{j} = phi {vector} [ zeroinitializer, %entry ], [ %s{UNROLL}_{j}, %loop ]")
    for i in range(UNROLL):
        for j in range(ACCUMULATORS):
            lines.append(f"  %p{i}_{j} = {call}({vector} {ones}, {vector} {ones}, {vector} %s{i}_{j})")
            lines.append(f"  %s{i + 1}_{j} = extractvalue {pair} %p{i}_{j}, 0")
    lines += ["  %next = add i64 %step, 1", "  %more = icmp ult i64 %next, %steps"]
    lines += ["  br i1 %more, label %loop, label %done", "done:", "  ret void", "}"]
    return "\n".join(lines)
