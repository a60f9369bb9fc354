"""Compiles LLVM IR to machine code, through llvmlite, in memory."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qrun.declare.digest import digest
from qrun.native.emit.isa import Isa, host_architecture
from qrun.native.errors import Declined
from qrun.native.machine import blob

KNOWN = ("0.50.",)
"""The prefixes of llvmlite's versions whose functions are those below."""

_PATH = "binding/libllvmlite.so"
_OBJECT_FILE, _LEVEL = 1, 1
_Handle, _Text, _Number, _Out = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "InitializeNativeTarget": (None, ()),
    "InitializeNativeAsmPrinter": (None, ()),
    "GetDefaultTargetTriple": (None, (_Out,)),
    "GetTargetFromTriple": (_Handle, (_Text, _Out)),
    "CreateTargetMachine": (_Handle, (_Handle, *(_Text,) * 3, _Number, *(_Text,) * 2, _Number, _Number, _Text)),
    "DisposeTargetMachine": (None, (_Handle,)),
    "ContextCreate": (_Handle, ()),
    "ContextDispose": (None, (_Handle,)),
    "ParseAssembly": (_Handle, (_Handle, _Text, _Out)),
    "VerifyModule": (ctypes.c_bool, (_Handle, _Out)),
    "DisposeModule": (None, (_Handle,)),
    "TargetMachineEmitToMemory": (_Handle, (_Handle, _Handle, _Number, _Out)),
    "GetBufferStart": (_Handle, (_Handle,)),
    "GetBufferSize": (ctypes.c_size_t, (_Handle,)),
    "DisposeMemoryBuffer": (None, (_Handle,)),
    "DisposeString": (None, (_Handle,)),
}
"""Result and parameters, by the name that follows LLVMPY_."""


class Library:
    """llvmlite's library, ready to compile for this machine, without llvmlite's modules: importing them takes as long
    as compiling four kernels. Safe to use from several threads.

    The functions are those that llvmlite calls, with the parameters that they have in the releases of `KNOWN`; for
    another release nothing is called here, and `llvm` imports llvmlite instead. Each call has a context of its own, so
    that threads compile side by side; llvmlite would admit one at a time.
    """

    def __init__(self, path: str) -> None:
        found = ctypes.CDLL(path)
        self._call: dict[str, Any] = {}
        for name, (result, parameters) in _FUNCTIONS.items():
            function = self._call[name] = getattr(found, f"LLVMPY_{name}")
            function.restype, function.argtypes = result, parameters
        self._call["InitializeNativeTarget"]()
        self._call["InitializeNativeAsmPrinter"]()
        out = _Handle()
        self._call["GetDefaultTargetTriple"](ctypes.byref(out))
        self._triple = self._take_text(out)
        self._target = self._call["GetTargetFromTriple"](self._triple, ctypes.byref(out))
        if not self._target:
            raise OSError(self._take_text(out).decode(errors="replace"))

    def compile(self, text: str, cpu: str, features: str) -> bytes:
        """Compile IR to an object file: position-independent code whose constants lie next to it. Raises RuntimeError
        for wrong IR."""
        call, out = self._call, _Handle()
        context, module, machine = call["ContextCreate"](), None, None
        try:
            module = call["ParseAssembly"](context, text.encode(), ctypes.byref(out))
            wrong = not module or call["VerifyModule"](module, ctypes.byref(out))
            told = self._take_text(out)
            if wrong:
                raise RuntimeError(f"LLVM IR is wrong: {told.decode(errors='replace')}")
            names = self._triple, cpu.encode(), features.encode()
            machine = call["CreateTargetMachine"](self._target, *names, _LEVEL, b"pic", b"small", 0, 0, b"")
            buffer = call["TargetMachineEmitToMemory"](machine, module, _OBJECT_FILE, ctypes.byref(out))
            if not buffer:
                raise RuntimeError(f"LLVM generates no code: {self._take_text(out).decode(errors='replace')}")
            try:
                return ctypes.string_at(call["GetBufferStart"](buffer), call["GetBufferSize"](buffer))
            finally:
                call["DisposeMemoryBuffer"](buffer)
        finally:
            for name, handle in (
                ("DisposeModule", module),
                ("DisposeTargetMachine", machine),
                ("ContextDispose", context),
            ):
                if handle:
                    call[name](handle)

    def _take_text(self, out: ctypes.c_void_p) -> bytes:
        """A text that LLVM allocated, which is then freed."""
        if not out.value:
            return b""
        text = ctypes.string_at(out.value)
        self._call["DisposeString"](out)
        out.value = None
        return text


@cache
def library() -> Library | None:
    """llvmlite's library; None where it is missing or its functions are unknown."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        import llvmlite

        if not llvmlite.__version__.startswith(KNOWN):
            return None
        return Library(os.path.join(os.path.dirname(llvmlite.__file__), _PATH))
    except (ImportError, OSError, AttributeError):
        return None


def begin() -> None:
    """Load the compiler. Raises Declined if that fails."""
    if not blob.USABLE or library() is None:
        llvm()


@cache
def llvm() -> Any:
    """llvmlite.binding, ready for this machine; imported only where llvmlite's library alone is not enough. Raises
    Declined if that fails."""
    try:
        import llvmlite.binding
    except (ImportError, OSError) as error:
        raise Declined(f"llvmlite cannot be loaded: {error}") from None
    found: Any = llvmlite.binding
    found.initialize_native_target()
    found.initialize_native_asmprinter()
    return found


def llvmlite_version() -> str:
    """Identifies the installed llvmlite without importing it: its version, and the size and age of its library."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise ImportError("No module named 'llvmlite'")
    folder = Path(spec.origin).parent
    version = digest((folder / "_version.py").read_bytes())
    files = sorted((folder / "binding").glob("*llvmlite.*"))
    return " ".join([version, *(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files)])


def compile_object(text: str, isa: Isa, flat: bool = False) -> bytes:
    """Compile IR to an object file. LLVM's pass pipeline does not run: the emitters write the code they want.

    flat: as position-independent code whose constants lie next to it.
    """
    alone = library() if flat and isa.architecture == host_architecture() else None
    if alone is not None:
        return alone.compile(text, isa.cpu, isa.features)
    module = llvm().parse_assembly(text, llvm().create_context())
    module.verify()
    made: bytes = target_machine(isa, flat).emit_object(module)
    return made


def load_object(body: bytes, isa: Isa) -> Any:
    """An execution engine that holds the object's code; it must outlive every call."""
    engine = llvm().create_mcjit_compiler(llvm().parse_assembly(""), target_machine(isa))
    engine.add_object_file(llvm().ObjectFileRef.from_data(body))
    engine.finalize_object()
    return engine


def target_machine(isa: Isa, flat: bool = False) -> Any:
    """The code generator for an instruction set. flat: as `compile_object` takes it."""
    if isa.architecture == host_architecture():
        target = llvm().Target.from_default_triple()
    else:
        llvm().initialize_all_targets()
        llvm().initialize_all_asmprinters()
        target = llvm().Target.from_triple(f"{isa.architecture}-unknown-linux-gnu")
    reloc, model = ("pic", "small") if flat else ("default", "jitdefault")
    return target.create_target_machine(cpu=isa.cpu, features=isa.features, opt=1, reloc=reloc, codemodel=model)
