"""PSRO and fictitious play with OpenSpiel."""

# pyright: reportMissingImports=false
import numpy as np
import pyspiel
from open_spiel.python.algorithms import exploitability, fictitious_play, policy_aggregator
from open_spiel.python.algorithms.psro_v2 import best_response_oracle, psro_v2
from open_spiel.python.policy import UniformRandomPolicy
from side import Round, serve


def psro(size: int) -> Round:
    """Return rounds of PSRO with exact best responses and 100 simulations for each payoff; each is one seed."""
    game = pyspiel.load_game("leduc_poker")

    def one(i: int) -> dict[str, float]:
        np.random.seed(i)
        solver = psro_v2.PSROSolver(
            game,
            best_response_oracle.BestResponseOracle(game=game, policy=None),
            initial_policies=[UniformRandomPolicy(game)] * 2,
            sims_per_entry=100,
            meta_strategy_method="nash",
            training_strategy_selector="probabilistic",
            sample_from_marginals=False,
        )
        for _ in range(size):
            solver.iteration()
        mixture = policy_aggregator.PolicyAggregator(game).aggregate(
            range(2), solver.get_policies(), solver.get_meta_strategies()
        )
        return {"work": size, "score": exploitability.nash_conv(game, mixture)}

    return one


def xfp(size: int) -> Round:
    """Return rounds of fictitious play in extensive form."""
    solver = fictitious_play.XFPSolver(pyspiel.load_game("leduc_poker"))

    def one(i: int) -> dict[str, float]:
        for _ in range(5):
            solver.iteration()
        return {"work": 5}

    return one


if __name__ == "__main__":
    serve({"psro": psro, "xfp": xfp}, "open_spiel")
