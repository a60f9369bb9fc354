"""Errors for ``-i`` arguments that qrun cannot use: keys of a .npz, folders, types."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from qrun.errors import CallError, close_matches
from qrun.io import fitting
from qrun.io.arrays import ARRAYS
from qrun.io.feeds import unknown_input
from qrun.ir import Array, Model, TensorType
from qrun.ir.types import describe


def repeated_input(model: Model, name: str, first: str, second: str) -> CallError:
    """The QR005 error of an input that is given twice."""
    what = f"input {name!r} is given twice"
    facts = [("first", first), ("second", second)]
    fixes = ["-i NAME=FILE says which input a file is for"]
    return CallError("QR005", what, where=[model.label, f"input {name}"], facts=facts, fixes=fixes)


def no_file(model: Model, name: str, spec: str) -> CallError:
    """The error for ``-i name=`` and ``-i ''``, which would otherwise read the current folder."""
    first = name or next((value.name for value in model.inputs), "")
    facts = [("expected", "a file, a folder, -, or [1,2]"), ("got", "nothing")]
    fixes = [f"-i {first}=FILE" if first else "omit -i: the model has no inputs"]
    return CallError("QR005", f"-i {spec or repr(spec)} names no file", where=[model.label], facts=facts, fixes=fixes)


def no_name(model: Model, spec: str, value: TensorType | None) -> CallError:
    """The error for values without a name, and for ``=FILE``. value: the input that may be meant."""
    shown = spec if len(spec) <= 60 else f"{spec[:57]}..."
    fix = "qrun inspect MODEL lists the inputs"
    if value:
        named = f"{value.name}={shown.removeprefix('=')}"
        fix = f"did you mean -i {shlex.quote(named)}?"
    return CallError("QR005", f"-i {shown} does not say which input it is for", where=[model.label], fixes=[fix])


def several_inputs(model: Model, name: str, rest: str, others: Sequence[str]) -> CallError:
    """The error for several inputs in one option: ``a=a.npy,b=b.npy``."""
    for other in others:
        rest = rest.replace(f",{other}=", f"\n{other}=")
    given = " ".join(f"-i {shlex.quote(spec)}" for spec in f"{name}={rest}".split("\n"))
    fixes = [f"did you mean {given}?"]
    return CallError("QR005", "-i takes one input; repeat it for each", where=[model.label], fixes=fixes)


def maybe_text(error: CallError, value: TensorType, rest: str) -> CallError:
    """The error of a missing file; if the input holds strings, with the way to write `rest` as text."""
    if error.code != "QR004" or value.dtype is None or value.dtype.kind != "O" or Path(rest).suffix in ARRAYS:
        return error
    rank = 1 if value.shape is None else len(value.shape)
    spec = f"{value.name}={'[' * rank}{json.dumps(rest, ensure_ascii=False)}{']' * rank}"
    error.fixes = (f"did you mean -i {shlex.quote(spec)}?", *error.fixes)
    return error


def what_inside(folder: Path) -> str:
    """The fix for a folder without inputs: a set or file in it."""
    sets = [p for p in sorted(folder.glob("test_data_set_*")) if (p / "input_0.pb").exists()]
    found = sets or sorted(folder.glob("*.np[yz]"))
    return f"did you mean -i {found[0]}?" if found else "name the file: -i x.npy"


def how_to_write(names: Sequence[str]) -> str:
    """Code that writes arrays to a .npz under these names."""
    if not all(name.isidentifier() for name in names):
        return "np.savez(path, **{name: array})"
    return f"np.savez(path, {', '.join(f'{name}=...' for name in names[:3])}{', ...' if len(names) > 3 else ''})"


def unknown_key(model: Model, key: str, found: Mapping[str, Array], source: str) -> CallError:
    """The error for a .npz key that is no input: rename it if an input has no key, else leave it out."""
    error = unknown_input(model, key, source)
    error.facts = (*error.facts, ("keys", f"{', '.join(list(found)[:12])} in {source}"))
    names = [value.name for value in model.inputs]
    without = [name for name in names if name not in found]
    near = close_matches(key, without)
    if near or len(without) == 1:
        error.fixes = (f"did you mean the key {(near or without)[0]}? {how_to_write(names)} writes it",)
    elif without:
        error.fixes = (f"name the arrays after the inputs: {how_to_write(names)}",)
    else:
        error.fixes = (f"omit the key {key}: {how_to_write(names)}",)
    return error


def uncastable(model: Model, value: TensorType, array: Array, source: str, why: str) -> CallError:
    """The error for an array that --cast does not convert. why: what its type does not hold."""
    fixes = fitting.type_fixes(array, value.dtype) if value.dtype is not None else []
    return CallError(
        "QR003",
        f"--cast cannot convert {source} for input {value.name!r}",
        where=[model.label, f"input {value.name}"],
        facts=[("expected", str(value)), ("got", f"{describe(array)}: {why}")],
        fixes=fixes[:2],
    )
