"""Runs the chunks of an evaluation: in this process, in other processes or in a Dask cluster."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from qrun.errors import CallError, QrunError, RunError, UnsupportedError
from qrun.evaluating.job import Chunk, Done, Failure, Job
from qrun.evaluating.work import Worker
from qrun.running.cpus import usable_cpus
from qrun.running.crew import AHEAD, TRIES, run_in_crew

if TYPE_CHECKING:
    from distributed import Client


ANSWERS = 10.0
"""Seconds to wait for a Dask scheduler's answer."""


def serial(job: Job, chunks: Iterator[Chunk], threads: int | None) -> Iterator[Done]:
    """Run the chunks in this process."""
    worker = Worker(job, threads)
    for chunk in chunks:
        yield worker.work(chunk)


def processes(job: Job, chunks: Iterator[Chunk], jobs: int) -> Iterator[Done]:
    """Run the chunks in `jobs` processes. If a chunk kills its process every time, its samples fail."""
    yield from run_in_crew(partial(_worker, job), chunks, jobs, _lost)


def _worker(job: Job, threads: int) -> Callable[[Chunk], Done]:
    return Worker(job, threads).work


def _lost(chunk: Chunk) -> Done:
    failures = tuple(
        Failure(
            place, sample.name, None, "QR015", "backend-crashed", f"the process that worked on it died {TRIES} times"
        )
        for place, sample in enumerate(chunk.samples, chunk.first)
    )
    return Done(chunk.index, chunk.first, len(chunk.samples), (), failures)


def dask(job: Job, chunks: Iterator[Chunk], address: str) -> Iterator[Done]:
    """Run the chunks on a Dask cluster; ``local:4`` starts one of four processes here.

    Raises UnsupportedError without the package ``distributed``, RunError if the cluster fails. Hides Dask's log
    messages about workers that come and go.
    """
    try:
        import distributed  # noqa: F401 - is it there?
    except ImportError as error:
        raise UnsupportedError(
            "QR012",
            "--dask needs the package distributed",
            facts=[("got", str(error))],
            fixes=["pip install 'onnx-qrun[dask]'"],
        ) from None
    logging.disable(logging.CRITICAL)
    try:
        with _client(address) as client:
            yield from _tasks(client, job, chunks)
    except QrunError:
        raise
    except Exception as error:
        raise RunError(
            "QR011",
            f"the Dask cluster at {address} failed: {type(error).__name__}: {error}",
            fixes=["start it again; with -o DIR, --resume continues from the finished part"],
        ) from None
    finally:
        logging.disable(logging.NOTSET)


def _tasks(client: Client, job: Job, chunks: Iterator[Chunk]) -> Iterator[Done]:
    """Yield the results of all chunks. A chunk whose task the scheduler forgot, as the only worker with the job was
    lost, is submitted again with the job, up to TRIES times."""
    from distributed import as_completed

    def scatter() -> Any:
        return client.scatter([pickle.dumps(job)], broadcast=True)[0]

    def submit(chunk: bytes, tries: int) -> None:
        future = client.submit(_remote, shared, chunk, pure=False, retries=TRIES)
        submitted[future.key] = chunk, tries
        running.add(future)

    shared = scatter()
    room = max(len(client.scheduler_info()["workers"]), 1) * AHEAD
    running = as_completed(with_results=True, raise_errors=False)
    submitted: dict[Any, tuple[bytes, int]] = {}
    more = True
    while more or submitted:
        while more and len(submitted) < room:
            chunk = next(chunks, None)
            more = chunk is not None
            if chunk is not None:
                submit(pickle.dumps(chunk), 1)
        if submitted:
            future, result = next(running)
            packed, tries = submitted.pop(future.key)
            # not the future's status: it may have changed since, if its worker was lost
            error = result[1] if isinstance(result, tuple) else result
            if getattr(error, "reason", "") in _LOST and tries < TRIES:
                shared = scatter()
                submit(packed, tries + 1)
                continue
            if isinstance(error, BaseException):
                raise error
            yield result
            future.release()


_LOST = frozenset(["already forgotten", "lost dependencies"])
"""Why Dask cancels a task whose data was lost with a worker."""


def _client(address: str) -> Client:
    from distributed import Client, LocalCluster

    kind, _, count = address.partition(":")
    try:
        if kind == "local":
            workers = int(count) if count else usable_cpus()
            return Client(LocalCluster(workers, processes=True, threads_per_worker=1, dashboard_address=None))
        return Client(address, timeout=ANSWERS)
    except (OSError, ValueError) as error:
        raise CallError(
            "QR005",
            f"no Dask scheduler answers at {address!r}",
            facts=[("expected", "tcp://HOST:PORT, or local:4"), ("got", str(error))],
        ) from None


_remote_worker: tuple[bytes, Worker] | None = None


def _remote(job: bytes, chunk: bytes) -> Done:
    """Run a chunk in a worker of the cluster, which keeps the models of the last job.
    Job and chunk are pickled, because Dask would take records apart."""
    global _remote_worker
    if _remote_worker is None or _remote_worker[0] != job:
        _remote_worker = job, Worker(pickle.loads(job), 1)
    return _remote_worker[1].work(pickle.loads(chunk))
