//! Rules that look at one coordinate at a time: the values of all members there become one.
//!
//! Many coordinates are sorted at once, by a network of comparisons that is the same for all of them (Batcher, "Sorting
//! networks and their applications", AFIPS 1968). So each comparison is one of whole vectors.

use fednode_core::{ParamSet, Tensor};

use super::{AverageError, Part, together};

/// Coordinates that are sorted together: some vectors of the widest.
const LANES: usize = 64;

/// One member's values at so many coordinates, as numbers in the order of [`f32::total_cmp`].
type Lanes = [i32; LANES];

/// Combines members coordinate by coordinate; `combine` gets the members' values in ascending order.
pub(super) fn coordinate_wise(
    parts: &mut dyn Iterator<Item = Part>,
    combine: fn(&[f32]) -> f32,
) -> Result<ParamSet, AverageError> {
    let parts = together(parts)?;
    let network = network(parts.len());
    let mut combined = ParamSet::new();
    for (name, shape) in parts[0].params.layout() {
        let tensors: Vec<&Tensor> = parts
            .iter()
            .filter_map(|part| part.params.get(&name))
            .collect();
        let members: Vec<&[f32]> = tensors.iter().map(|tensor| tensor.values()).collect();
        combined
            .insert(name, &shape, combine_values(&members, &network, combine))
            .expect("every member has this layout");
    }
    Ok(combined)
}

/// Combines values of members, which are equally many.
fn combine_values(
    members: &[&[f32]],
    network: &[(usize, usize)],
    combine: fn(&[f32]) -> f32,
) -> Vec<f32> {
    let n_values = members[0].len();
    let mut values = Vec::with_capacity(n_values);
    let mut rows: Vec<Lanes> = vec![[0; LANES]; members.len()];
    let mut column = vec![0.0; members.len()];
    for start in (0..n_values).step_by(LANES) {
        let n_lanes = LANES.min(n_values - start);
        for (row, member) in rows.iter_mut().zip(members) {
            let lanes = row.iter_mut().zip(&member[start..][..n_lanes]);
            lanes.for_each(|(lane, value)| *lane = ordered(value.to_bits() as i32));
        }
        for pair in network {
            compare(&mut rows, *pair);
        }
        for lane in 0..n_lanes {
            // Not-a-numbers are at the ends, where the robust rules do not look.
            let cells = column.iter_mut().zip(&rows);
            cells.for_each(|(cell, row)| *cell = f32::from_bits(ordered(row[lane]) as u32));
            values.push(combine(&column));
        }
    }
    values
}

/// Turns the bits of a number into one that is ordered as the number is, or back.
const fn ordered(bits: i32) -> i32 {
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

/// Puts the smaller values of two rows into the first one.
fn compare(rows: &mut [Lanes], (first, second): (usize, usize)) {
    let (before, after) = rows.split_at_mut(second);
    for (low, high) in before[first].iter_mut().zip(&mut after[0]) {
        (*low, *high) = ((*low).min(*high), (*low).max(*high));
    }
}

/// Returns which positions of so many are compared, in order, so that they are sorted: the odd-even merge sort.
fn network(n: usize) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let powers = || (0..usize::BITS).map(|power| 1_usize << power);
    for merged in powers().take_while(|merged| *merged < n) {
        let mut apart = merged;
        while apart > 0 {
            for start in (apart % merged..n.saturating_sub(apart)).step_by(2 * apart) {
                let firsts = start..start + apart.min(n - start - apart);
                let is_in_one =
                    |first: &usize| first / (2 * merged) == (first + apart) / (2 * merged);
                pairs.extend(firsts.filter(is_in_one).map(|first| (first, first + apart)));
            }
            apart /= 2;
        }
    }
    pairs
}

/// Returns the mean of some values.
pub(super) fn plain_mean(values: &[f32]) -> f32 {
    let sum = values
        .iter()
        .fold(-0.0, |sum, value| sum + f64::from(*value));
    (sum / values.len() as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    /// Chooses one of the sorted values.
    type Pick = fn(&[f32]) -> f32;

    /// By the principle of zeros and ones, a network that sorts all of these sorts everything (Knuth, volume 3, 5.3.4).
    #[test]
    fn the_network_sorts_all_zeros_and_ones() {
        for n in 1..=12 {
            for bits in 0..1_u32 << n {
                let mut row: Vec<bool> = (0..n).map(|at| bits >> at & 1 == 1).collect();
                for (first, second) in network(n) {
                    if row[first] && !row[second] {
                        row.swap(first, second);
                    }
                }
                assert!(row.is_sorted(), "{n} positions, {bits:b}");
            }
        }
    }

    #[test]
    fn columns_are_sorted_whatever_the_numbers() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for n in [1, 2, 5, 20, 37] {
            let mut member = || -> Vec<f32> {
                // Any bits: not-a-numbers, infinities and both zeros among them.
                (0..LANES + 3)
                    .map(|_| f32::from_bits(random.next_u32()))
                    .collect()
            };
            let mut members: Vec<Vec<f32>> = (0..n).map(|_| member()).collect();
            (members[0][0], members[n - 1][0]) = (0.0, -0.0);
            let members: Vec<&[f32]> = members.iter().map(Vec::as_slice).collect();
            let picks: [(usize, Pick); 3] = [
                (0, |column| column[0]),
                (n / 2, |column| column[column.len() / 2]),
                (n - 1, |column| column[column.len() - 1]),
            ];
            for (at, pick) in picks {
                let got = combine_values(&members, &network(n), pick);
                let expected = |lane: usize| {
                    let mut column: Vec<f32> = members.iter().map(|member| member[lane]).collect();
                    column.sort_unstable_by(f32::total_cmp);
                    column[at].to_bits()
                };
                let expected: Vec<u32> = (0..LANES + 3).map(expected).collect();
                let got: Vec<u32> = got.into_iter().map(f32::to_bits).collect();
                assert_eq!(got, expected, "{n} members");
            }
        }
    }
}
