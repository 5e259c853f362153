"""Writes scikit_learn.json: measures, confusion matrices and bootstrap intervals of small cases, by scikit-learn.

    python scikit_learn.py > scikit_learn.json        with scikit-learn 1.9.1

A measure without a value is null: where scikit-learn answers with NaN, where it warns that a class has no row and answers
with 0 (average precision), and R² of a constant truth. scikit-learn has no calibration error: it is computed here as in Guo
et al., ICML 2017, Eq. 3. Intervals are of rows drawn by SplitMix64, so a test can repeat each resample.
"""

import json
import warnings

import numpy as np
from sklearn import metrics

RANDOM = np.random.default_rng(20240607)
BINS = 15
warnings.simplefilter("ignore")


def number(value):
    return float(value) if np.isfinite(value) else None


def each_auroc(p, y):
    def of(c):
        return metrics.roc_auc_score(y == c, p[:, c]) if 0 < (y == c).sum() < len(y) else np.nan

    return [of(c) for c in range(p.shape[1])]


def each_auprc(p, y):
    def of(c):
        return metrics.average_precision_score(y == c, p[:, c]) if (y == c).any() else np.nan

    return [of(c) for c in range(p.shape[1])]


def auroc(p, y):
    classes = p.shape[1]
    if len(np.unique(y)) < classes:
        return np.nan
    if classes == 2:
        return metrics.roc_auc_score(y, p[:, 1])
    return metrics.roc_auc_score(y, p, multi_class="ovr", average="macro", labels=range(classes))


def auprc(p, y):
    classes = p.shape[1]
    if classes == 2:
        return metrics.average_precision_score(y, p[:, 1]) if (y == 1).any() else np.nan
    if len(np.unique(y)) < classes:
        return np.nan
    return metrics.average_precision_score(y, p, average="macro")


def log_loss(p, y, epsilon):
    # In double precision: the bound of single precision is applied before.
    return metrics.log_loss(y, np.clip(p, epsilon, 1 - epsilon), labels=range(p.shape[1]))


def calibration_error(p, y):
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    edges = np.linspace(0, 1, BINS + 1)
    error = 0.0
    for low, high in zip(edges[:-1], edges[1:]):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return error


def of_classes(p, y, epsilon=np.finfo(np.float64).eps):
    decided = p.argmax(axis=1)
    return {
        "accuracy": metrics.accuracy_score(y, decided),
        "balanced-accuracy": metrics.balanced_accuracy_score(y, decided),
        "macro-f1": metrics.f1_score(y, decided, average="macro"),
        "auroc": auroc(p, y),
        "auprc": auprc(p, y),
        "log-loss": log_loss(p, y, epsilon),
        "brier": metrics.brier_score_loss(y, p, labels=range(p.shape[1])),
        "calibration-error": calibration_error(p, y),
    }


def of_numbers(predicted, truth):
    constant = (truth == truth[0]).all()
    return {
        "mae": metrics.mean_absolute_error(truth, predicted),
        "rmse": metrics.root_mean_squared_error(truth, predicted),
        "r2": np.nan if constant else metrics.r2_score(truth, predicted, force_finite=False),
    }


def class_case(name, p, y, single=False):
    p, y = np.asarray(p, dtype=np.float32 if single else np.float64), np.asarray(y)
    epsilon = np.finfo(p.dtype).eps
    double, classes = p.astype(np.float64), range(p.shape[1])
    decided = p.argmax(axis=1)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        y, decided, labels=classes, zero_division=np.nan
    )
    return {
        "name": name,
        "single": single,
        "probabilities": double.tolist(),
        "labels": y.tolist(),
        "measures": {key: number(value) for key, value in of_classes(double, y, epsilon).items()},
        # What scikit-learn itself computes in the precision given.
        "log_loss_as_given": number(metrics.log_loss(y, p, labels=classes)),
        "confusion": metrics.confusion_matrix(y, decided, labels=classes).tolist(),
        "precision": [number(value) for value in precision],
        "recall": [number(value) for value in recall],
        "f1": [number(value) for value in f1],
        "each_auroc": [number(value) for value in each_auroc(double, y)],
        "each_auprc": [number(value) for value in each_auprc(double, y)],
    }


def number_case(name, predicted, truth):
    predicted, truth = np.asarray(predicted, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    measures = {key: number(value) for key, value in of_numbers(predicted, truth).items()}
    return {"name": name, "predicted": predicted.tolist(), "truth": truth.tolist(), "measures": measures}


def probabilities(rows, classes, sharpness=1.5, labels=None, places=3):
    """Softmax of random numbers, larger for the true class, rounded."""
    logits = sharpness * RANDOM.normal(size=(rows, classes))
    if labels is not None:
        logits[np.arange(rows), labels] += 1.0
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    p = np.round(p, places)
    p[:, 0] = np.round(1 - p[:, 1:].sum(axis=1), places)
    return np.abs(p)


def coarse(rows, classes, steps):
    """Probabilities that are multiples of a fraction: most are tied."""
    drawn = RANDOM.integers(0, classes, size=(rows, steps))
    return np.stack([(drawn == c).sum(axis=1) / steps for c in range(classes)], axis=1)


def labels_of(rows, shares):
    y = RANDOM.choice(len(shares), size=rows, p=shares)
    y[: len(shares)] = [c if share > 0 else y[c] for c, share in enumerate(shares)]
    return y


def class_cases():
    two, five = labels_of(40, [0.7, 0.3]), labels_of(60, [0.2] * 5)
    rare = labels_of(60, [0.6, 0.3, 0.05, 0.03, 0.02])
    lacking = labels_of(50, [0.3, 0.3, 0.0, 0.2, 0.2])
    unheard = probabilities(50, 5, labels=lacking)
    unheard[:, 0] += unheard[:, 2]
    unheard[:, 2] = 0.0
    certain = np.eye(2)[RANDOM.integers(0, 2, 20)]
    certain_of_five = np.eye(5)[RANDOM.integers(0, 5, 40)]
    return [
        class_case("two classes", probabilities(40, 2, labels=two), two),
        class_case("two classes, ties", coarse(40, 2, 5), two),
        class_case("two classes, all rows tied", np.full((40, 2), 0.5), two),
        class_case("two classes, probabilities 0 and 1", certain, two[:20]),
        class_case("two classes, only class 0 occurs", probabilities(9, 2), [0] * 9),
        class_case("two classes, only class 1 occurs", probabilities(9, 2), [1] * 9),
        class_case("two classes, perfect", np.eye(2)[two], two),
        class_case("two classes, one row", [[0.3, 0.7]], [1]),
        class_case("two classes, one row, wrong and certain", [[1.0, 0.0]], [1]),
        class_case("three classes, all rows tied", np.full((12, 3), 1 / 3), [0, 1, 2] * 4),
        class_case("five classes", probabilities(60, 5, labels=five), five),
        class_case("five classes, ties", coarse(60, 5, 4), five),
        class_case("five classes, ties at bounds of bins", coarse(60, 5, 15), five),
        class_case("five classes, rare ones", probabilities(60, 5, labels=rare), rare),
        class_case("five classes, one predicted but missing", probabilities(50, 5, labels=lacking), lacking),
        class_case("five classes, one neither predicted nor there", unheard, lacking),
        class_case("five classes, only one occurs", probabilities(11, 5), [3] * 11),
        class_case("five classes, probabilities 0 and 1", certain_of_five, five[:40]),
        class_case("five classes, one row", [[0.1, 0.2, 0.3, 0.25, 0.15]], [2]),
        class_case("two classes, single precision", probabilities(40, 2, labels=two), two, single=True),
        class_case("five classes, single precision, zeros", coarse(60, 5, 3), five, single=True),
    ]


def number_cases():
    truth = np.round(RANDOM.normal(50, 12, size=30), 2)
    near = np.round(truth + RANDOM.normal(0, 5, size=30), 2)
    far = np.round(RANDOM.normal(0, 30, size=30), 2)
    return [
        number_case("near", near, truth),
        number_case("worse than the mean", far, truth),
        number_case("perfect", truth, truth),
        number_case("constant truth", near[:7], [0.1] * 7),
        number_case("constant truth, perfect", [0.1] * 7, [0.1] * 7),
        number_case("constant prediction", [50.0] * 30, truth),
        number_case("one row", [2.5], [4.0]),
        number_case("far from zero", near + 1e6, truth + 1e6),
    ]


class SplitMix:
    """SplitMix64, and whole numbers below a bound by Lemire's method."""

    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & self.MASK
        return z ^ (z >> 31)

    def below(self, bound):
        while True:
            product = self.next() * bound
            if product & self.MASK >= (-bound & self.MASK) % bound:
                return product >> 64


def resamples(seed, count, rows):
    draws = SplitMix(seed)
    return [np.array([draws.below(rows) for _ in range(rows)]) for _ in range(count)]


def interval(values, level):
    values = np.array([value for value in values if np.isfinite(value)])
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return {
        "low": float(low),
        "high": float(high),
        "standard_error": float(values.std(ddof=1)),
        "resamples": len(values),
    }


def intervals(cases, numbers):
    wanted = []
    for name, seed, level in [("two classes", 1, 0.95), ("five classes, rare ones", 2, 0.9)]:
        case = next(case for case in cases if case["name"] == name)
        p, y = np.array(case["probabilities"]), np.array(case["labels"])
        drawn = [of_classes(p[rows], y[rows]) for rows in resamples(seed, 200, len(y))]
        for measure in drawn[0]:
            values = [one[measure] for one in drawn]
            # Where fewer than half of the resamples have a value there is no interval.
            few = np.isfinite(values).sum() * 2 < len(values)
            expected = None if few else interval(values, level)
            wanted.append({"case": name, "measure": measure, "seed": seed, "level": level, "interval": expected})
    case = numbers[0]
    predicted, truth = np.array(case["predicted"]), np.array(case["truth"])
    drawn = [of_numbers(predicted[rows], truth[rows]) for rows in resamples(3, 200, len(truth))]
    for measure in drawn[0]:
        expected = interval([one[measure] for one in drawn], 0.95)
        wanted.append({"case": case["name"], "measure": measure, "seed": 3, "level": 0.95, "interval": expected})
    return wanted


def gains(cases):
    """By how much the case "two classes" is better than "two classes, ties": both have the same truth."""
    first, second = cases[0], cases[1]
    assert first["labels"] == second["labels"]
    y = np.array(first["labels"])
    one, two = np.array(first["probabilities"]), np.array(second["probabilities"])
    lower = {"log-loss", "brier", "calibration-error"}
    wanted = []
    for measure in of_classes(one, y):
        sign = -1 if measure in lower else 1
        values = [
            sign * (of_classes(one[rows], y[rows])[measure] - of_classes(two[rows], y[rows])[measure])
            for rows in resamples(4, 100, len(y))
        ]
        wanted.append({"measure": measure, "interval": interval(values, 0.95)})
    return wanted


cases, numbers = class_cases(), number_cases()
golden = {
    "classes": cases,
    "numbers": numbers,
    "intervals": intervals(cases, numbers),
    "gains": gains(cases),
}
print(json.dumps(golden, indent=None, separators=(",", ":")))
