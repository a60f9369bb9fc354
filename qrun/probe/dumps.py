"""Gets the probe's outputs: from the files of a dump, or by running a form in a runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from qrun.conform.processes import Processes
from qrun.conform.run import Runners
from qrun.conform.runtimes import Response, Runtime
from qrun.conform.suite import ANSWER, FORCED, Case, CaseInfo
from qrun.declare.frozen import frozen
from qrun.dumps import DumpTensor
from qrun.dumps import read_dump as read_tensors
from qrun.errors import CallError, some
from qrun.ir import Array
from qrun.probe.design import Branch, branches
from qrun.probe.models import FORMS, feed, form_branches, is_unsigned, model
from qrun.probe.reading import Reading, as_codes, read


@frozen
class FormReading:
    """What a form of the probe says. reading: None if the runtime did not run it; problem: why, or what is odd."""

    form: str
    reading: Reading | None
    problem: str = ""


def run_forms(chosen: Runtime, forms: tuple[str, ...], python: str, limit: float) -> tuple[str, list[FormReading]]:
    """Run forms of the probe in a runtime; returns its version and the readings. Raises UnsupportedError, CallError."""
    with closing(Runners(Processes(), chosen, python)) as mine:
        return mine.version, [_run_form(mine.run(case(form), limit), form) for form in forms]


def _run_form(answer: Response, form: str) -> FormReading:
    """Read a runtime's answer to a form."""
    if answer.failed:
        return FormReading(form, None, f"{answer.failed}: {answer.message}" if answer.message else answer.failed)
    outputs = {name: array for name, array in answer.outputs.items() if array is not None}
    return _reading(form, outputs)


def case(form: str, asked: Sequence[Branch] | None = None) -> Case:
    """Branches in a form, None for the form's own, as a case that a runner of ``qrun conform`` takes."""
    asked = form_branches(form) if asked is None else asked
    kind = np.uint8 if is_unsigned(form) else np.int8
    ends = () if form == "matmul" else (1, 1)
    expected = {branch.name: np.zeros((1, branch.sums.size, *ends), kind) for branch in asked}
    info = CaseInfo(f"probe/{form}", "probe", "", 1, "core", "", FORCED, ANSWER, False, "", 0, 0)
    return Case(info, model(form, asked).SerializeToString(), {"x": feed(form)}, expected, {}, {}, 0.0, ())


def read_dump(path: str, form: str = "") -> FormReading:
    """Read a dump in any form that `qrun.dumps` reads, with tensors named as the probe's outputs. Raises CallError.

    form: of the dump; "" finds it out from the outputs.
    """
    tensors = read_tensors(path).tensors
    known = {branch.name: branch for branch in branches()}
    outputs = {name: _array(tensor, known[name], form) for name, tensor in tensors.items() if name in known}
    if not outputs:
        raise CallError(
            "QR005",
            f"{path} has no output of the probe",
            facts=[("expected", f"{', '.join(sorted(known)[:3])}, ..."), ("got", some(list(tensors)))],
            fixes=["save each output under its name, such as in a .npz or a folder of .npy files"],
        )
    return _reading(form, outputs) if form else _guessed(outputs)


def _array(tensor: DumpTensor, branch: Branch, form: str) -> Array:
    """The elements of an output. Bytes without a type are float32 if there are enough, else codes of the form."""
    if tensor.typed:
        return tensor.data
    real = tensor.data.nbytes >= 4 * branch.sums.size
    return tensor.data.view(np.float32 if real else np.uint8 if is_unsigned(form) else np.int8)


def _reading(form: str, outputs: Mapping[str, Array]) -> FormReading:
    """The reading of outputs by name; those that are no codes are left out and named."""
    known, codes, odd = form_branches(form), {}, []
    for branch in known:
        if branch.name in outputs:
            try:
                codes[branch.name] = as_codes(branch, outputs[branch.name])
            except ValueError as error:
                odd.append(f"{branch.name}: {error}")
    problem = f"{len(odd)} of {len(outputs)} outputs cannot be read as codes, such as {odd[0]}" if odd else ""
    values = {int(value) for array in codes.values() for value in np.unique(array)}
    if len(codes) > 1 and len(values) == 1:
        return FormReading(form, None, f"all codes are {values.pop()}: the dump does not hold what the device computed")
    if not codes:
        return FormReading(form, None, problem)
    found = read(codes, known, is_unsigned(form))
    return FormReading(form, replace(found, missing=tuple(n for n in found.missing if n not in outputs)), problem)


def _guessed(outputs: Mapping[str, Array]) -> FormReading:
    """The reading in the form that the outputs have: uint8, and their names, tell it. A form without zero points must
    be tried: it lacks the padding, as a dump may."""
    if any(array.dtype == np.uint8 for array in outputs.values()):
        return _reading("qdq-uint8", outputs)
    whole = [form for form in FORMS if {branch.name for branch in form_branches(form)} == set(outputs)]
    if whole and whole[0] != "symmetric":
        return _reading(whole[0], outputs)
    first = _reading("qdq" if "relu" in outputs else "qlinear", outputs)
    if "padding" in outputs or (first.reading is not None and first.reading.named):
        return first
    other = _reading("symmetric", outputs)
    return other if other.reading is not None and other.reading.named else first
