"""Makes the native engine of a session for this machine, with its kernel cache, or tells why there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from qrun.errors import CallError, UnsupportedError
from qrun.native.errors import Declined

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine


def make_engine(isa: str, cache: str | os.PathLike[str] | bool, threads: int) -> Engine:
    """The native engine. Raises UnsupportedError where it cannot run, CallError for an unknown instruction set."""
    try:
        from qrun.native.emit.isa import available
        from qrun.native.machine.engine import Engine

        usable = available()
    except (ImportError, OSError) as error:
        raise _unavailable(
            "--backend native needs llvmlite, which cannot be imported", error, "pip install llvmlite"
        ) from None
    try:
        return Engine.create(isa, cache_directory(cache), threads)
    except Declined as reason:
        if not usable:
            raise _unavailable("--backend native has no kernels for this machine", reason) from None
        known, got = ", ".join(i.name for i in usable), isa or os.environ.get("QRUN_ISA", "")
        fix = "omit isa=" if isa else "unset QRUN_ISA"
        raise CallError("QR005", f"the instruction set {got!r} cannot be used here",
                        facts=[("expected", known), ("got", got)], fixes=[fix]) from None  # fmt: skip


def begin(engine: Engine) -> None:
    """Start to compile the kernels that nearly every model needs, unless that was done before."""
    from qrun.native.proof.epilogue import bounds_spec

    engine.kernels.begin(engine.isa, (bounds_spec(engine.isa),))


def cache_directory(cache: str | os.PathLike[str] | bool) -> str | os.PathLike[str] | None:
    """The cache's directory for the argument `cache` of `Session`; None for no cache."""
    from qrun.native.machine.cache import default_directory

    return default_directory() if cache is True else None if cache is False else cache


def cache_refused(engine: Engine) -> str:
    """Why compiled kernels are not kept although a cache is wanted; "" if they are, or none is."""
    cache = engine.kernels.cache
    return f"{cache.directory} {cache.refused}" if cache.directory and cache.refused else ""


def _unavailable(message: str, reason: Exception, *fixes: str) -> UnsupportedError:
    """The QR014 error of a native engine that cannot be used."""
    return UnsupportedError(
        "QR014",
        message,
        facts=[("got", str(reason)[:200])],
        fixes=[*fixes, "--backend reference works without them"],
        calls=[*fixes, 'Session(model, backend="reference") works without them'],
    )
