"""The writer of kernels: operators write the instruction that fits the type, in the order of evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from qrun.native.emit.flow import Flow
from qrun.native.emit.values import ZERO, Value


def written(kind: str, write: Callable[[Value], object], fused: bool = False) -> list[str]:
    """The instructions that are written of a value %x of this type."""
    w = Flow(fused)
    write(w.value(kind, "%x"))
    return [line.strip() for line in w.lines]


@pytest.mark.parametrize(
    ("kind", "write", "lines"),
    [
        ("i64", lambda x: x + 1, ["%v1 = add i64 %x, 1"]),
        ("i64", lambda x: 8 - x, ["%v1 = sub i64 8, %x"]),
        ("i64", lambda x: divmod(x, 3), ["%v1 = udiv i64 %x, 3", "%v2 = urem i64 %x, 3"]),
        ("ptr", lambda x: x + 0, []),
        ("ptr", lambda x: x + 8, ["%v1 = getelementptr i8, ptr %x, i64 8"]),
        ("<2 x i16>", lambda x: x & 255, ["%v1 = and <2 x i16> %x, <i16 255, i16 255>"]),
        ("<2 x i16>", lambda x: x.sext("i32"), ["%v1 = sext <2 x i16> %x to <2 x i32>"]),
        ("<2 x i16>", lambda x: x.bitcast("<1 x i32>"), ["%v1 = bitcast <2 x i16> %x to <1 x i32>"]),
        ("float", lambda x: -x, ["%v1 = fneg float %x"]),
        ("double", lambda x: x * 0.5, ["%v1 = fmul double %x, 0x3FE0000000000000"]),
        ("<2 x double>", lambda x: x.test("olt", ZERO), ["%v1 = fcmp olt <2 x double> %x, zeroinitializer"]),
        ("<1 x float>", lambda x: x / math.inf, ["%v1 = fdiv <1 x float> %x, <float 0x7FF0000000000000>"]),
        (
            "<2 x i32>",
            lambda x: x.where("slt", 7),
            [
                "%v1 = icmp slt <2 x i32> %x, <i32 7, i32 7>",
                "%v2 = select <2 x i1> %v1, <2 x i32> %x, <2 x i32> <i32 7, i32 7>",
            ],
        ),
        (
            "<4 x i1>",
            lambda x: x.any(),
            ["%v1 = bitcast <4 x i1> %x to i4", "%v2 = icmp ne i4 %v1, 0"],
        ),
        (
            "<2 x i8>",
            lambda x: x.shuffle([1, -1, 2], x),
            ["%v1 = shufflevector <2 x i8> %x, <2 x i8> %x, <3 x i32> <i32 1, i32 poison, i32 2>"],
        ),
    ],
)
def test_operators_write_the_instruction_of_the_type(
    kind: str, write: Callable[[Value], object], lines: list[str]
) -> None:
    assert written(kind, write) == lines


def test_operands_come_first_and_from_left_to_right() -> None:
    made = written("i64", lambda x: x * 2 + x * 3)
    assert made == ["%v1 = mul i64 %x, 2", "%v2 = mul i64 %x, 3", "%v3 = add i64 %v1, %v2"]


def test_products_are_fused_with_sums_only_where_the_instruction_set_does_so() -> None:
    def write(x: Value) -> Value:
        return x.fma(x, x)

    assert written("float", write, fused=True) == ["%v1 = call float @llvm.fma.f32(float %x, float %x, float %x)"]
    assert written("float", write) == ["%v1 = fmul float %x, %x", "%v2 = fadd float %v1, %x"]


def test_loops_carry_values_from_the_block_that_ends_their_body() -> None:
    w = Flow()
    w.label("entry")
    end = w.value("i64", "%end")
    with w.loop(0, end, 1, [w.value("i64", 5)]) as turn, w.when(turn.carried[0].test("eq", 9)):
        turn.next(turn.carried[0] + turn.index)
    assert "  %v1 = phi i64 [0, %entry], [%v6, %after2]" in w.lines
    assert "  %v2 = phi i64 [5, %entry], [%v5, %after2]" in w.lines
    with w.loop(end, end, 4, [w.value("ptr", "%x")], once=True) as turn:
        turn.next(turn.carried[0] + 8)
    assert w.lines[-8:] == [
        "body3:",
        "  %v7 = phi i64 [%end, %out1], [%v10, %body3]",
        "  %v8 = phi ptr [%x, %out1], [%v9, %body3]",
        "  %v9 = getelementptr i8, ptr %v8, i64 8",
        "  %v10 = add i64 %v7, 4",
        "  %v11 = icmp slt i64 %v10, %end",
        "  br i1 %v11, label %body3, label %out3",
        "out3:",
    ]
    assert (str(turn.index), str(turn.carried[0])) == ("%v10", "%v9")
