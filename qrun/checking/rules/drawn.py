"""Random numbers, which every runtime draws in its own way."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import nodes
from qrun.checking.rules._words import several
from qrun.ir import Model

DRAWING = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


@rule(
    "QR219",
    "note",
    spec="RandomNormal",
    fix="make the numbers outside of the model and feed them as an input, where runtimes are to be compared",
    applies=DRAWING,
)
def random_numbers(model: Model) -> Iterator[Finding]:
    """Nodes draw random numbers. One finding for the model.

    qrun draws them from numpy's MT19937, beginning with the seed of the node or else with its name, so that every run
    gives the same numbers.

    Why is this bad?
        ONNX leaves the generator open, also where a seed is given: onnxruntime draws other numbers, and others in
        every run; onnx.reference draws qrun's where there is a seed. Runtimes agree, and give outputs that were
        recorded, only as far as these do not depend on the numbers.

    Bad
        main (float[4] x) => (float[4] y)
        {
            noise = RandomNormalLike<seed = 1.0>(x)
            y = Add(x, noise)
        }

    Good
        main (float[4] x, float[4] noise) => (float[4] y)
        {
            y = Add(x, noise)
        }
    """
    drawing = list(nodes(model, [("", name) for name in DRAWING]))
    if not drawing:
        return
    scope, node = drawing[0]
    bare = sum("seed" not in node.attributes for _, node in drawing)
    yield Finding(
        f"{several(len(drawing), 'node')} {'draws' if len(drawing) == 1 else 'draw'} random numbers; "
        "qrun's are the same in every run, onnxruntime's are not",
        **scope.at(node),
        expected="numbers that follow from the inputs",
        got=f"{several(len(drawing), 'node')}, {bare or 'none'} without a seed",
        why=f"{node.op}-{node.version} leaves the generator open; qrun's is numpy's MT19937.",
    )
