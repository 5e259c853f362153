"""Seconds per round of Flower's simulation: no training, a model of a given number of floats, all nodes in every round.

    python flower_round.py NODES FLOATS ROUNDS        in an environment with flwr[simulation]
"""
import os
import sys
import time

# Telemetry is off: a measurement must not contact servers.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np  # noqa: E402
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

NODES, FLOATS, ROUNDS = map(int, sys.argv[1:4])
client, server = ClientApp(), ServerApp()
ended = []


@client.train()
def train(message, context):
    arrays = message.content["arrays"]
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when a round is averaged."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if len(replies) != NODES or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"round {server_round}: {len(replies)} replies of {NODES}, or errors among them")
        result = super().aggregate_train(server_round, replies)
        ended.append(time.perf_counter())
        return result


@server.main()
def main(grid, context):
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    initial = ArrayRecord([np.zeros(FLOATS, dtype=np.float32)])
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=ROUNDS)


run_simulation(server_app=server, client_app=client, num_supernodes=NODES)
# The first round, in which the workers start, is not counted.
print(f"{(ended[-1] - ended[0]) / (len(ended) - 1):.4f} s per round over {len(ended) - 1} rounds")
