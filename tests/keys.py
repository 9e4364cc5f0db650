"""Find random keys that a program uses twice, by numbering the values of its jaxpr."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jax._src.source_info_util import user_frames
from jax.extend.core import Literal

CONSUMERS = {"random_bits", "random_split", "random_fold_in"}
BODIES = ("jaxpr", "call_jaxpr", "call")  # parameters of a primitive that runs a jaxpr once


@dataclass(frozen=True)
class Use:
    """A use of a key: by which primitive, and by which calls, (function, file and line), the outermost first."""

    how: str
    calls: tuple[tuple[str, str], ...]

    def __str__(self):
        return f"{self.how.removeprefix('random_')} at {self.calls[-1][1] if self.calls else 'an unknown line'}"


@dataclass(frozen=True)
class Reuse:
    """A later use of a key and an earlier one, which in a loop are the same."""

    later: Use
    earlier: Use

    @property
    def function(self):
        """The function from which both uses come by different lines."""
        pairs = zip(self.later.calls, self.earlier.calls, strict=False)
        both = itertools.takewhile(lambda pair: pair[0][0] == pair[1][0], pairs)
        last = ""
        for one, other in both:
            last = one[0]
            if one != other:
                break
        return last

    def __str__(self):
        again = "again in each turn of a loop" if self.later is self.earlier else f"after {self.earlier}"
        return f"{self.later} {again}, in {self.function}"


def used_twice(jaxpr):
    """Find where a program draws from a key twice, or does two of drawing, splitting and folding in with one key.

    Equal computations have equal numbers, so keys that are derived twice in the same way are one key. What a loop does
    with a key of its outside it does again in each turn, unless it folds in what changes with the turn.

    Args:
        jaxpr: the closed jaxpr of a program with typed keys, of `jax.make_jaxpr`.

    Returns:
        A list of Reuse.
    """
    walk = _Walk()
    walk.closed(jaxpr, [walk.fresh() for _ in jaxpr.jaxpr.invars])
    return walk.found


@dataclass
class _Walk:
    numbers: dict = field(default_factory=dict)  # of equal computations
    count: itertools.count = field(default_factory=itertools.count)
    at_most_one: set = field(default_factory=set)  # numbers of integers that are 0 or 1
    uses: dict = field(default_factory=dict)  # number of a key -> {(how, data or shape): Use}
    loops: tuple = ()  # of each open loop, the first number of what is computed in it
    calls: tuple = ()  # that are open
    found: list = field(default_factory=list)

    def fresh(self, _=None):
        return next(self.count)

    def number(self, value):
        if value not in self.numbers:
            self.numbers[value] = self.fresh()
        return self.numbers[value]

    def calls_of(self, eqn):
        frames = reversed(list(user_frames(eqn.source_info.traceback)))
        return *self.calls, *((f.function_name, f"{Path(f.file_name).name}:{f.start_line}") for f in frames)

    def use(self, eqn, key, *data):
        use, before = Use(eqn.primitive.name, self.calls_of(eqn)), self.uses.setdefault(key, {})
        by = data if use.how == "random_fold_in" else eqn.params["shape"]
        for (how, others), earlier in before.items():
            if use.how != how or (how == "random_split" and by != others) or how == "random_bits":
                self.found.append(Reuse(use, earlier))
        if any(max([key, *data]) < first for first in self.loops):
            self.found.append(Reuse(use, use))
        before[use.how, by] = use

    def closed(self, closed, inputs):
        consts = [self.number(("constant", id(value))) for value in closed.consts]
        return self.open(closed.jaxpr, [*consts, *inputs])

    def open(self, jaxpr, inputs):
        """Return the numbers of what a jaxpr computes from those of its constants and inputs."""
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))

        def read(x):
            return self.number((str(x.aval), str(x.val))) if isinstance(x, Literal) else values[x]

        for eqn in jaxpr.eqns:
            outputs = self.equation(eqn, [read(x) for x in eqn.invars])
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(x) for x in jaxpr.outvars]

    def equation(self, eqn, inputs):
        """Return the numbers of what an equation computes."""
        name, params = eqn.primitive.name, eqn.params
        if name in CONSUMERS:
            self.use(eqn, *inputs)
        if name in {"random_wrap", "random_unwrap"}:
            return inputs
        flow = {"scan": self.scan, "while": self.loop_while, "cond": self.cond}.get(name)
        body = next((params[name] for name in BODIES if name in params), None)
        if flow or body:
            outer, self.calls = self.calls, self.calls_of(eqn)
            run = flow or (self.closed if hasattr(body, "consts") else self.open)
            outputs = run(eqn if flow else body, inputs)
            self.calls = outer
            return map(self.fresh, eqn.outvars) if flow else outputs
        if any("jaxpr" in name for name in params):
            return map(self.fresh, eqn.outvars)
        result = self.number((name, str(params), *inputs))
        outputs = [self.number((result, i)) for i in range(len(eqn.outvars))]
        of_boolean = name == "convert_element_type" and eqn.invars[0].aval.dtype == bool
        of_one = name == "min" and any(isinstance(x, Literal) and np.all(x.val == 1) for x in eqn.invars)
        if of_boolean or of_one or (inputs and self.at_most_one >= set(inputs)):
            self.at_most_one.update(outputs)
        return outputs

    def cond(self, eqn, inputs):
        before, after = self.uses, {}
        for branch in eqn.params["branches"]:
            self.uses = {key: dict(uses) for key, uses in before.items()}
            self.closed(branch, inputs[1:])
            for key, uses in self.uses.items():
                after.setdefault(key, {}).update(uses)
        self.uses = after

    def scan(self, eqn, inputs):
        body, inner = eqn.params["jaxpr"], eqn.params["jaxpr"].jaxpr
        same = lambda a, b: [x.aval.shape == y.aval.shape for x, y in zip(a, b, strict=True)]  # noqa: E731
        elements = same(eqn.invars, inner.invars).count(False)  # whose first axis the loop runs along
        carried = same(eqn.outvars, inner.outvars).count(True)
        carry = len(inputs) - elements
        self.loop(body, inputs, carry - carried, carry, eqn.params["length"] > 1)

    def loop_while(self, eqn, inputs):
        consts, own = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        again = not self.at_most_one & set(inputs)
        self.loop(eqn.params["body_jaxpr"], inputs[consts:], own, len(inputs) - consts, again)

    def loop(self, body, inputs, consts, carry, again):
        """Run the body of a loop, whose inputs are constants up to `consts`, carries up to `carry`, and elements."""
        outer, self.loops = self.loops, (*self.loops, self.fresh()) if again else self.loops
        stay = [x is y for x, y in zip(body.jaxpr.invars[consts:carry], body.jaxpr.outvars, strict=False)]
        carried = [x if same else self.fresh() for x, same in zip(inputs[consts:carry], stay, strict=True)]
        self.closed(body, [*inputs[:consts], *carried, *(self.number(("element", x)) for x in inputs[carry:])])
        self.loops = outer
