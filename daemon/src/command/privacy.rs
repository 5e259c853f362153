//! `fednode privacy`: what a node's published parts tell of who is in its data, measured at home.
//!
//! The settings are those of `fednode start`, so it answers before a node joins what the node would publish. With a state
//! folder that holds a model it answers for that.

use std::sync::Arc;

use fednode_learn::{Exposure, Learner};
use fednode_measure::clopper_pearson;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::releases::{Entry, Releases};
use serde::Serialize;

use fednode_cli::data::Mine;
use fednode_cli::device::Choice;
use fednode_cli::failure::{OrFail, no_learner};
use fednode_cli::initial;
use fednode_cli::model::{Model, SPEC_FILE};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::{number, percent, render, text};

use super::spent::Spent;
use super::start::{Own, read_spec, with_own_model};

/// From which area on an attack tells members from others about as it likes.
const CERTAIN: f64 = 0.95;
/// How often intervals hold at least.
const LEVEL: f64 = 0.95;
/// Up to which area an attack does hardly better than guessing, with some hundred samples.
const GUESSING: f64 = 0.55;

/// What is typed: as for `fednode start`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    own: Own,
}

/// Attacks what the node publishes, and prints what the attacks reach.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let config = args.own.resolve()?;
    fednode_runtime::allocator::settle();
    let spec = read_spec(&config)?;
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
    let answer = Answer {
        privacy: spec.privacy.mode().to_string(),
        is_published: has_state,
        attacks: attacks.map(Attacked::new).collect(),
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
    /// What the releases of this node cost together.
    spent: Spent,
    /// What has left this node, as its file of releases has it.
    releases: Vec<Entry>,
}

impl Report for Answer {
    fn human(&self) -> String {
        let tense = if self.is_published {
            "publishes"
        } else {
            "would publish"
        };
        if self.attacks.is_empty() {
            return format!(
                "privacy {}: nothing that this node {tense} was attacked here. Trained parameters are, once it has taken part \
                 and its state folder holds a model; and it takes held-out samples to compare with\n{}",
                self.privacy,
                self.spent.sentence()
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
             area at most: what no attack exceeds, whatever it knows; a dash where nothing bounds it.\n{}",
            self.privacy,
            self.spent.sentence()
        )
    }
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
    }
}
