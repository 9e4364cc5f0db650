"""Forty and more wrong commands: each prints one line that teaches, exits with 2 and leaves nothing behind."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from evorl.cli import curve, league, lineage, play, train
from tests.test_train import TINY
from tests.tiers import program_fixture

COMMANDS = {"train": train.main, "play": play.main, "curve": curve.main, "league": league.main, "lineage": lineage.main}
WRONG = {
    "train agent=tt3": "unknown agent tt3; did you mean td3?",
    "train agent=": "unknown agent ''; all ",
    "train env=antt": "unknown env antt; did you mean ant?",
    "train -m seed=1,2 env=ant,antt": "unknown env antt; did you mean ant?",
    "train experiment=paper/cemrl_ants": (
        "unknown experiment paper/cemrl_ants; did you mean paper/cemrl_ant, paper/erl_ant or paper/cemrl_speed? all "
    ),
    "train agent/evolver=cemm": "unknown agent/evolver cemm; did you mean cem?",
    "train agnet=td3": "unknown option agnet; did you mean agent or agent.workflow.agent? all ",
    "train agent.workflow.batchsize=3": (
        "unknown option agent.workflow.batchsize; did you mean agent.workflow.batch_size?"
    ),
    "train actor_l=1": "unknown option actor_l; did you mean agent.workflow.agent.actor_lr? all ",
    "train nun_seeds=4": "unknown option nun_seeds; did you mean num_seeds, ",
    "train checkpoint_minutes=3": "unknown option checkpoint_minutes; did you mean checkpoint.minutes, checkpoint or ",
    "train seed": "seed: is not a folder, and options have the form name=value",
    "train agent=ppo,td3": "agent=ppo,td3: several values need a multirun: python -m evorl.train -m",
    "train agent=ppo rate=1": "unknown option rate; did you mean agent.workflow.agent.learning_rate?",
    "train --nonsense": "unrecognized arguments: --nonsense; options are name=value, such as seed=1; ",
    "train agent.workflow.batch_size=abc": "agent.workflow.batch_size=abc: must be of type int",
    "train agent.workflow.batch_size=2.5": "agent.workflow.batch_size=2.5: must be of type int",
    "train agent.workflow.batch_size=true": "agent.workflow.batch_size=True: must be of type int",
    "train agent.workflow.batch_size=0": "agent.workflow.batch_size=0: must be at least 1",
    "train agent.workflow.batch_size=2_000_000": "agent.workflow.capacity=1000000: must be at least batch_size, 2000",
    "train agent.workflow.random_steps=-1": "agent.workflow.random_steps=-1: must not be negative",
    "train agent.workflow.explore=3": "agent.workflow.explore=3: must be of type bool",
    "train agent.workflow.scan_length=0": "agent.workflow.scan_length=0: must be at least 1",
    "train agent.workflow.learners=0": (
        "agent.workflow.learners=0.0: must be a fraction of the population that gives 1 to 10 members of 10"
    ),
    "train agent.workflow.min_updates=2000": "agent.workflow.max_updates=1024: must be at least min_updates, 2000",
    "train agent.workflow.evolver.population_size=1": "agent.workflow.evolver.population_size=1: must be at least 2",
    "train agent.workflow.agent.hidden=256": "agent.workflow.agent.hidden=256: must be of type list",
    "train agent.workflow.agent.hidden=[0]": "agent.workflow.agent.hidden=[0]: widths must be whole numbers, at ",
    "train agent=td3 agent.workflow.num_envs=0": "agent.workflow.num_envs=0: must be at least 1",
    "train agent=td3 agent.workflow.num_updates=3": (
        "agent.workflow.num_updates=3: must be a multiple of policy_delay, 2"
    ),
    "train agent=td3 agent.workflow.agent.discount=1.5": "agent.workflow.agent.discount=1.5: must be between 0 and 1",
    "train agent=td3 agent.workflow.agent.actor_lr=-1": "agent.workflow.agent.actor_lr=-1: must be between 0 and 1",
    "train agent=td3 agent.workflow.agent.actor_lr=nan": "agent.workflow.agent.actor_lr=nan: must be between 0 and 1",
    "train agent=td3 agent.workflow.agent.actor_lr=abc": "agent.workflow.agent.actor_lr=abc: must be a number",
    "train agent=td3 env=cartpole": "TD3 needs continuous actions, a Box with one axis, not Discrete(n=2)",
    "train agent=sac env=cartpole": "SAC needs continuous actions, a Box with one axis, not Discrete(n=2); for these ",
    "train agent=dqn env=fast": "DQN needs a discrete action space, not Box(",
    "train agent=cemrl agent/learner=sac env=cartpole": "SAC needs continuous actions, a Box with one axis, not ",
    "train agent=cemrl env=fast core=gru": "agent.workflow.replay=UniformReplay: stores single transitions, and ",
    "train agent=cemrl env=fast agent.workflow.agent.exploration_noise=0.5": (
        "agent.workflow.agent.exploration_noise=0.5: has no effect with explore=false"
    ),
    "train agent=pbt agent/inner=pga_me env=position agent.inner.workflow.agent.exploration_noise=0.5": (
        "agent.inner.workflow.agent.exploration_noise=0.5: has no effect with individuals that act without noise"
    ),
    "train agent=pbt agent/inner=bc env=fast": "agent.inner.workflow.num_steps=0: must be at least 1: demonstrations ",
    "train agent=meta_es agent/evolver=map_elites env=fast": "unknown option agent.workflow.evolver.population_size; ",
    "train agent=league agent/inner=idqn env=pong_duel": "env: must be a multi-agent environment for a team of ",
    "train agent=map_elites env=cartpole iterations=1": "descriptors=['feet_contact']: feet_contact is none of ",
    "train agent=td3 env=fast agent.workflow.replay=prioritized": (
        "agent.workflow.replay=prioritized: must be a component with a _target_, ReplayFactory; to choose a file by "
    ),
    "train agent=ppo agent.workflow.batch_size=100": (
        "agent.workflow.batch_size=100: must divide num_envs * num_steps, 2048"
    ),
    "train agent=ppo agent.workflow.agent.activation=rellu": "unknown activation rellu; did you mean relu, elu or ",
    "train agent=a2c agent.workflow.agent.distribution=beta": (
        "agent.workflow.agent.distribution=beta: must be one of tanh_normal, normal"
    ),
    "train agent=openes agent.workflow.evolver.population_size=7": (
        "agent.workflow.evolver.population_size=7: must be even: members come in mirrored pairs"
    ),
    "train agent=low_rank_es agent.workflow.evolver.rank=0": "agent.workflow.evolver.rank=0: must be at least 1",
    "train agent=low_rank_es agent.workflow.evolver.dtype=int4": "unknown dtype int4; did you mean int8?",
    "train agent=seeded_es agent.workflow.evolver.search.population_size=7": (
        "agent.workflow.evolver.search.population_size=7: must be even: members come in mirrored pairs"
    ),
    "train agent=vanilla_es agent.workflow.evolver.num_elites=200": (
        "agent.workflow.evolver.num_elites=200: must be from 1 to population_size, 128"
    ),
    "train agent=ars agent.workflow.evolver.noise.source=hsah": "unknown source hsah; did you mean hash?",
    "train agent=openes agent.workflow.evolver.noise.table_size=0": (
        "agent.workflow.evolver.noise.table_size=0: must be from 1 to 2147483647"
    ),
    "train agent=openes agent.workflow.evolver.shaping=rank": "unknown shaping rank; ",
    "train agent=openes agent.workflow.normalization=vnb": "unknown normalization vnb; did you mean vbn?",
    "train agent=ga agent.workflow.members_at_once=5": (
        "agent.workflow.members_at_once=5: must divide population_size, 128, or be 0"
    ),
    "train agent=ga agent.workflow.evolver.mutation._target_=CEM": "agent.workflow.evolver.mutation=CEM: must be ",
    "train agent=ga agent.workflow.evolver.mutation._target_=ERLMutatoin": "unknown class ERLMutatoin; did you mean ",
    "train agent=cma_es agent.workflow.agent.hidden=[2048,2048]": "the state and the best state need ",
    "train agent=evosax agent.workflow.evolver.algorithm.path=evosax.algorithms.SV_CMA_ES": (
        "agent.workflow.evolver.options={}: SV_CMA_ES needs options.num_populations"
    ),
    "train agent=erl agent.workflow.updates_follow=al": "unknown updates_follow al; did you mean all?",
    "train agent=erl agent.workflow.num_agents=10": ("agent.workflow.num_agents=10: must be below population_size, 10"),
    "train agent=erl agent.workflow.evolver.population_size=1": (
        "agent.workflow.evolver.population_size=1: must be at least 2"
    ),
    "train agent=erl agent.workflow.elite_pull=2": "agent.workflow.elite_pull=2: must be between 0 and 1",
    "train agent=erl env=cartpole": "TD3 needs continuous actions, a Box with one axis, not Discrete(n=2)",
    "train agent/learner=sacc": "unknown agent/learner sacc; did you mean sac?",
    "train agent/evolver=cma_es": "the state and the best state need ",
    "train env=delayed env.delay=0": "env.delay=0: must be at least 1",
    "train env.backend=bullet": "env.backend=bullet: must be one of auto, generalized, spring, positional, mjx",
    "train env.max_episode_steps=0": "env.max_episode_steps=0: must be at least 1",
    "train env.name=antt": "unknown Brax environment antt; did you mean ant?",
    "train env=ant +env.options.nonsense=1": "options={'nonsense': 1}: Brax's ant raises TypeError: ",
    "train env_steps=-5": "env_steps=-5: must be a number above 0",
    "train env_steps=null": "no budget: give env_steps, episodes, iterations or minutes",
    "train agent.workflow.evolver=2": "agent.workflow.evolver=2: must be a component with a _target_",
    "train iterations=???": "iterations: must be given",
    "train distributed=???": "distributed: must be given",
    "train wrappers=???": "wrappers: must be given",
    "train agent.name=???": "agent.name: must be given",
    "train resume=???": "resume: must be given",
    "train resume=1": "resume=1: must be a run folder",
    "train init_from=1": "init_from=1: must be a run folder",
    "train preload=1": "preload=1: must be the path of a file",
    "train distributed=${nothing}": "distributed: Interpolation key 'nothing' not found",
    "train wrappers=${nothing}": "wrappers: Interpolation key 'nothing' not found",
    "train env=null": "env=null: give an environment or a problem",
    "train precision=hihg": "unknown precision hihg; did you mean high?",
    "train minutes=abc": "minutes=abc: must be a number above 0",
    "train seed=-1": "seed=-1: must not be negative",
    "train num_seeds=0": "num_seeds=0: must be at least 1",
    "train checkpoint.keep=0": "checkpoint.keep=0: must be at least 1",
    "train agent.chunk=inf": "agent.chunk=inf: must be a whole number, at least 1",
    "train checkpoint.replay=maybe": "checkpoint.replay=maybe: must be true or false",
    "train json=maybe": "json=maybe: must be true or false",
    "train agent.workflow._target_=../x": "agent.workflow._target_=../x: ",
    "train wandb.enabled=1.0": "wandb=1.0: must be true or false",
    "train quiet=": "quiet=: must be true or false",
    "train wandb=true": 'wandb=true: the package wandb is missing; pip install "wandb>=0.19"',
    "train run_dir=/proc/x": "run_dir=/proc/x: cannot be created: No such file or directory",
    "train run_dir=foreign": "run_dir=foreign: exists already; use resume=foreign to continue it",
    "train resume=nowhere": "resume=nowhere: is not a run directory, it does not exist",
    "train resume=file.npz": "resume=file.npz: is not a run directory, it is a file",
    "league file.npz random": "run=file.npz: is a file, not a run directory",
    "train empty": "resume=empty: is not a run directory, it has no config.yaml",
    "train empty run": "resume=empty run: must be one run",
    "train resume=run empty": "resume=empty resume=run: must be one run",
    "train resume=empty": "resume=empty: is not a run directory, it has no config.yaml",
    "train resume=foreign": "resume=foreign: its config.yaml is not a training configuration",
    "train resume=broken": "resume=broken: its config.yaml cannot be read",
    "train resume=run eval_env=fast": "eval_env=fast: a resumed run keeps its configuration; only ",
    "train resume=run seed=5": "seed=5: a resumed run keeps its configuration; only env_steps, episodes, iterations, ",
    "train -m init_from=run seed=0,1": "-m: does not take init_from=; start one training for each run, without -m",
    "train +debug.step=1": "unknown option of debug step; ",
    "train +checkpoint.kep=1": "unknown option of checkpoint kep; did you mean keep?",
    "train init_from=unsaved": "init_from=unsaved: has no checkpoint",
    "train init_from=run agent=ppo env=cartpole": "the state of init_from does not fit this configuration: its ",
    "play": "run=runs: has no runs; give a run directory: python -m evorl.play RUN",
    "play run nowhere": "run=run nowhere: give one run directory: python -m evorl.play RUN",
    "play run browser=true out=null": "out=null: writes no pictures for browser=true",
    "play run browser=true suite=ood": "suite=ood: has no pictures for browser=true",
    "play nowhere": "run=nowhere: does not exist",
    "play run episods=3": "unknown option episods; did you mean episodes?",
    "play run episodes=0": "episodes=0: must be at least 1",
    "play run record=demos": "record=demos: must end with .npz",
    "play run json=true suite=ood": "json=true: cannot be combined with suite= or human=",
    "play run episodes=many": "episodes=many: must be of type int",
    "play run seed=7": "seed=7: must be from 0 to 1",
    "play run member=3": "member=3: must be 0, because this run has no population",
    "play run member=[0,1]": "member=[0, 1]: must be 0, because this run has no population",
    "play run which=worst": "which=worst: must be best or last",
    "play run suite=odd": "unknown suite odd; did you mean ood?",
    "curve": "give a picture and runs: python -m evorl.curve OUT RUN ...",
    "curve out.png nowhere": "run=nowhere: does not exist",
    "curve out.png A=empty": "run=empty: has no metrics.jsonl",
    "curve out.png A=": "run=A=: must be RUN or LABEL=RUN",
    "curve out.png =run": "run==run: must be RUN or LABEL=RUN",
    "curve out.png run goal=x": "goal=x: must be of type float",
    "curve out.png run --goal": "--goal: options are name=value; allowed: goal, title",
    "curve out.png fresh": "run=fresh: has no evaluation yet",
    "curve out.png torn": "run=torn: 1 of 1 lines of its metrics.jsonl are damaged",
    "curve nowhere/out.png run": "out=nowhere/out.png: cannot be written: ",
    "curve out.nonsense run": "out=out.nonsense: must end with .png, .svg or .pdf",
    "lineage nowhere": "run=nowhere: has no metrics.jsonl",
    "lineage run": "run=run: has no evolving population",
    "lineage": "give one run directory: python -m evorl.lineage RUN",
    "lineage run seed=x": "seed=x: must be of type int | null",
    "lineage run seeds=1": "unknown option seeds; did you mean seed?",
    "league": "give two runs or more: python -m evorl.league RUN RUN ...",
    "league run random trust=[3]": "trust=[3]: must be a list of packages",
    "league random": "runs=random: give two runs or more: python -m evorl.league RUN RUN ...",
    "league random x=random": "runs=random: must include at least one run",
    "league a/run run": "runs=run: is given twice; use LABEL=RUN to name runs",
    "league nowhere random": "run=nowhere: does not exist",
    "league x= random": "run=x=: must be RUN or LABEL=RUN",
    "league run random episodes=0": "episodes=0: must be at least 1",
    "league run random": "env=Brax: must be a multi-agent environment for a tournament",
    "play run suite=ood": "suite=ood: is for agents trained on mazes, not on Brax",
    "play run suite=risk": "suite=risk: needs levels that are solved or not "
    "(evorl.types.SolvableLevelEnv), unlike Brax",
    "play run suites=ood": "unknown option suites; did you mean suite?",
    "play run suite=ood explore=1": "explore=1: must be of type bool | null",
    "train agent=ppo env=maze suite=odd": "unknown suite odd; did you mean ood?",
    "train agent=ppo env=maze suite=risk": "unknown suite risk; allowed: minimax, ood",
    "train agent=ppo env=maze suite=7": "unknown suite 7; allowed: minimax, ood",
    "train agent=td3 suite=ood": "suite=ood: is for agents trained on mazes, not on Brax",
    "train agent=ppo env=maze suite=ood env.full_view=true": "suite=ood: needs full_view=false, because its mazes ",
}


@program_fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run of two seeds, and with what looks like one."""
    folder = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train.main(["agent=td3", "run_dir=run", "iterations=1", "num_seeds=2", *TINY])
    (folder / "file.npz").write_bytes(b"PK")
    for name, config in {"foreign": "a: 1", "broken": "{[", "unsaved": None, "empty": None}.items():
        (folder / name).mkdir()
        if config:
            (folder / name / "config.yaml").write_text(config)
    shutil.copy(folder / "run" / "config.yaml", folder / "unsaved" / "config.yaml")
    for name, line in {"fresh": '{"kind": "train"}', "torn": '{"kind": "eval\n'}.items():
        (folder / name).mkdir()
        (folder / name / "metrics.jsonl").write_text(line)
    return folder


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_prints_one_line_that_teaches(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    name, *arguments = command.split()
    with pytest.raises(SystemExit) as ended:
        COMMANDS[name]([*arguments, "env=fast"] if plain(command) else arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith(f"error: {WRONG[command]}"), said
    assert said.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.program
def test_curves_are_a_picture_and_a_table(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    curve.main(["curve.png", "run", "again=run", "goal=1e9", "title=two"])
    (folder / "curve.png").unlink()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [len(line) for line in lines] == [8] * 4
    assert [line[0] for line in lines[2:]] == ["run", "again"]
    last = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()][-1]
    assert lines[2][1] == "2"
    assert lines[2][6] == ", ".join(f"{value:.2f}" for value in last["seeds"]["return"])
    assert lines[2][7] == "not reached"


@pytest.mark.program
@pytest.mark.parametrize("command", ["train --list", "train --cfg job", "curve --help"])
def test_a_reader_that_leaves_ends_it_quietly(command):
    name, *arguments = command.split()
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", f"evorl.{name}", *arguments],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},  # as users have it
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.program
@pytest.mark.parametrize("spec", ["ModuleSpec('evorl.train', None)", "None"])
@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("raise OptionError('seed: is wrong')", 2), ("1 / 0", 1)])
def test_a_command_that_ends_well_runs_exit_functions_but_deletes_no_modules(end, code, spec):
    """A program that calls it goes on afterwards, and keeps its own exit code."""
    script = f"""
import atexit, sys
from importlib.machinery import ModuleSpec
from evorl.command import command
from evorl.errors import OptionError
class Deleted:
    def __del__(self):
        print("deleted")
sys.modules["__main__"].__spec__ = {spec}
with command(None):
    kept = Deleted()
    atexit.register(print, "exit function")
    {end}
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == code
    expected = ["exit function"] + ["deleted"] * (code > 0 or spec == "None")
    assert ended.stdout.split("\n")[:-1] == expected


def plain(command):
    """Whether a command may name the quickest environment too."""
    return command.startswith("train") and not any(x in command for x in (" env=", "env.name", "resume", "--"))
