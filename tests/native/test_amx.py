"""Products on AMX tiles against exact integers: every tail, form and way to read rows, between unreadable pages."""

from __future__ import annotations

import platform
import sys
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
from helpers.native import LIMITS, TYPES, Array, Guarded, codes, engine, needs_amx

from qrun.native.emit import amx as _amx
from qrun.native.emit.isa import ISAS, permit_tiles
from qrun.native.emit.spec import BYTES, MAGIC, MAGIC_BITS, TABLE, KernelSpec
from qrun.native.machine.blob import blob_of
from qrun.native.machine.codegen import compile_object
from qrun.native.machine.memory import aligned

AMX = next(isa for isa in ISAS if isa.tiles)


@dataclass(frozen=True)
class Case:
    """A convolution over `images` lines of pixels of k bytes, kernel `taps`;
    `pad` pixels of the zero point at both ends.

    Padding is not in memory, so the kernel copies; without it, it reads in place. gap: bytes between rows of y.
    """

    rows: int = 17
    channels: int = 20
    k: int = 5
    taps: int = 1
    pad: int = 0
    images: int = 1
    form: str = "i32"
    out: str = "i32"
    signed: bool = False
    high: int = 2
    shares: int = 1
    chunks: int = 1
    prefetch: int = 0
    gap: int = 0
    extreme: bool = False

    @property
    def pixels(self) -> int:
        return self.rows + self.taps - 1 - 2 * self.pad

    @property
    def zero(self) -> int:
        return {"u8": 77, "s8": -5, "i32": 0}[self.out]

    @property
    def itemsize(self) -> int:
        return 4 if self.out == "i32" else 1


def shifts(case: Case) -> Array:
    """Each channel's multiplier is 2 ** -shift."""
    return 6 + (case.k * case.taps).bit_length() // 2 + np.arange(case.channels) % 4


def exact(case: Case, x: Array, zero: int, w: Array, bias: Array) -> Array:
    """[images, rows, channels] by definition: sums wrap like int32, results round half to even and saturate."""
    padded = np.zeros((case.images, case.pixels + 2 * case.pad, case.k), np.int64)
    padded[:, case.pad : case.pad + case.pixels] = x.astype(np.int64) - zero
    taps = [padded[:, t : t + case.rows] @ w[:, t].T.astype(np.int64) for t in range(case.taps)]
    acc = (sum(taps) + bias + 2**31) % 2**32 - 2**31
    if case.form == "i32":
        return acc.astype(np.int32)
    low, high = LIMITS[case.out]
    s = shifts(case)
    floor, rest = acc >> s, acc & ((1 << s) - 1)
    half = 1 << (s - 1)
    up = (rest > half) | ((rest == half) & (floor % 2 == 1))
    return np.clip(floor + up + case.zero, low, high).astype(TYPES[case.out])


def constants(case: Case, pick: Array) -> Array:
    """[panels, bytes] as forms.py and the epilogue lay them out."""
    s = np.append(shifts(case), 0)[pick]
    m = np.exp2(-s.astype(np.float64))
    if case.form in ("y32", "x32"):
        fields = [np.ones_like(m), m] + [np.full_like(m, -MAGIC)] * (case.form == "y32")
        return np.concatenate([field.astype(np.float32) for field in fields], axis=1).view(np.uint8)
    if case.form in ("f64", "ort"):
        return m.astype({"f64": np.float64, "ort": np.float32}[case.form]).view(np.uint8)
    if case.form == "table":
        want = np.arange(1, TABLE, dtype=np.int64) + LIMITS[case.out][0] - case.zero
        steps = np.full((*pick.shape, TABLE), 2**31 - 1, np.int64)
        steps[..., :-1] = (want << s[..., None]) - ((1 << s[..., None]) >> 1) + want % 2
        flips, caps = np.zeros(pick.shape, np.int64), np.full(pick.shape, TABLE - 1)
        rows = np.concatenate([steps.reshape(len(pick), -1), flips, caps], axis=1)
        return rows.astype(np.int32).view(np.uint8)
    return np.zeros((len(pick), 0), np.uint8)


class Memory:
    """Where arrays lie: anywhere, or against a guard page, as far as 64-byte alignment allows."""

    def __init__(self, guard: Guarded | None = None, at_end: bool = False) -> None:
        self.guard, self.at_end = guard, at_end

    def take(self, size: int, whole: bool = False) -> Array:
        """uint8 [size]. whole: its size is a multiple of 64, or no alignment is needed."""
        if self.guard is None:
            return aligned(size, np.uint8, 0)
        taken = size if whole else -(-size // 64) * 64
        return self.guard.take(taken if self.at_end else size, self.at_end)[:size]

    def keep(self, values: Array, whole: bool = False) -> Array:
        held = self.take(values.nbytes, whole)
        held[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return held


@dataclass(frozen=True)
class Tables:
    """What to copy, and where tiles are read from and go to."""

    gather: Array
    places: Array
    targets: Array
    words: dict[str, int]
    copied: int


def tables(case: Case, steps: int) -> Tables:
    rows = min(16, -(-case.rows // case.high))
    starts = np.minimum(np.arange(0, case.rows, rows), case.rows - rows)
    starts = np.append(starts, starts[-1:].repeat(-len(starts) % case.high)).reshape(-1, case.high)
    blocks = len(starts)
    chunk = -(-blocks // min(case.chunks, blocks))
    chunks = -(-blocks // chunk)
    targets = np.full((blocks, 16 * case.high), -1)
    targets[:, : rows * case.high] = (starts[..., None] + np.arange(rows)).reshape(blocks, -1)
    again = np.ones(targets.size, np.bool_)
    again[np.unique(targets, return_index=True)[1]] = False
    targets[again.reshape(targets.shape)] = -1
    words = {"blocks": blocks, "chunks": chunks, "chunk": chunk, "rows": rows}
    taps = np.arange(case.taps)[:, None]
    if not case.pad:
        places = (starts[:, None] + taps) * case.k
        return Tables(np.zeros((1, 0)), places, targets, words | {"line": case.k, "depth": 1}, 0)
    pitch = 64 * steps
    pixels = np.arange(-case.pad, case.pixels + case.pad)
    sources = np.where((pixels >= 0) & (pixels < case.pixels), pixels * case.k, -1)
    first = np.minimum.reduceat(starts[:, 0], np.arange(0, blocks, chunk))
    count = max(starts[chunk * n : chunk * (n + 1)].max() - f for n, f in enumerate(first)) + rows + case.taps - 1
    gather = np.stack([np.append(sources, np.full(count, -1))[f : f + count] for f in first])
    places = (starts[:, None] - first.repeat(chunk)[:blocks, None, None] + taps) * pitch
    words |= {"line": pitch, "pitch": pitch, "depth": case.k, "gathered": count}
    return Tables(gather, places, targets, words, int(count) * pitch)


def packed(w: Array, pick: Array, spec: KernelSpec, steps: int) -> Array:
    """int8 [N, taps, k] by panels and groups of vectors, zero where there is no channel or no k."""
    n, taps, k = w.shape
    whole = np.zeros((n + 1, taps, 64 * steps), np.int8)
    whole[:n, :, :k] = w
    parts = []
    for panel in pick.reshape(len(pick), -1, 16):
        for group in _amx.groups(spec):
            lanes = whole[panel[group].reshape(-1)]
            parts.append(lanes.reshape(len(lanes), -1, 4).transpose(1, 0, 2).reshape(-1))
    return np.concatenate(parts)


def call(
    case: Case, memory: Memory, given: tuple[Array, int, Array, Array], y: Array, span: tuple[int, int, int]
) -> int:
    """One kernel over `panels` panels of `vectors` vectors from channel `first`. Returns how much work it did."""
    x, zero, w, bias = given
    first, vectors, panels = span
    steps = -(-case.k // 64)
    kind = "amx_copy" if case.pad else "amx"
    spec = KernelSpec(kind, "amx", 16 * case.high, vectors, 1, case.form, case.out, case.signed, case.prefetch)
    lanes = np.arange(first, first + panels * vectors * 16)
    pick = np.where(lanes < case.channels, lanes, -1).reshape(panels, -1)
    table = tables(case, steps)
    start = np.append(bias, 0)[pick] - zero * np.append(w.sum(axis=(1, 2), dtype=np.int64), 0)[pick]
    start = start + MAGIC_BITS * (case.form == "y32")
    arrays = {
        "x*": x, "y*": y, "padding*": memory.keep(np.full(case.k, zero).astype(x.dtype), True),
        "gather*": memory.keep(table.gather.astype(np.int32), True),
        "places*": memory.keep(table.places.astype(np.int32), True),
        "targets*": memory.keep(table.targets.astype(np.int32), True),
        "weights*": memory.keep(packed(w, pick, spec, steps)),
        "bias*": memory.keep(((start + 2**31) % 2**32 - 2**31).astype(np.int32)),
        "constants*": memory.keep(constants(case, pick)),
    }  # fmt: skip
    shares = min(case.shares, panels)
    share = -(-panels // shares)
    shares = -(-panels // share)
    row = case.channels * case.itemsize + case.gap
    words = {
        **dict.fromkeys(_amx.ARGUMENTS, 0), **table.words, "taps": case.taps, "steps": steps,
        "panels": panels, "shares": shares, "share": share, "tiles": case.images * table.words["chunks"] * shares,
        "mask": (1 << int((pick[-1, -16:] >= 0).sum())) - 1, "zero_point!": case.zero,
        "x_image": case.pixels * case.k, "y_image": case.rows * row, "y_row": row,
    }  # fmt: skip
    assert constants(case, pick).shape[1] == BYTES[case.form] * vectors * 16
    struct = [arrays[name].ctypes.data if name in arrays else int(words[name]) for name in _amx.ARGUMENTS]
    struct[_amx.ARGUMENTS.index("y*")] += first * case.itemsize
    arguments, counter = np.array(struct, np.int64), np.zeros(8, np.int64)
    threads = min(4, case.shares * case.chunks)
    scratch = [memory.take(-(-_amx.scratch_bytes(spec, table.copied) // 64) * 64) for _ in range(threads)]
    did: list[int] = []

    def work(own: Array) -> None:
        did.append(engine("amx").kernels.get(spec)(arguments.ctypes.data, counter.ctypes.data, own.ctypes.data))

    helpers = [threading.Thread(target=work, args=(own,)) for own in scratch[1:]]
    for helper in helpers:
        helper.start()
    work(scratch[0])
    for helper in helpers:
        helper.join()
    assert sum(did) == words["tiles"]
    return sum(did)


def check(case: Case, seed: int = 0, memory: Memory | None = None) -> None:
    memory = memory or Memory()
    rng = np.random.default_rng(seed)
    kind = "s8" if case.signed else "u8"
    pixels = codes(rng, (case.images, case.pixels, case.k), kind)
    w = codes(rng, (case.channels, case.taps, case.k), "s8")
    zero = int(codes(rng, (), kind))
    if case.extreme:
        pixels[:], zero, w[::2], w[1::2] = 255 if kind == "u8" else -128, 0, 127, -128
    bias = rng.integers(-3000, 3000, case.channels)
    if case.form != "i32":
        bias -= ((pixels.mean() - zero) * w.sum(axis=(1, 2))).astype(np.int64)
    need = pixels.nbytes if case.pad else pixels.nbytes + -case.k % 64
    x = memory.take(need, True).view(TYPES[kind])
    x[: pixels.size] = pixels.reshape(-1)
    row = case.channels * case.itemsize + case.gap
    y = memory.take(case.images * case.rows * row - case.gap, True)
    y[:] = 0xA5
    full, left = divmod(-(-case.channels // 16), 4)
    spans = [(0, 4, full)] * (full > 0) + [(64 * full, left, 1)] * (left > 0)
    for span in spans:
        call(case, memory, (x, zero, w, bias), y, span)
    got = np.append(y, np.full(case.gap, 0xA5, np.uint8)).reshape(case.images, case.rows, row)
    values = np.ascontiguousarray(got[..., : row - case.gap]).view(TYPES.get(case.out, np.int32))
    want = exact(case, pixels, zero, w, bias)
    if case.form != "i32" and want.size > 1000:
        assert np.isin(want, LIMITS[case.out]).mean() < 0.6, (case, "most results saturate")
    assert np.array_equal(values, want), (case, seed, np.argwhere(values != want)[:3].tolist())
    assert (got[..., row - case.gap :] == 0xA5).all(), (case, "something beyond a row was written")


@needs_amx
@pytest.mark.parametrize("k", [1, 3, 4, 63, 64, 65, 200])
def test_tails_of_rows_and_k(k: int) -> None:
    for rows in (1, 15, 16, 17, 33, 70):
        for taps, pad in ((1, 0), (9, 0), (3, 1), (9, 4)):
            if rows + taps - 1 > 2 * pad:
                for high in (1, 2) if rows > 1 else (1,):
                    check(Case(rows, 20, k, taps, pad, high=high, signed=bool(rows % 2)), rows)


@needs_amx
@pytest.mark.parametrize("out", ["u8", "i32"])
def test_every_number_of_channels(out: str) -> None:
    form = "i32" if out == "i32" else "y32"
    for channels in [*range(1, 66), 112, 127, 128, 129, 190]:
        case = Case(19, channels, 9, form=form, out=out, gap=channels % 3, pad=channels % 2, taps=3)
        check(replace(case, high=1 + channels // 2 % 2), channels)


@needs_amx
@pytest.mark.parametrize("out", ["u8", "s8"])
@pytest.mark.parametrize("form", ["y32", "x32", "f64", "ort", "table"])
def test_every_form(form: str, out: str) -> None:
    for number, channels in enumerate((16, 23, 48, 64, 70)):
        for high in (1, 2):
            signed = bool((number + high) % 2)
            check(Case(21, channels, 40, 2, number % 2, 2, form, out, signed, high, gap=number % 2), number)


@needs_amx
@pytest.mark.parametrize("signed", [False, True])
def test_long_sums_wrap_like_int32(signed: bool) -> None:
    check(Case(33, 36, 70000, extreme=True, signed=signed))
    check(Case(18, 36, 1700, 3, 1, signed=signed))
    check(Case(18, 20, 64, 31, 2, signed=signed))


@needs_amx
def test_any_share_of_the_work_by_any_number_of_threads() -> None:
    for seed in range(6):
        for shares, chunks in ((1, 1), (3, 1), (1, 4), (2, 3), (9, 9)):
            case = Case(150, 260, 66, 3, seed % 2, 2, shares=shares, chunks=chunks, prefetch=seed % 3)
            check(replace(case, form="x32", out="u8") if seed % 2 else case, seed)


@needs_amx
@pytest.mark.parametrize("at_end", [True, False])
def test_nothing_beyond_the_buffers_is_touched(at_end: bool) -> None:
    memory = Memory(Guarded(), at_end)
    for rows in (1, 16, 17, 45):
        for channels in (1, 16, 33, 64, 79):
            for k, taps, pad in ((1, 1, 0), (64, 1, 0), (65, 3, 0), (3, 3, 1), (128, 5, 2)):
                for form, out in (("i32", "i32"), ("y32", "u8"), ("f64", "s8"), ("table", "u8")):
                    if rows + taps - 1 > 2 * pad and (form != "table" or rows == 17):
                        high = 1 if rows < 2 else 2
                        check(Case(rows, channels, k, taps, pad, 2, form, out, high=high, chunks=2), rows, memory)


def test_kernels_compile_on_any_machine() -> None:
    for kind in ("amx", "amx_copy"):
        for rows, vectors, out in ((16, 4, "u8"), (32, 3, "s8"), (32, 1, "i32")):
            spec = KernelSpec(kind, "amx", rows, vectors, 1, "i32" if out == "i32" else "y32", out, True, 2)
            assert blob_of(compile_object(_amx.AmxEmitter(spec, AMX).text(), AMX, flat=True))


def test_groups_fill_four_tiles_of_sums() -> None:
    spec = KernelSpec("amx", "amx", 32, 3, 1, "i32", "i32", False)
    assert _amx.groups(spec) == [range(2), range(2, 3)]
    assert _amx.groups(replace(spec, rows=16, vectors=4)) == [range(4)]


@pytest.mark.parametrize(("system", "machine"), [("linux", "aarch64"), ("win32", "x86_64"), ("darwin", "x86_64")])
def test_permission_is_asked_of_linux_on_x86_only(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert not permit_tiles.__wrapped__()
