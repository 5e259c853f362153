//! Membership by certificates: who gets in, who is told nothing, who is turned out, and how a ticket is used.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Node, config, unheard};
use fednode_core::membership::{Certificate, Ruling};
use fednode_core::{Absence, Body, FederationSpec, NodeId, Refusal, Role, Round};
use fednode_net::{
    Admitted, Config, Event, Identity, InvitationSecret, JoinAsk, JoinError, JoinRefusal,
    MemberBook, Registrar, Ticket, join, now,
};

/// A federation with an organiser.
struct Closed {
    organiser: Identity,
    book: MemberBook,
}

impl Closed {
    fn new() -> Self {
        let organiser = Identity::generate();
        let book = MemberBook::new(organiser.node_id());
        Self { organiser, book }
    }

    fn say(&self, ruling: Ruling) {
        self.book.say(&self.organiser, now(), ruling).unwrap();
    }

    fn admit(&self, node: NodeId, role: Role, life: Duration) {
        self.say(Ruling::Admit(Certificate {
            node,
            name: "ward".parse().unwrap(),
            role,
            not_after: now() + life,
        }));
    }

    fn spec(&self) -> FederationSpec {
        FederationSpec {
            organiser: Some(self.organiser.node_id()),
            ..FederationSpec::default()
        }
    }

    /// The settings of a node that has heard these statements, and knows these members' addresses.
    fn config(&self, from: u64, to: u64, peers: &[&Node]) -> Config {
        let mut config = Config::new(Arc::new(self.spec()), Role::Node);
        config.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        config.peers = peers.iter().map(|peer| peer.address()).collect();
        config.sync_every = Duration::from_millis(200);
        let book = MemberBook::new(self.organiser.node_id());
        let heard = self.book.after(from);
        for signed in heard.iter().take((to - from) as usize) {
            book.take(signed).unwrap();
        }
        config.members = Some(Arc::new(book));
        config
    }

    /// Starts a member that knows of its own certificate only.
    async fn member(&self, peers: &[&Node]) -> Node {
        let identity = Identity::generate();
        let before = self.book.reached();
        self.admit(identity.node_id(), Role::Node, Duration::from_secs(3600));
        let config = self.config(before, before + 1, peers);
        Node::with(config, identity, Arc::default()).await
    }
}

async fn refusal(node: &mut Node) -> Refusal {
    node.wait("a refusal", |event| match event {
        Event::Refused { refusal, .. } => Some(refusal.clone()),
        Event::PeerUp { .. } => panic!("a stranger got in"),
        _ => None,
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_show_each_other_their_certificates() {
    let closed = Closed::new();
    let mut ann = closed.member(&[]).await;
    let mut bob = closed.member(&[&ann]).await;
    ann.peer_up(bob.id()).await;
    bob.peer_up(ann.id()).await;
    // Cat hears Ann's word from Bob, whose book she gets with it.
    let mut cat = closed.member(&[&bob]).await;
    cat.peer_up(bob.id()).await;
    let handle = ann.network.handle.clone();
    handle.publish(Round(1), Body::Leave).await.unwrap();
    cat.wait("the advert", |event| {
        matches!(event, Event::Advert { advert, .. } if advert.author == ann.id()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_and_know_why() {
    let closed = Closed::new();
    let mut ann = closed.member(&[]).await;
    // One who knows the address, and nothing of the federation.
    let mut config = config();
    config.peers = vec![ann.address()];
    let mut stranger = Node::start(config).await;
    assert_eq!(refusal(&mut ann).await, Refusal::Stranger);
    let told = Refusal::Unwelcome(Absence::Unknown);
    assert_eq!(refusal(&mut stranger).await, told);
    // One who has the spec and no ticket.
    let config = closed.config(0, 1, &[&ann]);
    let mut curious = Node::start(config).await;
    assert_eq!(refusal(&mut ann).await, Refusal::NoMember(Absence::Unknown));
    assert_eq!(refusal(&mut curious).await, told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_what_its_certificate_says() {
    let closed = Closed::new();
    let mut ann = closed.member(&[]).await;
    let bob = Identity::generate();
    closed.admit(bob.node_id(), Role::Node, Duration::from_secs(3600));
    let mut config = closed.config(0, 2, &[&ann]);
    config.role = Role::Aggregator;
    let mut bob = Node::with(config, bob, Arc::default()).await;
    assert_eq!(refusal(&mut ann).await, Refusal::NoMember(Absence::Role));
    assert_eq!(refusal(&mut bob).await, Refusal::Unwelcome(Absence::Role));
    let why = why_absent(&bob, ann.id()).await;
    assert!(
        why.contains("this node has a certificate for another role"),
        "{why}"
    );
}

/// Returns what a node says of another one with which it is not connected.
async fn why_absent(node: &Node, other: NodeId) -> String {
    let absent = node.network.handle.absent().await;
    let of_other = absent.into_iter().find(|absent| absent.node == other);
    of_other.expect("the other one is known").why
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_member_is_turned_out_by_all_and_not_heard_again() {
    let closed = Closed::new();
    let mut ann = closed.member(&[]).await;
    let bob = closed.member(&[&ann]).await;
    let mut cat = closed.member(&[&ann, &bob]).await;
    cat.peer_up(bob.id()).await;
    ann.peer_up(bob.id()).await;
    let gone = bob.id();
    closed.say(Ruling::Revoke(gone));
    // Ann hears it from the organiser, Cat from Ann.
    let config = closed.config(0, closed.book.reached(), &[&ann]);
    let dan = Identity::generate();
    closed.admit(dan.node_id(), Role::Node, Duration::from_secs(3600));
    let book = config.members.clone().unwrap();
    book.take(closed.book.after(4).first().unwrap()).unwrap();
    let _dan = Node::with(config, dan, Arc::default()).await;
    for node in [&mut ann, &mut cat] {
        node.wait("the end of Bob", |event| {
            matches!(event, Event::PeerDown { node } if *node == gone).then_some(())
        })
        .await;
        node.wait("word of it", |event| {
            matches!(event, Event::Revoked { node } if *node == gone).then_some(())
        })
        .await;
    }
    assert_eq!(
        why_absent(&cat, gone).await,
        "it was revoked by the organiser"
    );
}

/// Two members that only dial a third one. The first has heard of the second; its book comes with it.
async fn two_behind_a_hub(closed: &Closed) -> (Node, Node, Node, Arc<MemberBook>) {
    let hub = closed.member(&[]).await;
    let (ann, before) = (Identity::generate(), closed.book.reached());
    closed.admit(ann.node_id(), Role::Node, Duration::from_secs(3600));
    let mut config = closed.config(before, before + 1, &[&hub]);
    config.listen = Vec::new();
    let book = config.members.clone().unwrap();
    let mut ann = Node::with(config, ann, Arc::default()).await;
    ann.peer_up(hub.id()).await;
    let (bob, before) = (Identity::generate(), closed.book.reached());
    closed.admit(bob.node_id(), Role::Node, Duration::from_secs(3600));
    let mut config = closed.config(before, before + 1, &[&hub]);
    config.listen = Vec::new();
    let bob = Node::with(config, bob, Arc::default()).await;
    let bob_id = bob.id();
    ann.wait("word of Bob", |event| {
        matches!(event, Event::Heard { node, .. } if *node == bob_id).then_some(())
    })
    .await;
    (hub, ann, bob, book)
}

/// Tells a member of a revocation and returns how long another one is still here for it.
async fn lost_after(closed: &Closed, told: &MemberBook, ann: &mut Node, lost: NodeId) -> Duration {
    let started = Instant::now();
    told.take(
        closed
            .book
            .after(closed.book.reached() - 1)
            .first()
            .unwrap(),
    )
    .unwrap();
    ann.wait("the end of Bob", unheard(lost)).await;
    started.elapsed()
}

/// Less than the 35 seconds for which one message of a member counts.
const SOON: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn who_turns_out_its_last_peer_hears_nobody() {
    let closed = Closed::new();
    let (hub, mut ann, bob, book) = two_behind_a_hub(&closed).await;
    closed.say(Ruling::Revoke(hub.id()));
    let lost = lost_after(&closed, &book, &mut ann, bob.id()).await;
    assert!(lost < SOON, "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_member_is_not_heard_of_through_others_any_more() {
    let closed = Closed::new();
    let (_hub, mut ann, bob, book) = two_behind_a_hub(&closed).await;
    closed.say(Ruling::Revoke(bob.id()));
    let lost = lost_after(&closed, &book, &mut ann, bob.id()).await;
    assert!(lost < SOON, "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_expired_lets_nobody_in() {
    let closed = Closed::new();
    let mut ann = closed.member(&[]).await;
    let bob = Identity::generate();
    closed.admit(bob.node_id(), Role::Node, Duration::ZERO);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let config = closed.config(0, 2, &[&ann]);
    let mut bob = Node::with(config, bob, Arc::default()).await;
    assert_eq!(refusal(&mut ann).await, Refusal::NoMember(Absence::Expired));
    assert_eq!(
        refusal(&mut bob).await,
        Refusal::Unwelcome(Absence::Expired)
    );
}

/// Knows one invitation.
#[derive(Debug)]
struct Desk {
    secret: InvitationSecret,
    organiser: Identity,
    book: Arc<MemberBook>,
}

impl Registrar for Desk {
    fn admit(
        &self,
        ask: &JoinAsk,
        joiner: NodeId,
        responder: NodeId,
    ) -> Result<Admitted, JoinRefusal> {
        if ask.proof != self.secret.proof(joiner, responder) {
            return Err(JoinRefusal::Unknown);
        }
        let certificate = Certificate {
            node: joiner,
            name: "bob".parse().unwrap(),
            role: Role::Node,
            not_after: now() + Duration::from_secs(60),
        };
        let said = self
            .book
            .say(&self.organiser, now(), Ruling::Admit(certificate));
        said.unwrap();
        Ok(Admitted {
            spec: "name = \"wards\"".into(),
            statements: self.book.after(0),
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_leads_to_a_certificate_that_lets_its_owner_in() {
    let closed = Closed::new();
    let ann = Identity::generate();
    closed.admit(ann.node_id(), Role::Node, Duration::from_secs(60));
    let mut config = closed.config(0, 1, &[]);
    let secret = InvitationSecret::generate();
    config.registrar = Some(Arc::new(Desk {
        secret,
        organiser: closed.organiser.clone(),
        book: config.members.clone().unwrap(),
    }));
    let mut ann = Node::with(config, ann, Arc::default()).await;
    let bob = Identity::generate();
    let dead = format!("/ip4/127.0.0.1/tcp/1/p2p/{}", bob.node_id());
    let ticket = |secret| Ticket {
        addresses: vec![dead.parse().unwrap(), ann.address()],
        federation: closed.spec().id(),
        organiser: closed.organiser.node_id(),
        secret,
        role: Role::Node,
        not_after: now(),
        network_key: None,
    };
    let refused = join(&ticket(InvitationSecret::generate()), &bob).await;
    let expected = JoinError::Refused(JoinRefusal::Unknown).to_string();
    assert_eq!(refused.unwrap_err().to_string(), expected);
    let admitted = join(&ticket(secret), &bob).await.unwrap();
    assert_eq!(admitted.spec, "name = \"wards\"");
    let mut config = closed.config(0, 0, &[&ann]);
    let book = MemberBook::new(closed.organiser.node_id());
    for signed in &admitted.statements {
        book.take(signed).unwrap();
    }
    config.members = Some(Arc::new(book));
    let bob = Node::with(config, bob, Arc::default()).await;
    ann.peer_up(bob.id()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_for_a_process_without_the_organisers_folder_says_so() {
    let closed = Closed::new();
    let ann = closed.member(&[]).await;
    let ticket = Ticket {
        addresses: vec![ann.address()],
        federation: closed.spec().id(),
        organiser: closed.organiser.node_id(),
        secret: InvitationSecret::generate(),
        role: Role::Node,
        not_after: now(),
        network_key: None,
    };
    let error = join(&ticket, &Identity::generate()).await.unwrap_err();
    assert!(
        error.to_string().contains("does not admit members"),
        "{error}"
    );
}
