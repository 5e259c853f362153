"""Seconds per round of p2pfl: four processes over gRPC train a small MLP on made-up 8x8 images, one epoch a round.

    python p2pfl_round.py ROUNDS                in an environment with p2pfl[torch]

Its default settings, but without TLS, whose certificates it does not bring, and without Ray, which would start workers
in each of the four processes.
"""
import sys
import time

import together

PEERS, SAMPLES, TESTS, BATCH = 4, 330, 110, 10
ROUNDS = int(sys.argv[1])


def peer(number, addresses, ready, ended):
    import numpy as np
    import torch
    from datasets import Dataset, DatasetDict
    from p2pfl.settings import Settings

    Settings.general.DISABLE_RAY = True
    Settings.ssl.USE_SSL = False
    from p2pfl.examples.mnist.model.mlp_pytorch import model_build_fn
    from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
    from p2pfl.node import Node

    torch.set_num_threads(1)
    random = np.random.default_rng(number)

    def split(count):
        images = random.random((count, 8, 8), dtype=np.float32)
        return Dataset.from_dict({"image": images.tolist(), "label": random.integers(0, 10, count).tolist()})

    data = P2PFLDataset(DatasetDict({"train": split(SAMPLES), "test": split(TESTS)}), batch_size=BATCH)
    node = Node(model_build_fn(input_size=64, hidden_sizes=[200, 200]), data, addr="127.0.0.1")
    node.start()
    if number:
        addresses.put(node.addr)
    else:
        for _ in range(PEERS - 1):
            node.connect(addresses.get())
    while len(node.get_neighbors(only_direct=False)) < PEERS - 1:
        time.sleep(0.1)
    ready.wait()
    if number:
        ready.wait()
    else:
        lead(node, ended)
        ready.wait()
    node.stop()


def lead(node, ended):
    """Starts the training and notes when the round number grows. It is None before and after."""
    node.set_start_learning(rounds=ROUNDS, epochs=1, trainset_size=PEERS)
    known = -1
    while known < ROUNDS:
        now = node.state.round
        if now is None and known >= 0:
            now = ROUNDS
        if now is not None and now > known:
            known = now
            ended.put(time.perf_counter())
        time.sleep(0.005)


if __name__ == "__main__":
    # When round 0, 1, … began, and when the last one ended. The first, in which the model is spread, is not counted.
    times = together.run(peer, PEERS, ROUNDS + 1)
    print(f"{(times[-1] - times[1]) / (ROUNDS - 1):.4f} s per round over {ROUNDS - 1} rounds")
