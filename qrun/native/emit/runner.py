"""The generated functions that execute a program. Every thread walks through all calls, and takes the tiles that are
left of each.

    segment  run calls first..last; at a call with the barrier mark, wait until the calls since the last barrier are
             done. Helpers skip the calls that only the leader runs, and waits that precede only such calls
    lead     called by the thread that starts a run: reset counters, let helpers in, run, wait until they are out
    follow   called by helpers: run whatever opens; return after nothing has opened for `patience` turns
    direct   lead, on arrays that are given as Python objects
    ticks    the processor's clock
    empty    a kernel that does nothing, used to measure the cost of a step (machine/meter.py)

At `times` each thread stores two readings of the processor's clock for each call: when it came to the call, and when it
ended its own work on it (the same if there was none left); and one more at the end.

Every kernel gets the scratch memory of its thread; few use it. A helper that comes late begins at the first call and
finds its tiles taken; nobody waits for a sleeping thread.

A thread that waits long for others sleeps on Linux until a counter changes (a futex): on a busy machine the other
thread may have no processor for milliseconds, and gets one sooner this way. A thread that changes a counter wakes the
sleepers, if SLEEPERS counts any. On other systems, and while a helper waits for the next run, a thread yields its
processor through the function whose address is at YIELD in the state, 0 for none. Without that, if the system wakes a
helper on the leader's processor, each would wait there for milliseconds while the other cannot run. At first a thread
spins, since sleeping and yielding cost more than most waits take.

Which thread sees what, and why each memory ordering suffices (LLVM's names; C++ says relaxed for monotonic):

monotonic   The counter of taken tiles (in the kernels). It need only give each number to one thread: the data that a
            tile reads was stored before a barrier, or before the run was opened.
release     Adding to the count of finished tiles after the kernel has returned, so that its tiles' stores come first.
            This addition is seq_cst, since it also ends sleep.
acquire     Reading that count in a barrier. The additions of several threads are one release sequence, since each is a
            read-modify-write: a thread that reads the full count sees the results of all of them.
seq_cst     Opening, entering, closing. A helper adds itself to those inside, then looks whether the run is still open;
            the leader closes it, then looks whether someone is inside. Each stores one word and then loads the other's:
            with release and acquire both could read the old values (Dekker's problem), and the helper would run calls
            whose counters the next run resets. In one total order, one of the two sees the other: a helper that is too
            late leaves without touching anything.
            Opening is also the release that the plan, its range and its counters need, which are plain stores. Leaving
            is the release after which the leader, once it reads that nobody is inside, has all results. Weaker orders
            would do for these two, but they happen once per run and thread.
            Sleeping and waking: a thread adds itself to SLEEPERS, then looks at the counter again; a thread that
            changes the counter then looks at SLEEPERS. One of them sees the other; and Linux lets no thread sleep whose
            counter has changed meanwhile.

A helper that skips the wait before calls of the leader alone does wait after the last of them, if it goes on with other
calls. That wait reads a count that the leader added to after its own wait: so all earlier work is done, and seen.

A plan never changes while a helper is inside, so all other accesses may be plain loads and stores. A helper compares
the generation again after it has entered, so that it does not mistake a later run for the one that it saw.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from qrun.native.emit import spec
from qrun.native.emit.flow import Flow, Pause, functions
from qrun.native.emit.isa import CLOCK, PAUSE
from qrun.native.emit.values import Value

_TOLD = ("ptr", "i64", "i64", "ptr", "i64", "ptr", "i64", "ptr", "i64")
"""The types of the words from spec.STATE_AT to spec.DOUBTS_AT."""


def _is_undecided(w: Flow, plan: Value, doubtful: Value, doubts: Value) -> Value:
    """Whether one of the `doubts` calls, whose numbers are at `doubtful`, left a result undecided."""
    with w.loop(0, doubts, 1, [w.value("i1", "false")]) as turn:
        call = (doubtful + turn.index * 8).load("i64", 8)
        args = (plan + call * spec.ENTRY + 8).load("ptr", 8)
        turn.next(turn.carried[0] | (args + spec.DOUBT).load("i64", 8).test("ne", 0))
    return turn.carried[0]


def _direct(w: Flow, told: Value) -> Value:
    """A whole run in one call from Python, on array objects. Returns 1 if a call left a result undecided.

    It first sets each word of an argument struct that is an address in an array: the address of the array's elements,
    plus an offset in bytes. told: the words from spec.STATE_AT on."""
    words = [(told + 8 * address).load(kind, 8) for address, kind in enumerate(_TOLD)]
    state, first, end, scratch, inside, places, count, doubtful, doubts = words
    with w.loop(0, count, 1) as turn:
        address = places + turn.index * spec.PLACE
        array, word = ((address + n).load("ptr", 8) for n in (0, 8))
        memory = (array.load("ptr", 8) + inside).load("i64", 8)
        word.store(memory + (address + 16).load("i64", 8), 8)
    w.let("i64", f"call i64 @lead(ptr {state}, i64 {first}, i64 {end}, ptr {scratch})")
    plan = (state + spec.PLAN).load("ptr", 8)
    return w.let("i1", f"call i1 @undecided(ptr {plan}, ptr {doubtful}, i64 {doubts})").zext("i64")


_BRIEF, _GIVEN, _AWAKE = 256, 16, 2048
"""The turns of a wait (tens of nanoseconds each) after which a thread yields; the turns that one yield counts for; and
the turns after which a thread sleeps."""
_FUTEX = {"x86_64": 202, "aarch64": 98}
_SLEEP, _WAKE, _ALL = 128, 129, 2**31 - 1
"""The system call's number; its operations, within one process; and the number of threads to wake."""


def _wait(pause: Pause, w: Flow, give_way: Value, turn: Value) -> Value:
    """Do one turn of a wait: pause, and yield if it is long. turn: turns so far. Returns their new number."""
    name, operands = pause
    w.run(name, *operands)

    def given() -> list[Value]:
        w.let("i32", f"call i32 {give_way}()")
        return [turn + _GIVEN]

    (turns,) = w.instead([turn + 1], turn.test("uge", _BRIEF) & give_way.test("ne", "null"), given)
    return turns


def _rest(futex: int, w: Flow, state: Value, counter: Value, seen: Value, turn: Value) -> Value:
    """Do one turn of a wait for a counter to change from `seen`; sleep if there were many. Returns the turns so far."""
    system, give_way = ((state + address).load("ptr", 8) for address in (spec.SYSCALL, spec.YIELD))

    def asleep() -> list[Value]:
        w.atomic("add", state + spec.SLEEPERS, 1, "seq_cst")
        with w.when(w.atomic_load(counter, "seq_cst").test("eq", seen)):
            asked = f"i64 {futex}, ptr {counter}, i64 {_SLEEP}, i64 {seen}, ptr {state + spec.DOZE}, ptr null, i64 0"
            w.let("i64", f"call i64 (i64, ...) {system}({asked})")
        w.atomic("sub", state + spec.SLEEPERS, 1, "seq_cst")
        return [turn]

    awake = w.value("ptr", "null")
    long = turn.test("uge", _AWAKE) & system.test("ne", "null")
    here = w.instead([give_way], system.test("ne", "null"), lambda: [awake])
    spun = w.let("i64", f"call i64 @wait(ptr {here[0]}, i64 {turn})")
    return w.instead([spun], long, asleep)[0]


def _wake(futex: int, w: Flow, state: Value, counter: Value) -> None:
    """Wake the threads that sleep until this counter changes."""
    system = (state + spec.SYSCALL).load("ptr", 8)
    asked = f"i64 {futex}, ptr {counter}, i64 {_WAKE}, i64 {_ALL}, ptr null, ptr null, i64 0"
    with w.when(system.test("ne", "null")):
        w.let("i64", f"call i64 (i64, ...) {system}({asked})")


def _change_counter(w: Flow, state: Value, counter: Value, what: str, number: Value) -> None:
    """Change a counter by the atomic operation `what`, and wake the threads that wait for it."""
    w.atomic(what, counter, number, "seq_cst")
    with w.when(w.atomic_load(state + spec.SLEEPERS, "seq_cst").test("ne", 0)):
        w.do(f"call void @roused(ptr {state}, ptr {counter})")


def _wait_until(w: Flow, state: Value, counter: Value, order: str, ready: Callable[[Value], Value]) -> None:
    """Wait until `ready` is true of a counter's value. order: the memory ordering of reading it."""
    look, again, after = w.labels("look", "again", "after")
    head, (turn,) = w.head(look, [w.value("i64", 0)])
    seen = w.atomic_load(counter, order)
    w.branch(ready(seen), after, again)
    w.label(again)
    w.back(head, [w.let("i64", f"call i64 @rest(ptr {state}, ptr {counter}, i64 {seen}, i64 {turn})")])
    w.jump(look)
    w.label(after)


def _segment(
    clock: str,
    w: Flow,
    plan: Value,
    first: Value,
    end: Value,
    times: Value,
    scratch: Value,
    heeded: Value,
    state: Value,
) -> None:
    """Run the calls first..end-1. heeded: the bits spec.SKIP and spec.PASS that this thread obeys: 0 for the leader."""
    with w.loop(first, end, 1, once=True) as turn:
        entry, stamp = plan + turn.index * spec.ENTRY, times + turn.index * 16
        came = w.call("i64", clock)
        for address in (stamp, stamp + 8):
            address.store(came, 8)
        alone = (entry + 40).load("i64", 8) & heeded
        with w.when((alone & spec.SKIP).test("eq", 0)):
            _call(clock, w, entry, stamp + 8, scratch, state)
        marked = (entry + 24).load("i64", 8).test("ne", 0)
        with w.when(marked & (alone & spec.PASS).test("eq", 0)):
            since = (entry + 32).load("i64", 8)
            with w.loop(since, turn.index + 1, 1, once=True) as before:
                other = plan + before.index * spec.ENTRY
                done, tiles = (other + 8).load("ptr", 8) + spec.DONE, (other + 16).load("i64", 8)
                _wait_until(w, state, done, "acquire", lambda seen: seen.test("uge", tiles))
    (times + end * 16).store(w.call("i64", clock), 8)


def _call(clock: str, w: Flow, entry: Value, worked: Value, scratch: Value, state: Value) -> None:
    """Make the tiles that are left of a call. worked: the address of the time when this thread ended its work on it."""
    kernel, args = (address.load("ptr", 8) for address in (entry, entry + 8))
    did = w.let("i64", f"call i64 {kernel}(ptr {args}, ptr {args + spec.NEXT}, ptr {scratch})")
    with w.when(did.test("ne", 0)):
        worked.store(w.call("i64", clock), 8)
        _change_counter(w, state, args + spec.DONE, "add", did)


def _lead(w: Flow, state: Value, first: Value, end: Value, scratch: Value) -> Value:
    """Write the leading thread's part: open a generation of calls, run it, wait for the helpers."""
    plan, times = ((state + address).load("ptr", 8) for address in (spec.PLAN, spec.TIMES))
    zero, generation = w.value("i64", 0), (state + spec.GENERATION).load("i64", 8) + 1
    (state + spec.GENERATION).store(generation, 8)
    with w.loop(first, end, 1, once=True) as turn:
        args = (plan + turn.index * spec.ENTRY + 8).load("ptr", 8)
        for counter in (spec.NEXT, spec.DONE):
            (args + counter).store(zero, 8)
    for address, number in ((spec.RANGE, first), (spec.RANGE + 8, end)):
        (state + address).store(number, 8)
    w.atomic_store(generation, state + spec.OPEN, "seq_cst")
    segment = f"ptr {plan}, i64 {first}, i64 {end}, ptr {times}, ptr {scratch}, i64 0, ptr {state}"
    w.do(f"call void @segment({segment})")
    w.atomic_store(zero, state + spec.OPEN, "seq_cst")
    _wait_until(w, state, state + spec.INSIDE, "seq_cst", lambda seen: seen.test("eq", 0))
    return zero


def _follow(w: Flow, plan: Value, state: Value, patience: Value, times: Value, scratch: Value) -> Value:
    """Write a helper thread's loop: wait for a generation, run tiles of its calls, leave when patience ends."""
    zero, one, give_way = w.value("i64", 0), w.value("i64", 1), (state + spec.YIELD).load("ptr", 8)
    head, (turn, last) = w.head("look", [zero, zero])
    generation = w.atomic_load(state + spec.OPEN, "seq_cst")
    w.branch(generation.test("ne", 0) & generation.test("ne", last), "enter", "idle")
    w.label("idle")
    waited = w.let("i64", f"call i64 @wait(ptr {give_way}, i64 {turn})")
    w.back(head, [waited, last])
    w.branch(waited.test("uge", patience), "exit", "look")
    w.label("enter")
    w.atomic("add", state + spec.INSIDE, one, "seq_cst")

    def work() -> list[Value]:
        first, end = ((state + address).load("i64", 8) for address in (spec.RANGE, spec.RANGE + 8))
        segment = (
            f"ptr {plan}, i64 {first}, i64 {end}, ptr {times}, ptr {scratch}, i64 {spec.SKIP | spec.PASS}, ptr {state}"
        )
        w.do(f"call void @segment({segment})")
        return [generation]

    still = w.atomic_load(state + spec.OPEN, "seq_cst").test("eq", generation)
    (seen,) = w.instead([last], still, work)
    _change_counter(w, state, state + spec.INSIDE, "sub", one)
    w.back(head, [zero, seen])
    w.jump("look")
    w.label("exit")
    w.atomic("add", state + spec.GONE, one, "seq_cst")
    return zero


def runner_text(architecture: str) -> str:
    """LLVM IR of all functions. Times are in ticks of the processor's clock; machine/meter.py measures its rate."""
    clock, segment = (
        CLOCK[architecture],
        "ptr %plan, i64 %first, i64 %end, ptr %times, ptr %scratch, i64 %heeded, ptr %state",
    )
    futex = _FUTEX[architecture]
    return functions({
        "internal i64 @wait(ptr %yield, i64 %turn)": partial(_wait, PAUSE[architecture]),
        "internal i64 @rest(ptr %state, ptr %counter, i64 %seen, i64 %turn)": partial(_rest, futex),
        "internal void @roused(ptr %state, ptr %counter)": partial(_wake, futex),
        f"internal void @segment({segment})": partial(_segment, clock),
        "internal i1 @undecided(ptr %plan, ptr %doubtful, i64 %doubts)": _is_undecided,
        "i64 @lead(ptr %state, i64 %first, i64 %end, ptr %scratch)": _lead,
        "i64 @follow(ptr %plan, ptr %state, i64 %patience, ptr %times, ptr %scratch)": _follow,
        "i64 @direct(ptr %told)": _direct,
        "i64 @ticks()": lambda w: w.call("i64", clock),
        "i64 @empty(ptr %args, ptr %next, ptr %scratch)": lambda w, *_: w.value("i64", 1),
    })  # fmt: skip
