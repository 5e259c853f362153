"""Writes resnet8.safetensors: ResNet-8 in PyTorch, forward and one SGD step in double precision.

    python resnet8.py resnet8.safetensors        with PyTorch 2

Parameters and images come from formulas of whole numbers that the test repeats, so that only results are stored:
`logits` in training mode, `inference` after the step, `gradient.*` and `statistic.*` after the step.
"""

import json
import struct
import sys

import torch
from torch import nn
from torch.nn import functional

CLASSES, SAMPLES, SHAPE, RATE = 10, 6, [3, 16, 16], 0.1


def numbers(shape, which, scale):
    """Whole numbers from -1000 to 1000, which no two tensors have in the same order, over 1000 and times a scale."""
    count = 1
    for side in shape:
        count *= side
    values = [((at * 7919 + which * 104729 + (at * at) % 523 * 31) % 2001 - 1000) / 1000 * scale for at in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class ResNet8(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(SHAPE[0], 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(BasicBlock(16, 16, 1))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2))
        self.layer3 = nn.Sequential(BasicBlock(32, 64, 2))
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))


net = ResNet8().double()
state = {name: tensor for name, tensor in net.state_dict().items() if not name.endswith("num_batches_tracked")}
for which, name in enumerate(sorted(state)):
    tensor = state[name]
    if tensor.dim() > 1:
        scale = (3 / (tensor[0].numel())) ** 0.5
        tensor.copy_(numbers(tensor.shape, which, round(scale, 3)))
    elif name.endswith("running_var"):
        tensor.copy_(1 + numbers(tensor.shape, which, 0.5))
    elif name.endswith("weight"):
        tensor.copy_(1 + numbers(tensor.shape, which, 0.25))
    else:
        tensor.copy_(numbers(tensor.shape, which, 0.25))
images = numbers([SAMPLES, *SHAPE], 997, 1.0)
labels = torch.arange(SAMPLES) % CLASSES

results = {}
net.train()
results["logits"] = net(images)
loss = functional.cross_entropy(results["logits"], labels)
loss.backward()
results["loss"] = loss.reshape(1)
torch.optim.SGD(net.parameters(), lr=RATE).step()
for name, parameter in net.named_parameters():
    results[f"gradient.{name}"] = parameter.grad
for name, tensor in net.state_dict().items():
    if "running" in name:
        results[f"statistic.{name}"] = tensor
net.eval()
results["inference"] = net(images)

header, data = {}, b""
for name in sorted(results):
    values = results[name].detach().to(torch.float32)
    raw = struct.pack(f"<{values.numel()}f", *values.flatten().tolist())
    header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
count = sum(parameter.numel() for parameter in net.parameters())
print(count, "parameters, loss", loss.item(), "largest gradient", max(p.grad.abs().max().item() for p in net.parameters()))
