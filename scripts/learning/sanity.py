"""Run `python -m evorl.sanity` for every agent, and compare the failed checks with docs/environments/sanity.md.

python scripts/learning/sanity.py              all agents, and all recurrent ones; hours on two cores
python scripts/learning/sanity.py ppo td3      some

Each command runs in its own process. The exit code is 1 if a result differs from the record.
"""

import subprocess
import sys

from evorl.training.configuration.discovery import find_choices

NOT_ASKED = {"meta_es", "random"}  # meta_es keeps no policy, and random must fail
FAILS = {
    "a2c": "failed: continuous",
    "cso": "failed: continuous",
    "discrete_sac": "failed: stochastic, squared",
    "impala": "failed: continuous",
    "puffer": "failed: stochastic",
    "ipop_cma_es": "failed: password",
    "pbt": "failed: stochastic",
}
SMALL = {"pbt": "agent.workflow.population.size=4", "pbt_cso": "agent.workflow.population.size=4"}
RATES = {"ppo": 3e-4, "a2c": 7e-4, "impala": 6e-4}
SEQUENCES = (
    "replay=sequences agent.workflow.replay.length=12 agent.workflow.replay.burn_in=6 agent.workflow.replay.stride=6"
    " agent.workflow.batch_size=32 agent.workflow.agent.core.width=64"
)
REMEMBER = [
    "puffer core=lstm",
    *(
        f"{agent} core={core} agent.workflow.agent.entropy_coef=0.1"
        f" agent.workflow.agent.learning_rate=${{linear:{rate},0,200_000}}"
        for agent, rate in RATES.items()
        for core in ("gru", "lstm", "s5")
        if core != "s5" or agent == "ppo"
    ),
    f"dqn core=gru {SEQUENCES}",
    f"discrete_sac core=gru {SEQUENCES} agent.workflow.agent.temperature=0.2",
    *(f"{agent} core=gru agent.workflow.agent.core.width=16" for agent in ("sep_cma_es", "ga")),
]


def run(options: str) -> tuple[str, str]:
    """Run a command; return its last line if checks failed (otherwise ""), and its output."""
    command = [sys.executable, "-m", "evorl.sanity", *f"agent={options}".split()]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.strip().splitlines() or [""]
    if done.returncode not in (0, 1):
        return f"exit code {done.returncode}", done.stdout
    return lines[-1] if done.returncode else "", done.stdout


def main() -> None:
    agents = sys.argv[1:] or sorted(set(find_choices("agent")) - NOT_ASKED)
    wanted = {f"{agent} {SMALL.get(agent, '')}".strip(): FAILS.get(agent, "") for agent in agents}
    wanted |= {f"{options} only=memory": "" for options in REMEMBER if options.split()[0] in agents}
    differ = []
    for options, expected in wanted.items():
        found, output = run(options)
        print(
            f"agent={options}: {found or 'passed'}" + f", not {expected or 'passed'}" * (found != expected), flush=True
        )
        if found != expected:
            differ.append(options)
            print(output)
    sys.exit(f"{len(differ)} of {len(wanted)} differ" if differ else 0)


if __name__ == "__main__":
    main()
