//! What a member waits for, in one line.

use fednode_runtime::status::WaitingFor;

use crate::table::duration;

/// Says what is waited for, from whom and for how long.
pub fn describe(waiting: &WaitingFor) -> String {
    /// More names than this help nobody.
    const SHOWN: usize = 4;
    let (subject, time) = (waiting.subject(SHOWN), duration(waiting.seconds));
    format!("{subject}, for {time}")
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
            ..WaitingFor::default()
        };
        let text = describe(&waiting);
        assert!(
            text.starts_with("updates from ") && text.ends_with(", 2 more, for 3.0 s"),
            "{text}"
        );
        let waiting = WaitingFor {
            what: "the trainer".into(),
            seconds: 61.0,
            ..WaitingFor::default()
        };
        assert_eq!(describe(&waiting), "the trainer, for 61 s");
    }
}
