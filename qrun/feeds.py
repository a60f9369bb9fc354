"""Do the given arrays fit the graph's inputs?"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

import numpy as np

from qrun.errors import CallError
from qrun.ir import Array, Model, TensorType
from qrun.ir.types import describe, shape_text, type_name
from qrun.sizes import FREE, Sizes


def check_feeds(
    model: Model,
    feeds: Mapping[str, Array],
    sources: Mapping[str, str] | None = None,
    *,
    sizes: Sizes = FREE,
    partial: bool = False,
) -> dict[str, Array]:
    """The feeds, after checking names, element types and shapes against the graph's inputs.

    sources: where each array came from, for messages.
    partial: inputs may be missing.
    Raises CallError: QR001 missing-input, QR002 unknown-input, QR003 input-mismatch.
    """
    sources = sources or {}
    known = {v.name: v for v in (*model.inputs, *model.defaults)}
    for name in feeds:
        if name not in known:
            raise unknown_input(model, name, sources.get(name, "FILE"))
    missing = [v for v in model.inputs if v.name not in feeds]
    if missing and not partial:
        raise missing_input(model, missing, feeds, sources)
    symbols = {symbol: (size, "--shape") for symbol, size in sizes.symbols.items()}
    checked = {}
    for name, array in feeds.items():
        array = np.asarray(array)
        problem = _mismatch(known[name], array, symbols)
        if not problem and sizes.shapes.get(name, array.shape) != array.shape:
            problem = f"{type_name(array.dtype)} {shape_text(sizes.shapes[name])} as in --shape"
        if problem:
            raise _input_mismatch(model, known[name], array, sources.get(name, "the array"), problem)
        checked[name] = array
    return checked


def unknown_input(model: Model, name: str, source: str) -> CallError:
    names = [v.name for v in model.inputs]
    near = get_close_matches(name, names, 1, 0.6)
    fixes = [f"did you mean -i {near[0]}={source}?"] if near else ["qrun inspect MODEL lists the inputs"]
    return CallError(
        "QR002",
        "unknown-input",
        f"the model has no input {name!r}",
        where=[model.label],
        facts=[("inputs", ", ".join(names[:12]) or "none")],
        fixes=fixes,
    )


def missing_input(
    model: Model, missing: list[TensorType], feeds: Mapping[str, Array], sources: Mapping[str, str]
) -> CallError:
    given = ", ".join(f"{name} ({sources[name]})" if name in sources else name for name in feeds)
    names = ", ".join(v.name for v in missing)
    plural = f" and {len(missing) - 1} more were" if len(missing) > 1 else " was"
    return CallError(
        "QR001",
        "missing-input",
        f"input {missing[0].name!r}{plural} not given",
        where=[model.label, f"input {missing[0].name}, {missing[0]}"],
        facts=[("given", given or "none"), ("missing", names)],
        fixes=[
            "add " + " ".join(f"-i {v.name}=FILE" for v in missing[:3]),
            "or --random to fill the missing ones with random data",
        ],
    )


def _mismatch(value: TensorType, array: Array, symbols: dict[str, tuple[int, str]]) -> str:
    if value.kind != "tensor":
        return f"a {value.kind}, which qrun cannot feed"
    if value.dtype is not None and array.dtype != value.dtype:
        return str(value)
    if value.shape is None:
        return ""
    if len(value.shape) != array.ndim:
        return str(value)
    for want, got in zip(value.shape, array.shape, strict=True):
        if isinstance(want, int) and want != got:
            return str(value)
        if isinstance(want, str):
            bound, first = symbols.setdefault(want, (got, value.name))
            if bound != got:
                return f"{value} with {want} = {bound} as in {first}"
    return ""


def _input_mismatch(model: Model, value: TensorType, array: Array, source: str, expected: str) -> CallError:
    fixes = []
    axes = _transposition(value, array)
    if axes:
        what = "NHWC" if axes == (0, 3, 1, 2) else "permuted"
        fixes.append(f"the axes look {what}: np.transpose(x, {axes}) fits")
    if value.dtype is not None and array.dtype != value.dtype:
        fixes.append(f"{type_name(array.dtype)} is not converted silently: x.astype(np.{value.dtype.name})")
    if not axes and value.shape is not None and len(value.shape) == array.ndim + 1:
        fixes.append("one axis is missing: x[None] adds a batch of 1")
    return CallError(
        "QR003",
        "input-mismatch",
        f"{source} does not fit input {value.name!r}",
        where=[model.label, f"input {value.name}"],
        facts=[("expected", expected), ("got", describe(array))],
        fixes=fixes[:2] or [f"expected shape {shape_text(value.shape)}"],
    )


def _transposition(value: TensorType, array: Array) -> tuple[int, ...]:
    """The axes that make the array fit, if the usual image layouts do."""
    if value.shape is None or len(value.shape) != array.ndim:
        return ()
    for axes in ((0, 3, 1, 2), (0, 2, 3, 1), (0, 2, 1), (0, 4, 1, 2, 3), (1, 0)):
        if len(axes) == array.ndim:
            moved = [array.shape[a] for a in axes]
            if (
                moved != list(array.shape)
                and all(not isinstance(want, int) or want == got for want, got in zip(value.shape, moved, strict=True))
                and any(isinstance(w, int) and w != g for w, g in zip(value.shape, array.shape, strict=True))
            ):
                return axes
    return ()
