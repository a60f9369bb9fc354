"""The peak of qrun's dot-product instruction, as scripts/bench.py asks its workers for it."""

from __future__ import annotations

from qrun.native.emit.isa import choose
from qrun.native.machine import peak


class Peak(peak.Peak):
    """The loops of the instruction set with this name, run by so many threads at once."""

    def __init__(self, isa: str, threads: int = 1) -> None:
        super().__init__(choose(isa), threads)

    def burst(self, times: int) -> list[float]:
        """Multiply-adds per second of `times` runs of the dot-product loop, of all threads together."""
        return self.products(times)
