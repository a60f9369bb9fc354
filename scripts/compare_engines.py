#!/usr/bin/env python3
"""Compare families of qrun.arithmetics with the engines that they describe, code by code.

    python scripts/compare_engines.py [ENGINE...] [--python ENGINE=PYTHON] [--venvs DIR] [--outputs N] [--probe DIR]

An engine runs in this Python, in the one that --python names, or in a virtual environment that --venvs makes and fills.
Each row of the table compares N or more codes of random scales, half of them of sums next to ties, with the family that
the engine is known for, and names the family that comes next. --probe DIR writes what each engine answers to the probe,
for `qrun probe --read`. Exit code 1 if a code differs, or an engine cannot run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qrun.arithmetics import FAMILIES, Scales
from qrun.arithmetics.primitives import fixed_point
from qrun.conform.processes import Processes
from qrun.conform.run import Runners
from qrun.conform.runtimes import runtime
from qrun.errors import QrunError
from qrun.probe.design import HIGH, LOW, REACH, Branch, signal
from qrun.probe.dumps import case
from qrun.probe.models import form_branches, is_unsigned

Array = np.ndarray[Any, np.dtype[Any]]
FOREIGN = Path(__file__).with_name("_foreign_engines.py")
SUMS, DIRECT = 1024, 16384
"""Sums of a branch: made by weights, or given to an operator that requantizes sums."""
LIMIT = 600.0


@dataclass(frozen=True)
class Way:
    """An operator of an engine, and the family that it computes.

    runtime: of qrun conform, with `how` a form of the probe; "" for an engine of scripts/_foreign_engines.py with `how`
    its way. rows: a scale of the weights for each row? near: sums next to ties too? symmetric: zero points of 0?
    direct: does the operator take sums, without weights?
    probe: the probe's form that the way answers, "" for none.
    """

    engine: str
    operator: str
    family: str
    how: str
    runtime: str = ""
    rows: bool = False
    near: bool = True
    symmetric: bool = False
    direct: bool = False
    probe: str = ""


def _litert() -> Iterator[Way]:
    families = {"ref": "tfl-double", "opt": "tfl-halfup2", "xnnpack": "fp32"}
    of_fc = {"ref": "f64-away", "opt": "tfl-halfup2-fc", "xnnpack": "fp32"}
    for kernels, family in families.items():
        yield Way("litert", f"CONV_2D {kernels}", family, f"conv {kernels}", rows=True, probe="qdq")
        yield Way("litert", f"DEPTHWISE_CONV_2D {kernels}", family, f"depthwise {kernels}", rows=True)
        yield Way("litert", f"FULLY_CONNECTED {kernels}", of_fc[kernels], f"fc {kernels}", probe="qlinear")


WAYS = (
    Way("onnxruntime", "QLinearConv", "fp32", "qlinear", "ort", rows=True, probe="qlinear"),
    Way("onnxruntime", "QLinearMatMul", "fp32", "matmul", "ort", probe="matmul"),
    Way("onnxruntime", "QDQ Conv uint8", "fp32", "qdq-uint8", "ort-optimized", probe="qdq-uint8"),
    Way("openvino", "QDQ Conv", "fp32-zp-last", "qdq", "openvino", near=False, probe="qdq"),
    Way("tract", "QLinearConv", "tract", "qlinear", "tract", probe="qlinear"),
    Way("tract", "QLinearConv per row", "q24-even-reciprocal", "qlinear", "tract", rows=True),
    Way("tract", "QLinearMatMul", "tract", "matmul", "tract", probe="matmul"),
    Way("iree", "QLinearConv", "fp32-two-truncated", "qlinear", "iree", probe="qlinear"),
    Way("iree", "tosa.rescale", "tfl-single", "SINGLE_ROUND", direct=True),
    Way("iree", "tosa.rescale", "tfl-double", "DOUBLE_ROUND", direct=True),
    *_litert(),
    Way("ncnn", "Requantize", "ncnn", "requantize", symmetric=True, direct=True),
    Way("ncnn", "Convolution int8", "ncnn", "conv", symmetric=True, probe="symmetric"),
    Way("tvm", "q_multiply_shift", "tfl-single", "q_multiply_shift", direct=True),
)
PACKAGES = {
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "tract": ("tract",),
    "iree": ("iree-base-compiler", "iree-base-runtime", "onnx"),
    "litert": ("ai-edge-litert",),
    "ncnn": ("ncnn",),
    "tvm": ("apache-tvm",),
}


def random_branches(way: Way, outputs: int) -> list[Branch]:
    """Branches with random scales: half the sums of each next to ties, unless the way is not exact there."""
    rng = np.random.default_rng(44)
    size = DIRECT if way.direct else SUMS
    return [_random_branch(way, f"b{number}", size, rng) for number in range(-(-outputs // size))]


def _random_branch(way: Way, name: str, size: int, rng: np.random.Generator) -> Branch:
    kind = rng.choice(["random", "powers of two", "decimal"])
    if kind == "powers of two":
        x, w, y = 2.0 ** -rng.integers(2, 6), 2.0 ** -rng.integers(6, 10), 2.0 ** -rng.integers(1, 4)
    elif kind == "decimal":
        x, w, y = rng.integers(1, 50) / 1000, rng.integers(1, 50) / 10000, rng.integers(10, 50) / 100
    else:
        x, w = rng.uniform(0.004, 0.05), rng.uniform(0.0005, 0.01)
        y = x * w * 2.0 ** rng.uniform(4, 12.5)
    scales = Scales(*(np.asarray(value, np.float32) for value in (x, w, y)))
    real = float(scales.x) * float(scales.w) / float(scales.y)
    sums = rng.uniform(-135, 135, size) / real
    if way.near:
        sums[::2] = (rng.integers(-128, 128, size // 2) + 0.5) / real
    sums = np.clip(np.rint(sums), -REACH + 1, REACH - 1).astype(np.int64)
    if way.rows:
        scales = replace(scales, w=np.full(size, scales.w))
    return Branch(name, scales, sums, 0 if way.symmetric else int(rng.integers(-30, 30)))


class Engine:
    """Runs branches in a way of an engine. python: of the engine."""

    def __init__(self, way: Way, python: str) -> None:
        self._way, self._python = way, python

    def run(self, branches: Sequence[Branch]) -> tuple[dict[str, Array], str]:
        """The codes by name, and the engine's version. Raises RuntimeError, QrunError."""
        return self._conform(branches) if self._way.runtime else self._foreign(branches)

    def _conform(self, branches: Sequence[Branch]) -> tuple[dict[str, Array], str]:
        with closing(Runners(Processes(), runtime(self._way.runtime), self._python)) as runner:
            answer = runner.run(case(self._way.how, branches), LIMIT)
            if answer.failed:
                raise RuntimeError(answer.message or answer.failed)
            return {name: array for name, array in answer.outputs.items() if array is not None}, runner.version

    def _foreign(self, branches: Sequence[Branch]) -> tuple[dict[str, Array], str]:
        with tempfile.TemporaryDirectory() as folder:
            jobs, answers = str(Path(folder, "jobs.npz")), str(Path(folder, "answers.npz"))
            np.savez(jobs, **dict(_job_arrays(branches, self._way.direct)))  # type: ignore[arg-type]
            command = [self._python or sys.executable, str(FOREIGN), self._way.engine, self._way.how, jobs, answers]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
            if done.returncode:
                raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
            made = dict(np.load(answers))
        return made, str(made.pop("/version"))


def _job_arrays(branches: Sequence[Branch], direct: bool) -> Iterator[tuple[str, Any]]:
    for branch in branches:
        scales = branch.scales
        real = np.float64(scales.x) * np.float64(np.ravel(scales.w)[0]) / np.float64(scales.y)
        q, shift = fixed_point(np.asarray(real), 31)
        arrays = {
            "x": signal(), "weights": None if direct else branch.weights, "sums": branch.sums, "sx": scales.x, "sw": scales.w,
            "sy": scales.y, "zero": branch.zero, "offset": branch.offset, "q": q, "shift": shift,
            "bias": branch.bias, "around": branch.around, "relu": branch.relu or None,
        }  # fmt: skip
        yield from ((f"{branch.name}/{key}", value) for key, value in arrays.items() if value is not None)


def compare(way: Way, python: str, outputs: int) -> tuple[list[str], bool]:
    """A row of the table, and whether no code differs."""
    branches = random_branches(way, outputs)
    made, version = Engine(way, python).run(branches)
    differing = dict.fromkeys(FAMILIES, 0)
    for branch in branches:
        got = made[branch.name].reshape(-1).astype(np.int64) - (128 if is_unsigned(way.how) else 0)
        for name, family in FAMILIES.items():
            want = family.codes(branch.sums, branch.scales, branch.zero, LOW, HIGH)
            differing[name] += int(np.count_nonzero(got != want))
    mine = differing.pop(way.family)
    other = min(differing, key=lambda name: differing[name])
    total = sum(branch.sums.size for branch in branches)
    cells = [way.engine, version, way.operator, way.family, str(total), str(mine), other, str(differing[other])]
    return cells, not mine


def write_probe(way: Way, python: str, folder: Path) -> None:
    """Write an engine's answer to the probe."""
    flat = way.symmetric or way.how.startswith("fc")
    known = [b for b in form_branches(way.probe) if not flat or b.around is None]
    made, _ = Engine(way, python).run(known)
    folder.mkdir(parents=True, exist_ok=True)
    words = f"{way.engine} {way.operator}".lower().replace(".", "-").replace("_", "-").split()
    np.savez(folder / f"{'-'.join(words)}.npz", **made)  # type: ignore[arg-type]


def install(engine: str, folder: Path) -> str:
    """A Python with the engine's packages, made if it is not there. Raises RuntimeError."""
    python = folder / engine / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / engine)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[engine]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pip install {' '.join(PACKAGES[engine])}: {done.stderr.strip().splitlines()[-1]}")
    return str(python)


HEAD = ("engine", "version", "operator", "family", "codes", "differ", "next family", "differ")
WIDTHS = (11, 22, 26, 19, 6, 6, 19, 6)


def show(cells: Sequence[str]) -> None:
    """Print a row of the table."""
    line = "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False))
    print(line.rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", nargs="*", help=f"{', '.join(PACKAGES)} (all)")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PYTHON", help="a Python that has it")
    parser.add_argument("--venvs", type=Path, help="make virtual environments here for engines without --python")
    parser.add_argument("--outputs", type=int, default=100_000, help="least number of codes to compare (100000)")
    parser.add_argument("--probe", type=Path, metavar="DIR", help="write each engine's answer to the probe here")
    options = parser.parse_args()
    if unknown := set(options.engine) - set(PACKAGES):
        parser.error(f"unknown engine {', '.join(sorted(unknown))}; expected {', '.join(PACKAGES)}")
    given: Mapping[str, str] = dict(each.split("=", 1) for each in options.python)
    good = True
    show(HEAD)
    for way in WAYS:
        if options.engine and way.engine not in options.engine:
            continue
        try:
            python = given.get(way.engine) or (install(way.engine, options.venvs) if options.venvs else "")
            row, same = compare(way, python, options.outputs)
            if options.probe and way.probe:
                write_probe(way, python, options.probe)
        except (RuntimeError, QrunError, subprocess.SubprocessError) as error:
            row, same = [way.engine, "", way.operator, way.family, str(error).splitlines()[0]], False
        show(row)
        good &= same
    sys.exit(not good)


if __name__ == "__main__":
    main()
