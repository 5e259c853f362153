//! Byte accounting: what this node sent and received, by purpose.
//!
//! The bytes of blobs, hello, sync and peer exchange are counted where they pass. Gossip and raw wire bytes come from the
//! counters of libp2p, because only libp2p knows what it forwards and what encryption adds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use fednode_core::Role;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::behaviour::PRESENCE_TOPIC;

/// Bytes so far. Gossip, control and blob bytes are payload. Wire bytes are all encrypted bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TrafficSnapshot {
    /// Adverts published and forwarded, once per recipient.
    pub gossip_sent: u64,
    /// Adverts received by gossip, duplicates included.
    pub gossip_received: u64,
    /// Hello, sync and peer exchange, sent.
    pub control_sent: u64,
    /// Hello, sync and peer exchange, received.
    pub control_received: u64,
    /// Blob bytes sent to aggregators.
    pub blob_sent_to_aggregators: u64,
    /// Blob bytes sent to other nodes.
    pub blob_sent_to_nodes: u64,
    /// Blob bytes received from aggregators.
    pub blob_received_from_aggregators: u64,
    /// Blob bytes received from other nodes.
    pub blob_received_from_nodes: u64,
    /// All bytes sent on sockets.
    pub wire_sent: u64,
    /// All bytes received on sockets.
    pub wire_received: u64,
}

/// The running counters.
#[derive(Default)]
pub(crate) struct Traffic {
    control_sent: AtomicU64,
    control_received: AtomicU64,
    blob_sent: ByRole,
    blob_received: ByRole,
    registry: Registry,
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[derive(Debug, Default)]
struct ByRole {
    aggregators: AtomicU64,
    nodes: AtomicU64,
}

impl ByRole {
    fn add(&self, role: Role, bytes: u64) {
        let counter = if role == Role::Aggregator {
            &self.aggregators
        } else {
            &self.nodes
        };
        // Relaxed is enough: a counter orders nothing else.
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Traffic {
    /// Takes over the registry in which libp2p registered its counters.
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            registry,
            ..Self::default()
        }
    }

    pub(crate) fn control_sent(&self, bytes: u64) {
        self.control_sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn control_received(&self, bytes: u64) {
        self.control_received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn blob_sent(&self, to: Role, bytes: u64) {
        self.blob_sent.add(to, bytes);
    }

    pub(crate) fn blob_received(&self, from: Role, bytes: u64) {
        self.blob_received.add(from, bytes);
    }

    pub(crate) fn snapshot(&self) -> TrafficSnapshot {
        let libp2p = self.libp2p_counters();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let named = |name: &str| libp2p.get(name).copied().unwrap_or_default();
        TrafficSnapshot {
            gossip_sent: named("gossipsub_topic_msg_sent_bytes"),
            gossip_received: named("gossipsub_topic_msg_recv_bytes_unfiltered"),
            control_sent: read(&self.control_sent),
            control_received: read(&self.control_received),
            blob_sent_to_aggregators: read(&self.blob_sent.aggregators),
            blob_sent_to_nodes: read(&self.blob_sent.nodes),
            blob_received_from_aggregators: read(&self.blob_received.aggregators),
            blob_received_from_nodes: read(&self.blob_received.nodes),
            wire_sent: named("libp2p_bandwidth_bytes/Outbound"),
            wire_received: named("libp2p_bandwidth_bytes/Inbound"),
        }
    }

    /// Sums libp2p's counters by name, and those of the wire also by direction.
    ///
    /// The registry gives its values only in the text form. That is a public format with a specification.
    fn libp2p_counters(&self) -> BTreeMap<String, u64> {
        let mut text = String::new();
        let mut sums = BTreeMap::new();
        // Counters that cannot be read count as 0: figures must never end a node.
        if prometheus_client::encoding::text::encode(&mut text, &self.registry).is_err() {
            return sums;
        }
        for (name, labels, value) in text.lines().filter_map(parse_counter) {
            // Who is here is no advert; its bytes count on the wire.
            if labels.contains(PRESENCE_TOPIC) {
                continue;
            }
            let direction = ["Inbound", "Outbound"]
                .into_iter()
                .find(|direction| labels.contains(direction));
            let key = direction.map_or_else(
                || name.to_owned(),
                |direction| format!("{name}/{direction}"),
            );
            *sums.entry(key).or_default() += value;
        }
        sums
    }
}

/// Reads one line `name_total{labels} value` of the OpenMetrics text form.
fn parse_counter(line: &str) -> Option<(&str, &str, u64)> {
    let (metric, value) = line.rsplit_once(' ')?;
    let (name, labels) = metric.split_once('{').unwrap_or((metric, ""));
    Some((name.strip_suffix("_total")?, labels, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_split_by_the_role_of_the_peer() {
        let traffic = Traffic::default();
        traffic.blob_sent(Role::Aggregator, 5);
        traffic.blob_sent(Role::Node, 7);
        traffic.blob_sent(Role::Node, 1);
        traffic.blob_received(Role::Aggregator, 11);
        let seen = traffic.snapshot();
        assert_eq!(
            (seen.blob_sent_to_aggregators, seen.blob_sent_to_nodes),
            (5, 8)
        );
        assert_eq!(
            (
                seen.blob_received_from_aggregators,
                seen.blob_received_from_nodes
            ),
            (11, 0)
        );
    }

    #[test]
    fn reads_the_text_form_of_a_counter() {
        let line = r#"libp2p_bandwidth_bytes_total{protocols="/ip4/tcp",direction="Inbound"} 4321"#;
        let (name, labels, value) = parse_counter(line).unwrap();
        assert_eq!((name, value), ("libp2p_bandwidth_bytes", 4321));
        assert!(labels.contains("Inbound"));
        assert_eq!(parse_counter("# TYPE x counter"), None);
        assert_eq!(parse_counter("x_bucket{le=\"1.0\"} 3"), None);
    }
}
