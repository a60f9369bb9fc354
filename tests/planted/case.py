"""What a planted defect is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planted.network import Network

Change = Callable[[Network], None]


@dataclass(frozen=True)
class Case:
    """code: the one finding that the defect gives. node: its label; tensor: how its tensor begins.

    base:  makes the clean network that the defect is planted in, where it is not the quantizer's.
    plant: the defect.
    """

    code: str
    node: str
    tensor: str
    form: str
    base: Change
    plant: Change

    @property
    def name(self) -> str:
        return f"{self.code}-{self.plant.__name__}"


CASES: list[Case] = []


def as_it_is(network: Network) -> None:
    """The network as the quantizer wrote it."""


def planted(
    code: str, node: str = "", tensor: str = "", form: str = "qop", base: Change = as_it_is
) -> Callable[[Change], Change]:
    """Declare a case; the function plants the defect."""

    def declare(plant: Change) -> Change:
        CASES.append(Case(code, node, tensor, form, base, plant))
        return plant

    return declare
