"""Adapters that misbehave, each as its option says; the worker finds this module on its path."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from qrun.conform.adapters import Qrun
from qrun.conform.tensors import Tensor

UNSUPPORTED = Qrun.UNSUPPORTED
_ran = count(1)
_qrun = Qrun()


def version() -> str:
    _qrun.version()
    return "0"


def run(model: bytes, inputs: Mapping[str, Tensor], outputs: Mapping[str, Any], option: str) -> list[Tensor | None]:
    number = next(_ran)
    made = _qrun.run(model, inputs, outputs, "reference")
    if number % 50 == 0 and option == "crashes":
        os.abort()
    if number % 50 == 0 and option == "hangs":
        time.sleep(600)
    if number % 50 == 0 and option == "speaks rubbish":
        for stream in range(3, 20):
            try:
                os.write(stream, b"rubbish" * 100)
            except OSError:
                continue
    if number % 50 == 0 and option == "gives rubbish":
        return [Tensor(2, (3,), b"ab")]
    if number % 50 == 0 and option == "exits":
        sys.exit(3)
    if option == "changes" and made[0] is not None and made[0].data:
        first = made[0]
        noise = bytes(random.getrandbits(8) for _ in first.data)
        return [Tensor(first.type, first.shape, noise), *made[1:]]
    print("a runtime that talks")
    return made
