"""Reads a dump: a file or a folder in any of the forms that `FORMS` lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qrun.declare.frozen import frozen
from qrun.dumps.documents import RAW, read_bytes, read_json, read_text
from qrun.dumps.tensor import DumpTensor, from_bytes
from qrun.dumps.text import read_header, read_log
from qrun.errors import CallError, some
from qrun.io.arrays import bad_file, no_such_file, read_npy, read_npz
from qrun.memory import Budget, default_limit

_TRACE = re.compile(r".*_(\d{5})_(\d{5})_(\d{5})x(\d{5})")
"""The end of the name of a trace of TI TIDL: batch, channels, height, width."""
_TYPED = {"_float": np.float32, "_int8": np.int8, "_uint8": np.uint8, "_int16": np.int16}
"""Element types by the end of a raw file's name, as Vitis AI and TIDL write it."""
_RESULT = re.compile(r"Result_\d+")
_TEXT = (".txt", ".log", ".hex", ".csv")
SUFFIXES = (".npz", ".npy", ".json", ".h", ".y", *RAW, *_TEXT)
"""The suffixes of files that a dump may have."""
FORMS = (
    ".npz, .npy, .raw and .bin, TIDL .y, Polygraphy .json, raw + .json, C headers .h, logs .txt; or a folder of them"
)


@frozen(eq=False)
class Dump:
    """The tensors of a dump by name."""

    path: str
    tensors: dict[str, DumpTensor]


def read_dump(path: str | Path, budget: Budget | None = None) -> Dump:
    """Read a dump. The names of tensors in a folder are those of files below it, without their suffixes.

    Raises CallError if nothing can be read, a file is damaged, or one name occurs twice; MemoryLimitError for files
    beyond the budget.
    """
    path, budget = Path(path), budget or Budget(default_limit)
    found = _folder(_one_result(path), budget) if path.is_dir() else _file(path, path.stem, budget)
    tensors: dict[str, DumpTensor] = {}
    for tensor in found:
        if tensor.name in tensors:
            raise bad_file(str(path), f"{tensor.name!r} twice", "every tensor once")
        tensors[tensor.name] = tensor
    for name in [name for name in tensors if name.endswith("_float") and _without_type(name) in tensors]:
        del tensors[name]  # the same tensor dequantized, beside its codes
    if not tensors:
        raise CallError(
            "QR007",
            f"{path} holds no tensors",
            where=[str(path)],
            facts=[("expected", FORMS)],
            fixes=["check the path"],
        )
    return Dump(str(path), tensors)


def is_dump(path: str) -> bool:
    """Does the name look like a dump: a folder, or a file of a known suffix?"""
    return Path(path).is_dir() or Path(path).suffix.lower() in SUFFIXES


def _one_result(folder: Path) -> Path:
    """The folder of the only result in the output folder of snpe-net-run or qnn-net-run, else the folder itself."""
    results = sorted(path.name for path in folder.iterdir() if _RESULT.fullmatch(path.name) and path.is_dir())
    if len(results) > 1:
        raise CallError(
            "QR005",
            f"{folder} holds the results of {len(results)} inputs",
            facts=[("got", some(results))],
            fixes=[f"name one: {folder / results[0]}"],
        )
    return folder / results[0] if results else folder


def _folder(folder: Path, budget: Budget) -> Iterator[DumpTensor]:
    """The tensors of the files below a folder. JSON files come first, because they describe raw files."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    described: set[Path] = set()
    for path in sorted(files, key=lambda path: path.suffix.lower() != ".json"):
        if path.suffix.lower() == ".json":
            tensors, raw = read_json(path, budget)
            described |= raw
            yield from tensors
        elif path not in described:
            yield from _file(path, path.relative_to(folder).with_suffix("").as_posix(), budget)


def _file(path: Path, name: str, budget: Budget) -> Iterator[DumpTensor]:
    """The tensors of one file. name: of the tensor in a file that holds one."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        try:
            with path.open("rb") as stream:
                yield from (DumpTensor(key, array) for key, array in read_npz(str(path), stream, budget).items())
        except OSError as error:
            raise no_such_file(path, error) from None
    elif suffix == ".npy":
        array = read_npy(path, budget)
        budget.hold(array, str(path))
        yield DumpTensor(name, array)
    elif suffix == ".json":
        yield from read_json(path, budget)[0]
    elif suffix == ".h":
        yield from read_header(read_text(path, budget), str(path))
    elif suffix in _TEXT:
        yield from read_log(read_text(path, budget), str(path))
    elif suffix in (".y", *RAW):
        yield _raw(path, name, budget)
    else:
        read_bytes(path, budget)  # says if the file is missing
        raise bad_file(str(path), f"a {suffix or 'nameless'} file", FORMS)


def _raw(path: Path, name: str, budget: Budget) -> DumpTensor:
    """A raw file. Its name may say the type, or, as TIDL writes it, the shape."""
    stem = _without_type(name)
    dtype = np.dtype(_TYPED[name.removeprefix(stem)]) if stem != name else None
    trace = _TRACE.fullmatch(stem)
    shape = tuple(int(size) for size in trace.groups()) if trace and "tidl_trace" in stem else None
    try:
        return from_bytes(name, read_bytes(path, budget), dtype, shape)
    except ValueError as error:
        raise bad_file(str(path), str(error), fix="the file is cut off or damaged: write it again") from None


def _without_type(name: str) -> str:
    """The name without an element type at its end."""
    end = next((end for end in _TYPED if name.endswith(end) and name != end), "")
    return name.removesuffix(end) if end else name
