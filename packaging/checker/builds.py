"""The packages themselves: the same bytes twice, and what is said of their content."""
import base64
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import zipfile

from . import tools
from .report import Failed, Skipped, hold, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What has no business in a package.
STRAY = ("/root/", "/home/", "/tmp/")
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(f"{error}" if error else 0)
"""


def twice(binaries, scratch, level):
    """Makes all packages in two folders, in two places and time zones and under two masks; returns the first folder."""
    made = [scratch / "one", scratch / "two" / "deeper" / "down"]
    settings = [({"TZ": "UTC"}, 0o022), ({"TZ": "Asia/Tokyo", "LANG": "C"}, 0o077)]
    for folder, (variables, mask) in zip(made, settings):
        folder.mkdir(parents=True)
        command = [ROOT / "scripts" / "package", "--bin", binaries, "--out", folder, "--level", str(level)]
        done = subprocess.run(command, cwd=folder, env={**os.environ, **variables}, umask=mask, capture_output=True, text=True)
        hold(done.returncode == 0, f"scripts/package: {done.stderr.strip()}")
    return made


def same(made):
    names = [sorted(path.name for path in folder.iterdir()) for folder in made]
    hold(names[0] == names[1] and len(names[0]) >= 3, f"not the same packages: {names}")
    for name in names[0]:
        first, second = (hashlib.sha256((folder / name).read_bytes()).hexdigest() for folder in made)
        hold(first == second, f"{name} differs from one run to the next")
    return f"{len(names[0])} packages, each twice"


def package(folder, pattern):
    found = list(folder.glob(pattern))
    hold(len(found) == 1, f"{len(found)} packages match {pattern}")
    return found[0]


def size(path):
    return f"{path.stat().st_size / 1e6:.1f} MB"


def tarball(folder):
    """Looks at owners and times in the tarball."""
    path = package(folder, "*.tar.gz")
    with tarfile.open(path) as archive:
        entries = archive.getmembers()
    hold({(entry.uid, entry.gid) for entry in entries} == {(0, 0)}, "owners are not 0:0")
    hold(len({entry.mtime for entry in entries}) == 1, "times differ")
    names = [entry.name for entry in entries]
    hold(names == sorted(names), "entries are in no order")
    return f"{size(path)}, {len(entries)} entries"


def wheel(folder):
    """Holds the files of the wheel to the hashes that it lists, and looks at their times and order."""
    path = package(folder, "*.whl")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        hold(names == sorted(names), "entries are in no order")
        hold(len({entry.date_time for entry in entries}) == 1, "times differ")
        [record] = [name for name in names if name.endswith(".dist-info/RECORD")]
        listed = dict(line.split(",")[:2] for line in archive.read(record).decode().splitlines())
        hold(set(listed) == set(names), "RECORD lists other files")
        for name in set(names) - {record}:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            hold(listed[name] == f"sha256={digest}", f"{name} has another hash")
    return f"{size(path)}, {len(entries)} files"


def bill(folder, scratch):
    """Validates the bill of materials of the tarball and of the image against the schema of CycloneDX 1.5."""
    notes = []
    with tarfile.open(package(folder, "*.tar.gz")) as archive:
        [name] = [name for name in archive.getnames() if name.endswith("fednode.cdx.json")]
        bills = {"tarball": archive.extractfile(name).read()}
    bills["image"] = (scratch / "image" / "usr/share/doc/fednode/fednode.cdx.json").read_bytes()
    for name, text in bills.items():
        path = scratch / f"{name}.cdx.json"
        path.write_bytes(text)
        run(tools.python(), "-c", VALIDATE, path)
        components = json.loads(text)["components"]
        notes.append(f"{name}: {len(components)} components")
    hold(any(part["name"] == "libc6" for part in components), "the image's bill does not name glibc")
    return ", ".join(notes)


def unpack(folder, scratch):
    """Unpacks the image into a folder as a container runtime does, after comparing every hash."""
    target = scratch / "image"
    target.mkdir(mode=0o755)
    path = package(folder, "*.oci.tar")
    with tarfile.open(path) as archive:
        def blob(descriptor):
            data = archive.extractfile("blobs/" + descriptor["digest"].replace(":", "/")).read()
            found = "sha256:" + hashlib.sha256(data).hexdigest()
            hold(found == descriptor["digest"] and len(data) == descriptor["size"], f"blob {found} is another one")
            return data

        index = json.loads(archive.extractfile("index.json").read())
        manifest = json.loads(blob(index["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        for layer in manifest["layers"]:
            packed = scratch / "layer.tar.gz"
            packed.write_bytes(blob(layer))
            with tarfile.open(packed) as tar:
                tar.extractall(target, filter="fully_trusted")
    said = config["config"]
    hold(said["User"] == "65532:65532" and said["Volumes"] == {"/state": {}}, "user or volume are not as they should be")
    files = [file for file in target.rglob("*") if file.is_file()]
    programs = sorted(file.name for file in files if os.access(file, os.X_OK) and ".so" not in file.name)
    hold(programs == ["fedboot", "fednode", "sh"], f"the image holds other programs: {programs}")
    return f"{size(path)}, {len(files)} files, programs: {', '.join(programs)}"


def loaded(folder):
    """Loads the image with the tools of containers that are here."""
    path = package(folder, "*.oci.tar")
    said = []
    if shutil.which("skopeo"):
        inspected = json.loads(run("skopeo", "inspect", "--config", f"oci-archive:{path}"))
        hold(inspected["config"]["Volumes"] == {"/state": {}}, "skopeo reads another configuration")
        run("skopeo", "inspect", f"docker-archive:{path}")
        said.append("skopeo reads it in both forms")
    if shutil.which("podman"):
        with tempfile.TemporaryDirectory() as store:
            podman = ["podman", "--root", f"{store}/root", "--runroot", f"{store}/run", "--storage-driver", "vfs"]
            told = run(*podman, "load", "--input", path)
        said.append(f"podman loads it as {told.split('Loaded image: ')[-1].split()[0]}")
    if not said:
        raise Skipped("neither `skopeo` nor `podman` here")
    return "; ".join(said)


def stray(folder):
    """Looks for paths of the building machine in all but the programs."""
    with tarfile.open(package(folder, "*.tar.gz")) as archive:
        for entry in archive.getmembers():
            if not entry.isfile() or "/bin/" in entry.name or entry.name.endswith("CHANGELOG.md"):
                continue
            text = archive.extractfile(entry).read().decode(errors="replace")
            if found := [word for word in STRAY if word in text]:
                raise Failed(f"{entry.name} names {found[0]}")
    return None
