//! The commands of the book, run as they are written. Each page is a script that is played in an empty folder with the real programs;
//! `book/stage.sh` says how. A block that is not played is named with the reason.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fednode_e2e::{binary, run};

/// A page, and what is played of it.
struct Scene {
    page: &'static str,
    /// In Bash, with the functions of the stage. `block 1 2` plays the first two blocks of the page.
    script: &'static str,
    /// Which blocks are not played, and why.
    left_out: &'static [(usize, &'static str)],
}

/// Makes a test of each page.
macro_rules! scenes {
    ($($name:ident: $page:literal, $script:literal, $left_out:expr;)*) => {
        const SCENES: &[Scene] = &[$(Scene {
            page: $page,
            script: $script,
            left_out: &$left_out,
        }),*];

        $(#[test]
        fn $name() {
            let of_page = |scene: &&Scene| scene.page == $page;
            play(SCENES.iter().find(of_page).unwrap());
        })*
    };
}

const CLUSTER: &str = "it takes a cluster";
const KINDS: &str = "it has files of several kinds, which no one model is for";

scenes! {
    readme: "README.md", "
        on a; block 3 4 5
        on b; block 6
        third
        on a; block 7 8 9
    ", [(1, "they build everything"), (2, "it is about a release build")];

    one_machine: "docs/tutorial/one-machine.md", "
        on a; block 1 2 3 4 5 6 7 8 9
    ", [];

    three_machines: "docs/tutorial/three-machines.md", "
        privacy=open
        on a; block 1 2 3 4
        on b; block 5
        on hub; block 6
        on a; block 7
        all_stop; privacy=
        block 8
    ", [];

    pools: "docs/explanation/pool.md", "on a; block 1", [];

    statistics: "docs/explanation/statistics-expert.md", "on a; block 1", [];

    audits: "docs/how-to/audit.md", "
        on a; demo fedavg; settle
        mkdir fedboot; cp -r hub fedboot/state; cp -r node-1 state; cp -r node-2 copy
        block 1
    ", [];

    backups: "docs/how-to/backup.md", "
        ward; block 1
        on new; cp ../a/ward.tar .; all_stop
        block 2 3
        cp -r ../b/malmo .; fednode start --config malmo/node.toml
        block 4
    ", [];

    dashboards: "docs/how-to/dashboard.md", "
        ward; block 1 7
        cd ward; block 5
        on b; block 2 3 8
        on hub; fedboot id --state hub/fedboot-state; block 4
    ", [(6, "it takes another machine"), (9, "scripts/check-tensorboard does it")];

    experiments: "docs/how-to/experiments.md", "
        on a; block 7
    ", [
        (1, "it takes long: tests/experiments.rs checks the files"),
        (2, "it takes a disk that machines share"),
        (3, "scripts/check-slurm does it"),
        (4, CLUSTER),
        (5, CLUSTER),
        (6, CLUSTER),
        (8, "it takes long"),
    ];

    exports: "docs/how-to/export.md", "on a; tables; block 1", [];

    more_rounds: "docs/how-to/extend.md", "
        ward; block 1 2
        on b; block 3 4
    ", [];

    fedboots: "docs/how-to/fedboot.md", "
        ward; fednode invite hub --role aggregator --dir ward
        on hub; block 1 2
    ", [];

    lists_of_members: "docs/how-to/keys-and-allow-lists.md", "
        on a; fednode init . --open --nodes 2 --data digits --json | jq -er .node_id > members.txt
        fedboot id >> members.txt
        block 1 2
    ", [];

    measures: "docs/how-to/measure.md", "on a; block 1", [];

    members: "docs/how-to/members.md", "
        on a; block 1 2
        on b; block 3
        on a; block 4 7
        on b; block 8
        on a; block 9
        all_stop; block 6
    ", [(5, "it has the address of a machine")];

    metrics: "docs/how-to/metrics.md", "
        on a; demo fedavg; block 1 2
        all_stop; ward
        block 3 4 5
    ", [(6, "it changes the system")];

    own_data: "docs/how-to/own-data.md", "
        privacy=open
        on a; block 1 3 4 5
        fednode start --config ward/node.toml; fednode invite b --dir ward
        on b; block 2
        cp ../a/ward/federation.toml .; block 6
        third
        on a; block 7
        texts; block 8
    ", [];

    own_models: "docs/how-to/own-model.md", "
        on a; block 1 2
    ", [(3, "it takes somebody's parameters: the tests of initial parameters have small ones")];

    numbers: "docs/how-to/predict-a-number.md", "on a; block 1 2", [];

    reach: "docs/how-to/reach.md", "
        on a; fednode init ward --nodes 3 --data csv:a.csv,label=outcome; block 1
    ", [];

    replays: "docs/how-to/replay.md", "on a; demo fedavg; block 1", [];

    reports: "docs/how-to/reports.md", "on a; experiment; block 1", [];

    servers: "docs/how-to/serve.md", "
        on a; tables; block 2 3
        ward; block 1
    ", [];

    models: "docs/how-to/use-the-model.md", "
        on a; tables; block 3
        rm model.*; block 4
    ", [
        (1, KINDS),
        (2, KINDS),
        (5, "its lines are for nodes of two algorithms: tests/models.rs has both"),
    ];

    data_sets: "docs/reference/data.md", "on a; block 1", [];
}

/// Pages of which nothing is played, and why.
const OTHERS: [(&str, &str); 4] = [
    (
        "docs/how-to/packages.md",
        "scripts/check-packages installs what it names",
    ),
    ("docs/how-to/python.md", "scripts/check-wheel does it"),
    ("docs/how-to/kubernetes.md", CLUSTER),
    (
        "docs/how-to/backbone.md",
        "tests/backbone.rs does it with a small one",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the commands of a page, block by block.
fn blocks(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut blocks = vec![];
    let mut open = None;
    for line in text.lines() {
        match (line.trim(), &mut open) {
            ("```sh", None) => open = Some(String::new()),
            ("```", Some(_)) => blocks.extend(open.take()),
            (line, Some(block)) => writeln!(block, "{line}").unwrap(),
            (_, None) => {}
        }
    }
    blocks
}

/// Returns the numbers of the blocks that a script plays.
fn played(script: &str) -> BTreeSet<usize> {
    let mut played = BTreeSet::new();
    for command in script.split([';', '\n']) {
        if let Some(numbers) = command.trim().strip_prefix("block ") {
            played.extend(
                numbers
                    .split_whitespace()
                    .map(|n| n.parse::<usize>().unwrap()),
            );
        }
    }
    played
}

/// Three wards with patients: age, pain and days of stay, and what became of them.
fn write_tables(folder: &Path) {
    let table = |seed: usize, rows: usize| {
        let mut text = "age,pain,stay,outcome\n".to_owned();
        for at in 0..rows {
            let draw = (at * 37 + seed * 11) % 100;
            let (age, is_ill) = (30 + draw / 2, (draw + at % 7 * 4) > 60);
            let pain = ["none", "some", "much"][(draw / 34 + usize::from(is_ill)).min(2)];
            let (stay, outcome) = (2 + draw / 20, ["well", "ill"][usize::from(is_ill)]);
            writeln!(text, "{age},{pain},{stay},{outcome}").unwrap();
        }
        text
    };
    let names = ["a", "b", "c", "ward", "ward-a", "ward-b", "other"];
    for (seed, name) in names.iter().enumerate() {
        fs::write(folder.join(format!("{name}.csv")), table(seed, 160)).unwrap();
    }
    for name in ["new-patients.csv", "new-rows.csv"] {
        fs::write(folder.join(name), table(9, 5)).unwrap();
    }
}

/// Plays a scene.
fn play(scene: &Scene) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["data", "blocks"] {
        fs::create_dir(path(name)).unwrap();
    }
    write_tables(&path("data"));
    for (at, block) in blocks(scene.page).iter().enumerate() {
        let block = block
            .replace("<time>", "TIME")
            .replace("<experiment>", "experiment");
        let block = block.replace("runs/TIME", "\"$(newest)\"");
        fs::write(path(&format!("blocks/{}", at + 1)), block).unwrap();
    }
    let stage = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/book/stage.sh");
    let script = format!(". {stage}\n{}\n", scene.script);
    fs::write(path("script"), script).unwrap();
    // Whatever runs in the background ends with it, also when it takes too long.
    let mut bash = Command::new("timeout");
    bash.args(["-k", "10", "280", "bash"]);
    bash.arg(path("script")).env("SCENE", folder.path());
    bash.env("BIN", binary("fednode").parent().unwrap());
    let played = run(bash);
    let said = [played.stdout, played.stderr].concat();
    assert!(
        played.status.success(),
        "{}: {}\n{}",
        scene.page,
        played.status,
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn every_block_of_the_book_is_played_or_left_out_for_a_reason() {
    let mut pages = vec![PathBuf::from("README.md"), PathBuf::from("docs")];
    let mut with_blocks = BTreeSet::new();
    while let Some(page) = pages.pop() {
        if root().join(&page).is_dir() {
            let entries = fs::read_dir(root().join(&page)).unwrap();
            pages.extend(entries.map(|entry| page.join(entry.unwrap().file_name())));
        } else if page.extension().is_some_and(|end| end == "md") {
            let page = page.to_str().unwrap().to_owned();
            let n = blocks(&page).len();
            with_blocks.extend((n > 0).then_some((page, n)));
        }
    }
    for (page, n) in with_blocks {
        if OTHERS.iter().any(|(other, _)| *other == page) {
            continue;
        }
        let scene = SCENES.iter().find(|scene| scene.page == page);
        let scene = scene.unwrap_or_else(|| panic!("{page} has commands: play them"));
        let mut all = played(scene.script);
        for (block, reason) in scene.left_out {
            assert!(all.insert(*block) && !reason.is_empty(), "{page}: {block}");
        }
        assert_eq!(all, (1..=n).collect(), "blocks of {page}");
    }
}
