"""From kernel specifications to callable machine code, through llvmlite, in memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qrun.declare.digest import digest
from qrun.declare.frozen import changeable, frozen
from qrun.native.emit.isa import ISAS, Isa, host_architecture
from qrun.native.emit.spec import KernelSpec
from qrun.native.errors import Declined
from qrun.native.machine import image
from qrun.native.machine.cache import ObjectCache
from qrun.native.machine.call import KernelCall, struct
from qrun.native.machine.memory import Ints

_KERNEL: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3)
_LEAD = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 7)
_FOLLOW = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)
Array = np.ndarray[Any, Any]

Emitted = tuple[str, tuple[str, ...]]
"""LLVM IR, and the names of the argument struct's words."""


class CompiledKernel(_KERNEL):  # type: ignore[misc]
    """A kernel as a ctypes function (argument struct, tile counter, memory of the thread) -> tiles done, without the GIL.

    names: of its struct's int64 words, as its emitter explains them; those that end with * are addresses. They are kept
           with the code, so that who fills the struct of a kernel from the cache imports no emitter.
    """

    _flags_, _restype_, _argtypes_ = _KERNEL._flags_, _KERNEL._restype_, _KERNEL._argtypes_
    names: tuple[str, ...]

    def struct(self, words: Mapping[str, int], arrays: Mapping[str, Array] | None = None) -> Ints:
        """A struct with these words, and addresses of arrays, by name; KeyError if one is missing."""
        return struct(self.names, words, arrays or {})

    def word(self, name: str) -> int:
        """The number of a word."""
        return self.names.index(name)


@frozen
class Runner:
    """The functions of emit/runner.py, as ctypes functions of int64 numbers and addresses; they run without the GIL."""

    lead: Any
    follow: Any


def address_of(kernel: Any) -> int:
    """Where a kernel's code is."""
    return int(ctypes.cast(kernel, ctypes.c_void_p).value or 0)


@changeable
class Kernels:
    """The compiled kernels of one process, by specification. Safe to use from several threads.

    compiled, loaded: how many kernels were built, and how many came from the object cache.
    """

    cache: ObjectCache = field(default_factory=lambda: ObjectCache(None))
    compiled: int = 0
    loaded: int = 0
    _ready: dict[KernelSpec, CompiledKernel] = field(default_factory=dict)
    _runner: Runner | None = None
    _engines: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, spec: KernelSpec) -> CompiledKernel:
        """The kernel. Most take no memory of the calling thread, and do not look at the third argument."""
        with self._lock:
            kernel = self._ready.get(spec)
            if kernel is None:
                kernel = self._ready[spec] = self._make(spec)
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
        """A call of the kernel of this specification, compiled if need be.

        operands: the word that points to each operand of the operation, in order; or which operand it is, by word.
        words:    what is in the argument struct, by name: `tiles`, and the offsets of operands that are not 0.
        extents, fields: as those of KernelCall.
        arrays:   what else the struct points to, by word.
        sparse:   whether words that are not given are 0; else one that is missing raises KeyError.
        """
        kernel, held = self.get(spec), arrays or {}
        pointing = operands if isinstance(operands, Mapping) else {name: n for n, name in enumerate(operands)}
        filled = {**dict.fromkeys(kernel.names if sparse else pointing, 0), **words}
        pointers = tuple((kernel.word(name), operand) for name, operand in pointing.items())
        keep = tuple(held.values())
        arguments = kernel.struct(filled, held)
        return KernelCall(spec, kernel, arguments, pointers, tuple(extents), words["tiles"], keep=keep, **fields)

    def runner(self, isa: Isa) -> Runner:
        """The functions that walk a program."""
        with self._lock:
            if self._runner is None:
                engine, _ = self._load("runner", isa, lambda: (_runner_text(isa), ()))
                lead, follow = (engine.get_function_address(name) for name in ("lead", "follow"))
                self._runner = Runner(_LEAD(lead), _FOLLOW(follow))
            return self._runner

    def _make(self, spec: KernelSpec) -> CompiledKernel:
        isa = next(isa for isa in ISAS if isa.name == spec.isa)
        engine, names = self._load(spec.key(), isa, lambda: emitted(spec))
        kernel = CompiledKernel(engine.get_function_address("kernel"))
        kernel.names = names
        return kernel

    def _load(self, name: str, isa: Isa, emit: Callable[[], Emitted]) -> tuple[Any, tuple[str, ...]]:
        """What holds the code, and the names that came with it."""
        key = f"{_version()} {isa.cpu} {isa.features} {name}"
        code, names = self._load_image(key, isa, emit) if image.USABLE else (None, ())
        if code is None:
            names, body = self._kept(key, ".o", emit, lambda text: compile_object(text, isa))
            code = load_object(body, isa)
        self._engines.append(code)
        return code, names

    def _load_image(
        self, key: str, isa: Isa, emit: Callable[[], Emitted]
    ) -> tuple[image.Image | None, tuple[str, ...]]:
        """An image, which takes no LLVM if it comes from the cache; None if the kernel cannot be one."""

        def made(text: str) -> bytes:
            return image.image_of(compile_object(text, isa, flat=True)) or b""

        names, body = self._kept(key, ".image", emit, made)
        with contextlib.suppress(OSError):
            return image.Image(body) if body else None, names
        return None, ()

    def _kept(
        self, key: str, suffix: str, emit: Callable[[], Emitted], make: Callable[[str], bytes]
    ) -> tuple[tuple[str, ...], bytes]:
        """Names and code; an entry of the cache is a line of names before the code."""
        entry = self.cache.load(key, suffix)
        if entry is None:
            text, names = emit()
            entry = " ".join(names).encode() + b"\n" + make(text)
            self.cache.save(key, entry, suffix)
            self.compiled += 1
        else:
            self.loaded += 1
        head, _, body = entry.partition(b"\n")
        return tuple(head.decode().split()), body


def emitted(spec: KernelSpec) -> Emitted:
    """What the emitter of this kind writes."""
    from qrun.native.emit.kernel import emitters

    isa = next(isa for isa in ISAS if isa.name == spec.isa)
    emitter = emitters()[spec.kind](spec, isa)
    return emitter.text(), tuple(emitter.names)


def kernel_text(spec: KernelSpec) -> str:
    """The LLVM IR of a kernel."""
    return emitted(spec)[0]


def _runner_text(isa: Isa) -> str:
    from qrun.native.emit.runner import runner_text

    return runner_text(isa.architecture)


def compile_object(text: str, isa: Isa, flat: bool = False) -> bytes:
    """IR to an object file. LLVM's pass pipeline does not run: the generator writes what it wants.

    flat: as position-independent code whose constants lie next to it.
    """
    llvm = _llvm()
    module = llvm.parse_assembly(text)
    module.verify()
    return bytes(_target(isa, flat).emit_object(module))


def load_object(body: bytes, isa: Isa) -> Any:
    """An execution engine that holds the object's code; it must outlive every call."""
    llvm = _llvm()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(isa))
    engine.add_object_file(llvm.ObjectFileRef.from_data(body))
    engine.finalize_object()
    return engine


@cache
def _llvm() -> Any:
    """Imported only to compile, or to load what is no image. Raises Declined if that fails."""
    try:
        import llvmlite.binding as llvm
    except (ImportError, OSError) as error:
        raise Declined(f"llvmlite cannot be loaded: {error}") from None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _target(isa: Isa, flat: bool = False) -> Any:
    llvm = _llvm()
    if isa.architecture == host_architecture():
        target = llvm.Target.from_default_triple()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(f"{isa.architecture}-unknown-linux-gnu")
    reloc, model = ("pic", "small") if flat else ("default", "jitdefault")
    return target.create_target_machine(cpu=isa.cpu, features=isa.features, opt=1, reloc=reloc, codemodel=model)


@cache
def _version() -> str:
    """Names everything besides the specification that the machine code depends on; llvmlite need not be imported."""
    machine = os.path.dirname(__file__)
    emit = os.path.join(os.path.dirname(machine), "emit")
    written = [os.path.join(emit, name) for name in sorted(os.listdir(emit)) if name.endswith(".py")]
    sources = digest(*map(_content, [*written, __file__, os.path.join(machine, "image.py")]))
    return f"{sources} {_llvmlite()} {sys.platform} {platform.machine()}"


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _llvmlite() -> str:
    """What the installed llvmlite says about its version, and the size and age of its library."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise ImportError("No module named 'llvmlite'")
    folder = Path(spec.origin).parent
    version = digest((folder / "_version.py").read_bytes())
    files = sorted((folder / "binding").glob("*llvmlite.*"))
    return " ".join([version, *(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files)])
