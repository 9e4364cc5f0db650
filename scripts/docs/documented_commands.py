"""Run every command line in the README and the docs with a small budget, and list those that fail.

python scripts/docs/documented_commands.py --out commands.jsonl     if run again, it continues with those that are left
python scripts/docs/documented_commands.py --list

NAME in a command line becomes a run made before, of the kind that the line needs. A training gets one iteration. A
command that has not ended after --seconds is interrupted, and counts as started well if it printed no error until then.
Installation commands are left out. So are pages whose lines are run by tests, in a folder with the files they write.
"""

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pages import ROOT, list_pages

BUDGET = ["iterations=1", "evaluations=1"]
RUNS = {  # NAME becomes the first run that has a word of the command line
    "experiment=brax/nsga2_hopper": ("solution=",),
    "agent=dqn env=maze agent.workflow.random_steps=64": ("suite=",),
    "agent=pbt agent/inner=ppo env=cartpole agent.workflow.population.size=4": ("member=", "lineage"),
    "agent.workflow.random_steps=64": ("init_from=",),
    "agent=ppo env=cartpole": ("",),
}
# words of lines that need the files of other pages, a keyboard or a browser
OWN_LINES = ("env=corridor", "runs/les", "sweeps/NAME", "experiment=tuned", "experiment=fast_ant", "human=true")
OWN_LINES += ("browser=true", "env=ring_tag")


def commands() -> list[str]:
    """Return the command lines of all code blocks, each once, with backslashes joined and variables filled in."""
    found: dict[str, None] = {}
    for page in list_pages():
        if page.parent.name == "tutorials":  # tests run these pages, with the files that they write
            continue
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            variables: dict[str, str] = {}
            for line in block.replace("\\\n", " ").splitlines():
                assigned = re.fullmatch(r'(\w+)="(.*)"', line.strip())
                if assigned:
                    variables[assigned[1]] = assigned[2]
                for name, value in variables.items():
                    line = line.replace(f"${name}", value)
                if line.startswith("python ") and not any(option in line for option in OWN_LINES):
                    found[" ".join(shlex.split(line, comments=True))] = None
    return list(found)


def tried(command: str, folder: Path, seconds: float) -> dict[str, object]:
    """Run a command, and return how it ended: its exit code, or that it was interrupted."""
    name = next(str(i) for i, words in enumerate(RUNS.values()) if any(word in command for word in words))
    arguments = [sys.executable, *command.replace("NAME", name).split()[1:]]
    if "evorl.train" in command and "--list" not in command:
        own = [argument for argument in arguments if not argument.startswith(("iterations=", "evaluations="))]
        arguments = [*own, *BUDGET]
    if arguments[1].startswith("scripts/"):
        arguments[1] = str(ROOT / arguments[1])
    started = time.monotonic()
    process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    interrupted = False
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        interrupted = True
        for _ in range(2):  # the second one does not wait for the chunk
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        try:
            _, said = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
            return {"command": command, "fault": "two interrupts did not end it", "seconds": seconds}
    fault = "" if interrupted or process.returncode == 0 else said[-1000:]
    ended = {"exit": process.returncode, "interrupted": interrupted, "fault": fault}
    return {"command": command, **ended, "seconds": round(time.monotonic() - started)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path, help="JSON lines: what stands there is not run again")
    parser.add_argument("--seconds", type=float, default=300)
    given = parser.parse_args()
    if given.list:
        print("\n".join(commands()))
        return
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out and given.out.exists() else []
    outcomes = [json.loads(line) for line in lines]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "docs").mkdir()
        for i, options in enumerate(RUNS):
            made = [sys.executable, "-m", "evorl.train", *options.split(), *BUDGET, f"run_dir=runs/{i}"]
            subprocess.run(made, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for command in commands():
            if any(row["command"] == command for row in outcomes):
                continue
            outcomes.append(tried(command, folder, given.seconds))
            print(json.dumps(outcomes[-1]), flush=True)
            if given.out:
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(outcomes[-1]) + "\n")
    failed = [row["command"] for row in outcomes if row["fault"]]
    print(f"{len(outcomes)} command lines, {len(failed)} failed")
    sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()
