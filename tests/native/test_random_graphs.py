"""Random networks on the native backend: every tensor equals the reference backend's, fused and as written.

``cd tests; python -m helpers.graphs 2000 0`` runs as many as one likes.
"""

from __future__ import annotations

import pytest
from helpers.graphs import compare, coupled
from helpers.native import ISAS, OBJECTS, SETS, emulating

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.mark.parametrize("first", range(0, 96, 16))
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + 16):
        assert not compare(seed, cache=OBJECTS), f"seed {seed}: both backends refuse the graph"


@pytest.mark.parametrize("seed", [67, 1071, 10640, 83, 173])
def test_graphs_that_once_failed(seed: int) -> None:
    """Rows with gaps where an operation cannot have them, and rows of a concatenation along the last axis; a
    convolution without output channels, and products of no elements with several matrices."""
    compare(seed, cache=OBJECTS)


@pytest.mark.parametrize("first", range(1002, 1500, 84))
def test_products_of_tensors_and_dynamic_layers(first: int) -> None:
    """Seeds whose graphs are full of them."""
    for seed in range(first, first + 84, 7):
        assert coupled(seed)
        compare(seed, cache=OBJECTS)


@emulating
@pytest.mark.parametrize("isa", SETS[1:])
def test_every_instruction_set(isa: str) -> None:
    start = 1000 * SETS.index(isa)
    for seed in range(start, start + (12 if isa in ISAS else 6)):
        compare(seed, isa, cache=OBJECTS)
