"""A call of Python from machine code that runs without its lock: what it calls is told where the operands lie."""

from __future__ import annotations

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter
from qrun.native.emit.spec import FOREIGN, INTERRUPTED, UNDECIDED


@emitter("foreign")
class ForeignEmitter(KernelEmitter):
    """`rows` operands, the result last. `callable` is called with the address of their addresses; where it does not return the
    object `true`, the result is not decided; the mark that it left tells more. It may come that it is never begun: then an interrupt was there first, which
    only who calls through Python's own functions does not show as an error that nobody caught.

    The others are PyGILState_Ensure, PyGILState_Release, PyLong_FromLongLong, PyObject_CallOneArg, Py_DecRef, PyErr_Clear.
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.names = (*(f"operand{n}*" for n in range(spec.rows)), *FOREIGN)
        super().__init__(spec, isa)

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        state = w.let("i32", f"call i32 {a['ensure']}()")
        place = self.struct.address()
        number = w.let("ptr", f"call ptr {a['number']}(i64 {place})")
        made = w.let("ptr", f"call ptr {a['call']}(ptr {a['callable']}, ptr {number})")
        w.do(f"call void {a['drop']}(ptr {number})")
        with w.when(made.test("eq", "null")):
            w.do(f"call void {a['clear']}()")
        w.do(f"call void {a['drop']}(ptr {made})")
        w.do(f"call void {a['release']}(i32 {state})")
        with w.when(made.test("ne", a["true"])):
            w.undecided(made.test("eq", "null").select(w.value("i64", INTERRUPTED), w.value("i64", UNDECIDED)))
