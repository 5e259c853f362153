//! Rényi accounting: what noisy releases and whole training runs cost, as curves that simply add up.
//!
//! A mechanism has Rényi privacy ρ(α) at the order α if the Rényi divergence of that order between its outcomes on
//! neighbouring data is at most ρ(α). Curves of releases add, also if later releases were chosen by what earlier ones
//! said. Neighbours differ by one sample that is there or not (add/remove).
//!
//! **Gaussian noise**: ρ(α) = α / (2 σ²).
//!
//! **Gaussian noise on a Poisson sample** (Mironov, Talwar and Zhang 2019, arXiv 1908.10530, section 3.3): each sample
//! takes part with probability q. ρ(α) = ln A / (α - 1), where for whole orders
//!
//! ```text
//! A = sum_{k=0..α} binom(α, k) (1-q)^(α-k) q^k exp((k² - k) / (2 σ²))
//! ```
//!
//! The summands without their exponential sum to 1, so A - 1 is summed with exp(·) - 1: every term is then positive and
//! nothing cancels for small q. For fractional orders A is a sum of two series with erfc. Beyond the order their signs
//! alternate and their terms fall, in the end only like a power. So half of the last term is taken, which misses the rest
//! by at most half of the last fall. That bound, and one of rounding, are added to A. What dp-accounting does is simpler: it
//! sums absolute values, and leaves an order out where a thousand terms do not suffice. Its ε is up to 5 % larger.
//!
//! **To (ε, δ)** (Canonne, Kamath and Steinke 2020, arXiv 2004.00010, Proposition 12), the least over all orders:
//!
//! ```text
//! epsilon = ρ(α) + ln(1 - 1/α) - ln(δ α) / (α - 1)
//! ```
//!
//! ε is 0 if even the total variation is at most δ, by sqrt(1 - exp(-ρ)) (Bretagnolle and Huber).

use serde::{Deserialize, Serialize};

use crate::normal::log_erfc;
use crate::units::{Delta, Epsilon, Noise, Rate};

/// Most terms of a series for a fractional order.
const MOST_TERMS: u32 = 1_000;
/// The series ends where terms are e⁻³⁶, about 2e-16, of the sum.
const NEGLIGIBLE: f64 = 36.0;
/// What is added to a series for its rounding, as a share of the sum of absolute values.
const ROUNDING: f64 = 1e-14;
/// The least order that bounds ε: the bound is not stable near 1, and not useful there.
const LEAST_ORDER: f64 = 1.01;
/// How near the least noise the search comes, as a share of it.
const NOISE_STEP: f64 = 1e-4;

/// Steps of one training run: noise on the sum over a Poisson sample of everybody's samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampled {
    /// The probability with which each sample takes part in a step; 1 for a sum over all.
    pub rate: Rate,
    /// The standard deviation of the noise over the length to which each sample's summand is clipped.
    pub noise: Noise,
    /// The number of steps.
    pub steps: u32,
}

/// A set of orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orders {
    /// The 156 orders of Google's dp-accounting, from 1.1 to 1024, which include those of Opacus.
    Google,
    /// The 151 orders of Opacus, from 1.1 to 63.
    Opacus,
}

/// What a mechanism costs at each order.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    orders: Vec<f64>,
    values: Vec<f64>,
}

/// The best bound of a curve, and the order that gave it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// The bound: an ε, or a δ.
    pub value: f64,
    /// The order.
    pub order: f64,
}

impl Orders {
    fn list(self) -> Vec<f64> {
        let fractional = (1..100).map(|tenth| 1.0 + f64::from(tenth) / 10.0);
        let whole = match self {
            Orders::Google => 11..64,
            Orders::Opacus => 12..64,
        };
        let large: &[f64] = match self {
            Orders::Google => &[128.0, 256.0, 512.0, 1024.0],
            Orders::Opacus => &[],
        };
        let whole = whole.map(f64::from);
        fractional
            .chain(whole)
            .chain(large.iter().copied())
            .collect()
    }
}

impl Curve {
    /// Returns the curve of nothing.
    pub fn zero(orders: Orders) -> Self {
        let orders = orders.list();
        let values = vec![0.0; orders.len()];
        Self { orders, values }
    }

    /// Returns the curve with a Gaussian release added.
    #[must_use]
    pub fn with_gaussian(self, noise: Noise) -> Self {
        self.with(1.0, |order| whole_sum(order, noise.get()))
    }

    /// Returns the curve with a training run added.
    #[must_use]
    pub fn with_sampled(self, run: &Sampled) -> Self {
        let (rate, noise) = (run.rate.get(), run.noise.get());
        self.with(f64::from(run.steps), |order| one_step(rate, noise, order))
    }

    fn with(mut self, times: f64, cost: impl Fn(f64) -> f64) -> Self {
        if times > 0.0 {
            for (value, &order) in self.values.iter_mut().zip(&self.orders) {
                *value += times * cost(order);
            }
        }
        self
    }

    /// Returns the least ε at δ; infinite if no order bounds it.
    pub fn epsilon(&self, delta: Delta) -> Bound {
        self.best(|order, value| epsilon_at(order, value, delta.get()))
    }

    /// Returns the least δ at ε, at most 1.
    pub fn delta(&self, epsilon: Epsilon) -> Bound {
        let log = self.best(|order, value| log_delta_at(order, value, epsilon.get()));
        Bound {
            value: log.value.exp().min(1.0),
            ..log
        }
    }

    /// Returns the order at which P(loss > ε) ≤ exp((α - 1) (ρ(α) - ε)) says most.
    pub(crate) fn order_at(&self, epsilon: f64) -> f64 {
        self.best(|order, value| (order - 1.0) * (value - epsilon))
            .order
    }

    fn best(&self, bound: impl Fn(f64, f64) -> f64) -> Bound {
        let mut best = Bound {
            value: f64::INFINITY,
            order: self.orders[0],
        };
        for (&order, &value) in self.orders.iter().zip(&self.values) {
            let value = bound(order, value);
            if value < best.value {
                best = Bound { value, order };
            }
        }
        best
    }
}

/// Returns the noise with which a training run of so many steps costs (ε, δ) at most, and 0.01 % above the least such noise at most.
///
/// `None` if that is out of a noise's range, and for a run without steps.
pub fn noise_for(epsilon: Epsilon, delta: Delta, rate: Rate, steps: u32) -> Option<Noise> {
    let passes = |noise: f64| {
        let noise = Noise::new(noise).ok()?;
        let run = Sampled { rate, noise, steps };
        let cost = Curve::zero(Orders::Google).with_sampled(&run);
        Some(cost.epsilon(delta).value <= epsilon.get())
    };
    let mut above = 1.0;
    while !passes(above)? {
        above *= 2.0;
    }
    while passes(above / 2.0)? {
        above /= 2.0;
    }
    let mut below = above / 2.0;
    while above / below > 1.0 + NOISE_STEP {
        let middle = (above * below).sqrt();
        if passes(middle)? {
            above = middle;
        } else {
            below = middle;
        }
    }
    Noise::new(above).ok()
}

fn epsilon_at(order: f64, value: f64, delta: f64) -> f64 {
    if total_variation(value) <= delta {
        return 0.0;
    }
    if order < LEAST_ORDER {
        return f64::INFINITY;
    }
    (value + (-1.0 / order).ln_1p() - (delta * order).ln() / (order - 1.0)).max(0.0)
}

fn log_delta_at(order: f64, value: f64, epsilon: f64) -> f64 {
    let whole = total_variation(value).ln();
    if order < LEAST_ORDER {
        return whole;
    }
    let bound = (order - 1.0) * (value - epsilon + (-1.0 / order).ln_1p()) - order.ln();
    whole.min(bound)
}

/// Returns a bound of the total variation between outcomes: no event is likelier by more.
fn total_variation(value: f64) -> f64 {
    (-f64::exp_m1(-value)).sqrt()
}

fn whole_sum(order: f64, sigma: f64) -> f64 {
    order / (2.0 * sigma * sigma)
}

fn one_step(rate: f64, sigma: f64, order: f64) -> f64 {
    if rate == 1.0 {
        return whole_sum(order, sigma);
    }
    let log_a = if order.fract() == 0.0 {
        log_a_whole(rate, sigma, order as u32)
    } else {
        log_a_fractional(rate, sigma, order)
    };
    log_a.max(0.0) / (order - 1.0)
}

/// Returns ln A of a whole order: ln(1 + sum over k >= 2 of the binomial weights times exp(·) - 1).
fn log_a_whole(rate: f64, sigma: f64, order: u32) -> f64 {
    let (log_rate, log_rest) = (rate.ln(), (-rate).ln_1p());
    let mut log_excess = f64::NEG_INFINITY;
    for index in 2..=order {
        let k = f64::from(index);
        let weight = signed_binomial(f64::from(order), k).1
            + k * log_rate
            + f64::from(order - index) * log_rest;
        log_excess = log_add(
            log_excess,
            weight + log_exp_m1((k * k - k) / (2.0 * sigma * sigma)),
        );
    }
    log_one_plus_exp(log_excess)
}

/// Returns ln A of a fractional order by two series, rounded up; infinite if their terms do not fall.
fn log_a_fractional(rate: f64, sigma: f64, order: f64) -> f64 {
    let mut terms: Vec<Pair> = Vec::new();
    let mut total = f64::NEG_INFINITY;
    for index in 0..MOST_TERMS {
        let pair = Pair::of(rate, sigma, order, f64::from(index));
        total = log_add(log_add(total, pair.logs[0]), pair.logs[1]);
        terms.push(pair);
        let end = falls(&terms, order) && pair.logs[0].max(pair.logs[1]) < total - NEGLIGIBLE;
        if end {
            break;
        }
    }
    if falls(&terms, order) {
        log_of_series(&terms, total)
    } else {
        f64::INFINITY
    }
}

/// A term of both series: ln of their sizes, and their sign.
#[derive(Clone, Copy)]
struct Pair {
    sign: f64,
    logs: [f64; 2],
}

impl Pair {
    fn of(rate: f64, sigma: f64, order: f64, i: f64) -> Self {
        let (log_rate, log_rest) = (rate.ln(), (-rate).ln_1p());
        let half_square = 1.0 / (2.0 * sigma * sigma);
        let width = std::f64::consts::SQRT_2 * sigma;
        let middle = sigma * sigma * (log_rest - log_rate) + 0.5;
        let j = order - i;
        let (sign, binomial) = signed_binomial(order, i);
        let weight = binomial - std::f64::consts::LN_2;
        let below = i * log_rate + j * log_rest + (i * i - i) * half_square;
        let above = j * log_rate + i * log_rest + (j * j - j) * half_square;
        let logs = [
            weight + below + log_erfc((i - middle) / width),
            weight + above + log_erfc((middle - j) / width),
        ];
        Self { sign, logs }
    }
}

/// Tells whether the last two terms of both series alternate, and fall.
fn falls(terms: &[Pair], order: f64) -> bool {
    let [.., before, last] = terms else {
        return false;
    };
    let alternate = terms.len() as f64 > order + 3.0;
    alternate && last.logs[0] < before.logs[0] && last.logs[1] < before.logs[1]
}

/// Returns ln of the series with half of the last term, and of what that and rounding may hide.
///
/// `total` is ln of the sum of absolute values.
fn log_of_series(terms: &[Pair], total: f64) -> f64 {
    let [sure @ .., before, last] = terms else {
        return f64::INFINITY;
    };
    let size = |pair: &Pair| (pair.logs[0] - total).exp() + (pair.logs[1] - total).exp();
    let sum: f64 = sure
        .iter()
        .chain([before])
        .map(|pair| pair.sign * size(pair))
        .sum();
    let (before, halved) = (size(before), last.sign * size(last) / 2.0);
    let hidden = (before - size(last)) / 2.0;
    total + (sum + halved + hidden + ROUNDING).ln()
}

/// Returns the sign and ln |binom(n, k)| of a real n.
fn signed_binomial(n: f64, k: f64) -> (f64, f64) {
    let (rest, sign) = libm::lgamma_r(n - k + 1.0);
    (
        f64::from(sign),
        libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - rest,
    )
}

/// Returns ln(e^x + e^y).
fn log_add(x: f64, y: f64) -> f64 {
    let (low, high) = (x.min(y), x.max(y));
    if low == f64::NEG_INFINITY {
        return high;
    }
    high + (low - high).exp().ln_1p()
}

/// Returns ln(e^x - 1) of a positive x.
fn log_exp_m1(x: f64) -> f64 {
    if x > 50.0 { x } else { x.exp_m1().ln() }
}

/// Returns ln(1 + e^x).
fn log_one_plus_exp(x: f64) -> f64 {
    if x > 50.0 { x } else { x.exp().ln_1p() }
}

/// Makes a training run of plain numbers.
#[cfg(test)]
pub(crate) fn run(rate: f64, noise: f64, steps: u32) -> Sampled {
    Sampled {
        rate: Rate::new(rate).unwrap(),
        noise: Noise::new(noise).unwrap(),
        steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Order 2 by hand: A = 1 + q² (e^(1/σ²) - 1).
    #[test]
    fn the_second_moment_is_that_by_hand() {
        let (q, sigma) = (0.01, 2.0);
        let expected = f64::ln_1p(q * q * f64::exp_m1(0.25));
        assert!((one_step(q, sigma, 2.0) / expected - 1.0).abs() < 1e-14);
    }

    /// By numerical integration of the definition with mpmath.
    #[test]
    fn fractional_orders_are_those_by_integration() {
        for (q, sigma, order, expected) in [
            (0.1, 0.8, 1.3, 0.019_027_914_367_859_588),
            (0.3, 1.5, 2.5, 0.065_140_588_819_346_52),
        ] {
            let found = one_step(q, sigma, order);
            assert!(found >= expected * (1.0 - 1e-13), "{found} {expected}");
            assert!(found <= expected * (1.0 + 1e-11), "{found} {expected}");
        }
    }

    /// Every curve is continuous in the order, so both ways must meet at whole orders.
    #[test]
    fn fractional_and_whole_orders_meet() {
        for (q, sigma) in [(0.01, 1.0), (0.2, 0.7), (0.5, 3.0)] {
            for order in [2.0, 5.0, 20.0] {
                let (whole, near) = (one_step(q, sigma, order), one_step(q, sigma, order + 1e-7));
                assert!(
                    (near / whole - 1.0).abs() < 1e-5,
                    "{q} {sigma} {order}: {whole} {near}"
                );
            }
        }
    }

    #[test]
    fn a_sample_of_everything_is_the_plain_mechanism() {
        let noise = Noise::new(3.0).unwrap();
        let plain = Curve::zero(Orders::Google).with_gaussian(noise);
        assert_eq!(
            Curve::zero(Orders::Google).with_sampled(&run(1.0, 3.0, 1)),
            plain
        );
    }

    #[test]
    fn curves_add() {
        let delta = Delta::new(1e-5).unwrap();
        let zero = || Curve::zero(Orders::Google);
        let together = zero().with_sampled(&run(0.02, 1.1, 700));
        let parts = zero()
            .with_sampled(&run(0.02, 1.1, 300))
            .with_sampled(&run(0.02, 1.1, 400));
        let (together, parts) = (together.epsilon(delta), parts.epsilon(delta));
        assert!((together.value - parts.value).abs() < 1e-12);
        assert_eq!(zero().epsilon(delta).value, 0.0);
        assert_eq!(zero().with_sampled(&run(0.5, 1e-6, 0)), zero());
    }

    #[test]
    fn delta_inverts_epsilon() {
        let curve = Curve::zero(Orders::Google).with_sampled(&run(0.01, 1.0, 1000));
        let best = curve.epsilon(Delta::new(1e-6).unwrap());
        let back = curve.delta(Epsilon::new(best.value).unwrap());
        assert!((back.value / 1e-6 - 1.0).abs() < 1e-9, "{}", back.value);
        assert_eq!(back.order, best.order);
    }

    #[test]
    fn almost_no_noise_is_almost_no_privacy() {
        let curve = Curve::zero(Orders::Google).with_sampled(&run(0.01, 1e-6, 1));
        assert!(curve.epsilon(Delta::new(1e-6).unwrap()).value > 1e9);
        assert_eq!(curve.delta(Epsilon::new(1.0).unwrap()).value, 1.0);
    }
}
