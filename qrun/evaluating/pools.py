"""Who works on the chunks: this process, processes beside it, or a Dask cluster. Results come as they are ready."""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from qrun.errors import CallError, QrunError, RunError, UnsupportedError
from qrun.evaluating.work import Chunk, Done, Failure, Job, Worker
from qrun.running.cpus import usable_cpus

if TYPE_CHECKING:
    from distributed import Client

AHEAD = 2
"""Chunks that are read before they are needed, for each worker: what bounds the memory."""
_TRIES = 3
"""How often a chunk is begun that its worker did not survive."""


def serial(job: Job, chunks: Iterator[Chunk], threads: int | None) -> Iterator[Done]:
    """In this process."""
    worker = Worker(job, threads)
    for chunk in chunks:
        yield worker.work(chunk)


def processes(job: Job, chunks: Iterator[Chunk], jobs: int) -> Iterator[Done]:
    """In `jobs` processes, each with its share of the CPUs. What a killed one had in work is done again.

    A chunk whose worker dies although it works alone, three times, is a failure of its samples.
    """
    crew = _Crew(job, jobs)
    more = True
    try:
        while more or crew.busy:
            while more and crew.free:
                chunk = next(chunks, None)
                more = chunk is not None
                if chunk is not None:
                    crew.submit(chunk, 0)
            yield from crew.finished()
    finally:
        crew.end()


class _Crew:
    """Worker processes. suspects: chunks whose worker may have died of them, with how often; they are done one at a time."""

    def __init__(self, job: Job, jobs: int) -> None:
        self._job, self._jobs = job, jobs
        self._pending: dict[Future[Done], tuple[Chunk, int]] = {}
        self._suspects: list[tuple[Chunk, int]] = []
        self._pool = _pool(job, jobs)

    @property
    def busy(self) -> bool:
        return bool(self._pending or self._suspects)

    @property
    def free(self) -> bool:
        return not self._suspects and len(self._pending) < self._jobs * AHEAD

    def submit(self, chunk: Chunk, tries: int) -> None:
        try:
            self._pending[self._pool.submit(_work, chunk)] = chunk, tries
        except BrokenProcessPool:
            self._suspects.append((chunk, tries))
            self._renew()

    def finished(self) -> Iterator[Done]:
        """Waits until a chunk is done, or a worker has died."""
        if self._suspects and not self._pending:
            chunk, tries = self._suspects.pop(0)
            if tries >= _TRIES:
                yield _lost(chunk)
                return
            self.submit(chunk, tries)
        broken = False
        for future in wait(self._pending, return_when=FIRST_COMPLETED).done:
            chunk, tries = self._pending.pop(future)
            try:
                yield future.result()
            except BrokenProcessPool:
                self._suspects.append((chunk, tries + 1))
                broken = True
        if broken:
            self._renew()

    def _renew(self) -> None:
        """New workers in place of those of which one has died, and with it all."""
        self._suspects += [(chunk, tries + 1) for chunk, tries in self._pending.values()]
        self._suspects.sort(key=lambda suspect: suspect[0].index)
        self._pending.clear()
        self.end()
        self._pool = _pool(self._job, self._jobs)

    def end(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _lost(chunk: Chunk) -> Done:
    failures = tuple(
        Failure(
            place, sample.name, None, "QR015", "backend-crashed", f"the process that worked on it died {_TRIES} times"
        )
        for place, sample in enumerate(chunk.samples, chunk.first)
    )
    return Done(chunk.index, chunk.first, len(chunk.samples), (), failures)


def _pool(job: Job, jobs: int) -> ProcessPoolExecutor:
    context = get_context("spawn")
    place = context.Value("i", 0)
    return ProcessPoolExecutor(jobs, context, _start, (job, jobs, place, os.getpid()))


_worker: Worker | None = None


def _start(job: Job, jobs: int, place: Any, parent: int) -> None:
    """In a new worker: take the next share of the CPUs, and end with the parent."""
    global _worker
    with place.get_lock():
        number, place.value = place.value, place.value + 1
    threads = max(usable_cpus() // jobs, 1)
    if hasattr(os, "sched_setaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
        share = cpus[number % jobs * len(cpus) // jobs : (number % jobs + 1) * len(cpus) // jobs]
        with suppress(OSError):
            os.sched_setaffinity(0, share or cpus)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = Worker(job, threads)


def _follow(parent: int) -> None:
    """End this process when the one that started it is gone: nobody would take its results."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(chunk: Chunk) -> Done:
    assert _worker is not None
    return _worker.work(chunk)


def dask(job: Job, chunks: Iterator[Chunk], address: str) -> Iterator[Done]:
    """On a Dask cluster; ``local:4`` starts one of four processes here.

    Raises UnsupportedError without the package ``distributed``, RunError when the scheduler is lost. What Dask logs meanwhile
    of workers that come and go is no news to a user, and not shown.
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
                running.add(client.submit(_remote, shared, pickle.dumps(chunk), pure=False, retries=_TRIES))
                left += 1
        if left:
            future, result = next(running)
            left -= 1
            if future.status != "finished":
                raise result[1] if isinstance(result, tuple) else result
            yield result
            future.release()


def _client(address: str) -> Client:
    from distributed import Client, LocalCluster

    kind, _, count = address.partition(":")
    try:
        if kind == "local":
            workers = int(count) if count else usable_cpus()
            return Client(LocalCluster(workers, processes=True, threads_per_worker=1, dashboard_address=None))
        return Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise CallError(
            "QR005",
            f"no Dask scheduler answers at {address!r}",
            facts=[("expected", "tcp://HOST:PORT, or local:4"), ("got", str(error))],
        ) from None


_remote_worker: tuple[bytes, Worker] | None = None


def _remote(job: bytes, chunk: bytes) -> Done:
    """In a worker of the cluster, which keeps the models of the last job. Both are pickled, as Dask would take records apart."""
    global _remote_worker
    if _remote_worker is None or _remote_worker[0] != job:
        _remote_worker = job, Worker(pickle.loads(job), 1)
    return _remote_worker[1].work(pickle.loads(chunk))
