"""Open hostile folders with a version of evorl, and print the outcome of each.

python scripts/trust/attacks.py [--evorl PATH] [--workers 2] [NAME ...]

PATH is a checkout of that version, by default this one. Each payload of `tests/hostile.py` runs in its own process, in
its own folder, for at most 40 s.
"""

import argparse
import collections
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.hostile import MAKE_SWEEP, PAYLOADS, TINY, Payload  # noqa: E402

LIMIT = 40  # seconds; the imports take about five
LOAD = "import sys, evorl; evorl.load(sys.argv[1])"


def python(words: list[str]) -> list[str]:
    """Return the command line of a process that runs a command of evorl."""
    return (
        [sys.executable, "-c", LOAD, *words[1:]]
        if words[0] == "load"
        else [sys.executable, "-m", f"evorl.{words[0]}", *words[1:]]
    )


def run(command: list[str], folder: Path, env: dict[str, str], limit: float = LIMIT) -> tuple[int | None, str, str]:
    """Run a command; return its exit code, None if it hangs, and its output."""
    process = subprocess.Popen(
        command, cwd=folder, env=env, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err


def outcome(payload: Payload, good: Path, env: dict[str, str]) -> str:
    """Return the outcome of a payload in one or a few words."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(good, folder, dirs_exist_ok=True)
        for one in ("victim", "victim.lock", "secret", "folder/kept"):
            (folder / one).parent.mkdir(exist_ok=True)
            (folder / one).write_text("swordfish")
        payload.prepare(folder)
        code: int | None = 0
        out = err = ""
        for part in payload.command.split(" && "):
            if code == 0:
                code, *told = run(python(part.split()), folder, env)
                out, err = out + told[0], err + told[1]
        wrote = (folder / "configs/experiment/found.yaml").read_text() if (folder / "configs").exists() else ""
        victims = [folder / one for one in ("victim", "victim.lock", "secret", "folder/kept")]
        if (folder / "pwned").exists() or "touch pwned" in wrote:
            return "ran"
        if not all(one.exists() and one.read_text() == "swordfish" for one in victims):
            return "changed or deleted"
        if len(list((folder / "folder").iterdir())) > 1:
            return "wrote outside"
        if "swordfish" in out + err + wrote:
            return "read"
        if code is None:
            return "hung"
        if "Traceback" in err and "OptionError" not in err:
            return "traceback"
        return "taken" if code == 0 else "refused"


def main() -> None:
    """Make a good folder, and try every payload on copies of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--evorl", type=Path, default=ROOT)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        good, env = Path(name) / "good", os.environ | {"PYTHONPATH": str(given.evorl.resolve()), "SECRET": "swordfish"}
        env |= {"XDG_CACHE_HOME": str(Path(name) / "cache"), "JAX_PLATFORMS": "cpu"}
        good.mkdir()
        made = run(python(["train", *TINY.split(), "run_dir=run", "iterations=1"]), good, env, 600)
        made = (
            made if made[0] else run([sys.executable, "-c", MAKE_SWEEP, *TINY.split(), "iterations=1"], good, env, 600)
        )
        if made[0]:
            sys.exit(made[2])
        counts: collections.Counter[str] = collections.Counter()
        chosen = [one for one in PAYLOADS if not given.names or one.name in given.names]
        print("| payload | command | |\n|---|---|---|")
        with ThreadPoolExecutor(given.workers) as pool:
            for payload, found in zip(chosen, pool.map(lambda one: outcome(one, good, env), chosen), strict=True):
                counts[found] += 1
                print(f"| {payload.name} | {payload.command.split()[0]} | {found} |", flush=True)
        print("; ".join(f"{found} {count}" for found, count in counts.most_common()))


if __name__ == "__main__":
    main()
