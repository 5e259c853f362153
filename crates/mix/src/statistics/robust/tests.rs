//! Twenty members with samples of one distribution, some of whom lie.

use fednode_core::ParamSet;
use fednode_core::random::Stream;

use super::*;
use crate::statistics::EPSILON;

const LIMITS: Limits = Limits {
    distance: LIMIT,
    weight: 3.0,
};
const CLASSES: usize = 5;
const WIDTH: usize = 24;

/// Draws of one seed.
pub(super) struct Draws(Stream);

impl Draws {
    pub(super) fn new(seed: u32) -> Self {
        let mut params = ParamSet::new();
        params.insert("seed", &[1], vec![seed as f32]).unwrap();
        Self(Stream::of(&params))
    }

    /// Nearly normal.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.0.unit()).sum::<f64>() - 6.0
    }

    /// A sample of a class: the class's place along one feature, and noise.
    fn sample(&mut self, class: usize) -> Vec<f32> {
        let mean = |at: usize| if at == class { 2.0 } else { 0.5 };
        (0..WIDTH)
            .map(|at| (mean(at) + 0.6 * self.normal()) as f32)
            .collect()
    }

    /// A member's sums: it has few classes, and uneven ones.
    fn member(&mut self, samples: usize) -> Statistics {
        let weights: Vec<f64> = (0..CLASSES).map(|_| self.0.unit().powi(3)).collect();
        let total: f64 = weights.iter().sum();
        let mut sums = Statistics::new(CLASSES, WIDTH);
        for _ in 0..samples {
            let mut at = self.0.unit() * total;
            let class = weights.iter().position(|weight| {
                at -= weight;
                at < 0.0
            });
            let class = class.unwrap_or(0);
            sums.add(&self.sample(class), class);
        }
        sums.scale(1.0 / samples as f64);
        sums
    }
}

/// A lie that keeps all bounds unless it says otherwise.
type Lie = fn(&Statistics) -> Statistics;

fn sign_flip(honest: &Statistics) -> Statistics {
    let mut lie = honest.clone();
    lie.sums.iter_mut().for_each(|sum| *sum = -*sum);
    lie
}

fn label_swap(honest: &Statistics) -> Statistics {
    let mut lie = honest.clone();
    lie.counts.rotate_left(1);
    lie.sums.rotate_left(WIDTH);
    lie
}

fn hundredfold(honest: &Statistics) -> Statistics {
    let mut lie = honest.clone();
    lie.scale(100.0);
    lie
}

/// Every class has the mean of the next, and the moments follow.
fn crafted(honest: &Statistics) -> Statistics {
    let mut lie = Statistics::new(CLASSES, WIDTH);
    for class in 0..CLASSES {
        for sample in 0..40 {
            let mean = |at: usize| {
                if at == (class + 1) % CLASSES {
                    2.0
                } else {
                    0.5
                }
            };
            let noise = |at: usize| ((sample * 7 + at * 3) % 5) as f32 - 2.0;
            let features: Vec<f32> = (0..WIDTH).map(|at| mean(at) + 0.4 * noise(at)).collect();
            lie.add(&features, class);
        }
    }
    lie.scale(honest.total() / lie.total());
    lie
}

/// A direction within the classes of which the variance is below zero, while each two features keep their bounds.
fn negative(honest: &Statistics) -> Statistics {
    let mut lie = honest.clone();
    let squares = lie.squares();
    let mut next = lie.scatter.iter_mut();
    for (first, square) in squares.iter().enumerate() {
        for (second, other) in squares.iter().enumerate().skip(first) {
            let entry = next.next().unwrap();
            if second != first {
                *entry = -0.9 * (square * other).sqrt();
            }
        }
    }
    lie
}

const LIES: [(&str, Lie); 5] = [
    ("sign flip", sign_flip),
    ("label swap", label_swap),
    ("a hundredfold", hundredfold),
    ("crafted", crafted),
    ("negative variance", negative),
];

/// A federation, and a node in it that judges.
struct Federation {
    sums: Vec<Statistics>,
    samples: Vec<f64>,
    n_liars: usize,
}

impl Federation {
    /// The first `n_liars` of twenty members tell a lie.
    fn new(seed: u32, n_liars: usize, lie: Lie) -> Self {
        let mut draws = Draws::new(seed);
        let samples: Vec<usize> = (0..20).map(|_| 60 + draws.0.below(300)).collect();
        let mut sums: Vec<Statistics> = samples.iter().map(|n| draws.member(*n)).collect();
        sums[..n_liars]
            .iter_mut()
            .for_each(|sums| *sums = lie(sums));
        Self {
            sums,
            samples: weights(&samples.iter().map(|n| *n as f64).collect::<Vec<_>>(), 3.0),
            n_liars,
        }
    }

    fn members(&self) -> Vec<Member<'_>> {
        let members = self.sums.iter().zip(&self.samples);
        members
            .map(|(statistics, samples)| Member {
                statistics,
                samples: *samples,
            })
            .collect()
    }

    /// Accuracy on fresh samples of the classifier of those without a doubt; nothing where there is none.
    fn accuracy(&self, doubts: &[Option<Doubt>]) -> f64 {
        let mut pooled = Statistics::new(CLASSES, WIDTH);
        for (member, doubt) in self.members().iter().zip(doubts) {
            if doubt.is_none() {
                pooled.add_weighted(member.statistics, member.samples);
            }
        }
        let Ok(classifier) = pooled.solve(EPSILON) else {
            return 0.0;
        };
        let mut draws = Draws::new(999);
        let right = (0..1000).filter(|sample| {
            let class = sample % CLASSES;
            let logits = classifier.logits(&draws.sample(class));
            let best = (0..CLASSES).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            best == Some(class)
        });
        right.count() as f64 / 1000.0
    }
}

#[track_caller]
fn assert_liars_alone(doubts: &[Option<Doubt>], n_liars: usize, what: &str) {
    let doubted: Vec<usize> = (0..doubts.len())
        .filter(|at| doubts[*at].is_some())
        .collect();
    let liars: Vec<usize> = (0..n_liars).collect();
    assert_eq!(doubted, liars, "{what}: {doubts:?}");
}

#[test]
fn every_liar_is_left_out_and_nobody_honest() {
    for seed in 0..3 {
        for (what, lie) in LIES {
            for n_liars in [0, 1, 4, 6] {
                let federation = Federation::new(seed, n_liars, lie);
                let doubts = consistent(&federation.members(), LIMIT);
                assert_liars_alone(&doubts, n_liars, what);
                let (own, others) = (19, &federation.members()[..19]);
                let own = federation.members()[own];
                let doubts = anchored(own, others, LIMIT);
                assert_liars_alone(&doubts, federation.n_liars, what);
            }
        }
    }
}

#[test]
fn what_is_left_classifies_as_if_nobody_had_lied() {
    for (what, lie) in LIES {
        let federation = Federation::new(1, 6, lie);
        let doubts = consistent(&federation.members(), LIMIT);
        let nobody = vec![None; 20];
        let (robust, plain) = (federation.accuracy(&doubts), federation.accuracy(&nobody));
        let honest = Federation::new(1, 0, lie).accuracy(&nobody);
        assert!(robust > honest - 0.01, "{what}: {robust} of {honest}");
        assert!(
            plain < honest - 0.01 || what == "a hundredfold",
            "{what}: {plain}"
        );
    }
}

#[test]
fn what_stays_is_consistent_by_itself() {
    let federation = Federation::new(2, 5, label_swap);
    let doubts = consistent(&federation.members(), LIMIT);
    let members = federation.members();
    let kept = members.iter().zip(&doubts).filter(|(_, d)| d.is_none());
    let kept: Vec<Member<'_>> = kept.map(|(member, _)| *member).collect();
    assert_eq!(consistent(&kept, LIMIT), vec![None; 15]);
}

#[test]
fn without_a_limit_only_bounds_hold() {
    let federation = Federation::new(1, 4, label_swap);
    assert_eq!(consistent(&federation.members(), 0.0), vec![None; 20]);
    let federation = Federation::new(1, 4, hundredfold);
    let doubts = consistent(&federation.members(), 0.0);
    assert_liars_alone(&doubts, 4, "bounds");
    assert!(matches!(doubts[0], Some(Doubt::Impossible(_))));
}

/// Of one feature, T has few degrees of freedom: chance makes it large.
#[test]
fn few_features_put_nobody_honest_in_doubt() {
    for seed in 0..40 {
        let mut draws = Draws::new(seed);
        let mut member = || {
            let mut sums = Statistics::new(2, 1);
            for sample in 0..60 {
                let class = usize::from(sample % 3 == 0);
                let value = draws.normal() + class as f64;
                sums.add(&[value as f32], class);
            }
            sums.scale(1.0 / 60.0);
            sums
        };
        let sums: Vec<Statistics> = (0..20).map(|_| member()).collect();
        let members: Vec<Member<'_>> = sums
            .iter()
            .map(|statistics| Member {
                statistics,
                samples: 60.0,
            })
            .collect();
        let doubted = consistent(&members, LIMIT).into_iter().flatten().count();
        assert_eq!(doubted, 0, "seed {seed}");
    }
}

#[test]
fn nobody_weighs_more_than_three_medians() {
    assert_eq!(
        weights(&[100.0, 120.0, 5000.0, 80.0], 3.0),
        [100.0, 120.0, 300.0, 80.0]
    );
    let raw = [100.0, 120.0, 5000.0, 80.0];
    assert_eq!(weights(&raw, 0.0), raw, "no bound");
    let bounded = weights(&raw, 2.0);
    assert_eq!(weights(&bounded, 2.0), bounded, "bounded once");
}

/// Of two that disagree nobody can tell who is right, but a node can tell whom it believes.
#[test]
fn two_are_not_judged_by_each_other() {
    let federation = Federation::new(1, 1, sign_flip);
    let two = &federation.members()[..2];
    assert_eq!(consistent(two, LIMIT), [None, None]);
    let doubts = anchored(two[1], &two[..1], LIMIT);
    assert!(matches!(doubts[0], Some(Doubt::Foreign(_))));
}

fn part(statistics: &Statistics, samples: f64) -> Part {
    let mut params = ParamSet::new();
    let mut insert = |name: &str, shape: &[usize], values: &[f64]| {
        let values = values.iter().map(|value| *value as f32).collect();
        params.insert(name, shape, values).unwrap();
    };
    insert("statistics.counts", &[CLASSES], &statistics.counts);
    insert("statistics.sums", &[CLASSES, WIDTH], &statistics.sums);
    let scatter = &statistics.scatter;
    insert("statistics.scatter", &[scatter.len()], scatter);
    Part {
        weight: samples,
        params: params.into(),
    }
}

/// Nine of twenty lie alike, so that the medians may be theirs; a node that knows its own means is not led astray.
#[test]
fn a_node_believes_those_who_agree_with_it_and_itself_always() {
    let federation = Federation::new(1, 9, label_swap);
    let parts = federation.sums.iter().zip(&federation.samples);
    let parts: Vec<Part> = parts.map(|(sums, n)| part(sums, *n)).collect();
    let (own, others) = parts.split_last().unwrap();
    let judged = judge(own, others, LIMITS).unwrap();
    assert_liars_alone(&judged.doubts, 9, "label swap");
    let honest: Vec<Part> = parts[9..].to_vec();
    let mean = crate::average(&Rule::default(), &honest).unwrap();
    assert!(are_alike(&judged.mean, &mean));
    assert!(!are_alike(&judged.mean, &parts[0].params));
    // The lone liar believes itself, and hardly anybody else.
    let judged = judge(&parts[0], &parts[9..], LIMITS).unwrap();
    assert!(judged.doubts.iter().flatten().count() >= 9, "{judged:?}");
}
