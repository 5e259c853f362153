//! What to begin with, by what an owner's data are: one row for each piece of advice, with the measurement behind it.
//!
//! Nothing leaves the machine for this. `docs/reference/advice.md` is made from [`TABLE`].

/// What the advice depends on.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    pub(crate) samples: usize,
    /// Samples that are or will be kept for tests.
    pub(crate) tests: usize,
    /// Samples of each class.
    pub(crate) classes: Vec<usize>,
    /// Channels, height and width of a sample.
    pub(crate) input: [usize; 3],
}

/// What a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Table,
    /// A row of a table, of which a number is predicted.
    Numbers,
    Image,
    Text,
}

/// One piece of advice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// What it is about.
    pub(crate) about: &'static str,
    /// For which data, in words.
    pub(crate) when: &'static str,
    pub(crate) applies: fn(&Facts) -> bool,
    pub(crate) advice: &'static str,
    /// What was measured, or is known.
    pub(crate) why: &'static str,
    /// The page that says more, seen from the root of the repository.
    pub(crate) page: &'static str,
}

/// Rows or images of a node from which on a federation brought little.
const MANY: usize = 3_000;
/// Fewest samples of a class that hide one another.
const FEW_OF_A_CLASS: usize = 5;
/// Fewest test samples whose accuracy tells single points.
const FEW_TESTS: usize = 400;
/// The share of the commonest class from which on accuracy says little.
const SKEWED: f64 = 0.8;
/// The longest side of images like those that were measured without a backbone.
const SMALL_SIDE: usize = 32;

impl Facts {
    fn is_small_and_grey(&self) -> bool {
        let [channels, height, width] = self.input;
        self.kind == Kind::Image && channels == 1 && height.max(width) <= SMALL_SIDE
    }

    /// Returns the share of the commonest class.
    pub(crate) fn commonest(&self) -> f64 {
        let most = self.classes.iter().copied().max().unwrap_or_default();
        most as f64 / self.samples.max(1) as f64
    }

    /// Returns half of the 95 % interval of an accuracy on the test samples, where it is widest.
    pub(crate) fn uncertainty(&self) -> f64 {
        1.96 * (0.25 / self.tests.max(1) as f64).sqrt()
    }
}

/// All advice, in the order in which it is given.
pub(crate) const TABLE: &[Row] = &[
    Row {
        about: "algorithm",
        when: "tables",
        applies: |facts| facts.kind == Kind::Table,
        advice: "name no algorithm and no model",
        why: "with the raw tables of four hospitals the default gained 0.2 and 0.7 points of accuracy on logistic regressions of \
              each one's own, and 1.6 and 2.2 points of area under the curve",
        page: "experiments/README.md#four-hospitals-raw-tables",
    },
    Row {
        about: "algorithm",
        when: "tables of which a number is predicted",
        applies: |facts| facts.kind == Kind::Numbers,
        advice: "name no algorithm and no model",
        why: "with three sites of 98 patients each the default explained 1 to 3 points more of the variance than ridge regressions \
              of each one's own, with ten sites of 29 patients 11 to 14 points more",
        page: "experiments/README.md#a-number-instead-of-classes",
    },
    Row {
        about: "algorithm",
        when: "images of one channel, at most 32x32",
        applies: Facts::is_small_and_grey,
        advice: "name no algorithm and no model",
        why: "in nine regimes with some 300 images a node the default gained 1 to 12 points on the best that a node does alone",
        page: "experiments/README.md#where-does-a-federation-pay",
    },
    Row {
        about: "algorithm",
        when: "texts",
        applies: |facts| facts.kind == Kind::Text,
        advice: "name no algorithm and no model; give all nodes one list of words by `vocabulary_file`",
        why: "with 300 short texts of ten classes a node the default gained some 9 points on the best that a node does alone",
        page: "experiments/README.md#texts",
    },
    Row {
        about: "model",
        when: "images of colours, or larger than 32x32",
        applies: |facts| facts.kind == Kind::Image && !facts.is_small_and_grey(),
        advice: "bring a frozen network: `scripts/backbone` makes one, and `--backbone FILE` takes it",
        why: "with colour images of four sites a backbone was worth 13 to 15 points, and the federation three more",
        page: "experiments/README.md#colour-images-of-four-sites-behind-a-backbone",
    },
    Row {
        about: "gain",
        when: "3,000 samples or more",
        applies: |facts| facts.samples >= MANY,
        advice: "expect less of a federation, and compare with `--algorithm local` first",
        why: "with 3,000 images a node it gained 0.3 and 2.1 points on the best alone, with 300 of the same 8.0 and 6.1",
        page: "experiments/README.md#gradient-experts-a-fair-trial",
    },
    Row {
        about: "tests",
        when: "fewer than 400 test samples",
        applies: |facts| facts.tests < FEW_TESTS && facts.kind != Kind::Numbers,
        advice: "decide by the interval of `swarm`'s first line, not by single points; `,test=FILE` names later rows for tests",
        why: "chance alone moves an accuracy that far: see the interval beside it",
        page: "docs/how-to/own-data.md",
    },
    Row {
        about: "measure",
        when: "one class has 80 % of the samples or more",
        applies: |facts| facts.commonest() >= SKEWED && facts.kind != Kind::Numbers,
        advice: "look at balanced accuracy and the area under the curve, and not at accuracy",
        why: "whoever always names the commonest class has a high accuracy, too",
        page: "docs/reference/files.md#the-folder-of-a-swarm-or-of-a-simulated-run",
    },
    Row {
        about: "classes",
        when: "a class has one to four samples",
        applies: |facts| {
            facts
                .classes
                .iter()
                .any(|n| (1..FEW_OF_A_CLASS).contains(n))
        },
        advice: "join rare classes: `,classes=A=>B|…`",
        why: "so small a class is hardly compared with others, and its mean nearly is its sample, for all to see",
        page: "docs/explanation/agreement.md#what-a-node-reveals",
    },
    Row {
        about: "privacy",
        when: "images of one channel, at most 32x32",
        applies: Facts::is_small_and_grey,
        advice: "keep `masked+dp:4`, which `init` takes for data of one's own: it bounds what others can tell of who is in your data; \
                 `fednode privacy` measures it at home",
        why: "with 20 nodes of 405 images 2.7 of 3.4 points of gain remained at ε = 4, and 1.8 at ε = 1",
        page: "experiments/README.md#what-does-privacy-cost",
    },
    Row {
        about: "privacy",
        when: "tables of which a number is predicted",
        applies: |facts| facts.kind == Kind::Numbers,
        advice: "keep `masked+dp:4`, which `init` takes from three nodes on; `--privacy masked` gains more and promises less",
        why: "with ten sites of 29 patients masks cost about four of 14 points of variance explained, and with ε = 4 about three points of gain remained",
        page: "experiments/README.md#a-number-instead-of-classes",
    },
    Row {
        about: "privacy",
        when: "tables",
        applies: |facts| facts.kind == Kind::Table,
        advice: "keep `masked+dp:4`, which `init` takes from three nodes on: it bounds what others can tell of who is in your data; \
                 `--privacy masked` hides every node's own statistics, and `fednode privacy` measures both at home",
        why: "with the raw tables of four hospitals masks cost 0.1 and 0.2 points of accuracy; with ε = 4 it is 0.4 points, and 1.4 and \
              0.7 of the area under the curve",
        page: "experiments/README.md#what-does-privacy-cost",
    },
    Row {
        about: "privacy",
        when: "texts",
        applies: |facts| facts.kind == Kind::Text,
        advice: "keep `masked+dp:4`, which `init` takes from three nodes on: it bounds what others can tell of who is in your data; \
                 `--privacy masked` gains more and promises less",
        why: "with eight nodes of 300 short texts 2 and 3 of 9 points of gain remained at ε = 4, and 3 and 6 without noise",
        page: "experiments/README.md#texts",
    },
    Row {
        about: "privacy",
        when: "other images",
        applies: |facts| facts.kind == Kind::Image && !facts.is_small_and_grey(),
        advice: "read what others can see before you join",
        why: "`--privacy masked+dp:4` makes a promise, which takes some thousand samples in all to leave any gain",
        page: "docs/explanation/privacy.md",
    },
];

/// Returns what is to be said of some data.
pub(crate) fn of(facts: &Facts) -> impl Iterator<Item = &'static Row> + '_ {
    TABLE.iter().filter(|row| (row.applies)(facts))
}

/// Writes the whole table as Markdown. Links are seen from a folder two levels below the root.
pub(crate) fn markdown() -> String {
    let line = |row: &Row| {
        let Row {
            about,
            when,
            advice,
            why,
            page,
            ..
        } = row;
        let advice = advice.replace('|', "\\|");
        format!("| {about} | {when} | {advice} | {why} | [more](../../{page}) |\n")
    };
    let head = "| about | for | advice | because | |\n|---|---|---|---|---|\n".to_owned();
    TABLE.iter().map(line).fold(head, |page, line| page + &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(facts: &Facts) -> Vec<(&'static str, &'static str)> {
        of(facts).map(|row| (row.about, row.when)).collect()
    }

    #[test]
    fn each_kind_of_data_has_one_algorithm_or_model_and_one_word_on_privacy() {
        let inputs = [
            (Kind::Table, [1, 1, 20]),
            (Kind::Numbers, [1, 1, 20]),
            (Kind::Image, [1, 28, 28]),
            (Kind::Image, [3, 32, 32]),
            (Kind::Image, [1, 64, 64]),
            (Kind::Text, [1, 1, 64]),
        ];
        for (kind, input) in inputs {
            let facts = Facts {
                kind,
                samples: 2_000,
                tests: 500,
                classes: vec![1_000, 1_000],
                input,
            };
            let found = about(&facts);
            let first = found
                .iter()
                .filter(|(about, _)| ["algorithm", "model"].contains(about));
            assert_eq!(first.count(), 1, "{kind:?} {input:?}: {found:?}");
            assert_eq!(found.len(), 2, "{found:?}");
            assert_eq!(found[1].0, "privacy");
        }
    }

    #[test]
    fn few_tests_rare_classes_and_many_samples_are_spoken_of() {
        let facts = Facts {
            kind: Kind::Table,
            samples: 4_000,
            tests: 100,
            classes: vec![3_996, 4],
            input: [1, 1, 20],
        };
        let found: Vec<&str> = about(&facts).into_iter().map(|(about, _)| about).collect();
        assert_eq!(
            found,
            [
                "algorithm",
                "gain",
                "tests",
                "measure",
                "classes",
                "privacy"
            ]
        );
        assert!((facts.uncertainty() - 0.098).abs() < 1e-9);
    }
}
