"""The fixture `qrun_check`, which checks models inside another project's tests. Installing qrun is enough.

def test_models(qrun_check):
    qrun_check("models/", ignore=["QR402"])

pytest loads this module in every run, so that only the first check imports the rest of qrun.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from qrun.checking.check import Report

    Check = Callable[..., Report]


def check_path(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    fail_on: str = "error",
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    lsb: int = 0,
    rtol: float = 1e-3,
    atol: float = 1e-7,
    backend: str = "reference",
    arith: str = "exact",
) -> Report:
    """Checks models as ``qrun check`` does, and fails the test with the findings' text.

    path, more: models, or folders searched for .onnx. data: folders with vectors; None: those beside each model; ():
    none. The other parameters are the options of ``qrun check``; a string or path stands for a list of one. A wrong
    call fails the test with the error of the command line.
    """
    from qrun.checking.check import FAIL_ON, Report, Settings, check_models, find_models, runner_maker
    from qrun.comparing.differences import Tolerance
    from qrun.errors import QrunError, choose
    from qrun.report.catalog import select as choose_rules
    from qrun.report.formats import Asked, report_text

    def listed(given: Any) -> Sequence[Any]:
        return [given] if isinstance(given, (str, os.PathLike)) else given

    try:
        choose("fail_on", fail_on, FAIL_ON)
        models = find_models([os.fspath(given) for given in (path, *more)])
        folders = None if data is None else tuple(Path(folder) for folder in listed(data))
        settings = Settings(choose_rules(listed(select), listed(ignore)), Tolerance(lsb, rtol, atol), folders)
        checked = check_models(models, settings, runner_maker(backend, arith))
    except QrunError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    report = Report(tuple(checked), backend, arith, settings.tolerance, fail_on)
    if report.failed:
        pytest.fail(report_text("full", report, Asked()), pytrace=False)
    return report


@pytest.fixture(scope="session")
def qrun_check() -> Check:
    """`check_path`: checks a model or folder, and fails the test if it finds an error."""
    return check_path
