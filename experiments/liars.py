"""How many points do honest nodes lose by liars? Two of seven, or with another experiment six of twenty under masks.

    fednode simulate experiments/liars.toml
    python experiments/liars.py runs/liars [experiments/liars-masked.toml]

Each run has the honest nodes only. Every regime is compared with the first one of the file, in which nobody lies, node by node and
seed by seed: the same data, the same draws. The table has the mean difference in percentage points, its standard error over
these pairs, and the largest loss of a node over its seeds. Accuracy is that of the last round, or of what a pool serves.
"""

import json
import math
import pathlib
import statistics
import sys
import tomllib


def accuracies(folder):
    """Returns the accuracy of each honest node of a run, and the honest nodes that were banned."""
    summary = json.loads((folder / "summary.json").read_text())
    nodes = {}
    for node in summary["per_node"]:
        finished = node.get("accuracy_after_finishing")
        nodes[node["shard"]] = node["accuracy"] if finished is None else finished
    return nodes, summary.get("banned", [])


def folder_name(name):
    """As `fednode simulate` names the folder of a setting."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".=-") else "_" for c in name)


def compare(runs, base, regime, variant, seeds):
    """Returns the cell of a table: the difference to the run without liars."""
    by_node, banned = {}, 0
    for seed in seeds:
        folders = [runs / f"{folder_name(f'{name} {variant}')}-seed{seed}" for name in (base, regime)]
        if not all((folder / "summary.json").exists() for folder in folders):
            return "failed"
        (before, _), (after, bans) = map(accuracies, folders)
        banned += len(bans)
        for node, accuracy in after.items():
            by_node.setdefault(node, []).append(100 * (accuracy - before[node]))
    differences = [difference for node in by_node.values() for difference in node]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    worst = min(statistics.mean(node) for node in by_node.values())
    cell = f"{statistics.mean(differences):+.1f} ± {error:.1f} ({worst:+.1f})"
    return cell + (f", {banned} banned" if banned else "")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    runs = pathlib.Path(sys.argv[1])
    file = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else pathlib.Path(__file__).with_suffix(".toml")
    experiment = tomllib.loads(file.read_text())
    base, *regimes = [regime["name"] for regime in experiment["regime"]]
    variants = [variant["name"] for variant in experiment["variant"]]
    print("| | " + " | ".join([base, *regimes]) + " |")
    print("|---|" + "---|" * (1 + len(regimes)))
    for variant in variants:
        folders = [runs / f"{folder_name(f'{base} {variant}')}-seed{seed}" for seed in experiment["seeds"]]
        played = [folder for folder in folders if (folder / "summary.json").exists()]
        if not played:
            continue
        # Where the liars are honest in the first regime, they are left out of it all the same.
        liars_out = runs / f"{folder_name(f'{regimes[0]} {variant}')}-seed{experiment['seeds'][0]}"
        nodes = accuracies(liars_out)[0] if (liars_out / "summary.json").exists() else accuracies(played[0])[0]
        honest = [100 * value for folder in played for node, value in accuracies(folder)[0].items() if node in nodes]
        seeds = [seed for seed, folder in zip(experiment["seeds"], folders) if folder in played]
        cells = [compare(runs, base, regime, variant, seeds) for regime in regimes]
        print(f"| {variant} | " + " | ".join([f"{statistics.mean(honest):.1f} %", *cells]) + " |")


if __name__ == "__main__":
    main()
