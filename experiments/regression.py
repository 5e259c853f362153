"""A number instead of classes: is what fednode serves better than what each site does alone?

Data: the diabetes table that scikit-learn ships, 442 patients, ten columns, a measure of progression. Needs numpy and
scikit-learn.

    python experiments/regression.py FEDNODE SITES DIVISION FIRST_SEED LAST_SEED [SETTING ...]

FEDNODE is the built program. DIVISION says how patients fall to the sites: `random`, or by a column, as `age`, so that each
site has a range of its own. `turned` is random too, and every second site measures what is left of 400. A third of each site's rows is for tests, another one for each seed. `fednode simulate --own` gets
raw tables, with all settings by default. Beside it stand ridge regressions of scikit-learn (RidgeCV, leaving one out): of each
site's rows alone, and of all rows together. R² is 1 − Σ error² / Σ (number − mean of its site)², over the tests of all sites.
SETTINGS go to fednode as they are.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

TARGET = "progression"
RIDGES = [0.3, 3.0, 30.0, 300.0, 3000.0]


def divide(rows, sites, column, names, random):
    """Lists of rows to train and to test on, one pair for each site."""
    order = random.permutation(len(rows))
    if column in names:
        order = order[np.argsort(rows[order, names.index(column)], kind="stable")]
        parts = [random.permutation(part) for part in np.array_split(order, sites)]
    else:
        parts = [order[site::sites] for site in range(sites)]
    return [(part[len(part) // 3 :], part[: len(part) // 3]) for part in parts]


def ridge(features, numbers):
    return make_pipeline(StandardScaler(), RidgeCV(RIDGES)).fit(features, numbers)


def r2(pairs):
    """R² of (truth, predicted) of all sites."""
    error = sum(((truth - predicted) ** 2).sum() for truth, predicted in pairs)
    return 1 - error / sum(((truth - truth.mean()) ** 2).sum() for truth, _ in pairs)


def federated(fednode, table, names, parts, seed, settings):
    with tempfile.TemporaryDirectory() as folder:
        command = [fednode, "simulate", "--control", "--out", f"{folder}/run", "--seed", str(seed)]
        for number, pair in enumerate(parts):
            files = [pathlib.Path(folder, f"{name}{number}.csv") for name in ("train", "test")]
            for file, rows in zip(files, pair):
                np.savetxt(file, table[rows], "%g", ",", header=",".join(names + [TARGET]), comments="")
            command += ["--own", f"csv:{files[0]},target={TARGET},test={files[1]}"]
        subprocess.run(command + settings, check=True, capture_output=True)
        summary = json.loads(pathlib.Path(folder, "run/summary.json").read_text())
        return summary["served"], summary["alone"]


def one_split(fednode, data, sites, column, seed, settings):
    names = list(data.feature_names)
    parts = divide(data.data, sites, column, names, np.random.default_rng(seed))
    features, numbers = data.data, data.target.copy()
    for train, test in parts[1::2] if column == "turned" else []:
        numbers[np.concatenate([train, test])] = 400 - numbers[np.concatenate([train, test])]
    table = np.column_stack([features, numbers])
    together = ridge(*(part[np.concatenate([train for train, _ in parts])] for part in (features, numbers)))
    own = [ridge(features[train], numbers[train]) for train, _ in parts]
    judged = lambda models: r2([(numbers[test], model.predict(features[test])) for (_, test), model in zip(parts, models)])
    served, alone = federated(fednode, table, names, parts, seed, settings)
    return [served, alone, judged(own), judged([together] * sites)]


def main():
    fednode, sites, column, first, last, *settings = sys.argv[1:]
    data = load_diabetes(scaled=False)
    seeds = range(int(first), int(last) + 1)
    values = 100 * np.array([one_split(fednode, data, int(sites), column, seed, settings) for seed in seeds])
    print(f"{len(seeds)} splits of {sites} sites, {column}; R² in per cent, with the standard error over splits")
    error = lambda v: v.std(ddof=1) / len(v) ** 0.5
    for name, v in zip(["fednode", "alone (fednode)", "alone (RidgeCV)", "together (RidgeCV)"], values.T):
        difference = values[:, 0] - v
        less = "" if name == "fednode" else f"   fednode less that {difference.mean():+.2f} ± {error(difference):.2f}"
        print(f"{name:20}{v.mean():6.1f} ± {error(v):.1f}{less}")


main()
