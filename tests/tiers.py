"""Two tiers of tests, which follow from what a test does.

A unit test checks equations and parts: eagerly, in small jits or by `jax.eval_shape`. What it compiles costs at most
`COMPILE_SECONDS`, estimated from its size and not from a clock, so that every machine says the same. It compiles no
workflow's step and starts no process; a unit test that does fails, and is told so. Every other test has the marker
`program`, or takes a fixture defined by `program_fixture`, which marks it.

A program test that stands for a workflow family has the marker `smoke` too and runs with the unit tests. The rest of
the program tier runs by shards: `pytest -m program --shard 2/6`.
"""

import importlib
import pkgutil
import re
import sys
from dataclasses import dataclass, field
from functools import wraps

import jax
import pytest
from jax._src import compiler
from jax._src.core import trace_state_clean
from jaxlib.mlir.ir import WalkResult

import evorl.workflows
from tests.shards import shard_of

COMPILE_SECONDS = 2.0
SECONDS_OF_A_PROGRAM, SECONDS_OF_AN_OPERATION = 0.01, 0.00035  # least squares over 5,700 programs of unit tests
COMPILED = "/jax/core/compile/backend_compile_duration"
TRACED = "/jax/core/compile/jaxpr_trace_duration"
_program_fixtures: set[tuple[str, str]] = set()


def program_fixture(function=None, **options):
    """Define a fixture that marks the tests that take it as program tests; options are those of pytest.fixture."""

    def define(function):
        _program_fixtures.add((function.__module__, function.__name__))
        return pytest.fixture(**options)(function)

    return define if function is None else define(function)


@dataclass
class Spent:
    """Count what the current test compiles and starts."""

    programs: int = 0
    operations: int = 0
    stepped: bool = False  # a workflow's step was called while the trace that is open now was made
    traced_steps: set[str] = field(default_factory=set)  # names of traced functions that hold a workflow's step
    reasons: set[str] = field(default_factory=set)

    def reason(self):
        """Return why this is no unit test, or an empty string."""
        seconds = SECONDS_OF_A_PROGRAM * self.programs + SECONDS_OF_AN_OPERATION * self.operations
        size = f"compiles {self.programs} programs of {self.operations:,} operations, about {seconds:.1f} s"
        slow = {f"{size} where {COMPILE_SECONDS:g} s are allowed"} if seconds > COMPILE_SECONDS else set()
        return " and ".join(sorted(self.reasons | slow))

    def count(self, module):
        """Count a program, read from the cache or not, by the operations of its MLIR module."""

        def visit(operation):
            del operation
            self.operations += 1
            return WalkResult.ADVANCE

        self.programs += 1
        module.operation.walk(visit)


_now = Spent()


def pytest_configure(config):
    """Wrap every workflow's `step` and `learn_from`, so that tracing one is noticed, and jax's compiler."""
    del config
    compile_or_get_cached = compiler.compile_or_get_cached

    @wraps(compile_or_get_cached)
    def counted(backend, module, *args, **kwargs):
        _now.count(module)
        return compile_or_get_cached(backend, module, *args, **kwargs)

    compiler.compile_or_get_cached = counted

    def note(step):
        @wraps(step)
        def noted(*args, **kwargs):
            _now.stepped |= not trace_state_clean()
            return step(*args, **kwargs)

        return noted

    for module in pkgutil.iter_modules(evorl.workflows.__path__, "evorl.workflows."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and one.__module__ == module.name:
                for name in {"step", "learn_from"} & vars(one).keys():
                    setattr(one, name, note(vars(one)[name]))


def _on_event(event, seconds, fun_name="", **_):
    del seconds
    if event == TRACED and _now.stepped:
        _now.traced_steps.add(fun_name)
        _now.stepped = not trace_state_clean()
    elif event == COMPILED and re.sub(r"^jit[_(]|\)$", "", fun_name) in _now.traced_steps:
        _now.reasons.add("compiles a workflow's step")


def _on_audit(event, arguments):
    if event == "subprocess.Popen" and not _is_importing(sys._getframe()):
        _now.reasons.add("starts a process")


def _is_importing(frame):
    """Return whether a frame is inside an import, where libraries run commands to look for others."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


jax.monitoring.register_event_duration_secs_listener(_on_event)
sys.addaudithook(_on_audit)


def pytest_addoption(parser):
    parser.addoption("--shard", metavar="I/N", help="run the test files of shard I of N alone")


def pytest_collection_modifyitems(config, items):
    for item in items:
        modules = (item.module.__name__, "tests.conftest")
        if any((module, name) in _program_fixtures for module in modules for name in item.fixturenames):
            item.add_marker("program")
        if item.get_closest_marker("smoke"):
            item.add_marker("program")
    if shard := config.getoption("shard"):
        number, count = map(int, shard.split("/"))
        left_out = [item for item in items if shard_of(item.path, count) != number]
        items[:] = [item for item in items if shard_of(item.path, count) == number]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    _now.__init__()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and report.passed and not item.get_closest_marker("program") and (why := _now.reason()):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} is a unit test, but {why}: mark it with pytest.mark.program"
    return report
