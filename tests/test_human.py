"""Playing by keyboard, at a pseudo-terminal."""

import os
import sys
import termios

import jax
import jax.numpy as jnp
import pytest

from evorl.cli import play
from evorl.envs.arcade import ConnectFour, Pong, Snake, Tetris
from evorl.envs.sanity import Bandit
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.wrappers import FrameStack
from evorl.errors import OptionError
from evorl.training import human

UP = "\x1b[A"


@pytest.fixture
def keyboard(monkeypatch):
    """What is pressed, told by a call; stdin is the terminal."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield lambda text: os.write(ours, text.encode())
    os.close(ours)


def test_keys_are_what_actions_are_called():
    assert human.assign_keys(Pong()) == {UP: 1, "\x1b[B": 2}
    assert human.assign_keys(ConnectFour()) == {str(i): i - 1 for i in range(1, 8)}
    assert human.assign_keys(FrameStack(Tetris())) == {"\x1b[D": 1, "\x1b[C": 2, UP: 3, "\x1b[B": 4, " ": 5, "h": 6}
    assert human.assign_keys(Gymnax("CartPole-v1")) == {"0": 0, "1": 1}


def test_a_snake_is_led_into_the_wall(keyboard, capsys):
    env = Snake(4, 4, 1, 2)
    keyboard("x" + UP * 5)  # x is no key
    earned, steps = human.play_by_keyboard(env, ())
    state, _ = jax.jit(env.reset)(jax.random.fold_in(jax.random.key(0), 0), ())
    assert steps == int(state.head[0]) - 1  # the wall is two cells wide, and up is one row less
    assert earned in (pytest.approx(-1), pytest.approx(-0.9))
    shown = capsys.readouterr().out
    assert "▀" in shown
    assert "keys: ↑ up, ↓ down, ← left, → right, q to stop" in shown
    assert shown.endswith(f"return {earned:.6g} after {steps} steps\n")


def test_an_episode_that_is_truncated_ends(keyboard, capsys, monkeypatch):
    monkeypatch.setattr(human, "STEP_SECONDS", 0.01)
    told = iter([[UP], [UP], [UP], [human.QUIT]])
    monkeypatch.setattr(human, "read_keys", lambda fd, seconds: next(told))
    assert human.play_by_keyboard(Pong(max_episode_steps=2), ())[1] == 2
    assert capsys.readouterr().out.endswith("after 2 steps\n")


def test_a_game_that_goes_on_by_itself_is_stopped(keyboard, capsys, monkeypatch):
    modes = termios.tcgetattr(sys.stdin.fileno())
    monkeypatch.setattr(human, "STEP_SECONDS", 0.01)
    told = iter([[UP], [], [human.QUIT]])
    monkeypatch.setattr(human, "read_keys", lambda fd, seconds: next(told))
    assert human.play_by_keyboard(Pong(), ())[1] == 2
    assert capsys.readouterr().out.endswith("after 2 steps, stopped\n")
    assert termios.tcgetattr(sys.stdin.fileno()) == modes


def test_what_is_not_legal_is_no_move(keyboard):
    keyboard("4444444q")
    earned, steps = human.play_by_keyboard(ConnectFour(), ())
    assert steps <= 6
    assert earned in (0, -1)  # a full column is not played, which would lose


def test_keys_are_read_as_they_come(keyboard):
    with human.open_terminal():
        keyboard(UP + "a" + "\x1bOB")
        assert human.read_keys(sys.stdin.fileno(), 0.5) == [UP, "a", "\x1b[B"]
        assert human.read_keys(sys.stdin.fileno(), 0.0) == []
        keyboard("\x1b[C7")
        assert human.read_keys(sys.stdin.fileno(), None) == ["\x1b[C"]
        assert human.read_keys(sys.stdin.fileno(), None) == ["7"]


@pytest.mark.program
def test_who_cannot_play_is_told_in_a_line(keyboard, monkeypatch, tmp_path, capsys):
    for env, lacks in (
        (Gymnax("Pendulum-v1"), "a discrete action space of at most 24"),
        (Bandit(), "Bandit cannot be rendered"),
    ):
        with pytest.raises(OptionError, match=lacks):
            human.play_by_keyboard(env, ())
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(SystemExit):
            play.main([str(tmp_path), "human=true"])
    assert capsys.readouterr().err == "error: human=true: needs a terminal as standard input\n"


def test_a_picture_is_half_blocks():
    env = ConnectFour()
    state = env.reset(jax.random.key(0), None)[0].replace(low=jnp.array([1, 128], jnp.uint32))
    lines = human.render_as_text(env, state).splitlines()
    assert "▀" in lines[0]
    assert "0;187;187" in lines[-1]  # ours, at the lower left
