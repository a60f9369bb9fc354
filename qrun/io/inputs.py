"""Turns ``--inputs`` and ``--shape`` into feeds: assigns arrays to graph inputs, and random data to the rest.

A SPEC is ``name=REST`` where `name` is a graph input (the longest that fits) and REST a file, ``-`` or JSON;
otherwise it is a path: .npy (the next input in graph order), .npz (keys are input names), either with ``[17]`` for one
row of the leading axis, .json of Polygraphy (keys are input names), .pb (a TensorProto, next in order), an image (next
in order), a folder with ``input_*.pb``, or
``-``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from qrun.declare import Later
from qrun.declare.frozen import changeable
from qrun.errors import CallError, some
from qrun.io.conversion import AS_GIVEN, Conversion, Uncastable, cast
from qrun.io.feeds import check_feeds, unknown_input
from qrun.io.sizes import fixed_sizes
from qrun.io.storable import restore
from qrun.ir import Array, Model, TensorType
from qrun.ir.compound import join_tensors
from qrun.ir.types import describe
from qrun.memory import Budget, available

if TYPE_CHECKING:
    from qrun.io import arrays, inputerrors
else:
    arrays = Later("qrun.io.arrays")
    inputerrors = Later("qrun.io.inputerrors")


_ROW = re.compile(r"(.+\.np[yz])\[(\d{1,18})\]", re.S)
"""Matches a file with the row of it that is one sample."""
_PART = re.compile(r"(.+?)(\[\d{0,9}\]|\.keys|\.values)", re.S)
"""Matches the name of a tensor in a sequence or a map, as `qrun.ir.compound.tensors` makes it."""
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
"""The suffixes of image files."""


@changeable
class Feeds:
    """Arrays for a model's inputs, with where each came from.

    notes:   conversions and assumptions that the user should know.
    sources: ``x.npy``, ``random, seed 0`` and the like, by input name.
    symbols: sizes of dimensions that were given or assumed. assumed: the sizes that qrun chose because the model leaves
    them open, without those that surely fit. fits: does the model accept some of the sizes that were tried for them?
    written: inputs whose values are written on the command line.
    converted: inputs that were made of images or cast; their sources say how.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    fits: bool = True
    written: set[str] = field(default_factory=set)
    converted: set[str] = field(default_factory=set)


@changeable
class Parts:
    """The tensors of compound inputs read so far, by input and suffix (``[0]``, ``.keys``), and each input's source."""

    found: dict[str, dict[str, Array]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def add(self, known: Mapping[str, TensorType], name: str, array: Array, source: str) -> bool:
        """Add the array if its name is that of a tensor in a known compound input. Returns whether it is."""
        index = None if name in known else _PART.fullmatch(name)
        if index is None or index[1] not in known or known[index[1]].kind == "tensor":
            return False
        self.found.setdefault(index[1], {})[index[2]] = array
        self.sources.setdefault(index[1], source)
        return True

    def values(self) -> Iterator[tuple[str, Array, str]]:
        """Yield name, value and source of each input. Raises CallError if tensors are missing or do not fit."""
        for name, parts in self.found.items():
            value, source = join_tensors(parts), self.sources[name]
            if value is None:
                got = ", ".join(f"{name}{part}" for part in list(parts)[:6])
                expected = f"{name}[0], {name}[1], ... of one type, or {name}.keys and {name}.values"
                raise arrays.bad_file(source, got, expected)
            yield name, value, source


@changeable
class _Reader:
    """Assigns specs to inputs: named ones first, then files without a name in graph order. images: how the image of
    each spec was made."""

    model: Model
    budget: Budget
    stdin: IO[bytes] | None
    feeds: Feeds
    conversion: Conversion = AS_GIVEN
    images: dict[str, str] = field(default_factory=dict)
    nameless: list[tuple[Array, str]] = field(default_factory=list)
    parts: Parts = field(default_factory=Parts)

    @property
    def known(self) -> dict[str, TensorType]:
        """The model's inputs by name, with those that have defaults."""
        return _inputs_by_name(self.model)

    def give(self, name: str, array: Array, source: str) -> None:
        """Take an array as the value of an input. Raises CallError for unknown and repeated names."""
        if name not in self.known:
            raise unknown_input(self.model, name, source)
        if name in self.feeds.arrays:
            raise inputerrors.repeated_input(self.model, name, self.feeds.sources[name], source)
        value = self.known[name]
        if value.dtype is not None:
            array, done = restore(array, value.dtype)
            if done:
                self.feeds.notes.append(f"input {name}: {done} ({source})")
            array, source = self.convert(value, array, source)
        self.budget.hold(array, f"input {name}")
        self.feeds.arrays[name] = array
        self.feeds.sources[name] = source

    def convert(self, value: TensorType, array: Array, source: str) -> tuple[Array, str]:
        """The array in the input's element type if that is wanted, and its source with what was done to it."""
        how = self.images.get(source, "")
        if self.conversion.cast and value.dtype is not None:
            try:
                array, done = cast(array, value.dtype)
            except Uncastable as error:
                raise inputerrors.uncastable(self.model, value, array, source, str(error)) from None
            how = ", ".join(filter(None, [how, done]))
        if how:
            self.feeds.converted.add(value.name)
        return array, f"{source}: {how}" if how else source

    def read(self, spec: str) -> None:
        """Read one -i option: FILE, or NAME=FILE or value."""
        name, rest = split_name(self.model, spec)
        if not rest:
            raise inputerrors.no_file(self.model, name, spec)
        if name:
            self.read_named(name, rest)
        elif "=" in spec and not os.path.exists(spec) and not (spec[-1] == "/" or "/" in spec.partition("=")[0]):
            wrong, _, rest = spec.partition("=")
            raise (
                unknown_input(self.model, wrong, rest) if wrong else inputerrors.no_name(self.model, spec, self.free())
            )
        else:
            self.path(spec)

    def read_named(self, name: str, rest: str) -> None:
        """Read the value of a named input: an inline list, or a file."""
        from qrun.io import inline

        others = [other for other in self.known if f",{other}=" in rest]
        try:
            value = inline.parse(rest, self.known[name].kind != "tensor")
        except CallError:
            if others:
                raise inputerrors.several_inputs(self.model, name, rest, others) from None
            raise
        if value is not inline.NOTHING:
            array = inline.to_value(self.model, self.known[name], value, rest)
            self.feeds.notes.append(f"input {name}: {inline.shorten(rest)} read as {describe(array)}")
            self.give(name, array, inline.shorten(rest))
            self.feeds.written.add(name)
            return
        if others and not os.path.exists(rest):
            raise inputerrors.several_inputs(self.model, name, rest, others)
        try:
            found = self.load(rest, self.known[name])
        except CallError as error:
            raise inputerrors.maybe_text(error, self.known[name], rest) from None
        if isinstance(found, dict):
            if len(found) != 1:
                fix = f"-i {rest} without a name gives each array to the input of its key"
                if not found.keys() <= self.known.keys():
                    fix = f"keep one array in it: {inputerrors.how_to_write([name])}"
                raise arrays.bad_file(rest, f"{len(found)} arrays: {', '.join(list(found)[:6])}", "one array", fix=fix)
            found = list(found.values())
        if len(found) != 1:
            raise arrays.bad_file(rest, f"{len(found)} arrays", "one array")
        self.give(name, found[0], "stdin" if rest == "-" else rest)

    def free(self) -> TensorType | None:
        """The input that the next file without a name is for; None if none is left."""
        free = [v for v in self.model.inputs if v.name not in self.feeds.arrays][len(self.nameless) :]
        return free[0] if free else None

    def path(self, spec: str) -> None:
        """Read a file, folder or stdin that names no input."""
        value = self.free()
        if spec[:1] == "[" and not os.path.exists(spec):
            raise inputerrors.no_name(self.model, spec, value)
        found = self.load(spec, value)
        source = "stdin" if spec == "-" else spec
        if isinstance(found, dict):
            for name, array in found.items():
                if self.parts.add(self.known, name, array, source):
                    continue
                if name not in self.known:
                    raise inputerrors.unknown_key(self.model, name, found, source)
                self.give(name, array, source)
        else:
            self.nameless += [(array, source) for array in found]

    def load(self, spec: str, value: TensorType | None) -> dict[str, Array] | list[Array]:
        """The arrays of a file: by name from an archive, else in order. `value` is the next free input."""
        path = Path(spec)
        if spec == "-":
            return arrays.read_stream(self.take_stdin(), "stdin", self.budget)
        if path.suffix.lower() in IMAGES and value is not None:
            from qrun.io.images import read_image

            array, self.images[spec] = read_image(spec, value, self.conversion.image, self.budget)
            return [array]
        if os.path.isdir(path):
            return self.folder(path)
        if (row := _ROW.fullmatch(spec)) and not path.exists():
            return self.row(row[1], int(row[2]), spec, value)
        if (path.suffix.lower() == ".json" or spec.endswith("]")) and (found := self.polygraphy(spec)):
            return found
        if path.suffix == ".pb":
            from qrun.ir.tensorfile import read_value

            return [read_value(path, value, self.budget)[1]]
        try:
            with open(path, "rb") as stream:
                start = stream.read(len(arrays.NPY))
        except (OSError, ValueError) as error:
            raise arrays.no_such_file(path, error) from None
        if start.startswith(arrays.ZIP) or (path.suffix == ".npz" and start != arrays.NPY):
            with open(path, "rb") as stream:
                return self.archive(spec, stream)
        return [arrays.read_npy(path, self.budget)]

    def polygraphy(self, spec: str) -> dict[str, Array]:
        """The arrays of ``FILE.json`` or ``FILE.json[2]`` by name; {} for other files."""
        from qrun.io import polygraphy

        file, number = polygraphy.split_turn(spec)
        return polygraphy.read(spec, self.budget) if number is not None or file.lower().endswith(".json") else {}

    def row(self, file: str, number: int, spec: str, value: TensorType | None) -> dict[str, Array] | list[Array]:
        """Read one row of a file with a leading axis of samples: ``x.npy[17]``."""
        from qrun.io.rows import one_row

        found = one_row(file, number, spec, lambda key: self.known.get(key) or value, self.budget)
        return [found[""]] if "" in found else found

    def archive(self, spec: str, stream: IO[bytes]) -> dict[str, Array]:
        """The arrays of an .npz file. Raises CallError if it is empty."""
        found = arrays.read_npz(spec, stream, self.budget)
        if not found and self.model.inputs:
            names = [value.name for value in self.model.inputs]
            raise arrays.bad_file(
                spec, "no arrays", f"arrays for {', '.join(names[:6])}", fix=inputerrors.how_to_write(names)
            )
        return found

    def folder(self, path: Path) -> list[Array]:
        """The arrays of input_0.pb, input_1.pb, ... in a folder."""
        from qrun.ir.tensorfile import read_value

        files = list(arrays.numbered_files(path, "input"))
        if not files and (any(path.glob("output_*.pb")) or not self.model.inputs):
            return []
        if not files:
            fix = inputerrors.what_inside(path)
            raise arrays.bad_file(
                str(path), "no input_0.pb in that folder", "a folder with input_0.pb, input_1.pb, ...", fix=fix
            )
        stated = [*self.model.inputs, *[None] * len(files)]
        found = []
        for file, value in zip(files, stated, strict=False):
            found.append(read_value(file, value, self.budget)[1])
            self.budget.hold(found[-1], str(file))
        return found

    def take_stdin(self) -> IO[bytes]:
        """The stream of stdin. Raises CallError if it was read before, or is a terminal."""
        if self.stdin is None:
            fixes = ["write one of them to a file first"]
            raise CallError("QR005", "only one - may read stdin", facts=[("got", "a second -")], fixes=fixes)
        stream, self.stdin = self.stdin, None
        if stream.isatty():
            raise CallError("QR005", "- reads stdin, but stdin is a terminal", fixes=["qrun MODEL -i - < x.npy"])
        return stream

    def assign_nameless(self) -> None:
        """Give arrays without a name to the free inputs, in order. Raises CallError if there are too many."""
        free = [v.name for v in self.model.inputs if v.name not in self.feeds.arrays]
        if len(self.nameless) > len(free):
            array, source = self.nameless[len(free)]
            taken = [f"{n} ({s})" for n, s in self.feeds.sources.items()] or [source for _, source in self.nameless]
            names = some([v.name for v in self.model.inputs], 12)
            fix = "-i NAME=FILE says which input a file is for" if names else "qrun MODEL runs it without"
            what = f"no input is left for {source}"
            facts = [("inputs", names or "none"), ("given", some(taken, 12))]
            raise CallError("QR002", what, where=[self.model.label], facts=facts, fixes=[self.model.fill_in(fix)])
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
    conversion: Conversion = AS_GIVEN,
    refuses: Callable[[Mapping[str, Array]], bool] = lambda feeds: False,
) -> Feeds:
    """Feeds for a model from ``--inputs``, ``--shape``, ``--random`` and ``--seed``.

    Without any spec, every input gets random data. refuses: returns whether the model cannot run with some feeds; free
    axes of random inputs then get other sizes. Raises CallError for anything that does not fit.
    """
    stream = stdin if stdin is not None else sys.stdin.buffer if sys.stdin is not None else None
    free = available() if max_memory is None else None
    budget = Budget(max_memory if free is None else free * 4 // 5)
    sizes = fixed_sizes(model, shapes)
    feeds = gather(model, specs, budget, stream, conversion)
    feeds.symbols = dict(sizes.symbols)
    if feeds.arrays and any(value.name not in feeds.arrays for value in model.inputs):
        from qrun.io.decoder import complete

        complete(model, feeds.arrays, feeds.sources)
    checked = check_feeds(
        model, feeds.arrays, feeds.sources, sizes=sizes, partial=random or not specs, written=feeds.written
    )
    feeds.arrays = checked
    missing = [v for v in model.inputs if v.name not in checked]
    if missing:
        from qrun.io.randoms import is_batch_name, random_feeds

        made = random_feeds(model, missing, checked, sizes, seed, budget, refuses)
        arrays = {**checked, **made.arrays}
        feeds.arrays = {v.name: arrays[v.name] for v in model.inputs} | checked
        feeds.sources |= made.sources
        feeds.notes.append(made.note)
        feeds.symbols |= made.sizes
        ones = {name for name, size in made.sizes.items() if size == 1 and (made.fits or is_batch_name(name))}
        feeds.assumed = tuple(name for name in made.sizes if name not in ones) or tuple(made.sizes)
        feeds.fits = made.fits
    return feeds


def gather(
    model: Model, specs: Sequence[str], budget: Budget, stdin: IO[bytes] | None, conversion: Conversion = AS_GIVEN
) -> Feeds:
    """Read the arrays that specs name, by input, into the budget, without checking that they fit. Raises CallError."""
    reader = _Reader(model, budget, stdin, Feeds(), conversion)
    for spec in sorted(specs, key=lambda s: not split_name(model, s)[0]):
        reader.read(spec)
    for name, value, source in reader.parts.values():
        reader.give(name, value, source)
    reader.assign_nameless()
    return reader.feeds


def files_read(model: Model, specs: Sequence[str]) -> dict[str, str]:
    """The paths of the model's files and of the files that these specs name, each with a description for messages."""
    found = {str(model.path): "the model of this command"} if model.path else {}
    folder = model.path.parent if model.path else Path()
    found |= {str(folder / name): "a file of the model's data" for name in model.external_files}
    return found | {split_name(model, spec)[1]: "an input of this command" for spec in specs}


def split_name(model: Model, spec: str) -> tuple[str, str]:
    """Split a spec into the longest input name that it starts with ("" if none) and the rest."""
    name = max((n for n in _inputs_by_name(model) if spec.startswith(n + "=")), key=len, default="")
    return (name, spec[len(name) + 1 :]) if name else ("", spec)


def _inputs_by_name(model: Model) -> dict[str, TensorType]:
    """The model's inputs by name, with those that have defaults."""
    return {v.name: v for v in (*model.inputs, *model.defaults)}
