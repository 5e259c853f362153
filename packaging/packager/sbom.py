"""The bill of materials in CycloneDX 1.5, from Cargo.lock.

It lists every crate that `fednode` and `fedboot` can reach there. That is more than what is linked: Cargo.lock does not
tell tools of the build, tests and other systems from the rest.
"""
import json
import time
import tomllib
import uuid

from .source import PROGRAMS, ROOT

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"
OURS = uuid.UUID("6f2d9c1e-6e0b-5f43-9a35-0a6a2f2b7c11")


def document(source, libraries=()):
    """Returns the bill as JSON; `libraries` are those that an image holds beside the programs."""
    crates = reached(tomllib.loads((ROOT / "Cargo.lock").read_text())["package"])
    components = [component(crate) for crate in crates.values()] + list(libraries)
    edges = [edge(crate, crates) for crate in crates.values()]
    programs = [reference(crate) for crate in crates.values() if crate["name"] in PROGRAMS]
    main = f"pkg:generic/fednode@{source.version}"
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(source.epoch)),
            "component": {"type": "application", "bom-ref": main, "name": "fednode", "version": source.version,
                          "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        },
        "components": components,
        "dependencies": [{"ref": main, "dependsOn": programs + [library["bom-ref"] for library in libraries]}, *edges],
    }
    number = uuid.uuid5(OURS, json.dumps(bill, sort_keys=True))
    return json.dumps({**bill, "serialNumber": f"urn:uuid:{number}"}, indent=1, sort_keys=True) + "\n"


def library(package, version, files):
    """Returns a component that comes from a Debian package."""
    link = f"pkg:deb/debian/{package}@{version}"
    return {"type": "library", "bom-ref": link, "purl": link, "name": package, "version": version,
            "description": f"holds {', '.join(files)}"}


def reached(packages):
    """Returns the crates that the programs reach, by name and version, in order."""
    known = {(crate["name"], crate["version"]): crate for crate in packages}
    by_name = {}
    for crate in packages:
        by_name.setdefault(crate["name"], []).append(crate)
    waiting = [by_name[name][0] for name in PROGRAMS]
    found = {}
    while waiting:
        crate = waiting.pop()
        key = (crate["name"], crate["version"])
        if key in found:
            continue
        found[key] = {**crate, "dependencies": [named(text, by_name) for text in crate.get("dependencies", [])]}
        waiting += [known[key] for key in found[key]["dependencies"]]
    return dict(sorted(found.items()))


def named(text, by_name):
    """Reads an entry of Cargo.lock: a name, with a version where there are several."""
    name, *version = text.split()[:2]
    return name, version[0] if version else by_name[name][0]["version"]


def reference(crate):
    return f"pkg:cargo/{crate['name']}@{crate['version']}"


def component(crate):
    row = {"type": "library", "bom-ref": reference(crate), "name": crate["name"], "version": crate["version"]}
    if crate.get("source") == CRATES_IO:
        row["purl"] = reference(crate)
        row["hashes"] = [{"alg": "SHA-256", "content": crate["checksum"]}]
    elif crate["name"] in PROGRAMS:
        row["type"] = "application"
    return row


def edge(crate, crates):
    return {"ref": reference(crate), "dependsOn": sorted(reference(crates[key]) for key in crate["dependencies"])}
