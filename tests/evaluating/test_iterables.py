"""`qrun.evaluate` over any iterable: objects that behave as tensors and loaders of PyTorch do, without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qrun

DIGITS = Path(__file__).resolve().parents[2] / "models" / "digits"
MODEL = str(DIGITS / "qdq" / "model.onnx")
X = np.load(DIGITS / "x.npy")
Y = [int(each) for each in qrun.Session(MODEL).run({"images": X})["logits"].argmax(1)]
WRONG = [Y[0] - 1, *Y[1:]]


class Tensor:
    """What torch.Tensor shows of itself: no numpy array, size is a method, item refuses several elements."""

    def __init__(self, values: Any, device: str = "cpu") -> None:
        self.values, self.device = np.asarray(values), device

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        if self.device != "cpu":
            raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: int) -> Tensor:
        return Tensor(self.values[place])

    def size(self) -> tuple[int, ...]:
        return self.values.shape

    def item(self) -> Any:
        if self.values.size != 1:
            raise RuntimeError("a Tensor with 4 elements cannot be converted to Scalar")
        return self.values.item()


def top1(samples: Iterable[Any], **options: Any) -> float:
    found = qrun.evaluate(MODEL, samples, **options)
    assert (found.samples, found.failed) == (8, 0)
    score = found.score(0, "top1")
    assert score is not None
    return score.value


@pytest.mark.parametrize(
    "samples",
    [
        [(Tensor(x), Tensor(y)) for x, y in zip(X, WRONG, strict=True)],
        [[Tensor(x), Tensor([y])] for x, y in zip(X, WRONG, strict=True)],
        [({"images": Tensor(x)}, y) for x, y in zip(X, WRONG, strict=True)],
        [[Tensor(X[:5]), Tensor(WRONG[:5])], [Tensor(X[5:]), Tensor(WRONG[5:])]],
        [({"images": X[:5]}, WRONG[:5]), ({"images": X[5:]}, tuple(WRONG[5:]))],
        [(X[at : at + 1], np.int64(WRONG[at : at + 1])) for at in range(8)],
    ],
    ids=["pairs", "lists", "dicts", "batches", "dicts of batches", "batches of one"],
)
def test_every_form_has_the_same_score(samples: list[Any]) -> None:
    assert top1(samples) == top1(iter(samples)) == 7 / 8


def test_it_reads_no_more_than_it_needs() -> None:
    taken = []

    def endless() -> Iterator[Any]:
        while True:
            taken.append(len(taken))
            yield {"images": Tensor(X[len(taken) % 8])}, Y[len(taken) % 8]

    found = qrun.evaluate(MODEL, endless(), limit=5)
    assert (found.samples, found.failed, len(taken)) == (5, 0, 5)


def test_a_tensor_elsewhere_is_an_error_with_a_fix() -> None:
    with pytest.raises(qrun.CallError, match="sample 0: numpy makes no array of images") as caught:
        qrun.evaluate(MODEL, [(Tensor(X[0], "cuda:0"), 1)])
    assert caught.value.fixes == ("convert it: tensor.detach().cpu().numpy()",)
    with pytest.raises(qrun.CallError, match="numpy makes no array of its label"):
        qrun.evaluate(MODEL, [(X[0], Tensor(1, "cuda:0"))])
    with pytest.raises(qrun.CallError, match="numpy makes no array of images"):
        qrun.evaluate(MODEL, [([[1.0], [1.0, 2.0]], 1)])


def test_labels_that_do_not_fit_a_batch_are_refused() -> None:
    with pytest.raises(qrun.CallError, match="a label is not a class number"):
        qrun.evaluate(MODEL, [(Tensor(X[:4]), Tensor([1, 2, 3]))])
    with pytest.raises(qrun.CallError, match="a label is not a class number"):
        qrun.evaluate(MODEL, [(Tensor(X[0]), Tensor([0.5]))])


def test_an_error_of_the_iterable_is_its_own() -> None:
    def broken() -> Iterator[Any]:
        yield X[0], 1
        raise KeyError("the loader's own error")

    with pytest.raises(KeyError, match="the loader's own error"):
        qrun.evaluate(MODEL, broken())
