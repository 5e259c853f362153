//! How far a share may be off that was counted: so many hits of so many trials.

/// Halvings of a range: more than a double has bits.
const HALVINGS: u32 = 60;

/// Returns the exact interval of a probability that was seen as `hits` of `trials`, at a level such as 0.95; `None` without trials.
/// It holds at least that often, however few trials there are.
///
/// Source: Clopper and Pearson, Biometrika 26 (1934). The ends are where the hits, or more of them, and the hits, or fewer, have
/// the probability (1 − level) / 2.
///
/// # Panics
/// If there are more hits than trials, or the level is not between 0 and 1.
pub fn clopper_pearson(hits: u32, trials: u32, level: f64) -> Option<[f64; 2]> {
    assert!(hits <= trials, "{hits} hits of {trials} trials");
    assert!(level > 0.0 && level < 1.0, "{level} is no level");
    if trials == 0 {
        return None;
    }
    let tail = (1.0 - level) / 2.0;
    let choices = Choices::of(trials);
    // The more probable a hit, the more probable are so many hits or more, and the less so many or fewer.
    let low = match hits {
        0 => 0.0,
        _ => boundary(|p| choices.between(hits, trials, p) < tail),
    };
    let high = match trials - hits {
        0 => 1.0,
        _ => boundary(|p| choices.between(0, hits, p) > tail),
    };
    Some([low, high])
}

/// Returns where something that holds for small probabilities ceases to hold.
fn boundary(holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// The logarithms of the numbers of ways to choose 0, 1, … of some trials.
struct Choices(Vec<f64>);

impl Choices {
    fn of(trials: u32) -> Self {
        let mut logarithms = vec![0.0];
        let mut sum = 0.0;
        for chosen in 0..trials {
            sum += f64::from(trials - chosen).ln() - f64::from(chosen + 1).ln();
            logarithms.push(sum);
        }
        Self(logarithms)
    }

    /// Returns the probability of `fewest` to `most` hits, each of which has probability `p`.
    fn between(&self, fewest: u32, most: u32, p: f64) -> f64 {
        let trials = self.0.len() as u32 - 1;
        let (hit, miss) = (p.ln(), (-p).ln_1p());
        let term = |hits: u32| {
            let ways = self.0[hits as usize];
            (ways + f64::from(hits) * hit + f64::from(trials - hits) * miss).exp()
        };
        (fewest..=most).map(term).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_scipy() {
        // Quantiles of the beta distribution by SciPy 1.17: beta.ppf(.025, k, n - k + 1), beta.ppf(.975, k + 1, n - k).
        let golden = [
            (0, 100, 0.0, 0.036_216_692_645_176_41),
            (
                4,
                405,
                0.002_697_397_523_426_659_5,
                0.025_093_582_836_762_048,
            ),
            (81, 405, 0.162_123_358_013_618_32, 0.242_325_398_709_273_03),
            (404, 405, 0.986_320_250_582_226_8, 0.999_937_488_847_769_5),
            (405, 405, 0.990_933_010_982_358_1, 1.0),
            (1, 3, 0.008_403_758_659_612_636, 0.905_700_675_949_753_9),
        ];
        for (hits, trials, low, high) in golden {
            let [l, h] = clopper_pearson(hits, trials, 0.95).unwrap();
            assert!(
                (l - low).abs() < 1e-10 && (h - high).abs() < 1e-10,
                "{hits} of {trials}: {l} {h}"
            );
        }
        assert_eq!(clopper_pearson(0, 0, 0.95), None);
    }
}
