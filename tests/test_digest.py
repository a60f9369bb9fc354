"""Digests of bytes: other bytes, or other parts, have another one, however many threads make it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from qrun.declare.digest import digest

MIB = 1 << 20


def long(size: int) -> bytes:
    return np.random.default_rng(5).bytes(size)


@pytest.mark.parametrize("size", [0, 1, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB, 5 * MIB + 3])
def test_every_byte_counts(size: int) -> None:
    part = bytearray(long(size))
    found = digest(bytes(part))
    assert digest(memoryview(part).toreadonly()) == found
    assert found not in (digest(bytes(part) + b"\0"), digest(bytes(part), b""), digest())
    for at in {0, size // 2, size - 1, min(MIB, size - 1)} if size else ():
        part[at] ^= 1
        assert digest(bytes(part)) != found, at
        part[at] ^= 1


def test_where_a_part_ends_counts() -> None:
    whole = long(6 * MIB)
    splits = [0, 1, MIB, 2 * MIB, 3 * MIB + 1, 6 * MIB]
    assert len({digest(whole[:at], whole[at:]) for at in splits} | {digest(whole)}) == len(splits) + 1


def test_without_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = long(5 * MIB)
    found = digest(whole)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert digest(whole) == found
