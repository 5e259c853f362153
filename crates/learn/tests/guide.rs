//! `docs/algorithms.md` is what the tables say; `UPDATE_DOCS=1` writes it anew.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use fednode_learn::algorithm::{TABLE, guide};

#[test]
fn the_page_on_algorithms_is_that_of_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/algorithms.md");
    let page = guide();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/algorithms.md is not up to date: run this test with UPDATE_DOCS=1"
    );
    for row in TABLE {
        assert!(
            page.contains(&format!("\n## `{}`\n", row.name)),
            "{}",
            row.name
        );
    }
}
