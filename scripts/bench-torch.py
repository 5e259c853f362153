#!/usr/bin/env python3
"""Local updates of the reference networks in PyTorch: what `cargo run --release --example speed` is compared with.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch
    /tmp/torch/bin/python scripts/bench-torch.py [--threads 1] [--seconds 3] [--model cnn] [--batch 10]

Prints samples per second of wall time and of processor time, the second being what a shared machine can compare.
"""

import argparse
import time

import torch
from torch import nn


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


def lenet5():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


def measure(model, batch, seconds):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    inputs = torch.rand(1024, 1, 28, 28)
    labels = torch.randint(0, 10, (1024,))

    def epoch():
        order = torch.randperm(1024)
        for start in range(0, 1024, batch):
            rows = order[start:start + batch]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            loss.item()

    epoch()
    wall, processor, n_samples = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - wall < seconds:
        epoch()
        n_samples += 1024
    return n_samples / (time.perf_counter() - wall), n_samples / (time.process_time() - processor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--model", choices=["cnn", "lenet5", "mlp"])
    parser.add_argument("--batch", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models = {"cnn": cnn, "lenet5": lenet5, "mlp": mlp}
    for name in [arguments.model] if arguments.model else models:
        for batch in [arguments.batch] if arguments.batch else [10, 64, 256]:
            wall, processor = measure(models[name](), batch, arguments.seconds)
            print(f"torch {name:7} batch {batch:4}: {wall:8.0f} samples/s, {processor:8.0f} per processor second", flush=True)


if __name__ == "__main__":
    main()
