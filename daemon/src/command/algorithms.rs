//! `fednode algorithms [NAME]`: what can be trained, and with which hyper-parameters.

use fednode_learn::algorithm::{self, Row};
use serde::Serialize;

use fednode_cli::failure::OrFail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::{render, text};
use fednode_runtime::exit::ExitCode;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Explain this algorithm.
    name: Option<String>,
}

/// Prints the list, or one algorithm.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    match &args.name {
        Some(name) => output::print(
            &Card::of(algorithm::find(name).or_fail(ExitCode::Usage)?),
            form,
        ),
        None => output::print(&List(algorithm::TABLE.iter().map(Card::of).collect()), form),
    }
}

/// All algorithms.
#[derive(Debug, Serialize)]
struct List(Vec<Card>);

/// One algorithm.
#[derive(Debug, Serialize)]
struct Card {
    name: &'static str,
    summary: &'static str,
    reference: &'static str,
    averages: &'static str,
    /// What a node counts by in the average: `uniform`, `by samples`, or nothing where nothing is averaged by weights.
    weighting: Option<&'static str>,
    peer_to_peer: &'static str,
    keeps_private: &'static str,
    trains_ahead: bool,
    hyper_parameters: Vec<Hyper>,
    profiles: Vec<Profile>,
}

#[derive(Debug, Serialize)]
struct Hyper {
    name: &'static str,
    range: String,
    default: &'static str,
    meaning: String,
}

impl Hyper {
    /// Describes a hyper-parameter of the algorithm itself.
    fn own(hyper: &algorithm::Hyper) -> Self {
        Self {
            name: hyper.name,
            range: hyper.kind.range(),
            default: hyper.default,
            meaning: hyper.doc.to_owned(),
        }
    }

    /// Describes a parameter of some aggregation rules.
    fn of_rules(rules: &[&str], hyper: &algorithm::Hyper) -> Self {
        Self {
            meaning: format!("with aggregation={}: {}", rules.join("|"), hyper.doc),
            ..Self::own(hyper)
        }
    }
}

#[derive(Debug, Serialize)]
struct Profile {
    name: &'static str,
    sets: Vec<(&'static str, &'static str)>,
}

impl Card {
    fn of(row: &Row) -> Self {
        let of_rules = row.rule_hyper();
        let of_rules = of_rules
            .iter()
            .map(|(rules, hyper)| Hyper::of_rules(rules, hyper));
        let hyper = row.hyper.iter().map(Hyper::own).chain(of_rules);
        let profiles = row.profiles.iter().map(|profile| Profile {
            name: profile.name,
            sets: profile.sets.to_vec(),
        });
        Self {
            name: row.name,
            summary: row.summary,
            reference: row.reference,
            averages: row.averages,
            weighting: algorithm::weighting(row),
            peer_to_peer: row.peer_to_peer,
            keeps_private: row.keeps_private,
            trains_ahead: row.trains_ahead,
            hyper_parameters: hyper.collect(),
            profiles: profiles.collect(),
        }
    }

    /// Returns what is averaged, with the weight of a node in brackets.
    fn averages(&self) -> String {
        match self.weighting {
            Some(weighting) => format!("{} ({weighting})", self.averages),
            None => self.averages.to_owned(),
        }
    }
}

impl Report for List {
    fn human(&self) -> String {
        let columns = ["name", "averages", "peer to peer", "keeps private", "from"].map(text);
        let row = |card: &Card| {
            let averages = card.averages();
            let facts = [
                card.name,
                &averages,
                card.peer_to_peer,
                card.keeps_private,
                card.reference,
            ];
            facts.map(str::to_owned).to_vec()
        };
        let table = render(&columns, &self.0.iter().map(row).collect::<Vec<_>>());
        format!("{table}\n`fednode algorithms NAME` explains one.\n")
    }
}

impl Report for Card {
    fn human(&self) -> String {
        let columns = [text("key"), text("range"), text("default"), text("meaning")];
        let row = |hyper: &Hyper| {
            vec![
                hyper.name.to_owned(),
                hyper.range.clone(),
                hyper.default.to_owned(),
                hyper.meaning.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = self.hyper_parameters.iter().map(row).collect();
        let table = if rows.is_empty() {
            "none\n".to_owned()
        } else {
            render(&columns, &rows)
        };
        let ahead = if self.trains_ahead {
            "yes, with training.ahead_epochs"
        } else {
            "no"
        };
        let facts = format!(
            "{}: {}\n  from           {}\n  averages       {}\n  peer to peer   {}\n  keeps private  {}\n  trains ahead   \
             {ahead}\n",
            self.name,
            self.summary,
            self.reference,
            self.averages(),
            self.peer_to_peer,
            self.keeps_private
        );
        let profiles: String = self.profiles.iter().map(Profile::human).collect();
        format!(
            "{facts}\nHyper-parameters (--set KEY=VALUE, or table `hyper` of federation.toml):\n{table}{profiles}"
        )
    }
}

impl Profile {
    fn human(&self) -> String {
        let sets: Vec<String> = self
            .sets
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let sets = if sets.is_empty() {
            "the defaults".to_owned()
        } else {
            sets.join(", ")
        };
        format!("profile={}: {sets}\n", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cells of a table's line that are not empty; none of them holds two blanks in a row.
    fn cells(line: &str) -> Vec<&str> {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect()
    }

    #[test]
    fn every_algorithm_explains_every_key() {
        for row in algorithm::TABLE {
            let text = Card::of(row).human();
            for hyper in row.hyper {
                let range = hyper.kind.range();
                let expected = [hyper.name, &range, hyper.default, hyper.doc];
                assert!(
                    text.lines().any(|line| cells(line) == expected),
                    "{expected:?} is not a line of {text}"
                );
            }
        }
    }

    #[test]
    fn list_names_what_each_algorithm_sends_and_its_source() {
        let text = List(algorithm::TABLE.iter().map(Card::of).collect()).human();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines.len(),
            algorithm::TABLE.len() + 4,
            "two lines above the rows, two below"
        );
        for (row, line) in algorithm::TABLE.iter().zip(&lines[2..]) {
            let averages = Card::of(row).averages();
            let expected = [
                row.name,
                &averages,
                row.peer_to_peer,
                row.keeps_private,
                row.reference,
            ];
            assert_eq!(cells(line), expected, "each said, none of them empty");
        }
    }
}
