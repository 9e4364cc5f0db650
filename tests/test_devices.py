"""Several devices compute what one does."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from evorl import fit, mesh
from evorl.agents import PPO
from evorl.ec import OpenES
from evorl.errors import OptionError
from evorl.replay import FrameReplay
from evorl.training import devices as devices_of
from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.device_mesh import choose_mesh_shape, describe_mesh
from evorl.training.progress import Budget
from evorl.workflows import base
from tests.contract import same_numbers
from tests.contract_cases import CASES, META, OFF_POLICY
from tests.tiny import evolution, on_policy

FAMILIES = [
    "ppo",
    "off_policy",
    "cem_rl",
    "evolution_running",
    "low_rank_es",
    "map_elites",
    "pbt_ppo",
    "search",
    "qmix",
]
DEALS = "each device has its own pool of initial states, such as deals of cards (env.fresh_reset)"
EXCEPTIONS = {
    **dict.fromkeys(["psro", "pipeline_psro", "league", "nfsp", "image_lstm"], DEALS),  # four_nfsp has fixed starts
    **dict.fromkeys(["psro_exact", "xfp"], "it computes exact values, which nothing divides"),
    "plr": "its one environment; see four_plr",
    "novelty_es": "mirrored individuals tie at first, so that the gradient is rounding, which Adam amplifies",
}
OTHERS = [case.name for case in CASES if case.name not in [*FAMILIES, *EXCEPTIONS]]
NUM_GROUPS = 12
ROUNDING = {"sfl": {"least": 5e-7}}  # its loss is a mean of standardized advantages, which cancel


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
        same_numbers(several, one, **tolerance | ROUNDING.get(name, {}))
    return found


@pytest.mark.program
@pytest.mark.smoke
def test_several_devices_compute_what_one_does():
    check(FAMILIES)


@pytest.mark.program
def test_members_that_are_drawn_where_they_play_stay_there():
    """Between eight devices go one sum of the mean's size (CEM: of the variance, too) and numbers per member."""
    for evolver, (numbers, gathered, size) in on_eight(["exchanged"]).items():
        sums = 2 if evolver == "CEM" else 1
        assert sums * size < numbers < sums * size + 16 * 10
        assert gathered <= 16  # the fitness


@pytest.mark.program
def test_each_device_holds_a_part_of_a_replay_buffer_and_gathers_no_rows():
    for own, rows, gathered in on_eight(["divided"]).values():
        assert own == rows // 4
        assert gathered < own


@pytest.mark.program
def test_several_devices_compute_what_one_does_of_several_seeds():
    """The two seeds run one after the other; devices work on the environments or the members of one of them."""
    check(["seeds_off_policy", "seeds_evolution_vbn", "seeds_pbt_ppo"])


@pytest.mark.program
def test_recorded_fitness_gives_the_same_parents_on_any_number_of_devices():
    for several, distributed, one in on_eight(["selected"]).values():
        assert several == distributed == one


@pytest.mark.program
@pytest.mark.parametrize("group", range(NUM_GROUPS))
def test_several_devices_compute_what_one_does_of_all_workflows(group):
    check(OTHERS[group::NUM_GROUPS])


def test_exceptions_have_their_reason():
    workflows = {case.name: case.workflow for case in CASES if case.name in EXCEPTIONS}
    for name, why in EXCEPTIONS.items():
        if why == DEALS:
            assert workflows[name].env.fresh_reset
        elif name != "novelty_es":
            assert math.prod(base.parallel_axes(workflows[name]).values()) == 1


@pytest.mark.program
def test_four_devices_compute_what_one_does_of_curricula():
    names = ["four_plr", "four_accel", "four_accel_at_once"]
    found = check(names, devices=4, least=5e-7)  # scores are differences of float32 numbers near 1
    for name in names:
        assert found[name]["state.buffer.score_table.size"][1] >= 4  # half of it, so that there are replays


@pytest.mark.program
def test_four_devices_compute_what_one_does_of_fictitious_self_play_from_fixed_starts_and_of_blocks():
    check(["four_nfsp", "four_blocks"], devices=4)


def test_devices_that_do_not_divide_are_refused_with_the_nearest_number_that_does():
    with pytest.raises(OptionError, match=r"devices=3: does not divide 4 members; (2|4) does"):
        fit(META["pbt_ppo"], budget=Budget(iterations=1), devices=3)
    with pytest.raises(OptionError, match=r"devices=4: must be at most 1, the number of available devices"):
        fit(on_policy(PPO(), batch_size=16), budget=Budget(iterations=1), devices=4)


def pretend_devices(monkeypatch, count, backend="cpu"):
    monkeypatch.setattr(jax, "devices", lambda: [None] * count)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)


LEARNER = on_policy(PPO(), batch_size=16)
SEARCH = evolution(OpenES(16), "none")


def population(size):
    """Return PBT with this many members."""
    return replace(META["pbt_ppo"], population=replace(META["pbt_ppo"].population, size=size))


@pytest.mark.parametrize(
    ("workflow", "seeds", "shape", "told"),
    [
        (LEARNER, 1, (1, 1, 1), None),
        (LEARNER, 8, (8, 1, 1), "8 devices: 8 seeds"),
        (LEARNER, 7, (7, 1, 1), "7 of 8 devices: 7 seeds; 8 seeds would use all 8 devices"),
        (LEARNER, 11, (1, 1, 1), "1 device with all cores: 1 run; 8 seeds would use all 8 devices"),
        (LEARNER, 22, (2, 1, 1), "2 of 8 devices: 2 seeds; 24 seeds would use all 8 devices"),
        (population(12), 1, (1, 6, 1), "6 of 8 devices: 6 members; 16 members would use all 8 devices"),
        (population(10), 1, (1, 5, 1), "5 of 8 devices: 5 members; 8 members would use all 8 devices"),
        (population(16), 2, (2, 4, 1), "8 devices: 2 seeds x 4 members"),
        (population(16), 11, (1, 8, 1), "8 devices: 8 members"),
        (SEARCH, 3, (1, 1, 8), "8 devices: 8 environments"),
        (SEARCH, 4, (1, 1, 8), "8 devices: 8 environments"),
        (SEARCH, 8, (8, 1, 1), "8 devices: 8 seeds"),
    ],
)
def test_most_devices_work_on_seeds_members_and_environments(workflow, seeds, shape, told, monkeypatch):
    pretend_devices(monkeypatch, 8)
    assert choose_mesh_shape(workflow, seeds) == shape
    assert list(describe_mesh(workflow, seeds)) == [told] * (told is not None)


def test_idle_gpus_are_told(monkeypatch):
    pretend_devices(monkeypatch, 8, "gpu")
    assert list(describe_mesh(LEARNER, 1)) == ["1 of 8 devices: 1 run; 8 seeds would use all 8 devices"]
    assert list(describe_mesh(LEARNER, 1, 1)) == []
    assert list(describe_mesh(LEARNER, 1, 2)) == ["2 devices: 2 environments"]
    odd = replace(OFF_POLICY, num_envs=6, capacity=1000)
    whole = "capacity=1000: 3 does not divide it, so each device holds the whole replay buffer; 999 is divided"
    assert list(describe_mesh(odd, 1, 3)) == ["3 devices: 3 environments", whole]
    assert list(describe_mesh(replace(odd, replay=FrameReplay()), 1, 3)) == ["3 devices: 3 environments"]
    pretend_devices(monkeypatch, 1, "gpu")
    assert list(describe_mesh(LEARNER, 7)) == []


@pytest.mark.parametrize("agent", ["map_elites", "cma_me", "novelty", "seeded_es", "pbt"])
def test_every_search_is_distributed_by_default(agent, monkeypatch):
    """The workflow alone says whether it is distributed, wherever its size is written."""
    data = config.to_plain_data(config.compose_config([f"agent={agent}", "env=mountain_car_continuous"]))
    workflow = runs.assemble(data)
    pretend_devices(monkeypatch, 4)
    assert math.prod(choose_mesh_shape(workflow, 1)) == 4


def test_a_sharded_function_gets_no_inputs_without_elements():
    """On such inputs, jaxlib 0.11 crashes when it compiles for several devices."""
    x = jnp.zeros(4), jnp.zeros((4, 0)), jax.random.split(jax.random.key(0), (4, 0))
    flip = lambda x: jax.tree.map(jnp.flip, x)  # noqa: E731
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2, 1, 1), mesh.AXES, (AxisType.Auto,) * 3)):
        flip_on_two = mesh.shard_over_axis(flip, mesh.SEEDS, (True,), True)
        step = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: flip_on_two(x), x))
        text = step.trace(x).lower(lowering_platforms=("cpu",)).as_text()
    assert [len(ins.split(", ")) for ins in re.findall(r"manual_computation\((.*?)\)", text)] == [1]


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


def test_precision_is_that_of_products_without_their_own():
    def product(x):
        return x @ x + jax.numpy.matmul(x, x, precision="default")

    found = []
    for precision in (None, "highest"):
        with devices_of.use_precision(precision):
            found.append(str(jax.make_jaxpr(product)(jax.numpy.ones((2, 2)))).count("HIGHEST, "))
    assert found == [0, 1]


def test_a_training_is_traced_in_its_precision(monkeypatch):
    def fit(*args, **more):
        raise RuntimeError(jax.config.jax_default_matmul_precision)

    monkeypatch.setattr(runs, "fit", fit)
    for option, expected in (("precision=highest", "highest"), ("precision=null", "None")):
        data = config.to_plain_data(config.compose_config(["agent=ppo", "env=fast", option]))
        with pytest.raises(RuntimeError, match=f"^{expected}$"):
            runs.fit_configuration(data, *runs.build(data), [])
