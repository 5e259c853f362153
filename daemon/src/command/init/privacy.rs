//! The one question of `fednode init`: what the other members may see of this node's data.
//!
//! It is asked of people at a terminal who make a new federation of several nodes and did not say it. Where the data are public
//! nothing is hidden by default. Where each node brings data of its own, sums with noise are the default. Some federations cannot
//! have them, and then somebody decides: such data never become open because nobody said anything.

use std::io::{self, BufRead, IsTerminal, Write};

use fednode_core::spec::{PrivacyMode, Sums};
use fednode_core::{ConfigError, FederationSpec};
use fednode_runtime::exit::ExitCode;
use serde::Serializer;

use fednode_cli::data;
use fednode_cli::failure::{OrFail, fail};
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

/// The algorithm of nodes that share nothing.
const ALONE: &str = "local";

/// What nodes with data of their own do if nobody says anything. With this noise the attacks of `fednode privacy` hardly told a
/// training sample from others (area 0.56). Federations of 5, 20 and 100 nodes served more than each node alone
/// (`experiments/README.md`).
const PROTECTED: PrivacyMode = PrivacyMode::MaskedDifferential(4.0);

/// What is known of raw tables: `experiments/README.md` has the figures.
const OF_TABLES: &str = "\
With the raw tables of four hospitals masked cost 0.1 and 0.2 points of accuracy, and masked+dp:4 0.4 points.
";

/// Returns the flags with the answer, if the question is to be asked, and else with the default. They stay as they are where
/// nothing could be made of them whatever the answer: their own error comes first.
///
/// # Errors
/// Fails where nobody answers, and the default for data of one's own cannot be had.
pub(super) fn with_answer(
    federation: federation::Args,
    facts: &DataFacts,
    form: Form,
) -> anyhow::Result<federation::Args> {
    let has_people = form == Form::Human && io::stdin().is_terminal() && io::stderr().is_terminal();
    let is_said = federation.privacy.is_some()
        || federation
            .set
            .iter()
            .any(|set| set.key.starts_with("privacy."));
    if is_said {
        return Ok(federation);
    }
    let Ok((open, _)) = federation::spec_and_note(&federation, facts) else {
        return Ok(federation);
    };
    if open.nodes == 1 || open.algorithm == ALONE {
        // Nothing is shared.
        return Ok(federation);
    }
    let with = |privacy| federation::Args {
        privacy: Some(privacy),
        ..federation.clone()
    };
    let made = |mode| federation::spec_and_note(&with(mode), facts).map(|(spec, _)| spec);
    let fits = |mode| made(mode).map(drop);
    let default = if data::is_own(&open.data.partition) {
        made(PROTECTED).and_then(|spec| of_statistics(&spec))
    } else {
        Ok(PrivacyMode::Open)
    };
    let mode = if has_people {
        let (input, output) = (&mut io::stdin().lock(), &mut io::stderr());
        let is_table = !facts.described.is_empty() && facts.target.is_none();
        let question = [QUESTION, if is_table { OF_TABLES } else { "" }].concat();
        ask(input, output, &question, default.ok(), fits).or_fail(ExitCode::Usage)?
    } else {
        default.map_err(|error| fail(ExitCode::Usage, unsaid(&error, fits)))?
    };
    Ok(with(mode))
}

/// Returns the default for data of one's own. It is for statistics, which the algorithm publishes that nobody had to name. What noise
/// costs where models are trained by it depends on too much.
fn of_statistics(spec: &FederationSpec) -> Result<PrivacyMode, ConfigError> {
    if federation::is_by_default(spec) {
        return Ok(PROTECTED);
    }
    let text = "there is no default where an algorithm or its profile is named";
    Err(ConfigError(text.into()))
}

/// Says what is to be said where nobody was there to be asked.
fn unsaid(error: &ConfigError, fits: impl Fn(PrivacyMode) -> Result<(), ConfigError>) -> String {
    let modes = [
        PrivacyMode::Open,
        PrivacyMode::Masked,
        PROTECTED,
        PrivacyMode::Differential(4.0),
    ];
    let modes = modes.into_iter().filter(|mode| fits(*mode).is_ok());
    let modes: Vec<String> = modes.map(|mode| format!("`--privacy {mode}`")).collect();
    let why = match fits(PROTECTED) {
        Ok(()) => error.to_string(),
        Err(error) => format!("the default, {PROTECTED}, cannot be had here: {error}"),
    };
    format!(
        "say what the other members may see of a node's data, with {}: {why}",
        modes.join(" or ")
    )
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

/// Asks until the answer is one that fits. Enter alone is the default, where there is one.
///
/// # Errors
/// Fails where nobody answers and there is none.
fn ask(
    input: &mut impl BufRead,
    output: &mut impl Write,
    question: &str,
    default: Option<PrivacyMode>,
    fits: impl Fn(PrivacyMode) -> Result<(), ConfigError>,
) -> io::Result<PrivacyMode> {
    write!(output, "{question}")?;
    let shown = default.map(|mode| format!(" [{mode}]")).unwrap_or_default();
    loop {
        write!(output, "privacy{shown}: ")?;
        output.flush()?;
        let mut answer = String::new();
        let is_over = input.read_line(&mut answer)? == 0;
        match (answer.trim(), default) {
            ("", Some(default)) => return Ok(default),
            ("", None) if is_over => {
                let text = "no answer: say it with `--privacy`";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            ("", None) => writeln!(output, "Your data are your own: type one of the four.")?,
            (answer, _) => match answer.parse::<PrivacyMode>().map(|mode| (mode, fits(mode))) {
                Ok((mode, Ok(()))) => return Ok(mode),
                Ok((_, Err(error))) => writeln!(output, "{error}")?,
                Err(error) => writeln!(output, "{error}")?,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Masks cannot be had.
    fn fits(mode: PrivacyMode) -> Result<(), ConfigError> {
        match mode {
            PrivacyMode::Masked => Err(ConfigError("it takes three nodes".into())),
            _ => Ok(()),
        }
    }

    fn asked(typed: &str, default: Option<PrivacyMode>) -> (io::Result<String>, String) {
        let mut said = Vec::new();
        let mode = ask(&mut typed.as_bytes(), &mut said, QUESTION, default, fits);
        let said = String::from_utf8(said).unwrap();
        (mode.map(|mode| mode.to_string()), said)
    }

    #[test]
    fn the_question_is_asked_until_it_is_answered() {
        let (mode, said) = asked("\nperhaps\nmasked\nmasked+dp:4\n", None);
        assert_eq!(mode.unwrap(), "masked+dp:4");
        assert!(said.contains("type one of the four"), "{said}");
        assert!(said.contains("it takes three nodes\n"), "{said}");
        assert_eq!(said.matches("privacy: ").count(), 4, "{said}");
        let open = Some(PrivacyMode::Open);
        let (mode, said) = asked("\n", open);
        assert_eq!(mode.unwrap(), "open");
        assert!(said.ends_with("privacy [open]: "), "{said}");
        assert_eq!(asked("dp:1\n", open).0.unwrap(), "dp:1");
        let (mode, said) = asked("\n", Some(PROTECTED));
        assert_eq!(mode.unwrap(), "masked+dp:4");
        assert!(said.ends_with("privacy [masked+dp:4]: "), "{said}");
    }

    /// Data of one's own do not become open because nobody typed anything.
    #[test]
    fn an_end_of_input_is_no_answer_without_a_default() {
        let error = asked("", None).0.unwrap_err().to_string();
        assert!(error.contains("--privacy"), "{error}");
        let named = unsaid(&ConfigError("an algorithm is named".into()), fits);
        assert_eq!(
            named,
            "say what the other members may see of a node's data, with `--privacy open` or `--privacy masked+dp:4` or \
             `--privacy dp:4`: an algorithm is named"
        );
        let open = |mode| match mode {
            PrivacyMode::Open => Ok(()),
            _ => Err(ConfigError("two nodes".into())),
        };
        let said = unsaid(&ConfigError("two nodes".into()), open);
        let end = "with `--privacy open`: the default, masked+dp:4, cannot be had here: two nodes";
        assert!(said.ends_with(end), "{said}");
    }
}
