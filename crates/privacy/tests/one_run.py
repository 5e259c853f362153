#!/usr/bin/env python3
"""Writes one_run.json: what SciPy says of guesses of coins, for tests/one_run.rs.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install scipy==1.16.3
    /tmp/venv/bin/python crates/privacy/tests/one_run.py

The formula is that of Theorem 5.2 of Steinke, Nasr and Jagielski (NeurIPS 2023), with SciPy's binomial distribution.
"""

import json
import math
import pathlib

from scipy.optimize import brentq
from scipy.stats import binom

ERROR = 0.05
GUESSES = [(10, 10, 10), (100, 20, 19), (1000, 100, 84), (1000, 1000, 612), (1000, 1000, 1000), (2000, 50, 50), (5000, 900, 871)]
DELTAS = [1e-10, 1e-5, 1e-3]


def probability(canaries, made, right, epsilon, delta):
    """Returns the most by which so many guesses are right under a promise."""
    theirs = binom(made, 1 / (1 + math.exp(-epsilon)))
    below = [theirs.cdf(right - 1) - theirs.cdf(right - i - 1) for i in range(1, right + 1)]
    steepest = max((mass / i for i, mass in enumerate(below, 1)), default=0)
    return theirs.sf(right - 1) + 2 * canaries * delta * steepest


def main():
    cases = []
    for canaries, made, right in GUESSES:
        for delta in DELTAS:
            excess = lambda epsilon: probability(canaries, made, right, epsilon, delta) - ERROR  # noqa: E731
            epsilon = 0.0 if excess(0.0) > 0 else brentq(excess, 0.0, 30.0, xtol=1e-12)
            cases.append({"canaries": canaries, "made": made, "right": right, "delta": delta, "epsilon": epsilon})
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"error": ERROR, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
