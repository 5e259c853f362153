//! `fednode experts`: whose experts a running node mixes into its own.

use fednode_runtime::exit::ExitCode;
use fednode_runtime::status::{ExpertSource, Experts};
use serde::Serialize;

use fednode_cli::failure::OrFail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::StateArgs;
use fednode_cli::table::{number, percent, render, text};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    state: StateArgs,
}

/// Asks the node and prints its answer.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let experts = args.state.client()?.experts().or_fail(ExitCode::State)?;
    output::print(&Answer(experts), form)
}

#[derive(Debug, Serialize)]
struct Answer(Experts);

impl Report for Answer {
    fn human(&self) -> String {
        let composition = self.0.composition.as_ref();
        let served = composition.map(|made_of| format!("\nserved: {made_of}\n"));
        let served = served.unwrap_or_default();
        let Some(planned_in) = self.0.planned_in else {
            let text = "no plan is in force. One is made once proxies were exchanged, in the beginning and every `refresh_every` rounds; \
                        under masks, and with algorithms that exchange no experts, there is none.";
            return format!("{text}\n{served}");
        };
        let columns = [
            text("own expert"),
            text("mixed with"),
            number("similarity"),
            number("weight"),
            number("held from"),
        ];
        let rows: Vec<Vec<String>> = self
            .0
            .rows
            .iter()
            .flat_map(|row| {
                row.sources
                    .iter()
                    .enumerate()
                    .map(|(at, source)| cells(at, row.slot.0, source))
            })
            .collect();
        format!(
            "plan made of the proxies of round {planned_in}\n\n{}{served}",
            render(&columns, &rows)
        )
    }
}

fn cells(at: usize, slot: u16, source: &ExpertSource) -> Vec<String> {
    let name = if source.own {
        format!("own {}", source.expert.slot)
    } else {
        source.expert.to_string()
    };
    vec![
        if at == 0 {
            slot.to_string()
        } else {
            String::new()
        },
        name,
        format!("{:.3}", source.similarity),
        percent(source.weight),
        source
            .held_from
            .map_or("not held".into(), |round| format!("round {round}")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{Component, Composition, ExpertId, NodeId, Round, Slot};
    use fednode_runtime::status::ExpertRow;

    #[test]
    fn one_line_per_source_and_the_own_expert_named_once() {
        let expert = |byte| ExpertId {
            owner: NodeId::from_bytes([byte; 32]),
            slot: Slot(1),
        };
        let source = |byte, own, held_from| ExpertSource {
            expert: expert(byte),
            own,
            similarity: 0.5,
            weight: 0.25,
            held_from,
        };
        let sources = vec![source(1, true, Some(Round(2))), source(2, false, None)];
        let rows = vec![ExpertRow {
            slot: Slot(1),
            sources,
        }];
        let text = Answer(Experts {
            planned_in: Some(Round(2)),
            rows,
            composition: Some(
                Composition::of(Component::OwnModel).joined(Component::PeersStatistics, 0.75),
            ),
        })
        .human();
        let foreign = expert(2).to_string();
        assert!(text.contains("own 1"), "{text}");
        assert!(
            text.ends_with("\nserved: 75 % peers' statistics, 25 % own model\n"),
            "{text}"
        );
        assert!(
            text.lines()
                .any(|line| line.contains(&foreign) && line.ends_with("not held")),
            "{text}"
        );
    }
}
