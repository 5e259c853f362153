"""Programs of another kind of machine: the kernel is told to start them by an emulator, for as long as a check takes."""
import contextlib
import pathlib

from . import tools
from .report import Skipped, run

KERNEL = pathlib.Path("/proc/sys/fs/binfmt_misc")
# What Debian's emulators say of the programs that they start: `:NAME:M::MAGIC:MASK:EMULATOR:FLAGS`.
RULES = pathlib.Path("/usr/lib/binfmt.d")
NAME = "fednode-check"
# How many times as long as here everything takes there.
SLOWNESS = 20


@contextlib.contextmanager
def emulated(machine):
    """Has programs of a machine started by qemu, also in a root that knows nothing of it."""
    tools.as_root()
    rule = RULES / f"qemu-{machine}.conf"
    if not rule.exists():
        raise Skipped(f"no emulator of {machine} here: install what Debian calls qemu-user-static")
    mounted = not (KERNEL / "register").exists()
    if mounted:
        run("mount", "-t", "binfmt_misc", "binfmt_misc", KERNEL)
    try:
        register(rule)
        yield
    finally:
        forget()
        if mounted:
            run("umount", KERNEL)


def register(rule):
    """Gives the kernel the rule. Its flag F opens the emulator now, so that it is there in another root as well."""
    forget()
    _, _, *rest, flags = rule.read_text().strip().split(":")
    try:
        (KERNEL / "register").write_text(":".join(["", NAME, *rest, flags if "F" in flags else flags + "F"]))
    except OSError as error:
        raise Skipped(f"the kernel takes no emulator here ({error.strerror}): run this outside a container") from None


def forget():
    """Takes the rule back, also one that a check left behind when it was killed."""
    with contextlib.suppress(OSError):
        (KERNEL / NAME).write_text("-1")
