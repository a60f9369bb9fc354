"""Images: results that depend on a model's file alone, kept on disk beside the compiled kernels.

The key of an image covers all bytes of the model, the bytes of its external data or the state of these files
(`ir/external.py`), qrun's sources, the versions of its libraries, and the request. An image says how large weights are
packed, and does not hold them. Its content is as good as made now: it was checked when it was made, and its file is
trusted only as those of kernels are (native/machine/cache.py). Anything that cannot be kept is made each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from qrun.declare.frozen import replace
from qrun.declare.stored import borrow, constants_of, parts
from qrun.ir import Array, Model
from qrun.native.machine.engine import Engine
from qrun.ops import Arith, has_custom_operators
from qrun.passes import Functions, Optimized, Refusal
from qrun.running.compiled import Compiled
from qrun.running.execution import RunResult, RunsLeft
from qrun.running.kept import versions
from qrun.running.kept.packed import (
    Bundle,
    Unstorable,
    pack_node,
    pack_type,
    unpack,
    unpack_node,
    unpack_type,
)
from qrun.running.kept.programs import KeptProgram, has_bodies, pack_program, unpack_program
from qrun.running.programs import KEPT, forms, surplus

T = TypeVar("T")
_MARK = ".planned"
MOST = 8
"""The most programs that each session keeps on disk for runs that do not observe: writing one takes longer than many
runs. A model that meets more shapes, such as a decoder with a growing cache, meets other shapes in later processes."""
OFTEN = 8
"""Runs with inputs of the same shapes after which such a program is written: writing takes longer than that."""


class Images:
    """The images of one model, for one arithmetic and one choice of fusing."""

    def __init__(self, engine: Engine, model: Model, arith: Arith, fuse: bool) -> None:
        self._engine, self._model, self._arith, self._fuse = engine, model, arith, fuse
        self._store = engine.kernels.cache

    @classmethod
    def of(cls, engine: Engine | None, model: Model, arith: Arith, fuse: bool) -> Images | None:
        """The images of a model; None without an engine or a usable cache, for a small model that is in no file, and
        for a model with custom operators, whose code may change."""
        if engine is None or model.content is None or engine.kernels.cache.refused or has_custom_operators(model):
            return None
        return cls(engine, model, arith, fuse)

    @property
    def planned(self) -> bool:
        """Whether a process has planned the model, so that nothing in it is missing or wrong."""
        return self._store.load(self._key("planned"), _MARK) is not None

    def values(self, name: str, make: Callable[[], T]) -> T:
        """The plain values that `make` computes from the model and its label, now or in an earlier process."""
        key = self._key("values", name, self._model.label)
        found = self._load(key)
        if found is not None:
            kept: T = found[0]
            return kept
        made = make()
        self._save(key, lambda bundle: made)
        return made

    def program(self, keep: tuple[str, ...], observe: bool, feeds: Mapping[str, Array]) -> KeptProgram | None:
        """The program that an earlier process made for these outputs and such inputs; None if there is none."""
        for kind in ((False, True), (True, False), (observe,)):
            packed = self._load(self._program_key(keep, kind, feeds))
            if packed is not None:
                found = unpack_program(*packed, self._model, keep, self._engine, self._arith)
                if not observe or found.told is not None:
                    return found
        return None

    def keep(
        self,
        compiled: Compiled,
        serves: tuple[bool, ...],
        feeds: Mapping[str, Array],
        first: RunResult,
        held: Mapping[int, int] | None = None,
    ) -> None:
        """Keep a program. first: a run with such inputs; held: bytes while each of its steps ran, if known. serves: the
        kinds of runs that the program serves, True for those that observe; the kind of `first` comes first."""
        observed = first if serves[0] else None
        key = self._program_key(compiled.plan.keep, serves, feeds)
        if has_bodies(compiled.plan.model.nodes) and self._load(key) is not None:
            return  # runs that observe cannot use it, and would write it again each time
        if self._save(key, lambda bundle: pack_program(compiled, observed, held or {}, self._model, bundle)):
            self._store.save(self._key("planned"), b"", _MARK)

    def _program_key(self, keep: tuple[str, ...], kind: object, feeds: Mapping[str, Array]) -> str:
        """The cache key of a program for inputs of these shapes and types."""
        told = [(name, shape, dtype.type.__name__) for name, shape, dtype in forms(feeds)]
        return self._key("program", self._engine.isa.name, self._engine.threads, kind, keep, told)

    def load_or_optimize(self, keep: frozenset[str], functions: Functions, make: Callable[[], Optimized]) -> Optimized:
        """The model that `make` optimizes, now or in an earlier process. keep, functions: as `qrun.passes.optimize`
        takes them."""
        key = self._key("optimized", functions, sorted(keep))
        found = self._load(key)
        if found is not None:
            return _unpack_optimized(self._model, *found)
        made = make()
        self._save(key, lambda bundle: _index(self._model, made, bundle))
        return made

    def _load(self, key: str) -> tuple[Any, Sequence[Array]] | None:
        """Load a cache entry: its index and arrays; None if there is none."""
        body = self._store.map_entry(key, versions.SUFFIX)
        return None if body is None else unpack(body)

    def _save(self, key: str, packed: Callable[[Bundle], Any]) -> bool:
        """Store the value of `packed`, with its arrays in the bundle; False if it cannot be stored."""
        bundle = Bundle()
        try:
            parts = bundle.parts(packed(bundle))
        except Unstorable:
            return False
        self._store.save_parts(key, parts, versions.SUFFIX)
        return True

    def _key(self, *parts: object) -> str:
        """A cache key that names the version, the model and the settings."""
        assert self._model.content is not None
        return f"{versions.version()} {self._model.content.digest} {self._arith} {self._fuse} {parts!r}"


class KeptPrograms:
    """The programs that a session takes from earlier processes, and keeps for later ones. Safe to use from several
    threads."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._found: dict[tuple[Any, ...], KeptProgram | None] = {}
        self._awaited: dict[tuple[Any, ...], RunsLeft] = {}
        self._opened = set[bool]()
        self._wanted = 0
        self._lock = threading.Lock()

    def find(
        self, keep: tuple[str, ...], observe: bool, feeds: Mapping[str, Array], known: bool = False
    ) -> KeptProgram | None:
        """The program for these outputs and inputs of these shapes, if any. known: do not look for it on disk."""
        key = _key(keep, observe, feeds)
        with self._lock:
            if key in self._found:
                self._found[key] = self._found.pop(key)
            elif known:
                return None
            else:
                self._put(key, self._images.program(keep, observe, feeds))
            return self._found[key]

    def put(self, keep: tuple[str, ...], observe: bool, feeds: Mapping[str, Array], program: KeptProgram) -> None:
        """Use this program for such runs from now on."""
        with self._lock:
            self._put(_key(keep, observe, feeds), program)

    def drop(self, keep: tuple[str, ...], observe: bool, feeds: Mapping[str, Array]) -> None:
        """Stop using the program for such runs: it could not run."""
        with self._lock:
            self._put(_key(keep, observe, feeds), None)

    def opens(self, keep: tuple[str, ...], observe: bool, feeds: Mapping[str, Array]) -> bool:
        """Whether to keep the program for these outputs and inputs at once: only at the session's first run that
        observes, or does not, for which none was kept. Other shapes may never come again; their program is kept after
        OFTEN runs."""
        with self._lock:
            key = _key(keep, False, feeds)
            while key not in self._awaited and len(self._awaited) >= KEPT:
                del self._awaited[next(iter(self._awaited))]
            first = observe not in self._opened
            self._opened.add(observe)
            if observe:
                return first
            self._awaited.setdefault(key, RunsLeft(1 if first else OFTEN))
            return first

    def wants(self, keep: tuple[str, ...], feeds: Mapping[str, Array]) -> bool:
        """Whether to keep the program that just ran for these: True once for each key, and at most MOST times."""
        with self._lock:
            awaited = self._awaited.get(_key(keep, False, feeds))
            if awaited is None:
                return False
            awaited.left -= 1
            wanted = awaited.left == 0 and self._wanted < MOST
            self._wanted += wanted
            return wanted

    def runs_left(self, keep: tuple[str, ...], feeds: Mapping[str, Array]) -> RunsLeft | None:
        """The counter of the runs until the program for these is kept; None if it will not be kept later."""
        with self._lock:
            found = self._awaited.get(_key(keep, False, feeds))
            return found if found is not None and found.left > 0 and self._wanted < MOST else None

    def add(
        self,
        made: Compiled | None,
        serves: tuple[bool, ...],
        feeds: Mapping[str, Array],
        first: RunResult,
        held: Mapping[int, int] | None = None,
    ) -> None:
        """Keep a program, as `Images.keep` does."""
        if made is not None:
            self._images.keep(made, serves, feeds, first, held)

    def _put(self, key: tuple[Any, ...], program: KeptProgram | None) -> None:
        """Keep a program, and drop the oldest ones beyond the limit."""
        self._found.pop(key, None)
        self._found[key] = program
        sizes = {key: found.compiled.program.listing.nbytes if found else 0 for key, found in self._found.items()}
        for old in surplus(sizes):
            del self._found[old]


def _key(keep: tuple[str, ...], observe: bool, feeds: Mapping[str, Array]) -> tuple[Any, ...]:
    """The key of a program for inputs of these shapes and types."""
    return keep, observe, forms(feeds)


def _index(model: Model, made: Optimized, bundle: Bundle) -> Any:
    """The parts of an optimized model that differ from the model itself, as plain values."""
    if made.model is model:
        return None, dict(made.groups), _refusals(made)
    old, new = parts(model.constants), parts(made.model.constants)
    constants = {name: None if old.get(name) is part else bundle.array(borrow(part)) for name, part in new.items()}
    nodes = tuple(pack_node(node, bundle) for node in made.model.nodes)
    types = [v for name, v in made.model.types.items() if model.types.get(name) is not v]
    return (
        (nodes, constants, dict(made.model.opsets), tuple(map(pack_type, types))),
        dict(made.groups),
        _refusals(made),
    )


def _refusals(made: Optimized) -> tuple[tuple[int, str, str], ...]:
    """The refusals as tuples, to be stored."""
    return tuple((refusal.index, refusal.name, refusal.reason) for refusal in made.refused)


def _unpack_optimized(model: Model, index: Any, arrays: Sequence[Array]) -> Optimized:
    """An optimized model from a cache entry."""
    changed, groups, refusals = index
    refused = tuple(Refusal(*refusal) for refusal in refusals)
    if changed is None:
        return Optimized(model, groups, refused)
    (nodes, constants, opsets, types), stored = changed, parts(model.constants)
    made = replace(
        model,
        nodes=tuple(unpack_node(node, arrays) for node in nodes),
        constants=constants_of({name: stored[name] if n is None else arrays[n] for name, n in constants.items()}),
        opsets=opsets,
        types={**model.types, **{fields[0]: unpack_type(fields) for fields in types}},
    )
    return Optimized(made, groups, refused)
