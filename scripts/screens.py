#!/usr/bin/env python3
"""Run every command that README.md and docs/ show, and write what it prints below it.

scripts/screens.py [PAGE...]; --check only compares, and exits 1 where a screen differs. A command stands in a
``console`` block behind ``$``. Those of a page run one after the other, in a folder that has models/ and the files of
`fill`. Times differ from run to run: a screen that differs in nothing else stays as it is.
A line ``...`` stands for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
LEFT_OUT = "..."
TIMED = re.compile(r"Whole model|Slowest nodes|By operator|[\d.]+ \w+ a run")
"""How sections begin that hold times and what follows from them."""
UNSTEADY = re.compile(r"\d[\d.,]* (ms|us|s|runs?|rules|CPUs?|threads?)\b|\d[\d.]* [kM]B(?=, no network)|\b\d\d\.\d KiB")
"""Times, what follows from them, and how many rules there are: one more leaves the pages as they are."""
BUSY = re.compile(r"\n+ *note: the machine is busy.*?(?=\n\n|\Z)", re.S)
FAILED = re.compile(r"^(error |failed:|too noisy:|differ\b|differ:)", re.M)


class Shown(NamedTuple):
    """A command of a page, and the lines that stand below it."""

    command: str
    lines: list[str]


def commands(block: str) -> list[Shown]:
    """Those of the text of one block."""
    found: list[Shown] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Shown(line[2:], []))
        elif found:
            found[-1].lines.append(line)
    return found


def shown(page: Path) -> list[Shown]:
    return [each for block in BLOCK.findall(page.read_text(encoding="utf-8")) for each in commands(block)]


def fill(folder: Path) -> None:
    """The files that the pages name: models/, an input of another layout and type, a model with a scale too short."""
    shutil.copytree(ROOT / "models", folder / "models")
    images = np.load(folder / "models" / "digits" / "x.npy")
    np.save(folder / "nhwc.npy", images.transpose(0, 2, 3, 1).astype(np.float64))
    stored = {
        "x_scale": np.float32(0.1),
        "x_zero_point": np.uint8(0),
        "w": np.ones((16, 3, 3, 3), np.int8),
        "w_scale": np.full(3, 0.01, np.float32),
        "w_zero_point": np.int8(0),
        "y_scale": np.float32(0.1),
        "y_zero_point": np.uint8(0),
    }
    conv = helper.make_node("QLinearConv", ["x", *stored, "bias"][:-1], ["y"], name="/stem/conv")
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.UINT8, ["N", c, s, s]) for n, c, s in (("x", 3, 8), ("y", 16, 6))
    )
    graph = helper.make_graph([conv], "det", [x], [y], values)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / "det.onnx")


def run(command: str, folder: Path) -> tuple[int, str]:
    """The exit code, and stdout, or what is on stderr where that is empty: 100 columns, without colour.

    Notes on stderr beside an answer are left out, as some tell that the machine is busy.
    """
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("GITHUB_", "GITLAB_")) and k not in ("CI", "QRUN_MAX_MEMORY")
    }
    env = {
        **kept,
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    program, *words = shlex.split(command, comments=True)
    if program != "qrun":
        raise ValueError(f"not a command of qrun: {command}")
    into = folder / words[-1] if ">" in words[-2:-1] else None
    words = words[:-2] if into else words
    done = subprocess.run([sys.executable, "-m", "qrun", *words], cwd=folder, env=env, capture_output=True, timeout=300)
    if into:
        into.write_bytes(done.stdout)
    text = (b"" if into and not done.returncode else done.stdout or done.stderr).decode("utf-8")
    return done.returncode, BUSY.sub("", "\n".join(line.rstrip() for line in text.splitlines()))


def steady(lines: Sequence[str]) -> list[str]:
    """The lines without times; of a section that holds nothing else its first word."""
    found: list[str] = []
    for between, group in groupby(lines, key=lambda line: line.strip() in ("", LEFT_OUT)):
        section = [line.rstrip() for line in group]
        if between:
            found += [LEFT_OUT] * (LEFT_OUT in section)
            continue
        timed = TIMED.match(section[0])
        found += [UNSTEADY.sub("#", f"{timed[0]} ...")] if timed else [UNSTEADY.sub("#", line) for line in section]
    return found


def same(lines: Sequence[str], printed: str) -> bool:
    """Is this what stands on the page, but for times?"""
    pattern = "".join(r"(?:.*\n)*?" if line == LEFT_OUT else re.escape(line) + r"\n" for line in steady(lines))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in steady(printed.splitlines()))) is not None


def differing(page: Path, folder: Path) -> Iterator[tuple[Shown, str, str]]:
    """(what is shown, what is printed, what is wrong) for the commands of a page that fail, or print something else."""
    for each in shown(page):
        code, printed = run(each.command, folder)
        text = "\n".join(each.lines)
        if (code != 0) != bool(FAILED.search(text)):
            yield each, printed, f"ends with {code}"
        elif text.strip() and not same(each.lines, printed):
            yield each, printed, "prints something else"


def main(arguments: Sequence[str]) -> int:
    check, wrong = "--check" in arguments, 0
    pages = [Path(word).resolve() for word in arguments if word != "--check"] or PAGES
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder))
            text = page.read_text(encoding="utf-8")
            for each, printed, what in differing(page, Path(folder)):
                by_hand = LEFT_OUT in each.lines
                print(
                    f"{page.name}: $ {each.command}\n  {what}{', to be changed by hand' if by_hand else ''}",
                    file=sys.stderr,
                )
                if check or by_hand:
                    wrong += 1
                    print(printed, file=sys.stderr)
                    continue
                end = "\n" if each.lines and not each.lines[-1] else ""
                old = "\n".join([f"$ {each.command}", *each.lines]) + "\n"
                text = text.replace(old, f"$ {each.command}\n{printed}\n{end}", 1)
            if not check:
                page.write_text(text, encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
