//! A member that copies proxies to be mixed in everywhere, and serves rubbish instead of experts.
//!
//! The liar is the project's own network layer with a store that lies, among ordinary processes.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fednode_core::{
    BlobId, BlobRef, BlobStore, Body, ExpertOffer, FederationSpec, Local, Partial, Role,
    SegmentList,
};
use fednode_e2e::{Federation, is_finished};
use fednode_net::{Config, Event, Identity, Network};

/// Claims to hold what it announced and serves zeros.
#[derive(Debug, Default)]
struct Rubbish(Mutex<BTreeMap<BlobId, u64>>);

impl Rubbish {
    fn announce(&self, blob: BlobRef) -> BlobRef {
        self.0.lock().unwrap().insert(blob.id, blob.size);
        blob
    }
}

impl BlobStore for Rubbish {
    fn held(&self, id: &BlobId) -> Option<u64> {
        self.0.lock().unwrap().get(id).copied()
    }

    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList> {
        let size = self.held(id).ok_or(io::ErrorKind::NotFound)?;
        SegmentList::verify(BlobRef { id: *id, size }, vec![*id.as_bytes()])
            .map_err(io::Error::other)
    }

    fn read_segment(&self, id: &BlobId, _index: u32) -> io::Result<Vec<u8>> {
        Ok(vec![
            0;
            self.held(id).ok_or(io::ErrorKind::NotFound)? as usize
        ])
    }

    fn begin(&self, _blob: BlobRef) -> io::Result<Partial> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn keep_list(&self, _list: &SegmentList) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_segment(&self, _blob: BlobRef, _index: u32, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn finish(&self, _blob: BlobRef) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// An update like an honest node's, proxies and all, whose blobs are rubbish of the same sizes.
fn imitate(honest: &Local, rubbish: &Rubbish, round: u32) -> Local {
    let forge = |blob: BlobRef, what: &str| {
        let id = BlobId::of(format!("{what} of round {round}").as_bytes());
        rubbish.announce(BlobRef {
            id,
            size: blob.size,
        })
    };
    let experts = honest.experts.iter().enumerate();
    Local {
        shared: honest.shared.map(|blob| forge(blob, "shared part")),
        experts: experts
            .map(|(slot, offer)| ExpertOffer {
                blob: forge(offer.blob, &format!("expert {slot}")),
                ..*offer
            })
            .collect(),
        ..honest.clone()
    }
}

async fn lie(mut network: Network, rubbish: Arc<Rubbish>) {
    let mut newest = 0;
    while let Some(event) = network.events.recv().await {
        let Event::Advert { advert, .. } = event else {
            continue;
        };
        if let Body::Local(honest) = &advert.body
            && advert.round.0 > newest
        {
            newest = advert.round.0;
            let local = imitate(honest, &rubbish, newest);
            let _ = network
                .handle
                .publish(advert.round, Body::Local(local))
                .await;
        }
    }
}

#[test]
fn a_peer_that_serves_corrupt_bytes_is_struck_and_left_out() {
    let settings = [
        "--set",
        "peers_per_expert=all",
        "--set",
        "refresh_every=1",
        "--samples-per-node",
        "120",
    ];
    let round = [
        "--set",
        "round.quorum=0.6",
        "--set",
        "round.deadline_seconds=6",
        "--set",
        "round.grace_seconds=1",
    ];
    let federation = Federation::new(3, 3, &[&settings[..], &round].concat());
    let (_fedboot, address) = federation.start_aggregator();

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let text = std::fs::read_to_string(federation.spec()).unwrap();
    let spec = Arc::new(FederationSpec::from_toml(&text).unwrap());
    let identity = Identity::load_or_create(&federation.path().join("liar.key")).unwrap();
    let liar = identity.node_id();
    let rubbish = Arc::new(Rubbish::default());
    runtime.block_on(async {
        let mut config = Config::new(spec, Role::Node);
        config.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        config.peers = vec![address.parse().unwrap()];
        config.sync_every = Duration::from_secs(1);
        let network =
            fednode_net::start(config, identity, Arc::clone(&rubbish) as Arc<dyn BlobStore>)
                .await
                .unwrap();
        tokio::spawn(lie(network, Arc::clone(&rubbish)));
    });

    let nodes: Vec<_> = (1..=2)
        .map(|shard| federation.start_node(shard, &[&address], &[]))
        .collect();
    for node in &nodes {
        node.wait_for("the last round", is_finished);
        let records = node.records();
        assert_eq!(records.len(), 3);
        // Only the other honest node and the node itself are ever counted and mixed.
        assert!(
            records
                .iter()
                .all(|record| record["members"].as_u64() == Some(2)),
            "{records:?}"
        );
        let log = node.log();
        let struck = log
            .lines()
            .any(|line| line.contains("corrupt") && line.contains(&liar.short()));
        assert!(struck, "nobody struck {liar}:\n{log}");
    }
    assert!(!rubbish.0.lock().unwrap().is_empty());
}
