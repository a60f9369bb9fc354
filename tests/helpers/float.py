"""Shared by the tests of the floating-point operators: one node in qrun and onnxruntime,
compared within a tolerance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from helpers.support import node_model, run_ort, run_qrun
from qrun.errors import QrunError
from qrun.ops._float import narrow


def assert_close(got: np.ndarray, want: np.ndarray, message: str = "", rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Same type and shape, values within the tolerance; equal where rtol and atol are 0 (NaN equals NaN)."""
    assert got.dtype == want.dtype, f"{message}: type {got.dtype}, want {want.dtype}"
    assert got.shape == want.shape, f"{message}: shape {got.shape}, want {want.shape}"
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, err_msg=message)


def assert_rounded(got: np.ndarray, want: Any, message: str = "", hair: float = 1e-12) -> None:
    """Each element is a number no more than a hair beside `want`, rounded once to got's type."""
    wide = np.asarray(want, np.float64)
    assert got.shape == wide.shape, f"{message}: shape {got.shape}, want {wide.shape}"
    reach = hair * (1 + np.abs(wide))
    low, high = (narrow(wide + side * reach, got.dtype) for side in (-1, 1))
    same = ((low <= got) & (got <= high)) | ((got != got) & (wide != wide))
    assert same.all(), f"{message}: {got[~same][:4]}, want {wide[~same][:4]}"


def qrun_node(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    max_memory: int | None = None,
    **options: Any,
) -> Any:
    """The outputs of qrun for one node (see support.node_model); the first input's type unless `outputs` is given."""
    if "outputs" not in options:
        options["outputs"] = (np.asarray(inputs[0]).dtype,)
    made = run_qrun(*node_model(op_type, inputs, attributes, **options), max_memory=max_memory)
    return made[0] if len(made) == 1 else made


def assert_refused(cases: Iterable[tuple[str, str, Sequence[Any], Mapping[str, Any]]], **options: Any) -> None:
    """Each node (an operator, its inputs and attributes) is refused with an error that the pattern before it finds."""
    for words, op_type, inputs, attributes in cases:
        try:
            qrun_node(op_type, inputs, attributes, **options)
            said = "nothing"
        except QrunError as error:
            said = str(error)
        assert re.search(words, said), f"{op_type} {attributes}: {said}, want {words}"


class Peer:
    """Compares with onnxruntime and counts; `finish` fails if too few cases could run there."""

    def __init__(self) -> None:
        self.ran = 0
        self.skipped: list[str] = []

    def check(
        self,
        op_type: str,
        inputs: Sequence[Any],
        attributes: Mapping[str, Any] | None = None,
        *,
        message: str,
        rtol: float = 1e-5,
        atol: float = 1e-6,
        **options: Any,
    ) -> list[np.ndarray]:
        options.setdefault("outputs", (np.asarray(inputs[0]).dtype,))
        model, feeds = node_model(op_type, inputs, attributes, **options)
        got = run_qrun(model, feeds)
        try:
            want = run_ort(model, feeds)
        except Exception as error:
            self.skipped.append(f"{message}: {str(error)[:160]}")
            return got
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, message, rtol, atol)
        self.ran += 1
        return got

    def finish(self, share: float = 0.7) -> None:
        total = self.ran + len(self.skipped)
        for reason in self.skipped[:5]:
            print("onnxruntime skipped", reason)
        assert self.ran >= share * total, f"only {self.ran} of {total} cases ran in onnxruntime: {self.skipped[:3]}"
