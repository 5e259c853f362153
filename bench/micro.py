"""Rows from criterion: similarity, plan, aggregation, adverts, hashing; rivals are benches of the same run."""
import json

from bench.page import Rival
from bench.run import TARGET, CannotRun, cargo, shown

BENCHES = {"exchange": "fednode-mix", "codec": "fednode-net", "blobs": "fednode-core"}


def micro(page, options):
    """Each bench fails alone: the rows of the others are kept."""
    for bench, package in BENCHES.items():
        command = ["bench", "-p", package, "--bench", bench]
        try:
            cargo(*command, "--", *(["--quick"] if options.quick else []))
            ROWS[bench](page, shown(["cargo", *command]))
        except CannotRun as reason:
            page.skip(f"criterion bench `{bench}`", str(reason))


def exchange(page, command):
    size = "N = 50, K = 4, n = 4608"
    page.row(f"similarity rows of one node, {size}", 1e3 * seconds("plan/similarity rows"), "ms", None, command)
    page.row(f"whole plan of one node, {size}", 1e3 * seconds("plan/whole plan"), "ms", None, command)
    rival = Rival("reading the same bytes", rate("mean/memory"))
    page.row("weighted mean of 20 × 1 M floats", rate("mean/weighted"), "GB/s", None, command, rival)
    plain = Rival("the weighted mean", rate("mean/weighted"))
    page.row("clipped mean of 20 × 1 M floats", rate("mean/clipped"), "GB/s", None, command, plain)


def codec(page, command):
    for what in ("encode", "encode and sign", "decode and verify"):
        page.row(f"advert with 16 KiB of proxies: {what}", 1e6 * seconds(f"advert/{what}"), "µs", None, command)


def blobs(page, command):
    rival = Rival("BLAKE3 on one thread", rate("blob/blake3"))
    page.row("verifying a blob of 32 MiB", rate("blob/verify"), "GB/s", None, command, rival)


ROWS = {"exchange": exchange, "codec": codec, "blobs": blobs}


def seconds(bench):
    """The typical time of one iteration: the slope of time over iterations, where criterion fits one, else the mean."""
    estimates = read(bench, "estimates.json")
    return (estimates["slope"] or estimates["mean"])["point_estimate"] / 1e9


def rate(bench):
    """GB (10^9 bytes) per second."""
    return read(bench, "benchmark.json")["throughput"]["Bytes"] / seconds(bench) / 1e9


def read(bench, file):
    group, name = bench.split("/")
    path = TARGET / "criterion" / group / name / "new" / file
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise CannotRun(f"criterion left no {path.name} of {bench}") from error
