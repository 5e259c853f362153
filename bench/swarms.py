"""Rows from live swarms: start-up time, overhead beside training, memory, bytes on the wire, two nodes side by side."""
import json
import pathlib
import tempfile
import time

from bench.page import at_most
from bench.run import FEDNODE, output, shown

F32 = 4  # bytes
# Parameters of the 4-layer CNN of FedMoE-DA (Zhan et al., MSN 2024) on 28x28 images: embedding, one expert, one proxy.
THETA, PHI, PROXY = 832, 581_194, 4608
FASHION = ["--data", "fashion-mnist", "--partition", "iid"]


class Swarm:
    """A swarm that ran: its summary, records, the peak of fedboot's memory, and the seconds it took."""

    def __init__(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "run"
            flags = [*map(str, flags), "--json", "--device", "cpu"]
            self.command = shown(["fednode", "swarm", *flags])
            self.first_round, self.fedboot = None, 0
            started = time.monotonic()

            def look(child):
                if self.first_round is None and list(out.glob("nodes/*/**/metrics.jsonl")):
                    self.first_round = time.monotonic() - started
                self.fedboot = max(self.fedboot, peak_memory("fedboot", child.pid))

            printed = output([FEDNODE, "swarm", *flags, "--out", out], look=look)
            self.seconds = time.monotonic() - started
            self.first_round = self.first_round or self.seconds
            self.summary = json.loads(printed)
            self.records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def peak_memory(name, parent):
    """Peak resident bytes of a child process of that name."""
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if fields["Name"].strip() == name and int(fields["PPid"]) == parent and "VmHWM" in fields:
            return int(fields["VmHWM"].split()[0]) * 1024
    return 0


def start_up(page, options):
    swarm = Swarm("--nodes", 3, "--rounds", 3)
    page.row("3 nodes, digits: until the first round is done", swarm.first_round, "s", at_most(5), swarm.command)
    page.row("3 nodes, digits, 3 rounds: everything", swarm.seconds, "s", at_most(15), swarm.command)


def five_nodes(page, options):
    rounds = 3 if options.quick else 6
    swarm = Swarm("--nodes", 5, "--rounds", rounds, *FASHION, "--samples-per-node", 667, "--local-epochs", 2)
    overhead(page, "5 nodes × 500 samples", swarm)
    peak = max(node["peak_rss_bytes"] for node in swarm.summary["per_node"]) / 1e6
    page.row("node, 500 samples, K = 4, CPU: peak memory", peak, "MB", at_most(200), swarm.command)
    page.row("fedboot: peak memory", swarm.fedboot / 1e6, "MB", at_most(40), swarm.command)
    wire(page, swarm, rounds)


def main_job(page, options):
    rounds = 1 if options.quick else 4
    flags = ["--local-epochs", 2, "--batch-size", 10, "--lr", 0.02, "--set", "refresh_every=2", "--set", "profile=robust"]
    flags = ["--nodes", 5, "--rounds", rounds, *FASHION, *flags]
    for what, more in (("", []), (", an epoch ahead", ["--set", "training.ahead_epochs=1"])):
        swarm = Swarm(*flags, *more)
        name = f"5 nodes on all of Fashion-MNIST{what}"
        overhead(page, name, swarm)
        time_line(page, name, swarm, rounds - 1 or 1)


def overhead(page, what, swarm):
    """Seen from the cores, since five nodes share them, and from a node, whose time includes waiting for slower ones."""
    spent = swarm.summary["overhead"]
    idle = 100 * spent["idle_core_share"]
    page.row(f"{what}: core time without training", idle, "%", at_most(5), swarm.command)
    print(f"          seen from a node {100 * spent['share']:6.2f} %")
    for cause, seconds in sorted(spent["seconds_by_cause"].items(), key=lambda item: -item[1]):
        print(f"          of which {cause:<12} {100 * seconds / spent['round_seconds']:6.2f} %")


def time_line(page, name, swarm, round):
    """Draws one round of every node: its work, and what it waited for while idle."""
    records = sorted((r for r in swarm.records if r["round"] == round), key=lambda r: r["started_at"])
    start = min(record["started_at"] for record in records) / 1e3
    scale = 72 / max(record["started_at"] / 1e3 + record["round_seconds"] - start for record in records)
    marks = "# training, + training ahead, p publishing, . waiting for experts, : for the mean, m merging, e evaluating"
    lines = [f"round {round}: {marks}"]
    for record in records:
        waited, begins = record["waited_seconds"], record["started_at"] / 1e3 - start
        line = [" "] * round_up(begins * scale)
        for mark, seconds in (
            ("#", record["train_seconds"]), ("p", waited["publish"]), (".", waited["experts"]), (":", waited["global"]),
            ("m", waited["merge"]), ("e", waited["evaluate"]),
        ):
            begins += seconds
            line += [mark] * (round_up(begins * scale) - len(line))
        if ahead := record["ahead"]:
            first = round_up((ahead["started_at"] / 1e3 - start) * scale)
            for place in range(first, round_up(first + ahead["seconds"] * scale)):
                line[place:place + 1] = "+"
        lines.append(f"{record['node_id'][-6:]} {''.join(line)}")
    page.picture(name, lines)


def round_up(columns):
    return int(columns + 0.5)


def wire(page, swarm, rounds):
    """Received bytes per node and round against Algorithm 1 of FedMoE-DA: 2 Theta + N Pi / I + what the plan names, once each."""
    federation = swarm.summary["effective_config"]["federation"]
    exchange, experts, nodes = federation["exchange"]["experts"], federation["model"]["experts"], swarm.summary["nodes"]
    peers, every = exchange["peers_per_expert"], exchange["refresh_every"]
    refreshes = len(range(1, rounds + 1, every))
    received = sum(record["bytes_received"]["wire"] for record in swarm.records) / nodes
    mixed = min(peers, (nodes - 1) * experts) * experts * PHI * (rounds - 1)
    small = 2 * THETA * rounds + (nodes - 1) * experts * PROXY * refreshes
    formula = F32 * (mixed + small)
    page.row("received on the wire over the formula 2Θ+NΠ/I+PKΦ", received / formula, "x", at_most(1.05), swarm.command)
    parts = ("peer_to_peer", "aggregator")
    blobs = sum(record["bytes_received"][part] for record in swarm.records for part in parts) / nodes
    page.row("received on the wire over the blobs' own bytes", received / blobs, "x", at_most(1.05), swarm.command)


def side_by_side(page, options):
    flags = [*FASHION, "--samples-per-node", 667, "--rounds", 2, "--algorithm", "local", "--threads", 1]
    alone, both = Swarm("--nodes", 1, *flags), Swarm("--nodes", 2, *flags)
    ratio = both.summary["train_seconds"] / alone.summary["train_seconds"]
    page.row("two nodes side by side: training time over one alone", ratio, "x", at_most(1.3), both.command)
