//! Updates that can wait.
//!
//! Most of what reaches a member changes nothing for it but what it knows of the author. Waking it for each would be a walk
//! through memory that nothing else has touched lately, millions of times. So they wait in its inbox, and are read together
//! before anything else is given to it. What begins to matter while it is under way arrives by itself, at its time; so does
//! everything while somebody is away or cut off.

use std::sync::Arc;

use fednode_core::Timestamp;
use fednode_engine::Input;

use super::{Event, Machine, Said, World};
use crate::attention::Attention;

/// Most updates that wait for one member.
const MAX_WAITING: usize = 1024;

/// What one member need not be given at once, and when each is there.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) attention: Attention,
    waiting: Vec<(Timestamp, Arc<Said>)>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            attention: Attention::TO_ALL,
            waiting: Vec::new(),
        }
    }
}

impl World<'_> {
    /// Lets an advert arrive at a time: in the inbox, if it can wait there.
    pub(super) fn post(&mut self, to: usize, at: Timestamp, said: &Arc<Said>) {
        let waits = said.can_wait
            && self.network.is_whole()
            && !self.inboxes[to].attention.is_paid_to(said.advert.author);
        if !waits {
            return self.queue.push(at, Event::Deliver(to, Arc::clone(said)));
        }
        let inbox = &mut self.inboxes[to];
        inbox.waiting.push((at, Arc::clone(said)));
        if inbox.waiting.len() >= MAX_WAITING {
            self.read_inbox(to);
        }
    }

    /// Gives a member what has arrived and could wait, in the order in which it was said.
    pub(super) fn read_inbox(&mut self, member: usize) {
        let now = self.queue.now();
        let reader = &mut self.members[member];
        let Machine::Node(node) = &mut reader.machine else {
            return;
        };
        for (_, said) in self.inboxes[member]
            .waiting
            .extract_if(.., |(at, _)| *at <= now)
        {
            self.outcome.deliveries += 1;
            reader.received.gossip += said.bytes;
            let input = Input::Advert(Arc::clone(&said.advert));
            self.observer.input(now, member, &input);
            node.record_update(&said.advert);
        }
    }

    /// Looks whose updates matter to a member now; those of them that are under way will arrive by themselves.
    pub(super) fn attend(&mut self, member: usize) {
        let Machine::Node(node) = &self.members[member].machine else {
            return;
        };
        let inbox = &mut self.inboxes[member];
        inbox.attention = Attention::of(node);
        let attention = inbox.attention;
        for (at, said) in inbox
            .waiting
            .extract_if(.., |(_, said)| attention.is_paid_to(said.advert.author))
        {
            self.queue.push(at, Event::Deliver(member, said));
        }
    }

    /// Lets all that waits arrive by itself, before anybody goes, comes or is cut off.
    pub(super) fn empty_inboxes(&mut self) {
        for member in 0..self.members.len() {
            self.read_inbox(member);
            for (at, said) in self.inboxes[member].waiting.drain(..) {
                self.queue.push(at, Event::Deliver(member, said));
            }
            self.inboxes[member].attention = Attention::TO_ALL;
        }
    }
}
