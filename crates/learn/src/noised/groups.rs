//! Sums of groups under masks (`privacy.group`): which of them a node believes, and what it makes of those.
//!
//! ```text
//! sums of groups ──► could samples have them? ──► do their class means fit the own ones? ──► added up, none far larger than most
//!                                                 or do they help all the same?
//! ```
//!
//! Sums that do not fit are left out, unless the validation samples clearly say otherwise: where nodes' samples differ and nobody lies,
//! no sum may fit.
//!
//! So wrong numbers spoil the sum of the liar's group alone. What is left is the total that the others make without it. The study that this
//! follows (section 6) leaves out the node's own group. Here it is judged as any other: it has the own samples, and liars too.

use burn::tensor::{Device, Tensor};
use fednode_core::masked::MAX_HOLDERS;
use fednode_core::{ParamSet, Total, stack};
use fednode_data::Samples;
use fednode_mix::statistics::noised::WholeSums;
use fednode_mix::statistics::robust::groups::{Group, fault, foreign};
use fednode_privacy::units::Noise;

use super::solving::NoSolution;
use super::{AtHome, Judging, Noised};
use crate::agreement;
use crate::algorithm::Output;
use crate::total;

/// How many medians of all groups' samples one counts at most.
const MOST_SAMPLES: f64 = 2.0;

/// A group's sum.
#[derive(Clone)]
struct Sum {
    members: f64,
    noise: Noise,
    sums: WholeSums,
}

/// What a node judges sums of groups by.
#[derive(Clone, Copy)]
pub(crate) struct Own<'a> {
    /// Its training samples: a node that joined too late for the sums has not added them up.
    pub(crate) training: &'a Samples,
    /// Those that decide where sums and own ones differ.
    pub(crate) validation: &'a Samples,
    /// Predicts without any peer.
    pub(crate) alone: &'a dyn Fn(Tensor<2>) -> Output,
}

impl Noised {
    /// Returns the total of the groups that this node believes, as if these were all members; nothing where sums are of all nodes.
    ///
    /// What is no stack of sums is nothing, too.
    pub(crate) fn believed(
        &mut self,
        shared: &ParamSet,
        own: Own<'_>,
        device: &Device,
    ) -> Option<ParamSet> {
        let layout = self.released.layout();
        let total = self.total.filter(|total| total.group.is_some())?;
        // Until the last round nothing is added up, and one sum has the layout of a part.
        let groups = stack::unstacked(shared, &layout, MAX_HOLDERS)?;
        if self.keep_anew(own.training, device) {
            // The same groups are solved again, with the own samples that there are now.
            self.remembered.solved = None;
        }
        let sums: Vec<Sum> = groups
            .iter()
            .filter_map(|group| self.possible(group, total))
            .collect();
        let home = AtHome {
            alone: own.alone,
            validation: own.validation,
            device,
        };
        let kept = self.trusted(sums, total, home);
        self.remembered.groups = Some([kept.len(), groups.len()].map(|n| n as u32));
        if kept.is_empty() {
            let reason = NoSolution::NoGroup(groups.len()).to_string();
            (self.remembered.solved, self.remembered.missing) = (None, Some(reason));
        }
        Some(self.total_of(&kept))
    }

    /// Reads a group's sum; nothing where samples of so many members cannot have it.
    fn possible(&self, group: &ParamSet, total: Total) -> Option<Sum> {
        let (members, sums) = self.read_total(group);
        let noise = self.noise_of(members).ok()?;
        let least = f64::from(total.fewest_of_one());
        let most = f64::from(2 * total.group?);
        if !(least..=most).contains(&members) {
            tracing::info!(members, "a group has no sum");
            return None;
        }
        let statistics = &sums.statistics();
        let fault = fault(&Group { statistics, noise });
        if let Some(fault) = fault {
            tracing::info!(fault, "the sum of a group is none of samples");
        }
        fault.is_none().then_some(Sum {
            members,
            noise,
            sums,
        })
    }

    /// Returns the sums whose class means fit the own ones; or all, where the validation samples clearly say so.
    fn trusted(&self, sums: Vec<Sum>, total: Total, home: AtHome<'_>) -> Vec<Sum> {
        let statistics: Vec<_> = sums.iter().map(|sum| sum.sums.statistics()).collect();
        let groups = statistics.iter().zip(&sums).map(|(statistics, sum)| Group {
            statistics,
            noise: sum.noise,
        });
        let doubts = foreign(&self.exact(), &groups.collect::<Vec<_>>());
        if doubts.iter().all(Option::is_none) {
            return sums;
        }
        let fitting = sums.iter().zip(&doubts);
        let fitting = fitting.filter(|(_, doubt)| doubt.is_none());
        let fitting = fitting.map(|(sum, _)| sum.clone());
        let fitting: Vec<Sum> = fitting.collect();
        if self.are_better_together(&sums, &fitting, total, home) {
            tracing::info!("sums of groups do not fit the own one, and help all the same");
            return sums;
        }
        for doubt in doubts.into_iter().flatten() {
            tracing::info!(%doubt, "the sum of a group is left out");
        }
        fitting
    }

    /// Tells whether all sums make a clearly better classifier than those that fit, or than none where none fits.
    fn are_better_together(
        &self,
        all: &[Sum],
        fitting: &[Sum],
        total: Total,
        home: AtHome<'_>,
    ) -> bool {
        let prior = self.prior();
        let judging = |sums: &[Sum]| {
            let (members, sums) = self.read_total(&self.total_of(sums));
            let solved = self.solve_total(members, total, sums.statistics()).ok()?;
            Some(Judging::new(solved.into(), &prior, &self.features, home))
        };
        let Some(together) = judging(all) else {
            return false;
        };
        let losses: Vec<f64> = together.losses(together.choice()).collect();
        let others: Vec<f64> = match judging(fitting) {
            Some(judging) => judging.losses(judging.choice()).collect(),
            None => together.losses_alone().collect(),
        };
        agreement::are_clearly_lower(&losses, &others)
    }

    /// Adds up sums as what one total of so many members would be. Members whose sum is made smaller have less noise.
    fn total_of(&self, sums: &[Sum]) -> ParamSet {
        let mut all = self.nothing();
        let counts = sums
            .iter()
            .map(|sum| sum.sums.statistics().total().max(1.0));
        let counts: Vec<f64> = counts.collect();
        // The upper one of two medians: a liar makes its own group small at will, but not the others.
        let mut sorted = counts.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let due = counts.iter().map(|count| count.min(MOST_SAMPLES * median));
        let due: Vec<f64> = due.collect();
        let mut members = 0.0;
        for ((sum, count), due) in sums.iter().zip(counts).zip(due) {
            let share = due / count;
            members += share * share * sum.members;
            let mut sum = sum.sums.clone();
            let pairs = all.numbers_mut().zip(sum.numbers_mut());
            pairs.for_each(|(all, number)| {
                *all = all.saturating_add((*number as f64 * share) as i64);
            });
        }
        total::write(all.numbers_mut().map(|number| *number), members)
    }

    /// Returns sums of nothing.
    pub(super) fn nothing(&self) -> WholeSums {
        WholeSums::new(self.classes, self.features.width())
    }
}
