//! Cutting a node's samples in two: at random for training and test, by class for validation.

use super::NodeIndices;
use fednode_core::random::Dice;

/// The share of a node's samples that is for tests where neither the data nor the partition says which.
pub const TEST_SHARE: f64 = 0.25;

/// Shuffles a node's samples and cuts them 75 to 25, rounding the training part down, as PFLlib does.
pub(super) fn train_and_test(mut samples: Vec<u32>, dice: &mut Dice) -> NodeIndices {
    dice.shuffle(&mut samples);
    let test = samples.split_off(n_train(samples.len()));
    NodeIndices {
        train: samples,
        test,
    }
}

/// Shuffles a node's samples and cuts so many off for tests.
pub(super) fn cut_off(mut samples: Vec<u32>, n_test: usize, dice: &mut Dice) -> NodeIndices {
    dice.shuffle(&mut samples);
    let test = samples.split_off(samples.len().saturating_sub(n_test));
    NodeIndices {
        train: samples,
        test,
    }
}

/// Takes whole groups off for tests, in random order, until there are so many samples or one more group would be too many.
pub(crate) fn by_group(
    samples: &[u32],
    groups: &[u32],
    n_test: usize,
    dice: &mut Dice,
) -> NodeIndices {
    let mut members: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
    for index in samples {
        let group = groups[*index as usize];
        members.entry(group).or_default().push(*index);
    }
    let mut members: Vec<Vec<u32>> = members.into_values().collect();
    dice.shuffle(&mut members);
    let mut node = NodeIndices {
        train: Vec::new(),
        test: Vec::new(),
    };
    for group in members {
        let fits = node.test.len() + group.len() <= n_test;
        let list = if fits {
            &mut node.test
        } else {
            &mut node.train
        };
        list.extend(group);
    }
    node
}

/// Returns how many of so many samples are for training.
pub(super) fn n_train(n: usize) -> usize {
    // Exact: three quarters of a whole number need two more bits.
    (n as f64 * (1.0 - TEST_SHARE)) as usize
}

/// Takes `count` samples out so that each class gives in proportion; returns the rest and what was taken.
///
/// A class keeps at least one sample in the rest, so a class with a single one gives none, and less than `count` may
/// be taken. The classes with the largest remainders are rounded up.
pub(crate) fn stratified(
    samples: &[u32],
    labels: &[u16],
    count: usize,
    seed: u64,
    number: u64,
) -> (Vec<u32>, Vec<u32>) {
    by_class(
        samples,
        labels,
        count,
        &mut Dice::new("stratified", seed, number),
    )
}

pub(super) fn by_class(
    samples: &[u32],
    labels: &[u16],
    count: usize,
    dice: &mut Dice,
) -> (Vec<u32>, Vec<u32>) {
    let mut classes: std::collections::BTreeMap<u16, Vec<u32>> = std::collections::BTreeMap::new();
    samples.iter().for_each(|index| {
        classes
            .entry(labels[*index as usize])
            .or_default()
            .push(*index)
    });
    let sizes: Vec<usize> = classes.values().map(Vec::len).collect();
    let (mut rest, mut taken) = (Vec::new(), Vec::new());
    for (mut class, quota) in classes.into_values().zip(quotas(&sizes, count)) {
        dice.shuffle(&mut class);
        taken.extend(class.drain(..quota));
        rest.extend(class);
    }
    rest.sort_unstable();
    taken.sort_unstable();
    (rest, taken)
}

/// Divides `count` among classes in proportion to their sizes (largest remainder), each below its size.
fn quotas(sizes: &[usize], count: usize) -> Vec<usize> {
    let total: usize = sizes.iter().sum();
    if total == 0 {
        return vec![0; sizes.len()];
    }
    let most = |class: usize| sizes[class] - 1;
    let mut quotas: Vec<usize> = (0..sizes.len())
        .map(|class| (count * sizes[class] / total).min(most(class)))
        .collect();
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|class| std::cmp::Reverse(count * sizes[*class] % total));
    let mut missing = count.saturating_sub(quotas.iter().sum());
    while missing > 0 {
        let before = missing;
        for class in order.iter().copied() {
            if missing > 0 && quotas[class] < most(class) {
                quotas[class] += 1;
                missing -= 1;
            }
        }
        if missing == before {
            break;
        }
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_follow_the_largest_remainders() {
        assert_eq!(quotas(&[50, 30, 20], 10), [5, 3, 2]);
        assert_eq!(quotas(&[6, 3, 1], 4), [3, 1, 0]); // 2.4, 1.2, 0.4: the last would go to the lone sample
        assert_eq!(quotas(&[1, 1, 1], 2), [0, 0, 0]);
        assert_eq!(quotas(&[5, 5], 100), [4, 4]);
        assert_eq!(quotas(&[], 3), [0; 0]);
    }

    #[test]
    fn takes_from_every_class_and_loses_nothing() {
        let labels: Vec<u16> = (0..100).map(|i| if i < 80 { 0 } else { 1 }).collect();
        let samples: Vec<u32> = (0..100).collect();
        let (rest, taken) = stratified(&samples, &labels, 10, 1, 0);
        let ones = taken
            .iter()
            .filter(|index| labels[**index as usize] == 1)
            .count();
        assert_eq!((rest.len(), taken.len(), ones), (90, 10, 2));
        let mut all = [rest, taken.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, samples);
        assert_eq!(stratified(&samples, &labels, 10, 1, 0).1, taken);
        assert_ne!(stratified(&samples, &labels, 10, 1, 1).1, taken);
    }

    #[test]
    fn trains_on_three_quarters_rounded_down() {
        let node = train_and_test((0..10).collect(), &mut Dice::new("test", 1, 0));
        assert_eq!((node.train.len(), node.test.len()), (7, 3));
    }
}
