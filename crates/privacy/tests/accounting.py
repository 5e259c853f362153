#!/usr/bin/env python3
"""Writes accounting.json: what Google's dp-accounting and Opacus say of Gaussian noise, for tests/accounting.rs.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install dp-accounting==0.6.0
    /tmp/venv/bin/pip download --no-deps --dest /tmp/opacus opacus==1.6.0
    /tmp/venv/bin/python crates/privacy/tests/accounting.py /tmp/opacus/opacus-1.6.0-py3-none-any.whl

Opacus as a package needs PyTorch. Its Renyi analysis is one file that needs numpy and scipy alone, so that file is taken
out of the wheel. The lower bounds of the truth are dp-accounting's optimistic estimates of the privacy loss distribution.
The run takes about a quarter of an hour.
"""

import importlib.util
import json
import math
import pathlib
import sys
import tempfile
import warnings
import zipfile

from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import rdp_privacy_accountant as rdp

RATES = [0.0005, 0.002, 0.01, 0.03, 0.1, 0.3, 1.0]
NOISES = [0.6, 0.8, 1.0, 1.5, 2.5, 5.0, 20.0]
STEPS = [1, 10, 100, 1_000, 10_000, 100_000]
DELTAS = [1e-5, 1e-6, 1e-8, 1e-10]
# Beyond this nobody speaks of privacy, and the libraries' own numbers become rough.
MOST_EPSILON = 50.0
# A privacy loss distribution for one in so many settings: each takes seconds here and tenths of a second in the test.
EVERY = 4
# Cells of the widest grid that is worth its time.
MOST_CELLS = 250_000


def opacus(wheel):
    """Returns the module of Opacus's Renyi analysis, and its orders."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        path = archive.extract("opacus/accountants/analysis/rdp.py", folder)
        spec = importlib.util.spec_from_file_location("opacus_rdp", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module, [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))


def renyi(module, orders, rate, noise, steps, delta):
    """Returns the epsilons of dp-accounting and of Opacus by Renyi curves, each with its own orders, and Opacus's with the
    orders of dp-accounting."""
    google_orders = rdp.DEFAULT_RDP_ORDERS
    curve = rdp._compute_rdp_poisson_subsampled_gaussian(rate, noise, google_orders) * steps
    google, order = rdp.compute_epsilon(google_orders, curve, delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = []
        for chosen in (orders, google_orders):
            theirs = module.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=chosen)
            found.append(float(module.get_privacy_spent(orders=chosen, rdp=theirs, delta=delta)[0]))
    return float(google), found[0], found[1], float(order)


def numerical(rate, noise, steps, delta, epsilon, order, pessimistic):
    """Returns epsilon by dp-accounting's privacy loss distribution, on a grid fine enough for 0.1 % where that is possible."""
    if pessimistic:
        # Connecting the dots adds about steps * order * h^2 / 12 to epsilon.
        interval = min(math.sqrt(12 * 3e-4 * epsilon / (steps * order)), epsilon / 100)
    else:
        # Rounding down takes up to steps * h off epsilon.
        interval = 2e-3 * epsilon / steps
    width = max(4 * epsilon, 4.0 / noise, 0.01)
    interval = min(1e-3, max(interval, width / MOST_CELLS))
    one = pld.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, pessimistic_estimate=pessimistic,
        log_mass_truncation_bound=-60)
    return float(one.self_compose(steps).get_epsilon_for_delta(delta)), interval


def settings():
    """Yields every (rate, noise, steps, delta) of the grid; the deltas take turns."""
    turn = 0
    for rate in RATES:
        for noise in NOISES:
            for steps in STEPS:
                yield rate, noise, steps, DELTAS[turn % len(DELTAS)]
                turn += 1


def gaussians():
    """Returns sigma and epsilon of dp-accounting for one Gaussian release."""
    rows = []
    for epsilon in [0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0, 100.0]:
        for delta in [1e-12, 1e-9, 1e-5, 1e-3, 0.1, 0.5]:
            sigma = float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta, tol=1e-13))
            rows.append({"epsilon": epsilon, "delta": delta, "sigma": sigma})
    return rows


def main():
    module, orders = opacus(sys.argv[1])
    rows = []
    for rate, noise, steps, delta in settings():
        google, own, both, order = renyi(module, orders, rate, noise, steps, delta)
        if not 0 < google <= MOST_EPSILON:
            continue
        row = {"rate": rate, "noise": noise, "steps": steps, "delta": delta, "google": google}
        # For fractional orders dp-accounting sums absolute values, and leaves out those whose series is long. That makes its
        # epsilon up to a twentieth larger.
        row["opacus"], row["opacus_with_google_orders"] = own, both
        if len(rows) % EVERY == 0:
            # For few steps at a small rate the truth may be a fiftieth of the Renyi bound: once more, with a grid for it.
            first, _ = numerical(rate, noise, steps, delta, google, order, True)
            upper, interval = numerical(rate, noise, steps, delta, first, order, True)
            lower, _ = numerical(rate, noise, steps, delta, upper, order, False)
            row["loss"] = {"upper": upper, "lower": lower, "interval": interval}
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    out = pathlib.Path(__file__).with_name("accounting.json")
    lines = ",\n    ".join(json.dumps(row) for row in rows)
    ones = ",\n    ".join(json.dumps(row) for row in gaussians())
    out.write_text(f'{{\n  "settings": [\n    {lines}\n  ],\n  "gaussians": [\n    {ones}\n  ]\n}}\n')
    print(f"{len(rows)} settings, {sum('loss' in row for row in rows)} with a privacy loss distribution", file=sys.stderr)


if __name__ == "__main__":
    main()
