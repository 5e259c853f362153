//! Heat maps: one row per node, one column per module or expert, colour by value.

use super::svg::{self, Anchor, Canvas, LEFT, Plot, RIGHT, WIDTH};
use super::words::{ABSENT, escape, known};

/// Colours from the least value to the greatest: viridis, whose order is visible in grey and to the colour-blind.
const RAMP: [[u8; 3]; 9] = [
    [68, 1, 84],
    [71, 44, 122],
    [59, 81, 139],
    [44, 113, 142],
    [33, 144, 141],
    [39, 173, 129],
    [92, 200, 99],
    [170, 220, 50],
    [253, 231, 37],
];
/// Largest and smallest height of a row.
const ROW: (f64, f64) = (28.0, 5.0);
/// Number of rows that fit before rows become thinner than the first of [`ROW`].
const TALLEST: f64 = 620.0;
/// Room for the scale at the right.
const SCALE: f64 = 92.0;
/// Least width of a cell whose value is written into it.
const WRITTEN: (f64, f64) = (36.0, 16.0);

/// A table of values in colours.
#[derive(Debug)]
pub(crate) struct Heat<'a> {
    /// Heading.
    pub(crate) title: &'a str,
    /// A description in words.
    pub(crate) description: &'a str,
    /// The name as part of a file name.
    pub(crate) slug: &'a str,
    /// Label of the columns.
    pub(crate) columns_label: &'a str,
    /// Names of the columns.
    pub(crate) columns: Vec<String>,
    /// Each row's name and cells.
    pub(crate) rows: Vec<(String, Vec<Cell>)>,
    /// The range of the colours; `None` for the range of the values.
    pub(crate) range: Option<(f64, f64)>,
    /// How values are written.
    pub(crate) unit: Unit,
}

/// The unit of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Shares of 1, shown as per cent.
    Share,
    /// Numbers, with as many decimals as tell them apart.
    Score,
}

/// The values that a heat map's colours stand for.
#[derive(Debug, Clone, Copy)]
struct Range {
    low: f64,
    high: f64,
    /// Nothing: shares, as per cent.
    decimals: Option<usize>,
}

impl Range {
    fn colour(&self, value: f64) -> [u8; 3] {
        colour(if self.high > self.low {
            (value - self.low) / (self.high - self.low)
        } else {
            0.5
        })
    }

    /// Returns the shade in which a text is read on the colour of a value.
    fn shade(&self, value: f64) -> &'static str {
        if is_light(self.colour(value)) {
            "#111"
        } else {
            "#fff"
        }
    }

    fn text(&self, value: f64) -> String {
        self.decimals
            .map_or_else(|| share(value), |decimals| format!("{value:.decimals$}"))
    }
}

/// One cell of a heat map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell {
    /// Nothing is known.
    Absent,
    /// A value.
    Value(f64),
    /// A value of something that was left out.
    LeftOut(f64),
    /// The row's own column, for which there is no value.
    Own,
}

impl Cell {
    fn value(self) -> Option<f64> {
        match self {
            Self::Value(value) | Self::LeftOut(value) => known(value),
            Self::Absent | Self::Own => None,
        }
    }
}

impl Heat<'_> {
    /// Draws the map. Returns `None` without a value.
    pub(crate) fn draw(&self) -> Option<Plot> {
        let range = self.range()?;
        let width = (WIDTH - RIGHT - SCALE - LEFT) / self.columns.len().max(1) as f64;
        let width = width.min(96.0);
        let height = (TALLEST / self.rows.len().max(1) as f64).clamp(ROW.1, ROW.0);
        let mut canvas = Canvas::new(self.title);
        canvas.top += 20.0;
        let top = canvas.top;
        let step = (f64::ceil(26.0 / width) as usize).max(1);
        for (at, name) in self.columns.iter().enumerate().step_by(step) {
            canvas.text(
                (LEFT + (at as f64 + 0.5) * width, top - 6.0),
                Anchor::Middle,
                "soft",
                name,
            );
        }
        let labelled = (f64::ceil(13.0 / height) as usize).max(1);
        for (row, (name, cells)) in self.rows.iter().enumerate() {
            let y = top + row as f64 * height;
            if row % labelled == 0 {
                canvas.text(
                    (LEFT - 8.0, y + height / 2.0 + 4.5),
                    Anchor::End,
                    "soft",
                    name,
                );
            }
            for (column, cell) in cells.iter().enumerate() {
                let corner = (LEFT + column as f64 * width, y);
                let column = self.columns.get(column).map_or("", String::as_str);
                let name = format!("node {name}, {} {column}", self.columns_label);
                draw_cell(&mut canvas, *cell, (corner, (width, height)), range, &name);
            }
        }
        let bottom = top + self.rows.len() as f64 * height;
        canvas.upright((16.0, f64::midpoint(top, bottom)), "node");
        let middle = LEFT + self.columns.len() as f64 * width / 2.0;
        canvas.text(
            (middle, bottom + 18.0),
            Anchor::Middle,
            "soft",
            self.columns_label,
        );
        let scale_height = (bottom - top).max(90.0);
        draw_scale(
            &mut canvas,
            (LEFT + self.columns.len() as f64 * width + 22.0, top),
            scale_height,
            range,
        );
        Some(canvas.finish(self.slug, self.description, top + scale_height + 30.0))
    }

    fn range(&self) -> Option<Range> {
        let values = || {
            self.rows
                .iter()
                .flat_map(|(_, cells)| cells)
                .filter_map(|cell| cell.value())
        };
        let found = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        let (low, high) = self.range.unwrap_or(found);
        let decimals = match self.unit {
            Unit::Share => None,
            Unit::Score => Some(svg::decimals((high - low) / 20.0).clamp(2, 5)),
        };
        Some(Range {
            low,
            high,
            decimals,
        })
    }
}

/// Draws a cell: its colour, its tooltip and, where there is room, its value.
fn draw_cell(
    canvas: &mut Canvas,
    cell: Cell,
    ((x, y), (width, height)): ((f64, f64), (f64, f64)),
    range: Range,
    name: &str,
) {
    let size = ((width - 1.0).max(1.0), (height - 1.0).max(1.0));
    let (paint, label) = match (cell, cell.value()) {
        (Cell::Own, _) => ("class=\"void\"".to_owned(), "its own".to_owned()),
        (_, None) => ("class=\"void\"".to_owned(), ABSENT.to_owned()),
        (cell, Some(value)) => {
            let left_out = if matches!(cell, Cell::LeftOut(_)) {
                ", left out"
            } else {
                ""
            };
            (
                format!("fill=\"{}\"", hex(range.colour(value))),
                format!("{}{left_out}", range.text(value)),
            )
        }
    };
    canvas.labelled((x, y), size, &paint, &format!("{name}: {label}"));
    let is_written = width >= WRITTEN.0 && height >= WRITTEN.1;
    let middle = (x + size.0 / 2.0, y + size.1 / 2.0 + 4.5);
    match cell.value() {
        Some(value) if is_written => {
            let (shade, text, (x, y)) = (range.shade(value), escape(&range.text(value)), middle);
            canvas.add(format_args!(
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"{shade}\">{text}</text>"
            ));
        }
        None if is_written => {
            let text = if cell == Cell::Own { "own" } else { ABSENT };
            canvas.text(middle, Anchor::Middle, "soft", text);
        }
        _ => {}
    }
    if let (Cell::LeftOut(_), Some(value)) = (cell, cell.value()) {
        let (shade, right, bottom) = (range.shade(value), x + size.0, y + size.1);
        let (x, y) = (
            right - f64::min(14.0, size.0),
            bottom - f64::min(14.0, size.1),
        );
        canvas.add(format_args!(
            "<path d=\"M{x:.1} {bottom:.1}L{right:.1} {y:.1}\" stroke=\"{shade}\" stroke-width=\"1.4\"/>"
        ));
    }
}

/// Draws the scale from colours to values.
fn draw_scale(canvas: &mut Canvas, (x, top): (f64, f64), height: f64, range: Range) {
    const STEPS: usize = 32;
    let height = height.min(260.0);
    let step = height / STEPS as f64;
    for at in 0..STEPS {
        let paint = format!(
            "fill=\"{}\"",
            hex(colour(1.0 - (at as f64 + 0.5) / STEPS as f64))
        );
        let (y, thickness) = (top + at as f64 * step, step + 0.3);
        canvas.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.2}\" width=\"14\" height=\"{thickness:.2}\" {paint}/>"
        ));
    }
    let marks: &[f64] = if range.high > range.low {
        &[0.0, 0.5, 1.0]
    } else {
        &[0.5]
    };
    for share in marks {
        let text = range.text(range.low + share * (range.high - range.low));
        canvas.text(
            (x + 20.0, top + (1.0 - share) * height + 4.5),
            Anchor::Start,
            "soft",
            &text,
        );
    }
}

/// Returns the colour at a share of the ramp.
fn colour(share: f64) -> [u8; 3] {
    let position = share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let at = (position.floor() as usize).min(RAMP.len() - 2);
    let between = position - at as f64;
    let mix = |channel: usize| {
        let (from, to) = (
            f64::from(RAMP[at][channel]),
            f64::from(RAMP[at + 1][channel]),
        );
        (from + between * (to - from)).round() as u8
    };
    [mix(0), mix(1), mix(2)]
}

fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Tells whether dark text is easier to read on a colour than light text (relative luminance, roughly).
fn is_light([red, green, blue]: [u8; 3]) -> bool {
    0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue) > 120.0
}

/// Writes a share as whole per cent. A share below one per cent is written as such.
fn share(value: f64) -> String {
    match 100.0 * value {
        percent if percent > 0.0 && percent < 0.5 => "<1".into(),
        percent => format!("{percent:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_say_their_values_or_that_there_is_none() {
        let rows = vec![
            (
                "1".to_owned(),
                vec![Cell::Own, Cell::Value(0.25), Cell::Absent],
            ),
            (
                "2".to_owned(),
                vec![Cell::LeftOut(1.0), Cell::Own, Cell::Value(f64::NAN)],
            ),
        ];
        let columns = ["1", "2", "3"].map(str::to_owned).to_vec();
        let (title, description, slug, columns_label) = ("t", "d", "s", "module of");
        let heat = Heat {
            title,
            description,
            slug,
            columns_label,
            columns,
            rows,
            range: None,
            unit: Unit::Share,
        };
        let text = heat.draw().unwrap().inline();
        assert!(
            text.contains("node 1, module of 2: 25")
                && text.contains("node 2, module of 1: 100, left out"),
            "{text}"
        );
        assert_eq!(text.matches(": –<").count(), 2, "{text}");
        assert!(!text.contains("NaN"), "{text}");
        assert!(
            Heat {
                rows: vec![("1".into(), vec![Cell::Own])],
                ..heat
            }
            .draw()
            .is_none()
        );
    }

    #[test]
    fn the_ramp_ends_where_it_should() {
        assert_eq!(
            [colour(0.0), colour(1.0), colour(f64::MAX)],
            [RAMP[0], RAMP[8], RAMP[8]]
        );
        assert_eq!(hex(colour(0.5)), "#21908d");
        assert!(is_light(colour(1.0)) && !is_light(colour(0.0)));
        assert_eq!([share(0.0), share(0.003), share(0.256)], ["0", "<1", "26"]);
    }
}
