"""Whole models whose last nodes are no layers: a detector that suppresses boxes, and a pipeline that ends in trees."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from helpers.whole import F32, I64, Case, Graph, calibrated

ML = "ai.onnx.ml"
SIDE, CHANNELS, CLASSES = 16, 8, 3


def detector(quantize: bool) -> Case:
    """Boxes and classes of an image: convolutions, two heads, boxes that overlap suppressed,
    and the others gathered."""
    g = Graph(55)
    x = g.input("images", F32, ["batch", 3, SIDE, SIDE])
    for channels in (3, CHANNELS):
        y = g.add("Conv", x, g.weight(CHANNELS, channels, 3, 3), g.bias(CHANNELS), pads=[1] * 4, strides=[2, 2])
        x = g.add("Relu", y)
    count = (SIDE // 4) ** 2
    sizes = g.add("Sigmoid", _head(g, x, 4, count))
    scores = g.add("Sigmoid", _head(g, x, CLASSES, count), name="scores")
    centre, half = g.several("Split", [sizes, g.ints(2, 2)], 2, axis=2)
    places = np.stack(np.meshgrid(np.arange(4), np.arange(4), indexing="ij"), -1).reshape(1, count, 2)
    centre = g.add("Add", centre, g.store(places.astype(np.float32)))
    boxes = g.add("Concat", g.add("Sub", centre, half), g.add("Add", centre, half), name="boxes", axis=2)
    limits = g.store(np.int64([3])), g.store(np.float32([0.3])), g.store(np.float32([0.4]))
    chosen = g.add("NonMaxSuppression", boxes, g.add("Transpose", scores, perm=[0, 2, 1]), *limits, name="chosen")
    image, place = (g.add("Gather", chosen, g.ints(n), axis=1) for n in (0, 2))
    kept = g.add("GatherND", boxes, g.add("Concat", image, place, axis=1), name="kept")
    g.output(kept, F32, ["n", 4])
    g.output(chosen, I64, ["n", 3])
    g.output(g.add("ReduceMax", scores, name="best", keepdims=0), F32, [])
    rng = np.random.default_rng(8)
    images = [rng.uniform(-1, 1, (n, 3, SIDE, SIDE)).astype(np.float32) for n in (1, 1, 2)]
    case = Case(g.model(), [{"images": image} for image in images])
    return calibrated(case, 0.02, op_types_to_quantize=["Conv", "Relu", "Add"]) if quantize else case


def _head(g: Graph, x: str, size: int, count: int) -> str:
    """[batch, count, size]."""
    y = g.add("Conv", x, g.weight(size, CHANNELS, 1, 1), g.bias(size))
    return g.add("Reshape", g.add("Transpose", y, perm=[0, 2, 3, 1]), g.ints(0, count, size))


def pipeline(zipped: bool) -> Case:
    """What skl2onnx writes of a scaler and a random forest:
    labels, and probabilities, with `zipped` as a map for each row."""
    g = Graph(66)
    x = g.input("X", F32, [None, 4])
    means, scales = (g.rng.uniform(0.5, 2, 4).astype(np.float32) for _ in range(2))
    x = g.add("Scaler", x, name="scaled", domain=ML, offset=means.tolist(), scale=scales.tolist())
    label, scores = g.several("TreeEnsembleClassifier", [x], 2, domain=ML, post_transform="NONE", **_forest(g))
    label = g.add("Cast", label, name="label", to=TensorProto.INT64)
    g.output(label, I64, [None])
    if zipped:
        g.add("ZipMap", scores, name="output_probability", domain=ML, classlabels_int64s=list(range(CLASSES)))
        pairs = helper.make_map_type_proto(I64, helper.make_tensor_type_proto(F32, []))
        g.outputs.append(helper.make_value_info("output_probability", helper.make_sequence_type_proto(pairs)))
    else:
        g.output(g.add("Identity", scores, name="probabilities"), F32, [None, CLASSES])
    rng = np.random.default_rng(10)
    return Case(g.model(), [{"X": rng.normal(1, 1, (n, 4)).astype(np.float32)} for n in (1, 7, 7, 0, 30)])


def _forest(g: Graph, trees: int = 6, depth: int = 3) -> dict[str, object]:
    """Attributes of full trees: node n has the children 2 n + 1 and 2 n + 2, leaves the part of each class."""
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    leaves = range(inner, count)
    tests = g.rng.normal(0, 1, (trees, inner)).astype(np.float32)
    parts = g.rng.dirichlet(np.ones(CLASSES), (trees, len(leaves))).astype(np.float32) / np.float32(trees)
    rows = [(tree, node) for tree in range(trees) for node in range(count)]
    leaf_rows = [(tree, node, label) for tree in range(trees) for node in leaves for label in range(CLASSES)]
    return {
        "classlabels_int64s": list(range(CLASSES)),
        "nodes_treeids": [tree for tree, _ in rows],
        "nodes_nodeids": [node for _, node in rows],
        "nodes_featureids": [int(g.rng.integers(0, 4)) if node < inner else 0 for _, node in rows],
        "nodes_modes": ["BRANCH_LEQ" if node < inner else "LEAF" for _, node in rows],
        "nodes_values": [float(tests[tree, node]) if node < inner else 0.0 for tree, node in rows],
        "nodes_truenodeids": [2 * node + 1 if node < inner else 0 for _, node in rows],
        "nodes_falsenodeids": [2 * node + 2 if node < inner else 0 for _, node in rows],
        "nodes_hitrates": [1.0] * len(rows),
        "nodes_missing_value_tracks_true": [0] * len(rows),
        "class_treeids": [tree for tree, _, _ in leaf_rows],
        "class_nodeids": [node for _, node, _ in leaf_rows],
        "class_ids": [label for _, _, label in leaf_rows],
        "class_weights": [float(parts[tree, node - inner, label]) for tree, node, label in leaf_rows],
    }
