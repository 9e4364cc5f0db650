"""Folders that someone else made: what each payload does to a good one, and the command that then opens it.

Nothing here imports evorl, so that `scripts/trust/attacks.py` can try them on any version of it.
"""

import io
import json
import os
import pickle
import shutil
import sqlite3
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

TOUCH = {"_target_": "os.system", "command": "touch pwned"}
GAME = {"_target_": "evorl.envs.host.game.HostGame"}
HOST = {"_target_": "evorl.envs.host.env.HostEnv", "name": "CartPole-v1"}
SPARSE = 6 * 10**9  # bytes
RESUME = "train resume=run iterations=2"
SCHEDULES = "evorl.schedules."
INIT = "train init_from=run run_dir=child iterations=1 agent=td3 env=fast"
PLAY, LOAD = "play run episodes=1 out=null", "load run"
CURVE, LINEAGE, LEAGUE = "curve out.png run", "lineage run", "league run random --episodes 2"
PAGE, SWEEP_PAGE = "report run out=page.html", "report sweep out=page.html"
DISTRIBUTE = "distribute resume=run executor=serial"
SWEEP, REPORT = "sweep resume=sweep trials=1", "sweep report sweep"
EXPERIMENT = "sweep report sweep experiment=found && train experiment=found iterations=1 dry_run=true"


@dataclass(frozen=True)
class Payload:
    """A change of a folder with a good run/ and sweep/, and the command that opens it."""

    name: str
    command: str
    prepare: Callable[[Path], None]
    shown: bool = False  # what is whole is shown besides

    @property
    def draws(self) -> bool:
        """Return whether the command draws pictures into the sweep's folder, as it should."""
        return self.command == REPORT or self.command == EXPERIMENT


def config(**changes):
    """Change a run's configuration, by dotted name."""

    def prepare(folder):
        path = folder / "run" / "config.yaml"
        data = yaml.safe_load(path.read_text())
        for name, value in changes.items():
            *outer, last = name.split("__")
            node = data
            for part in outer:
                node = node[part]
            node[last] = value
        path.write_text(yaml.safe_dump(data, allow_unicode=True))

    return prepare


def text(name, content, size=None):
    """Write a file of the folder; a sparse one of so many bytes."""

    def prepare(folder):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if size:
            os.truncate(path, size)

    return prepare


def special(name, kind, target="victim"):
    """Put a link or a pipe in the place of what is there."""

    def prepare(folder):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(folder / target)
        else:
            path.hardlink_to(folder / target)

    return prepare


def progress(**changes):
    """Change what a checkpoint keeps beside the state, with the checksum that belongs to it."""

    def prepare(folder):
        (path,) = (folder / "run" / "checkpoints").glob("*/progress/metadata")
        data = json.loads(path.read_text()) | changes
        data.pop("digest")
        data["digest"] = zlib.crc32(json.dumps(data, sort_keys=True).encode())
        path.write_text(json.dumps(data))

    return prepare


def checkpoint(name, content=b"", size=None):
    """Change a file of the checkpoint."""

    def prepare(folder):
        (step,) = (folder / "run" / "checkpoints").iterdir()
        text(step.relative_to(folder) / name, content, size)(folder)

    return prepare


def leaves(name):
    """Give a leaf of the checkpoint another name."""

    def prepare(folder):
        for path in (folder / "run" / "checkpoints").glob("*/*/_METADATA"):
            data = json.loads(path.read_text())
            one = next(one for one in data["tree_metadata"].values() if len(one["key_metadata"]) > 1)
            one["key_metadata"][0]["key"] = name
            path.write_text(json.dumps(data))

    return prepare


def row(*changes, also=b""):
    """Write two good rows of evaluations, and those that are bad in the middle."""

    def prepare(folder):
        good = {"kind": "evaluation", "iteration": 1, "seconds": 1.0, "env_steps": 10, "return": 1.0}
        lines = [json.dumps(good).encode(), *(json.dumps(good | change).encode() for change in changes)]
        lines += [also, json.dumps(good).encode()]
        (folder / "run" / "metrics.jsonl").write_bytes(b"".join(line + b"\n" for line in lines if line))

    return prepare


def members(**changes):
    """Write rows of a population, the last of which is bad."""

    def prepare(folder):
        good = {"fitness": [[[1.0, 2.0]]], "source": [[[0, 1]]]}
        rows = [{"kind": "train", "iteration": 1, "seconds": 1.0, "members": good | change} for change in ({}, changes)]
        (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return prepare


def sql(*statements):
    """Run statements on the store of a sweep."""

    def prepare(folder):
        with sqlite3.connect(folder / "sweep" / "sweep.sqlite", isolation_level=None) as file:
            for statement in statements:
                file.execute(statement.replace("FOLDER", str(folder)))
        file.close()

    return prepare


def definition(change):
    """Change the definition that a sweep keeps."""

    def prepare(folder):
        with sqlite3.connect(folder / "sweep" / "sweep.sqlite", isolation_level=None) as file:
            ((found,),) = file.execute("SELECT value FROM sweep WHERE name = 'definition'").fetchall()
            data = json.loads(found)
            change(data)
            file.execute("UPDATE sweep SET value = ? WHERE name = 'definition'", (json.dumps(data),))
        file.close()

    return prepare


def searched(**changes):
    """Change the first parameter that a sweep searches."""
    return definition(lambda data: data["space"][0].update(changes))


def of_variant(**changes):
    """Change the training of a sweep."""
    return definition(lambda data: data["variants"][0].update(changes))


def of_base(**changes):
    """Change the configuration of the training of a sweep."""
    return definition(lambda data: data["variants"][0]["base"].update(changes))


def placed(*places):
    """Change where the value of the parameter that a sweep searches goes."""
    return of_variant(places={"agent.workflow.agent.critic_lr": places})


def chosen(*words):
    """Add words to what was given on the command line."""
    return definition(lambda data: data["variants"][0]["chosen"].extend(words))


def chooses(place, *categories):
    """Have a sweep choose categories of an option in a place of it."""
    indices = {"_target_": "evorl.priors.Choice", "values": [*range(len(categories))]}
    return both(searched(categories=categories, prior=indices, default=categories[0]), placed(place))


def values(found):
    """Give the trials of a sweep, none of which has ended, other values."""
    options = json.dumps(found)
    return sql(f"UPDATE trials SET options = '{options}', state = 'running', owner = NULL", "DELETE FROM curves")


def both(*prepares):
    def prepare(folder):
        for one in prepares:
            one(folder)

    return prepare


def journal(folder):
    """Leave a rollback journal whose super-journal, which SQLite deletes, is somebody's file."""
    database = (folder / "sweep" / "sweep.sqlite").read_bytes()
    (folder / "sweep" / "sweep.sqlite").write_bytes(database[:18] + b"\1\1" + database[20:])  # no write-ahead log
    name = str(folder / "victim").encode()
    magic = bytes.fromhex("d9d505f920a163d7")
    head = magic + (0).to_bytes(4, "big") + bytes(4) + (len(database) // 4096).to_bytes(4, "big")
    head += (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    total = sum(name) & 0xFFFFFFFF
    end = (
        (4096 * 262144 // 4096 + 1).to_bytes(4, "big") + name + len(name).to_bytes(4, "big") + total.to_bytes(4, "big")
    )
    (folder / "sweep" / "sweep.sqlite-journal").write_bytes(head.ljust(512, b"\0") + end + magic)


def tasks(content):
    """Leave the results of tasks, as PSRO's."""

    def prepare(folder):
        config(agent__name="psro")(folder)
        text("run/tasks/0-0.npz", content)(folder)

    return prepare


def zipped(compression, content):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as file:
        file.writestr("arr_0.npy", content)
    return data.getvalue()


class Touches:
    def __reduce__(self):
        return os.system, ("touch pwned",)


PICKLED = b"\x93NUMPY\x01\x00" + (54).to_bytes(2, "little")
PICKLED += b"{'descr': '|O', 'fortran_order': False, 'shape': ()}".ljust(53) + b"\n" + pickle.dumps(Touches())
WORDS = ["~env", "+env={_target_: os.system, command: touch pwned}", "dry_run=true"]
MAKE = {"name": "evorl.train:main", "options": {"arguments": WORDS}}
OTHER = {"name": "evorl.training.runs:load", "options": {"run_dir": "other", "trust": ["os"]}}
REMOVE = {"name": "evorl.training.records.run_dirs:remove_run_dir", "options": {"run_dir": "folder"}}
WHERE = "agent__workflow__agent__core"


def other(folder):
    """Leave another run, whose environment is a command."""
    good = (folder / "run" / "config.yaml").read_text()
    config(env=TOUCH)(folder)
    shutil.copytree(folder / "run", folder / "other", dirs_exist_ok=True)
    (folder / "run" / "config.yaml").write_text(good)


def of_config(name, command, **changes):
    return Payload(name, command, config(**changes))


CODE = [
    Payload("a game's name loads another run with trust", LOAD, both(other, config(env=GAME | OTHER))),
    Payload("the same, resumed", RESUME, both(other, config(env=GAME | OTHER))),
    Payload("the same, played", PLAY, both(other, config(env=GAME | OTHER))),
    Payload("the same, in a league", LEAGUE, both(other, config(env=GAME | OTHER))),
    Payload("the same, begun from", INIT, both(other, config(env=GAME | OTHER))),
    Payload("the same, by tasks", DISTRIBUTE, both(other, config(env=GAME | OTHER))),
    of_config("a game's name trains a configuration of its own", LOAD, env=GAME | MAKE),
    of_config(
        "a class under path, with trust", f"{PLAY} trust=[gymnasium]", env={"_target_": "gymnasium.Env", "path": TOUCH}
    ),
    of_config("a game's name is a function of evorl that removes a folder", LOAD, env=GAME | REMOVE),
    of_config(
        "a game's option is a function of evorl", LOAD, env=GAME | {"name": "x", "options": {"make": "evorl:load"}}
    ),
    of_config("an environment's name is a module of its own", LOAD, env=HOST | {"name": "evorl.train:main"}),
    of_config("a command", LOAD, env=TOUCH),
    of_config("a command in the place of an agent", RESUME, **{WHERE: TOUCH}),
    of_config("a command among wrappers", PLAY, wrappers=[TOUCH]),
    of_config("a command as a hyperparameter", LOAD, agent__workflow__agent__discount=TOUCH),
    of_config("a function that evorl exports", LOAD, env={"_target_": "evorl.load", "run_dir": "other"}),
    of_config("a method of what evorl exports", LOAD, env={"_target_": "evorl.envs.suites.brax.Brax.make"}),
    of_config("a class by Hydra", LOAD, **{WHERE: {"_target_": "hydra.utils.get_class", "path": "subprocess.Popen"}}),
    of_config("an interpolation", LOAD, env="${oc.create:{_target_: os.system, command: touch pwned}}"),
    of_config(
        "a secret of the environment", LOAD, env={"_target_": "evorl.envs.suites.brax.Brax", "name": "${oc.env:SECRET}"}
    ),
    Payload("a tag of YAML", LOAD, text("run/config.yaml", '!!python/object/apply:os.system ["touch pwned"]')),
]
LARGE = text("run/config.yaml", "a:\n" + "- 1\n" * 1_250_000)
FILES = [
    of_config("an option that is a path", LOAD, env=HOST | {"options": {"xml_file": "secret"}}),
    of_config("an option that is a path upwards", RESUME, env=HOST | {"options": {"xml_file": "a/../../secret"}}),
    Payload("an option that is a pipe", LOAD, both(special("pipe", "pipe"), config(env=HOST | {"options": {"x": "./pipe"}}))),
    Payload("a configuration of 6 GB", LOAD, text("run/config.yaml", "a: 1", SPARSE)),
    Payload("a configuration of 6 GB, its lineage", LINEAGE, text("run/config.yaml", "a: 1", SPARSE)),
    Payload("a configuration of 5 MB", LOAD, LARGE),
    Payload("a configuration of 5 MB, resumed", RESUME, LARGE),
    Payload("a configuration of 5 MB, played", PLAY, LARGE),
    Payload("a configuration of 5 MB, in a league", LEAGUE, LARGE),
    Payload("a configuration of 5 MB, begun from", INIT, LARGE),
    Payload("a configuration of 5 MB, by tasks", DISTRIBUTE, LARGE),
    Payload("a configuration of 5 MB, its lineage", LINEAGE, LARGE),
    Payload("a number in base 60 of 900 kB", LOAD, text("run/config.yaml", "a: " + "59:" * 300_000 + "1")),
    Payload("a number of 5,000 digits", LOAD, text("run/config.yaml", "seed: " + "9" * 5000)),
    Payload("a deep configuration", LOAD, text("run/config.yaml", "[" * 900 + "]" * 900)),
    Payload("a configuration that is a pipe", LOAD, special("run/config.yaml", "pipe")),
    Payload("a configuration that is a link", LOAD, special("run/config.yaml", "link", "secret")),
    Payload("rows that are a link", CURVE, special("run/metrics.jsonl", "link", "secret")),
    Payload("rows that are a pipe", CURVE, special("run/metrics.jsonl", "pipe")),
    Payload("rows that are somebody's, by another name", RESUME, special("run/metrics.jsonl", "hard")),
    Payload("a row of 6 GB", CURVE, text("run/metrics.jsonl", "{", SPARSE)),
    Payload("rows that are a link, in a report", PAGE, special("run/metrics.jsonl", "link", "secret")),
    Payload("a row of 6 GB, in a report", PAGE, text("run/metrics.jsonl", "{", SPARSE)),
    Payload("a tag of YAML, in a report", PAGE, text("run/config.yaml", '!!python/object/apply:os.system ["touch pwned"]')),
    Payload("a configuration of 6 GB, in a report", PAGE, text("run/config.yaml", "a: 1", SPARSE)),
    Payload("a store that is a link, in a report", SWEEP_PAGE, special("sweep/sweep.sqlite", "link", "secret")),
    Payload("a row of 6 GB, its lineage", LINEAGE, text("run/metrics.jsonl", "{", SPARSE)),
    Payload("a link among the weights", LOAD, special("run/checkpoints/1/state/d/link", "link", "secret")),
    Payload("a pipe among the weights", LOAD, special("run/checkpoints/1/state/manifest.ocdbt", "pipe")),
    Payload("a folder for pictures that is a link", PLAY.replace("null", "run/play"), special("run/play", "link", "folder")),
    Payload("a folder of Weights & Biases that is a link", RESUME, special("run/wandb", "link", "folder")),
    Payload("a deep folder", LOAD, lambda folder: (folder / "run" / Path(*["d"] * 200)).mkdir(parents=True)),
]  # fmt: skip
DAMAGED = [
    of_config("no list of wrappers", LOAD, wrappers=5),
    of_config("a wrapper that is none", LOAD, wrappers=["sticky"]),
    of_config("seeds that are a word", LOAD, num_seeds="two"),
    of_config("seeds that are a word, its lineage", LINEAGE, num_seeds="two"),
    of_config("a seed that is a list", LOAD, seed=[1]),
    of_config("a seed that is a list, its lineage", LINEAGE, seed=[1]),
    of_config("no seeds", LOAD, num_seeds=0),
    of_config("an agent that is a list", LOAD, agent=[1]),
    of_config("an agent without a workflow", LOAD, agent={"name": "td3"}),
    of_config("an agent whose name moves the cursor", RESUME, agent__name="td3\x1b]0;pwned\x07"),
    of_config("an environment that is a word", LOAD, env="ant"),
    of_config("a problem besides an environment", LOAD, problem=7),
    of_config("a checkpoint that is a number", RESUME, checkpoint=3),
    of_config("debug that is a number", RESUME, debug=3),
    of_config("a suite that is a mapping", RESUME, suite={"a": 1}),
    of_config("an int that no float holds", LOAD, agent__workflow__agent__discount=10**400),
    of_config("a size that no array has", LOAD, agent__workflow__num_envs=10**30),
    of_config("a key that is a number", LOAD, env={"_target_": "evorl.envs.sanity.fast.Fast", 1: 2}),
    of_config("a parent that is a path", RESUME, init_from="../../x"),
    of_config("changes of numbers that are a list", RESUME, number_changes=[1]),
    of_config("a schedule that says nothing", LOAD, agent__workflow__agent__actor_lr={"_target_": SCHEDULES + "Schedule"}),
    of_config(
        "a schedule of words",
        LOAD,
        agent__workflow__agent__actor_lr={"_target_": SCHEDULES + "Linear", "start": "x", "end": 0, "over": [1]},
    ),
    Payload("progress of 6 GB", LOAD, checkpoint("progress/metadata", b"{", SPARSE)),
    Payload("metadata of 6 GB", LOAD, checkpoint("state/_METADATA", b"{", SPARSE)),
    Payload("an iteration of 10^400", RESUME, progress(iteration=10**400)),
    Payload("an iteration that is a word", RESUME, progress(iteration="x")),
    Payload("seconds that are no number", RESUME, progress(seconds="x")),
    Payload("seconds that are a list", LOAD, progress(recent_usage=[[[], 0, 0, 0]] * 3)),
    Payload("steps that are no number", RESUME, progress(evaluation_steps=None)),
    Payload("a return that is a word", RESUME,
            progress(latest_evaluation={"env_steps": "a", "return": "b", "low": [], "high": {}})),
    Payload("deep progress", LOAD, checkpoint("progress/metadata", b"[" * 100_000)),
    Payload("a leaf that is a path", LOAD, leaves("../../../../secret")),
    Payload("a leaf of another", RESUME, leaves("other")),
    Payload("a row that is torn", CURVE, row(also=b'{"kind": "eval'), shown=True),
    Payload("a row that is no UTF-8", CURVE, row(also=b'{"kind": "\xff"}'), shown=True),
    Payload("a row of NULs", CURVE, row(also=bytes(100)), shown=True),
    Payload("a row that is a list", CURVE, row(also=b"[1]"), shown=True),
    Payload("a deep row", CURVE, row(also=b"[" * 100_000), shown=True),
    Payload("a return that is text", CURVE, row({"return": "x"}), shown=True),
    Payload("a return of 10^400", CURVE, row({"return": 10**400}), shown=True),
    Payload("steps that are missing", CURVE, row({"seconds": []}), shown=True),
    Payload("returns of seeds that are a word", CURVE, row({"seeds": {"return": "ab"}}), shown=True),
    Payload("returns of more seeds", CURVE, row({"seeds": {"return": [1.0, 2.0]}}), shown=True),
    Payload("members that are text", LINEAGE, members(fitness="ab"), shown=True),
    Payload("more members", LINEAGE, members(fitness=[[[1.0, 2.0, 3.0]]]), shown=True),
    Payload("members of no seed", LINEAGE, members(fitness=[]), shown=True),
    Payload("a parent that is none", LINEAGE, members(source=[[[7, -9]]])),
    Payload("tasks that are pickled", DISTRIBUTE, tasks(zipped(zipfile.ZIP_STORED, PICKLED))),
]  # fmt: skip
SWEEPS = [
    Payload("values that are parts", SWEEP, values({"agent.workflow.agent.critic_lr": TOUCH})),
    Payload("values that are a name", SWEEP, both(placed("env._target_"), values({"agent.workflow.agent.critic_lr": "os.system"}))),
    Payload("values that are not searched", SWEEP, values({"env._target_": "os.system"})),
    Payload("values of another option, its report", REPORT, values({"x": 1.0})),
    Payload("values out of range", SWEEP, values({"agent.workflow.agent.critic_lr": 1e9})),
    Payload("a place that is no number", SWEEP, placed("agent.workflow.agent")),
    Payload("a place that is nowhere", SWEEP, placed("__class__.x")),
    Payload("a prior that is a command", REPORT, searched(prior=TOUCH)),
    Payload("a sampler that is a command", REPORT, definition(lambda data: data.update(sampler=TOUCH))),
    Payload("a base that is a command", SWEEP, of_base(env=TOUCH)),
    Payload("a base that begins from a run", SWEEP, of_base(init_from="run")),
    Payload("a base that records to Weights & Biases", SWEEP, of_base(wandb=True)),
    Payload("trust in the file", SWEEP, both(
        of_base(env=TOUCH), sql("INSERT OR REPLACE INTO sweep VALUES ('trust', '[\"os\"]')"))),
    Payload("a choice that is a command", EXPERIMENT, of_variant(
        chosen=["agent.workflow._target_=os.system", "+agent.workflow.command='touch pwned'"])),
    Payload("a choice that searches elsewhere", EXPERIMENT, chosen("hydra.searchpath=[file:///tmp]")),
    Payload("a choice that is an interpolation", EXPERIMENT, chosen("+x=${oc.env:SECRET}")),
    Payload("a choice that is a path", EXPERIMENT, of_variant(chosen=["agent=../../secret"])),
    Payload("classes to choose from", SWEEP, chooses("env._target_", "os.system", "os.abort")),
    Payload("names to choose from", SWEEP, chooses("env.name", "os:system", "os:abort")),
    Payload("paths to choose from", SWEEP, chooses("agent.workflow.agent.hidden", "../victim", "/tmp/victim")),
    Payload("commands to choose from", SWEEP, chooses("agent.workflow.agent.hidden", TOUCH, "relu")),
    Payload("lines to choose from", EXPERIMENT, chooses("agent.workflow.agent.hidden", "relu\nwandb: true", "tanh")),
    Payload("choices of more trainings than there are", SWEEP, searched(name="agent", categories=["td3", "sac"])),
    Payload("a score with lines of its own", EXPERIMENT, definition(
        lambda data: data.update(score="return\nwandb: true\n#"))),
    Payload("an owner that is a path", SWEEP, sql(
        "UPDATE trials SET state = 'running', owner = '../../victim'", "DELETE FROM curves")),
    Payload("an owner that is a whole path", SWEEP, sql(
        "UPDATE trials SET state = 'running', owner = 'FOLDER/victim'", "DELETE FROM curves")),
    Payload("a trigger", REPORT, sql(
        "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END")),
    Payload("a view", REPORT, sql("ALTER TABLE trials RENAME TO t", "CREATE VIEW trials AS SELECT * FROM t")),
    Payload("a column more", REPORT, sql("ALTER TABLE trials ADD COLUMN x DEFAULT 'x'")),
    Payload("a journal that deletes", REPORT, journal),
    Payload("no tables", REPORT, sql("DROP TABLE curves")),
    Payload("a store that is text", REPORT, text("sweep/sweep.sqlite", "x" * 5000)),
    Payload("a store that is a link", REPORT, special("sweep/sweep.sqlite", "link", "secret")),
    Payload("a store that is a pipe", REPORT, special("sweep/sweep.sqlite", "pipe")),
    Payload("a log that is a link", SWEEP, special("sweep/worker-0.log", "link")),
    Payload("a trial's folder that is a link", SWEEP, special("sweep/trials", "link", "folder")),
    Payload("trials that are a word", SWEEP, sql("UPDATE sweep SET value = '\"x\"' WHERE name = 'trials'")),
    Payload("settings that are no JSON", REPORT, sql("UPDATE sweep SET value = '{' WHERE name = 'definition'")),
    Payload("a deep definition", REPORT, sql("UPDATE sweep SET value = '" + "[" * 9000 + "' WHERE name = 'definition'")),
    Payload("a definition that is a list", REPORT, sql("UPDATE sweep SET value = '[1]' WHERE name = 'definition'")),
    Payload("a point that is text", REPORT, sql("UPDATE trials SET point = '[\"x\"]' WHERE number = 0"), shown=True),
    Payload("a point of no number", REPORT, sql("UPDATE trials SET point = 'null' WHERE number = 0"), shown=True),
    Payload("a state that is none", REPORT, sql("UPDATE trials SET state = 'x' WHERE number = 0"), shown=True),
    Payload("a score that is text", REPORT, sql("UPDATE curves SET score = 'x' WHERE trial = 0"), shown=True),
    Payload("a score that is bytes", REPORT, sql("UPDATE curves SET score = x'ff' WHERE trial = 0"), shown=True),
    Payload("a cost that is text", REPORT, sql("UPDATE curves SET cost = 'x' WHERE trial = 0"), shown=True),
    Payload("a message that is bytes", REPORT, sql("UPDATE trials SET message = x'ff00' WHERE number = 0"), shown=True),
]  # fmt: skip
TINY = (
    "agent=td3 env=fast env.max_episode_steps=20 evaluations=1 agent.workflow.random_steps=40 agent.workflow.capacity=2000 "
    "agent.workflow.batch_size=16 agent.workflow.eval_episodes=4 agent.workflow.agent.hidden=[8,8]"
)
MAKE_SWEEP = """
import sys
from pathlib import Path
from evorl.sweeps import definition, space_options
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trials import DONE, Evaluation
variants, space = space_options.parse_search(sys.argv[1:], ["space={}", "space.critic_lr=${log_uniform:1e-4,1e-2}"])
sampler = space_options.build_sampler_node("random", {})
found = definition.SweepDefinition(variants, space, sampler, "return", "env_steps", 0)
Path("sweep").mkdir()
settings = {"definition": found.to_data(), "trials": 3, "seed": 0, "workers": 1, "vmapped": 1, "vectorized": None}
store = SweepStore.create(Path("sweep"), settings | {"trust": []})  # which was one until schema 2
with store.register_owner() as owner:
    for trial in store.claim_trials(owner, 3, found.space, found.build_sampler()):
        store.observe(trial.number, Evaluation(1.0, 1000.0, float(trial.number)))
        store.end_trial(trial.number, DONE)
store.close()
"""
PAYLOADS = [*CODE, *FILES, *DAMAGED, *SWEEPS]
