"""Generated elementwise kernels: functions of functions of operands, element by element, in one pass over memory."""

from __future__ import annotations

from contextlib import ExitStack

from qrun.native.emit.expression import DIVISIONS, FunctionStep, operand_names
from qrun.native.emit.functions import CLOSE, ROUGH, StepsEmitter, reach, rounded_close
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter
from qrun.native.emit.numbers import RecheckEmitter
from qrun.native.emit.spec import OUTER
from qrun.native.emit.strided import StridedEmitter

_OWN = ("n1", "n2", "chunks", "chunk", "units", "share", "tiles", "columns", "last", "strides*", "constants*")
"""One 8-byte word each. n1 to tiles: as in emit/strided.py.

columns, last  elements of a row, and where its last block starts: it overlaps
strides        int64 [operands][OUTER]: bytes along the outer axes
constants      float32: those of all steps
recheckN       what makes the results that the Nth function of CLOSE does not decide
"""


@emitter("elementwise")
class ElementwiseEmitter(StridedEmitter):
    """`rows` elements at once; the last block of a row overlaps the one before.
    form: the steps; operands: the kinds of what is read.

    Results that a function of CLOSE leaves in doubt are made by the reference. If that function is the only step, its
    doubtful elements go into a list. In a chain, a chunk with doubtful results, which is rare, is made again in several
    passes while it is in the cache. Each function of CLOSE ends a pass, and stores its results in the thread's memory,
    unless they are the kernel's. Later passes read them there, and make all other values that they need anew.
    """

    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.operands = operand_names(len(spec.operands))
        functions = [FunctionStep.read(text).function for text in spec.form.split(" ")]
        close = sum(function in CLOSE for function in functions)
        self.names = (*(f"{name}*" for name in self.operands), *_OWN, *(f"recheck{n}*" for n in range(close)))
        super().__init__(spec, isa)
        self.steps = StepsEmitter(spec.form, spec.operands, spec.rows, self.a.constants)
        self.last, close_ones = self.steps.last, self.steps.close
        self.passes = dict.fromkeys([*close_ones, self.last])
        room = (self.a.chunk + 2 * spec.rows) * 4
        self.doubts: dict[int, RecheckEmitter] = {}
        self.kept: dict[int, Value] = {}
        shared = None
        for place, number in enumerate(close_ones):
            shared = RecheckEmitter(self.w, self.a[f"recheck{place}"], spec.rows, spec.rows, shared)
            self.doubts[number] = shared
            if number != self.last:
                self.kept[number] = self.scratch + room * (place + 1)
        self.at_once = bool(close_ones) and " " not in spec.form

    def stride(self, name: str, axis: int) -> Value:
        word = self.operands.index(name) * OUTER + axis
        return (self.a.strides + 8 * word).load("i64", 8)

    def _chunk(self, first: Value, end: Value) -> None:
        w, a, spec = self.w, self.a, self.spec
        kinds = enumerate(spec.operands)
        same = {number: self.steps.same(number, self.starts[f"x{number}"]) for number, kind in kinds if kind.isupper()}
        end = end.least(a.columns)
        if not self.doubts or self.at_once:
            with w.loop(first, end, spec.rows) as turn:
                _Block(self, same, set(), turn.index.least(a.last), first).store(self.last)
            return
        with w.loop(first, end, spec.rows, [w.zero(f"<{spec.rows} x i1>")]) as turn:
            block = _QuickBlock(self, same, set(), turn.index.least(a.last), first)
            block.store(self.last)
            turn.next(turn.carried[0] | block.doubtful)
        with w.when(turn.carried[0].any()):
            self._again(first, end, same)

    def _again(self, first: Value, end: Value, same: dict[int, Value]) -> None:
        """Make a chunk with doubtful results again, pass by pass."""
        made = set[int]()
        for number in self.passes:
            with self.w.loop(first, end, self.spec.rows) as turn:
                _Block(self, same, made, turn.index.least(self.a.last), first).store(number)
            made.add(number)
            if number in self.doubts:
                self.doubts[number].end()

    def end(self) -> None:
        if self.at_once:
            self.doubts[self.last].end()


class _Block:
    """Elements that a pass makes at once, from `place` of a row on.

    known: their values by number. made: the passes before. first: where the chunk starts. doubtful: i1, the lanes in
    which some function of CLOSE is in doubt, if all steps are made at once.
    """

    def __init__(
        self, kernel: ElementwiseEmitter, same: dict[int, Value], made: set[int], place: Value, first: Value
    ) -> None:
        self.kernel, self.known, self.made, self.place, self.first = kernel, dict(same), made, place, first
        self.doubtful = kernel.w.zero(f"<{kernel.spec.rows} x i1>")

    def store(self, number: int) -> None:
        """Make this value, and store it in the result or in the thread's memory."""
        k = self.kernel
        if number in k.doubts:
            self._store_close(number, k.steps.step(number))
            return
        made = self._value(number)
        made = made.zext("i8") if made.element == "i1" else made
        size = {"float": 4, "double": 8}.get(made.element) or int(made.element[1:]) // 8
        (k.starts["y"] + self.place * size).store(made, size)

    def _store_close(self, number: int, step: FunctionStep) -> None:
        k = self.kernel
        x = self._value(step.values[0])
        wide, call, name = x.double(), k.steps.call(number), step.function
        y = k.starts["y"] + self.place * 4 if number == k.last else self._near(k.kept[number])
        with ExitStack() as doubtful, k.steps.rounding(number):
            if name in ROUGH and k.at_once:
                made, unsure = self._rough(number, x)
                y.store(made, 4)
                doubtful.enter_context(k.w.when(unsure.any()))
            made, unsure = rounded_close(CLOSE[name](call, [wide]), reach(name, wide))
            y.store(made, 4)
            doubtful.enter_context(k.w.when(unsure.any()))
            if k.at_once:
                source = k.starts["x0"] + self.place * 4
            else:
                source = self._near(k.scratch)
                source.store(x, 4)
            k.doubts[number].add(source, y)

    def _rough(self, number: int, x: Value) -> tuple[Value, Value]:
        """What one of ROUGH makes of float32, rounded, and i1: where that may not be the result."""
        k = self.kernel
        size, errors = ROUGH[k.steps.step(number).function]
        error = errors[k.w.permutes]
        made, unsure = rounded_close(size(x), (1 - error, 1 + error))
        return made.intrinsic("copysign", x), unsure

    def _near(self, start: Value) -> Value:
        """The block's place in the thread's memory. The last block of a row may begin before its chunk does."""
        return start + (self.place - self.first + self.kernel.spec.rows) * 4

    def _value(self, number: int) -> Value:
        if number not in self.known:
            self.known[number] = self._made(number)
        return self.known[number]

    def _made(self, number: int) -> Value:
        k, steps = self.kernel, self.kernel.steps
        if number in self.made:
            return self._near(k.kept[number]).load(f"<{steps.lanes} x float>", 4)
        if number < steps.read:
            return steps.loaded(number, k.starts[f"x{number}"], self.place)
        values = [self._value(value) for value in steps.step(number).values]
        if steps.step(number).function in DIVISIONS:
            with k.w.when(values[1].test("eq", 0).any()):
                k.w.undecided()
        return steps.made(number, values)


class _QuickBlock(_Block):
    """All steps at once."""

    def _store_close(self, number: int, step: FunctionStep) -> None:
        (self.kernel.starts["y"] + self.place * 4).store(self._value(number), 4)

    def _made(self, number: int) -> Value:
        if number not in self.kernel.doubts:
            return super()._made(number)
        k, step = self.kernel, self.kernel.steps.step(number)
        x = self._value(step.values[0])

        def precise() -> tuple[Value, Value]:
            wide = x.double()
            return rounded_close(CLOSE[step.function](k.steps.call(number), [wide]), reach(step.function, wide))

        with k.steps.rounding(number):
            if step.function in ROUGH:
                rough = self._rough(number, x)
                made, unsure = k.w.instead(rough, rough[1].any(), precise)
            else:
                made, unsure = precise()
        self.doubtful = self.doubtful | unsure
        return made
