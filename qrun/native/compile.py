"""From kernel specifications to callable machine code, through llvmlite, in memory."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from qrun.native._dense import Dense
from qrun.native._depthwise import Depthwise, Interleaved
from qrun.native.cache import ObjectCache
from qrun.native.isa import ISAS, Isa
from qrun.native.spec import KernelSpec

_WRITERS: dict[str, type[Dense | Depthwise]] = {"dense": Dense, "depthwise": Depthwise, "interleaved": Interleaved}
_SOURCES = ("_dense.py", "_depthwise.py", "_dot.py", "_ir.py", "_requantize_ir.py", "compile.py", "forms.py", "isa.py")
_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(slots=True)
class Kernels:
    """The compiled kernels of one process, by specification. Safe to use from several threads.

    compiled, loaded: how many kernels were built, and how many came from the object cache.
    """

    cache: ObjectCache = field(default_factory=lambda: ObjectCache(None))
    compiled: int = 0
    loaded: int = 0
    _ready: dict[KernelSpec, Any] = field(default_factory=dict)
    _engines: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, spec: KernelSpec) -> Any:
        """The kernel as a ctypes function (argument struct, tile counter) -> tiles done; it runs without the GIL."""
        with self._lock:
            kernel = self._ready.get(spec)
            if kernel is None:
                kernel = self._ready[spec] = self._make(spec)
            return kernel

    def _make(self, spec: KernelSpec) -> Any:
        isa = next(isa for isa in ISAS if isa.name == spec.isa)
        key = f"{_version()} {isa.cpu} {isa.features} {spec.key()}"
        body = self.cache.load(key)
        if body is None:
            body = compile_object(kernel_text(spec), isa)
            self.cache.save(key, body)
            self.compiled += 1
        else:
            self.loaded += 1
        engine = load_object(body, isa)
        self._engines.append(engine)
        return _SIGNATURE(engine.get_function_address("kernel"))


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
    target = _llvm().Target.from_default_triple()
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
