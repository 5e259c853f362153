//! What a stranger learns: a bare swarm that knows an address and says whatever it likes.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::membership::{Certificate, Ruling};
use fednode_core::{
    Absence, Body, BroadcastSet, FederationId, FederationSpec, Greeting, Hello, HelloReply,
    PROTOCOL_VERSION, Proof, Role, Round,
};
use futures::StreamExt;
use libp2p::gossipsub::{self, MessageAuthenticity, ValidationMode};
use libp2p::request_response::{Event as RpcEvent, Message};
use libp2p::swarm::{self, NetworkBehaviour, Swarm, SwarmEvent};
use libp2p::{identify, relay};
use prometheus_client::registry::Registry;
use tokio::time::timeout;

use crate::behaviour::{self, AGENT, Behaviour, BehaviourEvent, Topics};
use crate::roster::Roster;
use crate::tests::hostile::Small;
use crate::traffic::Traffic;
use crate::{Config, Event, Identity, MemberBook, Network, start, transport};

const PATIENCE: Duration = Duration::from_secs(15);
/// Gossip begins at once after the connection, or not at all.
const LISTENING: Duration = Duration::from_secs(4);

/// A member of a closed federation, and its organiser.
async fn closed() -> (Network, Identity, FederationSpec) {
    let (organiser, ann) = (Identity::generate(), Identity::generate());
    let spec = FederationSpec {
        name: "a secret ward".into(),
        organiser: Some(organiser.node_id()),
        ..FederationSpec::default()
    };
    let book = MemberBook::new(organiser.node_id());
    let now = crate::clock::now();
    let certificate = Certificate {
        node: ann.node_id(),
        name: "ann".parse().unwrap(),
        role: Role::Node,
        not_after: now + Duration::from_secs(60),
    };
    book.say(&organiser, now, Ruling::Admit(certificate))
        .unwrap();
    let mut config = Config::new(spec.clone().into(), Role::Node);
    config.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    config.members = Some(Arc::new(book));
    let network = start(config, ann, Arc::<Small>::default()).await.unwrap();
    (network, organiser, spec)
}

/// A swarm that speaks all protocols and does nothing by itself.
fn bare_swarm(eve: &Identity, spec: &FederationSpec) -> Swarm<Behaviour> {
    let config = Config::new(spec.clone().into(), Role::Node);
    let topics = Topics::of(config.federation);
    let mut registry = Registry::default();
    let gossip = behaviour::gossip(&topics, BroadcastSet::of(spec), &mut registry).unwrap();
    let own = crate::identity::peer_id(&eve.node_id());
    let (relay, relay_client) = relay::client::new(own);
    let transport = transport::build(eve, None, relay, &mut registry).unwrap();
    let (traffic, roster) = (Arc::new(Traffic::default()), Arc::new(Roster::new()));
    let behaviour = Behaviour::new(&config, eve, gossip, relay_client, &traffic, &roster);
    let config = swarm::Config::with_tokio_executor();
    Swarm::new(transport, behaviour.unwrap(), own, config)
}

/// Greets and says hello whatever the answer, and returns both answers.
async fn intrude(
    victim: &Network,
    spec: &FederationSpec,
    proof: impl Fn(&Identity) -> Option<Proof>,
) -> (Greeting, HelloReply) {
    let eve = Identity::generate();
    let mut swarm = bare_swarm(&eve, spec);
    swarm.dial(victim.handle.listeners().remove(0)).unwrap();
    let mut answers = (None, None);
    let both = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::ConnectionEstablished { peer_id, .. } => {
                    let greeting = Greeting {
                        protocol: PROTOCOL_VERSION,
                        proof: proof(&eve),
                        certificate: None,
                    };
                    let hello = Hello {
                        protocol: PROTOCOL_VERSION,
                        software: "curious".into(),
                        role: Role::Node,
                        federation: spec.id(),
                        spec: spec.entries(),
                        clock: crate::clock::now(),
                        certificate: None,
                    };
                    let behaviour = swarm.behaviour_mut();
                    behaviour.greeting.send_request(&peer_id, greeting);
                    behaviour.hello.send_request(&peer_id, hello);
                }
                SwarmEvent::Behaviour(BehaviourEvent::Greeting(RpcEvent::Message {
                    message: Message::Response { response, .. },
                    ..
                })) => answers.0 = Some(response),
                SwarmEvent::Behaviour(BehaviourEvent::Hello(RpcEvent::Message {
                    message: Message::Response { response, .. },
                    ..
                })) => answers.1 = Some(response),
                _ => {}
            }
            if let (Some(greeting), Some(reply)) = (&answers.0, &answers.1) {
                return (greeting.clone(), reply.clone());
            }
        }
    };
    timeout(PATIENCE, both).await.expect("two answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_learns_the_version_and_nothing_else() {
    let (victim, ..) = closed().await;
    // One who does not know the organiser, and one who guesses.
    let guess = Proof::make(
        Identity::generate().node_id(),
        victim.handle.node_id(),
        victim.handle.node_id(),
    );
    for proof in [None, Some(guess)] {
        let (greeting, reply) = intrude(&victim, &FederationSpec::default(), |_| proof).await;
        assert_eq!((greeting.proof, greeting.certificate), (None, None));
        assert_eq!(reply, HelloReply::Unwelcome(Absence::Unknown, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_the_spec_and_no_certificate_is_told_only_that() {
    let (victim, organiser, spec) = closed().await;
    let of = |eve: &Identity| {
        let (organiser, victim) = (organiser.node_id(), victim.handle.node_id());
        Some(Proof::make(organiser, eve.node_id(), victim))
    };
    let (greeting, reply) = intrude(&victim, &spec, of).await;
    assert!(
        greeting.certificate.is_some(),
        "Ann is a member and shows it"
    );
    assert_eq!(reply, HelloReply::Unwelcome(Absence::Unknown, None));
}

/// A peer that speaks gossip with whoever comes, and none of the protocols of this project.
#[derive(NetworkBehaviour)]
struct Eavesdropper {
    gossip: gossipsub::Behaviour,
    identify: identify::Behaviour,
    relay: relay::client::Behaviour,
}

/// Connects with the victim and listens to the gossip of a federation.
fn eavesdrop(victim: &Network, federation: FederationId) -> Swarm<Eavesdropper> {
    let eve = Identity::generate();
    let own = crate::identity::peer_id(&eve.node_id());
    let (relay, client) = relay::client::new(own);
    let transport = transport::build(&eve, None, relay, &mut Registry::default()).unwrap();
    let config = gossipsub::ConfigBuilder::default()
        .validation_mode(ValidationMode::None)
        .build();
    let gossip = gossipsub::Behaviour::new(MessageAuthenticity::Anonymous, config.unwrap());
    let mut gossip = gossip.unwrap();
    for topic in Topics::of(federation).common() {
        gossip.subscribe(topic).unwrap();
    }
    let identify = identify::Config::new("/curious/1".to_owned(), eve.keypair().public());
    let behaviour = Eavesdropper {
        gossip,
        identify: identify::Behaviour::new(identify),
        relay: client,
    };
    let config = swarm::Config::with_tokio_executor();
    let mut swarm = Swarm::new(transport, behaviour, own, config);
    swarm.dial(victim.handle.listeners().remove(0)).unwrap();
    swarm
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_said_no_hello_hears_no_gossip() {
    let (victim, _, spec) = closed().await;
    let mut eve = eavesdrop(&victim, spec.id());
    victim.handle.publish(Round(1), Body::Leave).await.unwrap();
    let mut agent = None;
    let listen = async {
        loop {
            match eve.select_next_some().await {
                SwarmEvent::ConnectionEstablished { .. } => {
                    victim.handle.publish(Round(2), Body::Leave).await.unwrap();
                }
                SwarmEvent::Behaviour(EavesdropperEvent::Identify(identify::Event::Received {
                    info,
                    ..
                })) => agent = Some(info.agent_version),
                SwarmEvent::Behaviour(EavesdropperEvent::Gossip(heard)) => {
                    panic!("a stranger hears of {heard:?}")
                }
                _ => {}
            }
        }
    };
    assert!(timeout(LISTENING, listen).await.is_err());
    assert_eq!(agent.as_deref(), Some(AGENT), "it was connected");
}

/// Every greeting names another version, so that each is another reason to refuse it.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_again_and_again_is_told_of_once_and_closed() {
    let (mut victim, _, spec) = closed().await;
    let eve = Identity::generate();
    let mut swarm = bare_swarm(&eve, &spec);
    swarm.dial(victim.handle.listeners().remove(0)).unwrap();
    let mut version = PROTOCOL_VERSION;
    let insist = async {
        loop {
            let event = timeout(Duration::from_millis(200), swarm.select_next_some()).await;
            if let Ok(SwarmEvent::ConnectionClosed { .. }) = event {
                return;
            }
            let peers: Vec<_> = swarm.connected_peers().copied().collect();
            for peer in peers {
                version += 1;
                let greeting = Greeting {
                    protocol: version,
                    proof: None,
                    certificate: None,
                };
                let behaviour = swarm.behaviour_mut();
                behaviour.greeting.send_request(&peer, greeting);
            }
        }
    };
    let closed = timeout(Duration::from_secs(8), insist).await;
    assert!(closed.is_ok(), "a refused peer has 3 s");
    assert!(version > PROTOCOL_VERSION + 3, "it greeted often");
    let mut refused = 0;
    while let Ok(event) = victim.events.try_recv() {
        refused += usize::from(matches!(event, Event::Refused { .. }));
    }
    assert_eq!(refused, 1);
}
