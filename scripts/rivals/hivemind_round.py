"""Seconds per round of hivemind: peers, each a process, average a vector of floats.

    python hivemind_round.py PEERS FLOATS ROUNDS      in an environment with hivemind
"""
import sys
import time

import together

PEERS, FLOATS, ROUNDS = map(int, sys.argv[1:4])


def peer(number, addresses, barrier, ended):
    import torch
    import hivemind
    from hivemind.averaging import DecentralizedAverager

    torch.set_num_threads(1)
    known = addresses.get() if number else None
    dht = hivemind.DHT(initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    if not number:
        for _ in range(PEERS - 1):
            addresses.put([str(address) for address in dht.get_visible_maddrs()])
    averager = DecentralizedAverager(
        [torch.full((FLOATS,), float(number))], dht, start=True, prefix="bench", target_group_size=PEERS,
        min_matchmaking_time=1.0, request_timeout=0.5)
    for round in range(ROUNDS):
        with averager.get_tensors() as (values,):
            values.fill_(number + round)
        barrier.wait()
        group = averager.step(timeout=60)
        if group is None or len(group) != PEERS:
            raise RuntimeError(f"round {round}: a group of {0 if group is None else len(group)} of {PEERS} peers")
        barrier.wait()
        with averager.get_tensors() as (values,):
            # Every peer should now have the mean of 0, 1, ….
            assert abs(values[0].item() - (round + (PEERS - 1) / 2)) < 1e-3, values[0]
        if not number:
            ended.put(time.perf_counter())
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    # The first round, in which peers meet, is not counted.
    times = together.run(peer, PEERS, ROUNDS)
    print(f"{(times[-1] - times[0]) / (ROUNDS - 1):.4f} s per round over {ROUNDS - 1} rounds")
