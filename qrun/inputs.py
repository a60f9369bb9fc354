"""``--inputs`` and ``--shape`` to feeds: which array goes to which graph input, and random data for the rest.

A SPEC is ``name=REST`` where `name` is a graph input (the longest that fits), REST being a file, ``-`` or JSON;
otherwise it is a path: .npy (the next input in graph order), .npz (keys are input names), .pb (a TensorProto, next in
order), a folder with ``input_*.pb``, or ``-``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from qrun import arrays
from qrun.errors import CallError
from qrun.feeds import check_feeds, fixed_sizes, random_feeds, unknown_input
from qrun.ir import Array, Model, TensorType
from qrun.ir.types import describe, type_name
from qrun.memory import Budget

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"}


@dataclass
class Feeds:
    """Arrays for a model's inputs, with where each came from.

    notes:   conversions and assumptions that the user should know.
    sources: ``x.npy``, ``random, seed 0`` and the like, by input name.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)


@dataclass
class _Reader:
    """Assigns specs to inputs: named ones first, then files without a name in graph order."""

    model: Model
    budget: Budget
    stdin: IO[bytes] | None
    feeds: Feeds
    nameless: list[tuple[Array, str]] = field(default_factory=list)

    @property
    def known(self) -> dict[str, TensorType]:
        return {v.name: v for v in (*self.model.inputs, *self.model.defaults)}

    def give(self, name: str, array: Array, source: str) -> None:
        if name not in self.known:
            raise unknown_input(self.model, name, source)
        if name in self.feeds.arrays:
            raise _twice(self.model, name, self.feeds.sources[name], source)
        value = self.known[name]
        if value.dtype is not None:
            array, done = arrays.restored(array, value.dtype)
            if done:
                self.feeds.notes.append(f"input {name}: {done} ({source})")
        self.feeds.arrays[name] = array
        self.feeds.sources[name] = source

    def read(self, spec: str) -> None:
        name = max((n for n in self.known if spec.startswith(n + "=")), key=len, default=None)
        if name is not None:
            self.named(name, spec[len(name) + 1 :])
        elif "=" in spec and not Path(spec).exists() and not _is_folder_path(spec):
            wrong, _, rest = spec.partition("=")
            raise unknown_input(self.model, wrong, rest)
        else:
            self.path(spec)

    def named(self, name: str, rest: str) -> None:
        value = _json_value(rest)
        if value is not _NOT_JSON:
            array = _from_json(self.model, self.known[name], value, rest)
            self.feeds.notes.append(f"input {name}: {_cut(rest)} read as {describe(array)}")
            self.give(name, array, _cut(rest))
            return
        found = self.load(rest, self.known[name])
        if isinstance(found, dict):
            if len(found) != 1:
                raise arrays.bad_file(rest, f"{len(found)} arrays: {', '.join(list(found)[:6])}", "one array",
                                      fix=f"-i {rest} without a name gives each array to the input of its key")  # fmt: skip
            found = list(found.values())
        if len(found) != 1:
            raise arrays.bad_file(rest, f"{len(found)} arrays", "one array")
        self.give(name, found[0], "stdin" if rest == "-" else rest)

    def path(self, spec: str) -> None:
        value = self.model.inputs[0] if self.model.inputs else None
        found = self.load(spec, value)
        source = "stdin" if spec == "-" else spec
        if isinstance(found, dict):
            for name, array in found.items():
                if name not in self.known:
                    raise _unknown_key(self.model, name, found, source)
                self.give(name, array, source)
        else:
            self.nameless += [(array, source) for array in found]

    def load(self, spec: str, value: TensorType | None) -> dict[str, Array] | list[Array]:
        path = Path(spec)
        if spec == "-":
            return arrays.read_stream(self.take_stdin(), "stdin", self.budget)
        if path.suffix.lower() in IMAGES:
            raise _image(spec, value)
        if path.is_dir():
            return self.folder(path)
        if path.suffix == ".pb":
            from qrun.ir.tensorfile import read_tensor

            return [read_tensor(path)[1]]
        try:
            with open(path, "rb") as stream:
                zipped = stream.read(2) == arrays.ZIP
        except (OSError, ValueError) as error:
            raise arrays.no_such_file(path, error) from None
        if zipped:
            with open(path, "rb") as stream:
                return arrays.read_npz(spec, stream, self.budget)
        return [arrays.read_npy(path, self.budget)]

    def folder(self, path: Path) -> list[Array]:
        from qrun.ir.tensorfile import read_tensor

        files = list(arrays.numbered(path, "input"))
        if not files and (any(path.glob("output_*.pb")) or not self.model.inputs):
            return []
        if not files:
            raise arrays.bad_file(str(path), "no input_0.pb in that folder", "a folder with input_0.pb, input_1.pb, ...")
        return [read_tensor(file)[1] for file in files]

    def take_stdin(self) -> IO[bytes]:
        if self.stdin is None:
            raise CallError("QR005", "bad-option", "only one - may read stdin", facts=[("got", "a second -")],
                            fixes=["write one of them to a file first"])  # fmt: skip
        stream, self.stdin = self.stdin, None
        if stream.isatty():
            raise CallError("QR005", "bad-option", "- reads stdin, but stdin is a terminal",
                            fixes=["qrun MODEL -i - < x.npy"])  # fmt: skip
        return stream

    def assign_nameless(self) -> None:
        free = [v.name for v in self.model.inputs if v.name not in self.feeds.arrays]
        if len(self.nameless) > len(free):
            array, source = self.nameless[len(free)]
            taken = ", ".join(f"{n} ({s})" for n, s in self.feeds.sources.items())
            raise CallError(
                "QR002",
                "unknown-input",
                f"no input is left for {source}",
                where=[self.model.label],
                facts=[("inputs", ", ".join(v.name for v in self.model.inputs) or "none"),
                       ("given", taken or f"{len(self.nameless)} arrays, of which {source} is one too many")],
                fixes=["-i NAME=FILE says which input a file is for"],
            )  # fmt: skip
        for name, (array, source) in zip(free, self.nameless, strict=False):
            self.give(name, array, source)


def read_inputs(
    model: Model,
    specs: Sequence[str],
    *,
    shapes: Sequence[str] = (),
    random: bool = False,
    seed: int = 0,
    max_memory: int | None = None,
    stdin: IO[bytes] | None = None,
) -> Feeds:
    """Feeds for a model from ``--inputs``, ``--shape``, ``--random`` and ``--seed``.

    No spec at all means random data for every input. Raises CallError for anything that does not fit.
    """
    feeds = Feeds()
    stream = stdin if stdin is not None else sys.stdin.buffer if sys.stdin is not None else None
    reader = _Reader(model, Budget(max_memory), stream, feeds)
    sizes = fixed_sizes(model, shapes)
    for spec in sorted(specs, key=lambda s: not _has_name(model, s)):
        reader.read(spec)
    reader.assign_nameless()
    feeds.symbols = dict(sizes.symbols)
    checked = check_feeds(model, feeds.arrays, feeds.sources, sizes=sizes, partial=random or not specs)
    feeds.arrays = checked
    missing = [v for v in model.inputs if v.name not in checked]
    if missing:
        made, unset = random_feeds(model, missing, checked, sizes, seed, reader.budget)
        feeds.arrays = {v.name: made[v.name] if v.name in made else checked[v.name] for v in model.inputs} | checked
        for name in made:
            feeds.sources[name] = f"random, seed {seed}"
        shown = ", ".join(f"{v.name} {describe(made[v.name])}" for v in missing[:4])
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        assumed = f"; {', '.join(f'{s}=1' for s in unset)} (--shape changes that)" if unset else ""
        feeds.notes.append(f"random data, seed {seed}, for {shown}{more}{assumed}")
        feeds.symbols |= dict.fromkeys(unset, 1)
    return feeds


def _has_name(model: Model, spec: str) -> bool:
    return any(spec.startswith(v.name + "=") for v in (*model.inputs, *model.defaults))


def _is_folder_path(spec: str) -> bool:
    return spec.endswith("/") or "/" in spec.partition("=")[0]


def _cut(text: str, size: int = 40) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."


_NOT_JSON: Any = object()


def _json_value(text: str) -> Any:
    """The JSON value in the text, or _NOT_JSON if it names a file."""
    if text == "-" or Path(text).suffix in (".npy", ".npz", ".pb"):
        return _NOT_JSON
    try:
        value = json.loads(text)
    except RecursionError:
        return [[]]
    except ValueError:
        return _NOT_JSON
    return _NOT_JSON if isinstance(value, dict) or value is None else value


def _from_json(model: Model, value: TensorType, data: Any, text: str) -> Array:
    """JSON numbers as the input's type: integers into any integer type that holds them, any number into floats."""

    def refuse(got: str, fix: str = "") -> CallError:
        return CallError(
            "QR003",
            "input-mismatch",
            f"{_cut(text)} does not fit input {value.name!r}",
            where=[model.label, f"input {value.name}"],
            facts=[("expected", str(value)), ("got", got)],
            fixes=[fix] if fix else [],
        )

    dtype = value.dtype
    if dtype is None:
        raise refuse("JSON for an input whose type the model does not state", "give a .npy file")
    flat: list[Any] = []
    shape = _json_shape(data, flat)
    if shape is None:
        raise refuse("a list with rows of different lengths", "every row needs the same number of elements")
    kinds = {type(item) for item in flat}
    name = type_name(dtype)
    if dtype == object:
        if kinds - {str}:
            raise refuse("values that are not text")
        array = np.empty(len(flat), object)
        array[:] = flat
        return array.reshape(shape)
    if dtype == bool:
        if kinds - {bool}:
            raise refuse("values other than true and false")
        return np.array(flat, bool).reshape(shape)
    if kinds - {int, float}:
        raise refuse("values that are not numbers")
    if "int" in name:
        low, high = _limits(dtype)
        wrong = next((v for v in flat if type(v) is not int or not low <= v <= high), None)
        if wrong is not None:
            raise refuse(str(wrong), f"{name} holds whole numbers from {low} to {high}")
        return np.array(flat, np.uint64 if dtype == np.uint64 else np.int64).astype(dtype).reshape(shape)
    if dtype.kind == "c":
        raise refuse("JSON, which has no complex numbers", "give a .npy file")
    try:
        wide = np.array([float(v) for v in flat], np.float64)
    except OverflowError:
        raise refuse("a number beyond float64") from None
    with np.errstate(all="ignore"):
        array = wide.astype(dtype)
        if (np.isfinite(wide) & ~np.isfinite(array.astype(np.float64))).any():
            raise refuse(f"a number that {name} cannot hold")
    return array.reshape(shape)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    import ml_dtypes

    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def _json_shape(data: Any, flat: list[Any]) -> tuple[int, ...] | None:
    """The shape of nested lists, their items appended to `flat`; None if ragged."""
    if not isinstance(data, list):
        flat.append(data)
        return ()
    shapes = {_json_shape(item, flat) for item in data}
    if not shapes:
        return (0,)
    if len(shapes) > 1 or None in shapes:
        return None
    (inner,) = shapes
    assert inner is not None
    return (len(data), *inner)


def _twice(model: Model, name: str, first: str, second: str) -> CallError:
    return CallError(
        "QR005",
        "bad-option",
        f"input {name!r} is given twice",
        where=[model.label, f"input {name}"],
        facts=[("first", first), ("second", second)],
        fixes=["-i NAME=FILE says which input a file is for"],
    )


def _unknown_key(model: Model, key: str, found: Mapping[str, Array], source: str) -> CallError:
    error = unknown_input(model, key, source)
    error.facts = (*error.facts, ("keys", f"{', '.join(list(found)[:12])} in {source}"))
    if key.startswith("arr_") and model.inputs:
        names = ", ".join(f"{v.name}=..." for v in model.inputs[:3] if v.name.isidentifier())
        error.fixes = (f"name the arrays: np.savez(path, {names or '**{name: array}'})",)
    elif error.fixes and error.fixes[0].startswith("did you mean"):
        near = error.fixes[0].split("-i ", 1)[1].rsplit("=", 1)[0]
        error.fixes = (f"did you mean the key {near} ?",)
    return error


def _image(spec: str, value: TensorType | None) -> CallError:
    shape = value.shape if value is not None else None
    channels_first = shape is not None and len(shape) == 4 and shape[1] in (1, 3, 4, "C", None)
    height, width = (shape[2:4] if channels_first else shape[1:3]) if shape is not None and len(shape) == 4 else ("H", "W")
    size = f"({width if isinstance(width, int) else 224}, {height if isinstance(height, int) else 224})"
    dtype = value.dtype.name if value is not None and value.dtype is not None else "float32"
    layout = ".transpose(2, 0, 1)[None]" if channels_first or shape is None else "[None]"
    scale = " / 255" if "float" in dtype else ""
    return CallError(
        "QR007",
        "input-file",
        f"{spec} is an image, and qrun does not guess its layout, size, mean and scale",
        where=[spec],
        facts=[
            ("expected", f"{value.name} {value}" if value is not None else "an array"),
            ("recipe", "import numpy as np; from PIL import Image"),
            ("", f"x = np.asarray(Image.open({spec!r}).convert('RGB').resize({size}))"),
            ("", f"x = (x{scale}).astype(np.{dtype}){layout}  # then mean and std, as in training"),
            ("", "np.save('x.npy', x)"),
        ],
        fixes=["run the recipe in Python, then qrun MODEL -i x.npy"],
    )
