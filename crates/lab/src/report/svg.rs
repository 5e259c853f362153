//! Plots as SVG, written by hand: a canvas, axes with round ticks, a legend, colours.
//!
//! The crate `plotters` was weighed. It measures text by `font-kit`, which brings fontconfig and freetype. Its SVG holds
//! colours where this one holds classes, and classes let one plot be read in light and dark mode. A report needs only lines,
//! boxes and text.
//!
//! Colours are those of Okabe and Ito, which the colour-blind tell apart. Lines differ by dashes too. Nothing is fetched and
//! no script runs. Each plot describes itself in words (`title`, `desc`).

use std::fmt::Write;

use super::words::escape;

/// Width of every plot, in its own units.
pub(crate) const WIDTH: f64 = 960.0;
/// How many colours there are.
pub(crate) const COLOURS: usize = 8;
/// Average width of a character at the size in which plots are written.
const CHARACTER: f64 = 6.6;
/// Height of a line of legend.
const LEGEND_LINE: f64 = 20.0;
/// Room left of the plotted area, for the labels of the vertical axis.
pub(crate) const LEFT: f64 = 72.0;
/// Room right of it.
pub(crate) const RIGHT: f64 = 20.0;
/// Room for a plot's title.
const TITLE: f64 = 30.0;
/// Room below, for the labels of the horizontal axis.
pub(crate) const BOTTOM: f64 = 46.0;

/// The style that all plots share: in the head of a page, or in each file of its own.
pub(crate) const STYLE: &str = "\
.plot{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12.5px}
.plot .paper{fill:#fff}
.plot .ink{fill:#1f2328}.plot .soft{fill:#59636e}.plot .title{fill:#1f2328;font-size:15px;font-weight:600}
.plot .grid{stroke:#d8dee4;fill:none}.plot .axis{stroke:#59636e;fill:none}
.plot .void{fill:#eceff2;stroke:#c4ccd4}
.plot .own{stroke:#1f2328;stroke-width:2;fill:none}
.plot .line{fill:none;stroke-width:2.2;stroke-linejoin:round}.plot .dash{stroke-dasharray:6 4}
.plot .far{opacity:.16}.plot .near{opacity:.34}
.plot .f0{fill:#0072b2}.plot .f1{fill:#e69f00}.plot .f2{fill:#009e73}.plot .f3{fill:#d55e00}
.plot .f4{fill:#cc79a7}.plot .f5{fill:#56b4e9}.plot .f6{fill:#b8ab22}.plot .f7{fill:#8b949e}
.plot .s0{stroke:#0072b2}.plot .s1{stroke:#e69f00}.plot .s2{stroke:#009e73}.plot .s3{stroke:#d55e00}
.plot .s4{stroke:#cc79a7}.plot .s5{stroke:#56b4e9}.plot .s6{stroke:#b8ab22}.plot .s7{stroke:#8b949e}
@media screen and (prefers-color-scheme:dark){
.plot .paper{fill:#0d1117}
.plot .ink,.plot .title{fill:#e6edf3}.plot .soft{fill:#9aa4af}
.plot .grid{stroke:#2a313a}.plot .axis{stroke:#9aa4af}.plot .own{stroke:#fff}
.plot .void{fill:#1b2129;stroke:#3a434d}
.plot .f0{fill:#2d84c8}.plot .s0{stroke:#2d84c8}.plot .f5{fill:#a5dcff}.plot .s5{stroke:#a5dcff}
.plot .f6{fill:#f0e442}.plot .s6{stroke:#f0e442}
.plot .far{opacity:.22}.plot .near{opacity:.42}}
";

/// A finished plot.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    /// The name as part of a file name.
    pub(crate) slug: String,
    /// A description in words, which is also the caption.
    pub(crate) description: String,
    title: String,
    height: f64,
    body: String,
}

impl Plot {
    /// Returns it for a page that has the style.
    pub(crate) fn inline(&self) -> String {
        self.svg("")
    }

    /// Returns it as a file of its own.
    pub(crate) fn standalone(&self) -> String {
        let (width, height) = (WIDTH, self.height);
        let paper = format!(
            "<style>{STYLE}</style><rect class=\"paper\" width=\"{width}\" height=\"{height:.0}\"/>"
        );
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n",
            self.svg(&paper)
        )
    }

    fn svg(&self, first: &str) -> String {
        let (height, title, body) = (self.height, escape(&self.title), &self.body);
        format!(
            "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
             aria-label=\"{title}\"><title>{title}</title><desc>{}</desc>{first}{body}</svg>",
            escape(&self.description)
        )
    }
}

/// Where a text stands relative to its point.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    /// It begins there.
    Start,
    /// It is centred there.
    Middle,
    /// It ends there.
    End,
}

/// How an entry of a legend looks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sample {
    /// A filled square of a colour.
    Fill(usize),
    /// A fainter one, by class.
    Faint(usize, &'static str),
    /// A line.
    Line(usize),
    /// A dashed line.
    Dashed(usize),
    /// The mark of the baseline.
    Baseline,
}

/// A plot being drawn.
#[derive(Debug)]
pub(crate) struct Canvas {
    title: String,
    body: String,
    /// The upper edge of the free area, below title and legend.
    pub(crate) top: f64,
}

impl Canvas {
    /// Begins a plot.
    pub(crate) fn new(title: &str) -> Self {
        let mut canvas = Self {
            title: title.to_owned(),
            body: String::new(),
            top: TITLE,
        };
        canvas.text((LEFT, 19.0), Anchor::Start, "title", title);
        canvas
    }

    /// Ends a plot.
    pub(crate) fn finish(self, slug: &str, description: &str, height: f64) -> Plot {
        let (slug, description) = (slug.to_owned(), description.to_owned());
        Plot {
            slug,
            description,
            title: self.title,
            height,
            body: self.body,
        }
    }

    /// Writes the legend, in as many lines as it needs.
    pub(crate) fn legend(&mut self, entries: &[(Sample, &str)]) {
        let mut x = LEFT;
        for (sample, name) in entries {
            let width = 30.0 + name.chars().count() as f64 * CHARACTER + 18.0;
            if x > LEFT && x + width > WIDTH - RIGHT {
                x = LEFT;
                self.top += LEGEND_LINE;
            }
            self.sample(*sample, (x, self.top + 8.0));
            self.text((x + 30.0, self.top + 12.5), Anchor::Start, "ink", name);
            x += width;
        }
        self.top += LEGEND_LINE + 6.0;
    }

    fn sample(&mut self, sample: Sample, (x, y): (f64, f64)) {
        match sample {
            Sample::Fill(colour) => self.rect((x + 6.0, y - 6.0), (12.0, 12.0), &fill(colour)),
            Sample::Faint(colour, class) => {
                self.rect(
                    (x + 2.0, y - 6.0),
                    (20.0, 12.0),
                    &format!("{} {class}", fill(colour)),
                );
            }
            Sample::Line(colour) => self.line((x, y), (x + 24.0, y), &stroke(colour)),
            Sample::Dashed(colour) => {
                self.line((x, y), (x + 24.0, y), &format!("{} dash", stroke(colour)))
            }
            Sample::Baseline => self.line((x + 2.0, y), (x + 22.0, y), "own"),
        }
    }

    /// Writes a text.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// Writes a text upwards, centred on a point.
    pub(crate) fn upright(&mut self, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        self.add(format_args!(
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\" class=\"soft\">{text}</text>"
        ));
    }

    /// Draws a line.
    pub(crate) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        ));
    }

    /// Draws a line through points.
    pub(crate) fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let points = coordinates(points.iter().copied());
        self.add(format_args!(
            "<polyline points=\"{points}\" class=\"{class}\"/>"
        ));
    }

    /// Fills what lies between points.
    pub(crate) fn area(&mut self, points: impl Iterator<Item = (f64, f64)>, class: &str) {
        let points = coordinates(points);
        self.add(format_args!(
            "<polygon points=\"{points}\" class=\"{class}\"/>"
        ));
    }

    /// Draws a dot.
    pub(crate) fn dot(&mut self, (x, y): (f64, f64), class: &str) {
        self.add(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" class=\"{class}\"/>"
        ));
    }

    /// Fills a rectangle.
    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" class=\"{class}\"/>"
        ));
    }

    /// Fills a rectangle with a tooltip. `paint` is an attribute: a class or a fill.
    pub(crate) fn labelled(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        paint: &str,
        label: &str,
    ) {
        let label = escape(label);
        self.add(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" {paint}><title>{label}</title></rect>"
        ));
    }

    /// Writes markup that is known to be sound.
    pub(crate) fn add(&mut self, markup: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(markup);
    }

    /// Returns the vertical scale of a plotted area of this height, which begins below title and legend.
    pub(crate) const fn upwards(&self, (low, high): (f64, f64), height: f64) -> Scale {
        Scale {
            low,
            high,
            from: self.top + height,
            to: self.top,
        }
    }

    /// Draws grid, ticks and label of a vertical axis.
    pub(crate) fn vertical(&mut self, scale: &Scale, ticks: &[(f64, String)], label: &str) {
        for (value, text) in ticks {
            let y = scale.at(*value);
            self.line((LEFT, y), (WIDTH - RIGHT, y), "grid");
            self.text((LEFT - 8.0, y + 4.5), Anchor::End, "soft", text);
        }
        self.line((LEFT, scale.from), (LEFT, scale.to), "axis");
        self.upright((16.0, f64::midpoint(scale.from, scale.to)), label);
    }

    /// Draws ticks and label of a horizontal axis at a height.
    pub(crate) fn horizontal(&mut self, y: f64, ticks: &[(f64, String)], label: &str) {
        self.line((LEFT, y), (WIDTH - RIGHT, y), "axis");
        for (x, text) in ticks {
            self.line((*x, y), (*x, y + 5.0), "axis");
            self.text((*x, y + 19.0), Anchor::Middle, "soft", text);
        }
        self.text(
            (f64::midpoint(LEFT, WIDTH - RIGHT), y + 38.0),
            Anchor::Middle,
            "soft",
            label,
        );
    }
}

fn coordinates(points: impl Iterator<Item = (f64, f64)>) -> String {
    points
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the class of an area of a colour.
pub(crate) fn fill(colour: usize) -> String {
    format!("f{}", colour % COLOURS)
}

/// Returns the classes of a line of a colour.
pub(crate) fn stroke(colour: usize) -> String {
    format!("line s{}", colour % COLOURS)
}

/// Where values lie on an axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// The value at `from`.
    pub(crate) low: f64,
    /// The value at `to`.
    pub(crate) high: f64,
    /// Where the axis begins.
    pub(crate) from: f64,
    /// Where it ends.
    pub(crate) to: f64,
}

impl Scale {
    /// Returns the horizontal scale of a plotted area that keeps this margin on both sides.
    pub(crate) const fn across((low, high): (f64, f64), margin: f64) -> Self {
        Self {
            low,
            high,
            from: LEFT + margin,
            to: WIDTH - RIGHT - margin,
        }
    }

    /// Returns the position of a value: on an axis of one value, the middle.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let span = self.high - self.low;
        let share = if span > 0.0 {
            (value - self.low) / span
        } else {
            0.5
        };
        self.from + share * (self.to - self.from)
    }
}

/// Returns round values within a range, about as many as wanted, and the distance between them.
///
/// The distance is 1, 2 or 5 times a power of ten.
pub(crate) fn ticks(low: f64, high: f64, wanted: usize) -> (Vec<f64>, f64) {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return (vec![low], 1.0);
    }
    let rough = span / wanted.max(1) as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step = power
        * [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .find(|step| step * power >= rough * 0.999)
            .unwrap_or(10.0);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    ((first..=last).map(|at| at as f64 * step).collect(), step)
}

/// Returns the smallest range between round values that holds a range.
pub(crate) fn rounded(low: f64, high: f64, wanted: usize) -> (f64, f64) {
    let (_, step) = ticks(low, high, wanted);
    (
        (low / step + 1e-9).floor() * step,
        (high / step - 1e-9).ceil() * step,
    )
}

/// Returns how many decimals tell values at this distance apart.
pub(crate) fn decimals(step: f64) -> usize {
    if step > 0.0 && step.is_finite() {
        (-(step + step * 1e-9).log10().floor()).clamp(0.0, 9.0) as usize
    } else {
        0
    }
}

/// Returns ticks for rounds, which are whole.
pub(crate) fn round_ticks(scale: &Scale) -> Vec<(f64, String)> {
    let (values, _) = ticks(scale.low, scale.high, 12);
    let whole = values
        .into_iter()
        .filter(|value| value.fract().abs() < 1e-9);
    whole
        .map(|value| (scale.at(value), format!("{value:.0}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_ticks((low, high, wanted): (f64, f64, usize), want: &[f64]) {
        let (got, step) = ticks(low, high, wanted);
        let text = |values: &[f64]| {
            values
                .iter()
                .map(|v| format!("{v:.*}", decimals(step)))
                .collect::<Vec<_>>()
        };
        assert_eq!(text(&got), text(want), "{got:?}");
    }

    #[test]
    fn ticks_are_round_and_within() {
        assert_ticks((0.0, 1.0, 5), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_ticks((0.13, 0.87, 4), &[0.2, 0.4, 0.6, 0.8]);
        assert_ticks(
            (1.0, 20.0, 10),
            &[2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0],
        );
        assert_ticks((-0.03, 0.04, 5), &[-0.02, 0.0, 0.02, 0.04]);
        assert_ticks((2.301, 2.318, 5), &[2.305, 2.31, 2.315]);
        assert_eq!(ticks(3.0, 3.0, 5).0, [3.0]);
        assert_eq!(ticks(0.0, f64::INFINITY, 5).0, [0.0]);
    }

    #[test]
    fn ranges_grow_to_round_values() {
        let (low, high) = rounded(0.13, 0.87, 4);
        assert!(
            (low - 0.0).abs() < 1e-9 && (high - 1.0).abs() < 1e-9,
            "{low} {high}"
        );
        assert_eq!(
            [1.0, 0.5, 0.2, 0.1, 0.05, 20.0, 0.001].map(decimals),
            [0, 1, 1, 1, 2, 0, 3]
        );
    }

    #[test]
    fn a_plot_says_what_it_shows_and_escapes_it() {
        let mut canvas = Canvas::new("a < b");
        canvas.legend(&[(Sample::Line(0), "own & other")]);
        let plot = canvas.finish("x", "median of \"all\"", 100.0);
        let text = plot.standalone();
        assert!(
            text.contains("<title>a &lt; b</title><desc>median of &quot;all&quot;</desc>"),
            "{text}"
        );
        assert!(
            text.contains("own &amp; other") && text.contains("prefers-color-scheme"),
            "{text}"
        );
        assert!(!plot.inline().contains("<style>"));
    }
}
