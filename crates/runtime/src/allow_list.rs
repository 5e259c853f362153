//! The allow-list: a file with the node ids that may take part, one a line, the same for nodes and `fedboot`.
//!
//! Empty lines and what follows `#` are for people.

use std::collections::BTreeSet;
use std::path::Path;

use fednode_core::NodeId;

/// Reads an allow-list.
///
/// # Errors
/// Says why the file cannot be read, or names the first line that is no node id.
pub fn read(path: &Path) -> Result<BTreeSet<NodeId>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read the allow-list `{shown}`: {error}"))?;
    parse(&text).map_err(|error| format!("`{shown}`, {error}"))
}

fn parse(text: &str) -> Result<BTreeSet<NodeId>, String> {
    let lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.split('#').next().unwrap_or_default().trim()));
    let ids = lines.filter(|(_, line)| !line.is_empty());
    ids.map(|(at, line)| line.parse().map_err(|error| format!("line {at}: {error}")))
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
        assert!(
            parse("\nnobody")
                .unwrap_err()
                .starts_with("line 2: `nobody`")
        );
        assert!(
            read(Path::new("no such list"))
                .unwrap_err()
                .starts_with("cannot read the allow-list `no such list`")
        );
    }
}
