#!/usr/bin/env python3
"""Run every command that README.md and docs/ show, and write what it prints below it.

scripts/screens.py [PAGE...] writes each screen that differs; --check only compares, and exits 1 where one differs.
A command stands in a ``console`` block behind ``$``: qrun, python or pytest. Those of a page run one after the other,
in a folder that has the files of `fill` and every block of the page that begins with its file name in a comment, as
``# quantize.py``; JSON has no comments, so it loses this line. Times differ from run to run: a screen that differs in
nothing else stays as it is.
Above a block, ``<!-- show: first | Keep in float -->`` picks the sections of its screens: the first, and those whose
first line has these words. A line ``...`` stands for what was left out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import _decoder
import _device
import numpy as np
from onnx import ModelProto, TensorProto, helper, load, numpy_helper, save

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- show: (?P<show>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
FILE = re.compile(r"# ([\w./-]+\.\w+)\b.*\n")
PROGRAMS = {"qrun": ["-m", "qrun"], "pytest": ["-m", "pytest"], "python": []}
LEFT_OUT = "..."
TIMED = re.compile(r"Whole model|Slowest nodes|By operator|[\d.]+ \w+ a run")
"""How sections begin that hold times and what follows from them."""
UNSTEADY = re.compile(
    r"\d[\d.,]* (ms|us|s|runs?|rules|CPUs?|threads?)\b|\bin \d+\.\d+s\b|\d[\d.]* [kM]B(?=, no network)|\b\d\d\.\d KiB"
)
"""Times, what follows from them, and how many rules there are: one more leaves the pages as they are."""
BUSY = re.compile(r"\n+ *note: the machine is busy.*?(?=\n\n|\Z)", re.S)


class Shown(NamedTuple):
    """A command of a page, the lines below it, and which sections of the screen these are: all if ``show`` is empty."""

    command: str
    lines: list[str]
    show: tuple[str, ...] = ()


class File(NamedTuple):
    """A file that a page shows, to be written before the commands that follow."""

    name: str
    text: str


def commands(block: str, show: str) -> list[Shown]:
    """The commands of one console block."""
    words = tuple(word.strip() for word in show.split("|") if word.strip())
    found: list[Shown] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Shown(line[2:], [], words))
        elif found:
            found[-1].lines.append(line)
    return found


def steps(page: Path) -> Iterator[File | Shown]:
    """Files and commands of a page, in order."""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["kind"] == "console":
            yield from commands(block["text"], block["show"] or "")
        elif name := FILE.match(block["text"]):
            text = block["text"]
            yield File(name[1], text[name.end() :] if name[1].endswith(".json") else text)


def shown(page: Path) -> list[Shown]:
    return [step for step in steps(page) if isinstance(step, Shown)]


def excerpt(printed: str, show: Sequence[str]) -> str:
    """The sections that ``show`` names. Raises ValueError, which lists the sections, if there is no such section."""
    if not show:
        return printed
    sections = re.split(r"\n{2,}", printed.strip("\n"))
    heads = [section.partition("\n")[0] for section in sections]
    words = [word for word in show if word != "first"]
    missing = [word for word in words if not any(word in head for head in heads)]
    if missing:
        raise ValueError(f"no section {' | '.join(missing)} among {' | '.join(head.strip() for head in heads)}")
    kept = [i for i, head in enumerate(heads) if (i == 0 and "first" in show) or any(word in head for word in words)]
    parts, last = [], -1
    for i in kept:
        parts += [LEFT_OUT if i > last + 1 else "", sections[i]]
        last = i
    return "\n".join([*parts[0 if kept[0] else 1 :], *([LEFT_OUT] if last + 1 < len(sections) else [])])


def fill(folder: Path) -> None:
    """The files that the pages name: models/, short names for the digits, a language model; the others are damaged or
    do not fit."""
    digits = folder / "models" / "digits"
    shutil.copytree(ROOT / "models", folder / "models")
    shutil.copy(digits / "float" / "model.onnx", folder / "float.onnx")
    shutil.copy(digits / "qdq" / "model.onnx", folder / "int8.onnx")
    shutil.copy(digits / "x.npy", folder / "x.npy")
    images = np.load(folder / "x.npy")
    np.save(folder / "nhwc.npy", images.transpose(0, 2, 3, 1).astype(np.float64))
    save(without_relu(load(folder / "int8.onnx")), folder / "bad.onnx")
    save(short_scale(), folder / "det.onnx")
    save(with_clamp(load(folder / "float.onnx")), folder / "vendor.onnx")
    _decoder.write(folder)
    _device.write(folder / "dump", str(folder / "int8.onnx"), images)


def without_relu(model: ModelProto) -> ModelProto:
    """The quantized digits with a range for c2 that is not the Relu's, and too small a one for the logits."""
    factors = {"c2_scale": (2, 0), "c2_zero_point": (1, 128), "logits_scale": (0.4, 0)}
    for tensor in model.graph.initializer:
        if tensor.name in factors:
            factor, offset = factors[tensor.name]
            value = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array((value * factor + offset).astype(value.dtype), tensor.name))
    return model


def with_clamp(model: ModelProto) -> ModelProto:
    """The digits with an operator of a vendor in place of the first Relu."""
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    clamp = helper.make_node("Clamp", relu.input, relu.output, relu.name, domain="com.acme", most=2.0)
    relu.CopyFrom(clamp)
    model.opset_import.add(domain="com.acme", version=1)
    return model


def short_scale() -> ModelProto:
    """A QLinearConv of 16 output channels whose w_scale has 3 elements."""
    stored = {
        "x_scale": np.float32(0.1),
        "x_zero_point": np.uint8(0),
        "w": np.ones((16, 3, 3, 3), np.int8),
        "w_scale": np.full(3, 0.01, np.float32),
        "w_zero_point": np.int8(0),
        "y_scale": np.float32(0.1),
        "y_zero_point": np.uint8(0),
    }
    conv = helper.make_node("QLinearConv", ["x", *stored], ["y"], name="/stem/conv")
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.UINT8, ["N", c, s, s]) for n, c, s in (("x", 3, 8), ("y", 16, 6))
    )
    graph = helper.make_graph([conv], "det", [x], [y], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


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
    into = folder / words[-1] if ">" in words[-2:-1] else None
    words = words[:-2] if into else words
    done = subprocess.run(
        [sys.executable, *PROGRAMS[program], *words], cwd=folder, env=env, capture_output=True, timeout=300
    )
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


WIDER = re.compile(r"^  wider terminal or --json: (.*)$", re.M)
"""The columns that did not fit below a table."""


def heads(text: str, without: Iterable[str] = ()) -> list[list[str]]:
    """The heads of tables: lines of columns without a number. All else that `qrun profile` prints depends on times, and
    so does which columns fit. without: columns to leave out."""
    lines = (line for line in text.splitlines() if not re.search(r"\b\d", line) and not WIDER.match(line))
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    return [[name for name in row if name not in without] for row in rows if len(row) > 2]


def fits(each: Shown, printed: str) -> bool:
    if each.command.startswith("qrun profile"):
        shown = "\n".join(each.lines)
        cut = [name for text in (shown, printed) for names in WIDER.findall(text) for name in names.split(", ")]
        return heads(shown, cut) == heads(printed, cut)
    return same(each.lines, printed)


def differing(page: Path, folder: Path) -> Iterator[tuple[Shown, str, str]]:
    """(what is shown, what is printed, what is wrong) for the commands of a page that fail, or print something else."""
    for each in steps(page):
        if isinstance(each, File):
            (folder / each.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / each.name).write_text(each.text, encoding="utf-8")
            continue
        code, printed = run(each.command, folder)
        text = "\n".join(each.lines)
        try:
            printed = excerpt(printed, each.show)
        except ValueError as error:
            yield each, text, str(error)
            continue
        if code and not text.strip():
            yield each, printed, f"ends with {code}"
        elif text.strip() and not fits(each, printed):
            yield each, printed, "prints something else"


def rewrite(page: Path, check: bool) -> bool:
    """Whether the page is right in the end. check: leave it as it is."""
    right, text = True, page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        for each, printed, what in differing(page, Path(folder)):
            print(f"{page.name}: $ {each.command}\n  {what}", file=sys.stderr)
            right = right and not check and not what.startswith("no section")
            end = "\n" if each.lines and not each.lines[-1] else ""
            old = "\n".join([f"$ {each.command}", *each.lines]) + "\n"
            text = text.replace(old, f"$ {each.command}\n{printed.rstrip()}\n{end}", 1)
    if not check:
        page.write_text(text, encoding="utf-8")
    return right


def main(arguments: Sequence[str]) -> int:
    pages = [Path(word).resolve() for word in arguments if word != "--check"] or PAGES
    right = [rewrite(page, "--check" in arguments) for page in pages]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
