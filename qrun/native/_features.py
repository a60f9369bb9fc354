"""What the CPU and the operating system of this machine offer, by LLVM's names."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from importlib.util import find_spec

_HWCAP, _HWCAP2 = 16, 26
_LINUX = {"lse": (_HWCAP, 8), "dotprod": (_HWCAP, 20), "i8mm": (_HWCAP2, 13)}
"""By feature: entry of the auxiliary vector, and bit in it."""
_PERMISSION = (158, 0x1023, 18)
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of x86-64."""
_CPUINFO = {"abm": "lzcnt", "bmi1": "bmi"}
_DARWIN = {"lse": "FEAT_LSE", "dotprod": "FEAT_DotProd", "i8mm": "FEAT_I8MM"}


def host_features(architecture: str) -> frozenset[str]:
    """The features of this machine. Raises ImportError without llvmlite.

    On x86 LLVM finds them, where Linux does not tell, which takes less; of AArch64 LLVM looks for neither dotprod nor i8mm.
    """
    if find_spec("llvmlite") is None:
        raise ImportError("No module named 'llvmlite'")
    if architecture != "aarch64":
        return _of_cpuinfo() or _of_llvm()
    if sys.platform not in ("linux", "darwin"):
        return frozenset()
    found = (name for name in _LINUX if (_on_darwin(name) if sys.platform == "darwin" else _on_linux(name)))
    return frozenset(found)


def _of_llvm() -> frozenset[str]:
    import llvmlite.binding as llvm

    return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)


def _of_cpuinfo() -> frozenset[str]:
    """Those of x86 that the kernel lets programs use."""
    try:
        with open("/proc/cpuinfo", encoding="ascii") as lines:
            line = next(line for line in lines if line.startswith("flags"))
    except (OSError, StopIteration, ValueError):
        return frozenset()
    names = (_CPUINFO.get(name, name) for name in line.partition(":")[2].split())
    return frozenset(n.replace("_", "-") if n.startswith("amx") else n.replace("_", "") for n in names)


def _on_linux(feature: str) -> bool:
    entry, bit = _LINUX[feature]
    vector = ctypes.CDLL(None).getauxval
    vector.argtypes, vector.restype = [ctypes.c_ulong], ctypes.c_ulong
    return bool(vector(entry) >> bit & 1)


def _on_darwin(feature: str) -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    name = f"hw.optional.arm.{_DARWIN[feature]}".encode()
    status = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return status == 0 and value.value != 0


@cache
def permitted() -> bool:
    """Ask Linux, once per process, to let it use AMX tiles; False where it does not. Without that they are illegal.

    Threads and forked processes inherit the permission.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        return False
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return bool(call(*map(ctypes.c_long, _PERMISSION)) == 0)
