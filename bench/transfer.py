"""Rows of blob transfer: over loopback, over a slower link, from several providers, and its memory."""
import re
import shutil

from bench.page import Rival, at_most, ratio
from bench.run import ROOT, CannotRun, example, output

MBIT = 400


def loopback(page, options):
    printed, command = example("transfer", 100)
    ours, raw = rates(printed)
    page.row("blob of 100 MiB between two processes on loopback", ours, "MiB/s", ratio(0.5), command, Rival("raw TCP", raw))


def slow_link(page, options):
    """The same in a namespace whose loopback has a limited rate: there the link should be full."""
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


def several_providers(page, options):
    """Three providers behind slow links against one of them."""
    printed = output([ROOT / "scripts" / "netlab"], accepts=(0, 1))
    if printed.startswith("skipped: "):
        raise CannotRun(printed.removeprefix("skipped: ").strip())
    found = [re.search(rf"^{what} +([0-9.]+) MiB/s", printed, re.M) for what in ("three providers", "one provider")]
    if not all(found):
        raise CannotRun("scripts/netlab ended without rates: run it by itself")
    three, one = (float(rate[1]) for rate in found)
    name = "three providers of 50 Mbit/s each, in namespaces"
    page.row(name, three, "MiB/s", ratio(2.7), "scripts/netlab", Rival("one of them", one))


def memory(page, options):
    """Peak memory of a blob of 500 MB on both sides, plain and packed."""
    for what, arguments in (("", [477]), (", packed", ["packed", 477])):
        printed, command = example("transfer", *arguments)
        peaks = [float(peak) for peak in re.findall(r"peak RSS ([0-9.]+) MB", printed)]
        page.row(f"a blob of 500 MB{what}: peak memory of the larger side", max(peaks), "MB", at_most(32), command)


def rates(printed):
    return [float(re.search(rf"^{what} +([0-9.]+) MiB/s", printed, re.M)[1]) for what in ("blob", "raw TCP")]
