#!/usr/bin/env python3
"""Measures lossless compression of experts on the wire, alone and against an older version.

    fednode swarm --nodes 3 --rounds 6 --data fashion-mnist --samples-per-node 500 --out RUN
    scripts/bench-compression.py RUN/nodes/1/state [HOW_MANY]

Takes the last experts that this node fetched. The base of each is the nearest, by Euclidean distance, of those that it
had fetched from the same owner in earlier rounds: the last version of the same expert, as a rule. Bytes are compressed
by zstd in segments of 1 MiB, as they travel, by one thread; the time is processor time and includes the shuffling (the
first bytes of all numbers first, then the second ones). Needs numpy and zstandard; a virtual environment of its own is
made for them.
"""

import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import time

VENV = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "fednode" / "compression"
SEGMENT = 1 << 20


def enter_venv():
    """Starts again with numpy and zstandard; installs them once."""
    python = VENV / "bin" / "python"
    if pathlib.Path(sys.prefix) == VENV:
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy", "zstandard"], check=True)
    os.execv(python, [python, *sys.argv])


def numbers(path):
    import numpy

    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    types = {tensor["dtype"] for tensor in json.loads(data[8:header]).values()}
    if types != {"F32"}:
        sys.exit(f"{path} holds {types}, expected F32: measure a federation whose precision is f32")
    return numpy.frombuffer(data, "<f4", offset=header)


def load(state):
    """Returns (round, owner, numbers) of all fetched experts that are still held, in that order."""
    ledger = sqlite3.connect(f"file:{state}/ledger.sqlite?mode=ro", uri=True)
    query = "SELECT round, source, blob FROM transfers WHERE kind = 'expert' ORDER BY id"
    experts = []
    for number, owner, blob in ledger.execute(query):
        path = state / "blobs" / blob.hex()[:2] / blob.hex()
        if path.is_file():
            experts.append((number, owner, numbers(path)))
    return experts


def with_base(experts, index):
    import numpy

    number, owner, new = experts[index]
    older = [base for before, by, base in experts if before < number and by == owner and base.size == new.size]
    distances = [float(numpy.sum((new - base) ** 2)) for base in older]
    return (new, older[distances.index(min(distances))]) if older else None


def words(values, precision):
    """Returns the bit patterns as whole numbers."""
    import numpy

    if precision == "f32":
        return values.view(numpy.int32)
    if precision == "f16":
        return values.astype(numpy.float16).view(numpy.int16)
    bits = values.view(numpy.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(numpy.uint16).view(numpy.int16)


def encode(new, base, delta):
    if delta == "none":
        return new
    if delta == "xor":
        return new ^ base
    difference = new - base
    # Small differences of either sign get leading zeros.
    return (difference << 1) ^ (difference >> (8 * difference.itemsize - 1))


def measure(arrays, shuffled, level):
    """Returns the saved percent of all, of the least and the most, and MB/s (of what goes in) there and back."""
    import numpy
    import zstandard

    compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    sizes = []
    compressing = decompressing = 0.0
    for array in arrays:
        width = array.itemsize
        data = array.tobytes()
        sizes.append([len(data), 0])
        for segment in (data[at : at + SEGMENT] for at in range(0, len(data), SEGMENT)):
            started = time.process_time()
            planes = numpy.frombuffer(segment, numpy.uint8).reshape(-1, width).T.tobytes() if shuffled else segment
            small = compressor.compress(planes)
            compressing += time.process_time() - started
            started = time.process_time()
            back = decompressor.decompress(small)
            if shuffled:
                back = numpy.frombuffer(back, numpy.uint8).reshape(width, -1).T.tobytes()
            decompressing += time.process_time() - started
            assert back == segment
            sizes[-1][1] += len(small)
    before, after = map(sum, zip(*sizes))
    rate = lambda seconds: before / 1e6 / seconds if seconds else float("inf")
    each = [100 * (1 - small / large) for large, small in sizes]
    return (100 * (1 - after / before), min(each), max(each)), rate(compressing), rate(decompressing)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    enter_venv()
    experts = load(pathlib.Path(sys.argv[1]))
    how_many = int(sys.argv[2]) if len(sys.argv) == 3 else 8
    pairs = [pair for index in range(len(experts)) if (pair := with_base(experts, index))][-how_many:]
    if not pairs:
        sys.exit("no expert that was fetched in two rounds")
    print(f"{len(experts)} experts fetched, {pairs[0][0].size} values each, the last {len(pairs)} measured")
    columns = f"{'numbers':8} {'delta':11} {'shuffled':8} {'level':>5}"
    print(f"{columns} {'saved':>7} {'least':>7} {'most':>7} {'compress':>11} {'decompress':>11}")
    for precision in ("f32", "f16", "bf16"):
        for delta in ("none", "xor", "difference"):
            arrays = [encode(words(new, precision), words(base, precision), delta) for new, base in pairs]
            for shuffled in (False, True):
                for level in (1, 3):
                    saved, fast, back = measure(arrays, shuffled, level)
                    row = f"{precision:8} {delta:11} {'yes' if shuffled else 'no':8} {level:5}"
                    percents = " ".join(f"{percent:5.1f} %" for percent in saved)
                    print(f"{row} {percents} {fast:6.0f} MB/s {back:6.0f} MB/s")


if __name__ == "__main__":
    main()
