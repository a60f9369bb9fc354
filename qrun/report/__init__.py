"""Answers as people and programs read them: screens, JSON, CSV, Markdown, HTML, JUnit, SARIF and annotations.

May be imported by `cli` and `pytest_plugin`. Reads the results of `running`, `comparing` and `checking` and computes
none of them; knows no command line and no runtime.
"""

import sys
from types import ModuleType
from typing import Any


class _Report(ModuleType):
    """The package, which is also the function ``qrun.report``, as both have that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        from qrun.report.html.made import report

        return report(*args, **kwargs)


sys.modules[__name__].__class__ = _Report
