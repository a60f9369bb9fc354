"""Reads tensors from text: arrays in C headers, and logs of decimal or hexadecimal numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from qrun.dumps.tensor import DumpTensor, named_type
from qrun.io.arrays import bad_file
from qrun.ir import Array

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_FIXED = {"q7_t": "int8", "q15_t": "int16", "q31_t": "int32"}
_ARRAY = re.compile(
    r"\b(u?int(?:8|16|32)_t|q7_t|q15_t|q31_t|float|float32_t)\s+(\w+)\s*((?:\[[^\]\n]*\]\s*)+)[^={};]*=\s*\{([^;]*)\}\s*;"
)
_HEAD = re.compile(r"\s*([^\s:=,]+)(?:\s+(\w+))?(?:\s*[\[(]\s*([\d\s,x]*)[\])])?\s*[:=]\s*(.*)")
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}|0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|\d+|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|nan|inf)")
_BYTE = re.compile(r"[0-9a-fA-F]{2}")


def read_header(text: str, source: str) -> Iterator[DumpTensor]:
    """Yield the arrays with values in a C header. Raises CallError if one has fewer or more values than it states."""
    for kind, name, dims, body in _ARRAY.findall(_COMMENT.sub(" ", text)):
        words = [word for word in re.split(r"[\s,{}]+", body) if word]
        sizes = re.findall(r"\[\s*(\w*)\s*\]", dims)
        dtype = named_type(_FIXED.get(kind, kind))
        assert dtype is not None
        try:
            if dtype.kind == "f":
                array = np.array([float(word.rstrip("fF")) for word in words], dtype)
            else:
                array = np.array([int(word.rstrip("uUlL"), 0) for word in words], np.int64).astype(dtype)
        except (ValueError, OverflowError) as error:
            raise bad_file(source, f"{name}: {error}"[:120], f"an array of {kind}") from None
        known = all(size.isdigit() and len(size) < 12 for size in sizes)
        shape = tuple(map(int, sizes)) if known else (array.size,)
        if int(np.prod(shape, dtype=object)) != array.size:
            raise bad_file(source, f"{array.size} values of {name}", f"{name}{dims.strip()}", fix="write it again")
        yield DumpTensor(name, array.reshape(shape), True, len(shape) > 1)


def read_log(text: str, source: str) -> Iterator[DumpTensor]:
    """Yield the tensors of a log: a line ``NAME:`` or ``NAME TYPE [SHAPE]:``, then numbers, on that line or after it.

    A line with anything else ends a tensor. Bytes in hexadecimal (``0a ff``) may begin with their address, as hexdumps
    do. Raises CallError for numbers that do not have the type or shape stated before them.
    """
    name, kind, shape, words = "", "", "", list[str]()
    for line in (*text.splitlines(), ""):
        head = _HEAD.fullmatch(line)
        numbers = _numbers(head[4] if head else line)
        if head and numbers is not None and name and _ADDRESS.fullmatch(head[1]) and numbers:
            words += numbers
        elif head and numbers is not None and not _ADDRESS.fullmatch(head[1]):
            yield from _block(name, kind, shape, words, source)
            name, kind, shape, words = head[1], head[2] or "", head[3] or "", numbers
        elif not head and numbers:
            words += numbers
        elif line.strip():
            yield from _block(name, kind, shape, words, source)
            name, words = "", []
    yield from _block(name, kind, shape, words, source)


def _numbers(text: str) -> list[str] | None:
    """The numbers of a line; None if it has anything else."""
    words = [word for word in re.split(r"[\s,;\[\]{}]+", text) if word]
    return words if all(_NUMBER.fullmatch(word) or _BYTE.fullmatch(word) for word in words) else None


def _block(name: str, kind: str, shape: str, words: list[str], source: str) -> Iterator[DumpTensor]:
    """The tensor of one block of a log; nothing if it has no name or no numbers."""
    if not name or not words:
        return
    try:
        array, typed = _values(words)
        dtype = named_type(kind) if kind else None
        if dtype is not None:
            array = _as_type(array, typed, dtype)
            typed = True
    except (ValueError, OverflowError) as error:
        raise bad_file(source, f"{name}: {error}"[:120], f"numbers{f' of type {kind}' if kind else ''}") from None
    sizes = [int(size) for size in re.findall(r"\d{1,11}", shape)]
    if not sizes or not typed:
        yield DumpTensor(name, array, typed, False)
        return
    if int(np.prod(sizes, dtype=object)) != array.size:
        raise bad_file(source, f"{array.size} numbers of {name}", f"{name} [{','.join(map(str, sizes))}]")
    yield DumpTensor(name, array.reshape(sizes), True, True)


def _values(words: list[str]) -> tuple[Array, bool]:
    """The numbers, and whether their type is known: hexadecimal digits are bytes of any type."""
    digits = [word[2:] for word in words if word[:2] in ("0x", "0X")]
    if len(digits) == len(words):
        widths = {2 if len(word) <= 2 else 4 if len(word) <= 4 else 8 for word in digits}
        kind = np.dtype(f"<u{max(widths) // 2}")
        return np.array([int(word, 16) for word in digits], np.uint64).astype(kind).view(np.uint8), False
    if all(map(_BYTE.fullmatch, words)) and any(re.search("[a-fA-F]", word) for word in words):
        return np.array([int(word, 16) for word in words], np.uint8), False
    if all(re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]+|\d+)", word) for word in words):
        return np.array([int(word, 0 if "x" in word.lower() else 10) for word in words], np.int64), True
    return np.array([float(word) for word in words]), True


def _as_type(array: Array, typed: bool, dtype: np.dtype) -> Array:
    """Numbers in the type that the log states. Raises ValueError if they do not fit."""
    if not typed:
        if array.size % dtype.itemsize:
            raise ValueError(f"{array.size} bytes")
        return array.view(dtype)
    made = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(made, array):
        raise ValueError(f"numbers from {array.min():g} to {array.max():g}")
    return made
