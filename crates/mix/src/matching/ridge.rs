//! Whose rows are added to the own ones where a number is predicted: peers at which it follows the features as it does here.
//!
//! ```text
//! node j says    n_j, s_j      its rows, and how its number follows its features (Joint::slope)
//! node i judges  a_ij = cos(s_i, s_j)
//!                w_ij = n_j if a_ij > 0 else 0        w_ii = n_i
//! ```
//!
//! A peer whose number goes the other way has no weight. How much the others count is found out where the rows are
//! ([`crate::ridge`]). A node of which no slope is known counts. Rows are a node's own word: they count for at most
//! [`MOST_ROWS`] times the median of all nodes.
//!
//! What travels as the proxy is one row of numbers: n in millions, then the slope. So the cosine of two proxies, by which large
//! federations look for neighbours, is one of slopes.

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::limits::MAX_NORM_RATIO;
use fednode_core::{ExpertExchange, ExpertId, NodeId, ParamSet, PlanRow, ProxySet, Source};

use super::{Gives, MatchingRow, own_first};
use crate::ridge::Joint;
use crate::rule::lower_median;
use crate::similarity::cosine;

pub(super) const ROW: MatchingRow = MatchingRow {
    name: "ridge",
    summary: "means and covariances of the peers at which the number follows the features as it does here",
    reference: "as `agreement`, for numbers",
    gives: Gives::Each,
    most_norm_ratio: MAX_NORM_RATIO,
    rows: |own, known, exchange| {
        let first = own.first().map(|own| row(*own, known, exchange));
        first.into_iter().collect()
    },
    admits: Some(|own, theirs, _| judge(own, theirs)),
    renamings: None,
};

/// How many times the median number of rows a node counts for at most.
const MOST_ROWS: f64 = 10.0;
/// How many times the own features' squares those of another may be, or the reverse.
const MOST_SPREAD: f64 = 10.0;
/// How far out numbers may lie, in halves of the range that the spec says.
const FARTHEST: f64 = 10.0;
/// What rows are divided by in a proxy.
const ROWS_UNIT: f64 = 1e6;

/// What a node says of its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Slope {
    /// How many rows it has.
    pub rows: f64,
    /// How its number follows its features, in deviations of both.
    pub slope: Vec<f32>,
}

impl Slope {
    /// Writes it as a proxy, `1 + D` numbers.
    pub fn to_proxy(&self) -> Vec<f32> {
        let rows = (self.rows / ROWS_UNIT) as f32;
        std::iter::once(rows)
            .chain(self.slope.iter().copied())
            .collect()
    }

    /// Reads a proxy; `None` if it is none.
    fn of_proxy(proxy: &[f32]) -> Option<Self> {
        let (rows, slope) = proxy.split_first()?;
        let is_sound = *rows >= 0.0 && proxy.iter().all(|number| number.is_finite());
        is_sound.then(|| Self {
            rows: f64::from(*rows) * ROWS_UNIT,
            slope: slope.to_vec(),
        })
    }

    /// Returns the cosine of the slopes, 0 where there is none.
    fn agreement(&self, other: &Self) -> f64 {
        cosine(&self.slope, &other.slope)
    }

    fn is_known(&self) -> bool {
        self.slope.iter().any(|number| *number != 0.0)
    }

    /// Tells whether the number may follow the features in both alike.
    fn goes_with(&self, other: &Self) -> bool {
        self.agreement(other) > 0.0 || !(self.is_known() && other.is_known())
    }
}

/// Returns the sources of a node's sums: the own ones first, then the others by weight.
fn row(
    own: ExpertId,
    known: &BTreeMap<NodeId, Arc<ProxySet>>,
    exchange: &ExpertExchange,
) -> PlanRow {
    let of = |owner: &NodeId| Slope::of_proxy(known.get(owner)?.iter().next()?);
    let limit = exchange.peers_per_expert.limit();
    let Some(mine) = of(&own.owner) else {
        return own_first(own, 1.0, Vec::new(), limit);
    };
    let others = known.keys().filter(|owner| **owner != own.owner);
    let others = others.filter_map(|owner| Some((*owner, of(owner)?)));
    let fits = |(_, theirs): &(NodeId, Slope)| theirs.slope.len() == mine.slope.len();
    let others: Vec<(NodeId, Slope)> = others.filter(fits).collect();
    let all = others
        .iter()
        .map(|(_, theirs)| theirs.rows)
        .chain([mine.rows]);
    let most = MOST_ROWS * lower_median(&all.collect::<Vec<_>>());
    let agreeing = others.iter().filter(|(_, theirs)| mine.goes_with(theirs));
    let source = |(owner, theirs): &(NodeId, Slope)| Source {
        expert: ExpertId {
            owner: *owner,
            slot: own.slot,
        },
        similarity: mine.agreement(theirs),
        weight: theirs.rows.min(most),
    };
    let mut agreeing: Vec<Source> = agreeing.map(source).collect();
    agreeing.sort_by(|a, b| {
        let by_similarity = b.similarity.total_cmp(&a.similarity);
        by_similarity.then_with(|| a.expert.cmp(&b.expert))
    });
    own_first(own, mine.rows, agreeing, limit)
}

/// Judges fetched sums by what they say: proxies can be copied.
fn judge(own: &ParamSet, theirs: &ParamSet) -> Result<(), String> {
    let [mine, other] = [own, theirs].map(Joint::read);
    let (mine, other) = (
        mine.map_err(|fault| fault.to_string())?,
        other.map_err(|fault| fault.to_string())?,
    );
    judge_rows(&mine, &other)
}

/// Judges what other rows are like, beside the own ones.
///
/// # Errors
/// Says what is wrong with them.
pub fn judge_rows(mine: &Joint, other: &Joint) -> Result<(), String> {
    let [(own_squares, _), (squares, of_number)] = [mine.squares(), other.squares()];
    let is_alike =
        own_squares == 0.0 || (1.0 / MOST_SPREAD..=MOST_SPREAD).contains(&(squares / own_squares));
    if !is_alike {
        return Err(
            "its features vary more than ten times as much as the own ones, or less than a tenth"
                .to_owned(),
        );
    }
    if of_number > FARTHEST * FARTHEST {
        return Err("its numbers lie ten times as far out as the range of the spec".to_owned());
    }
    let slope = |joint: &Joint| Slope {
        rows: 1.0,
        slope: joint
            .slope()
            .into_iter()
            .map(|number| number as f32)
            .collect(),
    };
    if slope(mine).goes_with(&slope(other)) {
        Ok(())
    } else {
        Err("its number goes the other way than the own one".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::{Matching, PeersPerExpert, Slot};

    use super::*;

    fn expert(byte: u8) -> ExpertId {
        ExpertId {
            owner: NodeId::from_bytes([byte; 32]),
            slot: Slot(0),
        }
    }

    /// Node 1 has 100 rows of slope (1, 0). Of the others one goes the other way, one knows no slope, one has other features.
    fn known() -> BTreeMap<NodeId, Arc<ProxySet>> {
        let entry = |byte, rows: f64, slope: &[f32]| {
            let slope = slope.to_vec();
            let proxy = Slope { rows, slope }.to_proxy();
            let set = ProxySet::new(proxy.len(), proxy).unwrap();
            (expert(byte).owner, Arc::new(set))
        };
        BTreeMap::from([
            entry(1, 100.0, &[1.0, 0.0]),
            entry(2, 300.0, &[0.6, 0.8]),
            entry(3, 100.0, &[-1.0, 0.1]),
            entry(4, 100.0, &[0.0, 0.0]),
            entry(5, 1e9, &[1.0, 0.0]),
            entry(6, 100.0, &[1.0]),
        ])
    }

    #[test]
    fn peers_that_go_the_other_way_do_not_count_and_none_counts_for_all() {
        let exchange = ExpertExchange::by(Matching::named("ridge"), PeersPerExpert::ALL);
        let rows = (ROW.rows)(&[expert(1)], &known(), &exchange);
        let sources = rows[0].sources.iter();
        let sources: Vec<(ExpertId, f64)> = sources
            .map(|source| (source.expert, (source.similarity * 10.0).round()))
            .collect();
        assert_eq!(
            sources,
            [
                (expert(1), 10.0),
                (expert(5), 10.0),
                (expert(2), 6.0),
                (expert(4), 0.0)
            ]
        );
        // The median of 100, 100, 100, 300 and a billion rows is 100, so nobody counts for more than 1,000.
        let weights: Vec<f64> = rows[0]
            .sources
            .iter()
            .map(|source| source.weight * 1500.0)
            .collect();
        let expected = [100.0, 1000.0, 300.0, 100.0];
        let pairs = weights.iter().zip(expected);
        assert!(
            pairs
                .into_iter()
                .all(|(got, expected)| (got - expected).abs() < 1.0),
            "{weights:?}"
        );
    }

    #[test]
    fn sums_are_judged_by_what_they_say() {
        let params = |means: [f32; 2], covariances: [f32; 3]| {
            let mut params = ParamSet::new();
            params.insert("ridge.means", &[2], means.to_vec()).unwrap();
            params
                .insert("ridge.covariances", &[3], covariances.to_vec())
                .unwrap();
            params
        };
        let own = params([0.0, 1.0], [1.0, 0.5, 1.0]);
        let judged = |covariances| judge(&own, &params([1.0, 2.0], covariances));
        assert_eq!(judged([4.0, 1.0, 1.0]), Ok(()));
        for (means, covariances, word) in [
            ([40.0, 2.0], [1.0, 0.5, 1.0], "ten times as much"),
            ([0.0, 0.0], [0.01, 0.05, 1.0], "less than a tenth"),
            ([0.0, 11.0], [1.0, 0.5, 1.0], "ten times as far out"),
        ] {
            let refused = judge(&own, &params(means, covariances)).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
        assert!(
            judged([4.0, -1.0, 1.0])
                .unwrap_err()
                .contains("the other way")
        );
        for impossible in [[-1.0, 0.0, 1.0], [1.0, 2.0, 1.0], [1.0, f32::NAN, 1.0]] {
            assert!(
                judged(impossible).unwrap_err().contains("no rows"),
                "{impossible:?}"
            );
        }
        let mut other = ParamSet::new();
        other.insert("agreement.counts", &[1], vec![1.0]).unwrap();
        assert!(
            judge(&own, &other)
                .unwrap_err()
                .contains("means and covariances")
        );
    }
}
