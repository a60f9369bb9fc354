"""What a call asks for, and what is made of it: models and their references, samples, by whom,
and when it is enough."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.declare.frozen import frozen
from qrun.evaluating.work import Job
from qrun.ir import Array, Model
from qrun.ops import Arith


@frozen
class Wishes:
    """How a call wants its models evaluated; the fields are the options of ``qrun eval``.

    labels: a file, or integers. jobs: None: as many as CPUs if that pays. against: a model, or one of RUNTIMES.
    shuffle: a seed. until_sure: the width of the first share's interval at which it is enough, 0.01 for a point.
    """

    labels: str | Array | None = None
    against: str = ""
    batch: int = 1
    limit: int | None = None
    shuffle: int | None = None
    metrics: tuple[str, ...] = ()
    until_sure: float | None = None
    fail_fast: bool = False
    jobs: int | None = None
    threads: int | None = None
    dask: str = ""
    output: str = ""
    resume: bool = False
    health: bool = False
    backend: str | None = None
    arith: Arith = "exact"
    max_memory: int | None = None
    max_time: float | None = None


@frozen
class Setup:
    """What is evaluated.

    rows, to: as of `Evaluator`. against: what the models are held against, in words.
    order:    places of the samples in the order in which they are taken; None: as they come. labels: of all samples.
    """

    job: Job
    models: tuple[Model, ...]
    rows: tuple[tuple[str, str, Sequence[str]], ...]
    to: tuple[int | None, ...]
    against: str
    wishes: Wishes
    order: Sequence[int] | None
    labels: Array | None
