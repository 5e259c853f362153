//! Bars: several values of each node side by side, or the parts of each round stacked.

use super::svg::{self, BOTTOM, Canvas, LEFT, Plot, RIGHT, Sample, Scale, WIDTH};
use super::words::known;

/// Height of the plotted area.
const HEIGHT: f64 = 230.0;
/// Share of a group's width that stays free.
const GAP: f64 = 0.22;
/// Share of the whole below which a part counts as rounding and is not drawn.
const NOISE: f64 = 1e-9;
/// Widest single bar.
const WIDEST: f64 = 34.0;

/// Values of each node side by side, with a mark at the height of its baseline.
#[derive(Debug)]
pub(crate) struct Groups<'a> {
    /// Heading.
    pub(crate) title: &'a str,
    /// A description in words.
    pub(crate) description: &'a str,
    /// The name as part of a file name.
    pub(crate) slug: &'a str,
    /// Names of the values, in the order of the bars.
    pub(crate) names: Vec<&'a str>,
    /// The index of the value with which the others are compared.
    pub(crate) baseline: usize,
    /// Each node's name and values, as shares of 1. An absent value has no bar.
    pub(crate) groups: Vec<(&'a str, Vec<Option<f64>>)>,
}

impl Groups<'_> {
    /// Draws the bars. Returns `None` without a group.
    pub(crate) fn draw(&self) -> Option<Plot> {
        if self.groups.is_empty() || self.names.is_empty() {
            return None;
        }
        let room = (WIDTH - RIGHT - LEFT) / self.groups.len() as f64;
        let width = f64::min(room * (1.0 - GAP) / self.names.len() as f64, WIDEST);
        let mut canvas = Canvas::new(self.title);
        self.write_legend(&mut canvas);
        let y = canvas.upwards((0.0, 1.0), HEIGHT);
        let percents =
            [0.0, 0.2, 0.4, 0.6, 0.8, 1.0].map(|value| (value, format!("{:.0} %", 100.0 * value)));
        canvas.vertical(&y, &percents, "test accuracy");
        let mut labels = Vec::new();
        for (at, (group, values)) in self.groups.iter().enumerate() {
            let middle = LEFT + (at as f64 + 0.5) * room;
            let left = middle - width * self.names.len() as f64 / 2.0;
            self.draw_bars(&mut canvas, &Columns { left, width, y }, group, values);
            self.mark_baseline(&mut canvas, &Columns { left, width, y }, values);
            labels.push((middle, (*group).to_owned()));
        }
        canvas.horizontal(y.from, &labels, "node");
        Some(canvas.finish(self.slug, self.description, y.from + BOTTOM))
    }

    fn write_legend(&self, canvas: &mut Canvas) {
        let names = self
            .names
            .iter()
            .enumerate()
            .map(|(at, name)| (Sample::Fill(at), *name));
        let baseline = format!("height of “{}”", self.names[self.baseline]);
        let entries = names.chain([(Sample::Baseline, baseline.as_str())]);
        canvas.legend(&entries.collect::<Vec<_>>());
    }

    fn draw_bars(
        &self,
        canvas: &mut Canvas,
        columns: &Columns,
        group: &str,
        values: &[Option<f64>],
    ) {
        let Columns { left, width, y } = columns;
        for (index, (value, name)) in values.iter().zip(&self.names).enumerate() {
            let Some(value) = known(*value) else { continue };
            let label = format!("node {group}, {name}: {:.1} %", 100.0 * value);
            // R² may be below 0, where no bar is.
            let value = value.clamp(0.0, 1.0);
            let corner = (left + index as f64 * width, y.at(value));
            let size = ((width * 0.92).max(0.6), y.from - y.at(value));
            let class = format!("class=\"{}\"", svg::fill(index));
            canvas.labelled(corner, size, &class, &label);
        }
    }

    /// Draws a line across a group at the height of its baseline.
    fn mark_baseline(&self, canvas: &mut Canvas, columns: &Columns, values: &[Option<f64>]) {
        let Columns { left, width, y } = columns;
        if let Some(baseline) = values.get(self.baseline).copied().and_then(known) {
            let (height, right) = (
                y.at(baseline.clamp(0.0, 1.0)),
                left + width * self.names.len() as f64,
            );
            canvas.line((left - 2.0, height), (right + 2.0, height), "own");
        }
    }
}

/// Where the bars of a group or the parts of a round stand.
struct Columns {
    /// The left edge of the first one.
    left: f64,
    /// The width of each.
    width: f64,
    y: Scale,
}

/// Stacked parts of each round.
#[derive(Debug)]
pub(crate) struct Stacks<'a> {
    /// Heading.
    pub(crate) title: &'a str,
    /// A description in words.
    pub(crate) description: &'a str,
    /// The name as part of a file name.
    pub(crate) slug: &'a str,
    /// Label of the vertical axis.
    pub(crate) label: &'a str,
    /// Writes a value with its unit and, if the unit has any, this many decimals.
    pub(crate) unit: fn(f64, usize) -> String,
    /// Names of the parts, from the lowest up.
    pub(crate) names: Vec<&'a str>,
    /// The parts of each round.
    pub(crate) rounds: Vec<(u32, Vec<f64>)>,
}

impl Stacks<'_> {
    /// Draws the stacks, with each part's share of the whole in the legend. Returns `None` if all values are 0.
    pub(crate) fn draw(&self) -> Option<Plot> {
        let (_, high) = svg::rounded(0.0, self.highest()?, 4);
        let (first, last) = (self.rounds.first()?.0, self.rounds.last()?.0);
        let mut canvas = Canvas::new(self.title);
        let entries = self.entries();
        let entries = entries
            .iter()
            .map(|(sample, name)| (*sample, name.as_str()));
        canvas.legend(&entries.collect::<Vec<_>>());
        let y = canvas.upwards((0.0, high), HEIGHT);
        let (values, step) = svg::ticks(0.0, high, 4);
        let decimals = svg::decimals(step);
        let tick = |value: f64| (value, (self.unit)(value, decimals));
        let ticks: Vec<_> = values.into_iter().map(tick).collect();
        canvas.vertical(&y, &ticks, self.label);
        let room = (WIDTH - RIGHT - LEFT) / f64::from(last - first + 1);
        let x = Scale::across((first.into(), last.into()), room / 2.0);
        let width = f64::min(room * (1.0 - GAP), 2.0 * WIDEST);
        for (round, parts) in &self.rounds {
            let left = x.at((*round).into()) - width / 2.0;
            self.draw_stack(
                &mut canvas,
                &Columns { left, width, y },
                (*round, parts),
                decimals + 2,
            );
        }
        canvas.horizontal(y.from, &svg::round_ticks(&x), "round");
        Some(canvas.finish(self.slug, self.description, y.from + BOTTOM))
    }

    /// Returns the height of the highest stack, if any has one.
    fn highest(&self) -> Option<f64> {
        let totals = self
            .rounds
            .iter()
            .map(|(_, parts)| parts.iter().copied().filter_map(known).sum::<f64>());
        totals.reduce(f64::max).filter(|highest| *highest > 0.0)
    }

    /// Returns the legend: each part that is drawn, with its share of the whole.
    fn entries(&self) -> Vec<(Sample, String)> {
        let total = |part: usize| -> f64 {
            self.rounds
                .iter()
                .filter_map(|(_, parts)| known(parts.get(part).copied()))
                .sum()
        };
        let all: f64 = (0..self.names.len()).map(total).sum();
        let entry = |(part, name): (usize, &&str)| match total(part) / all {
            share if share < NOISE => None,
            share if share < 0.0005 => Some((Sample::Fill(part), format!("{name} <0.1 %"))),
            share => Some((Sample::Fill(part), format!("{name} {:.1} %", 100.0 * share))),
        };
        self.names.iter().enumerate().filter_map(entry).collect()
    }

    /// Draws the parts of a round upon each other, each labelled with so many decimals.
    fn draw_stack(
        &self,
        canvas: &mut Canvas,
        columns: &Columns,
        (round, parts): (u32, &[f64]),
        decimals: usize,
    ) {
        let Columns { left, width, y } = columns;
        let mut below = 0.0;
        for (part, value) in parts.iter().copied().enumerate() {
            let Some(value) = known(value).filter(|value| *value > 0.0) else {
                continue;
            };
            let (name, text) = (self.names[part], (self.unit)(value, decimals));
            let label = format!("round {round}, {name}: {text}");
            let (top, bottom) = (y.at(below + value), y.at(below));
            let class = format!("class=\"{}\"", svg::fill(part));
            canvas.labelled((*left, top), (*width, bottom - top), &class, &label);
            below += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_number_has_no_bar() {
        let groups = vec![
            ("1", vec![Some(0.5), None]),
            ("2", vec![Some(0.25), Some(f64::NAN)]),
        ];
        let (title, description, slug) = ("t", "d", "s");
        let plot = Groups {
            title,
            description,
            slug,
            names: vec!["own", "served"],
            baseline: 0,
            groups,
        };
        let text = plot.draw().unwrap().inline();
        assert_eq!(text.matches("<title>node ").count(), 2, "{text}");
        assert!(
            text.contains("node 1, own: 50.0 %") && !text.contains("NaN"),
            "{text}"
        );
        assert!(
            Groups {
                groups: vec![],
                ..plot
            }
            .draw()
            .is_none()
        );
    }

    #[test]
    fn parts_stand_upon_each_other() {
        let rounds = vec![(1, vec![1.0, 3.0]), (2, vec![2.0, 2.0])];
        let (title, description, slug, label) = ("t", "d", "s", "seconds");
        let unit = |value, decimals| format!("{value:.decimals$} s");
        let plot = Stacks {
            title,
            description,
            slug,
            label,
            unit,
            names: vec!["a", "b"],
            rounds,
        };
        let text = plot.draw().unwrap().inline();
        assert_eq!(text.matches("<title>round ").count(), 4);
        assert!(
            text.contains(">a 37.5 %<") && text.contains(">b 62.5 %<"),
            "shares of the whole: {text}"
        );
        // Both rounds reach the top of the axis, at 4.
        assert!(
            text.contains("height=\"172.50\"") && text.contains("height=\"57.50\""),
            "{text}"
        );
        assert!(
            Stacks {
                rounds: vec![(1, vec![0.0, 0.0])],
                ..plot
            }
            .draw()
            .is_none()
        );
    }
}
