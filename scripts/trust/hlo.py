"""Count the operations of a compiled program, read from the text of its optimized HLO."""

import math
import re
from dataclasses import dataclass
from functools import cached_property

BIG = 4096  # bytes of a copy that counts: a 32 x 32 weight matrix

_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) (?:\(.*\) -> .*)?\{$")
_CALLED = re.compile(
    r"(?:body|condition|calls|to_apply|\w+_computations?|called_computations)=\{?((?:%[\w.-]+(?:, )?)+)"
)
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation: its name, the text of its result's shape, its opcode and the text after the opcode."""

    name: str
    shape: str
    opcode: str
    rest: str
    is_root: bool

    @property
    def called(self) -> list[str]:
        """Return the names of the computations that it calls."""
        return [name.lstrip("%") for names in _CALLED.findall(self.rest) for name in names.split(", ") if name]

    @property
    def operands(self) -> list[str]:
        """Return the names of its operands."""
        return re.findall(r"%([\w.-]+)", self.rest.partition(")")[0])


@dataclass(frozen=True)
class Module:
    """A compiled program: the instructions of each computation, by name."""

    computations: dict[str, list[Instruction]]

    @classmethod
    def parse(cls, text: str) -> "Module":
        """Parse the text of a module, as `compiled.as_text()` returns it."""
        computations: dict[str, list[Instruction]] = {}
        instructions: list[Instruction] = []
        for line in text.splitlines():
            if found := _INSTRUCTION.match(line):
                root, name, shape, opcode, rest = found.groups()
                instructions.append(Instruction(name, shape, opcode, rest, root is not None))
            elif found := _COMPUTATION.match(line):
                instructions = computations.setdefault(found[1], [])
        return cls(computations)

    @cached_property
    def instructions(self) -> list[Instruction]:
        """Return the instructions of all computations."""
        return [one for instructions in self.computations.values() for one in instructions]

    @property
    def dynamic_loops(self) -> int:
        """Return the number of while loops whose trip count the compiler does not know."""
        return sum(one.opcode == "while" and "known_trip_count" not in one.rest for one in self.instructions)

    def count(self, *opcodes: str) -> int:
        """Return the number of instructions with one of these opcodes; an asynchronous pair counts once."""
        names = {*opcodes, *(f"{opcode}-start" for opcode in opcodes)}
        return sum(one.opcode in names for one in self.instructions)

    def result_bytes(self, opcode: str) -> int:
        """Return the bytes of the results of all instructions with an opcode."""
        return sum(nbytes(one.shape) for one in self.instructions if one.opcode in (opcode, f"{opcode}-start"))

    def loop_copies(self, at_least: int = BIG) -> list[int]:
        """Return the bytes of each large array that a loop iteration writes in full.

        A copy does so. A selection between two arrays, which `lax.cond` becomes under vmap, does so too. A
        fusion does so if its root is one of these. An update in place is not counted.
        """
        written = [
            number
            for name in self._inside_loops
            for one in self.computations[name]
            for number in self._written_whole(one)
        ]
        return [number for number in written if number >= at_least]

    @property
    def _inside_loops(self) -> set[str]:
        """Return the computations that run in an iteration of a loop, without those inside fusions."""
        found: set[str] = set()
        waiting = [name for one in self.instructions if one.opcode == "while" for name in one.called]
        while waiting:
            name = waiting.pop()
            if name not in found and name in self.computations:
                found.add(name)
                waiting += [name for one in self.computations[name] if one.opcode != "fusion" for name in one.called]
        return found

    def _written_whole(self, one: Instruction) -> list[int]:
        """Return the bytes of the arrays that an instruction copies or selects."""
        if one.opcode in ("copy", "select"):
            return [nbytes(one.shape)]
        if one.opcode != "fusion":
            return []
        inside = {other.name: other for other in self.computations[one.called[0]]}
        root = next(other for other in inside.values() if other.is_root)
        results = [inside[name] for name in root.operands] if root.opcode == "tuple" else [root]
        return [nbytes(result.shape) for result in results if result.opcode in ("copy", "select")]


def nbytes(shape: str) -> int:
    """Return the bytes of the arrays in the text of a shape, such as `(s32[], f32[8,2]{1,0})`."""
    found = _ARRAY.findall(shape)
    return sum(max(1, int(bits or 8) // 8) * math.prod(map(int, filter(None, of.split(",")))) for _, bits, of in found)
