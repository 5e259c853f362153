//! The classifier of what was received: of peers' releases, or of the total of all nodes.

use std::borrow::Borrow;

use fednode_core::masked::MAX_HOLDERS;
use fednode_core::work::PeerExpert;
use fednode_core::{ParamSet, Total};
use fednode_mix::Statistics;
use fednode_mix::statistics::noised::own_again;
use fednode_mix::statistics::{Discriminant, StatisticsError};
use fednode_privacy::statistics::is_too_noisy;
use fednode_privacy::units::Noise;

use super::Noised;

impl Noised {
    /// Solves for the classifier of peers' releases, weighted as their agreement says.
    pub(super) fn solve<P: Borrow<ParamSet>>(
        &self,
        peers: &[PeerExpert<P>],
    ) -> Result<Discriminant, NoSolution> {
        let own = self.exact();
        let own_weight = 1.0 - peers.iter().map(|peer| peer.weight).sum::<f64>();
        // Weights are of samples as releases tell of them: what the own ones weigh says what all do.
        let all = total_of(&self.numbers(&self.released, 0)) / own_weight;
        let mut sum = Statistics::new(self.classes, self.features.width());
        let (mut squares, mut total) = (0.0, own.total());
        for peer in peers {
            let theirs = self.read(peer.params.borrow());
            let told = total_of(&theirs.counts).max(1.0);
            let share = (peer.weight * all / told).clamp(0.0, 1.0);
            add(&mut sum, &theirs, share);
            squares += share * share;
            // Without the floor of each class, which would count noise as samples.
            total += share * theirs.total().max(0.0);
        }
        let noise = self.noise.map_or(0.0, Noise::get) * f64::sqrt(squares);
        if squares == 0.0 {
            return Err(NoSolution::NoPeers);
        }
        if is_too_noisy(noise, total as u64) {
            return Err(NoSolution::TooNoisy(total as u64));
        }
        let noise = Noise::new(noise).map_err(|_| NoSolution::NoPeers)?;
        add(&mut sum, &own, 1.0 + own_again(noise, total, own.total()));
        Ok(sum.solve_noised(noise)?)
    }

    /// Solves for the classifier of a sum of so many members.
    pub(super) fn solve_total(
        &self,
        members: f64,
        total: Total,
        mut sum: Statistics,
    ) -> Result<Discriminant, NoSolution> {
        // Liars may say any number of members.
        if !(f64::from(total.fewest_of_one())..=MAX_HOLDERS as f64).contains(&members) {
            return Err(NoSolution::NoTotal);
        }
        let own = self.exact();
        let noise = self.noise_of(members).map_err(|_| NoSolution::NoTotal)?;
        if let Some(doubt) = sum.doubt(noise) {
            return Err(NoSolution::Doubtful(doubt));
        }
        let samples = sum.total();
        if is_too_noisy(noise.get(), samples as u64) {
            return Err(NoSolution::TooNoisy(samples as u64));
        }
        add(&mut sum, &own, own_again(noise, samples, own.total()));
        Ok(sum.solve_noised(noise)?)
    }
}

/// Why peers' releases make no classifier.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub(super) enum NoSolution {
    #[error("no peer's statistics have come that agree with the own ones")]
    NoPeers,
    #[error("the sum does not say how many nodes are in it")]
    NoTotal,
    #[error("the sums of none of {0} groups fit what this node has")]
    NoGroup(usize),
    #[error("the sum of all nodes is none of samples: {0}")]
    Doubtful(&'static str),
    #[error(
        "noise is too large for {0} samples in all: it takes a larger `privacy.epsilon`, more samples or more nodes"
    )]
    TooNoisy(u64),
    #[error(transparent)]
    Unsolved(#[from] StatisticsError),
}

/// Returns how many samples noised counts tell of, as proxies and thus weights have it: a class of less than one is none.
pub(super) fn total_of(counts: &[f64]) -> f64 {
    counts.iter().filter(|count| **count >= 1.0).sum()
}

/// Adds a share of statistics to a sum.
pub(super) fn add(sum: &mut Statistics, statistics: &Statistics, share: f64) {
    let pairs = [
        (&mut sum.counts, &statistics.counts),
        (&mut sum.sums, &statistics.sums),
        (&mut sum.scatter, &statistics.scatter),
    ];
    for (sums, values) in pairs {
        let both = sums.iter_mut().zip(values);
        both.for_each(|(sum, value)| *sum += share * value);
    }
}
