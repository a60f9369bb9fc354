"""The backends that replay vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from qrun.checking.check import Checked, MakeRunner, Settings, check_model
from qrun.checking.refusals import as_finding
from qrun.checking.vectors import Executor
from qrun.errors import CallError, RunError, UnsupportedError
from qrun.ir import Model
from qrun.running.plan import BACKENDS
from qrun.running.session import Session


def runner_maker(backend: str, arith: str, max_memory: int | None = None, max_time: float | None = None) -> MakeRunner:
    """How vectors are run: by qrun, the graph as written, or in another runtime.

    Raises CallError if the two choices do not go together, UnsupportedError if the other runtime is not installed.
    """
    if backend not in BACKENDS:
        _check_peer(backend, arith)

    def make(model: Model, path: Path) -> Executor:
        if backend not in BACKENDS:
            from qrun.peers import Peer

            return Peer(model, backend, max_memory=max_memory, max_time=max_time)
        return Session(
            model,
            backend=backend,
            arith=arith,  # type: ignore[arg-type]
            fuse=False,
            max_memory=max_memory,
            max_time=max_time,
        )

    return make


def check_in_processes(
    paths: Sequence[Path],
    settings: Settings,
    backend: tuple[str, str, int | None, float | None],
    jobs: int,
    progress: Callable[[int], None] | None = None,
) -> list[Checked]:
    """As `check_models`, in so many processes. backend: the arguments of `runner_maker`;
    progress: told how many are done.

    A model that ends its process three times has that as its finding.
    """
    from qrun.running.crew import crewed

    found: dict[Path, Checked] = {}
    for checked in crewed(partial(_checker, settings, backend), iter(paths), jobs, _lost):
        found[checked.path] = checked
        if progress is not None:
            progress(len(found))
    return [found[path] for path in paths]


def _checker(
    settings: Settings, backend: tuple[str, str, int | None, float | None], threads: int
) -> Callable[[Path], Checked]:
    make = runner_maker(*backend)
    return lambda path: check_model(path, settings.of(path), make)


def _lost(path: Path) -> Checked:
    error = RunError("QR015", f"checking {str(path)!r} made its process die each time", where=[str(path)])
    return Checked(path, (as_finding(error),))


def _check_peer(backend: str, arith: str) -> None:
    if arith != "exact":
        raise CallError(
            "QR005",
            "--arith is for qrun's own backends; another runtime has its own arithmetic",
            facts=[("got", f"--arith {arith} --backend {backend}")],
            fixes=["leave one of them out"],
        )
    if backend == "ort":
        from importlib.util import find_spec

        if find_spec("onnxruntime") is None:
            fixes = ["pip install 'onnx-qrun[ort]'"]
            raise UnsupportedError("QR012", "--backend ort needs onnxruntime, which is not installed", fixes=fixes)
