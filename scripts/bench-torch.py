#!/usr/bin/env python3
"""Local updates of the reference networks in PyTorch, for comparison with `cargo run --release --example speed`.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch
    /tmp/torch/bin/python scripts/bench-torch.py [--threads 1] [--seconds 3] [--model cnn] [--batch 10]
        [--device cpu|cuda] [--compile] [--requests]

Prints samples per second of wall time and of processor time, the second being what a shared machine can compare. With
--requests it measures what standard input asks for, a line `MODEL BATCH SECONDS` each, until that ends. With --compile
the forward pass and the loss go through `torch.compile`, which takes seconds before the clock runs.
"""

import argparse
import sys
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


def pfedmoe(filters, units):
    """One of CNN-1 to CNN-5: maps of the second convolution, units of the first hidden layer."""
    return lambda: nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, filters, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * filters, units), nn.ReLU(), nn.Linear(units, 500), nn.ReLU(), nn.Linear(500, 10))


MODELS = {
    "cnn": cnn, "lenet5": lenet5, "mlp": mlp, "cnn-1": pfedmoe(32, 2000), "cnn-2": pfedmoe(16, 2000),
    "cnn-3": pfedmoe(32, 1000), "cnn-4": pfedmoe(32, 800), "cnn-5": pfedmoe(32, 500)}


def measure(model, batch, seconds, device, is_compiled):
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    inputs = torch.rand(1024, 1, 28, 28, device=device)
    labels = torch.randint(0, 10, (1024,), device=device)

    def loss_of(inputs, labels):
        return nn.functional.cross_entropy(model(inputs), labels)

    if is_compiled:
        # Two sizes of batches are two programs: one for all sizes is slower.
        loss_of = torch.compile(loss_of, dynamic=False)

    def epoch():
        order = torch.randperm(1024, device=device)
        for start in range(0, 1024, batch):
            rows = order[start:start + batch]
            optimizer.zero_grad()
            loss = loss_of(inputs[rows], labels[rows])
            loss.backward()
            optimizer.step()
            loss.item()

    epoch()
    wall, processor, n_samples = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - wall < seconds:
        epoch()
        n_samples += 1024
    return n_samples / (time.perf_counter() - wall), n_samples / (time.process_time() - processor)


def report(name, batch, seconds, arguments):
    wall, processor = measure(MODELS[name](), batch, seconds, arguments.device, arguments.compile)
    print(f"torch {name:7} batch {batch:4}: {wall:8.0f} samples/s, {processor:8.0f} per processor second", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--requests", action="store_true")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    torch.set_num_threads(arguments.threads)
    if arguments.requests:
        for line in sys.stdin:
            name, batch, seconds = line.split()
            report(name, int(batch), float(seconds), arguments)
        return
    for name in [arguments.model] if arguments.model else MODELS:
        for batch in [arguments.batch] if arguments.batch else [10, 64, 256]:
            report(name, batch, arguments.seconds, arguments)


if __name__ == "__main__":
    main()
