//! Composes the losses of all steps by FFT, and bounds everything that this may hide.
//!
//! **Tilting.** A float's FFT errs by 1e-16 of the largest probabilities, and δ may be 1e-10. So every step's
//! probabilities are multiplied by e^(λL) and divided by their sum, which puts the bulk where ε is. That commutes with
//! convolution, and is undone at the end:
//!
//! ```text
//! K(λ) = sum over steps of ln sum_L p(L) e^(λL)        p_all(L) = e^(K(λ) - λL) p_tilted(L)
//! ```
//!
//! **The window** holds `points` losses, a power of two, and its upper end is `top`. Three things are added to δ:
//!
//! | hidden | bound |
//! |---|---|
//! | infinite losses of single steps | 1 - Π (1 - p_infinite) |
//! | losses above the window | a millionth of δ: `top` is chosen by Chernoff, P(L > top) ≤ e^(K(λ') - λ' top), for λ' = λ, 2λ, 4λ, … |
//! | rounding of the FFT, at a loss above ε | e^(K(λ) - λε) times an error of the tilted probabilities |
//!
//! What lies outside the window appears within it again, which only adds to δ. What lies below comes with the weight
//! e^(-λ range). The window is wide enough to make that weight, or by Chernoff all that lies below, a millionth of δ.
//!
//! **The error of the FFT.** One transform of N numbers errs by less than 4 u log2 N of their length |p|₂ ≤ 1, with
//! u = 2⁻⁵³ (Higham 2002, section 24.1). A power of n multiplies that error by at most n. The sum of N errors is at most
//! sqrt(N) times their length. So all probabilities together err by less than (n + 1) 8 u log2(N) sqrt(N).

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;

use super::grid::{Direction, Grid, MOST_POINTS, Step};
use crate::rdp::Sampled;

/// Fewest and most losses of a window.
const POINTS: (f64, f64) = (1024.0, MOST_POINTS);
/// A share of δ that does not matter.
const LITTLE: f64 = 1e-6;
/// A share of δ that does not matter even where every step adds it, and a tilt enlarges it.
const NOTHING: f64 = 1e-14;
/// A wider grid is chosen with a margin, since it changes the sums a little.
const MARGIN: f64 = 1.01;
/// A bound of a tail that does not shrink by a tenth is kept.
const FALLS: f64 = 0.9;
/// Most tilts that are tried for a bound of a tail.
const MOST_DOUBLINGS: u32 = 60;
/// A loss beyond which exponentials leave the floats.
const MOST_EXPONENT: f64 = 700.0;

/// How to compose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// The width of the grid that is wanted; the limits of points may make it wider.
    pub(super) width: f64,
    /// λ.
    pub(super) tilt: f64,
    /// About the δ that matters.
    pub(super) delta: f64,
}

/// δ of all steps together, at every point of the window.
#[derive(Debug)]
pub(super) struct Composed {
    width: f64,
    /// The grid index of the lowest loss in the window.
    first: i64,
    /// δ at each loss of the window: without rounding, and what rounding may hide.
    deltas: Vec<f64>,
    rounding: Vec<f64>,
    /// δ at any ε from losses that are not in the window.
    beyond: f64,
}

/// All steps, not yet composed.
struct Steps {
    width: f64,
    runs: Vec<(Grid, u32)>,
}

/// Where the window lies: its upper end, and its width.
struct Window {
    top: f64,
    range: f64,
}

impl Composed {
    pub(super) fn of(runs: &[Sampled], direction: Direction, plan: &Plan) -> Self {
        let number: f64 = runs.iter().map(|run| f64::from(run.steps)).sum();
        let rare = plan.delta * NOTHING / number.max(1.0);
        let mut width = plan.width;
        for run in runs {
            let (low, high) = Step::of(run, direction).range(rare);
            width = width.max((high - low) / MOST_POINTS);
        }
        loop {
            let steps = Steps {
                width,
                runs: runs
                    .iter()
                    .map(|run| (Step::of(run, direction).grid(width, rare), run.steps))
                    .collect(),
            };
            let window = steps.window(plan);
            let points = window.range / width;
            if points <= POINTS.1 {
                let points = points.max(POINTS.0) as usize;
                return steps.compose(plan, &window, points.next_power_of_two());
            }
            width = window.range / POINTS.1 * MARGIN;
        }
    }

    /// Returns δ at ε, an upper bound.
    pub(super) fn delta(&self, epsilon: f64) -> f64 {
        let place = (epsilon / self.width).floor() as i64 - self.first;
        let Ok(index) = usize::try_from(place) else {
            return 1.0;
        };
        let last = self.deltas.len() - 1;
        if index >= last {
            return self.total(last).min(1.0);
        }
        // Between grid points δ of a grid is linear in e^ε.
        let lower = (self.first + place) as f64 * self.width;
        let share = (epsilon - lower).exp_m1() / self.width.exp_m1();
        let fall = self.deltas[index] - self.deltas[index + 1];
        (self.total(index) - share * fall).min(1.0)
    }

    /// Returns the least ε of at least 0 at which δ is at most the given one; infinite if there is none.
    pub(super) fn epsilon(&self, delta: f64) -> f64 {
        let Some(index) = (0..self.deltas.len())
            .rev()
            .find(|&index| self.total(index) > delta)
        else {
            return (self.first as f64 * self.width).max(0.0);
        };
        if index + 1 == self.deltas.len() {
            return f64::INFINITY;
        }
        let lower = (self.first + index as i64) as f64 * self.width;
        let fall = self.deltas[index] - self.deltas[index + 1];
        let share = ((self.total(index) - delta) / fall).min(1.0);
        (lower + (share * self.width.exp_m1()).ln_1p()).max(0.0)
    }

    fn total(&self, index: usize) -> f64 {
        self.deltas[index] + self.rounding[index] + self.beyond
    }
}

impl Steps {
    /// Returns K at a tilt of either sign.
    fn log_sum(&self, tilt: f64) -> f64 {
        let of_run =
            |(grid, steps): &(Grid, u32)| f64::from(*steps) * tilted(grid, self.width, tilt).1;
        self.runs.iter().map(of_run).sum()
    }

    /// Returns a window outside which too little lies to matter.
    fn window(&self, plan: &Plan) -> Window {
        let little = (plan.delta * LITTLE).ln();
        let beyond = |tilt: f64| (self.log_sum(tilt) - little) / tilt.abs();
        let top = falling(plan.tilt, beyond);
        let weighed_away = -little / plan.tilt;
        if weighed_away <= top {
            return Window { top, range: top };
        }
        let bottom = falling(-1.0, beyond).max(0.0);
        Window {
            top,
            range: weighed_away.min(top + bottom).max(top),
        }
    }

    fn compose(&self, plan: &Plan, window: &Window, points: usize) -> Composed {
        let (width, tilt) = (self.width, plan.tilt);
        let last = (window.top / width).ceil() as i64;
        let first = last - points as i64 + 1;
        let composed = self.convolved(tilt, points);
        let log_sum = self.log_sum(tilt);
        let (mut number, mut no_infinite) = (0.0, 0.0);
        for (grid, steps) in &self.runs {
            number += f64::from(*steps);
            no_infinite += f64::from(*steps) * (-grid.infinite).ln_1p();
        }
        let size = points as f64;
        let error = (number + 1.0) * 4.0 * f64::EPSILON * size.log2() * size.sqrt();

        let mut deltas = vec![0.0; points];
        let mut rounding = vec![0.0; points];
        // From the top down: `above` is the probability of larger losses, and
        // δ(L - h) = (1 - e^-h) above + e^-h δ(L).
        let (mut above, mut delta) = (0.0, 0.0);
        let (fall, keep) = (-(-width).exp_m1(), (-width).exp());
        for place in (0..points).rev() {
            let index = first + place as i64;
            let exponent = log_sum - tilt * index as f64 * width;
            let untilt = exponent.min(MOST_EXPONENT).exp();
            deltas[place] = delta;
            rounding[place] = untilt * error;
            above += untilt * composed[index.rem_euclid(points as i64) as usize].max(0.0);
            delta = fall * above + keep * delta;
        }
        Composed {
            width,
            first,
            deltas,
            rounding,
            beyond: plan.delta * LITTLE - no_infinite.exp_m1(),
        }
    }

    /// Returns the tilted probabilities of all steps' summed losses, by the remainder of their grid index.
    fn convolved(&self, tilt: f64, points: usize) -> Vec<f64> {
        let mut planner = RealFftPlanner::<f64>::new();
        let forward = planner.plan_fft_forward(points);
        let inverse = planner.plan_fft_inverse(points);
        let mut product = vec![Complex::new(1.0 / points as f64, 0.0); points / 2 + 1];
        for (grid, steps) in &self.runs {
            let mut folded = vec![0.0; points];
            for (place, probability) in tilted(grid, self.width, tilt).0.iter().enumerate() {
                let index = grid.first + place as i64;
                folded[index.rem_euclid(points as i64) as usize] += probability;
            }
            let mut spectrum = forward.make_output_vec();
            forward
                .process(&mut folded, &mut spectrum)
                .expect("both lengths are the plan's");
            for (all, one) in product.iter_mut().zip(&spectrum) {
                *all *= one.powu(*steps);
            }
        }
        let mut composed = inverse.make_output_vec();
        // The first and last numbers of a real signal's spectrum are real; rounding must not say otherwise.
        product[0].im = 0.0;
        product[points / 2].im = 0.0;
        inverse
            .process(&mut product, &mut composed)
            .expect("both lengths are the plan's");
        composed
    }
}

/// Returns the tilted probabilities of one step, and the logarithm of what they were divided by.
fn tilted(grid: &Grid, width: f64, tilt: f64) -> (Vec<f64>, f64) {
    let exponent = |place: usize| tilt * (grid.first + place as i64) as f64 * width;
    let logs: Vec<f64> = grid
        .probabilities
        .iter()
        .enumerate()
        .map(|(place, probability)| probability.ln() + exponent(place))
        .collect();
    let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logs.iter().map(|log| (log - highest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let shares = weights.iter().map(|weight| weight / sum).collect();
    (shares, highest + sum.ln())
}

/// Returns the least of f(x), f(2x), f(4x), … before they rise, or are no number.
fn falling(start: f64, f: impl Fn(f64) -> f64) -> f64 {
    let (mut at, mut least) = (start, f(start));
    for _ in 0..MOST_DOUBLINGS {
        at *= 2.0;
        let next = f(at);
        if next.is_nan() || next >= least * FALLS {
            break;
        }
        least = next;
    }
    least
}
