"""From kernel specifications to callable machine code, through llvmlite, in memory."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from qrun.native import image
from qrun.native.cache import ObjectCache, digest
from qrun.native.errors import Declined
from qrun.native.isa import ISAS, Isa, host_architecture
from qrun.native.spec import KernelSpec


class KernelWriter(Protocol):
    """Writes the IR of one kernel."""

    def text(self) -> str: ...


_WRITERS = {
    "amx": "_amx.Amx",
    "amx_copy": "_amx.Amx",
    "bounds": "_bounds.Bounds",
    "clipped": "_clipped.Clipped",
    "dense": "_dense.Dense",
    "depthwise": "_depthwise.Depthwise",
    "interleaved": "_depthwise.Interleaved",
    "pack_rows": "_pack.PackRows",
    "pack_columns": "_pack.PackColumns",
    "range": "_range.Range",
    "codes": "_range.DynamicQuantizer",
    "parameters": "_range.Parameters",
    "starts": "_starts.Starts",
    "scale": "_scale.Scale",
    "runs": "_copy.Runs",
    "elements": "_copy.Elements",
    "blocks": "_copy.Blocks",
    "pair": "_pair.Pair",
    "point": "_point.Point",
    "lrn": "_lrn.Lrn",
    "max_pool": "_pool.MaxPool",
    "sum_pool": "_pool.SumPool",
    "mean_pool": "_pool.MeanPool",
    "widened": "_widened.Widened",
    "quantize": "_quantize.Quantize",
    "quantize_image": "_quantize.QuantizeImage",
    "dequantize": "_quantize.Dequantize",
    "softmax": "_softmax.Softmax",
    "elementwise": "_elementwise.Elementwise",
    "standardize": "_normalize.LayerNorm",
    "shares": "_normalize.SoftmaxF32",
    "mean": "_normalize.Mean",
}
"""The class that writes kernels of each kind; imported when one is to be compiled."""
_THREAD_MEMORY = ("amx", "amx_copy", "lrn", "clipped", "widened", "standardize", "shares", "mean")
_SOURCES = (
    "_amx.py",
    "_bounds.py",
    "_bytes.py",
    "_clipped.py",
    "_clipping.py",
    "_copied.py",
    "_copy.py",
    "_dense.py",
    "_depthwise.py",
    "_dot.py",
    "_doubts.py",
    "_flow.py",
    "_ir.py",
    "_lrn.py",
    "_pack.py",
    "_pair.py",
    "_point.py",
    "_pool.py",
    "_quantize.py",
    "_range.py",
    "_requantize_ir.py",
    "_rows.py",
    "_runner.py",
    "_scale.py",
    "_values.py",
    "_widened.py",
    "_softmax.py",
    "_starts.py",
    "_strided.py",
    "_numbers.py",
    "_elementwise.py",
    "_normalize.py",
    "compile.py",
    "forms.py",
    "image.py",
    "isa.py",
)
_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2)
_WITH_SCRATCH = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3)
_LEAD = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 7)
_FOLLOW = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)


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
        """The kernel as a ctypes function (argument struct, tile counter) -> tiles done; it runs without the GIL.

        Kernels of some kinds take memory of the calling thread as well.
        """
        with self._lock:
            kernel = self._ready.get(spec)
            if kernel is None:
                kernel = self._ready[spec] = self._make(spec)
            return kernel

    def runner(self, isa: Isa) -> Runner:
        """The functions that walk a program."""
        with self._lock:
            if self._runner is None:
                engine = self._load("runner", isa, lambda: _runner_text(isa))
                lead, follow = (engine.get_function_address(name) for name in ("lead", "follow"))
                self._runner = Runner(_LEAD(lead), _FOLLOW(follow))
            return self._runner

    def _make(self, spec: KernelSpec) -> Any:
        isa = next(isa for isa in ISAS if isa.name == spec.isa)
        engine = self._load(spec.key(), isa, lambda: kernel_text(spec))
        signature = _WITH_SCRATCH if spec.kind in _THREAD_MEMORY else _SIGNATURE
        return signature(engine.get_function_address("kernel"))

    def _load(self, name: str, isa: Isa, text: Callable[[], str]) -> Any:
        key = f"{_version()} {isa.cpu} {isa.features} {name}"
        code = self._load_image(key, isa, text) if image.USABLE else None
        if code is None:
            body = self._kept(key, ".o", lambda: compile_object(text(), isa))
            code = load_object(body, isa)
        self._engines.append(code)
        return code

    def _load_image(self, key: str, isa: Isa, text: Callable[[], str]) -> image.Image | None:
        """An image, which takes no LLVM if it comes from the cache; None if the kernel cannot be one."""
        body = self._kept(key, ".image", lambda: image.image_of(compile_object(text(), isa, flat=True)) or b"")
        with contextlib.suppress(OSError):
            return image.Image(body) if body else None
        return None

    def _kept(self, key: str, suffix: str, make: Callable[[], bytes]) -> bytes:
        body = self.cache.load(key, suffix)
        if body is None:
            body = make()
            self.cache.save(key, body, suffix)
            self.compiled += 1
        else:
            self.loaded += 1
        return body


def kernel_text(spec: KernelSpec) -> str:
    """The LLVM IR of a kernel."""
    isa = next(isa for isa in ISAS if isa.name == spec.isa)
    module, _, name = _WRITERS[spec.kind].partition(".")
    writer: KernelWriter = getattr(import_module(f"qrun.native.{module}"), name)(spec, isa)
    return writer.text()


def _runner_text(isa: Isa) -> str:
    from qrun.native._runner import runner_text

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
    package = resources.files(__package__ or "")
    sources = digest(*(package.joinpath(name).read_bytes() for name in _SOURCES))
    return f"{sources} {_llvmlite()} {sys.platform} {platform.machine()}"


def _llvmlite() -> str:
    """What the installed llvmlite says about its version, and the size and age of its library."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise ImportError("No module named 'llvmlite'")
    folder = Path(spec.origin).parent
    version = digest((folder / "_version.py").read_bytes())
    files = sorted((folder / "binding").glob("*llvmlite.*"))
    return " ".join([version, *(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files)])
