"""Registry: the declarations in a package's modules, each module imported on demand."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from importlib import import_module
from threading import RLock
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Registry(Mapping[K, T]):
    """Declarations by name, or by a tuple that ends with the name; in order.

    Looking one up imports the public modules of `package` that contain its name in quotes. This is quicker than
    importing all of them, and needs no table of who declares what. Listing or counting them imports all modules.

    declared: the declarations of the modules imported so far; modules add theirs here.
    """

    def __init__(self, package: str) -> None:
        self.declared: dict[K, T] = {}
        self._package = package
        self._asked: set[str] = set()
        self._lock = RLock()

    def __getitem__(self, key: K) -> T:
        self._load(key[-1] if isinstance(key, tuple) else str(key))
        return self.declared[key]

    def __iter__(self) -> Iterator[K]:
        self._load("")
        return iter(sorted(self.declared))  # type: ignore[type-var]

    def __len__(self) -> int:
        self._load("")
        return len(self.declared)

    def _load(self, name: str) -> None:
        """Import the modules that may declare `name`, all of them if it is empty. Other threads wait, so that none sees
        only the first of two versions."""
        if name in self._asked or "" in self._asked:
            return
        with self._lock:
            quoted = f'"{name}"'.encode()
            for module, source in sources(self._package).items():
                if not name or not source or quoted in source:
                    import_module(module)
            self._asked.add(name)


@cache
def sources(package: str) -> Mapping[str, bytes]:
    """The source of each public module of a package, in order; "" if only its bytecode is there."""
    found: dict[str, bytes] = {}
    for index in import_module(package).__path__:
        for file in sorted(os.listdir(index)):
            name, _, suffix = file.partition(".")
            if suffix in ("py", "pyc") and not name.startswith("_"):
                found.setdefault(f"{package}.{name}", _content(os.path.join(index, file)) if suffix == "py" else b"")
    return found


def _content(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb", buffering=0) as file:
        return file.read()
