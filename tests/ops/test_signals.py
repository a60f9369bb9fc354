"""DFT, STFT, windows and MelWeightMatrix: against their sums and formulas, beside onnxruntime."""

from __future__ import annotations

import cmath
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, qrun_node

import qrun

F, H, D, BF = np.float32, np.float16, np.float64, ml_dtypes.bfloat16
I64 = np.int64


def near(got: np.ndarray, want: Any, note: str = "") -> None:
    """onnx.reference computes in the type of the inputs."""
    tolerance = {F: 1e-5, D: 1e-12}.get(got.dtype.type, 2e-2)
    np.testing.assert_allclose(got.astype(D), want, tolerance, tolerance, err_msg=note)


def transform(line: list[complex], length: int, sign: int) -> list[complex]:
    """The sums of the definition, one by one."""
    kept = (line + [0j] * length)[:length]
    unit = sign * 2j * math.pi / length
    return [
        complex(
            math.fsum((cmath.exp(unit * ((k * n) % length)) * x).real for n, x in enumerate(kept)),
            math.fsum((cmath.exp(unit * ((k * n) % length)) * x).imag for n, x in enumerate(kept)),
        )
        for k in range(length)
    ]


def parts(x: np.ndarray) -> np.ndarray:
    wide = x.astype(D)
    return wide[..., 0] + (1j * wide[..., 1] if x.shape[-1] == 2 else 0)


@pytest.mark.parametrize("dtype", [F, H, D, BF])
def test_dft_against_its_sums(dtype: Any) -> None:
    for seed in range(24):
        rng = np.random.default_rng(seed)
        shape = tuple(int(n) for n in rng.integers(1, 7, 3))
        onesided, inverse = seed % 3 == 0, seed % 2
        x = rng.normal(size=(*shape, 1 if onesided and not inverse else 1 + seed % 2)).astype(dtype)
        axis = int(rng.integers(0, 3))
        length = None if seed % 4 == 1 and not (onesided and inverse) else int(rng.integers(2, 9))
        count = length or shape[axis]
        lines = np.moveaxis(parts(x), axis, -1)
        if onesided and inverse:
            lines = np.stack([np.zeros_like(lines[..., 0])] * count, -1)
            given = np.moveaxis(parts(x), axis, -1)
            for k in range(min(count // 2 + 1, given.shape[-1])):
                lines[..., k] = given[..., k] if k and 2 * k != count else given[..., k].real
                if k and 2 * k != count:
                    lines[..., count - k] = given[..., k].conj()
        made = np.array(
            [transform(list(line), count, 1 if inverse else -1) for line in lines.reshape(-1, lines.shape[-1])]
        ).reshape(*lines.shape[:-1], count) / (count if inverse else 1)
        if onesided and not inverse:
            made = made[..., : count // 2 + 1]
        made = np.moveaxis(made, -1, axis)
        want = np.stack([made.real] if onesided and inverse else [made.real, made.imag], axis=-1)
        attributes: dict[str, Any] = {"onesided": int(onesided), "inverse": inverse}
        size = None if length is None else np.array(length, I64)
        got = qrun_node("DFT", [x, size, np.array(axis, I64)], attributes, opset=20)
        near(got, want, f"seed {seed}")
        old = qrun_node("DFT", [x, size], {**attributes, "axis": axis}, opset=17)
        assert old.tobytes() == got.tobytes()


def test_dft_and_stft_beside_onnxruntime() -> None:
    peer = Peer()
    rng = np.random.default_rng(1)
    for number, length in enumerate((4, 5, 8, 12)):
        x = rng.normal(size=(2, length, 1 + number % 2)).astype(F)
        peer.check("DFT", [x, None, np.array(1, I64)], {"inverse": number // 2}, message=f"length {length}", rtol=1e-4,
                   atol=1e-4, opset=20)  # fmt: skip
        signal = rng.normal(size=(2, 30, 1)).astype(F)
        inputs = [signal, np.array(3, I64), rng.normal(size=length).astype(F), np.array(length, I64)]
        peer.check("STFT", inputs, {"onesided": number % 2}, message=f"frames of {length}", rtol=1e-4, atol=1e-4)
    peer.finish(0.9)


@pytest.mark.parametrize("dtype", [F, D])
def test_stft_is_dft_of_frames(dtype: Any) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        onesided = seed % 2
        signal = rng.normal(size=(2, 17, 1 if onesided else 1 + seed // 2 % 2)).astype(dtype)
        length, step = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        window = rng.normal(size=length).astype(dtype) if seed % 3 else None
        size = np.array(length, I64) if window is None or seed % 5 else None
        got = qrun_node("STFT", [signal, np.array(step, I64), window, size], {"onesided": onesided})
        weights = np.ones(length) if window is None else window.astype(D)
        bins = length // 2 + 1 if onesided else length
        frames = (17 - length) // step + 1
        assert got.shape == (2, frames, bins, 2)
        for b, frame in np.ndindex(2, frames):
            line = parts(signal)[b, frame * step : frame * step + length] * weights
            made = transform(list(line), length, -1)[:bins]
            near(got[b, frame], [[y.real, y.imag] for y in made], f"seed {seed}")


WINDOWS = {
    "HannWindow": lambda t: 0.5 - 0.5 * math.cos(t),
    "HammingWindow": lambda t: 25 / 46 - 21 / 46 * math.cos(t),
    "BlackmanWindow": lambda t: 0.42 - 0.5 * math.cos(t) + 0.08 * math.cos(2 * t),
}


@pytest.mark.parametrize("op_type", WINDOWS)
def test_windows(op_type: str) -> None:
    peer = Peer()
    for size in (2, 5, 16):
        for periodic in (0, 1):
            for number, dtype in ((1, F), (10, H), (11, D), (16, BF)):
                attributes = {"periodic": periodic, "output_datatype": number}
                got = qrun_node(op_type, [np.array(size, I64)], attributes, outputs=[dtype])
                last = max(size if periodic else size - 1, 1)
                near(got, [WINDOWS[op_type](2 * math.pi * n / last) for n in range(size)], str(size))
            whole = qrun_node(op_type, [np.array(size, np.int32)], {"output_datatype": 6, "periodic": periodic},
                              outputs=[np.int32])  # fmt: skip
            assert set(whole.tolist()) <= {0, 1}
            peer.check(op_type, [np.array(size, I64)], {"periodic": periodic}, message=str(size), outputs=[F])
    peer.finish(1.0)


def test_mel_weights() -> None:
    """Each band rises from 0 at its first edge to 1 at its second and falls to 0 at its third."""
    peer = Peer()
    for bands, length, rate, low, high in ((8, 16, 8192, 0.0, 4096.0), (4, 30, 16000, 20.0, 7000.0)):
        inputs = [np.array(n, I64) for n in (bands, length, rate)] + [F(low), F(high)]
        got = qrun_node("MelWeightMatrix", inputs, {"output_datatype": 11}, outputs=[D])
        ends = [2595 * math.log10(1 + f / 700) for f in (low, high)]
        hertz = [700 * (10 ** ((ends[0] + n * (ends[1] - ends[0]) / (bands + 2)) / 2595) - 1) for n in range(bands + 2)]
        edges = [math.floor((length + 1) * f / rate) for f in hertz]
        for band, row in np.ndindex(bands, length // 2 + 1):
            first, peak, last = edges[band : band + 3]
            share = 1.0 if row == peak else (row - first) / (peak - first) if first <= row < peak else 0.0
            share = (last - row) / (last - peak) if peak < row < last else share
            assert abs(got[row, band] - share) < 1e-12, (band, row)
        peer.check("MelWeightMatrix", inputs, message=f"{bands} bands", outputs=[F])
    peer.finish(1.0)


def test_what_is_refused() -> None:
    with pytest.raises(qrun.QrunError, match="Invalid number of FFT data points"):
        qrun_node("DFT", [np.ones((2, 6, 1), F), np.array(0)], opset=20)


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("HannWindow", [np.array(1 << 40)]),
        ("MelWeightMatrix", [np.array(1 << 30), np.array(1 << 30), np.array(9), F(0), F(4)]),
        ("DFT", [np.ones((2, 6, 1), F), np.array(1 << 40)]),
        ("STFT", [np.ones((1, 1 << 20, 1), F), np.array(1), None, np.array(1 << 19)]),
    ],
)
def test_results_that_are_too_large_are_not_begun(op_type: str, inputs: list[Any]) -> None:
    with pytest.raises(qrun.MemoryLimitError):
        qrun_node(op_type, inputs, opset=20, outputs=[F])
