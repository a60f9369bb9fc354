"""Signals: DFT, STFT, windows and MelWeightMatrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qrun.ir.types import DTYPES, type_name
from qrun.ops._float import axis_in, is_integer, narrow, widen
from qrun.ops._op import Array, Context, misfit, op, refuse
from qrun.ops._shape import claim, scalar

_MEL = 2595.0


@op("DFT", since=17)
def dft_17(
    input: Array,
    dft_length: Array | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
    ctx: Context,
) -> Array:
    """As DFT-20, with the axis as an attribute. Source: ONNX operators, DFT-17."""
    return _dft(input, dft_length, axis, bool(inverse), bool(onesided), ctx)


@op("DFT", since=20)
def dft(
    input: Array,
    dft_length: Array | None = None,
    axis: Array | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    ctx: Context,
) -> Array:
    """y[k] = sum over n of exp(-2 pi j k n / N) x[n] along an axis; inverse: with +, divided by N.

    input [...,1] real or [...,2] real and imaginary parts, floating point. dft_length: N; shorter signals are continued
    with 0, longer ones cut. onesided: k up to N / 2 only, of a real signal; inverse and onesided: those k are given,
    and the result is real [...,1]. In float64 and rounded once: within 4 log2(N) + 8 units of 2**-53 of the largest |y|
    before that. Raises OperatorError for another last axis, an axis that does not exist,
    and a complex signal that is onesided.
    """
    place = -2 if axis is None else int(scalar(axis, "axis"))
    return _dft(input, dft_length, place, bool(inverse), bool(onesided), ctx)


def _dft(x: Array, dft_length: Array | None, axis: int, inverse: bool, onesided: bool, ctx: Context) -> Array:
    place = axis_in(axis, x.ndim)
    _check_parts(x, "input")
    if place == x.ndim - 1:
        raise refuse("the axis is that of the parts", "axis", f"0 to {x.ndim - 2}", str(axis), code="QR204")
    if onesided and not inverse and x.shape[-1] == 2:
        raise refuse("a complex signal is onesided", "onesided", "0 for complex input", "1", code="QR204")
    size = 2 * (x.shape[place] - 1) if inverse and onesided else x.shape[place]
    length = size if dft_length is None else int(scalar(dft_length, "dft_length"))
    if length < 1:
        raise refuse(f"the length is {length}", "dft_length", "1 or more", str(length))
    kept = length // 2 + 1 if onesided and not inverse else length
    shape = (*x.shape[:place], kept, *x.shape[place + 1 : -1], 1 if inverse and onesided else 2)
    claim(ctx, (*shape[:-1], 4), np.dtype(np.float64), "dft_length")
    wide = _complex(x)
    with np.errstate(all="ignore"):
        if inverse and onesided:
            return narrow(np.fft.irfft(wide, length, axis=place)[..., None], x.dtype)
        made = (np.fft.ifft if inverse else np.fft.fft)(wide, length, axis=place)
    made = made[(slice(None),) * place + (slice(kept),)]
    return narrow(np.stack([made.real, made.imag], axis=-1), x.dtype)


def _complex(x: Array) -> Array:
    wide = widen(x)
    return np.asarray(wide[..., 0] + (0j if x.shape[-1] == 1 else 1j * wide[..., 1]))


def _check_parts(x: Array, name: str) -> None:
    if x.ndim < 2 or x.shape[-1] not in (1, 2):
        raise misfit(f"{name} has no parts", name, "[...,1] real, or [...,2] real and imaginary", x)


@op("STFT", since=17)
def stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
    ctx: Context,
) -> Array:
    """DFT of frames of frame_length elements, frame_step apart, times the window: [B,frames,bins,2].

    signal [B,length,1] real, or [B,length,2]; window [frame_length], ones where it is left out, and frame_length the
    window's or the signal's. bins: frame_length / 2 + 1 if onesided, else frame_length. In float64, as DFT.
    Raises OperatorError for shapes and lengths that do not fit, and a complex signal that is onesided.
    """
    if signal.ndim != 3:
        raise misfit("the signal has no batch", "signal", "[batch,length,1] or [batch,length,2]", signal)
    _check_parts(signal, "signal")
    length = signal.shape[1] if window is None else window.size
    length = length if frame_length is None else int(scalar(frame_length, "frame_length"))
    step = int(scalar(frame_step, "frame_step"))
    if window is not None and window.shape != (length,):
        raise misfit("the window has another length", "window", f"[{length}]", window)
    if step < 1 or not 1 <= length <= signal.shape[1]:
        expected = f"a step of 1 or more, a length of 1 to {signal.shape[1]}"
        raise misfit("the frames do not fit", "frame_step", expected, f"step {step}, length {length}")
    if onesided and signal.shape[2] == 2:
        raise refuse("a complex signal is onesided", "onesided", "0 for complex input", "1", code="QR204")
    frames = (signal.shape[1] - length) // step + 1
    bins = length // 2 + 1 if onesided else length
    claim(ctx, (signal.shape[0], frames, length, 4), np.dtype(np.float64), "frame_length")
    cut = np.stack([_complex(signal)[:, i * step : i * step + length] for i in range(frames)], axis=1)
    with np.errstate(all="ignore"):
        made = np.fft.fft(cut if window is None else cut * widen(window), axis=2)[..., :bins]
    return narrow(np.stack([made.real, made.imag], axis=-1), signal.dtype)


@op("HannWindow", since=17)
def hann_window(size: Array, *, output_datatype: int = 1, periodic: int = 1, ctx: Context) -> Array:
    """0.5 - 0.5 cos(2 pi n / N), N = size if periodic, else size - 1; in float64, rounded once, integers toward 0.

    Raises OperatorError for a negative size and a type that is no number.
    """
    return _window(size, (0.5, 0.5, 0.0), output_datatype, periodic, ctx)


@op("HammingWindow", since=17)
def hamming_window(size: Array, *, output_datatype: int = 1, periodic: int = 1, ctx: Context) -> Array:
    """25/46 - 21/46 cos(2 pi n / N), as HannWindow."""
    return _window(size, (25 / 46, 21 / 46, 0.0), output_datatype, periodic, ctx)


@op("BlackmanWindow", since=17)
def blackman_window(size: Array, *, output_datatype: int = 1, periodic: int = 1, ctx: Context) -> Array:
    """0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N), as HannWindow."""
    return _window(size, (0.42, 0.5, 0.08), output_datatype, periodic, ctx)


def _window(size: Array, parts: tuple[float, float, float], number: int, periodic: int, ctx: Context) -> Array:
    kind, count = _output_type(number), int(scalar(size, "size"))
    if count < 0:
        raise misfit(f"the size is {count}", "size", "0 or more", str(count))
    claim(ctx, (count,), np.dtype(np.float64), "size")
    turns = np.arange(count) / max(count if periodic else count - 1, 1)
    made = parts[0] - parts[1] * np.cos(2 * np.pi * turns) + parts[2] * np.cos(4 * np.pi * turns)
    return made.astype(kind) if is_integer(kind) else narrow(made, kind)


def _output_type(number: int) -> np.dtype[Any]:
    kind = DTYPES.get(number)
    if kind is None or type_name(kind) not in _NUMBERS:
        raise refuse(
            "the type is no number", "output_datatype", "an integer or floating-point type", number, code="QR203"
        )
    return kind


_NUMBERS = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
    ctx: Context,
) -> Array:
    """Triangles of height 1, evenly apart on the mel scale 2595 log10(1 + f / 700): [dft_length / 2 + 1, num_mel_bins].

    Edges between lower_edge_hertz and upper_edge_hertz, each at the bin floor((dft_length + 1) f / sample_rate). In
    float64 and rounded once; integers toward 0. Raises OperatorError for numbers that make no such bins.
    """
    kind = _output_type(output_datatype)
    bands, length, rate = (
        int(scalar(x, name))
        for x, name in ((num_mel_bins, "num_mel_bins"), (dft_length, "dft_length"), (sample_rate, "sample_rate"))
    )
    low, high = (float(widen(x).reshape(-1)[0]) for x in (lower_edge_hertz, upper_edge_hertz))
    rows = length // 2 + 1
    if bands < 1 or length < 1 or rate < 1 or not 0 <= low <= high < math.inf:
        got = f"{bands} bands, length {length}, rate {rate}, {low} to {high} Hz"
        raise refuse("the bands do not fit", "num_mel_bins", "positive numbers, 0 <= lower <= upper edge", got)
    made = np.zeros(claim(ctx, (rows, bands), np.dtype(np.float64), "num_mel_bins"))
    least, most = (_MEL * math.log10(1 + f / 700) for f in (low, high))
    mel = np.arange(bands + 2) * ((most - least) / (bands + 2)) + least
    edges = np.floor((length + 1) * (700 * (10 ** (mel / _MEL) - 1)) / rate).astype(np.int64)
    for band in range(bands):
        first, peak, last = (int(n) for n in edges[band : band + 3])
        rising = np.arange(first, min(peak + 1, rows))
        falling = np.arange(peak, min(last, rows))
        made[rising, band] = 1.0 if peak == first else (rising - first) / (peak - first)
        if last > peak:
            made[falling, band] = (last - falling) / (last - peak)
    return made.astype(kind) if is_integer(kind) else narrow(made, kind)
