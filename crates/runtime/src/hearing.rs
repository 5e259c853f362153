//! What the network tells a member: who is here, what others say, who refuses it, and whose clock is wrong.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::{Accepted, Body, NodeId, Refusal, Role};
use fednode_engine::Input;
use fednode_net::{Event, Multiaddr};
use tracing::{debug, info, warn};

use crate::driver::Driver;
use crate::error::RunError;
use crate::journal::Entry;
use crate::machine::Machine;
use crate::publisher::Signed;

/// So long after the end everybody who trained with this member has met it again, also where it was started anew.
const SETTLED: Duration = Duration::from_secs(10);

impl<M: Machine> Driver<'_, M> {
    pub(crate) fn on_event(&mut self, event: Event) -> Result<(), RunError> {
        match event {
            Event::Listening(address) => self.base.listening(address.to_string()),
            Event::PeerUp { node, role } => {
                info!(peer = %node, ?role, "peer is up");
                self.on_presence(node, role);
            }
            // Who can be heard takes part, connected or not: what it says and what it made come through others.
            Event::Heard { node, role } => {
                info!(peer = %node, ?role, "member is here, heard of through others");
                self.on_presence(node, role);
            }
            Event::PeerDown { node } => {
                info!(peer = %node, "peer is down");
                self.on_absence(node);
            }
            Event::Unheard { node } => {
                info!(peer = %node, "member is heard of no more");
                self.on_absence(node);
            }
            Event::Advert { signed, advert } => {
                self.standing.heard(&advert);
                self.receive(Box::new((advert, signed)));
            }
            Event::Equivocated { node } => self.feed(Input::Equivocated { node }),
            Event::Revoked { node } if node == self.base.me => return Err(RunError::Revoked),
            Event::Revoked { node } => self.feed(Input::Revoked { node }),
            Event::Beyond { node, round } => self.more.heard_of(node, round),
            Event::ClockAhead { node, seconds } => self.on_clock_ahead(node, seconds),
            Event::ClockStepped {
                seconds,
                said_again,
            } => self.base.warn(clock_stepped(seconds, said_again)),
            // Which peer it was does not matter: any of them has told all that it knew.
            Event::Synced { .. } => self.feed(Input::Synced),
            Event::Refused {
                node,
                address,
                refusal,
            } => return self.on_refused(node, &address, &refusal),
            Event::TurnedAway { node, address } => turned_away(node, address.as_ref()),
            Event::DialFailed {
                address, reason, ..
            } => self.on_silence(address.to_string(), reason),
            Event::Struck { node, reason } => self.on_strike(node, &reason),
            Event::Banned {
                node,
                length,
                reason,
            } => {
                let (node, seconds) = (node.short(), length.as_secs());
                self.base
                    .warn(format!("peer {node} is banned for {seconds} s: {reason}"));
            }
            Event::Superseded => return Err(RunError::Superseded),
        }
        Ok(())
    }

    fn on_presence(&mut self, node: NodeId, role: Role) {
        let at = self.base.now();
        // Asked before the node counts as present: whoever is present is known already.
        let served = self.ending.served_for(at);
        if served.is_some_and(|served| served >= SETTLED) {
            self.standing.note_latecomer(node);
        }
        self.standing.peer_up(node, role);
        self.base.journal.add(Entry::Peer { node, role, at });
        self.feed(Input::PeerUp { node, role });
    }

    fn on_absence(&mut self, node: NodeId) {
        self.standing.peer_down(node, self.base.now());
        self.feed(Input::PeerDown { node });
    }

    fn on_strike(&mut self, node: NodeId, reason: &str) {
        debug!(peer = %node, reason, "peer struck");
        let at = self.base.now();
        self.base.journal.add(Entry::Strike { node, at });
    }

    /// A configured address does not answer.
    fn on_silence(&mut self, address: String, reason: String) {
        self.base.warn(format!(
            "cannot reach {address}: {reason}; trying again until it answers"
        ));
        self.standing.unreachable(address, reason);
    }

    fn on_clock_ahead(&mut self, node: NodeId, seconds: u64) {
        self.standing.clock_ahead(node, seconds);
        let node = node.short();
        self.base.warn(format!(
            "the clock of node {node} is {seconds} s ahead of this one: what it says is not heard until both are set by NTP"
        ));
    }

    fn on_refused(
        &mut self,
        node: Option<NodeId>,
        address: &str,
        refusal: &Refusal,
    ) -> Result<(), RunError> {
        if self.standing.refused(node, address, refusal) {
            self.base
                .warn(format!("no exchange with {address}: {refusal}"));
        }
        // One refusal is no reason to end: another configured peer may still accept this node.
        self.standing.hopeless().map_or(Ok(()), Err)
    }

    /// Remembers an advert, a peer's or our own, and tells the machine.
    pub(crate) fn receive(&mut self, signed: Signed) {
        let (id, advert) = (signed.1.id(), signed.0.clone());
        if let Body::Withdraw(withdraw) = &advert.body
            && advert.author != self.base.me
        {
            let (node, count) = (advert.author.short(), withdraw.blobs.len());
            let line = format!(
                "node {node} takes {count} blobs back: copies that nobody else needs are deleted"
            );
            info!("{line}");
            self.base.remark(line);
        }
        let advert = Arc::new(Accepted { id, advert });
        // Before the machine hears of it: the merge that it orders then must know what was taken back.
        self.hear_of_withdrawals(&advert);
        self.base.journal.add(Entry::Advert(signed));
        self.feed(Input::Advert(advert));
    }
}

/// Says whose id the allow-list lacks. Only in the log: strangers must not push out what `status` shows.
fn turned_away(node: NodeId, address: Option<&Multiaddr>) {
    const REMEDY: &str =
        "if it is a member, add its id to the file that `--allow` names, and start again";
    match address {
        Some(address) => {
            warn!(%node, %address, "turned away, as it is not on the allow-list: {REMEDY}")
        }
        None => warn!(%node, "not heard, as it is not on the allow-list: {REMEDY}"),
    }
}

/// Says what it means that this machine's clock was set.
fn clock_stepped(seconds: i64, said_again: usize) -> String {
    if seconds > 0 {
        return format!(
            "this machine's clock is {seconds} s further than a moment ago: others hear nothing of this node if it is \
             wrong; set it by NTP"
        );
    }
    format!(
        "this machine's clock was set back by {} s: {said_again} adverts that were stamped by it are said again",
        seconds.unsigned_abs()
    )
}
