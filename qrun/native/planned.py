"""Operations whose kernel calls are made when they are first asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from qrun.native.operation import Operation, Order
from qrun.native.section import Section

TILE_BYTES = 1 << 14
_TILES_PER_THREAD = 8


class Planned(Operation):
    """Keeps its kernel calls for each set of strides."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], tuple[Section, ...]] = {}

    @abstractmethod
    def _plan(self, strides: Sequence[int]) -> tuple[Section, ...]:
        """The kernel calls for rows `strides` bytes apart, 0 for rows without gaps."""

    def sections(self, strides: Sequence[int], skip: frozenset[int] = frozenset()) -> tuple[Section, ...]:
        key = tuple(strides)
        if len(key) != len(self.operands):
            raise ValueError(f"{len(key)} strides for {len(self.operands)} operands")
        for stride, operand, order in zip(key, self.operands, self._orders(), strict=True):
            if stride and (any(operand.border) or order == "plain" or stride < operand.row_bytes(_rows(order))):
                raise ValueError(f"rows of {list(operand.shape)} cannot lie {stride} bytes apart")
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._plan(key)
        return found

    def _orders(self) -> tuple[Order, ...]:
        return (*(self.source_order for _ in self.operands[1:]), self.result_order)


def _rows(order: Order) -> Order:
    return "channels" if order == "any" else order


def share(units: int, unit_bytes: int, threads: int) -> int:
    """Units of work per tile: all for one thread, else about eight tiles per thread of 16 KB or more."""
    if threads == 1:
        return max(units, 1)
    return max(-(-units // (threads * _TILES_PER_THREAD)), -(-TILE_BYTES // max(unit_bytes, 1)), 1)
