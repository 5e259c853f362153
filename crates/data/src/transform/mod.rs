//! Changes of a division, written behind it with `+`: one file per transform, one table that lists them all.
//!
//! ```text
//! "iid+renamed:4:2+sizes:10"
//!   └ rule   └ labels   └ lists
//!
//! lists of all nodes ── change_lists ─► shorter or other lists                 sizes, cut
//! samples of a node ─── deal a domain to each ─► change_image, change_label    rotated, renamed, flipped, contrast, blur, drift
//! ```
//!
//! A transform of lists works before any sample is read. A transform of samples has *domains*, for example four
//! rotations. Each sample of a node belongs to one of them and is changed as that domain says. Training, validation and
//! test samples are changed alike.
//!
//! Node `i` holds the domains `i mod D`, `i + 1 mod D` and so on, as many as the transform says, in equal shares. Which
//! sample gets which is drawn by the federation's seed, apart for the node's training and its test list. So a node needs
//! nothing but its own lists to know its domains.
//!
//! Transforms work from left to right. A sample that is changed by several has one domain number for their combination:
//! `(d1 * D2 + d2) * D3 + d3` and so on. [`crate::Samples::domains`] keeps it, for whoever asks whether a gate found them.
//!
//! What a transform must never do: look at another node's samples, draw without the seed, or change a sample by round.
//! `drift` keeps two states of a training sample; which one counts in a round is for [`crate::Samples::in_round`] to say.

mod blur;
mod contrast;
mod cut;
mod domains;
mod drift;
mod flipped;
mod image;
mod renamed;
mod rotated;
mod sizes;

use std::fmt;

use domains::Domains;
use image::Image;

use crate::error::{DataError, TextError};
use crate::partition::NodeIndices;
use crate::samples::{Drift, Pixels, Samples};
use crate::source::Facts;
use fednode_core::random::Dice;

/// Stands before each transform.
const PLUS: char = '+';
/// Most combinations of domains: their number is a `u16`.
const MOST_DOMAINS: u64 = 1 << 16;
/// Most levels of a shift of features; more could not be told apart.
const MOST_LEVELS: u16 = 16;

/// A row of the table of transforms.
#[derive(Debug)]
pub struct Kind {
    /// The word before the first colon.
    pub name: &'static str,
    /// How it is written.
    pub form: &'static str,
    /// What its arguments may be.
    pub bounds: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    parse: fn(&[&str]) -> Option<Box<dyn Change>>,
}

/// All transforms.
pub const KINDS: [Kind; 8] = [
    rotated::KIND,
    renamed::KIND,
    flipped::KIND,
    contrast::KIND,
    blur::KIND,
    drift::KIND,
    sizes::KIND,
    cut::KIND,
];

/// What a transform may want to know of the data before it changes any sample.
#[derive(Debug)]
struct Nature {
    /// What a sample is.
    facts: Facts,
    /// Channels, height and width of one sample.
    shape: [usize; 3],
    /// Number of classes.
    classes: usize,
}

impl Nature {
    /// Refuses what is no image; `what` is what a transform does with one.
    fn need_images(&self, what: &str) -> Result<(), String> {
        match self.facts {
            Facts::Images => Ok(()),
            Facts::Table { .. } => Err(format!("it {what} images, and the data are a table")),
            Facts::Text { .. } => Err(format!("it {what} images, and the data are texts")),
        }
    }

    /// Refuses images that a quarter turn would give another shape.
    fn need_squares(&self) -> Result<(), String> {
        let [_, height, width] = self.shape;
        if height == width {
            return Ok(());
        }
        Err(format!(
            "quarter turns need square images, and these have {height}x{width} pixels"
        ))
    }
}

/// What a transform changes; every method but the first changes nothing unless it is given.
trait Change: fmt::Debug + Send + Sync {
    /// Says why it cannot change data of this nature.
    fn check(&self, nature: &Nature) -> Result<(), String>;

    /// Returns how its domains lie over the nodes.
    fn domains(&self) -> Domains {
        Domains::ONE
    }

    /// Tells whether training samples leave domain 0 for domain 1 as the rounds go by.
    fn drifts(&self) -> bool {
        false
    }

    /// Changes the lists of all nodes.
    fn change_lists(&self, _nodes: &mut [NodeIndices], _seed: u64) {}

    /// Changes an image of this domain.
    fn change_image(&self, _domain: u16, _image: &mut Image<'_>) {}

    /// Returns what the samples of this domain call a class.
    fn change_label(&self, _domain: u16, label: u16, _classes: usize) -> u16 {
        label
    }
}

/// One transform as the user writes it.
#[derive(Debug)]
struct Link {
    text: String,
    change: Box<dyn Change>,
}

/// The transforms behind a rule, in their order; often none.
#[derive(Debug, Default)]
pub(crate) struct Transforms {
    links: Vec<Link>,
}

/// The lists of a node: their samples get their domains apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// What it trains and validates on.
    Train,
    /// What it is tested on.
    Test,
}

/// Which state of a drifting sample is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Time {
    /// That of the first round.
    Early,
    /// That of the last round.
    Late,
}

impl Transforms {
    /// Takes the transforms off the end of a partition's text; returns what stands before them too.
    ///
    /// The path of `file:PATH` may hold a `+`, so only known names are transforms there. So may a number as `1e+3`.
    ///
    /// # Errors
    /// Names the first transform that is unknown or has wrong arguments, and what is possible.
    pub(crate) fn take_off(text: &str) -> Result<(&str, Self), DataError> {
        let is_path = text.starts_with("file:");
        let (mut base, mut found) = (text, Vec::new());
        while let Some((before, last)) = base.rsplit_once(PLUS) {
            let is_transform = if is_path {
                kind_of(last).is_some()
            } else {
                !last.starts_with(|first: char| first.is_ascii_digit())
            };
            if !is_transform {
                break;
            }
            found.push(last);
            base = before;
        }
        let links = found
            .into_iter()
            .rev()
            .map(|link| parse(link).map_err(|cause| wrong(text, cause)));
        let transforms = Self {
            links: links.collect::<Result<_, _>>()?,
        };
        transforms
            .check_numbers()
            .map_err(|cause| wrong(text, cause))?;
        Ok((base, transforms))
    }

    /// Tells whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Refuses data that a transform cannot change.
    ///
    /// # Errors
    /// Names the transform and the reason.
    pub(crate) fn check(
        &self,
        facts: Facts,
        shape: [usize; 3],
        classes: usize,
    ) -> Result<(), DataError> {
        let nature = Nature {
            facts,
            shape,
            classes,
        };
        for Link { text, change } in &self.links {
            change
                .check(&nature)
                .map_err(|cause| DataError::Transform {
                    transform: text.clone(),
                    cause,
                })?;
        }
        Ok(())
    }

    /// Changes the lists of all nodes.
    pub(crate) fn change_lists(&self, nodes: &mut [NodeIndices], seed: u64) {
        for Link { change, .. } in &self.links {
            change.change_lists(nodes, seed);
        }
    }

    /// Deals domains to the samples of a node's list, which is ascending.
    pub(crate) fn deal<'a>(
        &'a self,
        seed: u64,
        node: usize,
        part: Part,
        list: &'a [u32],
    ) -> Dealt<'a> {
        let name = match part {
            Part::Train => "training",
            Part::Test => "test",
        };
        let dice = |at: usize| {
            let purpose = format!("domains of transform {at}, {name} samples");
            Dice::new(&purpose, seed, node as u64)
        };
        let domains = (0..).zip(&self.links).map(|(at, Link { change, .. })| {
            if change.drifts() {
                vec![1; list.len()]
            } else {
                change.domains().deal(node, list.len(), &mut dice(at))
            }
        });
        let drifting = self.links.iter().position(|link| link.change.drifts());
        let drifting = drifting.filter(|_| part == Part::Train);
        Dealt {
            transforms: self,
            list,
            domains: domains.collect(),
            drifting: drifting.map(|link| Drifting {
                link,
                starts: drift::starts(list.len(), &mut dice(link)),
            }),
        }
    }

    /// Refuses more domains than a number has room for, and two drifts.
    fn check_numbers(&self) -> Result<(), String> {
        let of = self.links.iter().map(|link| link.change.domains());
        let combinations = of.fold(1, |product: u64, domains| {
            product.saturating_mul(domains.count().into())
        });
        if combinations > MOST_DOMAINS {
            return Err(format!(
                "its transforms make {combinations} domains, at most {MOST_DOMAINS} can be told apart"
            ));
        }
        if self
            .links
            .iter()
            .filter(|link| link.change.drifts())
            .count()
            > 1
        {
            return Err("there can be one drift only".into());
        }
        Ok(())
    }
}

impl fmt::Display for Transforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.links
            .iter()
            .try_for_each(|link| write!(f, "{PLUS}{}", link.text))
    }
}

/// What the transforms make of the samples of one list of a node.
#[derive(Debug)]
pub(crate) struct Dealt<'a> {
    transforms: &'a Transforms,
    /// The node's list, ascending.
    list: &'a [u32],
    /// For each transform the domain of each sample of the list; of a drift the late one.
    domains: Vec<Vec<u16>>,
    drifting: Option<Drifting>,
}

/// When the samples of a list drift.
#[derive(Debug)]
struct Drifting {
    /// The place of the drift among the transforms.
    link: usize,
    /// For each sample of the list the share of the run after which it is late.
    starts: Vec<f64>,
}

impl Dealt<'_> {
    /// Changes samples that stand for the indices `wanted` of the list. In `samples` they begin at `from`.
    pub(crate) fn change(&self, wanted: &[u32], samples: &mut Samples, from: usize) {
        self.change_at(Time::Late, wanted, samples, from);
    }

    /// Changes all of these training samples, which stand for `wanted`, and lets them drift if they are to.
    pub(crate) fn change_training(&self, wanted: &[u32], samples: &mut Samples) {
        let drift = self.drifting.as_ref().map(|Drifting { starts, .. }| {
            let mut early = samples.clone();
            self.change_at(Time::Early, wanted, &mut early, 0);
            let starts = wanted.iter().map(|index| starts[self.place(*index)]);
            Drift::new(early, starts.collect())
        });
        self.change(wanted, samples, 0);
        samples.drift = drift.map(Box::new);
    }

    /// Returns the labels of the samples of the list as the node has them, given those of the whole pool.
    pub(crate) fn labels(&self, pool: &[u16], classes: usize) -> Vec<u16> {
        let label = |(place, index): (usize, &u32)| {
            self.label(Time::Late, place, pool[*index as usize], classes)
        };
        self.list.iter().enumerate().map(label).collect()
    }

    fn change_at(&self, time: Time, wanted: &[u32], samples: &mut Samples, from: usize) {
        if self.transforms.is_empty() {
            return;
        }
        let n_domains = self.n_domains();
        for (at, index) in (from..).zip(wanted) {
            let place = self.place(*index);
            self.change_image(time, place, samples, at);
            samples.labels[at] = self.label(time, place, samples.labels[at], samples.classes);
            if n_domains > 1 {
                let n_samples = samples.labels.len();
                samples.domains.get_or_insert_with(|| vec![0; n_samples])[at] =
                    self.domain(time, place);
            }
        }
    }

    fn change_image(&self, time: Time, place: usize, samples: &mut Samples, at: usize) {
        let (shape, width) = (samples.shape, samples.values_per_sample());
        let Pixels::Bytes { values, white } = &mut samples.pixels else {
            return; // labels alone are changed
        };
        let values = &mut values[at * width..(at + 1) * width];
        let mut image = Image::new(values, shape, *white);
        for (link, Link { change, .. }) in self.transforms.links.iter().enumerate() {
            change.change_image(self.domain_of(link, time, place), &mut image);
        }
    }

    fn label(&self, time: Time, place: usize, label: u16, classes: usize) -> u16 {
        let links = self.transforms.links.iter().enumerate();
        links.fold(label, |label, (link, Link { change, .. })| {
            change.change_label(self.domain_of(link, time, place), label, classes)
        })
    }

    /// Returns the number of the combination of domains that a sample has.
    fn domain(&self, time: Time, place: usize) -> u16 {
        let links = self.transforms.links.iter().enumerate();
        links.fold(0, |domain, (link, Link { change, .. })| {
            domain * change.domains().count() + self.domain_of(link, time, place)
        })
    }

    fn domain_of(&self, link: usize, time: Time, place: usize) -> u16 {
        match &self.drifting {
            Some(drifting) if drifting.link == link && time == Time::Early => 0,
            _ => self.domains[link][place],
        }
    }

    fn n_domains(&self) -> u32 {
        let links = self.transforms.links.iter();
        links
            .map(|link| u32::from(link.change.domains().count()))
            .product()
    }

    fn place(&self, index: u32) -> usize {
        let place = self.list.binary_search(&index);
        place.expect("what is read for a node is in its list")
    }
}

/// Finds the row that a transform's text names.
fn kind_of(text: &str) -> Option<&'static Kind> {
    let name = text.split(':').next()?;
    KINDS.iter().find(|kind| kind.name == name)
}

fn parse(text: &str) -> Result<Link, String> {
    let Some(kind) = kind_of(text) else {
        let forms: Vec<String> = KINDS
            .iter()
            .map(|kind| format!("{PLUS}{}", kind.form))
            .collect();
        return Err(format!(
            "there is no transform `{PLUS}{text}`, expected one of {}",
            forms.join(", ")
        ));
    };
    let arguments: Vec<&str> = text.split(':').skip(1).collect();
    let change = (kind.parse)(&arguments)
        .ok_or_else(|| format!("expected `{PLUS}{}`, {}", kind.form, kind.bounds))?;
    Ok(Link {
        text: text.to_owned(),
        change,
    })
}

fn wrong(text: &str, cause: String) -> DataError {
    DataError::Text {
        text: text.to_owned(),
        what: "partition",
        cause: TextError::Transforms(cause),
    }
}

/// Reads a whole number within bounds.
fn number(text: &str, bounds: std::ops::RangeInclusive<u16>) -> Option<u16> {
    text.parse().ok().filter(|number| bounds.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Transforms::take_off(text).unwrap_err().to_string()
    }

    #[test]
    fn transforms_are_taken_off_the_end() {
        for (text, base, rest) in [
            ("iid", "iid", ""),
            ("iid+rotated:4:2", "iid", "+rotated:4:2"),
            (
                "dirichlet:1e+3+renamed:2:3+sizes:10",
                "dirichlet:1e+3",
                "+renamed:2:3+sizes:10",
            ),
            ("file:/a+b/c.json+blur:3", "file:/a+b/c.json", "+blur:3"),
            ("file:/a+b/c.json", "file:/a+b/c.json", ""),
        ] {
            let (found, transforms) = Transforms::take_off(text).unwrap();
            assert_eq!((found, transforms.to_string().as_str()), (base, rest));
        }
    }

    #[test]
    fn wrong_arguments_are_answered_with_the_form() {
        assert_eq!(
            error("iid+rotated:5:2"),
            "`iid+rotated:5:2` is not a partition: expected `+rotated:TURNS[:HELD]`, TURNS from 2 to 4 and HELD from 1 \
             to TURNS"
        );
        for text in [
            "iid+rotated",
            "iid+rotated:1",
            "iid+rotated:4:5",
            "iid+rotated:4:2:1",
            "iid+renamed:2",
            "iid+renamed:2:0",
            "iid+renamed:1:3",
            "iid+contrast:1",
            "iid+contrast:17",
            "iid+blur:x",
            "iid+drift:4",
            "iid+drift",
            "iid+sizes:0.5",
            "iid+sizes:nan",
            "iid+sizes",
            "iid+cut:2",
            "iid+cut:0:1",
        ] {
            let found = error(text);
            assert!(found.contains("expected `+"), "{text}: {found}");
            assert_eq!(found.lines().count(), 1);
        }
    }

    #[test]
    fn unknown_transforms_are_answered_with_all_forms() {
        let found = error("iid+rotate:4");
        assert!(
            found.starts_with(
                "`iid+rotate:4` is not a partition: there is no transform `+rotate:4`, expected one of \
                 +rotated:TURNS[:HELD], "
            ),
            "{found}"
        );
        assert!(error("iid+").contains("no transform `+`"));
    }

    #[test]
    fn too_many_domains_and_two_drifts_are_refused() {
        let many = "iid+blur:16+contrast:16+blur:16+contrast:16+blur:2";
        assert!(error(many).contains("make 131072 domains"));
        assert!(error("iid+drift:1+drift:2").ends_with("one drift only"));
    }

    #[test]
    fn each_row_has_its_own_name_and_begins_its_form_with_it() {
        for (at, kind) in KINDS.iter().enumerate() {
            assert!(kind.form.starts_with(kind.name), "{kind:?}");
            assert!(KINDS[..at].iter().all(|earlier| earlier.name != kind.name));
        }
    }
}
