"""From LLVM IR to machine code, through llvmlite, in memory."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qrun.declare.digest import digest
from qrun.native.emit.isa import Isa, host_architecture
from qrun.native.errors import Declined
from qrun.native.machine import blob
from qrun.native.machine.llvm import library


def begin() -> None:
    """Load what compiles. Raises Declined if that fails."""
    if not blob.USABLE or library() is None:
        llvm()


@cache
def llvm() -> Any:
    """llvmlite, imported only where its library alone does not do. Raises Declined if that fails."""
    try:
        import llvmlite.binding
    except (ImportError, OSError) as error:
        raise Declined(f"llvmlite cannot be loaded: {error}") from None
    found: Any = llvmlite.binding
    found.initialize_native_target()
    found.initialize_native_asmprinter()
    return found


def llvmlite_version() -> str:
    """Without importing it: what the installed llvmlite says about its version, and the size and age of its library."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise ImportError("No module named 'llvmlite'")
    folder = Path(spec.origin).parent
    version = digest((folder / "_version.py").read_bytes())
    files = sorted((folder / "binding").glob("*llvmlite.*"))
    return " ".join([version, *(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files)])


def compile_object(text: str, isa: Isa, flat: bool = False) -> bytes:
    """IR to an object file. LLVM's pass pipeline does not run: the generator writes what it wants.

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
    """What generates code for an instruction set. flat: as `compile_object` takes it."""
    if isa.architecture == host_architecture():
        target = llvm().Target.from_default_triple()
    else:
        llvm().initialize_all_targets()
        llvm().initialize_all_asmprinters()
        target = llvm().Target.from_triple(f"{isa.architecture}-unknown-linux-gnu")
    reloc, model = ("pic", "small") if flat else ("default", "jitdefault")
    return target.create_target_machine(cpu=isa.cpu, features=isa.features, opt=1, reloc=reloc, codemodel=model)
