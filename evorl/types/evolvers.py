"""What searches by ask and tell, and may do beside."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Bool, Float

from evorl.errors import OptionError
from evorl.types.data import Key, Metrics, Params, State
from evorl.types.problems import Bound


@struct.dataclass
class QDEvaluation:
    """How good something is, and of what kind."""

    fitness: Float[Array, "*objectives"]
    descriptor: Float[Array, " descriptors"]


@struct.dataclass
class SearchResults:
    """What a search has come to that does not stand for it by one solution, leaves [n, ...]."""

    params: Params
    fitness: Float[Array, "n ..."]  # [n] or [n, objectives], as the evolver was told
    valid_mask: Bool[Array, " n"]  # whether it is one of them
    descriptor: Float[Array, "n descriptors"] | None = None  # where they are told apart by what they do


_FLAGS = {"from_members": "begins_with_members", "results": "keeps_many", "with_bounds": "keeps_bounds"}


class Evolver(ABC):
    """The base of evolvers: search by ask and tell. Fitness is maximized; NaN counts as the worst.

    A subclass is a part (`evorl.part`) with `population_size`, a field or a property, and `init`, `ask`, `tell` and
    `solution`. All else has a default: genomes are parameters, a search begins around a mean, it is told of returns,
    and it finds one solution.

    What a subclass overrides sets what is said of it: `from_members` sets begins_with_members, `results` keeps_many,
    `with_bounds` keeps_bounds, and `to_params` without `from_params` unsets takes_params; a subclass may say otherwise.

    Attributes:
        population_size: how many genomes it asks for, n.
        objectives: by name what each objective weighs in the fitness that it is told; none where it takes the return's.
        begins_with_members: whether a search begins with n members that are initialized apart.
        takes_params: whether it can be told of parameters that it did not ask for.
        takes_objectives: whether its fitness may be of several objectives, [n, objectives].
        keeps_many: whether it finds many solutions of which none is the best: a front, an archive.
        keeps_bounds: whether it keeps the bounds of a problem itself: what it asks for is clipped, and it is told of
            that. Of another the space without bounds is mapped into them.
    """

    population_size: Any  # int
    objectives: Mapping[str, float] = FrozenDict()
    begins_with_members: ClassVar[bool] = False
    takes_params: ClassVar[bool] = True
    takes_objectives: ClassVar[bool] = False
    keeps_many: ClassVar[bool] = False
    keeps_bounds: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        said = {flag: True for method, flag in _FLAGS.items() if method in own}
        said |= {"takes_params": "from_params" in own} if "to_params" in own else {}
        for flag, value in said.items():
            if flag not in own:
                setattr(cls, flag, value)

    @abstractmethod
    def init(self, key: Key, mean: Params) -> State:
        """Return the state of a search that begins around mean."""

    @abstractmethod
    def ask(self, key: Key, state: State) -> tuple[Any, State]:
        """Return genomes to be evaluated, leaves [n, ...], in whatever form the evolver keeps them."""

    @abstractmethod
    def tell(self, key: Key, genomes: Any, fitness: Any, state: State) -> tuple[State, Metrics]:
        """Return the state after its genomes turned out to have fitness, as compute_fitness gives it."""

    @abstractmethod
    def solution(self, state: State) -> Params:
        """Return the parameters that the search stands for: its mean, or the best that it knows."""

    def from_members(self, key: Key, members: Params, mean: Params) -> State:
        """Return the state of a search that asks for members first, leaves [n, ...]; here one around mean."""
        del members
        return self.init(key, mean)

    def to_params(self, state: State, genome: Any) -> Params:
        """Return the parameters that one genome stands for; here itself."""
        del state
        return genome

    def from_params(self, state: State, params: Params) -> Any:
        """Return the genome that stands for one member's parameters; here themselves."""
        del state
        return params

    def compute_fitness(self, means: dict[str, Any]) -> Any:
        """Return what tell takes as fitness, leaves [n, ...]; here the return, [n].

        Args:
            means: over the episodes of each member, leaves [n, ...]: "return" and, by name, what the environment
                summarizes.
        """
        return means["return"]

    def results(self, state: State) -> SearchResults | None:
        """Return the solutions so far of one that keeps many; None of another."""
        del state
        return None

    def with_bounds(self, low: Bound, high: Bound, num_objectives: int) -> "Evolver":
        """Return the evolver of a problem within these bounds, of so many objectives where it does not name them."""
        del low, high, num_objectives
        return self

    def weights(self, like: Params) -> Params:
        """Return the weights that a learned evolver comes with, for parameters like these: its number `params`.

        Raises:
            OptionError: where it was not learned.
        """
        del like
        raise OptionError(f"evolver={type(self).__name__}: has no learned weights; LearnedES of evosax is one that has")


class SeedEvolver(Evolver):
    """The base of evolvers whose genomes are seeds, by far smaller than members, which are drawn where they play.

    So no population is in memory, but those of it that play side by side. The state that ask gives does so as well.
    """

    @abstractmethod
    def center_genome(self, state: State) -> Any:
        """Return the genome that stands for the solution."""

    @abstractmethod
    def materialize(self, state: State, genomes: Any) -> Any:
        """Return what is held of members while they play, leaves [m, ...] as those of their genomes."""

    @abstractmethod
    def to_params(self, state: State, genome: Any) -> Params:
        """Return the parameters of one member, at each call: of its genome, or of what is held of it."""
