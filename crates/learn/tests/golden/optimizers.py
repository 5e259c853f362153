"""Writes optimizers.json: steps of PyTorch's optimisers and factors of its schedulers, in double precision.

    python optimizers.py > optimizers.json        with PyTorch 2
"""

import json

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ConstantLR, LinearLR, SequentialLR, StepLR

START = [1.0, -0.5, 0.25, 2.0]
GRADIENTS = [
    [0.5, -1.0, 0.0, 0.125],
    [0.25, 0.75, -0.5, 1.0],
    [-1.5, 0.5, 0.0625, -0.25],
    [0.1, 0.2, 0.3, -0.4],
    [2.0, -0.01, 0.001, 0.0],
    [-0.3, 0.6, -0.9, 1.2],
]
RATE = 0.05
DECAYS = [0.0, 0.1]
OPTIMIZERS = {
    "sgd": lambda parameters, decay: torch.optim.SGD(parameters, lr=RATE, weight_decay=decay),
    "momentum": lambda parameters, decay: torch.optim.SGD(parameters, lr=RATE, momentum=0.9, weight_decay=decay),
    "adam": lambda parameters, decay: torch.optim.Adam(parameters, lr=RATE, weight_decay=decay),
    "adamw": lambda parameters, decay: torch.optim.AdamW(parameters, lr=RATE, weight_decay=decay),
}
ROUNDS = 12
WARMUPS = [0, 3]
SCHEDULES = {
    "constant": lambda optimizer, rounds: ConstantLR(optimizer, factor=1.0),
    "step": lambda optimizer, rounds: StepLR(optimizer, step_size=2, gamma=0.5),
    "cosine": lambda optimizer, rounds: CosineAnnealingLR(optimizer, T_max=rounds),
}


def steps(make, decay):
    parameter = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = make([parameter], decay)
    values = []
    for gradient in GRADIENTS:
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        values.append(parameter.detach().tolist())
    return values


def factors(make, warmup):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer, ROUNDS - warmup)
    if warmup:
        rising = LinearLR(optimizer, start_factor=1 / (warmup + 1), end_factor=1.0, total_iters=warmup)
        schedule = SequentialLR(optimizer, [rising, schedule], milestones=[warmup])
    values = []
    for _ in range(ROUNDS):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


print(
    json.dumps(
        {
            "start": START,
            "gradients": GRADIENTS,
            "rate": RATE,
            "steps": [
                {"optimizer": name, "weight_decay": decay, "values": steps(make, decay)}
                for name, make in OPTIMIZERS.items()
                for decay in DECAYS
            ],
            "rounds": ROUNDS,
            "schedules": [
                {"schedule": name, "warmup": warmup, "factors": factors(make, warmup)}
                for name, make in SCHEDULES.items()
                for warmup in WARMUPS
            ],
        },
        indent=1,
    )
)
