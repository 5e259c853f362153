//! Texts of several owners: from files to a list of words, a federation and models that read a line.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use fednode_e2e::{assert_fails, fednode, json_of, run};

const TOPICS: [(&str, [&str; 6]); 3] = [
    ("fruit", ["apple", "pear", "fig", "plum", "grape", "melon"]),
    ("metal", ["iron", "zinc", "lead", "steel", "gold", "brass"]),
    ("ships", ["sail", "mast", "keel", "deck", "rope", "stern"]),
];

/// An owner's texts of eight words, two of which are of the topic; one name is in each owner's first text alone.
fn texts(folder: &Path, owner: &str, rows: std::ops::Range<usize>) -> PathBuf {
    let common = ["the", "and", "we", "of", "it", "was", "to", "on", "by"];
    let mut table = String::new();
    for row in rows.clone() {
        let (topic, words) = &TOPICS[row * 5 % 3];
        let mut text: Vec<&str> = (0..6)
            .map(|at| common[(row / 3 * 7 + at * at * 5) % 9])
            .collect();
        text.extend([words[row / 3 % 6], words[row / 7 % 6]]);
        if row == rows.start {
            text.extend([owner; 7]);
        }
        writeln!(table, "{topic},{}", text.join(" ")).unwrap();
    }
    let path = folder.join(format!("{owner}.csv"));
    std::fs::write(&path, table).unwrap();
    path
}

fn list_words(source: &str, file: &Path) -> std::process::Output {
    let mut command = fednode();
    command
        .args(["data", "--json", source, "--words"])
        .arg(file);
    run(command)
}

#[test]
fn texts_of_two_owners_become_models_that_read_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let owners = [("ann", 0..180), ("bob", 400..580)];
    let tables = owners.map(|(owner, rows)| texts(folder.path(), owner, rows));
    let swarm = |sources: &[String]| {
        let mut swarm = fednode();
        let out = folder.path().join("out");
        swarm
            .args([
                "swarm", "--json", "--device", "cpu", "--rounds", "2", "--out",
            ])
            .arg(&out);
        for source in sources {
            swarm.args(["--own", source]);
        }
        run(swarm)
    };
    let plain = tables
        .each_ref()
        .map(|table| format!("text:{}", table.display()));
    let advice = "`fednode data SOURCE --words FILE` makes one";
    assert_fails(&swarm(&plain), 4, &[advice]);

    let words = folder.path().join("words.txt");
    let written = json_of(&list_words(&plain[0], &words));
    let list = std::fs::read_to_string(&words).unwrap();
    assert_eq!(written["words"], list.lines().count());
    assert!(list.lines().any(|word| word == "melon"), "{list}");
    assert!(
        !list.contains("ann"),
        "a name of one text is in no list: {list}"
    );
    let again = list_words(&plain[0], &words);
    assert_fails(&again, 7, &["it is there already; name another file"]);
    let images = list_words("digits", &folder.path().join("none.txt"));
    assert_fails(&images, 4, &["`digits` holds no texts"]);

    let listed = plain.map(|source| format!("{source},vocabulary_file={}", words.display()));
    let summary = json_of(&swarm(&listed));
    let number = |key: &str| summary[key].as_f64().unwrap();
    assert!(
        number("served") >= number("alone") && number("served") > 0.9,
        "{summary}"
    );
    let exchanged = summary["bytes_per_round"]["peer_to_peer"].as_f64();
    assert!(exchanged > Some(0.0), "peers' statistics travel: {summary}");
    let lines = folder.path().join("new.txt");
    std::fs::write(&lines, "we sail by the keel\nit was zinc and gold\n").unwrap();
    let mut predict = fednode();
    let state = folder.path().join("out/nodes/1/state");
    predict
        .args(["predict", "--json", "--state"])
        .arg(state)
        .arg(&lines);
    let said = json_of(&run(predict));
    let names: Vec<&str> = said
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["ships", "metal"]);
}

/// Whoever brings texts of its own is protected without a word, as with tables.
#[test]
fn a_federation_of_ones_own_texts_is_masked_and_has_noise() {
    let folder = tempfile::tempdir().unwrap();
    let table = texts(folder.path(), "ann", 0..180);
    let words = folder.path().join("words.txt");
    let init = |data: &str| {
        let mut init = fednode();
        init.args(["init", "--json", "--nodes", "3", "--data", data]);
        init.arg(folder.path().join("ward"));
        run(init)
    };
    let plain = format!("text:{}", table.display());
    assert_fails(&init(&plain), 4, &["vocabularies would differ"]);
    json_of(&list_words(&plain, &words));
    let source = format!("{plain},vocabulary_file={}", words.display());
    assert_eq!(json_of(&init(&source))["privacy"], "masked+dp:4");
    let mut privacy = fednode();
    let spec = folder.path().join("ward/federation.toml");
    privacy.args(["privacy", "--json", "--data", &source, "--spec"]);
    let told = json_of(&run({
        privacy.arg(spec);
        privacy
    }));
    let published = told["attacks"][0]["published"].as_str().unwrap();
    assert!(
        published.starts_with("its part of a noised total"),
        "{told}"
    );
}
