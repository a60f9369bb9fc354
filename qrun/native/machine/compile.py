"""Compiles kernel specifications to callable machine code, through llvmlite, in memory, and caches it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from functools import cache
from typing import Any

from qrun.declare.digest import digest
from qrun.declare.frozen import changeable, frozen
from qrun.native.emit.isa import ISAS, Isa
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine import blob, codegen
from qrun.native.machine.cache import ObjectCache
from qrun.native.machine.call import CompiledKernel, KernelCall
from qrun.native.machine.memory import Array
from qrun.native.machine.meter import Meter
from qrun.native.machine.threads import Awaited, Builder

_LEAD = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4)
_FOLLOW = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5)
_DIRECT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_TICKS = ctypes.CFUNCTYPE(ctypes.c_int64)
Emitted = tuple[str, tuple[str, ...]]
"""LLVM IR, and the names of the argument struct's words."""


@frozen
class Runner:
    """The functions of emit/runner.py as ctypes functions; their arguments are addresses and nonnegative numbers. They
    run without the GIL."""

    lead: Any
    follow: Any
    direct: Any
    meter: Meter

    @property
    def leads(self) -> int:
        """The address of `lead`, which machine code also calls."""
        return int(ctypes.cast(self.lead, ctypes.c_void_p).value or 0)


@changeable
class Kernels:
    """The compiled kernels of one process, by specification. Safe to use from several threads.

    compiled, loaded: how many kernels were built, and how many came from the object cache.
    """

    cache: ObjectCache = field(default_factory=lambda: ObjectCache(None))
    compiled: int = 0
    loaded: int = 0
    _ready: dict[KernelSpec, CompiledKernel] = field(default_factory=dict)
    _walks: Awaited[Any] | None = None
    _runner: Runner | None = None
    _engines: list[Any] = field(default_factory=list)
    _builder: Builder = field(default_factory=Builder)
    _llvm: Awaited[Any] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, spec: KernelSpec) -> CompiledKernel:
        """The kernel, which a thread may still be compiling. Most kernels take no memory of the calling thread, and
        ignore the third argument. Raises Declined where it cannot be compiled."""
        with self._lock:
            kernel = self._ready.get(spec)
            if kernel is None:
                isa = next(isa for isa in ISAS if isa.name == spec.isa)
                kernel = self._ready[spec] = CompiledKernel(*self._load(spec.key(), isa, lambda: emit_code(spec)))
            return kernel

    def call(
        self,
        spec: KernelSpec,
        operands: Sequence[str] | Mapping[str, int],
        words: Mapping[str, int],
        extents: Sequence[int],
        arrays: Mapping[str, Array] | None = None,
        *,
        sparse: bool = False,
        **fields: Any,
    ) -> KernelCall:
        """A call of the kernel with this specification, compiled if necessary.

        operands: the word that points to each operand of the operation, in order; or the operand's number by word.
        words:    values in the argument struct, by name: `tiles`, and the offsets of operands that are not 0.
        extents, fields: as those of KernelCall.
        arrays:   other arrays that the struct points to, by word.
        sparse:   whether missing words are 0; else a missing word raises KeyError.
        """
        kernel, held = self.get(spec), arrays or {}
        pointing = operands if isinstance(operands, Mapping) else {name: n for n, name in enumerate(operands)}
        pointers = tuple([(kernel.word(name), operand) for name, operand in pointing.items()])
        keep = tuple(held.values())
        arguments = kernel.struct({**dict.fromkeys(pointing, 0), **words}, held, sparse)
        return KernelCall(spec, kernel, arguments, pointers, tuple(extents), words["tiles"], keep=keep, **fields)

    def begin(self, isa: Isa, specs: Sequence[KernelSpec] = ()) -> None:
        """Prepare for many kernels: unless the cache has the functions that walk a program, let a thread load LLVM, and
        compile these kernels and those functions."""
        with self._lock:
            if self.cache.has(self._key("runner", isa), _suffix()):
                return
            self._llvm = self._llvm or self._builder.run_later(codegen.begin)
        self._builder.run_later(lambda: [*map(self.get, specs), self._load_runner(isa)])

    def end(self) -> None:
        """End the thread that compiles ahead."""
        self._builder.end()

    def speculate(self) -> AbstractContextManager[None]:
        """A context for requests of kernels that may not be needed: the thread compiles them only while it has nothing
        else to do."""
        return self._builder.speculate()

    def finish(self, kernels: Iterable[CompiledKernel], isa: Isa) -> None:
        """Wait until these kernels and the functions that walk a program are compiled; this thread compiles, too.
        Raises what compiling raised."""
        self._builder.finish([self._load_runner(isa), *dict.fromkeys(kernel.code for kernel in kernels)])

    def blobs(self, specs: Sequence[KernelSpec], isa: Isa) -> tuple[tuple[str, bytes], ...]:
        """The argument of `adopt`: the words of each of these kernels and its blob, and last the blob of the functions
        that walk a program. Empty if the code of one of them is no blob."""
        kernels = [self.get(spec) for spec in specs]
        codes = [*(kernel.code.get() for kernel in kernels), self._load_runner(isa).get()]
        if not all(isinstance(code, blob.Blob) for code in codes):
            return ()
        names = [*(" ".join(kernel.names) for kernel in kernels), ""]
        return tuple((words, code.body) for words, code in zip(names, codes, strict=True))

    def adopt(self, specs: Sequence[KernelSpec], kept: Sequence[tuple[str, bytes]]) -> None:
        """Load the kernels that this process lacks from a result of `blobs`: that is faster than from the cache."""
        if not (blob.USABLE and kept):
            return
        with self._lock, contextlib.suppress(OSError):
            missing = [number for number, spec in enumerate(specs) if spec not in self._ready]
            missing += [len(specs)] if self._walks is None else []
            codes = blob.load_blobs([kept[number][1] for number in missing]) if missing else []
            for number, code in zip(missing, codes, strict=True):
                if number < len(specs):
                    self._ready[specs[number]] = CompiledKernel(Awaited(code), tuple(kept[number][0].split()))
                else:
                    self._walks = Awaited(code)
            self._engines += codes
            self.loaded += len(codes)

    def runner(self, isa: Isa) -> Runner:
        """The functions that walk a program."""
        code = self._load_runner(isa).get()
        with self._lock:
            if self._runner is None:
                kinds = {"lead": _LEAD, "follow": _FOLLOW, "direct": _DIRECT}
                found = {name: kind(code.get_function_address(name)) for name, kind in kinds.items()}
                ticks, empty = (code.get_function_address(name) for name in ("ticks", "empty"))
                self._runner = Runner(**found, meter=Meter.of(found["lead"], _TICKS(ticks), empty))
            return self._runner

    def _load_runner(self, isa: Isa) -> Awaited[Any]:
        """Load or compile the code that runs programs; done once."""
        with self._lock:
            if self._walks is None:
                self._walks, _ = self._load("runner", isa, lambda: (_runner_text(isa), ()))
            return self._walks

    def _load(self, name: str, isa: Isa, emit: Callable[[], Emitted]) -> tuple[Awaited[Any], tuple[str, ...]]:
        """The code, and the names stored with it; an entry of the cache is a line of names before the code."""
        key = self._key(name, isa)
        entry = self.cache.load(key, _suffix())
        if entry is not None:
            self.loaded += 1
            names, body = _split(entry)
            return Awaited(self._code(key, isa, body, names, lambda: emit()[0])), names
        text, names = emit()
        self.compiled += 1
        self._llvm = self._llvm or Awaited(make=codegen.begin)
        self._llvm.get()
        return self._builder.run_later(lambda: self._build(key, isa, text, names), len(text), not _alone(name)), names

    def _build(self, key: str, isa: Isa, text: str, names: Sequence[str]) -> Any:
        """Compile this IR, save the code in the cache, and load it."""
        body = (
            (blob.blob_of(codegen.compile_object(text, isa, flat=True)) or b"")
            if blob.USABLE
            else codegen.compile_object(text, isa)
        )
        self.cache.save(key, _entry(names, body), _suffix())
        return self._code(key, isa, body, names, lambda: text)

    def _code(self, key: str, isa: Isa, body: bytes, names: Sequence[str], text: Callable[[], str]) -> Any:
        """The loaded code: a blob, without LLVM; or LLVM's engine, if no blob was made or it cannot be mapped."""
        found = _blob(body) if blob.USABLE else codegen.load_object(body, isa)
        if found is None:
            entry = self.cache.load(key, ".o")
            if entry is None:
                entry = _entry(names, codegen.compile_object(text(), isa))
                self.cache.save(key, entry, ".o")
                self.compiled += 1
            found = codegen.load_object(_split(entry)[1], isa)
        self._engines.append(found)
        return found

    def _key(self, name: str, isa: Isa) -> str:
        """The cache key of compiled code."""
        return f"{_fingerprint()} {isa.cpu} {isa.features} {name}"


def _alone(name: str) -> bool:
    """Whether programs seldom call this kernel, because fusing makes it part of another one (plan/fusing.py), or its
    copy is not needed. Such kernels are compiled on request, not ahead."""
    kind, of = name.partition("-")[0], {"shares": "-shares-", "dense": "-i32-i32-"}
    return kind in ("elementwise", "runs") or (kind in of and of[kind] in name)


def _blob(body: bytes) -> blob.Blob | None:
    """Compiled code loaded from a cache entry; None if there is none, or it cannot be loaded."""
    with contextlib.suppress(OSError):
        return blob.load_blobs([body])[0] if body else None
    return None


def _suffix() -> str:
    """The suffix of files with compiled code."""
    return ".blob" if blob.USABLE else ".o"


def _entry(names: Sequence[str], body: bytes) -> bytes:
    """A cache entry: the words of the call, then the code."""
    return " ".join(names).encode() + b"\n" + body


def _split(entry: bytes) -> tuple[tuple[str, ...], bytes]:
    """The words of the call, and the code, of a cache entry."""
    head, _, body = entry.partition(b"\n")
    return tuple(head.decode().split()), body


def emit_code(spec: KernelSpec) -> Emitted:
    """The code that the emitter of this kind writes."""
    from qrun.native.emit.kernel import emitters

    isa = next(isa for isa in ISAS if isa.name == spec.isa)
    emitter = emitters()[spec.kind](spec, isa)
    return emitter.text(), tuple(emitter.names)


def kernel_text(spec: KernelSpec) -> str:
    """The LLVM IR of a kernel."""
    return emit_code(spec)[0]


def _runner_text(isa: Isa) -> str:
    """The LLVM IR of the code that runs programs."""
    from qrun.native.emit.runner import runner_text

    return runner_text(isa.architecture)


@cache
def _fingerprint() -> str:
    """Identifies the emitters' sources, llvmlite, the system and the architecture, without importing llvmlite. `_key`
    adds the CPU, its features and the specification."""
    machine = os.path.dirname(__file__)
    native = os.path.dirname(machine)
    folders = os.path.join(native, "emit"), os.path.join(os.path.dirname(native), "formulas"), machine
    written = [os.path.join(f, name) for f in folders for name in sorted(os.listdir(f)) if name.endswith(".py")]
    sources = digest(*map(_content, written))
    return f"{sources} {codegen.llvmlite_version()} {sys.platform} {platform.machine()}"


def _content(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb", buffering=0) as file:
        return file.read()
