"""Rows of the simulator: its own pace, a round of the reference partition, the memory of 500 nodes."""
import json
import pathlib
import tempfile

from bench.page import at_most
from bench.run import FEDNODE, ROOT, output, shown

F32 = 4  # bytes
# Parameters of `cnn` on 28x28 images with ten classes, and the bytes of all of Fashion-MNIST.
CNN, FASHION_MNIST = 582_026, 70_000 * 28 * 28
EXPERIMENTS = ROOT / "experiments"


def simulate(*flags):
    """Runs one simulation; returns its summary, peak resident bytes and the command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [FEDNODE, "simulate", *map(str, flags), "--json", "--out", pathlib.Path(folder) / "run"]
        # Not every system has GNU time: a child of our own reports what it used.
        measured = ["python3", "-c", MEASURE, *command]
        printed, peak = output(measured).rsplit("\n", 1)
    return json.loads(printed), int(peak), shown(command[:-2])


MEASURE = """
import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:]).returncode
sys.stdout.write(f"\\n{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}")
sys.exit(ended)
"""


def scale(page, options):
    """The protocol alone: seconds, and for the largest also memory and messages."""
    for nodes, limit in ((1000, 10), (10_000, 120)):
        rounds = 2 if options.quick else 20
        summary, _, command = simulate("--toy-floats", 0, "--nodes", nodes, "--rounds", rounds)
        page.row(f"{nodes:,} nodes × {rounds} rounds without training", summary["wall_seconds"], "s", at_most(limit), command)
    page.row(f"{nodes:,} nodes: peak memory", summary["peak_rss_bytes"] / 1e9, "GB", at_most(4), command)
    page.row(f"{nodes:,} nodes: messages per node and round", summary["messages_per_round"], "", None, command)


def plans(page, options):
    """How near a node's choice of peers comes to the choice with complete knowledge, in the last refresh."""
    rounds = 6 if options.quick else 16
    summary, _, command = simulate("--toy-floats", 0, "--compare-plans", "--nodes", 1000, "--rounds", rounds)
    last = summary["plans"][-1]
    what = f"1,000 nodes, round {last['round']}"
    page.row(f"{what}: the best sources that were found", 100 * last["recall"], "%", None, command)
    page.row(f"{what}: similarity lost by the others", last["similarity_lost"], "", at_most(0.01), command)


def reference_round(page, options):
    """PFLlib's reference setting; its own time per round was recorded elsewhere and is in docs/performance.md."""
    rounds = 2 if options.quick else 5
    summary, _, command = simulate(EXPERIMENTS / "reference-round.toml", "--rounds", rounds)
    seconds = summary["wall_seconds"] / rounds
    page.row("fedavg, cnn, 20 nodes of fm20-dir01-12k: a round, all evaluated", seconds, "s", at_most(4), command)


def memory(page, options):
    flags = ["--nodes", 500, "--data", "fashion-mnist", "--partition", "iid", "--algorithm", "fedavg"]
    formula = 500 * CNN * F32 + FASHION_MNIST
    for rounds, what in ((1, "500 nodes of `cnn`, simulated"), (3, "the same, three rounds")):
        _, peak, command = simulate(*flags, "--rounds", rounds)
        page.row(f"{what}: peak memory", peak / 1e6, "MB", None, command)
        page.row(f"{what}: over the parameters plus one copy of the data", peak / formula, "x", at_most(1.1), command)
