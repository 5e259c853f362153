#!/usr/bin/env python3
"""Emojis of four vendors: sites that draw the same subjects, each in a style of its own.

Data: the npm packages emoji-datasource-{apple,google,twitter,facebook}. The vendors are the sites. The categories of the
Unicode list are the classes. Needs npm, pillow.

    python experiments/emoji.py prepare FOLDER [--side 32] [--packages FOLDER/packages]

`prepare` packs the four packages into --packages, or takes those that lie there, and writes FOLDER/VENDOR/CLASS/CODE.png:
RGB on white, SIDE pixels wide and high, averaged by area. A file is named by its code points, alike at all vendors.
Version 16.0.0 gives 4 sites of 1,816 images in 9 classes.
"""
import argparse
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

from PIL import Image

VENDORS = ["apple", "facebook", "google", "twitter"]
VERSION = "16.0.0"


def package(vendor, folder):
    """The path of a vendor's package, downloaded if the folder has none."""
    path = folder / f"emoji-datasource-{vendor}-{VERSION}.tgz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        name = f"emoji-datasource-{vendor}@{VERSION}"
        command = ["npm", "pack", "--silent", name, "--pack-destination", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def contents(path, vendor):
    """The list of emojis in a package, and the bytes of its images of 64 x 64 pixels, by file name."""
    images, start = {}, f"package/img/{vendor}/64/"
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name == "package/emoji.json":
                emojis = json.load(archive.extractfile(member))
            elif member.name.startswith(start) and member.isfile():
                images[member.name[len(start):]] = archive.extractfile(member).read()
    return emojis, images


def picture(raw):
    """An image on white."""
    drawn = Image.open(io.BytesIO(raw)).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")


def subjects(emojis, pictures):
    """Class by file name, of the subjects that all vendors draw.

    The list's skin tones are variants of a subject, so they stay out. Some vendors draw several subjects with one picture,
    such as the flags of Norway and of Bouvet Island. The first of them stays, so a site never trains on its test pictures.
    """
    chosen, seen = {}, set()
    for emoji in emojis:
        name = emoji["image"]
        if emoji["category"] == "Component" or any(name not in drawn for drawn in pictures.values()):
            continue
        prints = {(vendor, drawn[name].tobytes()) for vendor, drawn in pictures.items()}
        if not prints & seen:
            chosen[name] = "-".join(emoji["category"].lower().replace("&", " ").split())
        seen |= prints
    return chosen


def prepare(options):
    held = {vendor: contents(package(vendor, options.packages), vendor) for vendor in VENDORS}
    emojis = held[VENDORS[0]][0]
    listed = {emoji["image"] for emoji in emojis}
    drawings = {}
    for vendor, (_, images) in held.items():
        drawings[vendor] = {name: picture(raw) for name, raw in images.items() if name in listed}
    classes = subjects(emojis, drawings)
    for vendor, drawn in drawings.items():
        shutil.rmtree(options.folder / vendor, ignore_errors=True)
        for name, word in classes.items():
            target = options.folder / vendor / word / name
            target.parent.mkdir(parents=True, exist_ok=True)
            drawn[name].resize((options.side, options.side), Image.Resampling.BOX).save(target)
    print(f"{len(VENDORS)} sites, {len(set(classes.values()))} classes, {len(classes)} images a site in {options.folder}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("prepare", help="write the images of all sites")
    command.set_defaults(run=prepare)
    command.add_argument("folder", type=pathlib.Path, help="where the sites' folders go")
    command.add_argument("--side", type=int, choices=[16, 32, 64], default=32, help="pixels wide and high")
    command.add_argument("--packages", type=pathlib.Path, help="folder of the packages (default: FOLDER/packages)")
    options = parser.parse_args()
    options.packages = options.packages or options.folder / "packages"
    return options


if __name__ == "__main__":
    options = arguments()
    sys.exit(options.run(options))
