//! What a node adds up of its samples: counts and sums of the groups that its classes fall into, and the scatter of all.

use std::collections::BTreeMap;

use burn::tensor::Device;
use fednode_core::Round;
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::matching::ClassMeans;
use fednode_mix::sites::{self, Site};
use fednode_mix::slots::{Directions, GROUPING_DIRECTIONS, GROUPS, group};
use fednode_mix::statistics::{Discriminant, StatisticsError};

use super::{Agreement, Solving, Source};
use crate::class_statistics::{for_each_batch, upload};
use crate::weights::{self, Weights};
use crate::words::Texts;

impl Agreement {
    /// Tells of which round the samples are that were added up.
    pub(crate) fn gathered_in(&self) -> Option<Round> {
        self.remembered.gathered
    }

    /// Forgets what was added up, because the features are others now.
    pub(crate) fn forget_gathered(&mut self) {
        self.remembered.gathered = None;
    }

    /// Returns how many samples were added up, if that is known.
    pub(crate) fn n_gathered(&self) -> Option<u32> {
        self.remembered.n_gathered
    }

    /// Takes it that so many were added up, where that is not known.
    pub(crate) fn count_from(&mut self, n: u32) {
        if self.remembered.gathered.is_some() {
            self.remembered.n_gathered.get_or_insert(n);
        }
    }

    /// Adds up over the training samples of a round.
    pub(crate) fn gather(&mut self, round: Round, samples: &Samples, device: &Device) {
        let mut classes = self.by_class(samples, device);
        let mut grouped = self.grouped(&classes, samples, device);
        let own = self.solve_own(&classes);
        if let Some(rare) = self.rare_words(samples, device) {
            classes.leave_out(&rare);
            grouped.leave_out(&rare);
        }
        let n_samples = samples.len().max(1) as f64;
        let prior: Vec<f64> = classes.counts.iter().map(|n| n / n_samples).collect();
        let means = ClassMeans::of_sums(classes.counts.clone(), &classes.sums);
        let means: Vec<f64> = means.to_proxy().into_iter().map(f64::from).collect();
        grouped.scale(1.0 / n_samples);
        let tensor = |values: &[f64]| upload(values, device);
        self.proxies.weights = Weights::new(vec![tensor(&means)]);
        let arrays = [&grouped.counts, &grouped.sums, &grouped.scatter];
        self.own.weights = Weights::new(arrays.map(|values| tensor(values)).to_vec());
        (self.remembered.gathered, self.remembered.is_untrained) = (Some(round), false);
        self.remembered.n_gathered = Some(samples.len() as u32);
        self.classifiers.write_prior(prior, device);
        if let Ok(own) = own {
            self.classifiers.write(Source::Own, &own.into(), device);
        }
    }

    /// Solves for the classifier of the own samples alone.
    fn solve_own(&self, classes: &Statistics) -> Result<Discriminant, StatisticsError> {
        match self.solving {
            Solving::Classes | Solving::Features | Solving::Words => self.solving.solve(classes),
            Solving::Sites => sites::solve(&[Site {
                statistics: classes,
                weight: classes.total().max(1.0),
            }]),
        }
    }

    /// Marks the words that too few of the samples have; a group of a class has as many. Nothing where samples are no texts.
    fn rare_words(&self, samples: &Samples, device: &Device) -> Option<Vec<bool>> {
        if self.solving != Solving::Words {
            return None;
        }
        let mut texts = Texts::new(self.width);
        self.visit(samples, device, |_, _, features| texts.count(features));
        Some(texts.rare())
    }

    /// Returns how many numbers there are of each sample in what leaves the node.
    pub(crate) fn published_width(&self, samples: &Samples, device: &Device) -> usize {
        let rare = self.rare_words(samples, device);
        rare.map_or(self.width, |rare| rare.iter().filter(|is| !**is).count())
    }

    /// Calls `visit` with position, class and features of every sample.
    pub(super) fn visit(
        &self,
        samples: &Samples,
        device: &Device,
        mut visit: impl FnMut(usize, usize, &[f32]),
    ) {
        for_each_batch(samples, device, |positions, inputs| {
            let features = weights::values(&self.features_of(inputs));
            let features = features.chunks_exact(self.width);
            for (at, features) in positions.iter().zip(features) {
                let at = *at as usize;
                visit(at, usize::from(samples.labels[at]), features);
            }
        });
    }

    /// Adds up by group.
    fn grouped(&self, classes: &Statistics, samples: &Samples, device: &Device) -> Statistics {
        let groups = self.groups(classes, samples, device);
        let mut grouped = Statistics::new(self.classes * GROUPS, self.width);
        grouped.scatter.clone_from(&classes.scatter);
        self.visit(samples, device, |at, class, features| {
            grouped.count(features, class * GROUPS + groups[at]);
        });
        grouped
    }

    /// Adds up samples by class.
    pub(super) fn by_class(&self, samples: &Samples, device: &Device) -> Statistics {
        let mut classes = Statistics::new(self.classes, self.width);
        self.visit(samples, device, |_, class, features| {
            classes.add(features, class);
        });
        classes
    }

    /// Returns the group of each sample within its class; all of them in one where there is nothing to compare, or
    /// there are no slots.
    fn groups(&self, classes: &Statistics, samples: &Samples, device: &Device) -> Vec<usize> {
        let mut groups = vec![0; samples.len()];
        if self.solving != Solving::Classes {
            return groups;
        }
        let Ok(directions) = Directions::within_classes(classes, GROUPING_DIRECTIONS) else {
            return groups;
        };
        let means: Vec<Vec<f64>> = classes.means();
        let means: Vec<Vec<f64>> = means.iter().map(|mean| directions.project(mean)).collect();
        let mut points: BTreeMap<usize, (Vec<usize>, Vec<Vec<f64>>)> = BTreeMap::new();
        self.visit(samples, device, |at, class, features| {
            let features: Vec<f64> = features.iter().copied().map(f64::from).collect();
            let mut point = directions.project(&features);
            let pairs = point.iter_mut().zip(&means[class]);
            pairs.for_each(|(value, mean)| *value -= mean);
            let (positions, points) = points.entry(class).or_default();
            positions.push(at);
            points.push(point);
        });
        for (positions, points) in points.values() {
            for (at, own) in positions.iter().zip(group(points)) {
                groups[*at] = own;
            }
        }
        groups
    }
}
