"""What packages are made of: the version, the time, and the two binaries."""
import os
import pathlib
import platform
import shutil
import struct
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("fednode", "fedboot")
# What ELF calls a machine, and what Debian, RPM and OCI call it.
MACHINES = {62: ("amd64", "x86_64", "amd64"), 183: ("arm64", "aarch64", "arm64")}


class Unusable(Exception):
    """Says in one line why there is no package."""


class Source:
    """The binaries, stripped, and what all packages say of them."""

    def __init__(self, binaries, scratch):
        self.version = version()
        self.epoch = epoch()
        self.scratch = scratch
        for name in PROGRAMS:
            self.debian, self.machine, self.oci = architecture(binaries / name)
        self.is_native = self.machine == platform.machine()
        self.programs = {name: self.stripped(binaries / name) for name in PROGRAMS}
        self.is_static = all(is_static(path) for path in self.programs.values())
        for name in PROGRAMS:
            said = self.said_by(name, "--version").strip()
            if said != f"{name} {self.version}":
                raise Unusable(f"`{binaries / name}` says `{said}`, and Cargo.toml says {self.version}: build it again")

    def stripped(self, binary):
        """Copies a binary without its symbols."""
        target = self.scratch / binary.name
        run(self.tool("strip"), "--strip-unneeded", "--remove-section=.comment", "-o", target, binary)
        target.chmod(0o755)
        return target

    def tool(self, name):
        """Returns a tool of binutils that knows the machine of the programs."""
        if self.is_native:
            return need(name, "binutils")
        return need(f"{self.machine}-linux-gnu-{name}", f"binutils-{self.machine.replace('_', '-')}-linux-gnu")

    def said_by(self, name, *words):
        """Returns what one of the programs prints, under an emulator where its machine is another one."""
        emulator = [] if self.is_native else [need(f"qemu-{self.machine}-static", "qemu-user-static")]
        return run(*emulator, self.programs[name], *words)


def run(*command, **options):
    """Returns what a command prints; its environment has no settings of ours and no language."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEDNODE_", "FEDBOOT_"))}
    environment = {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", **options.pop("env", {})}
    command = [str(word) for word in command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        raise Unusable(f"`{' '.join(command[:2])}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def need(program, package):
    """Makes sure that a program is there, and returns its name."""
    if shutil.which(program) is None:
        raise Unusable(f"`{program}` is missing: install what Debian calls {package}")
    return program


def version():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def epoch():
    """The time that all files and packages bear: SOURCE_DATE_EPOCH, else that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def built(*flags):
    """Builds both binaries as `scripts/demo` does, and returns their folder. `--cpu` leaves the GPU path out.

    What follows it is another kind of machine.
    """
    command = ["bash", "-euc", '. scripts/env.sh && need_compiler >&2 && build_programs "$@"', "build", *flags]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Unusable("the programs could not be built: the lines above say why")
    return pathlib.Path(done.stdout.strip())


def is_static(binary):
    """Whether a program is linked to no library, and so runs on any Linux."""
    return "(NEEDED)" not in run(need("readelf", "binutils"), "--dynamic", "--wide", binary)


def architecture(binary):
    """Returns what Debian, RPM and OCI call the machine of a program."""
    if not binary.is_file():
        raise Unusable(f"there is no `{binary}`: build it, or name the folder of both binaries with --bin")
    with binary.open("rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF":
        raise Unusable(f"`{binary}` is no ELF program")
    [machine] = struct.unpack_from("<H", head, 18)
    if machine not in MACHINES:
        raise Unusable(f"`{binary}` is for ELF machine {machine}, and packages are known for {list(MACHINES)}")
    return MACHINES[machine]
