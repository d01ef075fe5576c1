"""Asserts, found in the code of the Python that a trace is made of.

While a model is traced, a value may be asked whether it is true, or made a text. Where an assert does so, the trace holds the
assert, and asks at every call; what its message would say is not needed for anything. Elsewhere there is no trace.
"""

import dis
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FrameType

WITHOUT_EFFECT = frozenset({"EXTENDED_ARG", "CACHE", "NOP", "PRECALL", "KW_NAMES", "NOT_TAKEN"})
MAKES_TEXT = frozenset(
    {
        *("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING", "LOAD_CONST", "LOAD_ATTR"),
        *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "BINARY_SUBSCR"),
    }
)


@dataclass(frozen=True)
class Call:
    """A place in a function's code: the instruction that calls, and the one after it."""

    code: CodeType
    begin: int
    end: int

    def made_by(self, frame: FrameType) -> bool:
        return frame.f_code is self.code and self.begin <= frame.f_lasti < self.end


def _steps_from(frame: FrameType) -> list[dis.Instruction]:
    """The instruction that a frame is at, and those after it."""
    steps = dis.get_instructions(frame.f_code)
    return [each for each in steps if each.offset >= frame.f_lasti and each.opname not in WITHOUT_EFFECT]


def call_with_message(frame: FrameType) -> Call | None:
    """The call that the text being made goes straight into, if nobody reads its result: `torch._assert` is to be the one."""
    steps = _steps_from(frame)[1:]
    end = next((at for at, each in enumerate(steps) if each.opname not in MAKES_TEXT), len(steps))
    match steps[end : end + 2]:
        case [dis.Instruction(opname="CALL" | "CALL_KW") as call, dis.Instruction(opname="POP_TOP") as after]:
            return Call(frame.f_code, call.offset, after.offset)
    return None


def may_be_caught(frames: Iterable[FrameType]) -> bool:
    """Has one of them a `try`, or a `with`, which may catch what an assert raises? torch's and our own let it pass."""
    return any(
        frame.f_code.co_exceptiontable
        and str(frame.f_globals.get("__name__")).partition(".")[0] not in ("torch", "sparseopt")
        for frame in frames
    )


def asserted(frame: FrameType) -> bool | None:
    """The answer that keeps an assert from raising, if it is an assert that asks."""
    steps = [each for each in _steps_from(frame) if each.opname != "TO_BOOL"][:2]
    if len(steps) < 2 or not steps[0].opname.startswith("POP_JUMP"):
        return None
    jumps_if = steps[0].opname.endswith("IF_TRUE")
    if not jumps_if and not steps[0].opname.endswith("IF_FALSE"):
        return None
    if _raises(steps[1]):
        return jumps_if
    target = (each for each in dis.get_instructions(frame.f_code) if each.offset == steps[0].argval)
    return not jumps_if if any(map(_raises, target)) else None


def _raises(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_ASSERTION_ERROR" or step.argval is AssertionError
