"""Two profiles of one model in groups that both have: each node once, no time lost or counted twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from helpers.profile import chain, event

from qrun.running.extents import Extent, common_extents

Q, DQ = "QuantizeLinear", "DequantizeLinear"


def extents(ops: Sequence[str], first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> list[Extent]:
    sides = [[event(max(group, default=99), group) for group in groups] for groups in (first, second)]
    return common_extents(chain(ops), *sides)


def test_equal_groups_stay_apart() -> None:
    found = extents(["Conv", "Relu", "Conv"], [[0, 1], [2]], [[0, 1], [2]])
    assert found == [Extent((0, 1), (0,), (0,)), Extent((2,), (1,), (1,))]


def test_groups_of_another_extent_are_joined() -> None:
    ops = ["Conv", "Relu", "Conv", "Relu", "Add"]
    assert extents(ops, [[0, 1], [2], [3, 4]], [[0], [1, 2], [3], [4]]) == [
        Extent((0, 1, 2), (0, 1), (0, 1)),
        Extent((3, 4), (2,), (2, 3)),
    ]


def test_a_shared_dequantize_joins_nothing() -> None:
    """The input of two convolutions, fused into both by one, by the other into one of them or run alone."""
    ops = [DQ, "Conv", "Conv"]
    both = [[0, 1], [0, 2]]
    assert [e.nodes for e in extents(ops, both, both)] == [(0, 1), (2,)]
    alone = extents(ops, both, [[0], [1], [2]])
    assert sorted((e.first, e.second) for e in alone) == [((), (0,)), ((0,), (1,)), ((1,), (2,))]
    assert sorted(i for e in alone for i in e.nodes) == [0, 1, 2]


def test_a_quantize_that_one_runs_alone_joins_what_the_other_fused_it_with() -> None:
    assert extents([DQ, "Conv", Q], [[0, 1, 2]], [[0, 1], [2]]) == [Extent((0, 1, 2), (0,), (0, 1))]


def test_what_was_inserted_or_folded_is_a_group_of_its_own() -> None:
    found = extents(["Constant", "Conv"], [[1]], [[1], []])
    assert found == [Extent((1,), (0,), (0,)), Extent((), (), (1,)), Extent((0,), (), ())]


@pytest.mark.parametrize("seed", range(20))
def test_each_node_and_each_event_is_in_one_group(seed: int) -> None:
    rng = random.Random(seed)
    ops = [rng.choice([Q, DQ, "Conv", "Add"]) for _ in range(12)]

    def groups() -> list[list[int]]:
        cuts = sorted(rng.sample(range(1, 12), 4))
        made = [list(range(a, b)) for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]
        for group in made:
            group += [i for i in range(12) if ops[i] == DQ and rng.random() < 0.2 and i not in group]
        return [g for g in made if rng.random() < 0.9]

    first, second = groups(), groups()
    found = extents(ops, first, second)
    print("seed", seed, ops, first, second)
    assert sorted(i for e in found for i in e.nodes) == list(range(12))
    assert sorted(i for e in found for i in e.first) == list(range(len(first)))
    assert sorted(i for e in found for i in e.second) == list(range(len(second)))
