"""Kernels are compiled by a thread, while the next ones are planned."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS

import qrun
from qrun.native.emit.spec import KernelSpec
from qrun.native.errors import Declined
from qrun.native.machine import codegen
from qrun.native.machine import compile as compiling
from qrun.native.machine.engine import Engine
from qrun.native.machine.threads import _SWITCH, Builder
from qrun.running.dispatch import NativeKernels

DIGITS = Path(__file__).parents[2] / "models" / "digits"
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def spec(engine: Engine) -> KernelSpec:
    return KernelSpec("dense", engine.isa.name, 2, 1, 1, "i32", "i32", False)


def settled_interval() -> float:
    """Seconds between the turns of threads when nobody builds: a session of an earlier test may still compile."""
    end = time.monotonic() + 60
    while sys.getswitchinterval() <= _SWITCH and time.monotonic() < end:
        time.sleep(0.001)
    return sys.getswitchinterval()


@pytest.fixture
def usual() -> float:
    return settled_interval()


def test_things_are_made_in_order_elsewhere_and_the_interval_is_as_before(usual: float) -> None:
    builder, made = Builder(), []
    gate = threading.Event()

    def make(number: int) -> int:
        gate.wait(60)
        made.append(number)
        return threading.get_ident()

    asked = [builder.run_later(lambda number=number: make(number)) for number in range(20)]  # type: ignore[misc]
    meanwhile = sys.getswitchinterval()
    gate.set()
    assert meanwhile < usual
    while any(awaited.waits for awaited in asked):
        time.sleep(0.001)
    found = {awaited.get() for awaited in asked}
    assert made == list(range(20))
    assert len(found) == 1
    assert threading.get_ident() not in found
    assert settled_interval() == usual


def test_what_cannot_be_made_says_so_to_all_who_wait(usual: float) -> None:
    builder = Builder()
    failed = builder.run_later(lambda: 1 // 0)
    assert builder.run_later(lambda: 7).get() == 7
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failed.get()
    assert settled_interval() == usual


def test_what_ctrl_c_interrupts_is_made_by_who_wants_it_next(usual: float) -> None:
    builder = Builder()
    _, gate = busy(builder)
    begun, interrupt, turns = threading.Event(), threading.Event(), list[int]()

    def make() -> int:
        turns.append(threading.get_ident())
        if len(turns) == 1:
            begun.set()
            assert interrupt.wait(60)
            raise KeyboardInterrupt
        return 7

    awaited, found = builder.run_later(make), list[int]()

    def other() -> None:
        assert begun.wait(60)
        interrupt.set()
        found.append(awaited.get())

    waiting = threading.Thread(target=other)
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        awaited.get()
    waiting.join(60)
    assert found == [awaited.get()] == [7]
    assert len(turns) == 2
    gate.set()
    assert settled_interval() == usual


def busy(builder: Builder) -> tuple[threading.Event, threading.Event]:
    """Sets the first event when the thread waits for the second."""
    begun, gate = threading.Event(), threading.Event()
    builder.run_later(lambda: (begun.set(), gate.wait(60)))
    assert begun.wait(60)
    return begun, gate


def test_who_waits_for_what_nobody_has_begun_makes_it(usual: float) -> None:
    builder = Builder()
    _, gate = busy(builder)
    here = threading.get_ident()
    assert builder.run_later(threading.get_ident).get() == here
    gate.set()
    last = builder.run_later(threading.get_ident)
    while last.waits:
        time.sleep(0.001)
    assert last.get() != here
    assert settled_interval() == usual


def test_two_threads_make_what_is_to_be_finished() -> None:
    builder, both = Builder(), threading.Barrier(2, timeout=60)
    asked = [builder.run_later(lambda: both.wait() and 0) for _ in range(6)]
    asked.append(builder.run_later(lambda: 1 // 0))
    with pytest.raises(ZeroDivisionError):
        builder.finish(asked)
    assert not any(awaited.waits for awaited in asked)


def test_what_may_be_needed_is_made_last_and_what_is_unlikely_for_who_wants_it(usual: float) -> None:
    builder, made = Builder(), []
    _, gate = busy(builder)
    with builder.speculate():
        asked = [builder.run_later(lambda size=size: made.append(size), size) for size in (3, 1, 2)]  # type: ignore[misc]
        unlikely = builder.run_later(lambda: made.append(0), 0, likely=False)
    with builder.speculate():
        more = [builder.run_later(lambda size=size: made.append(size), size) for size in (6, 4, 5)]  # type: ignore[misc]
        gate.set()
        while any(awaited.waits for awaited in more):
            time.sleep(0.001)
    assert made == [4, 5, 6]
    assert all(awaited.waits for awaited in (*asked, unlikely))
    builder.finish([*asked, unlikely])
    assert sorted(made[3:]) == [0, 1, 2, 3]
    assert settled_interval() == usual


def test_threads_that_compile_side_by_side_make_what_one_makes() -> None:
    engine = Engine.create()
    specs = [
        KernelSpec("dense", engine.isa.name, rows, 1, 1, form, form, False) for rows in (1, 2, 4) for form in ("i32",)
    ]
    texts = [compiling.kernel_text(spec) for spec in specs] * 4
    want = [codegen.compile_object(text, engine.isa, flat=True) for text in texts]
    builders = [Builder() for _ in range(4)]
    asked = [
        builders[number % 4].run_later(lambda text=text: codegen.compile_object(text, engine.isa, flat=True))  # type: ignore[misc]
        for number, text in enumerate(texts)
    ]
    assert [awaited.get() for awaited in asked] == want


def test_a_plan_does_not_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = Engine.create(), threading.Event()
    real = codegen.compile_object

    def slow(*given: object, **more: object) -> bytes:
        assert gate.wait(60)
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(codegen, "compile_object", slow)
    engine.kernels.begin(engine.isa, (spec(engine),))
    kernel = engine.kernels.get(spec(engine))
    assert kernel.names
    gate.set()
    assert kernel.address
    assert engine.runner.lead
    assert engine.kernels.compiled == 2


def test_nothing_begins_where_the_cache_has_it(tmp_path: Path) -> None:
    for compiled in (1, 0):
        engine = Engine.create(cache=tmp_path / "cache")
        engine.kernels.begin(engine.isa)
        _ = engine.runner
        assert engine.kernels.compiled == compiled


def test_a_kernel_that_cannot_be_compiled_is_declined_when_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise Declined("llvmlite cannot be loaded")

    monkeypatch.setattr(codegen, "begin", broken)
    for begun in (False, True):
        engine = Engine.create()
        if begun:
            engine.kernels._llvm = engine.kernels._builder.run_later(broken)
        with pytest.raises(Declined, match="cannot be loaded"):
            engine.kernels.get(spec(engine))


@pytest.mark.parametrize("kind", ["qoperator", "qdq"])
def test_a_first_run_makes_all_kernels_before_it_waits_for_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    bind, address = NativeKernels._make, compiling.CompiledKernel.address

    def made_now(*given: Any) -> Any:
        told.append("made")
        return bind(*given)

    def awaited(kernel: compiling.CompiledKernel) -> int:
        if "halves*" not in kernel.names:  # what proofs take is awaited while kernels are made
            told.append("awaited")
        return int(address.func(kernel))

    monkeypatch.setattr(NativeKernels, "_make", made_now)
    monkeypatch.setattr(compiling.CompiledKernel, "address", property(awaited))
    model = DIGITS / kind / "model.onnx"
    session = qrun.Session(model, cache=False)
    x = {session.inputs[0].name: np.load(DIGITS / "x.npy")}
    made = session.execute(x)
    assert "made" not in told[told.index("awaited") :]
    assert told.count("made") > 3
    wanted = qrun.Session(model, backend="reference", fuse=True).run(x)
    assert all(np.array_equal(made.outputs[name], array) for name, array in wanted.items())


def test_results_that_nobody_wants_any_more_leave_the_interval_as_before(usual: float) -> None:
    builder = Builder()
    begun, gate = busy(builder)
    begun.wait(60)
    left = [builder.run_later(lambda: 7) for _ in range(3)]
    with builder.speculate():
        left.append(builder.run_later(lambda: 7))
    del builder
    gate.set()
    assert settled_interval() == usual
    assert [awaited.get() for awaited in left] == [7] * 4


def test_requests_of_a_builder_that_has_ended_leave_the_interval_as_before(usual: float) -> None:
    builder = Builder()
    assert builder.run_later(lambda: 7).get() == 7
    builder.end()
    (thread,) = builder._helpers._threads
    thread.join(60)
    left = builder.run_later(lambda: 8)
    assert settled_interval() == usual
    assert left.get() == 8
    assert settled_interval() == usual
