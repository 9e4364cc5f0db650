"""The guards of speed and memory: what they read from a program, what they compare, and that they see defects."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from evorl import TD3, OffPolicy
from evorl.replay.ring import RingBuffer

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts" / "trust"
sys.path.append(str(SCRIPTS))

import guard_workloads  # noqa: E402
import guards  # noqa: E402
from hlo import Module, nbytes  # noqa: E402

PROGRAM = """
HloModule jit_run, is_scheduled=true, entry_computation_layout={(f32[64,32]{1,0})->f32[64,32]{1,0}}

%fused_select (p.0: pred[64,32], p.1: f32[64,32]) -> (f32[64,32], f32[2]) {
  %p.0 = pred[64,32]{1,0} parameter(0)
  %p.1 = f32[64,32]{1,0} parameter(1)
  %small = f32[2]{0} constant({1, 2})
  %select.1 = f32[64,32]{1,0} select(%p.0, %p.1, %p.1)
  ROOT %tuple.0 = (f32[64,32]{1,0}, f32[2]{0}) tuple(%select.1, %small)
}

%fused_update (p.2: f32[64,32], p.3: f32[1,32]) -> f32[64,32] {
  %p.2 = f32[64,32]{1,0} parameter(0)
  %p.3 = f32[1,32]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %copy.0 = f32[64,32]{1,0} copy(%p.2)
  ROOT %dus = f32[64,32]{1,0} dynamic-update-slice(%copy.0, %p.3, %zero, %zero)
}

%branch.0 (p.4: bf16[64,64]) -> bf16[64,64] {
  %p.4 = bf16[64,64]{1,0} parameter(0)
  ROOT %copy.1 = bf16[64,64]{0,1} copy(%p.4)
}

%branch.1 (p.5: bf16[64,64]) -> bf16[64,64] {
  ROOT %p.5 = bf16[64,64]{1,0} parameter(0)
}

%inner_body (p.6: (s32[], f32[64,32], pred[64,32], s32[])) -> (s32[], f32[64,32], pred[64,32], s32[]) {
  %p.6 = (s32[], f32[64,32]{1,0}, pred[64,32]{1,0}, /*index=3*/s32[]) parameter(0)
  %copy.2 = f32[64,32]{1,0} copy(%p.6), metadata={op_name="jit(run)/while/body"}
  %copy.3 = s32[] copy(%p.6)
  %fusion.0 = (f32[64,32]{1,0}, f32[2]{0}) fusion(%p.6, %copy.2), kind=kLoop, calls=%fused_select
  %fusion.1 = f32[64,32]{1,0} fusion(%copy.2, %copy.3), kind=kLoop, calls=%fused_update
  ROOT %tuple.1 = (s32[], f32[64,32]{1,0}, pred[64,32]{1,0}, s32[]) tuple(%copy.3, %fusion.1, %p.6, %copy.3)
}

%inner_condition (p.7: (s32[], f32[64,32])) -> pred[] {
  ROOT %true.0 = pred[] constant(true)
}

%outer_body (p.8: (s32[], f32[64,32])) -> (s32[], f32[64,32]) {
  %p.8 = (s32[], f32[64,32]{1,0}) parameter(0)
  %while.0 = (s32[], f32[64,32]{1,0}) while(%p.8), condition=%inner_condition, body=%inner_body, \
backend_config={"known_trip_count":{"n":"4"},"known_init_step":{"init":"0","step":"1"}}
  ROOT %conditional.0 = (s32[], f32[64,32]{1,0}) conditional(%p.8), branch_computations={%branch.0, %branch.1}
}

ENTRY %main (p.9: f32[64,32]) -> f32[64,32] {
  %p.9 = f32[64,32]{1,0} parameter(0)
  %copy.4 = f32[64,32]{1,0} copy(%p.9)
  %all-gather.0 = f32[256,32]{1,0} all-gather(%copy.4), dimensions={0}
  %all-gather-start.0 = (f32[64,32]{1,0}, f32[256,32]{1,0}) all-gather-start(%copy.4), dimensions={0}
  %all-gather-done.0 = f32[256,32]{1,0} all-gather-done(%all-gather-start.0)
  ROOT %while.1 = f32[64,32]{1,0} while(%copy.4), condition=%inner_condition, body=%outer_body
}
"""


def test_a_program_is_read():
    module = Module.parse(PROGRAM)
    assert [len(one) for one in module.computations.values()] == [5, 5, 2, 1, 6, 1, 3, 6]
    assert len(module.instructions) == 29
    assert (module.count("while"), module.dynamic_loops) == (2, 1)
    assert module.count("all-gather") == 2
    assert module.count("copy") == 5


def test_copies_count_inside_loops_where_they_are_large_and_written():
    """8,192 bytes of copy.1, copy.2 and select.1; not copy.0, inside a fusion, nor copy.4, before the loops."""
    module = Module.parse(PROGRAM)
    assert module.loop_copies() == [8192] * 3
    assert sorted(module.loop_copies(at_least=1)) == [4, *[8192] * 3]
    assert module.loop_copies(at_least=8193) == []


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[]", 4),
        ("pred[3]{0}", 3),
        ("bf16[2,8]{1,0}", 32),
        ("(s32[], /*index=1*/f64[5]{0}, u8[7]{0})", 51),
        ("s4[10]{0}", 10),
        ("f32[0,4]{1,0}", 0),
        ("token[]", 0),
    ],
)
def test_bytes_of_shapes(shape, expected):
    assert nbytes(shape) == expected


def test_a_rise_of_six_percent_has_moved_and_one_of_four_has_not():
    old = {"E1": {"operations": 5000, "temp_bytes": 1000}}
    assert guards.moved(old, old) == []
    assert guards.moved(old, {"E1": {"operations": 5200, "temp_bytes": 960}}) == []
    assert guards.moved(old, {"E1": {"operations": 5300, "temp_bytes": 1000}}) == ["E1: operations 5000 -> 5300"]
    assert guards.moved(old, {"E1": {"operations": 5000, "temp_bytes": 940}}) == ["E1: temp_bytes 1000 -> 940"]


def test_small_counts_are_exact_and_ratios_of_clocks_are_not():
    old = {"E1": {"programs": 19, "loop_copies": 0}, "import evorl": {"import_ratio": 2.0}}
    assert guards.moved(old, old | {"import evorl": {"import_ratio": 2.9}}) == []
    small = [{"import evorl": {"import_ratio": ratio}} for ratio in (0.025, 0.07, 0.08)]
    assert guards.moved(small[0], small[1]) == []
    assert guards.moved(small[0], small[2]) == ["import evorl: import_ratio 0.025 -> 0.08"]
    new = {"E1": {"programs": 20, "loop_copies": 1}, "import evorl": {"import_ratio": 3.1}}
    assert guards.moved(old, new) == [
        "E1: loop_copies 0 -> 1",
        "E1: programs 19 -> 20",
        "import evorl: import_ratio 2.0 -> 3.1",
    ]


def test_a_workload_that_came_or_went_has_moved():
    assert guards.moved({"E1": {"programs": 3}}, {"E2": {"programs": 3}}) == [
        "E1: programs 3 -> None",
        "E2: programs None -> 3",
    ]


ROWS = jnp.ones((16, 6))


def add(ring):
    return ring.add(ROWS, jnp.ones(16, bool))


def add_under_vmap(ring):
    """The branch becomes a selection between two buffers."""
    alone = jax.tree.map(lambda x: x[None], ring)
    added = jax.vmap(lambda ring: jax.lax.cond(ring.size > 3, add, lambda ring: ring, ring))(alone)
    return jax.tree.map(lambda x: x[0], added)


def add_until_full(ring):
    return jax.lax.while_loop(lambda ring: ring.size < 8192, add, ring)


def filled(how):
    ring = RingBuffer.empty(guard_workloads.CAPACITY, jnp.ones(6))
    return guards.program_figures(guard_workloads.scanned(lambda ring, key: how(ring), ring))


def test_a_copy_of_a_buffer_in_a_loop_is_seen():
    size = guard_workloads.CAPACITY * 6 * 4
    sound, copying = filled(add), filled(add_under_vmap)
    assert sound["loop_copies"] == 0
    assert sound["temp_bytes"] < size / 10
    assert copying["loop_copies"] > 0
    assert copying["loop_copy_bytes"] >= size
    assert any("loop_copies" in line for line in guards.moved({"": sound}, {"": copying}))


def test_a_loop_without_a_known_trip_count_is_seen():
    assert filled(add)["dynamic_loops"] == 0
    assert filled(add_until_full)["dynamic_loops"] == 1


def test_a_program_that_is_compiled_again_is_seen():
    programs = guards.compilations()
    double = jax.jit(lambda x: 2 * x)
    one, two = jnp.float32(1), jnp.ones(2)
    before = len(programs)
    double(one)
    double(one)
    assert len(programs) == before + 1
    double(two)
    assert len(programs) == before + 2


class Copying(OffPolicy):
    """It adds 1 to its replay every other step, in a branch under vmap."""

    def learn_from(self, state, carry, played, key):
        state, metrics = super().learn_from(state, carry, played, key)
        even = jax.random.bits(key) % 2 == 0
        change = partial(jax.tree.map, lambda x: x + jnp.ones((), x.dtype))
        branch = jax.vmap(lambda even, replay: jax.lax.cond(even, change, lambda x: x, replay))
        copied = branch(even[None], jax.tree.map(lambda x: x[None], state.replay))
        return state.replace(replay=jax.tree.map(lambda x: x[0], copied)), metrics


@pytest.mark.program
def test_a_workflow_that_copies_its_replay_is_seen():
    sound = guard_workloads.off_policy(TD3)
    copying = Copying(**{field.name: getattr(sound, field.name) for field in fields(sound) if field.init})
    figures = [guards.program_figures(guard_workloads.trained(workflow)) for workflow in (sound, copying)]
    replay = guard_workloads.CAPACITY * 6 * 4  # the buffer itself
    assert figures[1]["loop_copy_bytes"] >= figures[0]["loop_copy_bytes"] + replay
    assert any("loop_copies" in line for line in guards.moved(*({"E8": found} for found in figures)))


def check(*names):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, SCRIPTS / "guards.py", "--check", *names]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.program
def test_no_figure_moved():
    found = check()
    assert found.returncode == 0, found.stdout + found.stderr
    assert "no figure moved" in found.stdout or "not compared" in found.stdout


def test_a_table_of_another_jax_is_not_compared(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(guards, "RECORDED", tmp_path / "guards.json")
    guards.RECORDED.write_text(json.dumps({"jax": "0.0.1", "workloads": {}}))
    assert guards.check([]) == 0
    assert "is of jax 0.0.1" in capsys.readouterr().out


def test_a_figure_that_moved_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(guards, "RECORDED", tmp_path / "guards.json")
    guards.write({"E1": {"operations": 100}, "E2": {"operations": 50}})
    monkeypatch.setattr(guards, "measured", lambda names: {"E1": {"operations": 106}})
    assert guards.check(["E1"]) == 1
    assert capsys.readouterr().out == "E1: operations 100 -> 106\n"
