"""What a training says at its end of a return that is none of play as it is."""

from pathlib import Path

import pytest

from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.progress import Budget, Progress
from evorl.training.summary import summarize_training

EVALUATED = {"env_steps": 10, "return": -0.25, "low": -0.25, "high": -0.25}
PUSH = ["env=mpe/push", "env.continuous=true", "agent/solver=uniform", "agent.workflow.episodes=20"]
AT_RANDOM = "random policy, minus its exploitability: -0.4583; the final return is better"  # OpenSpiel: 0.916667 / 2


@pytest.mark.program
@pytest.mark.parametrize(
    ("options", "compared"),
    [(["agent=psro_exact", "env=kuhn"], [AT_RANDOM]), (["agent=psro", *PUSH], [])],
    ids=["a tree", "no tree"],
)
def test_returns_that_are_minus_a_gain_are_not_set_beside_random_ones(options, compared):
    cfg = config.compose_config([*options, "iterations=2"])
    workflow, _ = runs.build(cfg)
    progress = Progress(iteration=2, initial_evaluation=EVALUATED, latest_evaluation=EVALUATED)
    said = list(
        summarize_training(workflow, config.to_plain_data(cfg), progress, Budget(iterations=2), Path("run"), "go on")
    )
    assert said[: said.index("saved in run")] == ["final return -0.25 after 10 env steps", *compared]


def test_what_was_not_evaluated_has_no_returns():
    cfg = config.compose_config(["agent=psro_exact", "env=kuhn", "iterations=2"])
    workflow, _ = runs.build(cfg)
    said = summarize_training(
        workflow, config.to_plain_data(cfg), Progress(), Budget(iterations=2), Path("run"), "go on"
    )
    assert next(said) == "saved in run"
