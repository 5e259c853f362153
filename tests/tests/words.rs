//! Sentences are short: in the documents, in `--help` and in the doc comments of every crate.
//!
//! The limits are those of the house: no sentence over 35 words, 18 on average, and stricter ones for the README.
//! `cargo test --workspace --test words -- --nocapture` shows the figures of every group.
#![allow(clippy::unwrap_used)]
#![allow(
    clippy::print_stdout,
    reason = "with --nocapture a test shows its figures"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use fednode_e2e::words::{Sentence, of_doc_comments, of_markdown};

/// Most words of a sentence, and most words of a sentence on average.
#[derive(Debug, Clone, Copy)]
struct Limit {
    longest: usize,
    mean: f64,
}

const HOUSE: Limit = Limit {
    longest: 35,
    mean: 18.0,
};
const README: Limit = Limit {
    longest: 30,
    mean: 16.0,
};

/// How texts outside the repository were once cited: notes that no reader has.
const OUTSIDE: [&str; 6] = [
    "moe-systems",
    "pm-moe §",
    "pm-moe` §",
    "pm-moe`, `",
    "spec/beyond",
    "`beyond`",
];

/// Sentences by file.
type Texts = Vec<(PathBuf, Vec<Sentence>)>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// All files below a folder with this extension, in order.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().unwrap_or_default() == extension {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The members of the workspace, as its `Cargo.toml` lists them.
fn members() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let list = manifest.split_once("members = [").unwrap().1;
    let list = list.split_once(']').unwrap().0;
    let names = list.split(',').map(|name| name.trim().trim_matches('"'));
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn markdown(paths: Vec<PathBuf>) -> Texts {
    let sentences = |path: &PathBuf| of_markdown(&fs::read_to_string(path).unwrap());
    paths
        .into_iter()
        .map(|path| (path.clone(), sentences(&path)))
        .collect()
}

/// The newest section of the changelog: up to its second heading of the second level.
fn newest_changes() -> Texts {
    let text = read("CHANGELOG.md");
    let second = text
        .match_indices("\n## ")
        .nth(1)
        .map_or(text.len(), |found| found.0);
    vec![(root().join("CHANGELOG.md"), of_markdown(&text[..second]))]
}

/// Every group of texts by name: the documents, the help, and the doc comments of each crate.
fn groups() -> BTreeMap<String, Texts> {
    let mut groups = BTreeMap::new();
    for document in ["README.md", "ARCHITECTURE.md", "experiments/README.md"] {
        groups.insert(document.to_owned(), markdown(vec![root().join(document)]));
    }
    groups.insert("CHANGELOG.md".to_owned(), newest_changes());
    groups.insert("docs".to_owned(), markdown(files("docs", "md")));
    for member in members() {
        for path in files(&member, "rs") {
            let text = fs::read_to_string(&path).unwrap();
            // What clap reads is help: it makes the texts of flags and commands of doc comments.
            let help = text.contains("clap::") && member != "tests";
            let group = if help {
                "--help".to_owned()
            } else {
                member.clone()
            };
            let sentences = of_doc_comments(&text);
            groups
                .entry(group)
                .or_insert_with(Vec::new)
                .push((path, sentences));
        }
    }
    groups
}

fn limit(group: &str) -> Limit {
    match group {
        "README.md" => README,
        _ => HOUSE,
    }
}

/// What is wrong with a group, line by line; nothing if it keeps its limit.
fn objections(group: &str, texts: &Texts) -> String {
    let limit = limit(group);
    let all = || {
        texts
            .iter()
            .flat_map(|(path, found)| found.iter().map(move |one| (path, one)))
    };
    let words: usize = all().map(|(_, sentence)| sentence.words).sum();
    let mean = words as f64 / all().count().max(1) as f64;
    let longest = all().map(|(_, sentence)| sentence.words).max().unwrap_or(0);
    let over =
        all().filter(|(_, sentence)| sentence.words > 30).count() * 100 / all().count().max(1);
    println!(
        "{group:<24} {:>5} sentences, mean {mean:>4.1}, longest {longest:>3}, {over:>2} % over 30",
        all().count()
    );

    let mut text = String::new();
    for (
        path,
        Sentence {
            line,
            words,
            text: sentence,
        },
    ) in all().filter(|(_, one)| one.words > limit.longest)
    {
        let path = path.strip_prefix(root()).unwrap().display();
        writeln!(text, "{path}:{line}: {words} words, split this: {sentence}").unwrap();
    }
    if mean > limit.mean {
        writeln!(
            text,
            "{group}: {mean:.1} words a sentence, at most {:.1}",
            limit.mean
        )
        .unwrap();
    }
    text
}

#[test]
fn the_readme_fits_150_lines() {
    let lines = read("README.md").lines().count();
    assert!(
        lines <= 150,
        "README.md has {lines} lines: move some to docs/"
    );
}

#[test]
fn no_text_outside_the_repository_is_cited() {
    let folders = members()
        .into_iter()
        .chain(["bench", "scripts", "docs"].map(str::to_owned));
    let sources = folders.flat_map(|folder| {
        let endings = ["rs", "toml", "py", "md", "json", ""];
        endings
            .into_iter()
            .flat_map(move |ending| files(&folder, ending))
    });
    let this = Path::new("tests/words.rs");
    let mut citing = Vec::new();
    for path in sources.filter(|path| !path.ends_with(this)) {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        let cites = |line: &str| OUTSIDE.iter().any(|outside| line.contains(outside));
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| cites(line)) {
            let path = path.strip_prefix(root()).unwrap().display();
            citing.push(format!("{path}:{number}: {}", line.trim()));
        }
    }
    println!("{} lines cite a text outside the repository", citing.len());
    assert!(
        citing.is_empty(),
        "cite the paper instead:\n{}",
        citing.join("\n")
    );
}

#[test]
fn sentences_are_short() {
    let objections: String = groups()
        .iter()
        .map(|(group, texts)| objections(group, texts))
        .collect();
    assert!(objections.is_empty(), "\n{objections}");
}

/// The page has its own words for what a model is made of; they are those of the program.
#[test]
fn the_page_names_components_as_the_program_does() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let page = read("crates/page/assets/words.js");
    let source = read("crates/core/src/composition.rs");
    let words: Vec<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \""))
        .map(|(_, words)| words.trim_end_matches("\","))
        .collect();
    assert_eq!(words.len(), 8, "{words:?}");
    for words in words {
        assert!(page.contains(&format!(": \"{words}\",")), "{words}");
    }
}
