"""Renders results for people and for programs: screens, JSON, CSV, Markdown, HTML, JUnit, SARIF and annotations.

May be imported by `cli` and `pytest_plugin`. It reads the results of `running`, `comparing` and `checking` and computes
none of them; it knows no command line and no runtime.
"""

import sys
from inspect import getdoc, signature
from types import ModuleType
from typing import Any


class _Report(ModuleType):
    # The package shares its name with the function ``qrun.report``, so it is callable; help() and inspect show that.

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
