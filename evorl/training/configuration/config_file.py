"""The configuration file of a run directory: it contains all resolved values, and is read as data only.

Reading it cannot run code.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from evorl import package
from evorl.errors import OptionError, require
from evorl.training import devices
from evorl.training.configuration import parts, trust_check
from evorl.training.configuration.nodes import BUILD_SECTIONS, iterate_leaves
from evorl.training.records import files

FILE_NAME = "config.yaml"
SCHEMA = 4  # version of the file format; raised when it changes
BYTES, DEPTH, SCALAR = files.MB, 40, 4096  # limits: file size, nesting, characters of a value
WORKFLOW_PREFIX = "agent.workflow."  # prefix of the options of the workflow
WANDB_OFF = {"enabled": None, "project": None, "entity": None, "group": None, "tags": [], "mode": None}
READER_OPTIONS = {"wandb": WANDB_OFF, "distributed": "auto"}  # the reader decides whether data leave the machine
_READER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader, if available


class _Writer(yaml.SafeDumper):
    """YAML writer without aliases: it writes repeated values in full."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


NAMED_BY_PATH = ("init_from", "preload")  # only the file name of these options is saved


def write_config(data: Mapping[str, Any], run_dir: Path) -> None:
    """Write config.yaml with the versions of the packages, and without paths of this machine.

    An option of a component that is "auto" is written with its value on this machine, so that a run that is
    resumed on another one has the same environment.
    """
    data = parts.resolve_auto(dict(data))
    names = {name: data[name] and Path(data[name]).resolve().name for name in NAMED_BY_PATH}
    versions = package.versions() | {"devices": devices.describe_devices()}
    data = {
        "schema": SCHEMA,
        "versions": versions,
        **data,
        "resume": None,
        "run_dir": None,
        **names,
        "trust": [],
    }
    files.write_atomically(run_dir / FILE_NAME, yaml.dump(data, Dumper=_Writer, sort_keys=False, allow_unicode=True))


@contextmanager
def write_with_rollback(data: Mapping[str, Any], run_dir: Path, has_begun: Callable[[], bool]) -> Iterator[None]:
    """Write config.yaml; if an error occurs before training has begun, restore the previous content."""
    before = files.read_text(run_dir / FILE_NAME) if (run_dir / FILE_NAME).exists() else None
    write_config(data, run_dir)
    try:
        yield
    except BaseException:
        if before is not None and not has_begun():
            files.write_atomically(run_dir / FILE_NAME, before)
        raise


def read_config(run_dir: Path, option: str, trust: Sequence[str] = ()) -> dict[str, Any]:
    """Read the configuration of a run as data, and check that all its values are known to be safe.

    It may name public components of evorl, algorithms of evosax, and classes of trusted packages. Before
    anything else in the folder is read, `files.require_regular_files` checks all of its entries.

    Args:
        run_dir: Run directory.
        option: Option that names the run directory in error messages.
        trust: Packages whose classes the configuration may name.

    Raises:
        OptionError: There is no configuration that can be read and built.
    """
    data = read_unchecked(run_dir, option)
    words = {name: value for name, value in data.items() if name not in NAMED_BY_PATH}
    trust_check.require_known(words, trust, f"{option}={run_dir}: its {FILE_NAME}")
    return data


def read_unchecked(run_dir: Path, option: str) -> dict[str, Any]:
    """Read the configuration of a run for comparison and printing only.

    Nothing may be instantiated from it; use `read_config` for that.

    Raises:
        OptionError: There is no readable configuration.
    """
    if not (run_dir / FILE_NAME).is_file():
        what = f"has no {FILE_NAME}" if run_dir.is_dir() else "is a file" if run_dir.is_file() else "does not exist"
        raise OptionError(f"{option}={run_dir}: is not a run directory, it {what}")
    files.require_regular_files(run_dir, option)
    problem = f"{option}={run_dir}: its {FILE_NAME}"
    try:
        data = _parse_yaml(files.read_text(run_dir / FILE_NAME, BYTES))
    except OSError as error:
        raise OptionError(f"{problem} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise OptionError(f"{problem} cannot be read: it is not in the format of evorl") from error
    if isinstance(data, dict) and {"agent", "seed"} <= set(data) and data.get("schema") != SCHEMA:
        number, by = data.get("schema", 0), str(lookup(data, "versions.evorl", ""))
        found = f"has schema {number:.6g}" if isinstance(number, int) else "has a schema that is not a number"
        opens = f"evorl {by}" if re.fullmatch(r"[\w.+-]{1,20}", by, re.ASCII) else "the version of evorl that wrote it"
        raise OptionError(f"{problem} {found}, must be {SCHEMA}; open it with {opens}")
    if not isinstance(data, dict) or not is_training_config(data):
        raise OptionError(f"{problem} is not a training configuration")
    for name in NAMED_BY_PATH:
        of = data.get(name)
        if of is not None and not (isinstance(of, str) and len(of) < 256 and "/" not in of):
            raise OptionError(f"{problem} has {'an' if name[0] in 'aeiou' else 'a'} {name} that is not a valid name")
    return {name: value for name, value in data.items() if name not in ("schema", "versions")} | READER_OPTIONS


def _parse_yaml(text: str) -> Any:
    """Parse YAML of numbers, strings, lists and mappings; raise YAMLError if it contains anything else."""
    depth = 0
    for event in yaml.parse(text, Loader=_READER):
        begins = isinstance(event, yaml.CollectionStartEvent)
        depth += begins - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) or getattr(event, "anchor", None):
            raise yaml.YAMLError("an alias or a tag")
        if depth > DEPTH or (isinstance(event, yaml.ScalarEvent) and len(event.value) > SCALAR):
            raise yaml.YAMLError("too deep or too long")
    return yaml.load(text, Loader=_READER)


def is_training_config(data: Mapping[str, Any]) -> bool:
    """Return whether data have the structure of a training; other values are checked when they are used."""
    agent, wrappers = data.get("agent"), data.get("wrappers") or []
    played = [data.get(name) for name in ("env", "problem", "eval_env") if data.get(name) is not None]
    seed, num_seeds = (1 if data.get(name) == trust_check.MISSING else data.get(name) for name in ("seed", "num_seeds"))
    return (
        isinstance(agent, dict)
        and isinstance(agent.get("name"), str)
        and isinstance(agent.get("workflow"), dict)
        and any(data.get(name) is not None for name in ("env", "problem"))
        and isinstance(wrappers, list)
        and all(isinstance(one, dict) and "_target_" in one for one in (*played, *wrappers))
        and type(seed) is int
        and type(num_seeds) is int
        and num_seeds > 0
        and isinstance(data.get("suite"), (str, type(None)))
        and isinstance(changes := data.get("number_changes", {}), dict)
        and all(isinstance(one, dict) for one in changes.values())
    )


def set_values(data: dict[str, Any], values: Mapping[str, Any], changeable: Sequence[str] = ()) -> dict[str, Any]:
    """Return the data with values set by dotted name.

    Raises:
        OptionError: An old value is neither missing (???) nor changeable.
    """
    for name, value in values.items():
        is_changeable = name.partition(".")[0] in changeable
        if not is_changeable and lookup(data, name, None) != "???":
            kept = f"a resumed run keeps its configuration; only {', '.join(changeable)} may change"
            raise OptionError(f"{name}={value}: {kept if changeable else 'only missing values can be given'}")
        lookup(data, name)
        data = _set_path(data, name.split("."), value)
    return data


def parse_trust(packages: Any) -> tuple[str, ...]:
    """Return the packages whose classes a saved configuration may name, from the value of an option."""
    names = [packages] if isinstance(packages, str) else packages
    right = isinstance(names, (list, tuple)) and all(isinstance(name, str) and name for name in names)
    require(right, "trust", packages, "must be a list of packages")
    return tuple(names)


def find_missing(data: Mapping[str, Any]) -> list[str]:
    """Return the dotted names of values that were not saved but are needed to build the run."""
    return [place for place, value in iterate_leaves(data, "") if value == "???" and place.startswith(BUILD_SECTIONS)]


def lookup(data: Any, name: str, *default: Any) -> Any:
    """Return the value of a dotted name, or the default; raise OptionError if there is neither."""
    node = data
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            if default:
                return default[0]
            raise OptionError(f"{name}: does not exist")
        node = node[part]
    return node


def _set_path(data: dict[str, Any], name: Sequence[str], value: Any) -> dict[str, Any]:
    return data | {name[0]: _set_path(data[name[0]], name[1:], value) if name[1:] else value}
