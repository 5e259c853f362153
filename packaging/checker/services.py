"""The units at work: systemd is started in the clean root, in namespaces of its own, and runs a federation.

    organiser's node ─► invites ─► a second node and a fedboot join ─► three services ─► rounds ─► stop, crash, bad settings
"""
import json
import os
import pathlib
import re
import subprocess
import time

from .report import Failed, Skipped, hold, run

STARTING, PATIENCE = 40, 90
ROUNDS = 4
BOOT = """
root=$1
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
for folder in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs $folder; done
chmod 1777 tmp
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
touch dev/console
ln -s /proc/self/fd dev/fd
mount -t cgroup2 cgroup2 sys/fs/cgroup
ip link set lo up
# No chroot: who is in one may make no namespace of users, and the units do.
pivot_root . mnt
cd /
umount -l mnt
exec env -i container=check PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=multi-user.target
"""


class Machine:
    """A running systemd, and commands beside it."""

    def __init__(self, root):
        command = ["unshare", "--mount", "--pid", "--cgroup", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        command += ["sh", "-euc", BOOT, "boot", str(root.folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        end = time.monotonic() + STARTING
        while time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.5)
            try:
                if self.run("systemctl", "is-active", "multi-user.target").strip() == "active":
                    return
            except Failed:
                continue
        self.close()
        raise Skipped("systemd cannot be started in namespaces here")

    def run(self, *command, user=None, **options):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children:
            raise Failed("systemd has ended")
        enter = ["nsenter", "--target", children[0], "--mount", "--pid", "--cgroup", "--net", "--ipc", "--root", "--wd=/"]
        command = ["runuser", "-u", user, "--", *command] if user else command
        enter += ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "LC_ALL=C.UTF-8", *command]
        return run(*enter, **options)

    def shown(self, unit):
        """Returns what `systemctl show` says of a unit."""
        said = self.run("systemctl", "show", unit)
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    def log(self, unit):
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def wait(self, what, condition):
        """Waits until a condition holds. What fails within is not yet so."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except (Failed, ValueError, KeyError):
                pass
            time.sleep(0.5)
        raise Failed(f"{PATIENCE} seconds have passed, and not yet: {what}")

    def close(self):
        self.process.kill()
        self.process.wait()


def federation(machine):
    """Founds a federation as the manual says, with three services, and waits for its rounds."""
    ward, dorm = "/var/lib/fednode/ward", "/var/lib/fednode/dorm"
    begun = time.monotonic()
    machine.run("fednode", "init", ward, "--nodes", "2", "--rounds", str(ROUNDS), "--samples-per-node", "150", "--name", "ward",
                "--data", "digits", "--partition", "iid", "--shard", "1/2", user="fednode")
    machine.run("systemctl", "start", "fednode@ward")
    machine.wait("the node answers", lambda: machine.run("fednode", "status", "--state", f"{ward}/state"))
    for name, role, program in [("dorm", "node", "fednode"), ("hub", "aggregator", "fedboot")]:
        said = machine.run("fednode", "invite", name, "--json", "--role", role, "--dir", ward, user="fednode")
        ticket = json.loads(said)["ticket"]
        if program == "fednode":
            flags = ["--dir", dorm, "--data", "digits", "--shard", "2/2", "--no-start"]
        else:
            flags = ["--dir", "/var/lib/fedboot"]
        machine.run(program, "join", ticket, *flags, user=program)
    machine.run("systemctl", "start", "fedboot", "fednode@dorm")
    for state in (ward, dorm):
        machine.wait(f"{state} has finished its rounds", lambda state=state: finished(machine, state))
    return f"{ROUNDS} rounds of two nodes and a fedboot, {time.monotonic() - begun:.1f} s from `init`"


def finished(machine, folder):
    return json.loads(machine.run("fednode", "status", "--json", "--state", f"{folder}/state"))["finished"]


def sandbox(machine):
    """Reads what the kernel says of the processes."""
    for unit in ("fednode@ward", "fedboot"):
        pid = machine.shown(unit)["MainPID"]
        status = machine.run("cat", f"/proc/{pid}/status")
        fields = dict(re.findall(r"^(\w+):\s+(.*)$", status, re.MULTILINE))
        hold(fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2", f"{unit} runs without filters")
        hold(int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0, f"{unit} has capabilities")
        hold(fields["Uid"].split()[0] != "0", f"{unit} runs as root")
        warned = [line for line in machine.log(unit).splitlines() if "Operation not permitted" in line]
        hold(not warned, f"{unit} misses something: {warned[:1]}")
    return "no capabilities, no new privileges, filtered system calls, no refused call in the log"


def crash(machine):
    """Kills a service, and waits until systemd has started it again."""
    before = machine.shown("fednode@dorm")
    machine.run("systemctl", "kill", "--signal=KILL", "fednode@dorm")
    begun = time.monotonic()
    machine.wait("fednode@dorm runs again", lambda: machine.shown("fednode@dorm")["MainPID"] not in ("0", before["MainPID"]))
    machine.wait("it answers", lambda: machine.run("fednode", "status", "--state", "/var/lib/fednode/dorm/state"))
    return f"answers again after {time.monotonic() - begun:.1f} s, {machine.shown('fednode@dorm')['NRestarts']} restart"


def hang(machine):
    """Stops a process without its knowledge. The manager misses its word, and starts the service again."""
    drop_in = "/run/systemd/system/fednode@dorm.service.d"
    machine.run("mkdir", "-p", drop_in)
    text = "[Service]\\nWatchdogSec=5\\nTimeoutAbortSec=2\\nRestartSec=1\\n"
    machine.run("sh", "-c", f"printf '{text}' > {drop_in}/watchdog.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "fednode@dorm")
    before = machine.shown("fednode@dorm")
    hold("round" in before["StatusText"], f"the manager knows no round: `{before['StatusText']}`")
    begun = time.monotonic()
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "fednode@dorm")
    machine.wait("fednode@dorm runs again", lambda: machine.shown("fednode@dorm")["MainPID"] not in ("0", before["MainPID"]))
    machine.wait("it answers", lambda: machine.run("fednode", "status", "--state", "/var/lib/fednode/dorm/state"))
    return f"answers again after {time.monotonic() - begun:.1f} s with a watchdog of 5 s; told: {before['StatusText']}"


def stop(machine):
    """Stops all services; none counts as failed, none comes back."""
    begun = time.monotonic()
    machine.run("systemctl", "stop", "fednode@ward", "fednode@dorm", "fedboot")
    seconds = time.monotonic() - begun
    for unit in ("fednode@ward", "fednode@dorm", "fedboot"):
        shown = machine.shown(unit)
        hold(shown["ActiveState"] == "inactive", f"{unit} is {shown['ActiveState']} ({shown['Result']})")
    return f"{seconds:.1f} s, none failed"


def misconfigured(machine):
    """Starts a node whose settings are wrong: it fails once, with a line that says why."""
    machine.run("sh", "-c", "cd /var/lib/fednode/dorm && echo 'threds = 2' >> node.toml")
    machine.run("systemctl", "reset-failed")
    machine.run("systemctl", "start", "--no-block", "fednode@dorm")
    machine.wait("fednode@dorm has failed", lambda: machine.shown("fednode@dorm")["ActiveState"] == "failed")
    shown = machine.shown("fednode@dorm")
    hold((shown["ExecMainStatus"], shown["NRestarts"]) == ("3", "0"), f"status {shown['ExecMainStatus']}, {shown['NRestarts']} restarts")
    lines = [line for line in machine.log("fednode@dorm").splitlines() if line.startswith("error")]
    hold(lines, "the journal does not say why")
    return f"exit code 3, no restart: {lines[-1][:70]}"


def can_boot():
    if os.geteuid() != 0:
        raise Skipped("only root can start systemd in namespaces")
