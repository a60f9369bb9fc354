"""NonMaxSuppression: against fractions, beside onnxruntime, at exact ties, with hostile inputs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.float import Peer
from helpers.support import assert_equal

import qrun
from qrun.memory import Budget
from qrun.ops import Context, find

F, I64 = np.float32, np.int64
OP = "NonMaxSuppression"


def call(*inputs: Any, budget: int = 2**28, **attributes: Any) -> np.ndarray:
    definition = find("", OP, 11)
    assert definition is not None
    made: np.ndarray = definition(*inputs, **attributes, ctx=Context(budget=Budget(budget)))
    return made


def sides(box: list[float], center: int) -> list[tuple[Fraction, Fraction]]:
    a, b, c, d = map(Fraction, box)
    if center:
        return [(a - c / 2, a + c / 2), (b - d / 2, b + d / 2)]
    return [(min(a, c), max(a, c)), (min(b, d), max(b, d))]


def suppresses(one: list[float], other: list[float], center: int, threshold: Fraction) -> bool:
    if not np.isfinite([one, other]).all():
        return False
    common, sizes = Fraction(1), [Fraction(1), Fraction(1)]
    for p, q in zip(sides(one, center), sides(other, center), strict=True):
        common *= max(Fraction(0), min(p[1], q[1]) - max(p[0], q[0]))
        sizes = [sizes[0] * (p[1] - p[0]), sizes[1] * (q[1] - q[0])]
    union = sum(sizes) - common
    return common > 0 and common / union > threshold


def oracle(
    boxes: np.ndarray, scores: np.ndarray, most: int, iou: Any = None, least: Any = None, center: int = 0
) -> np.ndarray:
    """From the operator's page, box by box, in fractions."""
    found = []
    threshold = Fraction(float(iou)) if iou is not None else Fraction(0)
    for batch, kind in np.ndindex(*scores.shape[:2]):
        row = [float(v) for v in scores[batch, kind]]
        places = [i for i, v in enumerate(row) if least is None or v > float(least)]
        places.sort(key=lambda i: (row[i] != row[i], -row[i] if row[i] == row[i] else 0, i))
        kept: list[int] = []
        for i in places:
            if len(kept) >= most:
                break
            given = boxes[batch].tolist()
            if not any(suppresses(given[j], given[i], center, threshold) for j in kept):
                kept.append(i)
        found += [(batch, kind, i) for i in kept]
    return np.array(found, I64).reshape(-1, 3)


def sample(rng: np.random.Generator, center: int, grid: bool, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and scores of 2 batches and 3 classes; on a grid everything is exact in float32 too, and scores repeat."""
    place, size = rng.uniform(0, 4, (2, n, 2)), rng.uniform(0, 2, (2, n, 2))
    scores = rng.normal(size=(2, 3, n))
    if grid:
        place, size, scores = (np.round(v * 4) / 4 for v in (place, size, scores))
    pairs = (place, size) if center else (place, place + size * rng.choice([-1, 1], size.shape))
    return np.concatenate(pairs, axis=2).astype(F), scores.astype(F)


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("grid", [False, True])
def test_against_the_oracle(center: int, grid: bool) -> None:
    for seed in range(16):
        rng = np.random.default_rng(seed)
        boxes, scores = sample(rng, center, grid, int(rng.integers(0, 30)))
        most, iou = int(rng.choice([0, 1, 3, 100])), rng.choice(F([0, 0.1, 0.25, 0.5, 0.7, 1]))
        least = rng.choice([None, F(-0.5), F(0.25)])
        options = [np.array(most), np.array(iou), None if least is None else np.array([least])]
        got = call(boxes, scores, *options, center_point_box=center)
        assert_equal(got, oracle(boxes, scores, most, iou, least, center), f"seed {seed}")


def test_many_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are compared at once, most of which stay, or go."""
    monkeypatch.setattr("qrun.ops.sorting._KEPT", 50)
    rng = np.random.default_rng(3)
    for reach, share in ((40, 0.5), (3, 0.05)):
        corner = rng.uniform(0, reach, (1, 400, 2))
        boxes = np.concatenate([corner, corner + 1], axis=2).astype(F)
        scores = rng.normal(size=(1, 1, 400)).astype(F)
        got = call(boxes, scores, np.array(5000), np.array(F(share)))
        assert_equal(got, oracle(boxes, scores, 5000, F(share)))


def test_ties_are_decided_on_real_numbers() -> None:
    """Shares that are the threshold, or next to it: 3/10 is less than the float32 number 0.3, 7/10 is more than 0.7."""
    for center in (0, 1):
        for part, stays in ((F(0.3), True), (F(0.7), False), (F(0.25), True), (F(0.5), True)):
            length = {0.3: 3, 0.7: 7}.get(round(float(part), 2), float(part) * 10)
            first, second = ([0, 0, 10, 1], [0, 0, length, 1]) if not center else ([5, 5, 10, 1], [5, 5, length, 1])
            got = call(F([[first, second]]), F([[[2, 1]]]), np.array(9), np.array(part), center_point_box=center)
            assert len(got) == 1 + stays, f"{part} {center}"
    tiny = F(2.0**-40)
    boxes = F([[[1, 1, tiny, 1], [1 + 2.0**-23, 1, 1.5 * 2.0**-22, 1], [1, 1, tiny, 1]]])
    got = call(boxes, F([[[3, 2, 1]]]), np.array(9), np.array(F(0)), center_point_box=1)
    assert_equal(got, oracle(boxes, F([[[3, 2, 1]]]), 9, F(0), None, 1), "corners that float64 does not hold")


def test_special_numbers() -> None:
    nan, inf = np.nan, np.inf
    boxes = F([[[0, 0, 1, 1], [0, 0, inf, 1], [0, nan, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 3e38, -3e38]]])
    for row in ([1, 2, 3, 4, 5, 6], [nan, 1, -inf, inf, nan, 0], [-0.0, 0, 0, -0.0, nan, 0]):
        for least in (None, F(0), F(nan), F(-inf)):
            for center in (0, 1):
                scores = F([[row]])
                given = [None if least is None else np.array(least)]
                got = call(boxes, scores, np.array(9), np.array(F(0.5)), *given, center_point_box=center)
                assert_equal(got, oracle(boxes, scores, 9, F(0.5), least, center), f"{row} {least} {center}")


def test_what_is_left_out() -> None:
    boxes, scores = F([[[0, 0, 1, 1], [0, 0, 1, 0.1]]]), F([[[1, 2]]])
    assert call(boxes, scores).shape == (0, 3)
    assert call(boxes, scores, np.array(-1)).shape == (0, 3)
    assert call(boxes, scores, np.array(2**63 - 1)).tolist() == [[0, 0, 1]], "any overlap is more than 0"


def test_refusals() -> None:
    boxes, scores, one = np.zeros((2, 3, 4), F), np.zeros((2, 5, 3), F), np.array(1)
    for text, inputs, center in (
        ("another shape", (boxes[..., :3], scores), 0),
        ("another shape", (boxes[0], scores), 0),
        ("do not fit", (boxes, scores[:1]), 0),
        ("do not fit", (boxes, scores[0]), 0),
        ("do not fit", (boxes, scores[..., :2]), 0),
        ("center_point_box is not 0 or 1", (boxes, scores), 2),
        ("not between 0 and 1", (boxes, scores, one, np.array(F(1.5))), 0),
        ("not between 0 and 1", (boxes, scores, one, np.array(F(np.nan))), 0),
        ("not a scalar", (boxes, scores, np.array([1, 2])), 0),
    ):
        with pytest.raises(qrun.QrunError, match=text):
            call(*inputs, center_point_box=center)
    with pytest.raises(qrun.MemoryLimitError):
        call(np.zeros((1, 5000, 4), F), np.zeros((1, 1, 5000), F), np.array(5000), budget=300_000)


def test_beside_onnxruntime() -> None:
    """On numbers that float32 holds in every step."""
    peer = Peer()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        center = seed % 2
        boxes, scores = sample(rng, center, True, 40)
        inputs = [boxes, scores, np.array([5]), np.array([rng.choice(F([0, 0.25, 0.5, 0.625]))])]
        inputs += [np.array([F(0.25)])] * (seed % 3 > 0)
        options = {"outputs": [I64], "opset": 11, "message": f"seed {seed}"}
        peer.check(OP, inputs, {"center_point_box": center}, rtol=0, atol=0, **options)
    peer.finish(1.0)
