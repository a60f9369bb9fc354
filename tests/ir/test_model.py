"""What a loaded model tells of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.ir import Node


def test_numbers_of_an_attribute_are_not_searched_for_graphs() -> None:
    """A node with a million outputs asks once for each; its attribute may have a million numbers."""

    class Numbers(tuple[int, ...]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("looked through")

    node = Node(0, "n", "", "Split", 13, ("x",), ("y",), {"axis": Numbers((1, 2)), "other": 3})
    assert not any(node.subgraphs)
