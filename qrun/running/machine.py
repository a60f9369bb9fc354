"""Measures the limits of this machine, against which a node's speed is judged: the roofline model.

    S. Williams, A. Waterman, D. Patterson: Roofline: an insightful visual performance model for multicore
    architectures. Communications of the ACM 52(4), 2009.

A node of m multiply-adds that moves b bytes takes at least max(m / peak, b / bandwidth); the larger of the two bounds
it. Its share of the roof is this least time divided by the measured time, which equals its multiply-adds per second
divided by min(peak, intensity * bandwidth), where intensity is m / b.

The peak is the rate of the instructions that qrun's fastest kernel multiplies with: 8-bit dot products (on AMX tiles
where the CPU has them), or float32 for nodes that compute in float32. The bandwidth is the speed of reading again and
again a buffer as large as the data that the node moves, so that tensors which fit in a cache are compared with the
speed of that cache; it is measured for five sizes, and the next larger one counts. This is the most favourable case: a
node's inputs were written by the node before it and may have left the cache since.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qrun.declare.frozen import frozen
from qrun.errors import QrunError
from qrun.native.errors import Declined

if TYPE_CHECKING:
    from qrun.native.emit.isa import Isa
    from qrun.native.machine.cache import ObjectCache

SIZES = (1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26)
"""Bytes of the buffers whose reading is measured: for caches of the first, second and third level, and for memory."""

Bound = Literal["compute", "memory"]
Kind = Literal["int8", "float32"]


@frozen
class Roof:
    """The least time that a node can take, ns, and what bounds it."""

    ns: float
    bound: Bound


@frozen
class Machine:
    """The measured speed of this machine, with `threads` threads.

    cpu:           the processor's name; instruction: the one that reaches the peak for 8-bit integers.
    int8, float32: multiply-adds per second.
    memory:        (bytes, bytes per second): how fast a buffer of that size is read, by growing size; never faster for
                   a larger one.
    busy:          other work disturbed the measurement: the machine can do more.
    """

    cpu: str
    threads: int
    instruction: str
    int8: float
    float32: float
    memory: tuple[tuple[int, float], ...]
    busy: bool = False

    def bandwidth(self, nbytes: int) -> float:
        """Bytes per second for a node that moves `nbytes`."""
        return next((speed for size, speed in self.memory if nbytes <= size), self.memory[-1][1])

    def roof(self, macs: int, nbytes: int, kind: Kind = "int8") -> Roof | None:
        """The roof of a node with this many multiply-adds and bytes; None if it has neither."""
        compute = macs / (self.int8 if kind == "int8" else self.float32)
        memory = nbytes / self.bandwidth(nbytes)
        least = max(compute, memory)
        return Roof(least * 1e9, "compute" if compute >= memory else "memory") if least else None


def this_machine(
    cache: str | os.PathLike[str] | bool = True, threads: int = 1, isa: str = "", known: Machine | None = None
) -> Machine | None:
    """The measured speed of this machine with qrun's best instruction set, or the one named; None where it has none.

    Measured once (about a quarter of a second), then kept where compiled kernels are, unless other work disturbed it:
    `cache` is as for Session. Each processor, number of threads, instruction set and version of qrun is measured on its
    own.
    known: an earlier result that a node has exceeded: measure again and keep the better of each number.
    """
    try:
        from qrun.native.emit.isa import choose
        from qrun.native.machine.cache import ObjectCache, default_directory

        try:
            chosen = choose(isa)
            store = ObjectCache(default_directory() if cache is True else None if cache is False else cache)
            return _load_or_measure(store, chosen, threads, known)
        except Declined:
            return None
    except (ImportError, OSError, QrunError):
        return None


def _load_or_measure(store: ObjectCache, isa: Isa, threads: int, known: Machine | None) -> Machine:
    """The machine's peak speeds from the cache, or measured and stored."""
    from qrun import __version__

    key = f"machine 3 {__version__} {processor()} {isa.name} {threads}"
    found = store.load(key, ".machine") if known is None else None
    machine = _parse(found) if found is not None else None
    if machine is None:
        machine = _measure(isa, threads)
        machine = machine if known is None else faster(machine, known)
        if not machine.busy:
            store.save(key, json.dumps(asdict(machine)).encode(), ".machine")
    return machine


def faster(one: Machine, other: Machine) -> Machine:
    """The better of two measurements of one machine, number by number."""
    memory = [(size, max(a, b)) for (size, a), (_, b) in zip(one.memory, other.memory, strict=True)]
    best = one if one.int8 >= other.int8 else other
    busy = one.busy and other.busy
    return replace(best, float32=max(one.float32, other.float32), memory=make_monotonic(memory), busy=busy)


def _parse(body: bytes) -> Machine | None:
    """A kept measurement; None if it is damaged."""
    try:
        fields: dict[str, Any] = json.loads(body)
        memory = tuple((int(size), float(speed)) for size, speed in fields.pop("memory"))
        machine = Machine(memory=memory, **fields)
        speeds = (machine.int8, machine.float32, *(speed for _, speed in memory))
        return machine if memory and all(math.isfinite(s) and s > 0 for s in speeds) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _measure(isa: Isa, threads: int) -> Machine:
    """Measure the machine's peak speeds."""
    from qrun.native.machine.peak import Peak

    peak = Peak(isa, threads)
    tiles, products = max(peak.tiles(), default=0.0), max(peak.products())
    instruction = "tdpbusd" if tiles > products else peak.instruction.name
    memory = make_monotonic([(size, max(peak.reads(size))) for size in SIZES])
    return Machine(processor(), threads, instruction, max(tiles, products), max(peak.floats()), memory, peak.busy)


def make_monotonic(memory: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The speeds (bytes, bytes per second), each at least that of the next larger buffer, as a smaller one is at least
    as near."""
    speeds: list[float] = []
    for _, speed in reversed(memory):
        speeds.append(max(speed, speeds[-1] if speeds else 0.0))
    return tuple((size, speed) for (size, _), speed in zip(memory, reversed(speeds), strict=True))


def processor() -> str:
    """The processor's name as its maker writes it, where the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
