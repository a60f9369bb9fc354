"""Samples and labels to evaluate models on, from folders, stacked arrays, lists of files and Python.

A sample is a feed with a batch axis of one. If the model's inputs share no batch axis, it is a complete feed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import CallError, QrunError, close_matches
from qrun.io.arrays import bad_file
from qrun.io.conversion import AS_GIVEN, Conversion, Uncastable, cast
from qrun.io.feeds import unknown_input
from qrun.io.inputerrors import uncastable
from qrun.io.inputs import IMAGES, gather, split_name
from qrun.io.rows import RowFile, row_files, spool
from qrun.io.storable import restore
from qrun.ir import Array, Model
from qrun.ir.compound import as_input
from qrun.ir.types import describe
from qrun.memory import Budget

Label = int | str
_NUMBER = "the correct class number for each sample: 0, 1, 2 ..."
_HOW = "write each class as its index among the model's scores, or add --classes FILE"


def are_names(model: Model) -> bool:
    """Are the labels of this model's samples class names? They are if its first output holds strings."""
    first = next(iter(model.outputs), None)
    return first is not None and first.dtype is not None and first.dtype.kind == "O"


def as_label(value: Any, names: bool) -> Label:
    """Convert a label from Python. names: see `are_names`; if false, a label that is no class number is a CallError."""
    plain = value.item() if hasattr(value, "item") and np.asarray(value).size == 1 else value
    if names:
        return str(plain)
    try:
        number = int(plain)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(plain, str) or number != plain:
        raise CallError(
            "QR003",
            "a label is not a class number",
            facts=[("expected", _NUMBER), ("got", repr(plain)[:200])],
            fixes=[_HOW],
        )
    return number


def as_labels(values: Sequence[Any] | Array, names: bool, classes: Sequence[str] = ()) -> Array:
    """Convert labels from Python to int64, or to str for names, [samples]. Raises CallError as `as_label` does.
    classes: the names of the classes, which labels may have in place of numbers."""
    given = np.asarray(values).reshape(-1)
    places = None if names else _places(given.tolist(), classes)
    found = [as_label(value, names) for value in given] if places is None else places
    return np.array(found, object if names else np.int64)


def _places(labels: Sequence[Any], classes: Sequence[str]) -> list[int] | None:
    """The place of each label among the names of the classes; None if one is no such name."""
    known = {name: place for place, name in enumerate(classes)}
    found = [known.get(label) if isinstance(label, str) else None for label in labels]
    made = [place for place in found if place is not None]
    return made if made and len(made) == len(found) else None


def _bad_label(path: str, labels: Sequence[str], classes: Sequence[str]) -> CallError:
    """The error for a file with a label that is neither a number nor the name of a class, or with both kinds."""
    others = [label for label in labels if label not in classes]
    strange = next((label for label in others if not all(map(str.isdecimal, label.split()))), others[0])
    near = close_matches(strange, classes)
    expected = "a name of --classes for each sample" if classes else _NUMBER
    return bad_file(
        path, repr(strange), expected, fix=f"did you mean {near[0]!r}?" if near else "" if classes else _HOW
    )


def read_labels(path: str, names: bool, budget: Budget, classes: Sequence[str] = ()) -> Array:
    """Read labels, int64 or for names str, [samples]: a .npy file, or a text file with one a line. Raises CallError.
    classes: the names of the classes, which labels may have in place of numbers."""
    if path.lower().endswith((".npy", ".npz")):
        found = row_files(Path(path), budget)
        if len(found) != 1:
            raise bad_file(path, f"{len(found)} arrays", "one array of labels")
        file = next(iter(found.values()))
        labels = file.read(0, len(file))
        if labels.dtype.kind not in ("iuU" if names or classes else "iu") or labels.size != len(labels):
            raise bad_file(path, describe(labels), "a name for each sample" if names else _NUMBER, fix=_fix(labels))
        texts = labels.reshape(-1).tolist() if labels.dtype.kind == "U" and not names else []
        if texts and _places(texts, classes) is None:
            raise _bad_label(path, texts, classes)
        return as_labels(labels, names, classes)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise bad_file(path, str(error), "a label for each sample, in a .npy file or line by line") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if names:
        return as_labels(lines, names)
    try:
        return np.array([int(word) for word in text.split()], np.int64)
    except ValueError:
        if _places(lines, classes) is None:
            raise _bad_label(path, lines, classes) from None
    return as_labels(lines, names, classes)


def _fix(labels: Array) -> str:
    return _HOW if labels.dtype.kind == "U" else "np.save(path, labels.astype(np.int64)), one for each sample"


Feed = Mapping[str, Array]
_STACKED = (".npy", ".npz")
_FILES = (".npy", ".npz", ".pb", *IMAGES)


@frozen
class Sample:
    """A named sample with its label, if it came with one. feed: its arrays, or the error that made it unreadable.
    specs: the ``--inputs`` arguments that pass this sample to other commands; () if there are none. converted: inputs
    that were made of images or cast, with their sources and what was done."""

    name: str
    feed: Feed | QrunError
    label: Label | None = None
    specs: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()


def rename_inputs(model: Model, feed: Feed) -> Feed:
    """The feed under this model's input names; if the feed has other names, they are assigned by position."""
    names = [value.name for value in model.inputs]
    if set(feed) >= set(names) or len(feed) != len(names):
        return feed
    return dict(zip(names, feed.values(), strict=True))


class DataSet(Protocol):
    """Samples that can be read in any order.

    source: where they are, for the report. identity: a digest of the files' names, sizes and times, which changes when
    the samples change. folders: for samples in a folder for each class, the name of each sample's folder.
    """

    source: str
    identity: str
    folders: tuple[str, ...]

    def __len__(self) -> int: ...
    def read(self, place: int) -> Sample: ...


@frozen
class Axis:
    """The batch axis that a model's inputs share. size: None if it is free; 0 if they share none."""

    size: int | None

    @classmethod
    def of(cls, model: Model) -> Axis:
        firsts = {value.shape[0] if value.shape else 0 for value in model.inputs if value.shape is not None}
        if len(firsts) != 1 or any(value.shape is None for value in model.inputs):
            return cls(0)
        first = firsts.pop()
        return cls(first if isinstance(first, int) else None)

    def add_batch_axis(self, model: Model, feed: Feed) -> dict[str, Array]:
        """The arrays of a file, with a batch axis of one added to arrays that lack it."""
        ranks = {value.name: len(value.shape) for value in model.inputs if value.shape is not None}
        short = {name for name, array in feed.items() if self.size != 0 and array.ndim + 1 == ranks.get(name)}
        return {name: array[None] if name in short else array for name, array in feed.items()}

    def check_rows(self, model: Model, feed: Feed) -> None:
        """Raise CallError for a sample of several rows where the model fixes its batch, whose rows are samples."""
        size = self.size or 0
        for name, array in feed.items() if size > 1 else ():
            if array.ndim and len(array) != 1:
                raise CallError(
                    "QR003",
                    f"a sample of input {name!r} has {len(array)} rows",
                    where=[model.label, f"input {name}"],
                    facts=[
                        ("expected", f"1 row, as {size} samples make a batch of this model"),
                        ("got", describe(array)),
                    ],
                    fixes=["save each row as a sample, or all of them in x.npy with a leading axis: -i x.npy"],
                )


def open_samples(
    model: Model, specs: Sequence[str], stdin: IO[bytes] | None, budget: Budget, conversion: Conversion = AS_GIVEN
) -> DataSet:
    """Open the samples that ``--inputs`` names.

    specs: one folder, image, list (.txt) or ``-``; or stacked .npy and .npz files, ``name=x.npy`` if there are several
    inputs. Raises CallError if they do not fit the model's inputs.
    """
    if not specs:
        raise CallError(
            "QR001",
            "no samples were given",
            where=[model.label],
            fixes=["-i FOLDER, or -i x.npy with a leading axis of samples"],
        )
    if len(specs) == 1 and not split_name(model, specs[0])[0]:
        path = Path(specs[0])
        if path.is_dir():
            return _folder(model, path, budget, conversion)
        if path.suffix.lower() == ".txt":
            return Listed(model, str(path), list(_lines(path)), budget, conversion)
        if path.suffix.lower() in IMAGES:
            return Listed(model, str(path), [(str(path), specs)], budget, conversion)
    return Stacked(model, specs, stdin, budget, conversion)


class Stacked:
    """Samples in arrays with a leading axis of samples."""

    folders: tuple[str, ...] = ()

    def __init__(
        self, model: Model, specs: Sequence[str], stdin: IO[bytes] | None, budget: Budget, conversion: Conversion
    ) -> None:
        self._cast = conversion.cast
        self._files: dict[str, RowFile] = {}
        self._specs = tuple(specs)
        self._axis, self._model = Axis.of(model), model
        for spec in specs:
            self._open(spec, stdin, budget)
        missing = [value.name for value in model.inputs if value.name not in self._files]
        if missing:
            raise CallError(
                "QR001",
                f"input {missing[0]!r} was not given",
                where=[model.label],
                facts=[("given", ", ".join(self._files)), ("missing", ", ".join(missing))],
                fixes=[f"add -i {missing[0]}=FILE"],
            )
        counts = {name: len(file) for name, file in self._files.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{count} of {name}" for name, count in counts.items())
            raise CallError(
                "QR003",
                "the inputs have different numbers of samples",
                where=[model.label],
                facts=[("got", told)],
                fixes=["give each input the same number of samples"],
            )
        self._count = next(iter(counts.values()))
        self.source = ", ".join(dict.fromkeys(file.source for file in self._files.values()))
        self._inputs = {value.name: value for value in (*model.inputs, *model.defaults)}
        self.identity = _digest([spec_identity(spec) for spec in specs])

    def _open(self, spec: str, stdin: IO[bytes] | None, budget: Budget) -> None:
        name, path = split_name(self._model, spec)
        name, path = (name, path) if name else ("", spec)
        if path == "-":
            if stdin is None or stdin.isatty():
                raise CallError(
                    "QR005", "- reads stdin, but stdin is a terminal", fixes=["qrun eval MODEL -i - < x.npy"]
                )
            found = spool(stdin, "stdin", budget)
        else:
            found = row_files(Path(path), budget)
        names = [value.name for value in (*self._model.inputs, *self._model.defaults)]
        for key, file in found.items():
            target = name or key or next((value for value in names if value not in self._files), "")
            if target not in names or target in self._files:
                raise unknown_input(self._model, target, path)
            self._files[target] = file

    def __len__(self) -> int:
        return self._count

    def read(self, place: int) -> Sample:
        specs = self._rows(place)
        name = " ".join(specs) or f"{self.source}[{place}]"
        try:
            rows = {key: file.read(place, place + 1) for key, file in self._files.items()}
        except CallError as error:
            return Sample(name, error)
        if self._axis.size == 0:
            rows = {key: array[0] for key, array in rows.items()}
        feed, converted = {}, []
        for key, array in rows.items():
            try:
                feed[key], done = self._typed(key, array)
            except CallError as error:
                return Sample(name, error)
            converted += [f"{key} {describe(feed[key])} from {name}: {done}"] if done else []
        return Sample(name, feed, specs=specs, converted=tuple(converted))

    def _typed(self, key: str, array: Array) -> tuple[Array, str]:
        """A row in the element type of its input, and how it was cast."""
        value = self._inputs[key]
        if value.dtype is None:
            return array, ""
        array, _ = restore(array, value.dtype)
        try:
            return cast(array, value.dtype) if self._cast else (array, "")
        except Uncastable as error:
            raise uncastable(self._model, value, array, self._files[key].source, str(error)) from None

    def _rows(self, place: int) -> tuple[str, ...]:
        """The SPEC of a row in each file; () for streams, other files, and models with a larger fixed batch."""
        named = all(spec.endswith(_STACKED) for spec in self._specs) and self._axis.size in (None, 0, 1)
        return tuple(f"{spec}[{place}]" for spec in self._specs) if named else ()


class Listed:
    """Samples of one or several files each. entries: the name and the SPECs of each sample."""

    def __init__(
        self,
        model: Model,
        source: str,
        entries: Sequence[tuple[str, Sequence[str]]],
        budget: Budget,
        conversion: Conversion,
        folders: Sequence[str] = (),
    ) -> None:
        self.source, self._entries, self._conversion = source, entries, conversion
        self.folders = tuple(folders)
        self._model, self._axis, self._limit = model, Axis.of(model), budget.limit
        self.identity = _digest([spec_identity(spec) for _, specs in entries for spec in specs])

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, place: int) -> Sample:
        name, specs = self._entries[place]
        try:
            found = gather(self._model, specs, Budget(self._limit), None, self._conversion)
        except QrunError as error:
            return Sample(name, error)
        feed = self._axis.add_batch_axis(self._model, found.arrays)
        same = all(array is found.arrays[key] for key, array in feed.items())
        converted = tuple(
            f"{key} {describe(array)} from {found.sources[key]}"
            for key, array in feed.items()
            if key in found.converted
        )
        return Sample(name, feed, specs=tuple(specs) if same else (), converted=converted)


def _folder(model: Model, path: Path, budget: Budget, conversion: Conversion) -> Listed:
    """The samples of a folder: each folder in it with input_0.pb, or else each file, or else each file in the folders
    in it. Sorted naturally by name."""
    inside = sorted(path.iterdir(), key=lambda entry: natural(entry.name))
    folders = [entry for entry in inside if entry.is_dir() and (entry / "input_0.pb").exists()]
    files = [entry for entry in inside if entry.suffix.lower() in _FILES and entry.is_file()]
    if not folders and any(entry.name.startswith("input_") and entry.suffix == ".pb" for entry in files):
        return Listed(model, str(path), [(str(path), [str(path)])], budget, conversion)
    entries, names = folders or files, []
    if not entries:
        entries = [file for folder in inside if folder.is_dir() for file in _files(folder)]
        names = [entry.parent.name for entry in entries]
    if not entries:
        got = "it has no arrays, images or test_data_set folders"
        raise bad_file(str(path), got, "a folder of .npy, .npz, .pb or image files")
    listed = [(str(entry), [str(entry)]) for entry in entries]
    return Listed(model, str(path), listed, budget, conversion, names)


def _files(folder: Path) -> list[Path]:
    """The files of samples in a folder, sorted naturally by name."""
    inside = sorted(folder.iterdir(), key=lambda entry: natural(entry.name))
    return [entry for entry in inside if entry.suffix.lower() in _FILES and entry.is_file()]


def folder_labels(samples: DataSet, names: bool, classes: Sequence[str]) -> Array:
    """The labels of samples in a folder for each class: its place among the class names, or its name if that is a
    number; if `names`, its name. Raises CallError if the folders do not tell the classes."""
    folders = dict.fromkeys(samples.folders)
    if not folders:
        raise CallError(
            "QR005",
            "--labels folders needs a folder for each class",
            where=[samples.source],
            facts=[("expected", "a folder of folders: images/0/a.png, images/1/b.png"), ("got", samples.source)],
        )
    if names:
        return as_labels(samples.folders, True)
    known = {name: place for place, name in enumerate(classes)}
    if classes and known.keys() >= folders.keys():
        return np.array([known[folder] for folder in samples.folders], np.int64)
    if not all(folder.isascii() and folder.isdigit() for folder in folders):
        strange = next(folder for folder in folders if folder not in known)
        fix = "--classes FILE, with the names of these folders in the order of the model's scores"
        if near := close_matches(strange, known):
            fix = f"rename the folder to {near[0]}"
        what = (
            f"--labels folders: {strange!r} is no class of --classes" if classes else f"{strange!r} is no class number"
        )
        raise CallError("QR005", what, where=[samples.source], fixes=[fix])
    return np.array([int(folder) for folder in samples.folders], np.int64)


def natural(name: str) -> tuple[Any, ...]:
    """A sort key that puts ``x10`` after ``x9``."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def _lines(path: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the name and SPECs of each non-empty line; paths are relative to the folder of the list."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise bad_file(str(path), str(error), "a list of files, one sample per line") from None
    for number, line in enumerate(lines, 1):
        try:
            specs = shlex.split(line, comments=True)
        except ValueError as error:
            raise bad_file(f"{path}:{number}", str(error), "one or more SPECs, as for --inputs") from None
        if specs:
            parts = [spec.rpartition("=") for spec in specs]
            yield parts[0][2], [f"{name}{equals}{path.parent / file}" for name, equals, file in parts]


class StreamedSamples:
    """Samples from a Python iterable, in its order: arrays, feeds, or pairs of either and a label. A batch and its
    labels, as loaders pair them, are a sample for each label."""

    def __init__(self, model: Model, samples: Iterable[Any]) -> None:
        self._model, self._axis, self._samples = model, Axis.of(model), samples
        self._types = {value.name: value for value in (*model.inputs, *model.defaults)}
        self.source = "Python"

    def __iter__(self) -> Iterator[Sample]:
        names = are_names(self._model)
        for place, (feed, own) in enumerate(self._rows()):
            label = as_label(own[0], names) if own else None
            yield Sample(f"sample {place}", self._axis.add_batch_axis(self._model, feed), label)

    def _rows(self) -> Iterator[tuple[Feed, tuple[Any, ...]]]:
        """The arrays of each sample, and its label if it has one."""
        for place, given in enumerate(self._samples):
            own: tuple[Any, ...] = ()
            if _is_pair(given):
                given, own = given[0], (given[1],)
            if not isinstance(given, Mapping):
                if len(self._model.inputs) != 1:
                    raise CallError(
                        "QR003",
                        f"sample {place} is one array, but the model has {len(self._model.inputs)} inputs",
                        fixes=["give a dict of arrays by input name"],
                    )
                given = {self._model.inputs[0].name: given}
            feed = {key: self._value(place, key, value) for key, value in given.items()}
            several = own and (hasattr(own[0], "__array__") or isinstance(own[0], (list, tuple)))
            labels = self._value(place, "its label", own[0]) if several else np.zeros(())
            if labels.ndim != 1 or not self._is_batch(feed, len(labels)):
                yield feed, own
                continue
            for row, each in enumerate(labels):
                yield {key: value[row] for key, value in feed.items()}, (each,)

    def _is_batch(self, feed: Feed, size: int) -> bool:
        """Whether every array has the batch axis of its input, with this number of rows."""
        ranks = {name: len(value.shape) for name, value in self._types.items() if value.shape is not None}
        whole = all(array.ndim == ranks.get(name) for name, array in feed.items())
        return whole and self._axis.size != 0 and all(array.ndim and len(array) == size for array in feed.values())

    def _value(self, place: int, name: str, value: Any) -> Array:
        """Convert a Python value to an array, as the model's input of this name requires if there is one."""
        stated = self._types.get(name)
        try:
            return np.asarray(value) if stated is None else as_input(value, stated)
        except (TypeError, ValueError, RuntimeError) as error:
            facts = [("expected", "an array, or what numpy makes one of"), ("got", f"{type(value).__name__}: {error}")]
            fix = "convert it: tensor.detach().cpu().numpy()"
            message = f"sample {place}: numpy makes no array of {name}"
            raise CallError("QR003", message, facts=facts, fixes=[fix]) from None


def _is_pair(given: Any) -> bool:
    """Whether this is a sample and its label: a tuple of two, or the list that a loader makes of one."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        return False
    return isinstance(given, tuple) or isinstance(given[0], Mapping) or hasattr(given[0], "__array__")


def spec_identity(spec: str) -> str:
    """A text that changes when a file changes: its path, size and time, and for folders the names in it."""
    path = spec.rpartition("=")[2]
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return spec
    inner = sorted(os.listdir(path)) if os.path.isdir(path) else []
    return "\0".join([spec, str(found.st_size), str(found.st_mtime_ns), *inner])


def _digest(parts: Iterable[str]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(part.encode("utf-8", "surrogateescape") + b"\1")
    return made.hexdigest()
