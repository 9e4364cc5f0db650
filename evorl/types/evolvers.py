"""What searches by ask and tell, and may do beside."""

from collections.abc import Mapping
from typing import Any

from flax import struct
from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Key, Metrics, Params, State
from evorl.types.problems import Bound


@struct.dataclass
class QDEvaluation:
    """How good something is, and of what kind."""

    fitness: Any  # [] or [objectives]
    descriptor: Any  # [descriptors]


@struct.dataclass
class SearchResults:
    """What a search has come to that does not stand for it by one solution, leaves [n, ...]."""

    params: Any
    fitness: Any  # [n] or [n, objectives], as the evolver was told
    valid_mask: Any  # [n] bool, whether it is one of them
    descriptor: Any = ()  # [n, descriptors], where they are told apart by what they do


@runtime_checkable
class Evolver(Protocol):
    """Search by ask and tell. Fitness is maximized; NaN counts as the worst."""

    @property
    def population_size(self) -> int:
        """How many genomes it asks for, n."""
        ...

    def init(self, key: Key, mean: Params) -> State:
        """The state of a search that begins around mean."""
        ...

    def ask(self, key: Key, state: State) -> tuple[Any, State]:
        """Genomes to be evaluated, leaves [n, ...], in whatever form the evolver keeps them."""
        ...

    def to_params(self, state: State, genome: Any) -> Params:
        """The parameters that one genome stands for."""
        ...

    def tell(self, key: Key, genomes: Any, fitness: Any, state: State) -> tuple[State, Metrics]:
        """The state after the genomes that it asked for turned out to have fitness, [n] or as fitness() gives it."""
        ...

    def solution(self, state: State) -> Params:
        """The parameters that the search stands for: its mean, or the best that it knows."""
        ...


@runtime_checkable
class CustomFitnessEvolver(Protocol):
    """An evolver that searches for more than the highest return: several objectives, or behaviour of every kind."""

    def compute_fitness(self, means: dict[str, Any]) -> Any:
        """What tell takes as fitness, leaves [n, ...], of means over the episodes of each member, leaves [n, ...].

        They are "return" and, by name, what the environment summarizes.
        """
        ...


@runtime_checkable
class MemberInitEvolver(Protocol):
    """An evolver whose first generation is given, leaves [n, ...], rather than drawn around the mean."""

    def from_members(self, key: Key, members: Params, mean: Params) -> State:
        """The state of a search that asks for members first."""
        ...


@runtime_checkable
class ParamsEncoder(Protocol):
    """An evolver with a way back from parameters to a genome: it can be told of others than those that it asked for."""

    def from_params(self, state: State, params: Params) -> Any:
        """The genome that stands for one member's parameters."""
        ...


@runtime_checkable
class MultiSolutionEvolver(Protocol):
    """An evolver that finds many solutions of which none is the best: a front."""

    @property
    def objectives(self) -> Mapping[str, float]:
        """By name what each objective weighs in the fitness that it is told; none where it takes the return's."""
        ...

    def results(self, state: State) -> SearchResults:
        """Those that it has so far."""
        ...


@runtime_checkable
class BoundsAwareEvolver(Protocol):
    """An evolver that wants to know what function it searches."""

    def with_bounds(self, low: Bound, high: Bound, num_objectives: int) -> Any:
        """The same evolver for parameters within these bounds, of so many objectives where it does not name them."""
        ...


@runtime_checkable
class HasWeights(Evolver, Protocol):
    """An evolver that was learned: its hyperparameters, a mapping, have the weights under "params"."""

    def weights(self, like: Params) -> Params:
        """Those that it comes with, to search for parameters like these."""
        ...
