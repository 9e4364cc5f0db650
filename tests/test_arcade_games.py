"""Pong for two and several snakes, beside their rules in plain Python."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from evorl.envs import check_env, render
from evorl.envs.arcade.pong import Pong
from evorl.envs.games import PongDuel, Snakes
from evorl.envs.games.pong import mirror_state
from evorl.errors import OptionError
from evorl.spaces import groups

KEY = jax.random.key(0)
STEPS = 1500


def rally(state, moves):
    """A frame of Pong for two as its rules say it: the state after it, who hit the ball, and who has scored."""
    s = {name: np.array(x, np.float64) for name, x in vars(state).items()}
    s["paddles"] = np.clip(s["paddles"] + 8 * np.array(moves), -35, 605)
    s["x"], s["y"] = s["x"] + s["vx"], s["y"] + s["vy"]
    hits, points = [0, 0], [0, 0]
    if s["y"] < 0 or s["y"] + 32 > 640:
        s["vy"] = -s["vy"]
    for side, there in ((0, s["x"] < 0), (1, s["x"] + 32 > 500)):
        if not there:
            continue
        if s["y"] + 32 > s["paddles"][side] and s["y"] < s["paddles"][side] + 70:
            hits[side] = 1
            s["vx"], s["vy"] = -s["vx"], np.clip(s["vy"] + 3 * moves[side], -13, 13)
            s["vy"] = 3.0 if abs(s["vy"]) < 0.01 else s["vy"]
        else:
            points[1 - side] = 1
        s["x"], s["y"] = np.clip(s["x"], 0, 468), np.clip(s["y"], 0, 608)
    s["scores"] = s["scores"] + points
    return replace(state, **s), hits, points


@pytest.mark.program
def test_pong_for_two_is_by_its_rules():
    env, rng = PongDuel(frameskip=1, hit=0.25, max_episode_steps=10 * STEPS), np.random.default_rng(0)
    follow = np.where(rng.random((STEPS, 2, 1)) < 0.8, 3, rng.integers(0, 3, (STEPS, 2, 1)))  # 3: as the ball is
    chances = np.stack([rng.integers(-1, 2, STEPS), rng.integers(0, 2, STEPS)], 1)

    def step(state, row):
        how, chance = row
        higher = jnp.sign(state.y - state.paddles - 19)[:, None]
        chosen = jnp.where(how < 3, how, jnp.where(higher > 0, 1, jnp.where(higher < 0, 2, 0))).astype(jnp.int32)
        after, timestep = env.advance(state, {"left": chosen[0], "right": chosen[1]}, chance)
        return after, (state, chosen[:, 0], after, timestep)

    start = env.reset(KEY, None)[0]
    play = jax.jit(lambda: jax.lax.scan(step, start, (jnp.asarray(follow), jnp.asarray(chances)))[1])
    before, chosen, after, timesteps = jax.device_get(play())
    both = {"hits": np.zeros(2, int), "points": np.zeros(2, int)}
    for i in range(STEPS):
        state = jax.tree.map(lambda x, i=i: x[i], before)
        moves = [{0: 0, 1: 1, 2: -1}[int(x)] for x in chosen[i]]
        wanted, hits, points = rally(state, moves)
        both["hits"] += hits
        both["points"] += points
        reward = np.array(points) - points[::-1] + 0.25 * np.array(hits)
        assert [float(timesteps.reward[name][i, 0]) for name in ("left", "right")] == reward.tolist()
        if sum(points):  # served anew to the side that was drawn
            down, right = chances[i]
            wanted = replace(wanted, x=100 if right else 368, y=304, vx=10 if right else -10, vy=down)
            wanted = replace(wanted, paddles=np.full(2, 285.0))
        for name, x in vars(replace(wanted, steps=i + 1)).items():
            np.testing.assert_allclose(getattr(after, name)[i], x, atol=1e-3, err_msg=f"{name} at {i}")
    assert (both["hits"] > 5).all()
    assert (both["points"] > 0).all()


def test_both_sides_of_pong_are_alike_and_see_what_the_one_of_pong_sees():
    env = PongDuel()
    state = replace(
        env.reset(KEY, None)[0], paddles=jnp.array([10.0, 400.0]), y=jnp.float32(77), scores=jnp.array([3, 9])
    )
    chance, up, down = jnp.array([1, 1]), jnp.array([1]), jnp.array([2])
    after, one = env.advance(state, {"left": up, "right": down}, chance)
    _, other = env.advance(mirror_state(state), {"left": down, "right": up}, chance)
    np.testing.assert_allclose(one.obs["left"], other.obs["right"], atol=1e-6)
    np.testing.assert_allclose(one.obs["right"], other.obs["left"], atol=1e-6)
    np.testing.assert_array_equal(one.obs["right"][0], Pong().observe(after))
    together = PongDuel(together=True)
    assert {name: of.n for name, of in groups(together.action_space).items()} == {"player": 2}
    same = together.advance(state, {"player": jnp.concatenate([up, down])}, chance)[1]
    np.testing.assert_array_equal(same.obs["player"], np.concatenate([one.obs["left"], one.obs["right"]]))
    last = replace(state, x=jnp.float32(-5), y=jnp.float32(300), vx=jnp.float32(-10), scores=jnp.array([3, 20]))
    over = env.advance(last, {"left": down, "right": up}, chance)[1]
    assert (bool(over.terminated), over.reward["left"].tolist(), over.reward["right"].tolist()) == (True, [-1], [1])


class Field:
    """Several snakes as lists of cells, head first."""

    def __init__(self, env, state):
        self.env, self.edge = env, env.vision
        self.bodies = [[tuple(head)] for head in np.asarray(state.heads).tolist()]
        self.food = set(map(tuple, np.argwhere(state.food).tolist()))
        self.grows = [0] * env.num_snakes
        self.missing = 0

    def step(self, actions, chance):
        moves, env = [(-1, 0), (1, 0), (0, -1), (0, 1)], self.env
        inside = {(r, c) for r in range(env.height) for c in range(env.width)}
        occupied = {cell for body in self.bodies for cell in body}
        heads = []
        for body, action in zip(self.bodies, actions, strict=True):
            move = moves[action]
            if len(body) > 1 and (body[0][0] + move[0], body[0][1] + move[1]) == body[1]:
                move = (-move[0], -move[1])
            heads.append((body[0][0] + move[0], body[0][1] + move[1]) if body else None)
        rewards = [0.0] * len(heads)
        died = [h is not None and (h not in inside or h in occupied or heads.count(h) > 1) for h in heads]
        for i, head in enumerate(heads):
            if head is None:
                continue
            if died[i]:
                self.bodies[i], rewards[i] = [], -1.0
            elif head in self.food:
                self.food.remove(head)
                self.bodies[i].insert(0, head)
                self.missing += 1
                rewards[i] = 0.1
            else:
                self.bodies[i] = [head, *self.bodies[i][:-1]]
        free = sorted(inside - self.food - {cell for body in self.bodies for cell in body})
        if self.missing and free:
            self.food.add(free[min(int(np.float32(chance) * np.float32(len(free))), len(free) - 1)])
            self.missing -= 1
        return rewards

    def seen(self, i):
        side = 2 * self.edge + 1
        found = np.zeros((side, side, 4), np.uint8)
        if not self.bodies[i]:
            return found
        head = self.bodies[i][0]
        others = {cell for j, body in enumerate(self.bodies) if j != i for cell in body}
        for r in range(side):
            for c in range(side):
                cell = head[0] + r - self.edge, head[1] + c - self.edge
                wall = not (0 <= cell[0] < self.env.height and 0 <= cell[1] < self.env.width)
                found[r, c] = cell in self.food, wall, cell in self.bodies[i], cell in others
        return found


def test_snakes_are_by_their_rules():
    env, steps = Snakes(3, 5, 6, 6, 2, max_episode_steps=30), 30

    def episode(key):
        def step(state, key):
            key_action, key_chance = jax.random.split(key)
            action, chance = jax.random.randint(key_action, (3,), 0, 4), env.chance(key_chance)
            after, timestep = env.advance(state, {"snake": action}, chance)
            return after, (action, chance, timestep)

        start = env.reset(key, None)[0]
        return start, jax.lax.scan(step, start, jax.random.split(key, steps))[1]

    starts, (actions, chances, timesteps) = jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(KEY, 40)))
    eaten = died = 0
    for i in range(40):
        field = Field(env, jax.tree.map(lambda x, i=i: x[i], starts))
        assert len(field.food) == 6
        for t in range(steps):
            rewards = field.step(actions[i, t], chances[i, t])
            np.testing.assert_allclose(timesteps.reward["snake"][i, t], rewards, atol=1e-6)
            for j in range(3):
                np.testing.assert_array_equal(timesteps.obs["snake"]["obs"][i, t, j], field.seen(j))
            alive = [bool(body) for body in field.bodies]
            assert timesteps.obs["snake"]["legal"][i, t].sum(-1).tolist() == [4 if one else 1 for one in alive]
            assert bool(timesteps.terminated[i, t]) == (not any(alive))
            assert bool(timesteps.truncated[i, t]) == (any(alive) and t == steps - 1)
            eaten += rewards.count(0.1)
            died += rewards.count(-1.0)
            if not any(alive):
                break
    assert min(eaten, died) > 40


def test_who_meets_or_changes_places_dies():
    env = Snakes(2, 4, 6, 2, 2)
    state, advance = env.reset(KEY, None)[0], jax.jit(env.advance)

    def placed(*cells):
        heads = jnp.array(cells)
        bodies = jnp.stack([jnp.zeros((4, 6), jnp.int16).at[r, c].set(1) for r, c in np.asarray(heads)])
        return replace(state, heads=heads, bodies=bodies, food=jnp.zeros((4, 6), bool))

    for cells, moves, dead in (
        (((1, 1), (1, 3)), (3, 2), True),  # one cell between them
        (((1, 1), (1, 2)), (3, 2), True),  # side by side
        (((1, 1), (1, 2)), (2, 3), False),
        (((1, 1), (1, 2)), (3, 3), None),  # into the other's tail, which is there until it has left
    ):
        after, timestep = advance(placed(*cells), {"snake": jnp.array(moves)}, jnp.float32(0))
        wanted = [True, False] if dead is None else [dead, dead]
        assert (~after.alive).tolist() == wanted
        assert bool(timestep.terminated) == bool(dead)


@pytest.mark.program
@pytest.mark.parametrize(
    "env",
    [Snakes(2, 5, 5, 2, 2, max_episode_steps=20), PongDuel(max_episode_steps=20)],
    ids=lambda env: type(env).__name__,
)
def test_a_game_meets_the_protocol_and_is_drawn(env, tmp_path):
    check_env(env, episodes=2)
    state = env.reset(KEY, None)[0]
    gif, png, *_ = render.save_episode(env, [state, state], tmp_path)
    assert (gif.suffix, png.suffix) == (".gif", ".png")
    with Image.open(png) as picture:
        assert picture.height >= 480
        assert len(picture.getcolors()) > 2


def test_wrong_options_are_refused():
    for make, said in (
        (lambda: Snakes(num_snakes=0), "num_snakes=0: must be at least 1"),
        (lambda: Snakes(2, 2, 2, 2), "food=2: must be from 1 to 1, to leave a free cell"),
        (lambda: PongDuel(frameskip=0), "frameskip=0: must be at least 1"),
    ):
        with pytest.raises(OptionError, match=said):
            make()
