"""Rows of blob transfer: over loopback, and over a slower link in a network namespace, each against raw TCP there."""
import re
import shutil

from bench.page import Rival, ratio
from bench.run import CannotRun, example, output

MBIT = 400


def loopback(page, options):
    printed, command = example("transfer", 100)
    ours, raw = rates(printed)
    page.row("blob of 100 MiB between two processes on loopback", ours, "MiB/s", ratio(0.5), command, Rival("raw TCP", raw))


def slow_link(page, options):
    """The same in a namespace whose loopback passes so many bits a second: there the link should be full."""
    for tool in ("unshare", "ip", "tc"):
        if not shutil.which(tool):
            raise CannotRun(f"`{tool}` is missing (Debian: util-linux, iproute2)")
    # A bucket smaller than one packet of loopback (64 KiB) would pass nothing.
    shape = f"ip link set lo up && tc qdisc add dev lo root tbf rate {MBIT}mbit burst 256kb latency 100ms"
    before = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", f'{shape} && exec "$0" "$@"']
    output([*before, "true"])
    printed, command = example("transfer", 50, before=before)
    ours, raw = rates(printed)
    name = f"blob of 50 MiB over a link of {MBIT} Mbit/s in a namespace"
    page.row(name, ours, "MiB/s", ratio(0.5), command, Rival("raw TCP on that link", raw))


def rates(printed):
    return [float(re.search(rf"^{what} +([0-9.]+) MiB/s", printed, re.M)[1]) for what in ("blob", "raw TCP")]
