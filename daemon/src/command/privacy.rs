//! `fednode privacy`: what a node's published parts tell of who is in its data, measured at home.
//!
//! The settings are those of `fednode start`, so it answers before a node joins what the node would publish. With a state
//! folder that holds a model it answers for that.
//!
//! Three questions: can others tell who is in the data, can they draw them, and is more told than the federation promises?

mod pictures;

use std::path::PathBuf;
use std::sync::Arc;

use fednode_learn::{Canaried, Exposure, Learner, Redrawn};
use fednode_measure::clopper_pearson;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::releases::{Entry, Releases};
use serde::Serialize;

use fednode_cli::data::Mine;
use fednode_cli::device::Choice;
use fednode_cli::failure::{OrFail, fail, no_learner};
use fednode_cli::initial;
use fednode_cli::model::{Model, SPEC_FILE};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::refuse_closed;
use fednode_cli::table::{number, percent, render, text};

use super::spent::Spent;
use super::start::{Own, read_spec, with_own_model};

/// From which area on an attack tells members from others about as it likes.
const CERTAIN: f64 = 0.95;
/// How often intervals hold at least.
const LEVEL: f64 = 0.95;
/// Up to which area an attack does hardly better than guessing, with some hundred samples.
const GUESSING: f64 = 0.55;
/// From how many dB on a redrawn image shows more than is known without it.
const SHOWS: f64 = 0.5;
/// From how many dB on it is nearer to the true one by half.
const CLEAR: f64 = 3.0;

/// What is typed: as for `fednode start`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    own: Own,
    /// A new folder for pictures of this node's images: the true ones above, those known before, and those redrawn from what it
    /// publishes.
    #[arg(long, value_name = "FOLDER")]
    pictures: Option<PathBuf>,
}

/// Attacks what the node publishes, and prints what the attacks reach.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    pictures::check(args.pictures.as_deref())?;
    let config = args.own.resolve()?;
    fednode_runtime::allocator::settle();
    let spec = read_spec(&config)?;
    refuse_closed(config.state())?;
    let mine = Mine::load(&config, &spec)?;
    let own = with_own_model(&spec, &config, &mine)?;
    let device = Choice::find(&config.device)?.open(config.threads)?;
    let mut learner =
        Learner::new(&own, mine.node_seed, Arc::clone(&mine.split), &device).map_err(no_learner)?;
    let has_state = config.state().join(SPEC_FILE).exists();
    if has_state {
        let model = Model::of_state(config.state())?;
        learner.restore(&model.params).or_fail(ExitCode::State)?;
    } else {
        let initial = initial::of(&own, config.initial.as_deref())?;
        initial::start(&mut learner, initial.as_deref())?;
    }
    learner.prepare_release();
    let owner = config.owners_budget();
    let entries = Releases::read(&owner.file).or_fail(ExitCode::State)?;
    // What was not trained yet says nothing of any sample.
    let parameters = has_state.then(|| learner.exposed_parameters()).flatten();
    let attacks = learner.exposed_statistics().into_iter().chain(parameters);
    let redrawn = learner.redrawn();
    let pictures = match &args.pictures {
        Some(folder) if !redrawn.is_empty() => {
            pictures::write(folder, &redrawn, mine.split.train.shape)?
        }
        Some(_) => {
            let text = "nothing to draw: pictures are of class sums of images, and take held-out images to learn from";
            return Err(fail(ExitCode::Data, text));
        }
        None => Vec::new(),
    };
    let answer = Answer {
        privacy: spec.privacy.mode().to_string(),
        is_published: has_state,
        attacks: attacks.map(Attacked::new).collect(),
        redrawn,
        pictures,
        canaries: learner.canaried(&spec.privacy),
        spent: Spent::of(owner, &entries)?,
        releases: entries,
    };
    output::print(&answer, form)
}

/// What an attack reaches, and how sure that is.
#[derive(Debug, Serialize)]
struct Attacked {
    #[serde(flatten)]
    exposure: Exposure,
    /// The interval of the hits, by Clopper and Pearson, at 95 %.
    hits_interval: Option<[f64; 2]>,
}

impl Attacked {
    fn new(exposure: Exposure) -> Self {
        let members = exposure.members as u32;
        let hits = exposure
            .hits
            .map(|share| (share * f64::from(members)).round() as u32);
        let interval = hits.and_then(|hits| clopper_pearson(hits.min(members), members, LEVEL));
        Self {
            exposure,
            hits_interval: interval,
        }
    }
}

#[derive(Debug, Serialize)]
struct Answer {
    /// `open`, or `dp:` and ε.
    privacy: String,
    /// Whether the parts are those of a node that took part.
    is_published: bool,
    /// What attacks reach.
    attacks: Vec<Attacked>,
    /// What can be drawn of the images.
    redrawn: Vec<Redrawn>,
    /// Where pictures of that lie.
    pictures: Vec<PathBuf>,
    /// Which ε guesses of canaries rule out.
    canaries: Option<Canaried>,
    /// What the releases of this node cost together.
    spent: Spent,
    /// What has left this node, as its file of releases has it.
    releases: Vec<Entry>,
}

impl Report for Answer {
    fn human(&self) -> String {
        let more = format!(
            "{}{}{}",
            self.drawings(),
            self.canaries.as_ref().map(guessed).unwrap_or_default(),
            self.spent.sentence()
        );
        let tense = if self.is_published {
            "publishes"
        } else {
            "would publish"
        };
        if self.attacks.is_empty() {
            return format!(
                "privacy {}: nothing that this node {tense} was attacked here. Trained parameters are, once it has taken part \
                 and its state folder holds a model; and it takes held-out samples to compare with\n{more}",
                self.privacy,
            );
        }
        let columns = [
            text("published"),
            text("attack"),
            number("members"),
            number("others"),
            number("area"),
            number("found at 1 %"),
            number("area at most"),
        ];
        let rows: Vec<Vec<String>> = self.attacks.iter().map(row).collect();
        let table = render(&columns, &rows);
        let words: String = self
            .attacks
            .iter()
            .map(|attack| sentence(&attack.exposure))
            .collect();
        format!(
            "privacy {}: what this node {tense}, and whether it tells training samples from others\n\n{table}\n{words}\n\
             area: how often an attack ranks a training sample above another one; 0.5 is guessing, 1 is certainty.\n\
             found at 1 %: training samples found where 1 % of the others are taken for such, too, with the interval that\n\
             holds 95 times of 100; it takes 100 others.\n\
             area at most: what no attack exceeds, whatever it knows; a dash where nothing bounds it.\n{}{more}",
            self.privacy,
            self.condition(),
        )
    }
}

impl Answer {
    /// Says who could see what was attacked, where that is not every member.
    fn condition(&self) -> &'static str {
        if self
            .attacks
            .iter()
            .any(|attack| attack.exposure.published.starts_with("its part"))
        {
            "Under masks nobody sees the part of one node: these figures are for whoever knows the samples of all other nodes.\n"
        } else {
            ""
        }
    }

    /// Says what can be drawn of the images; nothing of what are none.
    fn drawings(&self) -> String {
        if self.redrawn.is_empty() {
            return String::new();
        }
        let columns = [
            text("redrawn from"),
            number("classes"),
            number("images each"),
            number("known, dB"),
            number("redrawn, dB"),
            number("more"),
        ];
        let row = |redrawn: &Redrawn| {
            vec![
                redrawn.published.clone(),
                redrawn.classes.to_string(),
                format!("{:.0}", redrawn.images),
                format!("{:.1}", redrawn.known),
                format!("{:.1}", redrawn.redrawn),
                format!("{:+.1}", redrawn.redrawn - redrawn.known),
            ]
        };
        let rows: Vec<Vec<String>> = self.redrawn.iter().map(row).collect();
        let words: String = self.redrawn.iter().map(drawn).collect();
        let pictures = self.pictures.iter();
        let pictures: String = pictures
            .map(|path| format!("picture: {}\n", path.display()))
            .collect();
        format!(
            "\n{}\n{words}\ndB: how near an image comes to the true one, as the peak signal-to-noise ratio. Known is the mean of\n\
             other images of the class; redrawn is what a decoder makes of the sums.\n{pictures}\n",
            render(&columns, &rows)
        )
    }
}

/// Says in words what can be drawn.
fn drawn(redrawn: &Redrawn) -> String {
    let (published, more) = (&redrawn.published, redrawn.redrawn - redrawn.known);
    if more >= CLEAR {
        format!("! {published}: whoever sees it can draw what is in the data\n")
    } else if more > SHOWS {
        format!("! {published}: whoever sees it can draw a little more than is known without it\n")
    } else {
        format!("  {published}: this attack draws no more than is known without it\n")
    }
}

/// Says which ε guesses of canaries rule out.
fn guessed(canaried: &Canaried) -> String {
    let Canaried {
        canaries,
        guesses,
        right,
        above,
        most,
        promised,
        ..
    } = canaried;
    let verdict = if above > promised {
        "! that is MORE than is promised: by chance once in twenty times, else a defect; run it again, and report it"
    } else if most <= promised {
        "  so few canaries cannot test so large an epsilon, whatever the noise"
    } else {
        "  the promise stands this test"
    };
    let shown = if *above > 0.0 {
        format!("epsilon is above {above:.2}, 95 times of 100")
    } else {
        "they rule out no epsilon".to_owned()
    };
    format!(
        "canaries: {canaries} were put into such a release or left out, by a coin each. Of the {guesses} surest guesses {right} \
         were right,\nso {shown}. Promised is {promised}, and so many guesses could show {most:.1} at most\n{verdict}\n"
    )
}

fn row(attacked: &Attacked) -> Vec<String> {
    let attack = &attacked.exposure;
    let found = attack.hits.zip(attacked.hits_interval);
    let found = found.map(|(hits, [low, high])| {
        format!("{} ({} to {})", percent(hits), percent(low), percent(high))
    });
    let dash = || "-".to_owned();
    vec![
        attack.published.clone(),
        attack.attack.to_owned(),
        attack.members.to_string(),
        attack.others.to_string(),
        format!("{:.3}", attack.auc),
        found.unwrap_or_else(dash),
        attack
            .most
            .map_or_else(dash, |[area, _]| format!("{area:.3}")),
    ]
}

/// Says in words what an attack reaches.
fn sentence(attack: &Exposure) -> String {
    let published = &attack.published;
    if attack.auc >= CERTAIN {
        format!(
            "! {published}: whoever sees it can tell who is in the data. Protect it: `fednode init --privacy dp:4`\n"
        )
    } else if attack.auc > GUESSING {
        format!(
            "! {published}: whoever sees it can guess who is in the data, better than by chance\n"
        )
    } else {
        format!("  {published}: this attack did hardly better than guessing\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attack(auc: f64, most: Option<[f64; 2]>) -> Exposure {
        Exposure {
            published: "sums".into(),
            attack: "leverage",
            members: 300,
            others: 150,
            auc,
            hits: Some(0.25),
            most,
        }
    }

    #[test]
    fn a_table_has_a_row_for_each_attack_and_says_what_it_means() {
        let answer = Answer {
            privacy: "open".into(),
            is_published: false,
            attacks: [attack(1.0, None), attack(0.52, Some([0.743, 0.081]))]
                .map(Attacked::new)
                .into(),
            redrawn: vec![Redrawn {
                published: "class sums of 1024 numbers, of a class of one image".into(),
                classes: 40,
                images: 1.0,
                known: 13.2,
                redrawn: 22.5,
                pictures: Vec::new(),
            }],
            pictures: vec!["drawn/one-image.png".into()],
            canaries: Some(Canaried {
                published: "sums".into(),
                canaries: 1000,
                guesses: 100,
                right: 84,
                above: 1.19,
                most: 5.3,
                promised: 4.0,
            }),
            spent: Spent {
                epsilon: 4.0,
                delta: 1e-5,
                budget: Some(8.0),
                count: 0,
                file: "state/privacy.json".into(),
            },
            releases: Vec::new(),
        };
        let text = answer.human();
        assert!(text.contains("would publish"), "{text}");
        assert!(text.contains("1.000") && text.contains("0.743"), "{text}");
        // SciPy: beta.ppf of 75 hits of 300.
        assert!(text.contains("25.0 % (20.2 % to 30.3 %)"), "{text}");
        assert!(text.contains("can tell who is in the data"), "{text}");
        assert!(text.contains("hardly better than guessing"), "{text}");
        assert!(text.contains("+9.3"), "{text}");
        assert!(text.contains("can draw what is in the data"), "{text}");
        assert!(text.contains("epsilon is above 1.19"), "{text}");
        assert!(text.contains("the promise stands"), "{text}");
    }
}
