#!/usr/bin/env python3
"""What lossless compression would save on experts as they travel, alone and against an older version.

    fednode swarm --nodes 3 --rounds 6 --data fashion-mnist --samples-per-node 500 --out RUN
    scripts/bench-compression.py RUN/nodes/1/state/blobs [HOW_MANY]

Takes the newest blobs of the most common size, which are experts. The base of each is the nearest of all older ones, by
Euclidean distance: at least as good as the last version that a receiver holds. Bytes are compressed by zstd in segments
of 1 MiB, as they travel, by one thread; the time is processor time and includes the shuffling (the first bytes of all
numbers first, then the second ones). Needs numpy and zstandard; a virtual environment of its own is made for them.
"""

import collections
import json
import os
import pathlib
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


def load(folder):
    """Returns the numbers of all blobs of the most common size, oldest first."""
    import numpy

    by_size = collections.defaultdict(list)
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            by_size[path.stat().st_size].append((path.stat().st_mtime_ns, path))
    if not by_size:
        sys.exit(f"no blobs in {folder}")
    experts = []
    for _, path in sorted(max(by_size.values(), key=len)):
        data = path.read_bytes()
        header = 8 + int.from_bytes(data[:8], "little")
        types = {tensor["dtype"] for tensor in json.loads(data[8:header]).values()}
        if types != {"F32"}:
            sys.exit(f"{path} holds {types}, expected F32: measure a federation whose precision is f32")
        experts.append(numpy.frombuffer(data, "<f4", offset=header))
    return experts


def nearest_older(experts, index):
    import numpy

    distances = [float(numpy.sum((experts[index] - older) ** 2)) for older in experts[:index]]
    return experts[distances.index(min(distances))]


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
    # Small ones of either sign get leading zeros.
    return (difference << 1) ^ (difference >> (8 * difference.itemsize - 1))


def measure(arrays, shuffled, level):
    """Returns the saved percent and MB/s (of what goes in) of compressing and decompressing."""
    import numpy
    import zstandard

    compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    before = after = 0
    compressing = decompressing = 0.0
    for array in arrays:
        width = array.itemsize
        data = array.tobytes()
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
            before, after = before + len(segment), after + len(small)
    rate = lambda seconds: before / 1e6 / seconds if seconds else float("inf")
    return 100 * (1 - after / before), rate(compressing), rate(decompressing)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    enter_venv()
    experts = load(sys.argv[1])
    how_many = int(sys.argv[2]) if len(sys.argv) == 3 else 8
    newest = range(max(1, len(experts) - how_many), len(experts))
    pairs = [(experts[index], nearest_older(experts, index)) for index in newest]
    print(f"{len(experts)} experts of {experts[0].size} values, the newest {len(pairs)} measured")
    print(f"{'numbers':8} {'delta':11} {'shuffled':8} {'level':>5} {'saved':>8} {'compress':>11} {'decompress':>11}")
    for precision in ("f32", "f16", "bf16"):
        for delta in ("none", "xor", "difference"):
            arrays = [encode(words(new, precision), words(base, precision), delta) for new, base in pairs]
            for shuffled in (False, True):
                for level in (1, 3):
                    saved, fast, back = measure(arrays, shuffled, level)
                    row = f"{precision:8} {delta:11} {'yes' if shuffled else 'no':8} {level:5}"
                    print(f"{row} {saved:6.1f} % {fast:6.0f} MB/s {back:6.0f} MB/s")


if __name__ == "__main__":
    main()
