"""Exports of models, the C programs in them, and what a reader who knows only the manifest makes of their files."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from helpers.cli import call

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "models" / "digits"
SCHEMA = json.loads((ROOT / "qrun" / "schemas" / "export-1.0.json").read_text(encoding="utf-8"))
COMPILERS = [name for name in ("gcc", "clang", "cc") if shutil.which(name)]


def export(model: Path, folder: Path, *words: str, x: Path = DIGITS / "x.npy") -> dict[str, Any]:
    """The manifest of an export that succeeds."""
    ended = call("export", model, "-i", x, "-o", folder, *words)
    assert ended.code == 0, ended.err + ended.out
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="ascii"))
    jsonschema.validate(found, SCHEMA)
    return found


def run_c(folder: Path, compiler: str = (COMPILERS or ["cc"])[0]) -> tuple[int, list[str]]:
    """Compile and run the program in a folder: its exit code, and its lines."""
    program = folder / "check"
    sources = sorted(map(str, folder.glob("*.c")))
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
    made = subprocess.run([compiler, *flags, "-I", folder, *sources, "-o", program], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[:2000]
    ended = subprocess.run([program], capture_output=True, text=True)
    return ended.returncode, ended.stdout.splitlines()


def split(text: str, array: str) -> tuple[str, str, str]:
    """A header before, inside and after the values of an array."""
    start = text.index(f"_{array}[] = {{\n") + len(f"_{array}[] = {{\n")
    end = text.index("};", start)
    return text[:start], text[start:end], text[end:]


def tensors(made: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return ((layer, each) for layer in made["layers"] for each in layer["tensors"])


def read(folder: Path, tensor: dict[str, Any], form: str) -> Array:
    """A tensor of an export, as a reader who knows only the manifest reads it."""
    dtype = np.dtype(tensor["dtype"])
    if form == "raw":
        flat = np.fromfile(folder / tensor["file"], dtype.newbyteorder("<"))
    else:
        bits = 8 * dtype.itemsize
        values = [int(line, 16) for line in (folder / tensor["file"]).read_text(encoding="ascii").split()]
        signed = [value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value for value in values]
        flat = np.array(signed, dtype)
    return flat.reshape(tensor["shape"])
