//! The allow-list: a file with the node ids that may take part, one a line, the same for nodes and `fedboot`.
//!
//! Empty lines and what follows `#` are for people.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use fednode_core::{NameError, NodeId};

/// Why an allow-list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AllowListError {
    /// The file cannot be read.
    #[error("cannot read the allow-list `{}`: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It names nobody.
    #[error(
        "the allow-list `{}` names no node, so everybody would be turned away: write the ids of all members into it, one a line",
        .0.display()
    )]
    Empty(PathBuf),
    /// A line is no node id.
    #[error("`{}`, line {line}: {source}", path.display())]
    NoNodeId {
        /// The file.
        path: PathBuf,
        /// Its line, counting from 1.
        line: usize,
        /// What is wrong with it.
        source: NameError,
    },
}

/// Reads an allow-list.
///
/// # Errors
/// Says why the file cannot be read, or names the first line that is no node id. Refuses a list without any.
pub fn read(path: &Path) -> Result<BTreeSet<NodeId>, AllowListError> {
    let text = std::fs::read_to_string(path).map_err(|source| AllowListError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let nodes = parse(&text).map_err(|(line, source)| AllowListError::NoNodeId {
        path: path.to_owned(),
        line,
        source,
    })?;
    if nodes.is_empty() {
        return Err(AllowListError::Empty(path.to_owned()));
    }
    Ok(nodes)
}

fn parse(text: &str) -> Result<BTreeSet<NodeId>, (usize, NameError)> {
    let lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.split('#').next().unwrap_or_default().trim()));
    let ids = lines.filter(|(_, line)| !line.is_empty());
    ids.map(|(at, line)| line.parse().map_err(|error| (at, error)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allow_lists_may_have_comments() {
        let id = NodeId::from_bytes([0; 32]);
        let text = format!("# hospitals\n\n{id}  # Lund\n");
        assert_eq!(parse(&text).unwrap(), BTreeSet::from([id]));
        let (line, error) = parse("\nnobody").unwrap_err();
        assert_eq!(line, 2);
        assert!(error.to_string().starts_with("`nobody`"), "{error}");
        let error = read(Path::new("no such list")).unwrap_err().to_string();
        let expected = "cannot read the allow-list `no such list`";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn a_list_of_nobody_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members.txt");
        std::fs::write(&path, "# to be filled\n\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("names no node"), "{error}");
        let id = NodeId::from_bytes([0; 32]);
        std::fs::write(&path, format!("{id}\n")).unwrap();
        assert_eq!(read(&path).unwrap(), BTreeSet::from([id]));
    }
}
