import numpy as np
from helpers.support import assert_equal, node_model, run_ort, run_qrun


def test_single_node_runs_in_both() -> None:
    x, w = np.ones((1, 1, 3, 3), np.uint8), np.ones((1, 1, 2, 2), np.uint8)
    model, feeds = node_model("ConvInteger", [x, w], opset=10, outputs=[np.int32])
    assert_equal(run_qrun(model, feeds)[0], run_ort(model, feeds)[0])
