"""Answers as people and programs read them: screens, JSON, CSV, Markdown, HTML, JUnit, SARIF and annotations.

May be imported by `cli` and `pytest_plugin`. Reads the results of `running`, `comparing` and `checking` and computes
none of them; knows no command line and no runtime.
"""

import sys
from inspect import getdoc, signature
from types import ModuleType
from typing import Any


class _Report(ModuleType):
    # The package is also the function ``qrun.report``, as both have that name. help() and inspect show the function.

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        from qrun.report.html.made import report

        return report(*args, **kwargs)

    @property
    def __signature__(self) -> Any:

        from qrun.report.html.made import report

        return signature(report)

    @property
    def __doc__(self) -> str:  # type: ignore[override]

        from qrun.report.html.made import report

        summary, _, rest = (getdoc(report) or "").partition("\n\n")
        return f"{' '.join(summary.split())}\n\nqrun.report{self.__signature__}\n\n{rest}"


sys.modules[__name__].__class__ = _Report
