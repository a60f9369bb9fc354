"""onnx.reference with faults, for the child process: the names of a model's nodes say what goes wrong.

``crash while loading``, ``crash while running``: SIGSEGV (abort where there are no signals),
with a last word on stderr.
``exit``: ends the process with code 3. ``noisy``: writes to stdout. ``slow``: takes half a second. ``endless``: no end;
it makes the file that the environment names in STARTED.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from qrun.child import reference

VERSION = reference.VERSION
STARTED = "QRUN_TEST_STARTED"
SERVER = (
    "import sys; sys.path[:] = sys.argv[1:]; import helpers.faulty_runtime; from qrun.child import serve; "
    "serve.RUNTIMES['onnx-ref'] = ('helpers.faulty_runtime', 'FaultySession'); serve.main()"
)
"""What a child executes that has this runtime for onnx.reference."""


def crash() -> None:
    os.write(2, b"first word\nlast  word\n")
    os.kill(os.getpid(), getattr(signal, "SIGSEGV", signal.SIGTERM))


class FaultySession(reference.ReferenceSession):
    def __init__(self, data: bytes, **options: Any) -> None:
        self.names = {node.name for node in onnx.load_model_from_string(bytes(data)).graph.node}
        if "crash while loading" in self.names:
            crash()
        super().__init__(data, **options)

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> tuple[list[Any], int]:
        if "noisy" in self.names:
            print("noise of Python", flush=True)
            os.write(1, b"noise of a library\n")
            assert sys.stdin.read() == ""
        if "slow" in self.names:
            time.sleep(0.5)
        if "endless" in self.names:
            open(os.environ.get(STARTED, os.devnull), "a").close()
            time.sleep(600)
        if "crash while running" in self.names:
            crash()
        if "exit" in self.names:
            os._exit(3)
        return super().run(feeds, names)
