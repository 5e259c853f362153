"""A clean Debian root: the package is installed, run and removed there, as on a machine that has nothing of ours."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from . import tools
from .report import Failed, hold, run

INCLUDED = "systemd,man-db,passwd"
# A swarm that is small, and real: three nodes and a fedboot train and exchange on the built-in digits.
SWARM = ["fednode", "swarm", "--nodes", "3", "--rounds", "1", "--samples-per-node", "150", "--device", "cpu", "--json"]
PATIENCE = 120


class Root:
    """The folder of the root, and commands in it."""

    def __init__(self, folder, about):
        self.folder, self.about = folder, about

    def run(self, *command, user=None, **options):
        """Runs a command with processes, network and devices of its own, as root or as a user."""
        inner = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-euc", ENTER, "enter", self.folder]
        return run(*inner, user or "root", *command, **options)


ENTER = """
root=$1 user=$2; shift 2
ip link set lo up
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot --userspec="$user" "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 "$@"
"""


def make(scratch):
    """Lays a clean root. Its archive is made once and kept."""
    tools.as_root()
    tools.need("mmdebstrap", "mmdebstrap")
    tools.need("ip", "iproute2")
    suite = codename()
    archive = tools.CACHE / f"root-{suite}.tar"
    if not archive.exists():
        tools.CACHE.mkdir(parents=True, exist_ok=True)
        draft = archive.with_suffix(".draft.tar")
        run("mmdebstrap", "--quiet", "--variant=apt", f"--include={INCLUDED}", suite, draft, timeout=1200)
        draft.rename(archive)
    folder = scratch / "root"
    folder.mkdir()
    run("tar", "--extract", "--file", archive, "--directory", folder, "--numeric-owner", "--exclude=./dev/*")
    return Root(folder, f"Debian {suite} with {INCLUDED.replace(',', ', ')}")


def codename():
    lines = pathlib.Path("/etc/os-release").read_text().splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return fields["VERSION_CODENAME"] if fields.get("ID") == "debian" else "stable"


def install(root, package):
    """Installs the .deb by apt, with what it depends on."""
    before = root.run("dpkg-query", "-W", "-f", "${Package}\n").split()
    hold("fednode" not in before, "the root is not clean")
    shutil.copy(package, root.folder / "tmp")
    options = ["-y", "-qq", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0"]
    # apt comes without a network here: all that the package needs must be in the root, or the check says so.
    root.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", *options, f"/tmp/{package.name}")
    audit = root.run("dpkg", "--verify", "fednode") + root.run("dpkg", "--audit")
    hold(not audit.strip(), audit.strip())
    for name in ("fednode", "fedboot"):
        entry = root.run("getent", "passwd", name).strip().split(":")
        state = root.folder / "var/lib" / name
        hold(entry[5:] == [f"/var/lib/{name}", "/usr/sbin/nologin"], f"user {name} is {entry}")
        hold((state.stat().st_uid, state.stat().st_mode & 0o777) == (int(entry[2]), 0o750), f"{state} is open to others")
    depends = root.run("dpkg-query", "-W", "-f", "${Depends}", "fednode")
    return f"{package.stat().st_size / 1e6:.1f} MB, depends on {depends}"


def versions(root, version):
    for name in ("fednode", "fedboot"):
        said = root.run(name, "--version", user="fednode").strip()
        hold(said == f"{name} {version}", f"`{name} --version` says `{said}`")
    return version


def documents(root):
    """Reads the manual pages as `man` shows them, and loads the completions into a shell."""
    for name in ("fednode", "fedboot"):
        page = root.run("env", "MANWIDTH=120", "man", "--warnings", name)
        hold(f"{name.upper()} START" in page and "--listen" in page, f"`man {name}` lacks a command")
        root.run("bash", "-euc", f". /usr/share/bash-completion/completions/{name}; complete -p {name}")
    return "man pages of both, completions load in bash"


def swarm(root):
    """Runs a small federation of real processes as the service's user."""
    begun = time.monotonic()
    said = root.run(*SWARM, "--out", "/tmp/run", user="fednode", timeout=PATIENCE)
    seconds = time.monotonic() - begun
    json.loads(said)
    hold((root.folder / "tmp/run/models/3.safetensors").exists(), "no model of the third node")
    return f"three nodes and a fedboot, one round, {seconds:.1f} s"


def purge(root):
    """Removes the package; keys stay."""
    folder = root.folder / "var/lib/fednode/kept"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key").write_text("a key\n")
    said = root.run("apt-get", "purge", "-y", "-qq", "-o", "Dpkg::Use-Pty=0", "fednode")
    left = [path for path in ("usr/bin/fednode", "usr/bin/fedboot", "etc/fednode") if (root.folder / path).exists()]
    hold(not left, f"left behind: {left}")
    hold((folder / "key").exists() and "is kept" in said, "a key was deleted, or nothing was said of it")
    shutil.rmtree(folder)
    return "programs and settings go, keys stay"


def rpm(root, folder, version):
    """Installs the .rpm into the same root by rpm, runs it, verifies it and removes it."""
    tools.need("rpm", "rpm")
    [package] = folder.glob("*.rpm")
    requires = run("rpm", "-qp", "--requires", package)
    hold("libc.so.6" in requires and "/usr/sbin/useradd" in requires, f"it requires {requires.split()}")
    # The root has no database of rpm, so what Debian's packages provide is unknown there.
    base = ["rpm", "--root", root.folder, "--dbpath", "/var/lib/rpm"]
    run(*base, "--install", "--nodeps", package)
    versions(root, version)
    run(*base, "--verify", "--nodeps", "fednode")
    owner = (root.folder / "var/lib/fedboot").stat().st_uid
    hold(str(owner) == root.run("id", "-u", "fedboot").strip(), "/var/lib/fedboot has another owner")
    run(*base, "--erase", "fednode")
    hold(not (root.folder / "usr/bin/fednode").exists(), "it stays after removal")
    libraries = sorted({line.split("(")[0] for line in requires.splitlines() if ".so" in line})
    return f"{package.stat().st_size / 1e6:.1f} MB, requires {', '.join(libraries)}"


def tarball(root, path):
    """Unpacks the tarball in the root and runs it from there."""
    run("tar", "--extract", "--gzip", "--file", path, "--directory", root.folder / "opt")
    [folder] = (root.folder / "opt").glob("fednode-*")
    begun = time.monotonic()
    root.run(f"/opt/{folder.name}/bin/{SWARM[0]}", *SWARM[1:], "--out", "/tmp/unpacked", user="nobody:nogroup")
    hold((root.folder / "tmp/unpacked/models/3.safetensors").exists(), "no model of the third node")
    return f"runs where it was unpacked, {time.monotonic() - begun:.1f} s"


def image(folder, patience=PATIENCE):
    """Runs the same federation in the unpacked image: read-only, as its user, with one volume."""
    state = folder.parent / "image-state"
    state.mkdir(mode=0o700)
    os.chown(state, 65532, 65532)
    inner = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-euc", CONTAINER, "container"]
    begun = time.monotonic()
    run(*inner, folder, state, "/usr/bin/" + SWARM[0], *SWARM[1:], "--out", "/state/run", timeout=patience)
    seconds = time.monotonic() - begun
    hold((state / "run/models/3.safetensors").exists(), "no model of the third node")
    line = [*inner, folder, state, "/bin/sh", "-c", ": > /wrong"]
    refused = subprocess.run([str(word) for word in line], capture_output=True, text=True)
    if refused.returncode == 0:
        raise Failed("the root of the image can be written")
    return f"read-only root, user 65532, {seconds:.1f} s"


def podman(path):
    """Runs the same in a real container: no network but its own, no capabilities, a read-only root, the image's own volume."""
    tools.as_root()
    tools.need("podman", "podman")
    tools.need("runc", "runc")
    with tempfile.TemporaryDirectory() as store:
        base = ["podman", "--runtime", "runc", "--root", f"{store}/root", "--runroot", f"{store}/run", "--storage-driver", "vfs"]
        name = run(*base, "load", "--input", path).split("Loaded image: ")[-1].split()[0]
        # Limits that a process without all privileges may still set.
        limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        flags = ["--rm", "--network=none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", *limits]
        begun = time.monotonic()
        said = run(*base, "run", *flags, name, *SWARM[1:], "--out", "run", timeout=PATIENCE)
        seconds = time.monotonic() - begun
        json.loads(said)
        refused = subprocess.run([*base, "run", *flags, "--entrypoint=/bin/sh", name, "-c", ": > /wrong"], capture_output=True)
        hold(refused.returncode != 0, "the root of the container can be written")
    return f"{name} under runc, {seconds:.1f} s"


CONTAINER = """
root=$1 state=$2; shift 2
ip link set lo up
mount --bind "$root" "$root"
mount --bind "$state" "$root/state"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,bind,ro "$root"
exec env -i PATH=/usr/bin:/bin "$(command -v chroot)" --userspec=65532:65532 --groups=65532 "$root" "$@"
"""
