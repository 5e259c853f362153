//! Whether what is served is worth serving, and what it lacks.
//!
//! The least that a model must do is to beat a constant. That is the answer which is commonest in the samples that it is judged by,
//! with the shares that classes have in the node's training samples. Where nearly all samples are of one class nothing can beat
//! that, and nothing is said.

use super::Learner;
use super::training::count;
use crate::evaluate::Evaluation;

/// Fewest samples that a model is judged by.
const FEWEST: u32 = 20;
/// Most that the commonest class may be of them.
const MOST_OF_ONE: f64 = 0.9;

impl Learner {
    /// Says what the model lacks of what the spec asks for, with the reason.
    pub fn lacks(&self) -> Option<String> {
        let statistics = self.parts.statistics.as_ref();
        let statistics = statistics.and_then(|(_, statistics)| statistics.lacks());
        let agreement = self.parts.agreement.as_ref();
        let noised = self.parts.noised.as_ref();
        statistics
            .or_else(|| agreement.and_then(|agreement| agreement.lacks()))
            .or_else(|| noised.and_then(|noised| noised.lacks()))
            .or_else(|| self.parts.regression.as_ref()?.lacks())
    }

    /// Says why a model with these scores is of no use, if it is no better than a constant answer.
    pub(crate) fn why_useless<'a>(
        &self,
        evaluations: impl Iterator<Item = &'a Evaluation>,
    ) -> Option<String> {
        if let Some(target) = self.places.target() {
            return why_no_number(&target.name, evaluations);
        }
        let classes = &self.fingerprints.class_names;
        let counts = count(&self.data.train, self.model.classes);
        let judged = Judged::of(evaluations);
        judged.why_useless(&counts, |class| match classes.get(class) {
            Some(name) => format!("`{name}`"),
            None => format!("class {class}"),
        })
    }
}

/// Says why a model of a number is of no use, if no part of the variance is explained.
fn why_no_number<'a>(
    name: &str,
    evaluations: impl Iterator<Item = &'a Evaluation>,
) -> Option<String> {
    let (mut n, mut explained, mut loss) = (0, 0.0, 0.0);
    for score in evaluations.map(|evaluation| evaluation.score) {
        n += score.n_samples;
        explained += score.accuracy * f64::from(score.n_samples);
        loss += score.loss * f64::from(score.n_samples);
    }
    if n > 0 && !loss.is_finite() {
        return Some("the model's loss is not a number".to_owned());
    }
    let r2 = explained / f64::from(n.max(1));
    (n >= FEWEST && r2 <= 0.0).then(|| {
        format!("the model is no better than always answering the mean of `{name}`: R² is {r2:.3}")
    })
}

/// Scores on all samples together.
struct Judged {
    /// Samples of each class.
    totals: Vec<u32>,
    correct: u32,
    /// Summed up over the samples.
    loss: f64,
}

impl Judged {
    fn of<'a>(evaluations: impl Iterator<Item = &'a Evaluation>) -> Self {
        let mut judged = Self {
            totals: Vec::new(),
            correct: 0,
            loss: 0.0,
        };
        for evaluation in evaluations.filter(|evaluation| evaluation.score.n_samples > 0) {
            let classes = &evaluation.classes;
            let most = judged.totals.len().max(classes.len());
            judged.totals.resize(most, 0);
            for (total, class) in judged.totals.iter_mut().zip(classes) {
                *total += class.total;
                judged.correct += class.correct;
            }
            judged.loss += evaluation.score.loss * f64::from(evaluation.score.n_samples);
        }
        judged
    }

    fn why_useless(&self, trained: &[u32], name: impl Fn(usize) -> String) -> Option<String> {
        let n: u32 = self.totals.iter().sum();
        if n > 0 && !self.loss.is_finite() {
            return Some("the model's loss is not a number".to_owned());
        }
        let most = (0..self.totals.len()).max_by_key(|class| self.totals[*class])?;
        let (n_samples, of_one) = (f64::from(n), f64::from(self.totals[most]));
        if n < FEWEST || of_one > MOST_OF_ONE * n_samples {
            return None;
        }
        let constant = self.loss_of_shares(trained);
        let is_better = f64::from(self.correct) > of_one || self.loss < constant;
        (!is_better).then(|| {
            format!(
                "the model is no better than always answering {}: accuracy {:.1} % beside {:.1} %, loss {:.3} beside {:.3}",
                name(most),
                100.0 * f64::from(self.correct) / n_samples,
                100.0 * of_one / n_samples,
                self.loss / n_samples,
                constant / n_samples,
            )
        })
    }

    /// Returns the loss of always giving the classes their shares in the training samples, summed up over the samples.
    fn loss_of_shares(&self, trained: &[u32]) -> f64 {
        // One sample more of each class, so that none is impossible.
        let total = f64::from(trained.iter().sum::<u32>()) + trained.len() as f64;
        let terms = self.totals.iter().zip(trained);
        let terms =
            terms.map(|(n, of_class)| -f64::from(*n) * ((f64::from(*of_class) + 1.0) / total).ln());
        terms.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(totals: [u32; 2], correct: u32, loss: f64) -> Option<String> {
        let n: u32 = totals.iter().sum();
        let judged = Judged {
            totals: totals.to_vec(),
            correct,
            loss: loss * f64::from(n),
        };
        judged.why_useless(&[700, 300], |class| format!("class {class}"))
    }

    #[test]
    fn who_always_says_the_same_is_no_use() {
        let said = judged([70, 30], 70, 0.7).unwrap();
        assert_eq!(
            said,
            "the model is no better than always answering class 0: accuracy 70.0 % beside 70.0 %, loss 0.700 beside 0.611"
        );
        assert!(
            judged([70, 30], 50, f64::NAN)
                .unwrap()
                .contains("not a number")
        );
    }

    #[test]
    fn who_knows_anything_is_of_use() {
        assert_eq!(judged([70, 30], 71, 5.0), None, "better answers");
        assert_eq!(judged([70, 30], 70, 0.6), None, "better probabilities");
        assert_eq!(
            judged([95, 5], 95, 0.7),
            None,
            "nothing beats that constant"
        );
        assert_eq!(judged([7, 3], 3, 2.0), None, "ten samples say too little");
    }
}
