"""Every workflow keeps the contract: one test and one program for each case."""

import dataclasses
import importlib
import inspect

import pytest
from typing_extensions import get_protocol_members

from evorl import lazy
from evorl.types import Agent, Evolver, Workflow
from tests import contract
from tests.contract_cases import CASES, EVOLVERS, SINGLE, TWINNED, TWINS

SMOKE = {  # one case of each workflow family, which the quick command runs
    *("ppo", "off_policy", "evolution_vbn", "search", "cem_rl", "erl", "pbt_ppo", "pbt_cso_ppo", "meta_es_ppo"),
    *("map_elites", "plr", "paired", "mappo", "psro_exact"),
}


RECORDED = {"ppo", "off_policy", "cem_rl", "evolution_running", "pbt_ppo"}  # so that no change of numbers goes unseen
KIN = {"cem_rl_sac", "erl_sac_openes", "a2c", "puffer", "discrete_sac"}  # whose types differ little from another's


def each(cases, mark, names):
    marked = [pytest.param(case, id=case.name, marks=mark if case.name in names else ()) for case in cases]
    return pytest.mark.parametrize("case", marked)


@each(CASES, pytest.mark.program, KIN | {case.name for case in CASES if case not in [*SINGLE, *EVOLVERS]})
def test_types(case):
    contract.check_types(case)


@pytest.mark.program
@each([case for case in CASES if case not in TWINS], pytest.mark.smoke, SMOKE)
def test_contract(case):
    computed = contract.check_runs(case)
    if case.name in RECORDED:
        contract.check_recorded(case.name, computed)
    if case in SINGLE:
        contract.check_numbers(case)
    else:
        contract.check_other_numbers(case)


@pytest.mark.program
@pytest.mark.parametrize(("case", "twin"), list(zip(TWINNED, TWINS, strict=True)), ids=[case.name for case in TWINNED])
def test_copies(case, twin):
    contract.check_runs(twin)
    contract.check_other_numbers(twin)
    contract.check_copies(case, twin)


def test_every_workflow_agent_and_evolver_of_evorl_has_a_case():
    """They are found by what the package gives, so that none is left out."""

    def parts(x):
        if dataclasses.is_dataclass(x):
            yield type(x)
            for field in dataclasses.fields(x):
                yield from parts(getattr(x, field.name))

    packages = [importlib.import_module(name) for name in lazy.list_packages()]
    given = {value for one in packages for name in one.__all__ if isinstance(value := getattr(one, name), type)}
    protocols = [get_protocol_members(protocol) for protocol in (Workflow, Agent)]
    concrete = [each for each in given if not inspect.isabstract(each)]
    wanted = {each for each in concrete if any(all(hasattr(each, name) for name in one) for one in protocols)}
    wanted |= {each for each in concrete if issubclass(each, Evolver)}
    assert len(wanted) >= 25
    assert wanted - {each for case in CASES for each in parts(case.workflow)} == set()
