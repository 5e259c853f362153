"""The wheel: both programs and a Python package that calls them, for `pip install`.

It is written here and not by maturin, which builds programs of its own: all packages hold the same ones.
"""
import base64
import hashlib
import io
import re
import time
import zipfile

from . import sbom
from .content import Tree
from .source import ROOT, Unusable, run
from .tarball import glibc

PYTHON = ROOT / "packaging" / "python"
# What every Linux with glibc has, as PEP 600 wants it of a manylinux wheel.
EVERYWHERE = re.compile(r"ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+")
WHEEL = """Wheel-Version: 1.0
Generator: fednode scripts/package
Root-Is-Purelib: false
{tags}"""
METADATA = """Metadata-Version: 2.4
Name: fednode
Version: {version}
Summary: A peer-to-peer federated-learning daemon, with a Python package that starts it and reads its runs
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.10
Provides-Extra: frames
Requires-Dist: pandas; extra == "frames"
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{readme}"""


def make(source, tree, out, level):
    """Writes the wheel into a folder and returns its path."""
    version = f"{source.version}+cpu" if source.is_static else source.version
    platform = platform_of(source)
    name = f"fednode-{version}"
    wheel = Tree()
    for path in sorted(PYTHON.glob("fednode/*")):
        if path.is_file():
            wheel.put(f"fednode/{path.name}", path.read_bytes())
    for program in source.programs:
        wheel[f"{name}.data/scripts/{program}"] = tree[f"usr/bin/{program}"]
    about = f"{name}.dist-info"
    tags = "".join(f"Tag: py3-none-{one}\n" for one in platform.split("."))
    wheel.put(f"{about}/METADATA", METADATA.format(version=version, readme=(PYTHON / "README.md").read_text()))
    wheel.put(f"{about}/WHEEL", WHEEL.format(tags=tags))
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        wheel.put(f"{about}/licenses/{licence}", (ROOT / licence).read_bytes())
    wheel.put(f"{about}/sboms/fednode.cdx.json", sbom.document(source))
    wheel.put(f"{about}/RECORD", record(wheel, f"{about}/RECORD"))
    package = out / f"{name}-py3-none-{platform}.whl"
    package.write_bytes(zipped(wheel, source.epoch, level))
    return package


def platform_of(source):
    """The systems on which the programs run. They must need no library that one of them may lack."""
    if source.is_static:
        return f"manylinux_2_17_{source.machine}.musllinux_1_1_{source.machine}"
    for path in source.programs.values():
        needed = re.findall(r"NEEDED\s+(\S+)", run(source.tool("objdump"), "-p", path))
        if strange := [library for library in needed if not EVERYWHERE.fullmatch(library)]:
            raise Unusable(f"`{path.name}` needs {', '.join(strange)}, which not every Linux has: a wheel cannot hold it")
    return f"manylinux_{glibc(source).replace('.', '_')}_{source.machine}"


def record(wheel, own):
    """The list of all files with their hashes."""
    lines = []
    for path, file in sorted(wheel.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(file.content)}\n")
    return "".join([*lines, f"{own},,\n"])


def zipped(wheel, epoch, level):
    """Returns all as the bytes of a zip archive, in order and with one time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, file in sorted(wheel.items()):
            entry = zipfile.ZipInfo(path, time.gmtime(max(epoch, 315532800))[:6])
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100000 | file.mode) << 16
            archive.writestr(entry, file.content, compresslevel=level)
    return buffer.getvalue()
