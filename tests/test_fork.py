"""A member of a population becomes a run of its own."""

import json

import jax
import pytest

from evorl.agents import DQN, SAC
from evorl.cli import lineage, train
from evorl.errors import OptionError
from evorl.parts import get_number, read_numbers
from evorl.replay.sequences import SequenceReplay
from evorl.schedules import Linear
from evorl.training import runs
from evorl.training.fork import _with_own_replay, fork_member
from evorl.training.records.checkpoint import get_leaf_shapes
from evorl.workflows import OffPolicy, SharedReplay
from tests.conftest import leaves_equal
from tests.tiny import off_policy

TINY = [
    *("agent=pbt", "env=fast", "env.max_episode_steps=8", "iterations=3", "evaluations=1", "tensorboard=false"),
    *(
        "agent.workflow.population.size=4",
        "agent.workflow.steps_per_generation=1",
        "agent.workflow.selection.ratio=0.5",
    ),
    *("agent.inner.workflow.agent.hidden=[8]", "agent.inner.workflow.num_envs=4", "agent.inner.workflow.num_steps=8"),
    *("agent.inner.workflow.batch_size=16", "agent.inner.workflow.eval_episodes=4", "run_dir=population", "devices=1"),
]


@pytest.mark.program
def test_a_member_is_recreated_and_trains_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train.main(TINY)
    lineage.main(["population", "fork=2@3", "run_dir=member"])
    assert capsys.readouterr().out.endswith("member\ntrain it: python -m evorl.train resume=member\n")
    population, member = (runs.restore_run(tmp_path / name, "run", "last") for name in ("population", "member"))
    of_population = population.workflow.get_member(population.state, 2)[1]
    assert leaves_equal(member.state, of_population)  # the last checkpoint is that of generation 3
    learned = member.workflow.agent.learning_rate
    assert learned == pytest.approx(float(of_population.numbers["agent"]["learning_rate"]))
    train.main(["resume=member", "env_steps=100", "iterations=null"])
    assert runs.restore_run(tmp_path / "member", "run", "last").cfg["seed"] == population.cfg["seed"]

    file = tmp_path / "population" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    second = [row for row in rows if row["kind"] == "train"][1]["members"]["source"][0][0]
    second[:] = [(parent + 1) % 4 for parent in second]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(OptionError, match="the parents of generation 2 differ from the recorded ones"):
        fork_member(tmp_path / "population", 2, 3, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    for member, generation, why in ((4, 1, "member=4: must be at most 3"), (0, 4, "generation=4: must be at most 3")):
        with pytest.raises(OptionError, match=why):
            fork_member(tmp_path / "population", member, generation)


@pytest.mark.program
def test_a_member_of_a_shared_sequence_replay_begins_with_an_empty_one_of_its_own(key):
    """A buffer of sequences is laid out for the environments of all members; one of transitions is not."""
    for replay, is_new in ((SequenceReplay(length=3, burn_in=1, stride=2), True), (OffPolicy.replay, False)):
        population = SharedReplay(off_policy(SAC, replay=replay), 2)
        member, shared = population.get_member(jax.jit(population.init)(key), 1)
        alone = _with_own_replay(member, shared)
        assert (alone is shared) is not is_new
        assert leaves_equal(alone.agent, shared.agent)
        assert get_leaf_shapes(alone) == get_leaf_shapes(jax.eval_shape(member.init, key))


def test_a_hyperparameter_within_a_schedule_is_found_by_name():
    numbers = read_numbers(DQN(epsilon=Linear(1.0, 0.05, over=20.0)))
    assert get_number(numbers, "epsilon.end") == 0.05
    assert get_number(numbers, "tau") == numbers["tau"]


def test_a_fork_names_a_member_and_a_generation(capsys):
    for given in ("17", "a@1", "1@", "x"):
        with pytest.raises(SystemExit):
            lineage.main(["run", f"fork={given}"])
        assert "must be MEMBER@GENERATION, such as 17@40" in capsys.readouterr().err
