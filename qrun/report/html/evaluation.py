"""What models scored on a data set, what differs between them, and the samples where most does."""

from __future__ import annotations

from qrun.evaluating.evaluation import Evaluation
from qrun.report.evaluation import evaluation_sheet
from qrun.report.html.frame import blocks, section
from qrun.report.html.tags import Markup


def evaluation_section(found: Evaluation) -> Markup:
    """The report of ``qrun eval`` as a section, with a row for each model, so that its table can be sorted."""
    sheet = evaluation_sheet(found, (), markdown=True)
    about = f"{'; '.join([*sheet.about, *sheet.notes])}. Intervals are 95 % confidence intervals."
    return section("evaluation", "Data set", about, blocks(sheet.blocks))
