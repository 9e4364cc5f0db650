"""Base classes of evolvers, which search by ask and tell, and the results of a search."""

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
    """Fitness and behavior descriptor of an individual, for quality diversity."""

    fitness: Float[Array, "*objectives"]
    descriptor: Float[Array, " descriptors"]


@struct.dataclass
class SearchResults:
    """Solutions of a search that does not have a single best one, leaves [n, ...]."""

    params: Params
    fitness: Float[Array, "n ..."]  # as passed to `tell`, [n] or [n, objectives]
    valid_mask: Bool[Array, " n"]  # rows that hold a solution
    descriptor: Float[Array, "n descriptors"] | None = None  # behavior descriptors, if there are any


_FLAGS = {"from_members": "begins_with_members", "results": "keeps_many", "with_bounds": "keeps_bounds"}


class Evolver(ABC):
    """Base class of evolvers, which search by ask and tell.

    Fitness is maximized, and NaN counts as the worst fitness.

    A subclass is a component (decorated with `evorl.part`) with `population_size`, which is a field or a
    property, and with the methods `init`, `ask`, `tell` and `solution`. Everything else has a default:
    genomes are parameters, the search starts around a mean, the fitness is the return, and the search finds
    one solution.

    Some flags are set by the methods that a subclass overrides: `from_members` sets begins_with_members,
    `results` sets keeps_many, `with_bounds` sets keeps_bounds, and `to_params` without `from_params` clears
    takes_params. A subclass can also set these flags itself.

    Attributes:
        population_size: Number of genomes per generation, n.
        objectives: Weight of each objective in the fitness, by name; empty if the fitness is the return.
        begins_with_members: Whether a search begins with n independently initialized individuals.
        takes_params: Whether `tell` accepts parameters that `ask` did not return.
        takes_objectives: Whether the fitness may consist of several objectives, shape [n, objectives].
        keeps_many: Whether the search finds many solutions of which none is the best, as in a Pareto front or
            an archive.
        keeps_bounds: Whether the evolver handles the bounds of a problem itself. If so, its individuals are
            clipped to the bounds, and `tell` gets the clipped individuals with their fitness. If not, it
            searches an unbounded space that is mapped into the bounds.
    """

    population_size: Any  # int
    objectives: Mapping[str, float] = FrozenDict()
    begins_with_members: ClassVar[bool] = False
    takes_params: ClassVar[bool] = True
    takes_objectives: ClassVar[bool] = False
    keeps_many: ClassVar[bool] = False
    keeps_bounds: ClassVar[bool] = False

    @property
    def keeps_best(self) -> bool:
        """Return whether the solution may be of an earlier generation, such as the best individual so far."""
        return False

    @property
    def tells_by_noise(self) -> bool:
        """Return whether `tell` learns from the noise that `ask` has drawn, so that it ignores the individuals."""
        return False

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
        """Return the initial state of a search around a mean.

        Args:
            key: Random key.
            mean: Parameters around which the search starts.
        """

    @abstractmethod
    def ask(self, key: Key, state: State) -> tuple[Any, State]:
        """Return the genomes to evaluate.

        Args:
            key: Random key.
            state: State of the search.

        Returns:
            Genomes in the evolver's own representation, leaves [n, ...], and the new state.
        """

    @abstractmethod
    def tell(self, key: Key, genomes: Any, fitness: Any, state: State) -> tuple[State, Metrics]:
        """Update the search with the fitness of genomes.

        Args:
            key: Random key.
            genomes: Genomes that were evaluated, leaves [n, ...].
            fitness: Their fitness, as `compute_fitness` returns it, leaves [n, ...].
            state: State of the search after `ask`.

        Returns:
            The new state and metrics of the search.
        """

    @abstractmethod
    def solution(self, state: State) -> Params:
        """Return the parameters of the solution: the mean of the search, or the best individual found.

        Args:
            state: State of the search.
        """

    def from_members(self, key: Key, members: Params, mean: Params) -> State:
        """Return the initial state of a search that begins with given individuals; by default, around the mean.

        Args:
            key: Random key.
            members: Parameters of the individuals that are evaluated first, leaves [n, ...].
            mean: Parameters around which a search starts that does not use the individuals.
        """
        del members
        return self.init(key, mean)

    def to_params(self, state: State, genome: Any) -> Params:
        """Return the parameters that a genome encodes; by default, the genome itself.

        Args:
            state: State of the search.
            genome: Genome of one individual.
        """
        del state
        return genome

    def from_params(self, state: State, params: Params) -> Any:
        """Return the genome that encodes the parameters of one individual; by default, the parameters themselves.

        Args:
            state: State of the search.
            params: Parameters of one individual.
        """
        del state
        return params

    def compute_fitness(self, means: dict[str, Any]) -> Any:
        """Return the fitness that `tell` takes, leaves [n, ...]; by default, the return, shape [n].

        Args:
            means: Means over the episodes of each individual, leaves [n, ...]: "return", and the episode
                statistics of the environment by name.
        """
        return means["return"]

    def results(self, state: State) -> SearchResults | None:
        """Return the solutions found so far, if the evolver keeps many; by default, None.

        Args:
            state: State of the search.
        """
        del state
        return None

    def with_bounds(self, low: Bound, high: Bound, num_objectives: int) -> "Evolver":
        """Return the evolver for a problem with bounds; by default, the evolver itself.

        Args:
            low: Lower bounds of the parameters.
            high: Upper bounds of the parameters.
            num_objectives: Number of objectives of the problem, for an evolver whose `objectives` are not
                set.
        """
        del low, high, num_objectives
        return self

    def weights(self, like: Params) -> Params:
        """Return the weights of a meta-learned evolver, which are its hyperparameter `params`.

        Args:
            like: Parameters of the kind that the evolver searches.

        Raises:
            OptionError: If the evolver is not meta-learned.
        """
        del like
        raise OptionError(f"evolver={type(self).__name__}: has no learned weights; use LearnedES of evosax")


class SeedEvolver(Evolver):
    """Base class of evolvers whose genomes are seeds, from which individuals are generated for their evaluation.

    A seed is much smaller than an individual. Therefore only the individuals that are evaluated at the same
    time are in memory, never a whole population. Individuals can be generated with the state before `ask` or
    with the state that it returns.
    """

    @abstractmethod
    def center_genome(self, state: State) -> Any:
        """Return the genome that stands for the solution.

        Args:
            state: State of the search.
        """

    @abstractmethod
    def materialize(self, state: State, genomes: Any) -> Any:
        """Generate the data of individuals that is held in memory during their evaluation.

        Args:
            state: State of the search.
            genomes: Genomes of the individuals, leaves [m, ...].

        Returns:
            The data, leaves [m, ...], in the order of the genomes.
        """

    @abstractmethod
    def to_params(self, state: State, genome: Any) -> Params:
        """Return the parameters of one individual; called each time that the individual acts.

        Args:
            state: State of the search.
            genome: Genome of the individual, or its data from `materialize`.
        """
