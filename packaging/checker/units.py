"""The units as files: what systemd says of them without running them."""
import pathlib
import re
import tempfile

from . import tools
from .report import hold, run

SYSTEMD = pathlib.Path(__file__).resolve().parents[1] / "systemd"
LIMIT = 1.5


def exposure(name, drop_in=None):
    """Holds the exposure of a unit to the limit."""
    tools.need("systemd-analyze", "systemd")
    with tempfile.TemporaryDirectory() as scratch:
        unit = pathlib.Path(scratch) / name
        text = (SYSTEMD / name).read_text()
        # A later setting replaces an earlier one, as in a drop-in.
        unit.write_text(text + (f"\n{(SYSTEMD / drop_in).read_text()}" if drop_in else ""))
        said = run("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    value = float(re.search(r"exposure level for \S+: ([\d.]+)", said)[1])
    hold(value <= LIMIT, f"exposure {value}, at most {LIMIT}")
    return f"exposure {value}, at most {LIMIT}"


def exit_codes():
    """Holds the codes after which nothing is started again to those of the reference."""
    page = (SYSTEMD.parents[1] / "docs" / "reference" / "exit-codes.md").read_text()
    known = {int(code): cause for code, cause in re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)}
    wanted = {"fednode@.service": {2, 3, 4, 6, 10}, "fedboot.service": {2, 3, 6}}
    for name, codes in wanted.items():
        text = (SYSTEMD / name).read_text()
        said = {int(code) for code in re.search(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)[1].split()}
        hold(said == codes and said <= known.keys(), f"{name} has {said}, and should have {codes}")
        hold("SuccessExitStatus=130" in text, f"{name}: a stopped process is no failure")
    words = {2: "command line", 3: "configuration", 4: "data", 6: "refused", 10: "training"}
    for code, word in words.items():
        hold(word in known[code], f"code {code} is now `{known[code]}`: look at the units")
    return "as in the reference"


def verify(root):
    """Lets the systemd of the clean root verify the units that the package installed there."""
    said = root.run("systemd-analyze", "verify", "--man=yes", "fednode@ward.service", "fedboot.service")
    hold(not said.strip(), said.strip())
    return "installed units"
