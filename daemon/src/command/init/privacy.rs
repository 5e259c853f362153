//! The one question of `fednode init`: what the other members may see of this node's data.
//!
//! It is asked of people at a terminal who make a new federation of several nodes and did not say it. Enter is an answer where
//! the data are public. Whoever brings data of its own decides.

use std::io::{self, BufRead, IsTerminal, Write};

use fednode_core::spec::{PrivacyMode, Sums};
use fednode_data::DataSource;
use serde::Serializer;

use super::Args;
use super::prepared::with_partition;
use fednode_cli::data;
use fednode_cli::federation;
use fednode_cli::output::Form;

/// What the answers are. Each line says who learns what.
const QUESTION: &str = "\
What may the other members see of a node's data?
  open          what the algorithm shares, as it is. Of few samples they can tell who is in them.
  masked        sums over nodes, and nothing of one node while the others do not pool what they know. It takes three nodes.
  masked+dp:4   such sums with noise, while at most a quarter of the nodes work together. It takes three nodes, too.
  dp:4          each node's own statistics or training, with all the noise. It takes no trust in anybody.
Less than 4 hides more and costs more. `fednode privacy` measures what your data would tell.
";

/// Returns the flags with the answer, if the question is to be asked.
pub(super) fn with_answer(
    args: &Args,
    source: &DataSource,
    form: Form,
) -> anyhow::Result<federation::Args> {
    let mut federation = with_partition(args, source);
    let is_said = federation.privacy.is_some()
        || federation
            .set
            .iter()
            .any(|set| set.key.starts_with("privacy."));
    let has_people = form == Form::Human && io::stdin().is_terminal() && io::stderr().is_terminal();
    let is_alone = federation.nodes == Some(1);
    if has_people && !is_said && !is_alone {
        let set = federation.set.iter().rev();
        let set = set.clone().find(|set| set.key == "data.partition");
        let partition = set.map(|set| set.value.as_str());
        let partition = partition.or(federation.partition.as_deref());
        let is_own = partition.is_some_and(data::is_own);
        federation.privacy = ask(&mut io::stdin().lock(), &mut io::stderr(), is_own)?;
    }
    Ok(federation)
}

/// Says what a mode lets others see.
pub(super) fn in_words(mode: PrivacyMode) -> String {
    let words = match (mode.sums(), mode.epsilon()) {
        (Sums::Open, None) => {
            "members see what each node shares; `fednode privacy` measures what that tells"
        }
        (Sums::Open, Some(_)) => "each node adds noise to what it shares",
        (Sums::Masked, None) => "members see sums over nodes alone",
        (Sums::Masked, Some(_)) => "members see sums over nodes alone, with noise",
    };
    format!("{mode}: {words}")
}

/// Writes a mode as it is typed.
pub(super) fn as_text<S: Serializer>(mode: &PrivacyMode, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(mode)
}

/// Asks until the answer is one. Nothing if there is none, or Enter alone where that is enough.
fn ask(
    input: &mut impl BufRead,
    output: &mut impl Write,
    is_own: bool,
) -> io::Result<Option<PrivacyMode>> {
    write!(output, "{QUESTION}")?;
    loop {
        let default = if is_own { "" } else { " [open]" };
        write!(output, "privacy{default}: ")?;
        output.flush()?;
        let mut answer = String::new();
        let is_over = input.read_line(&mut answer)? == 0;
        match answer.trim() {
            "" if is_over && is_own => {
                let text = "no answer: say it with `--privacy`";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            "" if !is_own => return Ok(None),
            "" => writeln!(output, "Your data are your own: type one of the four.")?,
            answer => match answer.parse() {
                Ok(mode) => return Ok(Some(mode)),
                Err(error) => writeln!(output, "{error}")?,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(typed: &str, is_own: bool) -> (Option<String>, String) {
        let mut said = Vec::new();
        let mode = ask(&mut typed.as_bytes(), &mut said, is_own).ok().flatten();
        let said = String::from_utf8(said).unwrap();
        (mode.map(|mode| mode.to_string()), said)
    }

    #[test]
    fn the_question_is_asked_until_it_is_answered() {
        let (mode, said) = asked("\nperhaps\nmasked+dp:4\n", true);
        assert_eq!(mode.as_deref(), Some("masked+dp:4"));
        assert!(said.contains("type one of the four"), "{said}");
        assert_eq!(said.matches("privacy: ").count(), 3, "{said}");
        let (mode, said) = asked("\n", false);
        assert_eq!(mode, None);
        assert!(said.ends_with("privacy [open]: "), "{said}");
        assert_eq!(asked("dp:1\n", false).0.as_deref(), Some("dp:1"));
        // Whoever types nothing more is not asked for ever.
        assert_eq!(asked("", true).0, None);
    }
}
