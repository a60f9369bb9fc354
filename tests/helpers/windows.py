"""Runs qrun's command in a process that has, as far as it can be simulated, what Python on Windows has and no more.

``python windows.py WORDS``: the command's words. The modules and functions of POSIX are gone before qrun is imported,
sys.platform is win32, locks are msvcrt's, and the console has the encoding of the variable CONSOLE.
"""

from __future__ import annotations

# What chooses its own code by the platform when it is imported: it must not look for Windows itself.
import asyncio  # noqa: F401
import builtins
import ctypes
import io
import mmap
import os
import shutil  # noqa: F401
import signal
import subprocess
import sys
import tempfile  # noqa: F401
import types
import zipfile  # noqa: F401
from concurrent.futures import process  # noqa: F401

import click.shell_completion  # noqa: F401
import llvmlite.binding  # noqa: F401
import numpy.testing  # noqa: F401
import onnx.reference  # noqa: F401
import rich.console
import rich.progress  # noqa: F401

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline")
FUNCTIONS = ("fork", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "preadv", "pread", "geteuid", "getuid",
             "getegid", "getgid", "sysconf", "sysconf_names", "killpg", "setsid", "mkfifo", "uname", "statvfs", "getloadavg",
             "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "posix_fadvise", "memfd_create")  # fmt: skip
SIGNALS = (
    "SIGALRM",
    "SIGKILL",
    "SIGPIPE",
    "SIGHUP",
    "SIGUSR1",
    "SIGQUIT",
    "setitimer",
    "pthread_kill",
    "pthread_sigmask",
)
MAPPINGS = [name for name in dir(mmap) if name.startswith(("MAP_", "PROT_", "MADV_"))]


def simulate() -> None:
    """Make this process look like one on Windows."""
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for place, names in ((os, FUNCTIONS), (signal, SIGNALS), (mmap, MAPPINGS)):
        for name in names:
            if hasattr(place, name):
                delattr(place, name)
    locks = types.ModuleType("msvcrt")
    locks.LK_NBLCK = 2  # type: ignore[attr-defined]
    locks.locking = lambda handle, mode, nbytes: None  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = locks
    library = ctypes.CDLL

    def load(name: str | None, *more: object, **options: object) -> object:
        """Windows has kernel32, and no library without a name."""
        if name is None:
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        if name == "kernel32":
            return types.SimpleNamespace(SwitchToThread=library(None).sched_yield)
        return library(name, *more, **options)  # type: ignore[arg-type]

    ctypes.CDLL = load  # type: ignore[assignment, misc]

    plain = io.open

    def opened(path: object, *more: object, **options: object) -> object:
        """Windows has no /proc and no /sys."""
        if str(path).startswith(("/proc", "/sys", "/dev")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return plain(path, *more, **options)  # type: ignore[call-overload]

    io.open = opened  # type: ignore[assignment]
    builtins.open = opened  # type: ignore[attr-defined]
    subprocess.Popen.kill = subprocess.Popen.terminate  # type: ignore[method-assign]
    sys.platform = "win32"
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding=os.environ["CONSOLE"], newline="\r\n")  # type: ignore[union-attr]


if __name__ == "__main__":
    simulate()
    from qrun.cli import main

    sys.exit(main(sys.argv[1:]))
