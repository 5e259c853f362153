//! Peers that have the node's classes under other names: a label column that means the reverse, or an order of classes of
//! one's own.
//!
//! ```text
//! over the classes c that both have at least 10 samples of
//!     image of c     the d whose mu_jd is nearest to the own mean mu_ic
//! a renaming         no two classes have one image, some c has another image than c,
//!                    and each of those is far nearer to it: |mu_ic - mu_jd|² <= 1/3 |mu_ic - mu_jc|²
//! clear              for tables, whose features have a variance of 1 at most, at both nodes:
//!                    |mu_c - mu_d|² >= 2 D (1/n_c + 1/n_d)
//! ```
//!
//! Of two classes at two sites with differences of one length this is so where their cosine is below -1/2. A peer that merely
//! differs has no such image. What chance makes of labels that mean nothing is hardly ever clear: one pair of nodes in 200, and
//! in features of images, which have many directions, one in 400. What the peer's statistics weigh is the matching's affair.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::{NodeId, ProxySet};

use super::{ClassMeans, Comparison, FEWEST_CLASSES, squared_distance};

/// Fewest samples of a class that is told to have another name. Of fewer, a mean says little.
const FEWEST_SAMPLES: f64 = 10.0;
/// How many times the square that chance makes of a difference between two classes it must have.
const CLEAR: f64 = 2.0;
/// How near a class must be to its image, as a share of the square of its distance from its namesake.
const NEAR: f64 = 1.0 / 3.0;

/// A peer that has the node's classes under other names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renaming {
    /// The peer.
    pub node: NodeId,
    /// Which of the peer's classes are which of the node's: pairs of the node's class and the peer's.
    pub classes: Vec<(u32, u32)>,
}

/// Returns the peers that have the classes of a node under other names.
pub(in crate::matching) fn renamings(
    own: NodeId,
    known: &BTreeMap<NodeId, Arc<ProxySet>>,
    by: Comparison,
) -> Vec<Renaming> {
    let of = |node: &NodeId| ClassMeans::of_proxy(known.get(node)?.iter().next()?);
    let Some(mine) = of(&own) else {
        return Vec::new();
    };
    let by = Comparison {
        fewest_samples: by.fewest_samples.max(FEWEST_SAMPLES),
        ..by
    };
    let others = known.keys().filter(|node| **node != own);
    let renaming = |node: &NodeId| {
        let theirs = of(node).filter(|theirs| mine.fits(theirs))?;
        let classes = mine.renamed_in(&theirs, by)?;
        Some(Renaming {
            node: *node,
            classes,
        })
    };
    others.filter_map(renaming).collect()
}

impl ClassMeans {
    /// Returns the classes that another node has under other names, with these; `None` if it has none.
    fn renamed_in(&self, other: &Self, by: Comparison) -> Option<Vec<(u32, u32)>> {
        let common = self.common(other, by);
        if common.len() < FEWEST_CLASSES {
            return None;
        }
        let (mine, theirs) = (self.compared(&common, by), other.compared(&common, by));
        let distance = |class: usize, image: usize| {
            let squared = squared_distance(&mine[&class], &theirs[&image]);
            (squared - other.square_of_noise(image, by)).max(0.0)
        };
        let image = |class: &usize| {
            let by_distance =
                |a: &&usize, b: &&usize| distance(*class, **a).total_cmp(&distance(*class, **b));
            common
                .iter()
                .min_by(by_distance)
                .map_or(*class, |image| *image)
        };
        let images: Vec<usize> = common.iter().map(image).collect();
        if images.iter().collect::<BTreeSet<_>>().len() < common.len() {
            return None;
        }
        let pairs = common.into_iter().zip(images);
        let moved: Vec<(usize, usize)> = pairs.filter(|(class, image)| class != image).collect();
        let is_far_nearer = |(class, image): &(usize, usize)| {
            let to_namesake = distance(*class, *class);
            // What is left of a distance must be more than its noise was.
            to_namesake > other.square_of_noise(*class, by)
                && distance(*class, *image) <= NEAR * to_namesake
        };
        let is_clear = |(class, image): &(usize, usize)| {
            !by.is_centred
                || self.tells_apart(&mine, *class, *image)
                    && other.tells_apart(&theirs, *class, *image)
        };
        let is_one = !moved.is_empty()
            && moved
                .iter()
                .all(|pair| is_far_nearer(pair) && is_clear(pair));
        let numbers = |(class, image)| (class as u32, image as u32);
        is_one.then(|| moved.into_iter().map(numbers).collect())
    }

    /// Tells whether two classes differ by more than chance makes of features of variance 1.
    fn tells_apart(&self, means: &BTreeMap<usize, Vec<f64>>, a: usize, b: usize) -> bool {
        let (width, counts) = (means[&a].len() as f64, &self.counts);
        let of_chance = width * (1.0 / counts[a] + 1.0 / counts[b]);
        squared_distance(&means[&a], &means[&b]) >= CLEAR * of_chance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::agreement::{AS_THEY_ARE, BY_SITE};

    /// What two nodes say, given the counts and means of their classes.
    fn told(
        own: &[(f64, [f32; 2])],
        theirs: &[(f64, [f32; 2])],
        by: Comparison,
    ) -> Vec<Vec<(u32, u32)>> {
        let ids = [NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32])];
        let set = |classes: &[(f64, [f32; 2])]| {
            let means = ClassMeans {
                counts: classes.iter().map(|(count, _)| *count).collect(),
                means: classes.iter().flat_map(|(_, mean)| *mean).collect(),
            };
            let proxy = means.to_proxy();
            Arc::new(ProxySet::new(proxy.len(), proxy).expect("finite numbers"))
        };
        let known = BTreeMap::from([(ids[0], set(own)), (ids[1], set(theirs))]);
        let found = renamings(ids[0], &known, by);
        assert!(found.iter().all(|renaming| renaming.node == ids[1]));
        found.into_iter().map(|renaming| renaming.classes).collect()
    }

    #[test]
    fn exchanged_classes_are_found_wherever_the_site_lies() {
        let own = [(30.0, [0.0, 1.0]), (20.0, [1.0, 0.0])];
        let exchanged = [(30.0, [1.0, 0.2]), (20.0, [0.1, 1.0])];
        assert_eq!(told(&own, &exchanged, AS_THEY_ARE), [[(0, 1), (1, 0)]]);
        let elsewhere = exchanged.map(|(count, [x, y])| (count, [x + 3.0, y - 5.0]));
        assert_eq!(told(&own, &elsewhere, BY_SITE), [[(0, 1), (1, 0)]]);
        assert_eq!(told(&own, &own, AS_THEY_ARE), Vec::<Vec<_>>::new());
    }

    #[test]
    fn differences_that_chance_may_have_made_are_not_told_of_between_sites() {
        // 2 features, 16 samples of each class: chance makes 2 * (1/16 + 1/16) = 0.25 of a squared difference.
        let apart = |by: f32| [(16.0, [0.0, 0.0]), (16.0, [by, 0.0])];
        let told_at = |by: f32| told(&apart(by), &apart(-by), BY_SITE).len();
        assert_eq!([told_at(0.70), told_at(0.71)], [0, 1], "0.5 is clear");
        assert_eq!(told(&apart(0.5), &apart(2.0), BY_SITE).len(), 0);
    }

    #[test]
    fn two_of_three_classes_are_named_and_the_third_is_not() {
        let own = [(30.0, [0.0, 1.0]), (20.0, [1.0, 0.0]), (12.0, [-1.0, -1.0])];
        let theirs = [own[0], own[2], own[1]];
        assert_eq!(told(&own, &theirs, AS_THEY_ARE), [[(1, 2), (2, 1)]]);
    }

    #[test]
    fn a_peer_that_only_differs_and_a_peer_of_few_samples_are_not_told_of() {
        let own = [(30.0, [0.0, 1.0]), (20.0, [1.0, 0.0])];
        let slanted = [(30.0, [0.5, 0.3]), (20.0, [0.4, 0.5])];
        assert!(told(&own, &slanted, AS_THEY_ARE).is_empty());
        let few = [(30.0, [1.0, 0.0]), (9.0, [0.0, 1.0])];
        assert!(told(&own, &few, AS_THEY_ARE).is_empty());
        let one_image = [(30.0, [0.5, 0.5]), (20.0, [9.0, 9.0])];
        assert!(told(&own, &one_image, AS_THEY_ARE).is_empty());
    }
}
