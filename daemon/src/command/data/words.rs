//! `fednode data SOURCE --words FILE`: one list of words for all nodes of a federation of texts.
//!
//! A list says which words occur in somebody's texts. So a word that fewer than five of them have is left out: it may be a
//! name.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use fednode_data::{DataSource, Vocabulary};
use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use fednode_cli::failure::{OrFail, fail};
use fednode_cli::output::{self, Form, Report};

/// Fewest texts that a word must be in.
const FEWEST_TEXTS: u64 = Vocabulary::FEWEST_TEXTS;

/// Writes the list and says what it is for.
///
/// # Errors
/// Fails if the source holds no texts, if no word is in enough of them, and if the file is there already.
pub(super) fn write(source: &DataSource, path: &Path, form: Form) -> anyhow::Result<()> {
    let opened = source.open().or_fail(ExitCode::Data)?;
    let words = opened.common_words(FEWEST_TEXTS).or_fail(ExitCode::Data)?;
    let refuse = |text: String| fail(ExitCode::Data, text);
    let words = words.ok_or_else(|| {
        refuse(format!(
            "`{source}` holds no texts: `--words` is for `text:FILE` and `ag-news:DIR`"
        ))
    })?;
    if words.is_empty() {
        let text = format!("no word of `{source}` is in {FEWEST_TEXTS} texts: bring more texts");
        return Err(refuse(text));
    }
    let tokens = words.tokens();
    create(path, &(tokens.join("\n") + "\n")).map_err(|error| {
        let shown = path.display();
        let cause = match error.kind() {
            io::ErrorKind::AlreadyExists => "it is there already; name another file".to_owned(),
            _ => error.to_string(),
        };
        fail(ExitCode::State, format!("cannot write `{shown}`: {cause}"))
    })?;
    let answer = Written {
        words: tokens.len(),
        fewest_texts: FEWEST_TEXTS,
        file: path.display().to_string(),
    };
    output::print(&answer, form)
}

fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes()).inspect_err(|_| {
        // Half a list would be taken for one, and would be in the way of the next try.
        std::fs::remove_file(path).ok();
    })
}

#[derive(Debug, Serialize)]
struct Written {
    words: usize,
    fewest_texts: u64,
    file: String,
}

impl Report for Written {
    fn human(&self) -> String {
        format!(
            "{} words that are in at least {} texts, the most frequent first: {file}\n\n\
             Read the list before you hand it on. All nodes take it: --data text:FILE,vocabulary_file={file}\n",
            self.words,
            self.fewest_texts,
            file = self.file
        )
    }
}
