"""From kernel specifications to callable machine code, through llvmlite, in memory."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Protocol

from qrun.native._copy import Blocks, Elements, Runs
from qrun.native._dense import Dense
from qrun.native._depthwise import Depthwise, Interleaved
from qrun.native._runner import runner_text
from qrun.native.cache import ObjectCache
from qrun.native.isa import ISAS, Isa, host_architecture
from qrun.native.spec import KernelSpec


class KernelWriter(Protocol):
    """Writes the IR of one kernel."""

    def text(self) -> str: ...


_WRITERS: dict[str, Callable[[KernelSpec, Isa], KernelWriter]] = {
    "dense": Dense, "depthwise": Depthwise, "interleaved": Interleaved,
    "runs": Runs, "elements": Elements, "blocks": Blocks,
}  # fmt: skip
_SOURCES = (
    "_copy.py",
    "_dense.py",
    "_depthwise.py",
    "_dot.py",
    "_flow.py",
    "_ir.py",
    "_requantize_ir.py",
    "_runner.py",
    "compile.py",
    "forms.py",
    "isa.py",
)
_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
_LEAD = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)
_FOLLOW = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)


@dataclass(frozen=True, slots=True)
class Runner:
    """The functions of _runner.py, as ctypes functions of int64 numbers and addresses; they run without the GIL."""

    lead: Any
    follow: Any


def address_of(kernel: Any) -> int:
    """Where a kernel's code is."""
    return int(ctypes.cast(kernel, ctypes.c_void_p).value or 0)


@dataclass(slots=True)
class Kernels:
    """The compiled kernels of one process, by specification. Safe to use from several threads.

    compiled, loaded: how many kernels were built, and how many came from the object cache.
    """

    cache: ObjectCache = field(default_factory=lambda: ObjectCache(None))
    compiled: int = 0
    loaded: int = 0
    _ready: dict[KernelSpec, Any] = field(default_factory=dict)
    _runner: Runner | None = None
    _engines: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, spec: KernelSpec) -> Any:
        """The kernel as a ctypes function (argument struct, tile counter) -> tiles done; it runs without the GIL."""
        with self._lock:
            kernel = self._ready.get(spec)
            if kernel is None:
                kernel = self._ready[spec] = self._make(spec)
            return kernel

    def runner(self, isa: Isa) -> Runner:
        """The functions that walk a program."""
        with self._lock:
            if self._runner is None:
                engine = self._load("runner", isa, lambda: runner_text(isa.architecture))
                lead, follow = (engine.get_function_address(name) for name in ("lead", "follow"))
                self._runner = Runner(_LEAD(lead), _FOLLOW(follow))
            return self._runner

    def _make(self, spec: KernelSpec) -> Any:
        isa = next(isa for isa in ISAS if isa.name == spec.isa)
        engine = self._load(spec.key(), isa, lambda: kernel_text(spec))
        return _SIGNATURE(engine.get_function_address("kernel"))

    def _load(self, name: str, isa: Isa, text: Callable[[], str]) -> Any:
        key = f"{_version()} {isa.cpu} {isa.features} {name}"
        body = self.cache.load(key)
        if body is None:
            body = compile_object(text(), isa)
            self.cache.save(key, body)
            self.compiled += 1
        else:
            self.loaded += 1
        engine = load_object(body, isa)
        self._engines.append(engine)
        return engine


def kernel_text(spec: KernelSpec) -> str:
    """The LLVM IR of a kernel."""
    isa = next(isa for isa in ISAS if isa.name == spec.isa)
    return _WRITERS[spec.kind](spec, isa).text()


def compile_object(text: str, isa: Isa) -> bytes:
    """IR to an object file. LLVM's pass pipeline does not run: the generator writes what it wants."""
    llvm = _llvm()
    module = llvm.parse_assembly(text)
    module.verify()
    return bytes(_target(isa).emit_object(module))


def load_object(body: bytes, isa: Isa) -> Any:
    """An execution engine that holds the object's code; it must outlive every call."""
    llvm = _llvm()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(isa))
    engine.add_object_file(llvm.ObjectFileRef.from_data(body))
    engine.finalize_object()
    return engine


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _target(isa: Isa) -> Any:
    llvm = _llvm()
    if isa.architecture == host_architecture():
        target = llvm.Target.from_default_triple()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(f"{isa.architecture}-unknown-linux-gnu")
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=1, reloc="default", codemodel="jitdefault"
    )


@cache
def _version() -> str:
    """Names everything besides the specification that the machine code depends on."""
    import llvmlite

    package = resources.files(__package__ or "")
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(package.joinpath(name).read_bytes())
    llvm = ".".join(map(str, _llvm().llvm_version_info))
    return f"{digest.hexdigest()} {llvmlite.__version__} {llvm} {_llvm().get_default_triple()}"
