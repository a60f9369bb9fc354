"""Measures the peak speed of this machine: loops of multiply-adds, and of loads."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from time import perf_counter, thread_time
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from qrun.native.emit.isa import Isa
from qrun.native.emit.peak import ACCUMULATORS, INSTRUCTIONS, LOADS, UNROLL, peak_text
from qrun.native.machine.codegen import compile_object, load_object
from qrun.native.machine.memory import address, aligned

STEPS = 50_000
TILE_STEPS, TILE_MACS = 5_000, 16 * 16 * 64
READ, LEAST_READS = 1 << 23, 2
"""The least bytes read in one timing, and the least number of reads of a buffer."""
BURSTS = 7
AWAY = 0.05
"""The measurement counts as disturbed if the loops had no processor for more than this share of the time."""


class Peak:
    """The measuring loops for an instruction set of this machine. threads: how many run a loop at once.

    Raises Declined where they cannot be compiled.
    """

    def __init__(self, isa: Isa, threads: int = 1) -> None:

        llvm.initialize_native_asmparser()
        self.isa, self.threads = isa, threads
        self._asked = self._on = 0.0
        self.instruction = INSTRUCTIONS[isa.dot]
        self._code: Any = load_object(compile_object(peak_text(isa), isa), isa)

    @property
    def busy(self) -> bool:
        """Whether other work took the processors for a part of the measurement so far. Always False on Windows."""
        return sys.platform != "win32" and self._asked - self._on > AWAY * self._asked

    def products(self, times: int = BURSTS) -> list[float]:
        """`times` measured rates of 8-bit multiply-adds per second with the vector instruction, over all threads."""
        macs = ACCUMULATORS * UNROLL * STEPS * self.instruction.macs
        return [macs * self.threads / self._once("products", [(STEPS,)] * self.threads) for _ in range(times)]

    def floats(self, times: int = BURSTS) -> list[float]:
        """The same as `products` for float32."""
        macs = ACCUMULATORS * UNROLL * STEPS * self.isa.lanes
        return [macs * self.threads / self._once("floats", [(STEPS,)] * self.threads) for _ in range(times)]

    def tiles(self, times: int = BURSTS) -> list[float]:
        """The same as `products` for 8-bit integers on tiles; empty without tiles."""
        if not self.isa.tiles:
            return []
        settings = aligned(64, np.uint8, 0)
        settings[0], settings[16:32:2], settings[48:56] = 1, 64, 16
        words = [(TILE_STEPS, address(settings))] * self.threads
        return [4 * TILE_STEPS * TILE_MACS * self.threads / self._once("tiles", words) for _ in range(times)]

    def reads(self, nbytes: int, times: int = BURSTS) -> list[float]:
        """Bytes per second that all threads read together, each reading its share of `nbytes` again and again."""
        step = LOADS * self.isa.lanes * 4
        each = max(nbytes // self.threads // step, 1) * step
        buffers = [aligned(each, np.uint8, 0) for _ in range(self.threads)]
        turns = max(LEAST_READS, READ // each)
        words = [(address(buffer), each, turns) for buffer in buffers]
        return [each * turns * self.threads / self._once("reads", words) for _ in range(times)]

    def _once(self, name: str, words: Sequence[tuple[int, ...]]) -> float:
        """Seconds from the first thread's start to the last one's end."""
        kinds = [ctypes.c_int64] * len(words[0])
        function = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(self._code.get_function_address(name))
        start = threading.Barrier(len(words))
        spans: list[tuple[float, float]] = []
        on: list[float] = []

        def work(mine: tuple[int, ...]) -> None:
            start.wait()
            begin, before = perf_counter(), thread_time()
            function(*mine)
            on.append(thread_time() - before)
            spans.append((begin, perf_counter()))

        helpers = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in words[1:]]
        for helper in helpers:
            helper.start()
        work(words[0])
        for helper in helpers:
            helper.join()
        self._asked += sum(end - begin for begin, end in spans)
        self._on += sum(on)
        return max(end for _, end in spans) - min(begin for begin, _ in spans)
