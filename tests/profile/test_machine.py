"""The roofline: what bounds a node, and how the machine's speed is measured and kept."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from helpers.profile import chain, event

import qrun
from qrun.native.emit.isa import ISAS, available, host_architecture
from qrun.native.emit.peak import INSTRUCTIONS, peak_text
from qrun.native.machine.codegen import compile_object
from qrun.native.machine.peak import Peak
from qrun.running import machine
from qrun.running.events import TensorInfo
from qrun.running.machine import SIZES, Machine, make_monotonic, this_machine
from qrun.running.profiling import Profile

needs_native = pytest.mark.skipif(not available(), reason="no native kernels for this machine")
FAKE = Machine("cpu", 1, "dot", 100e9, 50e9, ((1000, 200e9), (10**6, 20e9)))


def test_what_bounds_a_node() -> None:
    assert FAKE.roof(10**6, 100) == machine.Roof(10000.0, "compute")
    assert FAKE.roof(10**6, 100, "float32") == machine.Roof(20000.0, "compute")
    assert FAKE.roof(1000, 10**6) == machine.Roof(50000.0, "memory")
    assert FAKE.roof(0, 1000) == machine.Roof(5.0, "memory")
    assert FAKE.roof(0, 0) is None


def test_bytes_are_held_to_the_smallest_buffer_that_they_fit_in() -> None:
    assert [FAKE.bandwidth(n) / 1e9 for n in (0, 1000, 1001, 10**6, 10**9)] == [200, 200, 20, 20, 20]


def test_share_is_achieved_by_the_least_of_peak_and_intensity_times_bandwidth() -> None:
    macs, nbytes, ns = 5000, 20000, 4000
    roof = FAKE.roof(macs, nbytes)
    assert roof is not None
    attainable = min(FAKE.int8, macs / nbytes * FAKE.bandwidth(nbytes))
    assert roof.ns / ns == pytest.approx(macs / (ns * 1e-9) / attainable)


def test_no_size_is_slower_than_a_larger_one() -> None:
    assert make_monotonic([(1, 5.0), (2, 3.0), (4, 4.0), (8, 1.0)]) == ((1, 5.0), (2, 4.0), (4, 4.0), (8, 1.0))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads of each measurement that is made, which takes no time."""
    made: list[int] = []

    def measure(isa: Any, threads: int) -> Machine:
        made.append(threads)
        return Machine("cpu", threads, isa.dot, 1e9, 1e9, ((10, 1e9),))

    monkeypatch.setattr(machine, "_measure", measure)
    return made


@needs_native
def test_measured_once_for_each_number_of_threads(counted: list[int], tmp_path: Path) -> None:
    first = [this_machine(tmp_path / "c", threads) for threads in (1, 2, 1, 2)]
    assert counted == [1, 2]
    assert first[0] == first[2]
    assert first[0] != first[1]
    assert this_machine(False) == first[0]
    assert counted == [1, 2, 1], "without a cache it is measured each time"


@needs_native
def test_measured_again_only_what_was_faster_is_kept(counted: list[int], tmp_path: Path) -> None:
    kept = tmp_path / "c"
    this_machine(kept)
    faster = Machine("cpu", 1, "other", 5e9, 0.5e9, ((10, 0.5e9),))
    again = this_machine(kept, known=faster)
    assert again == Machine("cpu", 1, "other", 5e9, 1e9, ((10, 1e9),))
    assert this_machine(kept) == again
    assert len(counted) == 2


@needs_native
def test_another_version_processor_or_instruction_set_is_measured_for_itself(
    counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "c"
    this_machine(kept)
    monkeypatch.setattr(qrun, "__version__", "0.0.0")
    this_machine(kept)
    monkeypatch.setattr(machine, "processor", lambda: "another")
    this_machine(kept)
    this_machine(kept, isa=available()[-1].name)
    assert len(counted) == (4 if len(available()) > 1 else 3)


@needs_native
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"memory": []}', b'{"cpu": 1, "memory": [[1, 0]]}'])
def test_a_damaged_entry_is_measured_again(body: bytes, counted: list[int], tmp_path: Path) -> None:
    kept = tmp_path / "c"
    this_machine(kept)
    (file,) = kept.iterdir()
    file.write_bytes(body)
    this_machine(kept)
    assert len(counted) == 2, "what does not match its hash"
    assert machine._parse(body) is None, "what does, but is no measurement"


@needs_native
@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_a_folder_that_others_can_write_is_not_used(counted: list[int], tmp_path: Path) -> None:
    kept = tmp_path / "c"
    kept.mkdir(mode=0o777)
    kept.chmod(0o777)
    this_machine(kept)
    assert list(kept.iterdir()) == []


def test_nothing_is_known_where_there_are_no_kernels() -> None:
    assert this_machine(False, isa="no such") is None


@needs_native
@pytest.mark.parametrize("threads", [1, 2])
def test_the_loops_run_on_every_instruction_set(threads: int) -> None:
    for isa in available():
        peak = Peak(isa, threads)
        assert min(peak.products(2) + peak.floats(2)) > 1e6
        assert all(min(peak.reads(size, 1)) > 1e6 for size in (*SIZES[:2], 1))
        assert bool(peak.tiles(2)) == isa.tiles


@needs_native
@pytest.mark.skipif(os.name == "nt", reason="Windows does not tell")
def test_loops_that_had_no_processor_for_a_while_are_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for share, busy in ((1.0, False), (0.7, True)):
        peak, now = Peak(available()[0]), perf_counter()
        monkeypatch.setattr("qrun.native.machine.peak.thread_time", lambda s=share, n=now: s * (perf_counter() - n))
        peak.floats(2)
        assert peak.busy == busy


@pytest.mark.skipif(host_architecture() != "x86_64", reason="LLVM is asked for x86 code")
def test_the_loops_of_every_x86_instruction_set_compile() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_native_asmparser()
    for isa in ISAS:
        assert isa.dot in INSTRUCTIONS
        if isa.architecture == "x86_64":
            assert compile_object(peak_text(isa), isa)


def test_a_tensor_that_is_read_twice_is_moved_once() -> None:
    from qrun.report.profilerows import bytes_moved

    node = event(0, shape=(10,))
    assert bytes_moved(node) == 20
    assert bytes_moved(replace(node, inputs=node.inputs * 2)) == 20


def test_a_node_that_takes_rows_of_a_table_moves_these_alone() -> None:
    import numpy as np

    from qrun.report.profilerows import bytes_moved

    table, places, rows = (
        TensorInfo(n, np.dtype(np.uint8), s) for n, s in (("t", (1000, 8)), ("i", (2,)), ("r", (2, 8)))
    )
    (node,) = chain(["Gather"]).nodes
    taken = event(0, node=node)
    assert bytes_moved(replace(taken, inputs=(table, places), outputs=(rows,))) == 2 * 16 + 2
    assert bytes_moved(replace(taken, inputs=(rows, places), outputs=(table,))) == 8000 + 16 + 2, "Gather repeats rows"


@pytest.mark.parametrize(("op", "share"), [("com.microsoft::DynamicQuantizeLSTM", 0.5), ("LSTM", 1.0)])
def test_an_operator_that_quantizes_its_input_has_the_roof_of_integers(op: str, share: float) -> None:
    import numpy as np

    from qrun.report.profilerows import node_rows
    from qrun.running.session import RunResult

    floats = (TensorInfo("x", np.dtype(np.float32), (10,)),)
    model = chain([op])
    events = (replace(event(0, macs=10**6, ns=20000), inputs=floats, node=model.nodes[0]),)
    profile = Profile(model, (), (20000,), np.array([[20000]], np.int64), RunResult({}, events, 20000, 0))
    assert [row.roof_share for row in node_rows(profile, FAKE)] == [pytest.approx(share)]


def test_a_row_says_how_much_of_the_roof_it_reaches() -> None:
    import numpy as np

    from qrun.report.profilerows import node_rows
    from qrun.running.session import RunResult

    model = chain(["Conv", "Reshape", "Conv"])
    events = (event(0, macs=10**6, ns=20000, shape=(10,)), event(1, ns=0), event(2, macs=0, ns=10, shape=(100,)))
    last = RunResult({}, events, 20010, 0)
    profile = Profile(model, (), (20010,), np.array([[20000], [0], [10]], np.int64), last)
    rows = node_rows(profile, FAKE)
    assert [row.roof_share for row in rows] == [pytest.approx(0.5), None, pytest.approx(0.1)]
    assert [row.bound for row in rows] == ["compute", None, "memory"]
    assert [row.bytes for row in rows] == [20, 8, 200]
    assert all(row.roof_share is None for row in node_rows(profile, None))
