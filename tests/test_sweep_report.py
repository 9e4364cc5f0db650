"""What a sweep shows of itself, and its best as an experiment."""

import math
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml

from evorl.cli import sweep
from evorl.errors import OptionError
from evorl.priors import LogUniform, Uniform
from evorl.reports import sweeps as reports
from evorl.sweeps import plots, space_options
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.experiment import format_experiment, format_trial_experiment
from evorl.sweeps.space import Parameter, SearchSpace
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trial_training import list_metric_names
from evorl.sweeps.trials import DONE, FAILED, Evaluation, SweepTrial
from evorl.training.configuration import config

CHOSEN = ["experiment=classic/ppo_cartpole", "core=gru", "wrappers=[sticky]", "agent.workflow.num_epochs=2"]
GIVEN = [
    "space={}",
    "space.clip=0.3",
    "space.workflow.num_envs=${power_of_two:4,8}",
    "space.env_steps=${uniform:1e3,9e3}",
]


def defined():
    return defined_as(*space_options.parse_search(CHOSEN, GIVEN))


def defined_as(variants, space):
    return SweepDefinition(variants, space, space_options.build_sampler_node("random", {}), "return", "env_steps", 0)


def filled(folder, found):
    """A sweep of five trials, whose returns are their numbers, of which the last one failed, with a hostile message."""
    store = SweepStore.create(folder, {"definition": found.to_data(), "trials": 5, "seed": 0, "trust": []})
    with store.register_owner() as owner:
        for trial in store.claim_trials(owner, 5, found.space, found.build_sampler()):
            for used in (0.5, 1.0):
                store.observe(trial.number, Evaluation(used, 1000.0 * used * (trial.number + 1), trial.number * used))
            failed = {"message": "<script>alert(1)</script>"} if trial.number == 4 else {}
            store.end_trial(trial.number, FAILED if failed else DONE, **failed)
    return store


@pytest.mark.parametrize(
    ("option", "default", "ends"),
    [
        ("minutes=${log_uniform:0.5,5}", 1.58114, (0.5, 5)),
        ("minutes=[0.5,2]", 2.0, (0.5, 2)),
        ("num_epochs=[1,2]", 1, (1, 2)),
        ("num_epochs=[2,4]", 4, (2, 4)),
    ],
)
def test_a_search_begins_and_stays_within_its_prior(option, default, ends):
    _, space = space_options.parse_search(
        ["agent=ppo", "env=cartpole", "num_epochs=4"], ["space={}", f"space.{option}"]
    )
    (one,) = space.parameters
    assert (one.default, (one.decode(0.0), one.decode(1.0))) == (default, ends)
    assert all(type(x) is type(default) for x in (one.default, one.decode(0.0), one.decode(1.0)))


def test_a_definition_comes_back_from_its_store():
    found = defined()
    assert SweepDefinition.from_data(found.to_data()) == found
    assert found.space.defaults == {"agent.workflow.num_envs": 8, "env_steps": 5000}
    data = found.build_configuration({"agent.workflow.num_envs": 4, "env_steps": 7000})
    assert (data["agent"]["workflow"]["num_envs"], data["env_steps"], data["iterations"]) == (4, 7000, None)
    assert data["agent"]["workflow"]["agent"]["clip"] == 0.3
    hostile = found.to_data() | {"sampler": {"_target_": "os.system"}}
    with pytest.raises(OptionError, match=r"names os\.system, which is not part of evorl"):
        SweepDefinition.from_data(hostile)


def test_what_stands_for_an_option_elsewhere_is_changed_too():
    (variant,), space = space_options.parse_search(
        ["agent=pbt", "agent/inner=ppo", "env=cartpole"], ["space={}", "space.inner.workflow.num_envs=${choice:4,8}"]
    )
    places = {"agent.inner.workflow.num_envs", "agent.workflow.population.inner.num_envs"}
    assert {name: set(of) for name, of in variant.places.items()} == {"agent.inner.workflow.num_envs": places}
    _, same = space_options.parse_search(
        ["agent=pbt", "agent/inner=ppo", "env=cartpole"], ["space={}", "space.num_envs=${choice:4,8}"]
    )
    assert same == space
    assert space_options.find_option(variant.base, "inner.workflow.num_steps") == "agent.inner.workflow.num_steps"


def test_a_prior_in_place_of_a_number_is_searched_kept_and_written():
    rate = "agent.workflow.agent.learning_rate"
    given = ["agent=ppo", "env=cartpole", f"{rate}=${{log_uniform:1e-4,1e-3}}", "num_envs=8"]
    (variant,), space = space_options.parse_search(given, ["space={}"])
    assert [(one.name, one.prior, one.default) for one in space.parameters] == [(rate, LogUniform(1e-4, 1e-3), 3e-4)]
    kept = SweepDefinition.from_data(defined_as((variant,), space).to_data())
    space_options.require_same_space(["space={}"], kept, "sweep=x")
    with pytest.raises(OptionError, match=r"sweep=x: has another search space: there .*entropy_coef is not searched"):
        space_options.require_same_space([], kept, "sweep=x")
    assert variant.searched_numbers == {rate}
    assert kept.get_program_key({rate: 1e-4}) == kept.get_program_key({rate: 1e-3})
    assert kept.build_configuration({rate: 5e-4})["agent"]["workflow"]["agent"]["learning_rate"] == 5e-4
    written = yaml.safe_load(format_experiment(variant.chosen, {rate: 5e-4}, "title", kept.base))
    assert written["agent"]["workflow"] == {"agent": {"learning_rate": 5e-4}, "num_envs": 8}


def test_the_numbers_of_a_schedule_are_searched_kept_and_written():
    rate, beta = "agent.workflow.agent.learning_rate", "agent.workflow.sampling.beta"
    given = ["space={}", "space.learning_rate.start=${log_uniform:1e-4,1e-2}", "space.env_steps=${uniform:1e3,9e3}"]
    (variant,), space = space_options.parse_search(["agent=puffer", "env=cartpole"], given)
    places = {name: set(of) for name, of in variant.places.items()}
    assert places[f"{rate}.start"] == {f"{rate}.start"}
    assert places["env_steps"] == {"env_steps", f"{rate}.over", f"{beta}.over"}  # all of a training
    found = defined_as((variant,), space)
    trial = found.build_configuration({f"{rate}.start": 5e-4, "env_steps": 2000})["agent"]["workflow"]
    assert (trial["agent"]["learning_rate"]["start"], trial["agent"]["learning_rate"]["over"]) == (5e-4, 2000)
    written = yaml.safe_load(format_experiment(variant.chosen, {f"{rate}.start": 5e-4}, "title", variant.base))
    assert written["agent"]["workflow"]["agent"] == {"learning_rate": {"start": 5e-4}}
    both = [*given, "space.learning_rate.over=${uniform:10,90}"]
    (variant,), _ = space_options.parse_search(["agent=puffer", "env=cartpole"], both)
    assert set(variant.places["env_steps"]) == {"env_steps", f"{beta}.over"}


AGENTS = ["space={}", "space.agent=[a2c,ppo]", "space.clip=${uniform:0.1,0.4}", "space.hidden=[[8],[4,4]]"]
KIND, CLIP, HIDDEN = "agent", "agent.workflow.agent.clip", "agent.workflow.agent.hidden"


def test_choices_of_agents_are_trainings_of_their_own():
    found = defined_as(*space_options.parse_search(["agent=ppo", "env=cartpole", "num_envs=16"], AGENTS))
    assert SweepDefinition.from_data(found.to_data()) == found
    assert found.space.defaults == {KIND: "ppo", HIDDEN: [8], CLIP: 0.2}
    values = {KIND: "a2c", CLIP: 0.3, HIDDEN: [4, 4]}
    data = found.build_configuration(values)
    assert data["agent"]["name"] == "a2c"
    assert data["agent"]["workflow"]["num_envs"] == 16
    assert data["agent"]["workflow"]["agent"]["hidden"] == [4, 4]
    assert found.build_configuration(values | {KIND: "ppo"})["agent"]["workflow"]["agent"]["clip"] == 0.3
    keys = {
        name: found.get_program_key(values | change)
        for name, change in {
            "same": {},
            "clip": {CLIP: 0.1},
            "layers": {HIDDEN: [8]},
            "agent": {KIND: "ppo"},
        }.items()
    }
    assert keys["same"] == keys["clip"]
    assert len(set(keys.values())) == 3
    trial = SweepTrial(7, (0.5, 0.5, 0.5), values, DONE, (Evaluation(1.0, 1.0, 1.0),))
    written = yaml.safe_load(format_trial_experiment(found, trial))
    assert {"override /agent": "a2c"} in written["defaults"]
    assert written["agent"]["workflow"] == {"num_envs": 16, "agent": {"hidden": [4, 4]}}
    space_options.require_same_space(AGENTS, found, "sweep=x")
    for other in (["space.agent=[ppo,dqn]"], ["space.hidden=[[8],[16]]"], ["space.clip=0.2"]):
        with pytest.raises(OptionError, match="sweep=x: has another search space: there "):
            space_options.require_same_space([*AGENTS, *other], found, "sweep=x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("space.activation=[relu,foo]", "unknown activation foo; allowed: elu, gelu, leaky_relu, relu, swish, tanh"),
        ("space.activation=[relu]", r"space.activation=\['relu'\]: must be at least two different values"),
        ("space.activation=[relu,relu]", "must be at least two different values"),
        ("space.activation=${uniform:0,1}", r"is not a number; .* give a list of values, space.activation=\[...\]"),
        (
            "space.workflow.agent.core=[gru,lstm]",
            r"is a component; search its options, or a group such as space.core=\[gru",
        ),
        ("space.agent=[ppo,pppo]", "unknown agent pppo; did you mean ppo"),
        ("space.agent=[ppo,td3]", "space.agent=td3: TD3 needs continuous actions, a Box with one axis"),
        ("space.agent=[dqn,a2c]", r"agent=ppo: must be one of the values of space.agent"),
        ("space.env=[cartpole,acrobot]", "cannot be searched, because scores of different tasks are not comparable"),
        ("space.env.name=[a,b]", "cannot be a list of values"),
        ("space.num_envs=[8.5,9]", "must be whole numbers"),
        ("space.hidden=[[8],[0]]", "agent.workflow.agent.hidden|hidden"),
    ],
)
def test_wrong_values_to_choose_from_are_one_line(given, message):
    with pytest.raises(OptionError, match=message) as refused:
        space_options.parse_search(["agent=ppo", "env=cartpole"], ["space={}", given])
    assert "\n" not in str(refused.value)


def test_the_page_loads_nothing_and_shows_everything(tmp_path):
    found = defined()
    with closing(filled(tmp_path, found)) as store:
        lines = list(reports.write_report(store, found))
    assert lines[0] == "5 trials, 1 failed"
    assert lines[1].startswith("best: trial 3, return 3 at 4,000 env_steps: num_envs 8, ")
    page = (tmp_path / "report.html").read_text()
    assert "default-src 'none'" in page
    assert page.count('<div class="chart"') == 3
    assert "the importance of the options needs 10 trials" in page
    assert page.count("<tr><td>") == 5


@pytest.mark.program
def test_a_sweep_without_a_finite_score_says_so(tmp_path):
    found = defined()
    with closing(SweepStore.create(tmp_path, {"trials": 2, "seed": 0})) as store, store.register_owner() as owner:
        store.claim_trials(owner, 2, found.space, found.build_sampler())
        with pytest.raises(OptionError, match="no trial has ended yet"):
            [*reports.write_report(store, found)]
        store.observe(0, Evaluation(1.0, 1.0, math.nan))
        store.end_trial(0, DONE)
        with pytest.raises(OptionError, match="no trial has a finite return"):
            [*reports.write_report(store, found)]


def test_a_metric_of_a_suite_is_a_score():
    small = ["agent.inner.workflow.num_envs=4", "agent.workflow.capacity=8"]
    given = ["agent=plr", "env=maze", "suite=minimax", *small]
    found = defined_as(*space_options.parse_search(given, ["space={}", "space.env_steps=[1000,2000]"]))
    assert "minimax/solved" in list_metric_names(found)


def test_the_best_is_an_experiment_that_trains_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = defined()
    with closing(filled(tmp_path, found)) as store:
        assert "python -m evorl.train experiment=mine" in list(reports.write_report(store, found, "mine"))[-1]
        again, best = (
            config.to_plain_data(config.compose_config(["experiment=mine"])),
            found.build_configuration(store.read_trials()[3].values),
        )
        assert again == best
        with pytest.raises(OptionError, match=r"experiment=mine: .*mine\.yaml exists already"):
            list(reports.write_report(store, found, "mine"))
        with pytest.raises(OptionError, match="must be a name of letters"):
            list(reports.write_report(store, found, "../mine"))
    assert {path.name for path in Path("configs").rglob("*.yaml")} == {"mine.yaml"}


def test_linear_algebra_of_a_sweep_has_one_thread(monkeypatch, capsys):
    """On cores that others use, the threads of OpenBLAS took ten times the CPU seconds."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    sweep.main(["--help"])
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"


def test_what_matters_is_the_coordinate_that_the_score_follows():
    names = [Parameter(f"agent.workflow.agent.x{i}", Uniform(0.0, 1.0), 0.5) for i in range(3)]
    points = np.random.default_rng(0).uniform(size=(40, 3))
    scores = np.sin(3 * points[:, 1]) + 0.3 * points[:, 2]
    trials = [
        SweepTrial(i, tuple(u), {}, DONE, (Evaluation(1.0, 1.0, float(score)),))
        for i, (u, score) in enumerate(zip(points, scores, strict=True))
    ]
    shares = plots.compute_main_effects(SearchSpace(tuple(names)), trials)
    line, wave = 0.09 / 12, 0.5 - math.sin(6) / 12 - ((1 - math.cos(3)) / 3) ** 2  # variances over the unit interval
    assert list(shares) == ["agent.workflow.agent.x1", "agent.workflow.agent.x2", "agent.workflow.agent.x0"]
    expected = [wave / (wave + line), line / (wave + line), 0.0]
    np.testing.assert_allclose(list(shares.values()), expected, atol=0.05)
