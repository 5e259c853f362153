"""A network of network namespaces: two bridges with a cable between them, and hosts on both."""
import collections
import subprocess

Host = collections.namedtuple("Host", "name address")
# What a probe must be able to do before anything here is tried.
PROBE = ("mount -t tmpfs none /run && ip link set lo up && ip netns add probe && "
         "ip link add bridge type bridge && ip link add one type veth peer name other netns probe")


class NetError(Exception):
    """What the system did not allow, in one line."""


class Net:
    """`far` names the hosts on the second bridge. It is made and used where `/run` is a folder of our own."""

    def __init__(self, far=()):
        self.far, self.hosts = far, {}
        for name in ("near", "far"):
            ip("link", "add", name, "type", "bridge")
            ip("link", "set", name, "up")
        ip("link", "add", "near-far", "type", "veth", "peer", "name", "far-near")
        for end in ("near-far", "far-near"):
            ip("link", "set", end, "master", end.split("-")[0], "up")

    def host(self, name):
        """Makes a namespace with one link to a bridge."""
        host = self.hosts[name] = Host(name, f"10.0.0.{len(self.hosts) + 1}")
        ip("netns", "add", name)
        ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "cable", "netns", name)
        ip("link", "set", f"to-{name}", "master", "far" if name in self.far else "near", "up")
        for device in ("lo", "cable"):
            ip("-n", name, "link", "set", device, "up")
        ip("-n", name, "address", "add", f"{host.address}/24", "dev", "cable")
        return host

    def cable(self, word):
        """Turns the cable between the bridges `up` or `down`."""
        ip("link", "set", "near-far", word)

    def deafen(self, name):
        """Sends what the others have for a host to nowhere. What the host sends arrives."""
        for other in self.hosts.keys() - {name}:
            ip("-n", other, "neigh", "replace", self.hosts[name].address, "lladdr", "02:00:00:00:00:01", "dev", "cable",
               "nud", "permanent")

    def undeafen(self, name):
        for other in self.hosts.keys() - {name}:
            ip("-n", other, "neigh", "del", self.hosts[name].address, "dev", "cable")

    def thin(self, name, rate):
        """Limits what a host can send."""
        tc("-n", name, "qdisc", "add", "dev", "cable", "root", "tbf", "rate", rate, "burst", "16kb", "latency", "400ms")

    def thicken(self, name):
        tc("-n", name, "qdisc", "del", "dev", "cable", "root")

    def close(self):
        for name in self.hosts:
            ip("netns", "del", name)
        for device in ("near", "far", "near-far"):
            ip("link", "del", device)


def can_thin():
    """Tries whether links can be limited, and raises an error if not."""
    ip("link", "add", "probe", "type", "bridge")
    try:
        tc("qdisc", "add", "dev", "probe", "root", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "1s")
    finally:
        ip("link", "del", "probe")


def ip(*arguments, tool="ip"):
    try:
        done = subprocess.run([tool, *arguments], capture_output=True, text=True)
    except OSError as error:
        raise NetError(f"no `{tool}` here: {error.strerror}") from error
    if done.returncode:
        raise NetError(f"{tool} {' '.join(arguments)}: {done.stderr.strip()}")


def tc(*arguments):
    ip(*arguments, tool="tc")
