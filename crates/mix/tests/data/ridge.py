"""Writes ridge.json: ridge regression of three sites' rows together, by scikit-learn.

    python ridge.py > ridge.json        with scikit-learn 1.9.1

Features are scaled to deviation 1 over all rows (StandardScaler), as the ridge counts in rows. `own` has an offset for each site,
which is not penalised: features and numbers are taken less their site's means. `left_out` is the mean square of the errors
of the first site's rows, each predicted by a fit without it, on the same scale.
"""

import json

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

RIDGE = 3.0
random = np.random.default_rng(7)
sites = []
for rows, shift in [(12, 0.0), (30, 4.0), (21, -2.0)]:
    features = random.normal(size=(rows, 4)) * [1, 10, 0.1, 3] + [0, 100, 0, shift]
    numbers = features @ [2.0, -0.3, 5.0, 1.0] + shift + random.normal(size=rows)
    sites.append((features.astype(np.float32), numbers.astype(np.float32)))

features = np.concatenate([features for features, _ in sites]).astype(np.float64)
numbers = np.concatenate([numbers for _, numbers in sites]).astype(np.float64)
scaler = StandardScaler().fit(features)
scaled = scaler.transform(features)


def line(fit, shift=0.0):
    weights = fit.coef_ / scaler.scale_
    return {"weights": weights.tolist(), "offset": float(fit.intercept_ - weights @ scaler.mean_ + shift)}


common = Ridge(alpha=RIDGE).fit(scaled, numbers)
first = len(sites[0][1])
squares = []
for row in range(first):
    rest = np.arange(len(numbers)) != row
    fit = Ridge(alpha=RIDGE).fit(scaled[rest], numbers[rest])
    squares.append((numbers[row] - fit.predict(scaled[row : row + 1])[0]) ** 2)

labels = np.repeat(np.arange(len(sites)), [len(numbers) for _, numbers in sites])
less = lambda values: values - np.stack([values[labels == site].mean(axis=0) for site in labels])
own = Ridge(alpha=RIDGE, fit_intercept=False).fit(less(scaled), less(numbers))
weights = own.coef_ / scaler.scale_
offset = numbers[labels == 0].mean() - weights @ features[labels == 0].mean(axis=0)

print(
    json.dumps(
        {
            "ridge": RIDGE,
            "sites": [{"features": f.ravel().tolist(), "numbers": n.tolist()} for f, n in sites],
            "common": line(common),
            "left_out": float(np.mean(squares)),
            "own": {"weights": weights.tolist(), "offset": float(offset)},
        },
        indent=1,
    )
)
