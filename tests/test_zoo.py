"""The zoo: each policy plays as well as its table says, files are checked, and foreign ones do nothing."""

import io
import json
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

import evorl
from evorl import PPO, CartPole, OnPolicy, numpy_policy
from evorl.errors import OptionError
from evorl.training.cross_play import PlayerId
from evorl.training.episodes import evaluate_policy
from evorl.training.export import export_policy, to_arrays
from evorl.training.exported_policy import ExportedPolicy, PolicyFile, find_policy_file, list_zoo
from evorl.training.policy import Policy
from tests.tiers import program_fixture

ROOT = Path(evorl.__file__).parents[1]
NAMES = list_zoo()
EPISODES = 16
FAMILIES = "ppo lstm_ppo puffer dqn td3 sac cma_es openes nsga2 map_elites cemrl erl pbt plr mappo qmix psro".split()  # noqa: SIM905


def test_there_is_a_policy_of_each_family_and_all_are_small():
    sizes = {name: find_policy_file(f"zoo:{name}").stat().st_size for name in NAMES}
    assert max(sizes.values()) <= 200_000
    assert sum(sizes.values()) <= 3_000_000
    assert {family for family in FAMILIES if any(name.startswith(f"{family}_") for name in NAMES)} == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_each_says_where_it_comes_from(name):
    file = PolicyFile(find_policy_file(f"zoo:{name}"))
    assert file.program["schema"] == numpy_policy.SCHEMA
    record = file.about["record"]
    assert record["command"].startswith("python -m evorl.train ")
    assert record["run"]["seeds"] >= 3
    assert record["run"]["low"] <= record["run"]["mean"] <= record["run"]["high"]
    assert record["policy"]["low"] <= record["policy"]["mean"] <= record["policy"]["high"]
    assert f"# zoo:{name}\n{shlex.join(shlex.split(record['command']))}\n" in (ROOT / "docs" / "zoo.md").read_text()


@pytest.mark.program
def test_the_table_is_that_of_the_files():
    done = subprocess.run([sys.executable, "scripts/zoo.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "python scripts/zoo.py writes it"


@pytest.mark.program
@pytest.mark.parametrize("name", NAMES)
def test_each_plays_as_well_as_its_table_says(name):
    """Within 4.5 standard errors of both means, and where all episodes are alike, alike."""
    path = find_policy_file(f"zoo:{name}")
    policy, said = ExportedPolicy(path), PolicyFile(path).about["record"]["policy"]
    played = evaluate_policy(policy, EPISODES, seed=7)
    returns = np.asarray(played.return_sums["return"], float)
    if "group" in said:
        returns = np.asarray(PlayerId.from_name(said["group"], policy.env).select_values(played.returns), float)
    error = said["std"] * np.sqrt(1 / EPISODES + 1 / said["episodes"])
    assert abs(returns.mean() - said["mean"]) <= 4.5 * error + 1e-3 * abs(said["mean"])


@pytest.mark.program
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("psro")])  # which samples its actions
def test_numpy_and_jax_act_alike(name):
    path = find_policy_file(f"zoo:{name}")
    policy, reader = ExportedPolicy(path), numpy_policy.load(path)
    _, obs = policy.env.reset(jax.random.key(3), policy.env_params)
    obs = jax.tree.map(np.asarray, obs)
    theirs = reader(obs)
    ours = policy(obs, policy.initial_memory()) if policy.is_recurrent else policy(obs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), theirs, _like(ours, theirs))


def _like(ours, theirs):
    return jax.tree.unflatten(jax.tree.structure(theirs), jax.tree.leaves(ours))


def test_an_unknown_name_has_a_neighbor_and_choices_of_runs_are_refused():
    with pytest.raises(OptionError, match=r"unknown policy zoo:ppo_cartpol; did you mean zoo:ppo_cartpole"):
        evorl.load("zoo:ppo_cartpol")
    for name, value in (("member", 0), ("seed", 0), ("which", "best")):
        with pytest.raises(OptionError, match=f"^{name}={value}: an exported policy has no choice of this"):
            evorl.load("zoo:ppo_cartpole", **{name: value})
    with pytest.raises(OptionError, match="solution=3: must be from 0 to 0"):
        evorl.load("zoo:ppo_cartpole", solution=3)


def test_an_archive_has_all_of_its_solutions():
    front = evorl.load_front("zoo:map_elites_point_maze")
    assert front.descriptors.shape == (len(front.values), 2)
    obs = np.array([0.1, -0.2], np.float32)
    path = find_policy_file("zoo:map_elites_point_maze")
    acts = [numpy_policy.load(path, solution=i)(obs) for i in (0, 5)]
    assert not np.allclose(*acts)
    np.testing.assert_allclose(acts[1], evorl.load("zoo:map_elites_point_maze", solution=5)(obs), rtol=1e-5)
    with pytest.raises(ValueError, match=f"solution={len(front.values)}: must be from 0 to"):
        numpy_policy.load(path, solution=len(front.values))


@program_fixture
def policy():
    workflow = OnPolicy(CartPole(), PPO(hidden=(8,)))
    return Policy(workflow, jax.jit(workflow.init)(jax.random.key(0)))


ABOUT = {"agent": "ppo", "env": {"_target_": "evorl.envs.suites.gymnax.Gymnax", "name": "CartPole-v1"}}


@pytest.mark.program
def test_a_sampled_policy_samples_as_the_agent_does(policy, tmp_path):
    obs = np.array([0.3, -0.5, 0.2, 0.4], np.float32)
    export_policy(policy, tmp_path / "sampled.npz", sampled=True, about=ABOUT)
    reader, loaded = numpy_policy.load(tmp_path / "sampled.npz", seed=1), ExportedPolicy(tmp_path / "sampled.npz")
    ours = np.mean([reader(obs) for _ in range(4000)])
    theirs = policy(np.tile(obs, (4000, 1)), 1).mean()
    jaxs = loaded(np.tile(obs, (4000, 1)), 2).mean()
    assert 0.05 < theirs < 0.95
    np.testing.assert_allclose([ours, jaxs], theirs, atol=4.5 * np.sqrt(2 * 0.25 / 4000))
    export_policy(policy, tmp_path / "greedy.npz", about=ABOUT)
    with pytest.raises(OptionError, match="explore=true: this file has the greedy policy"):
        ExportedPolicy(tmp_path / "greedy.npz")(obs, 1)
    assert numpy_policy.load(tmp_path / "greedy.npz")(obs) == policy(obs)


def edit(source, path, program=None, arrays=None, about=None):
    """Write a policy file with other contents."""
    found = dict(source) | (arrays or {})
    if program is not None:
        found["program"] = np.asarray(json.dumps(json.loads(str(found["program"])) | program))
    found["about"] = np.asarray(json.dumps(ABOUT if about is None else about))
    np.savez(path, **found)
    return path


@pytest.mark.program
def test_hostile_files_are_refused_with_one_line(policy, tmp_path):
    good, path = to_arrays(policy), tmp_path / "policy.npz"
    program = json.loads(str(good["program"]))
    first, *others = program["operations"]
    ExportedPolicy(edit(good, path))
    wrong = [
        {"operations": [["system", *first[1:]], *others]},
        {"operations": [[first[0], ["nowhere"], *first[2:]], *others]},
        {"operations": [["iota", [], ["v1"], {"shape": [10**12], "dtype": "float32", "axis": 0}]]},
        {"operations": 3},
        {"obs": [{"path": ["__class__"], "name": "v1", "dtype": "nonsense", "shape": [4]}]},
        {"schema": 99},
        {"action": "nowhere"},
        {"action": program["obs"][0]["name"]},
        {"operations": [[*first[:3], {"nonsense": 1}], *others]},
        {"solutions": ["v1"]},
    ]
    for change in wrong:
        with pytest.raises(OptionError, match=r"policy.npz: (is not an exported policy|has schema 99)") as refused:
            ExportedPolicy(edit(good, path, change))
        assert "\n" not in str(refused.value)
    for about in ({"env": {"_target_": "os.system", "command": "touch x"}}, {"env": ["x"]}, {}, [1], {"env": {"a": 1}}):
        with pytest.raises(OptionError) as refused:
            ExportedPolicy(edit(good, path, about=about))
        assert "\n" not in str(refused.value)
    other = ABOUT | {"env": ABOUT["env"] | {"name": "Acrobot-v1"}}
    with pytest.raises(OptionError, match="its policy does not fit its environment"):
        ExportedPolicy(edit(good, path, about=other))
    pickled = io.BytesIO()
    np.save(pickled, np.array([object()], object), allow_pickle=True)
    content = edit(good, path).read_bytes()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("evil.npy", pickled.getvalue())
    for bad in (path.read_bytes(), content[:-40], content[:100], b"", b"PK\x05\x06" + bytes(18), b"x" * 1000):
        path.write_bytes(bad)
        with pytest.raises(OptionError, match="is not an exported policy"):
            ExportedPolicy(path)
        with pytest.raises(ValueError, match="is not an exported policy"):
            numpy_policy.load(path)
    path.unlink()
    path.symlink_to(find_policy_file("zoo:ppo_cartpole"))
    with pytest.raises(OptionError, match="cannot be read"):
        ExportedPolicy(path)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path):
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        for _ in range(300):
            file.write(bytes(10**6))
    assert path.stat().st_size < 10**6
    with pytest.raises(ValueError, match="is not an exported policy"):
        numpy_policy.load(path)
