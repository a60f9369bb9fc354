"""What plans share: the instruction set, the compiled kernels and the threads; and how a plan's sections run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.native.cache import ObjectCache
from qrun.native.compile import Kernels
from qrun.native.isa import Isa, choose
from qrun.native.product import COUNTER, Section

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


@dataclass(slots=True)
class Engine:
    """Settings of the native engine. Plans made from it may run in several threads at once.

    threads: how many threads one run may use; results do not depend on it.
    """

    isa: Isa
    kernels: Kernels
    threads: int = 1
    _pool: ThreadPoolExecutor | None = field(default=None, repr=False)

    @classmethod
    def create(cls, isa: str = "", cache: str | os.PathLike[str] | None = None, threads: int = 1) -> Engine:
        """isa: a name, or '' for the best this CPU has. cache: directory of compiled kernels, None for no cache.

        Raises Declined where native kernels cannot run.
        """
        if threads < 1:
            raise ValueError(f"threads must be 1 or more, got {threads}")
        engine = cls(choose(isa), Kernels(ObjectCache(cache)), threads)
        if threads > 1:
            from concurrent.futures import ThreadPoolExecutor

            engine._pool = ThreadPoolExecutor(threads - 1, "qrun")
        return engine

    def execute(self, sections: Sequence[Section], x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        """Run kernels on two contiguous buffers. Raises ValueError if either is too small for them."""
        for section in sections:
            if section.x_bytes > x.nbytes or section.y_bytes > y.nbytes:
                raise ValueError("a buffer is smaller than the plan needs")
        source, target = address(x), address(y)
        for section in sections:
            arguments = section.bound(source, target)
            start = address(arguments)
            call = (start, start + COUNTER)
            helpers = min(self.threads, section.tiles) - 1
            if self._pool is None or helpers < 1:
                section.kernel(*call)
                continue
            keep = (arguments, section.keep, x, y)
            waiting = [self._pool.submit(_help, section.kernel, call, keep) for _ in range(helpers)]
            section.kernel(*call)
            for done in waiting:
                done.result()


def _help(kernel: Any, call: tuple[int, int], keep: object) -> None:
    """Run a kernel; `keep` holds what it works on, also if the caller is interrupted and leaves."""
    kernel(*call)


def address(array: np.ndarray[Any, Any]) -> int:
    """Where the array's first element is."""
    return int(array.__array_interface__["data"][0])
