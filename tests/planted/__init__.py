"""One defect for every code that ``qrun check`` gives, planted in the middle of a ResNet-50."""

from __future__ import annotations

from planted import defaultsession, graph, groups, operators, parameters, values
from planted.case import CASES, Case
from planted.network import Network

__all__ = ["CASES", "Case", "Network", "defaultsession", "graph", "groups", "operators", "parameters", "values"]
