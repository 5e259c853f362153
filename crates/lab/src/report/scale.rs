//! The cost of the protocol with more and more nodes: runs without training, in one table and one plot per algorithm.

use std::collections::BTreeMap;

use super::html::{self, numbers, words};
use super::svg::{self, BOTTOM, Canvas, Plot, Sample, Scale};
use super::words::{bytes, decimal, duration, escape};
use crate::simulate::protocol::Summary;
use crate::swarm::summary::mean;

/// Height of the plotted area.
const HEIGHT: f64 = 320.0;
/// Up to this many numbers of nodes each has its tick. With more, only powers of ten have.
const MOST_TICKS: usize = 10;

/// A run without training.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Its name among the runs.
    pub(crate) name: String,
    /// Its result.
    pub(crate) summary: Summary,
}

/// A number that is plotted: its name, and itself.
type Measure = (&'static str, fn(&Summary) -> f64);

const MEASURES: [Measure; 4] = [
    ("messages", |summary| summary.messages_per_round),
    ("bytes with the aggregator", |summary| {
        summary.bytes_per_round.aggregator
    }),
    ("bytes from peers", |summary| {
        summary.bytes_per_round.peer_to_peer
    }),
    ("bytes of gossip", |summary| summary.bytes_per_round.gossip),
];

/// Draws messages and bytes per node and round against the number of nodes, one plot per algorithm.
pub(crate) fn plots(runs: &[Measured]) -> Vec<Plot> {
    let mut by_algorithm: BTreeMap<&str, Vec<&Summary>> = BTreeMap::new();
    for run in runs {
        by_algorithm
            .entry(&run.summary.algorithm)
            .or_default()
            .push(&run.summary);
    }
    by_algorithm
        .into_iter()
        .filter_map(|(algorithm, summaries)| plot(algorithm, &summaries))
        .collect()
}

fn plot(algorithm: &str, summaries: &[&Summary]) -> Option<Plot> {
    let mut by_nodes: BTreeMap<u32, Vec<&Summary>> = BTreeMap::new();
    for summary in summaries {
        by_nodes.entry(summary.nodes).or_default().push(summary);
    }
    let curves = curves(&by_nodes);
    let (low, high) = exponents(&curves)?;
    let title = format!("Messages and bytes per node and round, {algorithm}");
    let mut canvas = Canvas::new(&title);
    let entries = curves
        .iter()
        .map(|curve| (Sample::Line(curve.colour), curve.name));
    canvas.legend(&entries.collect::<Vec<_>>());
    let nodes: Vec<f64> = by_nodes.keys().map(|nodes| f64::from(*nodes)).collect();
    let y = canvas.upwards((low, high.max(low + 1.0)), HEIGHT);
    let x = Scale::across((nodes.first()?.log10(), nodes.last()?.log10()), 14.0);
    canvas.vertical(&y, &powers(y.low, y.high), "per node and round");
    canvas.horizontal(y.from, &node_ticks(&x, &nodes), "nodes");
    for curve in &curves {
        curve.draw(&mut canvas, &x, &y);
    }
    let description = "Adverts that a node received in one round, and bytes that it moved, by their purpose, against the \
                       number of nodes; both axes are logarithmic. Blobs are those of toys, a few floats each.";
    Some(canvas.finish(&format!("scale-{algorithm}"), description, y.from + BOTTOM))
}

/// A measure against the number of nodes.
struct Curve {
    colour: usize,
    name: &'static str,
    /// Nodes, and a value above 0.
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn draw(&self, canvas: &mut Canvas, x: &Scale, y: &Scale) {
        let points: Vec<_> = self
            .points
            .iter()
            .map(|(nodes, value)| (x.at(nodes.log10()), y.at(value.log10())))
            .collect();
        if points.len() > 1 {
            canvas.path(&points, &svg::stroke(self.colour));
        }
        for point in points {
            canvas.dot(point, &svg::fill(self.colour));
        }
    }
}

/// Returns the curves that have a point, each point a mean over runs of so many nodes.
fn curves(by_nodes: &BTreeMap<u32, Vec<&Summary>>) -> Vec<Curve> {
    let points = |of: fn(&Summary) -> f64| -> Vec<(f64, f64)> {
        let point = |(nodes, runs): (&u32, &Vec<&Summary>)| {
            let values: Vec<f64> = runs.iter().map(|summary| of(summary)).collect();
            (f64::from(*nodes), mean(&values))
        };
        let points = by_nodes.iter().map(point);
        // 0 has no logarithm.
        points.filter(|(_, value)| *value > 0.0).collect()
    };
    let curve = |(colour, (name, of)): (usize, Measure)| Curve {
        colour,
        name,
        points: points(of),
    };
    let curves = MEASURES.into_iter().enumerate().map(curve);
    curves.filter(|curve| !curve.points.is_empty()).collect()
}

/// Returns the exponents of the powers of ten between which all points lie, if there is any.
fn exponents(curves: &[Curve]) -> Option<(f64, f64)> {
    let values = || {
        curves
            .iter()
            .flat_map(|curve| curve.points.iter().map(|(_, value)| value.log10()))
    };
    let (lowest, highest) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    Some((lowest.floor(), highest.ceil()))
}

/// Returns the powers of ten between two exponents.
fn powers(low: f64, high: f64) -> Vec<(f64, String)> {
    let tick = |exponent: i32| {
        (
            f64::from(exponent),
            decimal(10_f64.powi(exponent), usize::from(exponent < 0)),
        )
    };
    (low as i32..=high as i32).map(tick).collect()
}

fn node_ticks(x: &Scale, nodes: &[f64]) -> Vec<(f64, String)> {
    let tick = |nodes: &f64| (x.at(nodes.log10()), decimal(*nodes, 0));
    if nodes.len() <= MOST_TICKS {
        nodes.iter().map(tick).collect()
    } else {
        powers(x.low.ceil(), x.high.floor())
            .into_iter()
            .map(|(at, text)| (x.at(at), text))
            .collect()
    }
}

/// Writes the part of a page about runs without training.
pub(crate) fn section(runs: &[Measured], plots: &[Plot]) -> String {
    let columns = [
        words("run"),
        words("algorithm"),
        numbers("nodes"),
        numbers("rounds"),
        numbers("messages"),
        numbers("aggregator"),
        numbers("peer-to-peer"),
        numbers("gossip"),
        numbers("time"),
        numbers("memory"),
    ];
    let row = |run: &Measured| {
        let Summary {
            algorithm,
            nodes,
            rounds,
            bytes_per_round: traffic,
            ..
        } = &run.summary;
        vec![
            escape(&run.name),
            escape(algorithm),
            nodes.to_string(),
            rounds.to_string(),
            decimal(run.summary.messages_per_round, 1),
            bytes(traffic.aggregator),
            bytes(traffic.peer_to_peer),
            bytes(traffic.gossip),
            duration(run.summary.wall_seconds),
            bytes(run.summary.peak_rss_bytes as f64),
        ]
    };
    let table = html::table(&columns, &runs.iter().map(row).collect::<Vec<_>>());
    let figures: String = plots.iter().map(html::figure).collect();
    format!(
        "<h2 class=\"first\">The protocol alone</h2>\n<p>Simulated without training: messages and bytes per node and \
         round.</p>\n{table}{figures}"
    )
}

#[cfg(test)]
mod tests {
    use super::super::svg::{LEFT, RIGHT, WIDTH};
    use super::*;
    use crate::swarm::summary::BytesPerRound;

    fn measured(nodes: u32, messages_per_round: f64) -> Measured {
        let bytes_per_round = BytesPerRound {
            aggregator: 1000.0,
            peer_to_peer: 0.0,
            gossip: 10.0 * messages_per_round,
        };
        let summary = Summary {
            algorithm: "fedavg".into(),
            seed: 1,
            nodes,
            rounds: 2,
            messages_per_round,
            bytes_per_round,
            wall_seconds: 1.0,
            peak_rss_bytes: 1,
            plans: Vec::new(),
            effective_config: serde_json::Value::Null,
        };
        Measured {
            name: format!("nodes={nodes}"),
            summary,
        }
    }

    #[test]
    fn tenfold_nodes_lie_equally_far_apart() {
        let runs = [
            measured(10, 10.0),
            measured(100, 100.0),
            measured(1000, 1000.0),
        ];
        let plots = plots(&runs);
        let text = plots[0].inline();
        // 10, 100 and 1000 of each on an axis that goes from 10 to 10^4: the messages' curve is straight.
        let (left, right) = (LEFT + 14.0, WIDTH - RIGHT - 14.0);
        let middle = f64::midpoint(left, right);
        let curve = text
            .split("<polyline points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        let xs: Vec<&str> = curve
            .split(' ')
            .map(|point| point.split(',').next().unwrap())
            .collect();
        assert_eq!(xs, [left, middle, right].map(|x| format!("{x:.1}")));
        let ys: Vec<f64> = curve
            .split(' ')
            .map(|point| point.split(',').nth(1).unwrap().parse().unwrap())
            .collect();
        assert!(
            (ys[0] - ys[1] - HEIGHT / 3.0).abs() < 0.2
                && (ys[1] - ys[2] - HEIGHT / 3.0).abs() < 0.2,
            "{ys:?}"
        );
        assert!(
            !text.contains("bytes from peers"),
            "what never moves has no curve"
        );
        assert!(section(&runs, &plots).contains("nodes=1000"));
    }

    #[test]
    fn runs_of_one_size_are_one_point() {
        let plots = plots(&[measured(10, 10.0), measured(10, 30.0)]);
        assert_eq!(plots.len(), 1);
        assert!(!plots[0].inline().contains("<polyline") && plots[0].inline().contains("<circle"));
    }
}
