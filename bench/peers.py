"""Rows against other federated programs from PyPI, each in a virtual environment of its own; all in seconds per round."""
import re
import tempfile

from bench.page import Rival, ratio
from bench.run import ROOT, CannotRun, environment, example, output
from bench.simulations import simulate
from bench.swarms import Swarm

# Time limit of a rival's few rounds.
LIMIT = 600
NODES, FLOATS = 100, 1000


def flower(page, options):
    python = environment("flower", "flwr[simulation]", imports="flwr.simulation, ray")
    theirs = rival(python, "flower_round.py", NODES, FLOATS, 4 if options.quick else 11)
    ours, command = without_learning(NODES)
    name = f"a round without learning, {NODES} virtual nodes"
    page.row(name, ours, "s", ratio(10), command, Rival("Flower's simulation", theirs), less_is_better=True)


def without_learning(nodes):
    """A simulation that trains nothing, of models as large as the rival's."""
    rounds = 20
    summary, _, command = simulate("--nodes", nodes, "--rounds", rounds, "--algorithm", "fedavg", "--toy-floats", FLOATS)
    return summary["wall_seconds"] / rounds, command


def p2pfl(page, options):
    # Its `datasets` is of 2023 and needs libraries of that time, without naming them.
    python = environment("p2pfl", "p2pfl[torch,dp]", "pyarrow<16", "huggingface_hub<0.26", imports="datasets, p2pfl.node, opendp")
    theirs = rival(python, "p2pfl_round.py", 3 if options.quick else 6)
    rounds = 6 if options.quick else 21
    swarm = Swarm("--nodes", 4, "--rounds", rounds, "--algorithm", "fedavg", "--model", "mlp", "--partition", "iid")
    name = "a round of 4 processes with a small MLP"
    ours = mean_round(swarm.records, rounds)
    page.row(name, ours, "s", ratio(10), swarm.command, Rival("p2pfl over gRPC", theirs), less_is_better=True)


def mean_round(records, rounds):
    """From the end of the first round, in which nodes meet, to that of the last one, where it came latest."""
    ends = {}
    for record in records:
        ended = record["started_at"] / 1e3 + record["round_seconds"]
        ends[record["round"]] = max(ended, ends.get(record["round"], 0))
    return (ends[rounds] - ends[1]) / (rounds - 1)


def hivemind(page, options):
    floats, rounds = 10_000_000, 4 if options.quick else 8
    python = environment("hivemind", "hivemind", imports="hivemind")
    theirs = rival(python, "hivemind_round.py", 4, floats, rounds)
    printed, command = example("averaging", 4, floats, rounds)
    ours = per_round(printed)
    name = "averaging 10 M floats among 4 processes"
    page.row(name, ours, "s", ratio(2), command, Rival("hivemind", theirs), less_is_better=True)


def rival(python, script, *arguments):
    """Runs a rival's script, outside the checkout: some leave files where they are started."""
    with tempfile.TemporaryDirectory() as folder:
        return per_round(output([python, ROOT / "scripts" / "rivals" / script, *arguments], LIMIT, cwd=folder))


def per_round(printed):
    found = re.search(r"([0-9.]+) s per round", printed)
    if not found:
        raise CannotRun("it printed no time per round")
    return float(found[1])
