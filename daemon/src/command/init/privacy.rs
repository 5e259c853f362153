//! The one question of `fednode init`: what the other members may see of this node's data.
//!
//! It is asked of people at a terminal who make a new federation of several nodes and did not say it. Enter is an answer where
//! the data are public. Whoever brings data of its own decides.

use std::io::{self, BufRead, IsTerminal, Write};

use fednode_core::ConfigError;
use fednode_core::spec::{PrivacyMode, Sums};
use fednode_runtime::exit::ExitCode;
use serde::Serializer;

use fednode_cli::data;
use fednode_cli::failure::OrFail;
use fednode_cli::federation::{self, DataFacts};
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

/// What is known of raw tables: `experiments/README.md` has the figures.
const OF_TABLES: &str = "\
With the raw tables of four hospitals masked cost 0 and 0.3 points of accuracy, and masked+dp:4 half a point.
";

/// Returns the flags with the answer, if the question is to be asked. It is not where nothing could be made of the flags
/// whatever the answer: their own error comes first.
pub(super) fn with_answer(
    federation: federation::Args,
    facts: &DataFacts,
    form: Form,
) -> anyhow::Result<federation::Args> {
    let has_people = form == Form::Human && io::stdin().is_terminal() && io::stderr().is_terminal();
    let is_alone = federation.nodes == Some(1);
    let is_said = federation.privacy.is_some()
        || federation
            .set
            .iter()
            .any(|set| set.key.starts_with("privacy."));
    if !has_people || is_alone || is_said {
        return Ok(federation);
    }
    let Ok(open) = federation::spec(&federation, facts) else {
        return Ok(federation);
    };
    let with = |privacy| federation::Args {
        privacy: Some(privacy),
        ..federation.clone()
    };
    let fits = |mode| federation::spec(&with(mode), facts).map(drop);
    let is_own = data::is_own(&open.data.partition);
    let (input, output) = (&mut io::stdin().lock(), &mut io::stderr());
    let is_table = !facts.described.is_empty() && facts.target.is_none();
    let question = [QUESTION, if is_table { OF_TABLES } else { "" }].concat();
    let answer = ask(input, output, &question, is_own, fits).or_fail(ExitCode::Usage)?;
    Ok(answer.map_or_else(|| federation.clone(), with))
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

/// Asks until the answer is one that fits. Nothing on Enter alone, where that is enough.
///
/// # Errors
/// Fails where nobody answers for data of their own.
fn ask(
    input: &mut impl BufRead,
    output: &mut impl Write,
    question: &str,
    is_own: bool,
    fits: impl Fn(PrivacyMode) -> Result<(), ConfigError>,
) -> io::Result<Option<PrivacyMode>> {
    write!(output, "{question}")?;
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
            answer => match answer.parse::<PrivacyMode>().map(|mode| (mode, fits(mode))) {
                Ok((mode, Ok(()))) => return Ok(Some(mode)),
                Ok((_, Err(error))) => writeln!(output, "{error}")?,
                Err(error) => writeln!(output, "{error}")?,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types to a federation that masks cannot be had for.
    fn asked(typed: &str, is_own: bool) -> (io::Result<Option<String>>, String) {
        let mut said = Vec::new();
        let fits = |mode: PrivacyMode| match mode {
            PrivacyMode::Masked => Err(ConfigError("it takes three nodes".into())),
            _ => Ok(()),
        };
        let mode = ask(&mut typed.as_bytes(), &mut said, QUESTION, is_own, fits);
        let said = String::from_utf8(said).unwrap();
        (mode.map(|mode| mode.map(|mode| mode.to_string())), said)
    }

    #[test]
    fn the_question_is_asked_until_it_is_answered() {
        let (mode, said) = asked("\nperhaps\nmasked\nmasked+dp:4\n", true);
        assert_eq!(mode.unwrap().as_deref(), Some("masked+dp:4"));
        assert!(said.contains("type one of the four"), "{said}");
        assert!(said.contains("it takes three nodes\n"), "{said}");
        assert_eq!(said.matches("privacy: ").count(), 4, "{said}");
        let (mode, said) = asked("\n", false);
        assert_eq!(mode.unwrap(), None);
        assert!(said.ends_with("privacy [open]: "), "{said}");
        assert_eq!(asked("dp:1\n", false).0.unwrap().as_deref(), Some("dp:1"));
    }

    /// Data of one's own do not become open because nobody typed anything.
    #[test]
    fn an_end_of_input_is_no_answer_for_own_data() {
        let error = asked("", true).0.unwrap_err().to_string();
        assert!(error.contains("--privacy"), "{error}");
        assert_eq!(asked("", false).0.unwrap(), None);
    }
}
