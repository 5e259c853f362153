"""Plays the manifests: each pod of the StatefulSets becomes processes of the real image on a host of its own.

    manifests ─► pods: volumes and variables as the kubelet makes them ─► first container ─► main container, probes
                                                 └► rolling restart, and a pod that comes back elsewhere

A host is a network namespace with an address. The image is mounted read-only and runs as its user, so a key that the group may
read is refused here as in a cluster. There is no scheduler, and nobody enforces the network policy.
"""
import base64
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "scripts")]
sys.dont_write_bytecode = True

from chaoslab.net import Net, NetError  # noqa: E402
from checker.report import Failed, hold, run  # noqa: E402

USER = 65532
PATIENCE = 120
APART = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Mounts what a container sees, and becomes its process.
CONTAINER = """
root=$1 resolver=$2; shift 2
mount --bind "$root" "$root"
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"; shift 3; done
shift
mount --bind "$resolver" "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,bind,ro "$root"
exec "$@"
"""


class Cluster:
    """Documents, the image, and the hosts on which pods run."""

    def __init__(self, documents, image, folder):
        self.documents, self.image, self.folder = documents, image, folder
        self.net, self.n_hosts, self.pods, self.addresses = Net(), 0, {}, {}
        self.machines = folder / "machines"
        # A runtime lays this file over that of the image.
        (image / "etc" / "resolv.conf").touch()
        self.resolver, self.names = folder / "resolv.conf", folder / "names.json"
        server = self.host()
        self.resolver.write_text(f"nameserver {server.address}\nsearch fednode.svc.cluster.local\noptions ndots:5\n")
        self.names.write_text("{}")
        line = ["ip", "netns", "exec", server.name, sys.executable, HERE.parent / "names.py", self.names, server.address]
        self.server = subprocess.Popen([str(word) for word in line])

    def host(self):
        """Adds a machine, and returns its name and address."""
        self.n_hosts += 1
        return self.net.host(f"host-{self.n_hosts}")

    def start(self):
        for document in self.documents:
            if document["kind"] == "StatefulSet":
                spec = document["spec"]
                first = spec.get("ordinals", {}).get("start", 0)
                for ordinal in range(first, first + spec["replicas"]):
                    name = f"{document['metadata']['name']}-{ordinal}"
                    self.pods[name] = Pod(self, name, ordinal, document)
        for pod in self.pods.values():
            pod.place()
        for pod in self.pods.values():
            pod.start()

    def know(self, pod, address):
        """Tells all hosts the addresses of the services, as the cluster's names do."""
        service = pod.document["spec"]["serviceName"]
        self.addresses |= {service: address, f"{service}.fednode.svc.cluster.local": address}
        draft = self.names.with_suffix(".draft")
        draft.write_text(json.dumps(self.addresses))
        draft.rename(self.names)

    def content(self, kind, name):
        """Returns the files of a config map or a secret."""
        for document in self.documents:
            if document["kind"] == kind and document["metadata"]["name"] == name:
                plain = {key: text.encode() for key, text in (document.get("stringData") or {}).items()}
                data = document.get("data") or {}
                read = base64.b64decode if kind == "Secret" else str.encode
                return plain | {key: read(text) for key, text in data.items()}
        raise Failed(f"no {kind} `{name}`")

    def close(self):
        self.server.kill()
        self.server.wait()
        for pod in self.pods.values():
            if pod.process:
                pod.process.kill()
                pod.process.wait()


class Pod:
    """One pod: its volumes stay while its processes come and go."""

    def __init__(self, cluster, name, ordinal, document):
        self.cluster, self.name, self.ordinal, self.document = cluster, name, ordinal, document
        self.spec = document["spec"]["template"]["spec"]
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self.process = self.host = None
        self.starts = 0

    @property
    def main(self):
        return self.spec["containers"][0]

    def place(self):
        """Puts the pod on a machine, which gives it an address."""
        self.host = self.cluster.host()
        self.cluster.know(self, self.host.address)

    def start(self):
        """Lays the volumes, runs the first containers to their end, and starts the main one."""
        volumes = self.lay()
        for container in self.spec.get("initContainers", []):
            done = subprocess.run(self.line(container, volumes), capture_output=True, text=True, timeout=PATIENCE)
            hold(done.returncode == 0, f"{self.name}, container {container['name']}: {done.stderr.strip()}")
        self.starts += 1
        self.volumes = volumes
        log = (self.folder / f"log-{self.starts}").open("wb")
        self.process = subprocess.Popen(self.line(self.main, volumes), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def lay(self):
        """Makes the folders of the volumes with owners and modes as the kubelet does for a group of files."""
        group = self.spec["securityContext"].get("fsGroup")
        claims = [claim["metadata"]["name"] for claim in self.document["spec"].get("volumeClaimTemplates", [])]
        volumes = {}
        for name in claims:
            volumes[name] = self.folder / f"claim-{name}"
            if not volumes[name].exists():
                volumes[name].mkdir()
                # Docker gives a new volume the owner that the folder has in the image.
                os.chown(volumes[name], 0 if group else USER, group or USER)
                volumes[name].chmod(0o2775 if group else 0o700)
        for volume in self.spec["volumes"]:
            place = self.folder / f"start-{self.starts}-{volume['name']}"
            place.mkdir()
            os.chown(place, 0, group or 0)
            place.chmod(0o2777 if "emptyDir" in volume else 0o755)
            files = {}
            if "bind" in volume:
                place = volume["bind"]
            elif "hostPath" in volume:
                # Each machine has data of its own.
                place = self.cluster.machines / self.name
            elif "secret" in volume:
                files = self.cluster.content("Secret", volume["secret"]["secretName"])
            elif "configMap" in volume:
                files = self.cluster.content("ConfigMap", volume["configMap"]["name"])
            for key, data in files.items():
                (place / key).write_bytes(data)
                os.chown(place / key, 0, group)
                (place / key).chmod(0o640 if "secret" in volume else 0o644)
            volumes[volume["name"]] = place
        return volumes

    def line(self, container, volumes, command=None):
        """Returns the command line that is a container."""
        mounts = []
        for mount in container["volumeMounts"]:
            target = self.cluster.image / mount["mountPath"].lstrip("/")
            target.mkdir(exist_ok=True)
            mounts += [volumes[mount["name"]], mount["mountPath"], "ro" if mount.get("readOnly") else "rw"]
        folder = container.get("workingDir", "/")
        inside = ["chroot", f"--userspec={USER}:{USER}", f"--groups={USER}", self.cluster.image]
        # The working directory, as dash can set it.
        inside += ["/bin/sh", "-c", f'cd {folder} && exec "$@"', "container"]
        inside += command or [*container["command"], *container.get("args", [])]
        variables = [f"{name}={value}" for name, value in self.variables(container).items()]
        line = ["ip", "netns", "exec", self.host.name, "unshare", "--mount", "sh", "-euc", CONTAINER, "container",
                self.cluster.image, self.cluster.resolver, *mounts, "--", "env", "-i", *variables, *inside]
        return [str(word) for word in line]

    def variables(self, container):
        """Returns the variables of a container, with those of Kubernetes put in."""
        known = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": self.name}
        fields = {"metadata.name": self.name, "metadata.labels['apps.kubernetes.io/pod-index']": str(self.ordinal)}
        for entry in container.get("env", []):
            value = entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            known[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], value)
        return known

    def probe(self, kind="readinessProbe"):
        """Runs a probe of the main container, and says whether it passes."""
        probe = self.main[kind]
        line = self.line(self.main, self.volumes, probe["exec"]["command"])
        return subprocess.run(line, capture_output=True, timeout=probe["timeoutSeconds"]).returncode == 0

    def status(self):
        line = self.line(self.main, self.volumes, [*self.main["readinessProbe"]["exec"]["command"], "--json"])
        return json.loads(run(*line))

    def stop(self):
        """Asks the process to end, as the kubelet does; returns how long that took."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(self.spec["terminationGracePeriodSeconds"])
        hold(code in (0, 130), f"{self.name} ended with {code}: {self.last_line()}")
        return time.monotonic() - begun

    def last_line(self):
        lines = (self.folder / f"log-{self.starts}").read_text().strip().splitlines()
        return lines[-1] if lines else "no line in its log"

    def until(self, what, condition):
        """Waits until a condition of this pod holds."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with {self.process.returncode}: {self.last_line()}")
            try:
                if condition():
                    return
            except (Failed, ValueError, subprocess.TimeoutExpired):
                pass
            time.sleep(0.3)
        raise Failed(f"{self.name}: {PATIENCE} seconds have passed, and not yet: {what}; {self.last_line()}")


class Organiser:
    """The organiser's own node, on a host outside the cluster."""

    def __init__(self, cluster, n_nodes, table):
        self.cluster, self.host, self.ward = cluster, cluster.host(), cluster.folder / "ward"
        flags = ["--nodes", n_nodes, "--rounds", 1000, "--name", "organiser", "--data", f"csv:{table},label=outcome",
                 "--privacy", "open"]
        self.run("init", self.ward, *flags)
        log = (cluster.folder / "organiser.log").open("wb")
        line = self.line("start", "--config", self.ward / "node.toml", "--listen", "/ip4/0.0.0.0/tcp/4001")
        self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def line(self, *command):
        program = self.cluster.image / "usr/bin/fednode"
        return [str(word) for word in ["ip", "netns", "exec", self.host.name, program, *command]]

    def run(self, *command):
        return run(*self.line(*command))

    def invite(self, name):
        """Returns a ticket; waits until the node is there to be named in it."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return json.loads(self.run("invite", name, "--json", "--dir", self.ward))["ticket"]
            except Failed:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.3)

    def end(self):
        self.process.kill()
        self.process.wait()


def at_round(pod):
    """The round on which a node works."""
    return pod.status()["round"]


def table(path, seed):
    """Writes a table of a party's own, with words and gaps."""
    dice = random.Random(seed)
    rows = ["age,pain,smokes,outcome"]
    for _ in range(150):
        age, smokes = 30 + 5 * seed + dice.randrange(40), dice.choice(["yes", "no", ""])
        pain = dice.choice(["typical", "none"])
        rows.append(f"{age},{pain},{smokes},{int(age > 55) + int(smokes == 'yes') > dice.randrange(2):d}")
    path.write_text("\n".join(rows) + "\n")


def play_tickets(documents, image, folder, _):
    """Lets pods join an organiser elsewhere, takes the organiser away, and restarts them."""
    cluster = Cluster(documents, image, folder)
    own = folder / "own.csv"
    table(own, 0)
    [nodes] = [document for document in documents if document["kind"] == "StatefulSet"]
    [secret] = [document for document in documents if document["kind"] == "Secret"]
    n_pods = nodes["spec"]["replicas"]
    organiser = Organiser(cluster, n_pods + 1, own)
    begun = time.monotonic()
    try:
        names = [f"fednode-node-{number}" for number in range(1, n_pods + 1)]
        secret["stringData"] = {name: organiser.invite(name) for name in names}
        for seed, name in enumerate(names, 1):
            (cluster.machines / name).mkdir(parents=True)
            table(cluster.machines / name / "ward.csv", seed)
        cluster.start()
        for pod in cluster.pods.values():
            pod.until("it is ready", pod.probe)
            pod.until("a round has passed", lambda pod=pod: at_round(pod) >= 2)
        joined = time.monotonic() - begun
        organiser.end()
        for pod in cluster.pods.values():
            pod.stop()
            pod.start()
            pod.until("it is ready again", pod.probe)
        before = max(at_round(pod) for pod in cluster.pods.values())
        for pod in cluster.pods.values():
            pod.until("rounds go on without the organiser", lambda pod=pod: at_round(pod) > before + 1)
        return f"{n_pods} pods joined and passed a round in {joined:.1f} s, and restart when the organiser is gone"
    finally:
        organiser.end()
        cluster.close()


def play(documents, image, folder, rounds):
    """Starts all pods, restarts them one by one, moves one, and waits for the last round; returns a line of figures."""
    cluster = Cluster(documents, image, folder)
    begun = time.monotonic()
    try:
        cluster.start()
        for pod in cluster.pods.values():
            pod.until("it is ready", pod.probe)
        ready = time.monotonic() - begun
        nodes = [pod for pod in cluster.pods.values() if pod.main["name"] == "fednode"]
        for pod in nodes:
            pod.until("a round has passed", lambda pod=pod: at_round(pod) >= 2)
        keys = [(pod.folder / "claim-state/state/key").read_bytes() for pod in nodes]
        slowest = 0.0
        for number, pod in enumerate([*reversed(nodes), *(p for p in cluster.pods.values() if p not in nodes)]):
            slowest = max(slowest, pod.stop())
            if number == 0:
                # The machine of the first one is lost: the pod and its volume come back on another one.
                pod.place()
            pod.start()
            pod.until("it is ready again", pod.probe)
        reached = min(at_round(pod) for pod in nodes)
        hold(reached < rounds, "all rounds were over before all pods were restarted: this needs more rounds")
        for pod in nodes:
            pod.until("all rounds have passed", lambda pod=pod: pod.status()["finished"])
        hold(keys == [(pod.folder / "claim-state/state/key").read_bytes() for pod in nodes], "a key has changed")
        total = time.monotonic() - begun
        return (f"{len(cluster.pods)} pods, ready after {ready:.1f} s, each restarted and one moved, stopped in at most "
                f"{slowest:.1f} s by round {reached}, {rounds} rounds in {total:.1f} s")
    finally:
        cluster.close()


def main():
    """Runs apart from the system: `pods.py SCENARIO DOCUMENTS IMAGE FOLDER ROUNDS`."""
    scenario, documents, image, folder, rounds = sys.argv[1:]
    scenario = {"key": play, "compose": play, "tickets": play_tickets}[scenario]
    run("mount", "-t", "tmpfs", "none", "/run")
    run("ip", "link", "set", "lo", "up")
    try:
        read = json.loads(pathlib.Path(documents).read_text())
        print(scenario(read, pathlib.Path(image), pathlib.Path(folder), int(rounds)))
    except (Failed, NetError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
