//! Variables that set nothing: which one was meant.
//!
//! Only the part of a name is compared that tells keys apart. What all variables begin with would make each like each.

use crate::doc::Entry;
use crate::layers::Variables;
use crate::spelling::{nearest, quoted};

/// Says that a variable is unknown, and which ones are nearest. Variables do not name the table of their key. One that does,
/// as `FEDNODE_NETWORK_MDNS`, is looked for in that table.
pub(crate) fn unknown_variable(
    unknown: &str,
    names: Variables,
    keys: &[(&Entry<'_>, String)],
) -> String {
    let short = |name: &str| name.strip_prefix(names.prefix).unwrap_or(name).to_owned();
    let wanted = short(unknown);
    let tables = keys.iter().map(|(entry, _)| table_of(entry));
    let table = tables
        .filter(|table| !table.is_empty() && wanted.starts_with(table))
        .max_by_key(String::len)
        .unwrap_or_default();
    let in_table = |entry: &Entry<'_>| table.is_empty() || table_of(entry) == table;
    let of_keys = keys.iter().filter(|(entry, _)| in_table(entry));
    let of_keys = of_keys.map(|(entry, variable)| match table.as_str() {
        "" => (short(variable), variable.as_str()),
        _ => (entry.doc.key.to_ascii_uppercase(), variable.as_str()),
    });
    let others = names.others.iter().copied();
    let others = others.filter(|name| table.is_empty() || format!("{}_", short(name)) == table);
    let candidates: Vec<(String, &str)> = of_keys
        .chain(others.map(|name| (short(name), name)))
        .collect();
    let valid: Vec<&str> = candidates.iter().map(|(name, _)| name.as_str()).collect();
    let near = nearest(&wanted[table.len()..], &valid);
    let offered = candidates
        .iter()
        .filter(|(name, _)| near.is_empty() || near.contains(&name.as_str()));
    let offered: Vec<&str> = offered.map(|(_, variable)| *variable).collect();
    let offered = quoted(&offered);
    if near.is_empty() {
        let all = offered.join(", ");
        format!("unknown variable `{unknown}`: expected one of {all}")
    } else {
        let best = offered.join(" or ");
        format!("unknown variable `{unknown}`: did you mean {best}?")
    }
}

/// Returns what a variable would begin with that named the table of its key: `NETWORK_`, and nothing at the top.
fn table_of(entry: &Entry<'_>) -> String {
    let parts = entry.path.iter();
    parts
        .map(|part| format!("{}_", part.to_ascii_uppercase()))
        .collect()
}
