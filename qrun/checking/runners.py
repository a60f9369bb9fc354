"""The backends that replay vectors."""

from __future__ import annotations

from pathlib import Path

from qrun.checking.check import MakeRunner
from qrun.checking.vectors import Executor
from qrun.errors import CallError, UnsupportedError
from qrun.ir import Model
from qrun.peers import PEERS, Peer
from qrun.running.session import Session


def runner_maker(backend: str, arith: str, max_memory: int | None = None) -> MakeRunner:
    """How vectors are run: by qrun, the graph as written, or in another runtime.

    Raises CallError if the two choices do not go together, UnsupportedError if the other runtime is not installed.
    """
    if backend in PEERS:
        _check_peer(backend, arith)

    def make(model: Model, path: Path) -> Executor:
        if backend in PEERS:
            return Peer(model, backend, max_memory=max_memory)
        return Session(model, backend=backend, arith=arith, fuse=False, max_memory=max_memory)  # type: ignore[arg-type]

    return make


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
