//! The book is whole: its pages are in its table of contents and in `llms.txt`, and its links lead somewhere. Its lists of keys
//! are those of the files that `fednode init` writes. `UPDATE_DOCS=1 cargo test -p fednode-e2e --test docs` writes what is made.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use fednode_core::FederationSpec;
use fednode_e2e::help::{commands_of, commands_on_page, flags_in};
use fednode_e2e::{fednode, run};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files below a folder with this ending.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (vec![], vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == ending) {
                found.push(path);
            }
        }
    }
    found
}

/// The documents: all Markdown files of the book, and those beside it.
fn documents() -> Vec<PathBuf> {
    let beside = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "llms.txt"];
    let beside = beside.map(|name| root().join(name));
    [
        files("docs", "md"),
        files("experiments", "md"),
        beside.into(),
    ]
    .concat()
}

/// The targets of a document's links: `](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// The anchors of a document: its headings as GitHub and mdBook name them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_within_the_documents_leads_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text).filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(path)
            };
            assert!(target.exists(), "{}: no file `{link}`", document.display());
            let there = fs::read_to_string(&target).unwrap_or_default();
            let known = anchor.is_empty() || anchors(&there).iter().any(|known| known == anchor);
            assert!(known, "{}: no heading `{link}`", document.display());
        }
    }
}

#[test]
fn every_page_of_the_book_is_in_its_table_of_contents() {
    let book = root().join("docs");
    let summary = fs::read_to_string(book.join("SUMMARY.md")).unwrap();
    let listed: Vec<&str> = links(&summary).collect();
    for document in documents() {
        let Ok(page) = document.strip_prefix(&book) else {
            continue;
        };
        let page = page.to_str().unwrap();
        let known = page == "SUMMARY.md" || listed.contains(&page);
        assert!(known, "docs/{page} is not in docs/SUMMARY.md");
    }
}

/// Turns a commented TOML file into a page: a table of keys, defaults and meanings for each table of the file.
fn page(head: &str, sample: &str) -> String {
    let mut page = head.to_owned();
    let mut comment = Comment::default();
    let mut has_rows = false;
    for line in sample.lines() {
        let unset = line
            .strip_prefix("# ")
            .and_then(|line| line.strip_suffix(" ="));
        let set = line.split_once(" = ").filter(|_| !line.starts_with('#'));
        if let Some((key, value)) = unset.map(|key| (key, "")).or(set) {
            let mut meaning = std::mem::take(&mut comment).text.replace('|', "\\|");
            if !has_rows {
                if page.len() == head.len()
                    && let Some((about, first)) = meaning.clone().rsplit_once(". ")
                {
                    // The comment of the file runs into that of its first key, which has one sentence.
                    write!(page, "\n{about}.\n").unwrap();
                    meaning = first.to_owned();
                }
                page.push_str("\n| key | default | meaning |\n|---|---|---|\n");
            }
            has_rows = true;
            let value = if value.is_empty() {
                "none".to_owned()
            } else {
                format!("`{value}`")
            };
            writeln!(page, "| `{key}` | {value} | {meaning} |").unwrap();
        } else if let Some(text) = line.strip_prefix('#') {
            comment.add(text);
        } else if let Some(table) = line.strip_prefix('[') {
            let Comment { text, items } = std::mem::take(&mut comment);
            write!(page, "\n## `[{table}`\n\n{text}\n{items}").unwrap();
            has_rows = false;
        }
    }
    page
}

/// A comment of the file: its text, and the indented lines below it as a list.
#[derive(Debug, Default)]
struct Comment {
    text: String,
    items: String,
}

impl Comment {
    fn add(&mut self, line: &str) {
        match line
            .strip_prefix("   ")
            .and_then(|item| item.split_once(' '))
        {
            Some((name, about)) if self.items.is_empty() => {
                self.items = format!("\n- `{name}`: {}\n", about.trim());
            }
            Some((name, about)) => {
                self.items += &format!("- `{name}`: {}\n", about.trim());
            }
            None => self.text = format!("{} {}", self.text, line.trim()).trim().to_owned(),
        }
    }
}

fn holds(name: &str, wanted: &str) {
    let path = root().join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{name} is not up to date: run this test with UPDATE_DOCS=1"
    );
}

/// Returns the first sentence of a page, without links; nothing if the page begins with something else.
fn first_sentence(page: &str) -> Option<String> {
    let text = page.lines().skip(1).skip_while(|line| line.is_empty());
    let paragraph: Vec<&str> = text.take_while(|line| !line.is_empty()).collect();
    if !paragraph
        .first()?
        .starts_with(|c: char| c.is_alphabetic() || c == '`' || c == '[')
    {
        return None;
    }
    let mut plain = String::new();
    let text = paragraph.join(" ");
    let mut rest = text.as_str();
    while let Some((before, link)) = rest.split_once('[') {
        let (words, after) = link.split_once("](")?;
        plain = plain + before + words;
        rest = after.split_once(')')?.1;
    }
    let plain = plain + rest;
    let end = plain.find(". ").map_or(plain.len(), |end| end + 1);
    Some(plain[..end].to_owned())
        .filter(|sentence| sentence.ends_with('.') && !sentence.starts_with("```"))
}

#[test]
fn the_list_for_language_models_is_that_of_the_book() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut list = "# fednode\n\n\
        > A peer-to-peer federated-learning daemon in Rust: each node trains its own model on its own data, and joining is to\n\
        > beat what a node can do alone. There is no central server beyond a small bootstrap aggregator.\n\n\
        Start with README.md. ARCHITECTURE.md draws the crates and gives the reason of each choice. This file is made from\n\
        docs/SUMMARY.md.\n"
        .to_owned();
    for line in summary.lines().skip(1) {
        if let Some(heading) = line.strip_prefix("# ") {
            write!(list, "\n## {heading}\n\n").unwrap();
        } else if let Some((title, path)) = line.trim_start_matches("- ").split_once("](") {
            let (title, path) = (title.trim_start_matches('['), path.trim_end_matches(')'));
            let page = fs::read_to_string(root().join("docs").join(path)).unwrap();
            let about = first_sentence(&page).map(|sentence| format!(": {sentence}"));
            let head = if list.contains("\n## ") { "" } else { "\n" };
            writeln!(
                list,
                "{head}- [{title}](docs/{path}){}",
                about.unwrap_or_default()
            )
            .unwrap();
        }
    }
    holds("llms.txt", &list);
}

#[test]
fn the_keys_of_federation_toml_are_those_of_the_book() {
    let head = "# Keys of federation.toml\n\n\
        `federation.toml` is the spec: what all members must share. `fednode init` writes it with every key explained. The\n\
        keys that differ from their defaults are hashed into the id of the federation. `--set TABLE.KEY=VALUE` of `init`,\n\
        `swarm` and `simulate` sets a key. `version`, `[fingerprints]` and `[exchange]` are\n\
        written by `fednode init`. This page is made from the code.\n";
    holds(
        "docs/reference/federation-toml.md",
        &page(head, &FederationSpec::default().to_toml()),
    );
}

#[test]
fn the_keys_of_node_toml_are_those_of_the_book() {
    let home = tempfile::tempdir().unwrap();
    let mut command = fednode();
    command
        .arg("init")
        .arg(home.path())
        .args(["--nodes", "3", "--partition", "own"]);
    let output = run(command);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let sample = fs::read_to_string(home.path().join("node.toml")).unwrap();
    let head = "# Keys of node.toml\n\n\
        `node.toml` holds the settings of one node. `fednode start --set TABLE.KEY=VALUE` sets a key, and so does its variable\n\
        ([how](../how-to/variables.md)). This page is made from the code.\n";
    holds("docs/reference/node-toml.md", &page(head, &sample));
}

#[test]
fn the_advice_is_that_of_the_book() {
    let mut command = fednode();
    command.args(["advise", "--all"]);
    let output = run(command);
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    let head = "# Advice\n\n\
        `fednode advise SOURCE` looks at your data and says what to begin with. Nothing leaves your machine for that. It gives the\n\
        rows of this table that are for such data. The table is made from the code, and its figures are those of the pages that it\n\
        names.\n\n";
    holds("docs/reference/advice.md", &format!("{head}{table}"));
}

/// The program's sources, one after the other.
fn said_in_sources() -> String {
    let all = ["crates", "daemon", "bootstrap"].map(|folder| files(folder, "rs"));
    let is_of_tests = |path: &Path| {
        let path = path.strip_prefix(root()).unwrap();
        path.parent().unwrap().iter().any(|part| part == "tests")
    };
    let sources = all.iter().flatten().filter(|path| !is_of_tests(path));
    sources
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

#[test]
fn every_message_that_the_page_on_exit_codes_explains_is_one_of_the_program() {
    let page = fs::read_to_string(root().join("docs/reference/exit-codes.md")).unwrap();
    let sources = said_in_sources();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ``"));
    let messages: Vec<&str> = rows.map(|row| row.split_once("``").unwrap().0).collect();
    assert!(messages.len() > 30, "{messages:?}");
    // The parser of command lines says this one.
    for message in messages
        .iter()
        .filter(|message| **message != "unexpected argument")
    {
        for part in message.split('…') {
            assert!(
                sources.contains(part.trim()),
                "nothing says `{part}`: {message}"
            );
        }
    }
}

#[test]
fn every_command_and_flag_is_on_the_page_of_commands() {
    let page = fs::read_to_string(root().join("docs/reference/commands.md")).unwrap();
    // What all of them take is said once, at the top.
    let of_all = flags_in(page.split_once("\n## ").unwrap().0);
    for (program, fewest) in [("fednode", 35), ("fedboot", 7)] {
        let said = commands_on_page(&page, program);
        let mut there = commands_of(program);
        let own = there.remove("").unwrap();
        let unsaid: Vec<&String> = own.difference(&of_all).collect();
        assert!(unsaid.is_empty(), "flags of `{program}`: {unsaid:?}");
        assert!(there.len() >= fewest, "{there:?}");
        let (named, true_ones): (Vec<&String>, Vec<&String>) =
            (said.keys().collect(), there.keys().collect());
        assert_eq!(named, true_ones, "the commands of `{program}`");
        for (command, flags) in &there {
            let unsaid: Vec<&String> = flags
                .iter()
                .filter(|flag| !said[command].contains(*flag) && !of_all.contains(*flag))
                .collect();
            assert!(unsaid.is_empty(), "`{program} {command}`: no {unsaid:?}");
            // `privacy` takes all settings of a node, and so on: nothing on the page is made up.
            let untrue: Vec<&String> = said[command].difference(flags).collect();
            assert!(untrue.is_empty(), "`{program} {command}`: {untrue:?}");
        }
    }
}

#[test]
fn every_script_is_on_the_page_of_commands() {
    let page = fs::read_to_string(root().join("docs/reference/commands.md")).unwrap();
    let mut scripts = BTreeSet::new();
    for entry in fs::read_dir(root().join("scripts")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // Other files are parts of these.
        if path.is_file() && !name.contains('.') {
            scripts.insert(name.replacen("netlab-", "netlab ", 1));
        }
    }
    assert!(scripts.len() > 15, "{scripts:?}");
    let unsaid: Vec<&String> = scripts
        .iter()
        .filter(|name| !page.contains(&format!("`scripts/{name}`")))
        .collect();
    assert!(unsaid.is_empty(), "{unsaid:?}");
}

/// The words in back quotes of a document, outside of blocks of code.
fn quoted(document: &Path) -> Vec<String> {
    let text = fs::read_to_string(document).unwrap();
    let (mut prose, mut is_code) = (String::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose = prose + line + "\n";
        }
    }
    // Two back quotes stand around what has one in it.
    let prose: String = prose.split("``").step_by(2).collect();
    let n_quotes = prose.matches('`').count();
    assert!(n_quotes.is_multiple_of(2), "{}", document.display());
    let quoted = prose.split('`').skip(1).step_by(2);
    let words = quoted.flat_map(str::split_whitespace);
    words
        .map(|word| word.trim_matches(|c: char| "(),;:".contains(c)).to_owned())
        .collect()
}

/// Tells whether part of a path stands for others: `NAME.toml`, `*.py`, `<date>`.
fn is_placeholder(part: &str) -> bool {
    let stem = part.split('.').next().unwrap();
    let is_capitals = !stem.is_empty() && stem.chars().all(|c| c.is_uppercase() || c == '_');
    is_capitals || part.contains(|c: char| "*…<>{}$=|".contains(c))
}

/// Tells whether a path is there, as far as it has no placeholder; nothing if it is none of the repository. The folder
/// `crates` may be left out before a crate's name, and what leads to a file of Rust within its crate.
fn is_there(word: &str, sources: &[PathBuf]) -> Option<bool> {
    const FOLDERS: [&str; 9] = [
        "bench",
        "bootstrap",
        "crates",
        "daemon",
        "docs",
        "experiments",
        "packaging",
        "scripts",
        "tests",
    ];
    let (first, rest) = word.split_once('/')?;
    let parts = word.split('/').take_while(|part| !is_placeholder(part));
    let path: PathBuf = parts.collect();
    let within_crate = ["src", "tests", "examples", "benches"];
    if FOLDERS.contains(&first) {
        Some(root().join(path).exists())
    } else if within_crate.contains(&rest.split('/').next().unwrap()) {
        Some(root().join("crates").join(path).exists())
    } else {
        let is_source = word.ends_with(".rs") && path.ends_with(word);
        is_source.then(|| sources.iter().any(|source| source.ends_with(&path)))
    }
}

#[test]
fn every_source_that_a_document_names_is_there() {
    let folders = ["crates", "daemon", "bootstrap", "tests"];
    let sources = folders.map(|folder| files(folder, "rs")).concat();
    // What an old entry of the changelog names may be gone.
    let documents = documents().into_iter();
    let documents = documents.filter(|path| !path.ends_with("CHANGELOG.md"));
    let (mut n_named, mut missing) = (0, vec![]);
    for document in documents {
        for word in quoted(&document) {
            let Some(found) = is_there(&word, &sources) else {
                continue;
            };
            n_named += 1;
            if !found {
                missing.push(format!("{}: `{word}`", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(n_named > 150, "{n_named}");
}

#[test]
fn every_test_that_the_page_on_security_names_is_there() {
    let page = fs::read_to_string(root().join("docs/explanation/security.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| Some(row.strip_suffix(" |")?.rsplit_once(" | ")?.1));
    let (mut n_named, mut known) = (0, BTreeMap::<String, String>::new());
    for part in cells.flat_map(|cell| cell.split("; ")) {
        let Some((package, names)) = part.split_once(": ") else {
            continue; // The head of a table.
        };
        let folder = match package.trim_matches('`') {
            "e2e" => "tests".to_owned(),
            "fednode" => "daemon".to_owned(),
            name => format!("crates/{name}"),
        };
        let text = known.entry(folder).or_insert_with_key(|folder| {
            let texts = files(folder, "rs").into_iter();
            texts
                .map(|path| fs::read_to_string(path).unwrap())
                .collect()
        });
        for name in names.split('`').skip(1).step_by(2) {
            n_named += 1;
            let test = format!("fn {name}()");
            assert!(text.contains(&test), "{package} has no test `{name}`");
        }
    }
    assert!(n_named > 100, "{n_named}");
}
