"""Several devices compute what one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evorl import fit
from evorl.agents import PPO
from evorl.errors import OptionError
from evorl.training import devices as devices_of
from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.progress import Budget
from tests.contract import same_numbers
from tests.contract_cases import META
from tests.tiny import on_policy

QUICK = ["ppo", "off_policy", "cem_rl", "erl", "evolution_running", "pbt_ppo", "meta_es_ppo", "low_rank_es"]
OTHERS = [
    *("cem_rl_sac", "a2c", "impala", "dqn", "sac", "discrete_sac", "evolution_vbn"),
    *("pbt_openes", "pbt_cem_rl", "pbt_pbt_ppo", "pbt_cso_ppo", "vmapped_pbt_ppo", "seeded_es", "low_rank_es_int8"),
]


def on_eight(names):
    root = Path(__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-m", "tests.eight_devices", *names], cwd=root, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout)


def check(names, devices=2, **tolerance):
    """Compare what each case computes on at least so many devices and on one."""
    found = on_eight(names)
    for name in names:
        several, one = found[name], found[f"{name} on one"]
        assert several.pop("devices") >= devices
        assert one.pop("devices") == 1
        same_numbers(several, one, **tolerance)
    return found


@pytest.mark.program
def test_eight_devices_compute_what_one_does():
    check(QUICK)


@pytest.mark.program
def test_members_that_are_drawn_where_they_play_stay_there():
    """Between eight devices go one sum of the mean's size and, of each of 16 members, its fitness and its counts."""
    for numbers, size in on_eight(["exchanged"]).values():
        assert size < numbers < size + 16 * 8


@pytest.mark.program
def test_eight_devices_compute_what_one_does_of_all_workflows():
    check(OTHERS)


@pytest.mark.program
def test_four_devices_compute_what_one_does_of_curricula():
    names = ["four_plr", "four_accel", "four_accel_at_once"]
    found = check(names, devices=4, least=5e-7)  # scores are differences of float32 numbers near 1
    for name in names:
        assert found[name]["state.buffer.score_table.size"][1] >= 4  # half of it, so that there are replays


@pytest.mark.program
def test_four_devices_compute_what_one_does_of_fictitious_self_play_from_fixed_starts():
    check(["four_nfsp"], devices=4)


def test_devices_that_do_not_divide_are_refused_with_the_nearest_number_that_does():
    with pytest.raises(OptionError, match=r"devices=3: does not divide 4 members; (2|4) does"):
        fit(META["pbt_ppo"], budget=Budget(iterations=1), devices=3)
    with pytest.raises(OptionError, match=r"devices=4: must be at most 1, the number of available devices"):
        fit(on_policy(PPO(), batch_size=16), budget=Budget(iterations=1), devices=4)


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        (["agent=ppo"], 1),
        (["agent=cemrl"], 1),
        (["agent=ppo", "num_seeds=8"], 8),
        (["agent=ppo", "num_seeds=6"], 6),
        (["agent=ppo", "num_seeds=7"], 7),
        (["agent=ppo", "num_seeds=22"], 2),
        (["agent=openes"], 8),
        (["agent=pbt", "agent.workflow.population.size=12"], 6),
        (["agent=pbt", "agent/population=shared_replay", "agent@agent.inner=sac"], 1),
        (["agent=ppo", "devices=2"], 2),
        (["agent=ppo", "num_seeds=many"], 1),  # which is refused later
        (["agent=ppo", "num_seeds=1.5"], 1),
    ],
)
def test_a_cpu_is_as_many_devices_as_divide_what_is_independent(given, devices, monkeypatch):
    monkeypatch.setattr(runs, "count_cores", lambda: 8)
    assert (
        runs.count_devices(
            config.to_plain_data(
                config.compose_config([*given, "env=cartpole" if "openes" not in given[0] else "env=ant"])
            )
        )
        == devices
    )


def test_programs_that_tests_compile_are_not_optimized():
    assert "xla_backend_optimization_level" not in devices_of.compiler_options()


@pytest.mark.usefixtures("optimized")
def test_what_the_user_has_chosen_for_the_compiler_stays(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    assert devices_of.compiler_options() == devices_of.CPU_OPTIONS
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert devices_of.compiler_options() == {"xla_cpu_multi_thread_eigen": False}


@pytest.mark.parametrize(("limit", "expected"), [("4096\n", 4096), ("max\n", None), ("9" * 20, None)])
def test_the_limit_of_memory_is_that_of_the_container_if_it_is_less_than_the_machine(
    monkeypatch, tmp_path, limit, expected
):
    (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(devices_of, "Path", lambda path: tmp_path / Path(path).name)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert devices_of.memory_limit() == (expected or machine)
