"""What a call asks for (`Wishes`), and what becomes of that (`Setup`): models, references, samples, workers,
and when to stop."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.declare.frozen import frozen
from qrun.evaluating.work import Job
from qrun.ir import Array, Model
from qrun.ops import Arith


@frozen
class Wishes:
    """How a call wants its models evaluated; the fields are the options of ``qrun eval``.

    labels: a file, or integers, or texts. jobs: processes; None: one for each CPU if that pays. against: a model, or
    one of RUNTIMES. shuffle: a seed. until_sure: stop once the first share's interval is this narrow (0.01: one point).
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
    """An evaluation, ready to begin.

    rows, to: as in `Evaluator`. against: the reference of the models, in words; "" without one.
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
