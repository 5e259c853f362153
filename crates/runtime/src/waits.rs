//! Why a member waits, for people: the machine's word for it, with what is known of the nodes that owe something.
//!
//! The machine names what and whom. Only the network's news tell why nothing comes: a node is not connected, its clock is
//! wrong, an address does not answer. Both are put together here, once for `status` and for the log.

use fednode_core::{NodeId, Refusal, Timestamp};
use fednode_engine::{Cause, Waiting};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::standing::Standing;
use crate::status::{KnownOf, WaitingFor};

/// A wait that takes longer than this comes with advice.
const LONG: f64 = 10.0;
/// Nodes that advice names.
const NAMED: usize = 3;

impl<M: Machine> Driver<'_, M> {
    /// Returns what this member waits for, and why.
    pub(crate) fn waits(&self) -> Vec<WaitingFor> {
        let now = self.base.now();
        let waiting = self.machine.status(now).waiting.into_iter();
        let mut waits: Vec<WaitingFor> = waiting
            .map(|waiting| explain(waiting, &self.standing, now))
            .collect();
        let served = self.ending.served_for(now);
        let training = self.standing.still_training();
        if let Some(served) = served.filter(|_| !training.is_empty()) {
            waits.push(WaitingFor {
                what: "word that the last rounds are over".into(),
                whom: training,
                seconds: served.as_secs_f64(),
                ..WaitingFor::default()
            });
        }
        waits
    }
}

/// Says why something is waited for.
fn explain(waiting: Waiting, standing: &Standing, now: Timestamp) -> WaitingFor {
    let seconds = waiting.since.as_secs_f64();
    let known = |node: &NodeId| {
        let text = known_of(*node, standing, now)?;
        Some(KnownOf { node: *node, text })
    };
    let remedy = (seconds >= LONG).then(|| remedy(&waiting, standing));
    WaitingFor {
        seconds,
        cause: Some(waiting.cause),
        known: waiting.whom.iter().filter_map(known).collect(),
        ends_in_seconds: waiting.ends_in.map(|left| left.as_secs_f64()),
        remedy: remedy.flatten(),
        what: waiting.what,
        whom: waiting.whom,
    }
}

fn known_of(node: NodeId, standing: &Standing, now: Timestamp) -> Option<String> {
    // First of all: a refusal explains whatever else is known of the node.
    if let Some(refusal) = standing.refusal_by(node) {
        return Some(refusal.to_string());
    }
    if let Some(seconds) = standing.seconds_ahead(&node) {
        return Some(format!("its clock is {seconds} s ahead"));
    }
    if standing.is_present(&node) {
        return None;
    }
    Some(match standing.gone_since(&node) {
        Some(at) => format!("not connected for {} s", now.since(at).as_secs()),
        None => "never connected".to_owned(),
    })
}

/// Says what somebody can do about a wait.
fn remedy(waiting: &Waiting, standing: &Standing) -> Option<String> {
    match waiting.cause {
        Cause::OwnWork => None,
        Cause::FirstPeer | Cause::Members => Some(for_members(waiting.cause, standing)),
        cause => for_peers(cause, &waiting.whom, standing),
    }
}

fn for_members(cause: Cause, standing: &Standing) -> String {
    if let Some((address, _)) = standing.silent_address() {
        return format!(
            "nothing answers at {address}: start that member, or correct `peers` and open its port"
        );
    }
    if standing.n_present() == 0 {
        return "no member is connected: start one, or name one that runs in `peers`".into();
    }
    match cause {
        Cause::FirstPeer => "if it does not come, restart this member".into(),
        _ => "start the members that are missing, and name one that runs in their `peers`".into(),
    }
}

fn for_peers(cause: Cause, whom: &[NodeId], standing: &Standing) -> Option<String> {
    let named = |nodes: &mut dyn Iterator<Item = &NodeId>| {
        let names: Vec<String> = nodes.take(NAMED).map(NodeId::short).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let has_wrong_clock = |node: &&NodeId| {
        let is_refused = matches!(standing.refusal_by(**node), Some(Refusal::Clock(_)));
        is_refused || standing.seconds_ahead(node).is_some()
    };
    // Before addresses: who is refused for its clock is away, too, and no address helps.
    if let Some(names) = named(&mut whom.iter().filter(has_wrong_clock)) {
        return Some(format!(
            "set the clocks of this machine and of {names} by NTP"
        ));
    }
    let is_away = |node: &&NodeId| !standing.is_present(node);
    if let Some(names) = named(&mut whom.iter().filter(is_away)) {
        return Some(format!(
            "see whether {names} runs, and give it or this node an `external` address that the other reaches"
        ));
    }
    let Some(names) = named(&mut whom.iter()) else {
        return Some(for_members(cause, standing));
    };
    Some(match cause {
        Cause::Updates | Cause::Quorum | Cause::Closing | Cause::Modules => {
            format!("see what `status` says on {names}: it may still train")
        }
        Cause::Evidence => {
            format!("see what `status` says on {names}: what it closed is not confirmed yet")
        }
        _ => format!("see whether {names} has a slow uplink: the transfer is under way"),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fednode_core::{Role, Round};

    use super::*;

    const ANN: NodeId = NodeId::from_bytes([1; 32]);
    const BOB: NodeId = NodeId::from_bytes([2; 32]);

    fn standing() -> Standing {
        let mut standing = Standing::new(vec![], Round(3));
        standing.peer_up(ANN, Role::Node);
        standing
    }

    fn wait(cause: Cause, whom: &[NodeId], seconds: u64) -> Waiting {
        let wait = Waiting::new(cause, "local updates", Duration::from_secs(seconds));
        let wait = wait.from_peers(whom.to_vec());
        wait.for_at_most(Duration::from_secs(50))
    }

    #[test]
    fn a_wait_names_who_is_gone_since_when_and_what_to_do() {
        let (mut standing, now) = (standing(), Timestamp(60_000));
        standing.peer_up(BOB, Role::Node);
        standing.peer_down(BOB, Timestamp(20_000));
        let told = explain(wait(Cause::Updates, &[ANN, BOB], 12), &standing, now);
        let (ann, bob) = (ANN.short(), BOB.short());
        let subject = format!("local updates from {ann}, {bob} (not connected for 40 s)");
        assert_eq!(told.subject(5), subject);
        let outlook = told.outlook().unwrap();
        assert!(
            outlook.starts_with("it goes on without in 50 s"),
            "{outlook}"
        );
        assert!(
            outlook.contains(&bob) && !outlook.contains(&ann),
            "{outlook}"
        );
        let short = explain(wait(Cause::Updates, &[ANN, BOB], 9), &standing, now);
        assert_eq!(short.outlook(), None, "advice comes after ten seconds");
    }

    #[test]
    fn a_wrong_clock_and_a_silent_address_are_named() {
        let (mut standing, now) = (standing(), Timestamp(0));
        standing.refused(Some(BOB), "/ip4/192.0.2.1/tcp/1", &Refusal::Clock(3600));
        let told = explain(wait(Cause::Experts, &[BOB], 20), &standing, now);
        assert!(told.known[0].text.contains("clocks differ by 3600 s"));
        assert!(told.outlook().unwrap().contains("NTP"));
        standing.clock_ahead(ANN, 3600);
        let told = explain(wait(Cause::Updates, &[ANN], 20), &standing, now);
        assert_eq!(told.known[0].text, "its clock is 3600 s ahead");
        assert!(told.outlook().unwrap().contains("NTP"));
        standing.unreachable("/ip4/192.0.2.7/tcp/1".into(), "refused".into());
        let told = explain(wait(Cause::Members, &[], 20), &standing, now);
        assert!(told.outlook().unwrap().contains("192.0.2.7"));
    }

    /// Whatever takes long comes with advice, unless it is this member's own work.
    #[test]
    fn every_long_wait_for_others_has_a_remedy() {
        use Cause::{Closing, Evidence, Experts, FirstPeer, Mean, Members, Modules, Parts};
        use Cause::{OwnWork, Proxies, Quorum, Updates};
        let (standing, now) = (standing(), Timestamp(0));
        let of_peers = [
            Closing, Quorum, Evidence, Mean, Parts, Updates, Experts, Proxies, Modules,
        ];
        for cause in of_peers.into_iter().chain([FirstPeer, Members]) {
            for whom in [ANN, BOB] {
                let told = explain(wait(cause, &[whom], 11), &standing, now);
                assert!(told.remedy.is_some(), "{cause:?} of {whom:?}");
            }
        }
        let advice = |cause| explain(wait(cause, &[ANN], 11), &standing, now).remedy;
        let of_bytes = |cause| advice(cause).is_some_and(|advice| advice.contains("uplink"));
        assert_eq!([Parts, Evidence].map(of_bytes), [true, false]);
        let own = explain(wait(OwnWork, &[], 11), &standing, now);
        assert_eq!(own.remedy, None);
    }
}
