"""What the CPU and the operating system of this machine offer, by LLVM's names."""

from __future__ import annotations

import ctypes
import sys

_HWCAP, _HWCAP2 = 16, 26
_LINUX = {"lse": (_HWCAP, 8), "dotprod": (_HWCAP, 20), "i8mm": (_HWCAP2, 13)}
"""By feature: entry of the auxiliary vector, and bit in it."""
_DARWIN = {"lse": "FEAT_LSE", "dotprod": "FEAT_DotProd", "i8mm": "FEAT_I8MM"}


def host_features(architecture: str) -> frozenset[str]:
    """The features of this machine. LLVM finds them on x86 only: for AArch64 it knows neither dotprod nor i8mm."""
    if architecture != "aarch64":
        import llvmlite.binding as llvm

        return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
    if sys.platform not in ("linux", "darwin"):
        return frozenset()
    found = (name for name in _LINUX if (_on_darwin(name) if sys.platform == "darwin" else _on_linux(name)))
    return frozenset(found)


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
