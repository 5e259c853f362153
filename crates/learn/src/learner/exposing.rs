//! A learner that attacks what it would publish, with its own samples.

use burn::tensor::activation::log_softmax;
use fednode_core::Round;
use fednode_core::spec::PrivacySpec;
use fednode_data::Samples;

use super::Learner;
use crate::agreement::Agreement;
use crate::algorithm::Role;
use crate::exposure::{
    ClassSums, Exposure, FALSE_ALARMS, Images, Redrawn, Rows, one_image, own_classes,
};
use crate::noised::{Canaried, Noised};

/// Most samples of a kind that are tried.
const MOST: usize = 1000;

/// Some of the node's samples, for attacks.
struct Tried {
    train: Samples,
    validation: Samples,
    test: Samples,
}

impl Tried {
    /// Returns the members and the others.
    fn pair(&self) -> ([&Samples; 1], [&Samples; 2]) {
        ([&self.train], [&self.validation, &self.test])
    }
}

impl Learner {
    /// Adds up what the first update would publish besides parameters, unless that was done before.
    pub fn prepare_release(&mut self) {
        let is_done = self.parts.agreement.as_ref().map(Agreement::gathered_in);
        let of_numbers = self.parts.regression.as_ref();
        if is_done == Some(None) || of_numbers.is_some_and(|own| own.gathered_in().is_none()) {
            let only = self.schedule.total_round();
            self.renew_agreement(only.unwrap_or(Round(1)));
        }
    }

    /// Says why what the node publishes surely tells who is in its data, if it does: a second moment of fewer samples than
    /// numbers has no direction but theirs.
    pub fn surely_exposed(&self) -> Option<String> {
        let width = self.published_width()?;
        let samples = self.data.train.len();
        let is_exposed = self.parts.noised.is_none() && samples <= width;
        is_exposed.then(|| {
            format!(
                "statistics of {samples} samples have {width} numbers each, so members can tell who is in this node's data"
            )
        })
    }

    /// Returns how many numbers there are of each sample in the statistics that this node publishes; nothing if it publishes none of its
    /// own.
    pub fn published_width(&self) -> Option<usize> {
        let (train, device) = (&self.data.train, &self.parts.device);
        // Of sums of all nodes nobody sees a node's own.
        let agreement = self.parts.agreement.as_ref();
        let agreement = agreement.filter(|own| !own.has_total());
        let agreement =
            agreement.map(|own| device.run(|| own.published_width(train, device.tensors())));
        // Rows of numbers are published with the number, which is one more.
        let numbers = self.parts.regression.as_ref();
        let numbers = numbers.filter(|own| !own.has_total());
        let numbers = numbers.map(|own| own.width() + 1);
        agreement.or(numbers)
    }

    /// Tells whether statistics may be published that hold other samples than those before, of which there were so many. Whoever has
    /// both knows the statistics of the samples between, and a few of these could be told. Those of texts stay: of two of them a
    /// word that few texts have could be told.
    pub(super) fn may_publish_again(&self, before: usize) -> bool {
        let train = &self.data.train;
        let between = train.len().abs_diff(before);
        let are_enough = || self.published_width().is_none_or(|width| between > width);
        train.vocabulary().is_none() && between > 0 && are_enough()
    }

    /// Attacks the statistics that this node publishes. Members are training samples. The others are those of validation and
    /// test, which have no part in what is published.
    pub fn exposed_statistics(&self) -> Vec<Exposure> {
        let tried = self.tried();
        let (members, others) = tried.pair();
        let tensors = self.parts.device.tensors();
        if let Some(regression) = &self.parts.regression {
            return regression
                .exposures(&members, &others)
                .into_iter()
                .collect();
        }
        let attack = || match (&self.parts.noised, &self.parts.agreement) {
            (Some(noised), _) => noised.exposures(&members, &others, tensors),
            (None, Some(agreement)) => agreement.exposures(&members, &others, tensors),
            (None, None) => Vec::new(),
        };
        self.parts.device.run(attack)
    }

    /// Attacks the trained model, if parameters of it leave the node.
    pub fn exposed_parameters(&self) -> Option<Exposure> {
        let tried = self.tried();
        let (members, others) = tried.pair();
        let scores = |samples: &[&Samples]| self.parts.device.run(|| self.log_likelihoods(samples));
        let attack = || {
            let published = "parameters of the trained model";
            let found = Exposure::of(published, "loss", &scores(&members), &scores(&others));
            let promise = self.training.promise.as_ref();
            let most = promise.map(|promise| promise.most_hits(FALSE_ALARMS));
            found.map(|exposure| Exposure { most, ..exposure })
        };
        self.publishes_parameters().then(attack).flatten()
    }

    /// Redraws images from the class sums that this node publishes. Nothing of what are no images, and without held-out ones.
    pub fn redrawn(&self) -> Vec<Redrawn> {
        let draw = || {
            let noised = self.parts.noised.as_ref().map(Noised::class_sums);
            let samples = self.data.train.len();
            let agreement = self.parts.agreement.as_ref();
            let open = || agreement.map(|own| own.class_sums(samples));
            self.redrawn_of(&noised.or_else(open)?)
        };
        self.parts.device.run(draw).unwrap_or_default()
    }

    fn redrawn_of(&self, seen: &ClassSums<'_>) -> Option<Vec<Redrawn>> {
        let tried = self.tried();
        let (members, others) = tried.pair();
        let images =
            |some: &[&Samples]| Images::of(some, &seen.features, self.parts.device.tensors());
        let (train, held_out) = (images(&members)?, images(&others)?);
        let own = own_classes(seen, &self.data.train, &held_out);
        let one = one_image(seen, &train, held_out);
        Some(one.into_iter().chain(own).collect())
    }

    /// Puts canaries among the samples and guesses which are in the release, where statistics have a promise.
    pub fn canaried(&self, privacy: &PrivacySpec) -> Option<Canaried> {
        let (train, device) = (&self.data.train, &self.parts.device);
        if let Some(regression) = &self.parts.regression {
            return regression.canaried(privacy);
        }
        let guess = || match (&self.parts.noised, &self.parts.agreement) {
            (Some(noised), _) => noised.canaried(train, privacy, device.tensors()),
            (None, Some(agreement)) => agreement.canaried(privacy),
            (None, None) => None,
        };
        device.run(guess)
    }

    fn tried(&self) -> Tried {
        let some = |samples: &Samples| samples.subset(&spread(samples.len()));
        Tried {
            train: some(&self.data.train),
            validation: some(&self.data.validation),
            test: some(&self.data.test),
        }
    }

    /// Tells whether trained parameters leave the node.
    fn publishes_parameters(&self) -> bool {
        let own = self.parts.algorithm.parts();
        own.iter().any(|part| part.role != Role::Private)
    }

    /// Returns the logarithm of the probability that the own model gives to each sample's class. Of numbers it is the square of the
    /// error with a minus: the same for normal errors, but for a factor and a constant.
    fn log_likelihoods(&self, samples: &[&Samples]) -> Vec<f64> {
        let own = self.parts.algorithm.as_ref();
        if self.places.are_numbers() {
            let outputs = |inputs| own.forward(inputs).logits;
            let rows = Rows::of(samples, &outputs, self.parts.device.tensors());
            let numbers = samples
                .iter()
                .flat_map(|some| some.targets.iter().flatten());
            let pairs = rows.iter().zip(numbers);
            return pairs
                .map(|((row, _), number)| -f64::from(row[0] - number).powi(2))
                .collect();
        }
        let scores = |inputs| log_softmax(own.forward(inputs).logits, 1);
        let rows = Rows::of(samples, &scores, self.parts.device.tensors());
        let of_class = |(row, class): (&[f32], usize)| f64::from(row[class]);
        rows.iter().map(of_class).collect()
    }
}

/// Returns at most [`MOST`] positions, as far apart as they can be.
fn spread(len: usize) -> Vec<u32> {
    let count = len.min(MOST);
    (0..count).map(|at| (at * len / count) as u32).collect()
}
