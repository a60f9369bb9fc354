"""Shows results in a notebook and when printed: the terminal's text, as HTML or as it is."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from qrun.checking.rules import Finding
from qrun.comparing.accuracy import Accuracy
from qrun.comparing.comparison import Comparison
from qrun.evaluating.evaluation import Evaluation
from qrun.io.inputs import Feeds
from qrun.ir import Model
from qrun.ir.infer import with_inferred
from qrun.ops import expansion
from qrun.report.accuracy import accuracy_sheet
from qrun.report.compare import comparison_sheet
from qrun.report.evaluation import evaluation_sheet
from qrun.report.inspect import print_overview
from qrun.report.message import print_finding
from qrun.report.modelfacts import ModelFacts
from qrun.report.profile import profile_sheet
from qrun.report.profilerows import ProfileReport
from qrun.report.screen import Out, Screen, render
from qrun.report.sheet import print_sheet
from qrun.running.profiling import Profile

WIDTH = 120
OPTIONS = re.compile(r"^ *(?:--[a-z]|wider terminal or --json).*\n| {3}--[a-z].*$", re.M)
"""The command-line options that a report suggests for seeing more."""


def html_of(value: Any) -> str:
    """One HTML element for a Model, Profile, Finding, Comparison, Accuracy or Evaluation."""
    return f'<pre style="white-space: pre; overflow-x: auto">{escape(text_of(value))}</pre>'


def text_of(value: Any) -> str:
    """The terminal's text for a value, 120 columns wide."""
    return OPTIONS.sub("", render(lambda screen: _draw(screen, value), WIDTH).rstrip("\n"))


def _draw(screen: Screen, value: Any) -> None:
    if isinstance(value, Model):
        there = value.path is not None and value.path.is_file()
        print_overview(screen, ModelFacts(with_inferred(value, str(value.path), expansion) if there else value))
    elif isinstance(value, Finding):
        print_finding(screen, value, "")
    else:
        print_sheet(Out(screen, screen), _sheet(value, screen))


def _sheet(value: Any, screen: Screen) -> Any:
    if isinstance(value, Profile):
        backend = "native" if any(event.backend == "native" for event in value.last.events) else "reference"
        return profile_sheet(ProfileReport(value, Feeds(), 0, backend, "exact"), screen)
    if isinstance(value, Comparison):
        return comparison_sheet(value, 10)
    if isinstance(value, Evaluation):
        return evaluation_sheet(value, ())
    assert isinstance(value, Accuracy)
    return accuracy_sheet(value, 10)
