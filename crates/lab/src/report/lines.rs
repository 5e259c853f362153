//! Curves over rounds: the median of the nodes, within a band of their quartiles, within a band of all nodes.

use super::stats::Spread;
use super::svg::{self, BOTTOM, Canvas, Plot, Sample, Scale};
use super::words::known;

/// Height of the plotted area.
const HEIGHT: f64 = 280.0;
/// Up to this many points each is marked.
const MARKED: usize = 40;
/// Half the width of a band that has one round only.
const LONE: f64 = 7.0;

/// Curves over rounds.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    /// Heading.
    pub(crate) title: &'a str,
    /// A description in words.
    pub(crate) description: &'a str,
    /// The name as part of a file name.
    pub(crate) slug: &'a str,
    /// Label of the vertical axis.
    pub(crate) label: &'a str,
    /// What the values are.
    pub(crate) unit: Unit,
    /// The spread over nodes, by round.
    pub(crate) spread: Vec<(u32, Spread)>,
    /// Further curves: name and values by round. Beside a spread they are dashed. Without one they are solid until the
    /// colours repeat.
    pub(crate) others: Vec<(&'a str, Vec<(u32, f64)>)>,
}

/// The unit of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Shares of 1, shown as per cent.
    Share,
    /// Numbers from 0 on.
    Number,
}

impl Lines<'_> {
    /// Draws the curves. Returns `None` without a value.
    pub(crate) fn draw(&self) -> Option<Plot> {
        let (low, high) = self.range(&self.values())?;
        let (first, last) = self.first_and_last()?;
        let mut canvas = Canvas::new(self.title);
        canvas.legend(&self.entries());
        let axes = Axes {
            x: Scale::across((first.into(), last.into()), 14.0),
            y: canvas.upwards((low, high), HEIGHT),
        };
        canvas.vertical(&axes.y, &self.ticks(low, high), self.label);
        canvas.horizontal(axes.y.from, &svg::round_ticks(&axes.x), "round");
        for (class, band) in bands(&self.spread) {
            if !band.is_empty() {
                let class = format!("{} {class}", svg::fill(0));
                canvas.area(axes.outline(&band).into_iter(), &class);
            }
        }
        let medians = self
            .spread
            .iter()
            .map(|(round, spread)| (*round, spread.median));
        curve(&mut canvas, &axes.points(medians), 0, "");
        for (at, (_, values)) in self.others.iter().enumerate() {
            let (colour, dash) = self.look(at);
            let points = axes.points(values.iter().copied());
            curve(&mut canvas, &points, colour, dash);
        }
        Some(canvas.finish(self.slug, self.description, axes.y.from + BOTTOM))
    }

    /// Returns every value that the vertical axis must hold.
    fn values(&self) -> Vec<f64> {
        let spreads = self
            .spread
            .iter()
            .flat_map(|(_, spread)| [spread.min, spread.max]);
        let others = self
            .others
            .iter()
            .flat_map(|(_, values)| values.iter().map(|(_, value)| *value));
        spreads.chain(others).filter_map(known).collect()
    }

    /// Returns the first and the last round of which anything is known.
    fn first_and_last(&self) -> Option<(u32, u32)> {
        let spreads = self.spread.iter().map(|(round, _)| *round);
        let others = self
            .others
            .iter()
            .flat_map(|(_, values)| values.iter().map(|(round, _)| *round));
        let rounds = spreads.chain(others);
        Some((rounds.clone().min()?, rounds.max()?))
    }

    fn entries(&self) -> Vec<(Sample, &str)> {
        let spread = [
            (Sample::Line(0), "median of the nodes"),
            (Sample::Faint(0, "near"), "middle half"),
            (Sample::Faint(0, "far"), "all nodes"),
        ];
        let spread = if self.spread.is_empty() {
            &[]
        } else {
            &spread[..]
        };
        let others = self
            .others
            .iter()
            .enumerate()
            .filter(|(_, (_, values))| !values.is_empty());
        let sample = |at: usize| match self.look(at) {
            (colour, "") => Sample::Line(colour),
            (colour, _) => Sample::Dashed(colour),
        };
        spread
            .iter()
            .copied()
            .chain(others.map(|(at, (name, _))| (sample(at), *name)))
            .collect()
    }

    /// Returns colour and dash of a further curve.
    fn look(&self, at: usize) -> (usize, &'static str) {
        if self.spread.is_empty() {
            (at, if at < svg::COLOURS { "" } else { " dash" })
        } else {
            (at + 1, " dash")
        }
    }

    fn range(&self, values: &[f64]) -> Option<(f64, f64)> {
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let (low, high) = if high - low < 1e-9 {
            (low - 0.05, high + 0.05)
        } else {
            (low, high)
        };
        Some(match self.unit {
            Unit::Share => {
                let (low, high) = svg::rounded(low, high, 5);
                (low.max(0.0), high.min(1.0))
            }
            Unit::Number => (0.0, svg::rounded(0.0, high, 5).1),
        })
    }

    fn ticks(&self, low: f64, high: f64) -> Vec<(f64, String)> {
        let (values, step) = svg::ticks(low, high, 5);
        let text = |value: f64| match self.unit {
            Unit::Share => format!("{:.*} %", svg::decimals(100.0 * step), 100.0 * value),
            Unit::Number => format!("{value:.*}", svg::decimals(step)),
        };
        values
            .into_iter()
            .map(|value| (value, text(value)))
            .collect()
    }
}

/// Where rounds and values lie.
struct Axes {
    x: Scale,
    y: Scale,
}

impl Axes {
    fn point(&self, (round, value): (u32, f64)) -> (f64, f64) {
        // R² of the first rounds may lie far below the axis, which shares have.
        let shown = value.clamp(self.y.low, self.y.high);
        (self.x.at(round.into()), self.y.at(shown))
    }

    fn points(&self, values: impl Iterator<Item = (u32, f64)>) -> Vec<(f64, f64)> {
        values.map(|value| self.point(value)).collect()
    }

    /// Returns the corners of a band, around: the lower edge, and the upper one back. A band of one round is a box.
    fn outline(&self, band: &[(u32, f64, f64)]) -> Vec<(f64, f64)> {
        if let [(round, low, high)] = band {
            let ((x, bottom), (_, top)) = (self.point((*round, *low)), self.point((*round, *high)));
            let (left, right) = (x - LONE, x + LONE);
            return vec![(left, bottom), (right, bottom), (right, top), (left, top)];
        }
        let low = band.iter().map(|(round, low, _)| (*round, *low));
        let high = band.iter().rev().map(|(round, _, high)| (*round, *high));
        self.points(low.chain(high))
    }
}

/// One band: round, lower and upper edge.
type Band = Vec<(u32, f64, f64)>;

fn bands(spread: &[(u32, Spread)]) -> [(&'static str, Band); 2] {
    let band = |of: fn(&Spread) -> (f64, f64)| -> Band {
        let edges = spread.iter().map(|(round, spread)| (*round, of(spread)));
        edges
            .map(|(round, (low, high))| (round, low, high))
            .collect()
    };
    let bands = [
        ("far", band(|spread| (spread.min, spread.max))),
        ("near", band(|spread| (spread.lower, spread.upper))),
    ];
    bands.map(|(class, band)| (class, if spread.is_empty() { Vec::new() } else { band }))
}

fn curve(canvas: &mut Canvas, points: &[(f64, f64)], colour: usize, dash: &str) {
    if points.len() > 1 {
        canvas.path(points, &format!("{}{dash}", svg::stroke(colour)));
    }
    for point in points.iter().filter(|_| points.len() <= MARKED) {
        canvas.dot(*point, &svg::fill(colour));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::stats;

    fn lines(spread: Vec<(u32, Spread)>) -> Lines<'static> {
        let (title, description, slug, label) = ("t", "d", "s", "accuracy");
        Lines {
            title,
            description,
            slug,
            label,
            unit: Unit::Share,
            spread,
            others: vec![("before", vec![(2, 0.5)])],
        }
    }

    #[test]
    fn bands_lie_around_the_median() {
        let spread =
            |shift| stats::spread([0.2, 0.3, 0.4, 0.5, 0.6].map(|value| value + shift)).unwrap();
        let text = lines(vec![(1, spread(0.0)), (2, spread(0.2))])
            .draw()
            .unwrap()
            .inline();
        assert_eq!(text.matches("<polygon").count(), 2);
        assert_eq!(
            text.matches("<polyline").count(),
            1,
            "one point makes no line: {text}"
        );
        assert!(
            text.contains(">20 %</text>") && text.contains(">80 %</text>"),
            "{text}"
        );
        assert!(!text.contains("NaN"), "{text}");
    }

    #[test]
    fn one_round_is_a_box_and_nothing_is_no_plot() {
        let text = lines(vec![(3, stats::spread([0.5, 0.6]).unwrap())])
            .draw()
            .unwrap()
            .inline();
        assert!(!text.contains("NaN") && text.contains("<polygon"), "{text}");
        let alone = Lines {
            others: vec![("a", vec![(1, 0.5), (2, 0.6)])],
            ..lines(vec![])
        }
        .draw()
        .unwrap()
        .inline();
        assert!(
            alone.contains("line s0") && !alone.contains("dash") && !alone.contains("polygon"),
            "{alone}"
        );
        assert!(
            Lines {
                others: vec![],
                ..lines(vec![])
            }
            .draw()
            .is_none()
        );
    }
}
