"""Check that nothing but known names and values passes from a saved configuration."""

import importlib

import pytest

from evorl.errors import OptionError, to_printable
from evorl.training.configuration import config, targets, trust_check
from evorl.training.configuration.discovery import find_choices

HOST = {"_target_": "evorl.envs.host.env.HostEnv", "name": "CartPole-v1"}
GAME = {"_target_": "evorl.envs.host.game.HostGame", "name": "mpe2/simple_spread_v3"}
EVOSAX = {"_target_": "hydra.utils.get_class"}


def refused(node, trust=()):
    """Return what is said of a node, without the place that the reader names."""
    with pytest.raises(OptionError) as caught:
        trust_check.require_known({"env": node}, trust, "run=x: its config.yaml")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    return str(caught.value).removeprefix("run=x: its config.yaml ")


HOSTILE = [  # node, and what is said
    ({"_target_": "os.system"}, "names os.system, which is not part of evorl; use trust=[os] if you trust it"),
    ({"_target_": ["os", "system"]}, "names ['os', 'system'], which is not part of evorl"),
    ({"_target_": {"a": 1}}, "which is not part of evorl"),
    ({"_target_": None}, "names None, which is not part of evorl"),
    ({"_target_": "evorl.load"}, "names evorl.load, which is not part of evorl"),
    ({"_target_": "evorl.train.main"}, "names evorl.train.main, which is not part of evorl"),
    ({"_target_": "evorl.training.runs.build"}, "names evorl.training.runs.build, which is not part of evorl"),
    ({"_target_": "evorl.training.configuration.parts.instantiate"}, "which is not part of evorl"),
    ({"_target_": "evorl.training.records.files.write_atomically"}, "which is not part of evorl"),
    ({"_target_": "evorl.envs.host.env.HostEnv.make"}, "which is not part of evorl"),
    ({"_target_": "evorl.envs.host.env.importlib.import_module"}, "which is not part of evorl"),
    ({"_target_": "evorl.population.search.Uniform"}, "which is not part of evorl"),  # by a module that only imports it
    ({"_target_": "evorl"}, "names evorl, which is not part of evorl"),
    ({"_target_": ""}, "which is not part of evorl"),
    ({"_target_": "evorl_evil.Env"}, "trust=[evorl_evil]"),
    ({"_target_": "\x1b]0;x\x07.Env"}, r"names \x1b]0;x\x07.Env"),
    ({"_target_": "hydra.utils.get_method", "path": "os.system"}, "names hydra.utils.get_method"),
    (EVOSAX | {"path": "subprocess.Popen"}, "subprocess.Popen, which is not part of evorl; use trust=[subprocess]"),
    (EVOSAX | {"path": "evosax.algorithms.distribution_based.base.jax"}, "names evosax.algorithms.dis"),
    (EVOSAX | {"path": "evosax.core.fitness_shaping.centered_rank_fitness_shaping_fn"}, "which is not part of evorl"),
    (EVOSAX | {"path": "evorl.envs.host.env.HostEnv"}, "names evorl.envs.host.env.HostEnv, which is not part of evorl"),
    (EVOSAX, "names None, which is not part of evorl"),
    (HOST | {"name": "os:Env-v0"}, "has env.name=os:Env-v0, which is not a plain word; use trust=[os] if you trust it"),
    (HOST | {"name": "evorl.train:main"}, "has env.name=evorl.train:main, which is not a plain word"),
    (GAME | {"name": "evorl.training.runs:load", "options": {"run_dir": "x"}}, "which is not a plain word"),
    (GAME | {"options": {"make": "shutil:rmtree"}}, "has env.options.make=shutil:rmtree, which is not a plain word"),
    (GAME | {"options": {"deep": [{"er": ["a:b"]}]}}, "has env.options.deep[0].er[0]=a:b, which is not a plain word"),
    (HOST | {"name": "../../etc"}, "has env.name=../../etc, which is not a plain word"),
    (HOST | {"name": "/etc/passwd"}, "which is not a plain word"),
    (HOST | {"name": "a//b"}, "which is not a plain word"),
    (HOST | {"options": {"xml_file": "/dev/stdin"}}, "not a plain word; use trust=[gymnasium] if you trust it"),
    (HOST | {"options": {"xml_file": "a/../../b.xml"}}, "which is not a plain word; use trust=[gymnasium]"),
    (HOST | {"options": {"xml_file": "~.xml"}}, "which is not a plain word; use trust=[gymnasium]"),
    (HOST | {"options": {"xml_file": ".hidden"}}, "which is not a plain word; use trust=[gymnasium]"),
    (HOST | {"options": {"xml_file": "C:\\x"}}, "has env.options.xml_file=C:\\x, which is not a plain word"),
    (HOST | {"options": {"name": "http://x/y"}}, "which is not a plain word"),
    (HOST | {"options": {"x": "a" * 101}}, "which is not a plain word"),
    (HOST | {"options": {"x": "a\nb"}}, r"has env.options.x=a\nb, which is not a plain word"),
    (HOST | {"options": {"x": "${oc.env:HOME}"}}, "which is not a plain word"),
    (HOST | {"options": {"x": "\u202eabc"}}, r"has env.options.x=\u202eabc, which is not a plain word"),
    (HOST | {"options": {"x": 10**400}}, "has env.options.x: must be between -2^63 and 2^63"),
    (HOST | {"options": {"x": b"bytes"}}, "must be a number, a word, a list or a mapping"),
    (HOST | {"options": {"x": {1, 2}}}, "must be a number, a word, a list or a mapping"),
    (HOST | {"options": {"a/b": 1}}, "has the name a/b, which is not a plain word"),
    (HOST | {"options": {1: 1}}, "has the name 1, which is not a plain word"),
    (HOST | {"options": {"\x1b[2J": 1}}, r"has the name \x1b[2J, which is not a plain word"),
    ({"_target_": "evorl.envs.arcade.snake.Snake", "image": "/etc/passwd"}, "/etc/passwd, which is not a plain word"),
]  # fmt: skip


@pytest.mark.parametrize(("node", "told"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_not_known_is_refused_in_one_line(node, told):
    deeper = {"_target_": "evorl.envs.wrappers.FrameStack", "inner": [{"a": node}]}
    assert told in refused(node, ("evorl", "evosax"))
    assert told in refused(deeper).replace("inner[0].a.", "")


TRUSTED = [
    ({"_target_": "mine.envs.Rocket", "file": "/data/rocket.xml"}, "mine"),
    (HOST | {"name": "mine.envs:Rocket-v0"}, "mine"),
    (GAME | {"name": "mine:Farm"}, "mine"),
    (HOST | {"options": {"xml_file": "/data/ant.xml"}}, "gymnasium"),
    ({"_target_": "hydra.utils.get_class", "path": "mine.es.Search"}, "mine"),
]


@pytest.mark.parametrize(("node", "package"), TRUSTED)
def test_what_its_reader_trusts_passes_and_nothing_else_does(node, package):
    trust_check.require_known({"env": node}, (package,), "run=x:")
    for other in ("other", package[:-1], f"{package}.envs", ""):
        refused(node, (other,))


SHIPPED = [
    f"env={name}" for name, choice in find_choices("env").items() if not choice.is_suite and "open_spiel" not in name
]
SHIPPED += [f"agent/evolver={name} agent=erl env=fast" for name in find_choices("agent/evolver")]
SHIPPED += [f"agent={name} env=fast" for name in find_choices("agent") if name != "search"]
SHIPPED += [f"agent=search problem={name}" for name in find_choices("problem")]


@pytest.mark.program
@pytest.mark.parametrize("words", SHIPPED)
def test_all_that_is_shipped_passes(words):
    trust_check.require_known(config.to_plain_data(config.compose_config(words.split())), (), words)


def test_all_packages_that_are_needed_are_told_at_once():
    node = [{"_target_": "b.Env"}, HOST | {"name": "a.envs:Rocket"}, {"_target_": "evorl.envs.suites.brax.Brax"}]
    assert refused(node).endswith("names b.Env, which is not part of evorl; use trust=[a, b] if you trust them")
    assert trust_check.find_trust_packages(node) == ["a", "b"]
    assert not trust_check.find_trust_packages(node[2:])


def test_classes_alone_are_exported():
    for name in set(targets.list_public_classes().values()):
        module, _, own = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), own), type), name


def test_ids_of_libraries_pass():
    for name in (
        "ALE/Pong-v5",
        "CartPole-v1",
        "mpe2/simple_spread_v3",
        "XLand-MiniGrid-R1-9x9",
        "dm_control/cheetah-run-v0",
    ):
        trust_check.require_known(HOST | {"name": name}, (), "run=x:")


def test_what_is_exported_is_where_it_is_defined():
    assert {
        "evorl.envs.suites.brax.Brax",
        "evorl.ec.cma_es.CMAES",
        "evorl.priors.Uniform",
    } <= set(targets.list_public_classes().values())
    assert not any("distributed" in name for name in set(targets.list_public_classes().values()))


def test_what_is_printed_moves_no_cursor():
    assert to_printable("a\x1b[2Jb\r\n\u202e\ud800") == r"a\x1b[2Jb\r\n\u202e\ud800"
    assert to_printable("x" * 81) == "x" * 77 + "..."
    assert to_printable(["é", 1]) == "['é', 1]"
