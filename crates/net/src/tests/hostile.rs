//! Tests with a peer that says a good hello and then misbehaves: a bare swarm, driven by hand.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fednode_core::{
    ADVERT_LIFE, Advert, BlobId, BlobRef, BlobStore, Body, BroadcastSet, FederationSpec, Greeting,
    Hello, PROTOCOL_VERSION, Partial, Role, Round, SegmentList, Sequence, SignedAdvert, Timestamp,
};
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::multiaddr::Protocol;
use libp2p::request_response::{self, Message};
use libp2p::swarm::{self, Swarm, SwarmEvent};
use libp2p::{StreamProtocol, relay};
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::behaviour::{self, Behaviour, BehaviourEvent, Topics};
use crate::bounded::Bounded;
use crate::codec;
use crate::presence::Presence;
use crate::roster::Roster;
use crate::traffic::Traffic;
use crate::wire::{
    Answer, BLOB_PROTOCOL, BlobAnswer, BlobAsk, MAX_BLOB_HEADER, SYNC_PROTOCOL, SyncReply, Want,
};
use crate::{
    Compression, Config, Event, Identity, Network, Packing, Wanted, Width, start, transport,
};

const PATIENCE: Duration = Duration::from_secs(15);

/// A store of blobs of one segment.
#[derive(Default)]
pub(super) struct Small(Mutex<BTreeMap<BlobId, Vec<u8>>>);

impl Small {
    pub(super) fn with(bytes: &[u8]) -> Self {
        Self(BTreeMap::from([(BlobId::of(bytes), bytes.to_vec())]).into())
    }

    fn get(&self, id: &BlobId) -> io::Result<Vec<u8>> {
        self.0
            .lock()
            .unwrap()
            .get(id)
            .cloned()
            .ok_or(io::ErrorKind::NotFound.into())
    }
}

impl BlobStore for Small {
    fn held(&self, id: &BlobId) -> Option<u64> {
        self.get(id).ok().map(|bytes| bytes.len() as u64)
    }
    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList> {
        self.get(id).map(|bytes| SegmentList::of(&bytes))
    }
    fn read_segment(&self, id: &BlobId, _: u32) -> io::Result<Vec<u8>> {
        self.get(id)
    }
    fn begin(&self, _: BlobRef) -> io::Result<Partial> {
        Ok(Partial::default())
    }
    fn keep_list(&self, _: &SegmentList) -> io::Result<()> {
        Ok(())
    }
    fn write_segment(&self, blob: BlobRef, _: u32, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().insert(blob.id, bytes.to_vec());
        Ok(())
    }
    fn finish(&self, _: BlobRef) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn config() -> Config {
    let mut config = Config::new(FederationSpec::default().into(), Role::Node);
    config.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    config
}

fn said(author: &Identity, counter: u64, round: u32) -> SignedAdvert {
    said_at(author, counter, round, crate::clock::now())
}

fn said_at(author: &Identity, counter: u64, round: u32, now: Timestamp) -> SignedAdvert {
    let advert = Advert {
        federation: FederationSpec::default().id(),
        author: author.node_id(),
        sequence: Sequence {
            incarnation: 1,
            counter,
        },
        round: Round(round),
        issued_at: now,
        expires_at: now + ADVERT_LIFE,
        body: Body::Leave,
    };
    let payload = codec::encode(&advert);
    SignedAdvert {
        signature: author.sign_advert(&payload),
        payload,
    }
}

fn forged(author: &Identity) -> SignedAdvert {
    SignedAdvert {
        signature: vec![1; 64],
        ..said(author, 99, 1)
    }
}

/// What the hostile peer does once it is welcome.
#[derive(Default)]
pub(super) struct Script {
    hello: bool,
    /// Whether it says that it is an aggregator.
    is_aggregator: bool,
    /// Answers to sync requests, one after the other, then empty ones.
    sync_replies: Mutex<Vec<Vec<SignedAdvert>>>,
    /// Whether the victim has answered the hello, and listens: there is no gossip before that.
    ready: [AtomicBool; 2],
    /// Gossiped on the control topic as soon as somebody listens.
    gossip: Mutex<Vec<SignedAdvert>>,
    /// Says all the time that it was here in 1970.
    floods: Option<Identity>,
}

impl Script {
    /// An aggregator with a good hello and nothing else.
    pub(super) fn aggregator() -> Self {
        Self {
            hello: true,
            is_aggregator: true,
            ..Self::default()
        }
    }
}

pub(super) struct Hostile {
    pub(super) control: libp2p_stream::Control,
    _driver: JoinHandle<()>,
}

/// Makes a swarm that speaks all protocols and does nothing by itself.
fn bare_swarm(identity: &Identity) -> Swarm<Behaviour> {
    let config = config();
    let topics = Topics::of(config.federation);
    let mut registry = Registry::default();
    let gossip = behaviour::gossip(&topics, BroadcastSet::of(&config.spec), &mut registry).unwrap();
    let own = crate::identity::peer_id(&identity.node_id());
    let (relay, relay_client) = relay::client::new(own);
    let transport = transport::build(identity, None, relay, &mut registry).unwrap();
    let (traffic, roster) = (Arc::new(Traffic::default()), Arc::new(Roster::new()));
    let behaviour = Behaviour::new(&config, identity, gossip, relay_client, &traffic, &roster);
    let config = swarm::Config::with_tokio_executor();
    Swarm::new(transport, behaviour.unwrap(), own, config)
}

/// Starts a hostile peer that dials the victim and follows the script.
pub(super) fn attack(victim: &Network, identity: &Identity, script: Script) -> Hostile {
    let topics = Topics::of(config().federation);
    let mut swarm = bare_swarm(identity);
    swarm.dial(victim.handle.listeners().remove(0)).unwrap();
    let control = swarm.behaviour().streams.new_control();
    let driver = tokio::spawn(async move {
        loop {
            match timeout(Duration::from_millis(10), swarm.select_next_some()).await {
                Ok(event) => follow(&mut swarm, &script, &topics, event),
                Err(_) => gossip(&mut swarm, &script, &topics),
            }
        }
    });
    Hostile {
        control,
        _driver: driver,
    }
}

fn follow(
    swarm: &mut Swarm<Behaviour>,
    script: &Script,
    topics: &Topics,
    event: SwarmEvent<BehaviourEvent>,
) {
    match event {
        SwarmEvent::ConnectionEstablished { peer_id, .. } if script.hello => {
            let greeting = Greeting {
                protocol: PROTOCOL_VERSION,
                proof: None,
                certificate: None,
            };
            let behaviour = swarm.behaviour_mut();
            behaviour.gossip.open(peer_id);
            behaviour.greeting.send_request(&peer_id, greeting);
        }
        SwarmEvent::Behaviour(BehaviourEvent::Greeting(request_response::Event::Message {
            peer: peer_id,
            message: Message::Response { .. },
            ..
        })) => {
            let spec = FederationSpec::default();
            let role = if script.is_aggregator {
                Role::Aggregator
            } else {
                Role::Node
            };
            let hello = Hello {
                protocol: PROTOCOL_VERSION,
                software: "hostile".to_owned(),
                role,
                federation: spec.id(),
                spec: spec.entries(),
                clock: crate::clock::now(),
                certificate: None,
            };
            swarm.behaviour_mut().hello.send_request(&peer_id, hello);
        }
        SwarmEvent::Behaviour(BehaviourEvent::Sync(request_response::Event::Message {
            message: Message::Request { channel, .. },
            ..
        })) => {
            let adverts = script
                .sync_replies
                .lock()
                .unwrap()
                .pop()
                .unwrap_or_default();
            let reply = SyncReply {
                adverts: Bounded::first_of(adverts),
                more: true,
                holds: Bounded::first_of([]),
                statements: Bounded::first_of([]),
            };
            _ = swarm.behaviour_mut().sync.send_response(channel, reply);
        }
        SwarmEvent::Behaviour(BehaviourEvent::Gossip(libp2p::gossipsub::Event::Subscribed {
            topic,
            ..
        })) if topic == topics.control.hash() => script.ready[1].store(true, Ordering::Relaxed),
        SwarmEvent::Behaviour(BehaviourEvent::Hello(request_response::Event::Message {
            message: Message::Response { .. },
            ..
        })) => script.ready[0].store(true, Ordering::Relaxed),
        _ => {}
    }
    gossip(swarm, script, topics);
}

fn gossip(swarm: &mut Swarm<Behaviour>, script: &Script, topics: &Topics) {
    let is_ready = |ready: &AtomicBool| ready.load(Ordering::Relaxed);
    if !script.ready.iter().all(is_ready) {
        return;
    }
    if let Some(identity) = &script.floods {
        flood(swarm, identity, topics);
    }
    for signed in script.gossip.lock().unwrap().drain(..) {
        let message = codec::encode(&signed);
        let topic = topics.control.hash();
        swarm
            .behaviour_mut()
            .gossip
            .inner
            .publish(topic, message)
            .unwrap();
    }
}

/// Publishes as many messages as the queue takes, none of which is like another or blames anybody.
fn flood(swarm: &mut Swarm<Behaviour>, identity: &Identity, topics: &Topics) {
    static SENT: AtomicU64 = AtomicU64::new(0);
    let gossip = &mut swarm.behaviour_mut().gossip.inner;
    let mut is_full = false;
    while !is_full {
        let presence = Presence {
            federation: config().federation,
            node: identity.node_id(),
            role: Role::Node,
            issued_at: Timestamp(SENT.fetch_add(1, Ordering::Relaxed)),
            seconds: 40,
            certificate: None,
        };
        let said = gossip.publish(topics.presence.hash(), presence.seal(identity));
        is_full = said.is_err();
    }
}

async fn victim() -> Network {
    start(config(), Identity::generate(), Arc::<Small>::default())
        .await
        .unwrap()
}

/// Returns events until one of them is a strike, that one last.
async fn until_struck(victim: &mut Network) -> Vec<Event> {
    let mut seen = Vec::new();
    let struck = async {
        while !matches!(seen.last(), Some(Event::Struck { .. })) {
            seen.push(victim.events.recv().await.unwrap());
        }
    };
    timeout(PATIENCE, struck).await.expect("the liar is struck");
    seen
}

fn adverts(events: &[Event]) -> Vec<(Round, u64)> {
    let advert = |event: &Event| match event {
        Event::Advert { advert, .. } => Some((advert.round, advert.sequence.counter)),
        _ => None,
    };
    events.iter().filter_map(advert).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_adverts_are_struck_and_replayed_ones_heard_once() {
    let mut victim = victim().await;
    let (eve, ann) = (Identity::generate(), Identity::generate());
    let genuine = || said(&ann, 1, 1);
    let replayed = genuine();
    let replies = vec![
        vec![forged(&ann)],
        vec![replayed.clone(), said(&ann, 2, 2)],
        vec![replayed.clone(), replayed],
    ];
    let _hostile = attack(
        &victim,
        &eve,
        Script {
            hello: true,
            sync_replies: replies.into(),
            ..Script::default()
        },
    );
    let seen = until_struck(&mut victim).await;
    assert_eq!(adverts(&seen), [(Round(1), 1), (Round(2), 2)]);
    let Some(Event::Struck { node, reason }) = seen.last() else {
        unreachable!()
    };
    assert_eq!(
        *node,
        eve.node_id(),
        "the one who passed it on, not the one in whose name it was forged"
    );
    assert!(reason.contains("signature"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_gossip_is_struck_and_a_flood_is_cut() {
    let mut victim = victim().await;
    let (eve, ann) = (Identity::generate(), Identity::generate());
    let mut gossip: Vec<SignedAdvert> = (1..=20).map(|counter| said(&ann, counter, 3)).collect();
    gossip.push(forged(&ann));
    // Give the victim's hello time to be answered first: there is no gossip before it, and sync has nothing.
    let script = Script {
        hello: true,
        gossip: Mutex::default(),
        ..Script::default()
    };
    let hostile = attack(&victim, &eve, script);
    timeout(PATIENCE, async {
        while !matches!(victim.events.recv().await, Some(Event::PeerUp { .. })) {}
    })
    .await
    .unwrap();
    drop(hostile);
    let second = Identity::generate();
    let _hostile = attack(
        &victim,
        &second,
        Script {
            hello: true,
            gossip: gossip.into(),
            ..Script::default()
        },
    );
    let seen = until_struck(&mut victim).await;
    let heard = adverts(&seen);
    assert!(
        heard.len() <= 8,
        "eight adverts of one author about one round are enough: {heard:?}"
    );
    assert!(heard.iter().all(|(round, _)| *round == Round(3)));
}

/// Who counts an advert shortly before its day is over shows it to others a moment after.
#[tokio::test(flavor = "multi_thread")]
async fn an_advert_that_has_expired_is_heard_by_whoever_asks_for_it() {
    let mut victim = victim().await;
    let (eve, ann) = (Identity::generate(), Identity::generate());
    let old = crate::clock::now() - ADVERT_LIFE - Duration::from_secs(1);
    let expired = said_at(&ann, 1, 1, old);
    let id = expired.id();
    let script = Script {
        hello: true,
        sync_replies: vec![vec![expired]; 50].into(),
        ..Script::default()
    };
    let _hostile = attack(&victim, &eve, script);
    let mut before = Vec::new();
    let is_up = |event: &Event| matches!(event, Event::PeerUp { .. });
    while !before.last().is_some_and(is_up) {
        let next = timeout(PATIENCE, victim.events.recv()).await;
        before.push(next.unwrap().unwrap());
    }
    // Time for the first sync, which brings it too.
    tokio::time::sleep(Duration::from_millis(300)).await;
    while let Ok(event) = victim.events.try_recv() {
        before.push(event);
    }
    assert_eq!(adverts(&before), [], "nobody had asked for it");
    let wanted = Wanted {
        advert: id,
        author: ann.node_id(),
        named_by: eve.node_id(),
    };
    victim.handle.ask(vec![wanted]).await;
    let heard = async {
        loop {
            if let Some(Event::Advert { signed, .. }) = victim.events.recv().await {
                return signed.id();
            }
        }
    };
    assert_eq!(timeout(PATIENCE, heard).await.unwrap(), id);
}

/// Honest peers pass on what others made them accept, so nobody is struck for a flood.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_floods_is_disconnected_and_not_struck() {
    let mut victim = victim().await;
    let (eve, ann) = (Identity::generate(), Identity::generate());
    let script = Script {
        hello: true,
        floods: Some(ann),
        ..Script::default()
    };
    let _hostile = attack(&victim, &eve, script);
    let down = async {
        loop {
            match victim.events.recv().await.unwrap() {
                Event::PeerDown { node } if node == eve.node_id() => return,
                Event::Struck { reason, .. } => panic!("{reason}"),
                _ => {}
            }
        }
    };
    timeout(2 * PATIENCE, down).await.unwrap();
}

/// Returns the bytes by which gossipsub publishes an advert on the control topic.
fn gossip_frame(signed: &SignedAdvert) -> Vec<u8> {
    let with_length = |bytes: &[u8]| {
        let (mut frame, mut left) = (Vec::new(), bytes.len());
        while left > 127 {
            frame.push(u8::try_from(left & 127).unwrap() | 128);
            left >>= 7;
        }
        frame.push(u8::try_from(left).unwrap());
        [&frame, bytes].concat()
    };
    let field = |number: u8, bytes: &[u8]| [vec![number << 3 | 2], with_length(bytes)].concat();
    let topic = Topics::of(config().federation).control.hash();
    let (data, topic) = (codec::encode(signed), topic.into_string());
    let message = [field(2, &data), field(4, topic.as_bytes())].concat();
    with_length(&field(2, &message))
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_without_hello_is_neither_heard_nor_served() {
    let mut victim = victim().await;
    let (eve, ann) = (Identity::generate(), Identity::generate());
    let mut hostile = attack(&victim, &eve, Script::default());
    let peer = crate::identity::peer_id(&victim.handle.node_id());
    let mut stream = timeout(
        PATIENCE,
        hostile
            .control
            .open_stream(peer, StreamProtocol::new(BLOB_PROTOCOL)),
    )
    .await
    .unwrap()
    .unwrap();
    let ask = BlobAsk {
        id: 0,
        blob: BlobId::of(b""),
        want: Want::List,
    };
    // The stream may be closed before anything is written.
    _ = codec::write(&mut stream, &ask, 1000).await;
    _ = stream.flush().await;
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the stream is closed");
    assert!(read.is_err() || answer.is_empty(), "not even \"not held\"");
    // The victim subscribes to nothing before a hello, so the advert is pushed by hand.
    let gossip = StreamProtocol::new("/meshsub/1.1.0");
    let mut stream = hostile.control.open_stream(peer, gossip).await.unwrap();
    let advert = gossip_frame(&said(&ann, 1, 1));
    stream.write_all(&advert).await.unwrap();
    stream.flush().await.unwrap();
    // Had it been read, it would be counted within moments.
    while let Ok(Some(event)) = timeout(Duration::from_secs(1), victim.events.recv()).await {
        assert!(matches!(event, Event::Listening(_)), "{event:?}");
    }
    assert_eq!(victim.handle.traffic().gossip_received, 0);
    assert!(victim.handle.peers().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_frame_is_refused_unread() {
    let mut victim = victim().await;
    let eve = Identity::generate();
    let mut hostile = attack(
        &victim,
        &eve,
        Script {
            hello: true,
            ..Script::default()
        },
    );
    timeout(PATIENCE, async {
        while !matches!(victim.events.recv().await, Some(Event::PeerUp { .. })) {}
    })
    .await
    .unwrap();
    let peer = crate::identity::peer_id(&victim.handle.node_id());
    let mut stream = hostile
        .control
        .open_stream(peer, StreamProtocol::new(SYNC_PROTOCOL))
        .await
        .unwrap();
    let before = victim.handle.traffic().control_received;
    stream.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // The victim closes the stream at the prefix; it does not wait for four gigabytes.
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the stream is closed");
    assert!(read.is_err() || answer.is_empty());
    assert_eq!(
        victim.handle.traffic().control_received,
        before,
        "nothing of it was taken in"
    );
}

/// Answers every request for a segment with these bytes, as if they were what it packs to.
async fn serve_packed(mut streams: libp2p_stream::IncomingStreams, lie: Vec<u8>) {
    while let Some((_, mut stream)) = streams.next().await {
        while let Ok((BlobAsk { id, want, .. }, _)) =
            codec::read(&mut stream, MAX_BLOB_HEADER).await
        {
            assert!(
                matches!(
                    want,
                    Want::Packed {
                        width: Width::Four,
                        base: None,
                        ..
                    }
                ),
                "{want:?}"
            );
            let outcome = Answer::Packed {
                bytes: u32::try_from(lie.len()).unwrap(),
                against: false,
            };
            codec::write(&mut stream, &BlobAnswer { id, outcome }, MAX_BLOB_HEADER)
                .await
                .unwrap();
            stream.write_all(&lie).await.unwrap();
            stream.flush().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrongly_packed_blob_is_struck_and_fetched_elsewhere() {
    let bytes = b"four".repeat(5000);
    let blob = BlobRef::of(&bytes);
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
    let short = zstd::bulk::compress(&bytes[4..], 1).unwrap();
    let wrong = zstd::bulk::compress(&bytes, 1).unwrap();
    for (lie, reason) in [
        (b"garbage".to_vec(), "unpacked"),
        (bomb, "unpacked"),
        (short, "19996"),
        (wrong, "corrupt"),
    ] {
        let victim_config = Config {
            compression: Compression::Zstd,
            ..config()
        };
        let mut victim = start(victim_config, Identity::generate(), Arc::<Small>::default())
            .await
            .unwrap();
        let (eve, ann) = (Identity::generate(), Identity::generate());
        let mut hostile = attack(
            &victim,
            &eve,
            Script {
                hello: true,
                ..Script::default()
            },
        );
        let streams = hostile
            .control
            .accept(StreamProtocol::new(BLOB_PROTOCOL))
            .unwrap();
        let _serving = tokio::spawn(serve_packed(streams, lie));
        let (handle, providers) = (victim.handle.clone(), vec![eve.node_id(), ann.node_id()]);
        let packing = Packing {
            width: Width::Four,
            base: None,
        };
        let fetching = tokio::spawn(async move {
            handle
                .fetch_packed(blob, providers, PATIENCE, packing)
                .await
        });
        let seen = until_struck(&mut victim).await;
        let Some(Event::Struck { node, reason: said }) = seen.last() else {
            unreachable!()
        };
        assert_eq!(*node, eve.node_id());
        assert!(said.contains(reason), "{said} for lack of `{reason}`");
        let store = Small::with(&bytes);
        let honest = Config {
            peers: vec![victim.handle.listeners().remove(0)],
            ..config()
        };
        let ann = start(honest, ann, Arc::new(store)).await.unwrap();
        let fetched = fetching.await.unwrap().unwrap();
        assert_eq!(fetched.from, [ann.handle.node_id()]);
        assert!(
            fetched.bytes_received[&ann.handle.node_id()] < blob.size / 10,
            "{fetched:?}"
        );
    }
}

#[tokio::test]
async fn who_said_no_hello_gets_no_place_at_a_relay() {
    let mut config = config();
    config.relay = true;
    let blobs: Arc<Small> = Arc::default();
    let victim = start(config, Identity::generate(), blobs).await.unwrap();
    let mut swarm = bare_swarm(&Identity::generate());
    let address = victim.handle.listeners().remove(0);
    let place = address.with(Protocol::P2pCircuit);
    let place = swarm.listen_on(place).unwrap();
    let refused = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::NewListenAddr { .. } => panic!("a stranger got a place"),
                SwarmEvent::ListenerClosed {
                    listener_id,
                    reason,
                    ..
                } if listener_id == place => return reason,
                _ => {}
            }
        }
    };
    // Sooner than the connection is closed because there was no hello.
    let reason = timeout(Duration::from_secs(5), refused).await;
    assert!(reason.expect("it is refused at once").is_err());
}
