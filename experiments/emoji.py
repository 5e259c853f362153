#!/usr/bin/env python3
"""Emojis of four vendors: sites that draw the same subjects, each in a style of its own.

Data: the npm packages emoji-datasource-{apple,google,twitter,facebook}. The vendors are the sites. The categories of the
Unicode list are the classes. Needs npm, pillow.

    python experiments/emoji.py prepare FOLDER [--side 32] [--packages FOLDER/packages]
    python experiments/emoji.py run FOLDER FEDNODE [--backbone FILE] [--divide random] [--seeds 3] [SETTING ...]

`prepare` packs the four packages into --packages, or takes those that lie there, and writes FOLDER/VENDOR/CLASS/CODE.png:
RGB on white, SIDE pixels wide and high, averaged by area. A file is named by its code points, alike at all vendors.
Version 16.0.0 gives 4 sites of 1,816 images in 9 classes.

`run` asks `fednode simulate --control` whether joining is worth it, for each seed, with all settings by default but SETTINGS.
A quarter of the images is the test, class by class:

    random     each site's own quarter. Peers train on most of its test subjects, in their own style.
    subjects   the same subjects at all sites. Nobody has seen them.
    disjoint   as subjects, and each subject for training is at one site only: no two sites hold the same.
"""
import argparse
import io
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile

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
    from PIL import Image

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
    from PIL import Image

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


def stratified(names, parts, dice):
    """Deals the files of each class to so many parts, as evenly as can be."""
    dealt = [[] for _ in range(parts)]
    for word in sorted({name.parts[0] for name in names}):
        of_class = sorted(name for name in names if name.parts[0] == word)
        dice.shuffle(of_class)
        first = dice.randrange(parts)
        for at, name in enumerate(of_class):
            dealt[(first + at) % parts].append(name)
    return dealt


def division(names, how, seed):
    """Names of the images for training and for the test of each site."""
    dice = random.Random(f"{how} {seed}")
    quarters = [stratified(names, 4, dice) for _ in (VENDORS if how == "random" else [None])]
    if how == "random":
        return [(sum(train, []), test) for test, *train in quarters]
    test, *train = quarters[0]
    train = sum(train, [])
    return [(own, test) for own in (stratified(train, 4, dice) if how == "disjoint" else [train] * 4)]


def one_split(options, names, seed):
    """What each site serves, and what it has alone."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        command = [options.fednode, "simulate", "--control", "--json", "--device", "cpu", "--seed", str(seed)]
        command += ["--out", folder / "run", *options.setting]
        command += ["--backbone", options.backbone] if options.backbone else []
        for vendor, parts in zip(VENDORS, division(names, options.divide, seed)):
            for part, chosen in zip(("train", "test"), parts):
                for name in chosen:
                    link = folder / vendor / part / name
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to((options.folder / vendor / name).resolve())
            command += ["--own", f"folder:{folder / vendor / 'train'},test={folder / vendor / 'test'}"]
        summary = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [(node["served"], node["alone"]) for node in summary["per_node"]]


def run(options):
    root = options.folder / VENDORS[0]
    names = [path.relative_to(root) for path in sorted(root.glob("*/*.png"))]
    splits = []
    for seed in range(options.seeds):
        splits.append(one_split(options, names, seed))
        served, alone = (statistics.mean(column) for column in zip(*splits[-1]))
        print(f"seed {seed}: served {100 * served:.1f}, alone {100 * alone:.1f}, {100 * (served - alone):+.1f}", flush=True)
    print(f"{options.divide}, {options.seeds} divisions".ljust(24) + "".join(f"{name:>10}" for name in VENDORS + ["mean"]))
    mean_too = lambda values: [*values, statistics.mean(values)]
    served, alone = ([mean_too([site[at] for site in split]) for split in splits] for at in (0, 1))
    gains = [[a - b for a, b in zip(*pair)] for pair in zip(served, alone)]
    for name, rows in (("served", served), ("alone", alone), ("served less alone", gains)):
        print(name.ljust(24) + "".join(f"{100 * statistics.mean(column):10.2f}" for column in zip(*rows)))
    if options.seeds > 1:
        errors = (100 * statistics.stdev(column) / options.seeds**0.5 for column in zip(*gains))
        print("its standard error".ljust(24) + "".join(f"{error:10.2f}" for error in errors))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("prepare", help="write the images of all sites")
    command.set_defaults(run=prepare)
    command.add_argument("folder", type=pathlib.Path, help="where the sites' folders go")
    command.add_argument("--side", type=int, choices=[16, 32, 64], default=32, help="pixels wide and high")
    command.add_argument("--packages", type=pathlib.Path, help="folder of the packages (default: FOLDER/packages)")
    command = commands.add_parser("run", help="ask whether joining is worth it")
    command.set_defaults(run=run)
    command.add_argument("folder", type=pathlib.Path, help="where `prepare` put the images")
    command.add_argument("fednode", help="the built program")
    command.add_argument("--backbone", help="the ONNX file that scripts/backbone makes (default: none)")
    command.add_argument("--divide", choices=["random", "subjects", "disjoint"], default="random")
    command.add_argument("--seeds", type=int, default=3, help="how many divisions")
    command.add_argument("setting", nargs="*", help="given to fednode as it is, behind --")
    options = parser.parse_args()
    if options.run is prepare:
        options.packages = options.packages or options.folder / "packages"
    return options


if __name__ == "__main__":
    options = arguments()
    sys.exit(options.run(options))
