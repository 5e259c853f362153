//! What the programs print about themselves, and what the book says of them: their commands and flags.

use std::collections::{BTreeMap, BTreeSet};

use crate::{fedboot, fednode, run};

/// Returns all commands of a program, each with its long flags; that of no name is the program itself.
///
/// # Panics
/// If a command does not say what it takes.
pub fn commands_of(program: &str) -> BTreeMap<String, BTreeSet<String>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![Vec::<String>::new()]);
    while let Some(path) = open.pop() {
        let help = help_of(program, &path);
        for name in subcommands(&help) {
            let mut deeper = path.clone();
            deeper.push(name);
            open.push(deeper);
        }
        found.insert(path.join(" "), flags_of(&help));
    }
    found
}

/// Returns what a page in Markdown says of a program's commands: the words of each, and its long flags. Those of the
/// tables that a row links to are among them.
///
/// # Panics
/// If a heading is missing.
pub fn commands_on_page(page: &str, program: &str) -> BTreeMap<String, BTreeSet<String>> {
    let groups = [
        ("(#flags-of-a-federation)", "### Flags of a federation"),
        ("(#settings-of-a-node)", "### Settings of a node"),
    ];
    let of_group = |heading: &str| -> BTreeSet<String> {
        let rows = section(page, heading).lines();
        let cells = rows.filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
        cells.flat_map(|(cell, _)| flags_in(cell)).collect()
    };
    let mut commands = BTreeMap::new();
    for (name, flags) in rows_of(section(page, &format!("## {program}"))) {
        let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        let words: Vec<&str> = name.split(' ').take_while(is_word).collect();
        if name.starts_with("--") || words.is_empty() {
            continue; // A row of a table of flags.
        }
        let mut listed = flags_in(flags);
        for (link, heading) in groups {
            if flags.contains(link) {
                listed.extend(of_group(heading));
            }
        }
        commands.insert(words.join(" "), listed);
    }
    commands
}

/// Returns the long flags in a text, without their dashes.
pub fn flags_in(text: &str) -> BTreeSet<String> {
    let is_of_a_flag = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.split(|c: char| !is_of_a_flag(c))
        .filter_map(|word| word.strip_prefix("--"))
        .filter(|name| name.starts_with(|first: char| first.is_ascii_lowercase()))
        .map(str::to_owned)
        .collect()
}

fn help_of(program: &str, path: &[String]) -> String {
    let mut command = match program {
        "fednode" => fednode(),
        _ => fedboot(),
    };
    command.args(path).arg("--help");
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {path:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the commands that a help lists. Two spaces stand before each of them.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:");
    let rows = list.skip(1).map_while(|line| line.strip_prefix("  "));
    rows.filter(|row| row.starts_with(|first: char| first.is_ascii_lowercase()))
        .filter_map(|row| row.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Returns the long flags that a help lists, other names of them among them. What is said of a flag may name those of
/// other commands, which do not count.
fn flags_of(help: &str) -> BTreeSet<String> {
    let mut flags = BTreeSet::new();
    for line in help.lines().map(str::trim_start) {
        let has_short_name = line.starts_with('-') && line.get(2..6) == Some(", --");
        if line.starts_with("--") || has_short_name {
            let name = line.split_whitespace().find(|word| word.starts_with("--"));
            flags.extend(flags_in(name.unwrap_or_default()));
        }
    }
    // One other name is `[alias: --list]`, several are `[aliases: --a, --b]`.
    for brackets in help.split("[alias").skip(1) {
        let aliases = brackets.split(']').next().unwrap_or_default();
        flags.extend(flags_in(aliases));
    }
    flags
}

/// Returns what stands between a heading and the next one that is no smaller.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, after) = page
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("no heading `{heading}`"));
    let depth = |line: &str| line.chars().take_while(|c| *c == '#').count();
    let is_end = |at: &usize| (1..=depth(heading)).contains(&depth(&after[*at + 1..]));
    let end = after.match_indices('\n').map(|(at, _)| at).find(is_end);
    &after[..end.unwrap_or(after.len())]
}

/// Visits the rows of a section's tables: the text in the back quotes that it begins with, and the last cell.
fn rows_of(section: &str) -> impl Iterator<Item = (&str, &str)> {
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let last = row.trim_end().strip_suffix('|')?.rsplit_once('|')?.1;
        Some((row.split_once('`')?.0, last))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "\
Does things.

Usage: program [OPTIONS] <COMMAND>

Commands:
  rotate-key  Replace a key
  start       Take part, as --others do
  help        Print this message

Options:
      --json
          Print JSON, as `start --config FILE` does
      --pool[=<PRESET>]
          One of these:
          - fixed: the default
      --dry-run
          Play none [aliases: --list, -n]
  -h, --help
          Print help
";

    #[test]
    fn commands_and_flags_are_those_of_the_lists() {
        assert_eq!(subcommands(HELP), ["rotate-key", "start"]);
        let flags: Vec<String> = flags_of(HELP).into_iter().collect();
        assert_eq!(flags, ["dry-run", "help", "json", "list", "pool"]);
    }

    #[test]
    fn rows_of_a_page_have_their_own_flags_and_those_of_tables_that_they_link_to() {
        let page = "# Commands\n\n## program\n\n| command | does | flags |\n|---|---|---|\n\
            | `start [FILE]` | starts | [those of a node](#settings-of-a-node), `--print` |\n\
            | `rotate-key TICKET` | replaces | |\n\n### Flags of a federation\n\n\
            ### Settings of a node\n\n| flag | key |\n|---|---|\n| `--set KEY=VALUE`, `--json` | any |\n\n\
            ## other\n\n| `stop` | stops | `--now` |\n";
        let found = commands_on_page(page, "program");
        let names: Vec<&String> = found.keys().collect();
        assert_eq!(names, ["rotate-key", "start"]);
        assert!(found["rotate-key"].is_empty());
        let flags: Vec<&String> = found["start"].iter().collect();
        assert_eq!(flags, ["json", "print", "set"]);
    }

    #[test]
    fn flags_are_found_between_other_words() {
        let found: Vec<String> = flags_in("| `--run N/M`, `--pool[=PRESET]` |---| a--b `-h` |")
            .into_iter()
            .collect();
        assert_eq!(found, ["pool", "run"]);
    }
}
