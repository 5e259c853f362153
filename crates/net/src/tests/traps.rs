//! Tests of settings that look harmless and are not, between two real swarms on loopback.
//!
//! Gossipsub compares its size limit with all that it has buffered: one message and up to 8 KiB of the next. So messages
//! near the limit kill the stream when they come back to back. After five such deaths gossip to that peer is silent for
//! the life of the connection. And all subscriptions go out in one message, which has a limit of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use fednode_core::{BroadcastSet, FederationId, FederationSpec, MAX_ADVERT_BYTES, SignedAdvert};
use futures::StreamExt;
use libp2p::gossipsub::{Event, IdentTopic};
use libp2p::relay;
use libp2p::swarm::{self, Swarm, SwarmEvent};
use prometheus_client::registry::Registry;
use tokio::time::timeout;

use crate::behaviour::{self, Gossip, Topics};
use crate::codec;
use crate::gate::MAX_SIGNED_BYTES;
use crate::identity::{Identity, peer_id};
use crate::transport;

const PATIENCE: Duration = Duration::from_secs(30);

fn home() -> Topics {
    Topics::of(FederationId::from_bytes([1; 32]))
}

fn swarm(topics: &Topics) -> Swarm<Gossip> {
    let (identity, mut registry) = (Identity::generate(), Registry::default());
    let gossip = behaviour::gossip(
        topics,
        BroadcastSet::of(&FederationSpec::default()),
        &mut registry,
    )
    .unwrap();
    let (relay, _) = relay::client::new(peer_id(&identity.node_id()));
    let transport = transport::build(&identity, None, relay, &mut registry).unwrap();
    Swarm::new(
        transport,
        gossip,
        peer_id(&identity.node_id()),
        swarm::Config::with_tokio_executor(),
    )
}

/// Connects two swarms and drives both until each has heard `n` subscriptions of the other.
async fn meet(ann: &mut Swarm<Gossip>, bob: &mut Swarm<Gossip>, n: usize) {
    ann.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap())
        .unwrap();
    let (mut by_ann, mut by_bob) = (0, 0);
    while by_ann < n || by_bob < n {
        tokio::select! {
            event = ann.select_next_some() => match event {
                SwarmEvent::NewListenAddr { address, .. } => bob.dial(address).unwrap(),
                SwarmEvent::Behaviour(Event::Subscribed { .. }) => by_ann += 1,
                _ => {}
            },
            event = bob.select_next_some() => {
                by_bob += usize::from(matches!(event, SwarmEvent::Behaviour(Event::Subscribed { .. })));
            }
        }
    }
}

#[test]
fn a_signed_advert_of_the_largest_size_fits_the_cap() {
    let signed = SignedAdvert {
        payload: vec![0; MAX_ADVERT_BYTES],
        signature: vec![0; 64],
    };
    assert!(codec::encode(&signed).len() <= MAX_SIGNED_BYTES);
}

#[tokio::test]
async fn messages_at_the_cap_arrive_back_to_back() {
    const N: usize = 60;
    let topics = home();
    let (mut ann, mut bob) = (swarm(&topics), swarm(&topics));
    timeout(PATIENCE, meet(&mut ann, &mut bob, home().common().len()))
        .await
        .expect("they subscribe to each other");
    for n in 0..N {
        // Different sizes around the cap hit different fillings of the reader's buffer.
        let mut message = vec![u8::try_from(n).unwrap(); MAX_SIGNED_BYTES - 37 * n];
        message[..8].copy_from_slice(&n.to_le_bytes());
        bob.behaviour_mut()
            .publish(topics.advert.hash(), message)
            .unwrap();
    }
    let mut arrived = BTreeSet::new();
    let all = async {
        while arrived.len() < N {
            tokio::select! {
                event = ann.select_next_some() => {
                    if let SwarmEvent::Behaviour(Event::Message { message, .. }) = event {
                        arrived.insert(usize::from_le_bytes(message.data[..8].try_into().unwrap()));
                    }
                }
                _ = bob.select_next_some() => {}
            }
        }
    };
    let complete = timeout(PATIENCE, all).await;
    assert!(complete.is_ok(), "only {} of {N} arrived", arrived.len());
}

#[tokio::test]
async fn subscriptions_fit_and_foreign_topics_are_not_heard() {
    let (mut ann, mut bob) = (swarm(&home()), swarm(&home()));
    // A process that is in many federations says so in its first message, which must not break anything.
    for n in 0..60_u8 {
        let foreign = Topics::of(FederationId::from_bytes([n.wrapping_add(2); 32]));
        let whitelisted = bob.behaviour_mut().subscribe(&foreign.advert);
        assert!(
            whitelisted.is_err(),
            "our own filter refuses foreign topics"
        );
    }
    timeout(PATIENCE, meet(&mut ann, &mut bob, home().common().len()))
        .await
        .expect("they subscribe to each other");
    let ours: BTreeSet<_> = home().common().map(|topic| topic.hash()).into();
    for (_, topics) in ann.behaviour().all_peers() {
        assert_eq!(topics.into_iter().cloned().collect::<BTreeSet<_>>(), ours);
    }
    let mut stranger = swarm(&Topics::of(FederationId::from_bytes([9; 32])));
    let heard = timeout(Duration::from_millis(700), meet(&mut bob, &mut stranger, 1)).await;
    assert!(
        heard.is_err(),
        "another federation's subscriptions are not heard"
    );
    let foreign = IdentTopic::new("/fednode/other/advert/1");
    assert!(bob.behaviour().mesh_peers(&foreign.hash()).next().is_none());
}
