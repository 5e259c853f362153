//! What a member waits for, in one line.

use fednode_runtime::status::WaitingFor;

use crate::table::duration;

/// Says what is waited for, from whom and for how long.
pub fn describe(waiting: &WaitingFor) -> String {
    /// More names than this help nobody.
    const SHOWN: usize = 4;
    let mut names: Vec<String> = waiting
        .whom
        .iter()
        .take(SHOWN)
        .map(|node| node.short())
        .collect();
    if waiting.whom.len() > SHOWN {
        names.push(format!("{} more", waiting.whom.len() - SHOWN));
    }
    let from = if names.is_empty() {
        String::new()
    } else {
        format!(" from {}", names.join(", "))
    };
    format!("{}{from}, for {}", waiting.what, duration(waiting.seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::NodeId;

    #[test]
    fn names_at_most_four_whom_it_waits_for() {
        let whom: Vec<NodeId> = (0..6).map(|byte| NodeId::from_bytes([byte; 32])).collect();
        let waiting = WaitingFor {
            what: "updates".into(),
            whom,
            seconds: 3.0,
        };
        let text = describe(&waiting);
        assert!(
            text.starts_with("updates from ") && text.ends_with(", 2 more, for 3.0 s"),
            "{text}"
        );
        let waiting = WaitingFor {
            what: "the trainer".into(),
            whom: vec![],
            seconds: 61.0,
        };
        assert_eq!(describe(&waiting), "the trainer, for 61 s");
    }
}
