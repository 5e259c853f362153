"""Runs several processes together, for rivals whose peers are processes."""
import multiprocessing
import queue
import sys

# Longest wait for the next round to end.
PATIENCE = 120


def run(peer, count, expected):
    """Runs `peer(number, addresses, barrier, ended)` several times at once. Returns the expected times from `ended`."""
    # Forked, since a spawned process hands its way of starting on to the rivals' own processes.
    context = multiprocessing.get_context("fork")
    shared = context.Queue(), context.Barrier(count), context.Queue()
    peers = [context.Process(target=guarded, args=(peer, number, *shared)) for number in range(count)]
    for process in peers:
        process.start()
    try:
        times = [next_time(shared[-1]) for _ in range(expected)]
        for process in peers:
            process.join(3)
        return times
    finally:
        for process in peers:
            process.terminate()


def guarded(peer, number, addresses, barrier, ended):
    try:
        peer(number, addresses, barrier, ended)
    except Exception as error:
        ended.put(f"{type(error).__name__}: {error}")


def next_time(ended):
    """The end of the next round, unless a peer reports an error."""
    try:
        said = ended.get(timeout=PATIENCE)
    except queue.Empty:
        sys.exit(f"no round ended within {PATIENCE} s")
    return sys.exit(said) if isinstance(said, str) else said
