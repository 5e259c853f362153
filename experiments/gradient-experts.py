#!/usr/bin/env python3
"""Gradient experts: a fair trial beside no federation, averages and statistics.

    python3 -m venv venv && venv/bin/pip install torch numpy scipy
    OMP_NUM_THREADS=1 venv/bin/python experiments/gradient-experts.py FASHION_MNIST --out runs/gradient-experts.jsonl
        [--sizes 300,1000,3000] [--seeds 1,2] [--regimes rotated,renamed] [--schemes local,fedavg] [--table]

FASHION_MNIST is the folder with the .gz files of the training images. A run prints one JSON line and appends it to --out.
Runs that --out has are not run again. --table prints the tables of --out and runs nothing.

Data. 8 nodes have SIZE training images each, a tenth of them for validation. In `rotated` each node holds two of four
rotations. In `renamed` the odd nodes shift their classes by 3.

Schemes. All have the same network: two convolutions, a dense layer of 512, a last layer.

- `local`, `fedavg`, `fedper` (private last layer). The run of `local` also gives `alone` and `agreement`. Both are a
  statistical classifier (random maps, linear discriminant) to the power .65 times the network to the power .35. `alone` has
  the node's own statistics. `agreement` adds those of its peers, weighted by how well class means agree.
- `experts`: 4 experts of a dense and a last layer each, above shared convolutions. A gate weighs them by sample. Its offset
  is the log of the node's own masses. Training maximises the marginal likelihood by expectation maximisation, with
  responsibilities softmax((log gate + log likelihood + bias) / T). T falls from --warm to --cold over the rounds. The bias
  balances masses over all nodes (loss-free balancing, Wang et al. 2024, arXiv:2408.15664). Experts are merged by mass.
  They start apart: they are drawn one by one, and in the first --start rounds responsibilities are those of four means a
  class, which all nodes fit to random maps together.
- `experts-last`: the same with experts of a last layer alone, above a trunk that shares its dense layer too.
- `judged`: as `experts-last`, but each node merges experts by FedFomo's rule (Zhang et al. 2021, arXiv:2012.08565,
  section 3). A peer's expert weighs as much as it lowers the loss of own validation samples, per distance of parameters.
  A merge is kept only if that loss does not rise. The trunk is averaged as in `fedper`.
- `guarded`: as `judged`, and the average of the trunk too is kept only if that loss does not rise.

`accuracy` is the mean over nodes after the last merge, `before` the mean before it. `product` is the model to the power
.35 times the agreeing statistics to the power .65. The second convolution is in bfloat16 unless --precision is fp32.
"""
import argparse
import gzip
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from scipy import linalg, special

NODES, CLASSES, EXPERTS, ROUNDS = 8, 10, 4, 15
CONVOLUTIONS, DENSE, LAST = ["conv1.w", "conv1.b", "conv2.w", "conv2.b"], ["dense.w", "dense.b"], ["last.w", "last.b"]
# Test images, epochs a round, batch and learning rate by the number of training images.
SETTINGS = {300: (150, 2, 10, .02), 1000: (300, 2, 10, .02), 3000: (300, 1, 16, .05)}
MIXTURES = ["experts", "experts-last", "judged", "guarded"]
SCHEMES = ["local", "fedavg", "fedper", *MIXTURES]
# What all nodes average, and what they average by responsibility mass.
SHARED = {"local": [], "fedavg": CONVOLUTIONS + DENSE + LAST, "experts": CONVOLUTIONS + ["gate.w"]}
BY_MASS = {"experts": DENSE + LAST, "experts-last": LAST}


def read(folder):
    """Fashion-MNIST's training images and labels."""
    raw = lambda kind: np.frombuffer(gzip.open(os.path.join(folder, f"train-{kind}-ubyte.gz")).read(), np.uint8)
    return raw("images-idx3")[16:].reshape(-1, 28, 28), raw("labels-idx1")[8:].astype(np.int64)


def divide(images, labels, regime, size, seed):
    """The nodes' data: {part: (maps in [-1, 1], labels)} for train, valid and test."""
    rng, nodes = np.random.default_rng([seed, size]), []
    order = rng.permutation(len(images))[:NODES * (size + SETTINGS[size][0])]
    for i, take in enumerate(np.split(order, NODES)):
        x, y = images[take].copy(), labels[take]
        if regime == "rotated":
            for j in range(len(x)):
                x[j] = np.rot90(x[j], (i + rng.integers(2)) % 4)
        else:
            y = (y + 3 * (i % 2)) % CLASSES
        x, y = torch.from_numpy(x[:, None] / np.float32(127.5) - 1), torch.from_numpy(y)
        cuts = {"valid": slice(0, size // 10), "train": slice(size // 10, size), "test": slice(size, None)}
        nodes.append({part: (x[cut], y[cut]) for part, cut in cuts.items()})
    return nodes


def random_maps(x):
    """64 fixed random filters, pooled: 1,024 numbers an image."""
    filters = np.random.default_rng(1).normal(size=(64, 25))
    filters -= filters.mean(1, keepdims=True)
    filters = (filters / np.linalg.norm(filters, axis=1, keepdims=True)).reshape(64, 1, 5, 5)
    filters = torch.from_numpy(filters.astype(np.float32))
    pooled = [F.avg_pool2d(F.max_pool2d(F.conv2d(part, filters), 2).relu(), 3) for part in x.split(500)]
    return torch.cat(pooled).flatten(1).numpy()


def within(weights, sums):
    """Class means and the covariance within classes of weighted sums, and the numbers of samples."""
    n, s, g = (sum(w * part[k] for w, part in zip(weights, sums)) for k in range(3))
    mean = s / np.maximum(n, 1e-9)[:, None]
    return mean, (g - (mean.T * n) @ mean) / n.sum(), n


class Statistics:
    """Sums of random maps of all nodes, and the classifiers that follow from them."""

    def __init__(self, nodes):
        self.maps = [{part: random_maps(x) for part, (x, _) in node.items()} for node in nodes]
        self.labels = [node["train"][1].numpy() for node in nodes]
        each = [(np.eye(CLASSES)[y], m["train"].astype(np.float64)) for m, y in zip(self.maps, self.labels)]
        self.sums = [(hot.sum(0), hot.T @ z, z.T @ z) for hot, z in each]
        means = [s / np.maximum(n, 1)[:, None] for n, s, _ in self.sums]
        self.weights = np.eye(len(nodes))
        for i, j in np.argwhere(self.weights == 0):
            common = np.flatnonzero((self.sums[i][0] >= 5) & (self.sums[j][0] >= 5))
            distance = ((means[i][common][:, None] - means[j][common][None]) ** 2).sum(2)
            agreement = (distance.argmin(1) == np.arange(len(common))).mean() if len(common) > 1 else .51
            self.weights[i, j] = max(0., (agreement - .1) / .9)

    def answers(self, i, weights):
        """Log-probabilities of node i's test images by sums that `weights` weighs (linear discriminant, temperature 4)."""
        mean, cov, n = within(weights, self.sums)
        cov[np.diag_indices(len(cov))] += .01 * np.trace(cov) / len(cov)
        a = linalg.solve(cov, mean.T, assume_a="pos")
        logits = (self.maps[i]["test"] @ a - .5 * (a * mean.T).sum(0)) / 4
        logits[:, n == 0] = -1e9
        prior = self.sums[i][0] / self.sums[i][0].sum() + 1e-3
        return F.log_softmax(torch.from_numpy(logits + np.log(prior)), 1).float()

    def slots(self, rounds=6, dim=30, temperature=2.):
        """Responsibilities of EXPERTS means per class, by expectation maximisation over the sums of all nodes."""
        mean, cov, _ = within(np.ones(NODES), self.sums)
        variance, axes = linalg.eigh(cov, subset_by_index=[len(cov) - dim, len(cov) - 1])
        offset = np.zeros((EXPERTS, dim))
        offset[:, -2:] = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]) * np.sqrt(variance[-2:])
        z, y = np.concatenate([m["train"] for m in self.maps]) @ axes, np.concatenate(self.labels)
        node = np.repeat(np.arange(NODES), [len(labels) for labels in self.labels])
        mean, shares = mean @ axes, np.full((NODES, EXPERTS), 1 / EXPERTS)
        centre = mean[:, None] + offset
        for _ in range(rounds):
            gaps = (z[:, None] - centre[y]) ** 2 / variance
            r = special.softmax(-.5 * gaps.sum(2) / temperature + np.log(shares[node] + 1e-3), 1)
            shares = np.array([r[node == i].mean(0) for i in range(NODES)])
            for c in range(CLASSES):
                centre[c] = (r[y == c].T @ z[y == c] + 20 * mean[c]) / (r[y == c].sum(0) + 20)[:, None]
            variance = (r[:, :, None] * (z[:, None] - centre[y]) ** 2).sum((0, 1)) / len(y)
        return [torch.from_numpy(r[node == i]).float() for i in range(NODES)]


def fresh(scheme, seed):
    """Parameters that all nodes start from. Experts are copies along the first axis, drawn one by one."""
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape, fan: (torch.rand(*shape, generator=rng) * 2 - 1) / fan ** .5
    n_last, n_dense = EXPERTS if scheme in MIXTURES else 1, EXPERTS if scheme == "experts" else 1
    p = {"conv1.w": draw(32, 1, 5, 5, fan=25), "conv1.b": draw(32, fan=25),
         "conv2.w": draw(64, 32, 5, 5, fan=800), "conv2.b": draw(64, fan=800),
         "dense.w": draw(n_dense, 512, 1024, fan=1024), "dense.b": draw(n_dense, 1, 512, fan=1024),
         "last.w": draw(n_last, CLASSES, 512, fan=512), "last.b": draw(n_last, 1, CLASSES, fan=512)}
    if scheme in MIXTURES:
        p |= {"gate.w": torch.zeros(EXPERTS, 1024), "gate.b": torch.zeros(EXPERTS)}
    return {k: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in p.items()}


def trunk(p, x):
    """What the last layers see (experts or 1, samples, 512) and log-probabilities of the gate (experts, samples)."""
    kind = torch.bfloat16 if OPTIONS.precision == "bf16" else torch.float32
    h = F.conv2d(x, p["conv1.w"], p["conv1.b"]).contiguous(memory_format=torch.channels_last)
    h = F.conv2d(F.max_pool2d(h, 2).relu().to(kind), p["conv2.w"].to(kind), p["conv2.b"].to(kind))
    features = F.max_pool2d(h, 2).relu().flatten(1).float()
    dense = (features @ p["dense.w"].transpose(1, 2) + p["dense.b"]).relu()
    if "gate.w" not in p:
        return dense, torch.zeros(1, len(x))
    seen = F.layer_norm(features.detach(), features.shape[1:])
    return dense, F.log_softmax(.1 * p["gate.w"] @ seen.T + p["gate.b"][:, None], 0)


def last(dense, w, b):
    """Log-probabilities of each expert (experts, samples, classes)."""
    return F.log_softmax(dense @ w.transpose(1, 2) + b, 2)


@torch.no_grad()
def answers(p, x):
    dense, gate = trunk(p, x)
    return torch.logsumexp(last(dense, p["last.w"], p["last.b"]) + gate[:, :, None], 0)


def train(p, data, setting, rng, temperature, bias, start):
    """One local update by plain descent. Returns the parameters and the mean responsibility of each expert."""
    (x, y), (_, epochs, batch, rate) = data, setting
    p = {k: v.clone().requires_grad_(k != "gate.b") for k, v in p.items()}
    learned, mass, steps = [v for v in p.values() if v.requires_grad], torch.zeros(len(bias)), 0
    rates = [rate * (OPTIONS.boost if v.shape[0] == EXPERTS else 1) for v in learned]
    order = np.concatenate([rng.permutation(len(y)) for _ in range(math.ceil(epochs))])[:int(epochs * len(y))]
    for take in np.split(order[:len(order) // batch * batch], len(order) // batch):
        dense, gate = trunk(p, x[take])
        joint = last(dense, p["last.w"], p["last.b"])[:, torch.arange(batch), y[take]] + gate
        with torch.no_grad():
            r = F.softmax((joint + bias[:, None]) / temperature, 0) if start is None else start[take].T
            mass, steps = mass + r.mean(1), steps + 1
        grads = torch.autograd.grad(-(r * joint).sum(0).mean(), learned)
        with torch.no_grad():
            for value, grad, step in zip(learned, grads, rates):
                value.add_(grad, alpha=-step)
    p, mass = {k: v.detach() for k, v in p.items()}, mass / steps
    if "gate.b" in p:
        p["gate.b"] = (mass + .01).log()
    return p, mass


@torch.no_grad()
def by_behaviour(own, previous, models, valid):
    """FedFomo's rule for each last layer, with a guard: (parameters, merges kept, merges tried)."""
    own, (x, y), kept, tried = {k: v.clone() for k, v in own.items()}, valid, 0, 0
    dense, gate = trunk(own, x)
    flat = lambda p, m: torch.cat([p["last.w"][m], p["last.b"][m].T], 1)
    score = lambda answers: F.nll_loss(torch.logsumexp(answers + gate[:, :, None], 0), y).item()
    experts = last(dense, own["last.w"], own["last.b"])

    def with_expert(m, value):
        answer = last(dense, value[None, :, :-1], value[None, :, -1:].transpose(1, 2))
        return torch.cat([experts[:m], answer, experts[m + 1:]])

    for m in range(EXPERTS):
        before, peers = flat(previous, m), [flat(p, m) for p in models]
        base = score(with_expert(m, before))
        gains = [max(0., base - score(with_expert(m, v))) / max((v - before).norm().item(), 1e-9) for v in peers]
        if sum(gains) == 0:
            continue
        mixed = before + sum(gain / sum(gains) * (v - before) for gain, v in zip(gains, peers))
        tried += 1
        if score(with_expert(m, mixed)) <= score(experts):
            kept, experts = kept + 1, with_expert(m, mixed)
            own["last.w"][m], own["last.b"][m] = mixed[:, :-1], mixed[:, -1:].T
    return own, kept, tried


def merge(scheme, models, previous, masses, nodes):
    """What the nodes hold after an exchange, and counts of guarded merges (kept, tried)."""
    names = SHARED.get(scheme, CONVOLUTIONS + DENSE + ["gate.w"])
    common = {k: sum(p[k] for p in models) / NODES for k in names if k in models[0]}
    shares = [share.view(-1, 1, 1) for share in masses / masses.sum(0).clamp(min=1e-9)]
    common |= {k: sum(share * p[k] for share, p in zip(shares, models)) for k in BY_MASS.get(scheme, [])}
    merged, counts = [p | common for p in models], np.zeros(2)
    if scheme in ("judged", "guarded"):
        for i, p in enumerate(models):
            valid = nodes[i]["valid"]
            if scheme == "guarded":
                losses = [F.nll_loss(answers(q, valid[0]), valid[1]).item() for q in (merged[i], p)]
                merged[i] = merged[i] if losses[0] <= losses[1] else p
                counts += [losses[0] <= losses[1], 1]
            merged[i], *count = by_behaviour(merged[i], previous[i], models, valid)
            counts += count
    return merged, counts


def play(scheme, nodes, statistics, size, seed):
    """All rounds of one scheme: the nodes' models after and before the last merge, masses, counts of merges."""
    models = [fresh(scheme, seed) for _ in nodes]
    rngs = [np.random.default_rng([seed, i]) for i in range(len(nodes))]
    bias = torch.zeros(EXPERTS if scheme in MIXTURES else 1)
    slots, counts = statistics.slots() if scheme in MIXTURES and OPTIONS.start else None, np.zeros(2)
    for r in range(ROUNDS):
        temperature = OPTIONS.warm * (OPTIONS.cold / OPTIONS.warm) ** (r / (ROUNDS - 1))
        starts = slots if slots and r < OPTIONS.start else [None] * len(nodes)
        updates = [train(p, node["train"], SETTINGS[size], rng, temperature, bias, start)
                   for p, node, rng, start in zip(models, nodes, rngs, starts)]
        trained, masses = [u[0] for u in updates], torch.stack([u[1] for u in updates])
        bias += OPTIONS.balance * torch.sign(1 / len(bias) - masses.mean(0))
        models, count = merge(scheme, trained, models, masses, nodes)
        counts += count
    return models, trained, masses, counts


def results(scheme, nodes, statistics, size, seed):
    """The lines that one run gives."""
    began = time.time()
    models, trained, masses, counts = play(scheme, nodes, statistics, size, seed)
    seconds = round(time.time() - began)
    scores = lambda log_p: [100 * (a.argmax(1) == q["test"][1]).float().mean().item() for a, q in zip(log_p, nodes)]
    rounded = lambda values, digits=1: [round(float(v), digits) for v in values]
    summary = lambda name, scores: {"scheme": name, "seconds": seconds, "nodes": rounded(scores)} | dict(
        zip(("accuracy", "worst"), rounded((np.mean(scores), min(scores)))))
    after, before = ([answers(p, node["test"][0]) for p, node in zip(held, nodes)] for held in (models, trained))
    alone, agreeing = (scores([.65 * statistics.answers(i, w[i]) + .35 * a for i, a in enumerate(after)])
                       for w in (np.eye(NODES), statistics.weights))
    line = summary(scheme, scores(after))
    line |= dict(zip(("before", "product"), rounded((np.mean(scores(before)), np.mean(agreeing)))))
    if scheme in MIXTURES:
        line |= {"masses": rounded(masses.mean(0), 2), "own": rounded(masses.max(1)[0], 2)}
        line |= {"kept": int(counts[0]), "tried": int(counts[1])} if counts[1] else {}
    return [line] + ([summary("alone", alone), summary("agreement", agreeing)] if scheme == "local" else [])


def table(lines):
    """Markdown, a table a regime: accuracy (before the last merge), worst node and product, by size; mean over seeds."""
    sizes = sorted({line["size"] for line in lines})
    for regime in dict.fromkeys(line["regime"] for line in lines):
        print(f"\n| {regime} |" + "".join(f" {s} | worst | product |" for s in sizes) + "\n|" + "---|" * (3 * len(sizes) + 1))
        for scheme in ["local", "alone", "agreement", *SCHEMES[1:]]:
            cells = []
            for size in sizes:
                hit = [x for x in lines if (x["regime"], x["size"], x["scheme"]) == (regime, size, scheme)]
                mean = lambda key: f"{np.mean([x[key] for x in hit]):.1f}" if hit and key in hit[0] else "-"
                cells += [f"{mean('accuracy')} ({mean('before')})", mean("worst"), mean("product")]
            print(f"| {scheme} | " + " | ".join(cells).replace(" (-)", "") + " |")


def main():
    lines = [json.loads(x) for x in open(OPTIONS.out)] if os.path.exists(OPTIONS.out) else []
    if OPTIONS.table:
        return table(lines)
    torch.set_num_threads(1)
    images, labels = read(OPTIONS.folder)
    done = {(x["regime"], x["size"], x["seed"], x["scheme"]) for x in lines}
    cells = [(size, seed, regime) for size in OPTIONS.sizes for seed in OPTIONS.seeds for regime in OPTIONS.regimes]
    for size, seed, regime in cells:
        missing = [s for s in OPTIONS.schemes if (regime, size, seed, s) not in done]
        nodes = divide(images, labels, regime, size, seed) if missing else []
        statistics = Statistics(nodes) if missing else None
        for scheme in missing:
            for line in results(scheme, nodes, statistics, size, seed):
                text = json.dumps({"regime": regime, "size": size, "seed": seed} | line)
                print(text, flush=True)
                with open(OPTIONS.out, "a") as out:
                    print(text, file=out)


def arguments():
    words, numbers = (lambda text: text.split(",")), (lambda text: [int(v) for v in text.split(",")])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder with Fashion-MNIST's four .gz files")
    parser.add_argument("--out", default="gradient-experts.jsonl", help="file of results, one JSON line a run")
    parser.add_argument("--sizes", type=numbers, default=list(SETTINGS), help="training images a node: 300, 1000, 3000")
    parser.add_argument("--seeds", type=numbers, default=[1, 2], help="seeds of divisions and starts")
    parser.add_argument("--regimes", type=words, default=["rotated", "renamed"])
    parser.add_argument("--schemes", type=words, default=SCHEMES, help="of " + ", ".join(SCHEMES))
    parser.add_argument("--table", action="store_true", help="print the tables of --out")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    for name, value, text in (("--warm", 2., "temperature of responsibilities in the first round"),
                              ("--cold", 1., "temperature of responsibilities in the last round"),
                              ("--start", 3, "rounds with responsibilities of the common start"),
                              ("--balance", .2, "step of the bias that balances experts"),
                              ("--boost", 4., "learning rate of experts and gate, in learning rates")):
        parser.add_argument(name, type=type(value), default=value, help=text)
    options = parser.parse_args()
    for name, known in (("sizes", SETTINGS), ("regimes", ["rotated", "renamed"]), ("schemes", SCHEMES)):
        if unknown := [value for value in getattr(options, name) if value not in known]:
            parser.error(f"--{name} knows {', '.join(map(str, known))}, not {unknown[0]}")
    if not options.table and not os.path.exists(os.path.join(options.folder, "train-images-idx3-ubyte.gz")):
        parser.error(f"{options.folder} has no train-images-idx3-ubyte.gz: name the folder of Fashion-MNIST")
    return options


if __name__ == "__main__":
    OPTIONS = arguments()
    main()
