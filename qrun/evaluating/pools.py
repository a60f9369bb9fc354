"""Who works on the chunks: this process, processes beside it, or a Dask cluster. Results come as they are ready."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from qrun.errors import CallError, QrunError, RunError, UnsupportedError
from qrun.evaluating.work import Chunk, Done, Failure, Job, Worker
from qrun.running.cpus import usable_cpus
from qrun.running.crew import AHEAD, TRIES, crewed

if TYPE_CHECKING:
    from distributed import Client

ANSWERS = 10.0
"""Seconds after which a Dask scheduler that has not answered is not there."""


def serial(job: Job, chunks: Iterator[Chunk], threads: int | None) -> Iterator[Done]:
    """In this process."""
    worker = Worker(job, threads)
    for chunk in chunks:
        yield worker.work(chunk)


def processes(job: Job, chunks: Iterator[Chunk], jobs: int) -> Iterator[Done]:
    """In `jobs` processes; a chunk that none of them survives is a failure of its samples."""
    yield from crewed(partial(_worker, job), chunks, jobs, _lost)


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
    """On a Dask cluster; ``local:4`` starts one of four processes here.

    Raises UnsupportedError without the package ``distributed``, RunError when the scheduler is lost. What Dask logs
    meanwhile of workers that come and go is no news to a user, and not shown.
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
            fixes=["start it again; with -o DIR, --resume goes on from what is finished"],
        ) from None
    finally:
        logging.disable(logging.NOTSET)


def _tasks(client: Client, job: Job, chunks: Iterator[Chunk]) -> Iterator[Done]:
    from distributed import as_completed

    (shared,) = client.scatter([pickle.dumps(job)], broadcast=True, hash=True)
    room = max(len(client.scheduler_info()["workers"]), 1) * AHEAD
    running = as_completed(with_results=True, raise_errors=False)
    left, more = 0, True
    while more or left:
        while more and left < room:
            chunk = next(chunks, None)
            more = chunk is not None
            if chunk is not None:
                running.add(client.submit(_remote, shared, pickle.dumps(chunk), pure=False, retries=TRIES))
                left += 1
        if left:
            future, result = next(running)
            left -= 1
            error = result[1] if isinstance(result, tuple) else result
            if isinstance(
                error, BaseException
            ):  # the status may be another one already: that its worker was lost since
                raise error
            yield result
            future.release()


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
    """In a worker of the cluster, which keeps the models of the last job.
    Both are pickled, as Dask would take records apart."""
    global _remote_worker
    if _remote_worker is None or _remote_worker[0] != job:
        _remote_worker = job, Worker(pickle.loads(job), 1)
    return _remote_worker[1].work(pickle.loads(chunk))
