//! The figures of `status` for Prometheus.
//!
//! Every scrape builds its registry from one status, so that metrics and `status` can never disagree.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use crate::status::{Bytes, RoundRecord, Status};

/// Content type of the text form.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type ByMeasure = Family<[(&'static str, String); 1], Gauge<f64, AtomicU64>>;
type ByPurpose = Family<[(&'static str, &'static str); 2], Gauge<f64, AtomicU64>>;

/// Writes a status in the text form.
pub fn render(status: &Status) -> String {
    let mut registry = Registry::with_prefix("fednode");
    register_round(&mut registry, status);
    register_resources(&mut registry, status);
    register_traffic(&mut registry, status);
    let mut text = String::new();
    // Writing to a string cannot fail; a value that cannot be encoded is left out.
    let _ = encode(&mut text, &registry);
    text
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: f64) {
    registry.register(name, help, ConstGauge::new(value));
}

fn register_round(registry: &mut Registry, status: &Status) {
    let waits = status.waiting_for.iter().map(|waiting| waiting.seconds);
    let rows = [
        (
            "round",
            "Round that is being worked on",
            f64::from(status.round.0),
        ),
        (
            "closed_round",
            "Newest closed round",
            f64::from(status.closed_round.0),
        ),
        (
            "finished",
            "1 when all rounds are done",
            f64::from(u8::from(status.finished)),
        ),
        ("peers", "Peers that said a good hello", status.peers as f64),
        (
            "waiting_seconds",
            "How long the longest of the current waits lasts already",
            waits.fold(0.0, f64::max),
        ),
    ];
    for (name, help, value) in rows {
        gauge(registry, name, help, value);
    }
    if let Some(record) = &status.last_record {
        register_record(registry, record);
    }
}

fn register_record(registry: &mut Registry, record: &RoundRecord) {
    let rows = [
        (
            "train_loss",
            "Mean training loss of the last complete round",
            record.training_loss(),
        ),
        (
            "accuracy",
            "Test accuracy after the last complete round, 0 to 1; R2 where a number is predicted",
            record.accuracy,
        ),
        (
            "last_round_seconds",
            "Duration of the last complete round",
            Some(record.round_seconds),
        ),
        (
            "last_train_seconds",
            "Training time of the last complete round",
            Some(record.train_seconds),
        ),
    ];
    for (name, help, value) in rows {
        if let Some(value) = value {
            gauge(registry, name, help, value);
        }
    }
    if let Some(judged) = &record.judged
        && let Some(value) = judged.value
    {
        let score = ByMeasure::default();
        score
            .get_or_create(&[("measure", judged.measure.clone())])
            .set(value);
        registry.register(
            "score",
            "By the measure that the federation names, on the test samples after the last complete round",
            score,
        );
    }
}

fn register_resources(registry: &mut Registry, status: &Status) {
    let uptime = ConstCounter::new(status.uptime_seconds);
    registry.register_with_unit(
        "uptime",
        "Time since the start of the process",
        Unit::Seconds,
        uptime,
    );
    let figures = [
        ("resident_memory", "Resident memory", status.rss_bytes),
        (
            "resident_memory_peak",
            "Most resident memory so far",
            status.peak_rss_bytes,
        ),
        ("blobs", "Blobs held", Some(status.blob_bytes)),
        (
            "disk_free",
            "Free space on the state folder's disk",
            status.disk_free_bytes,
        ),
    ];
    for (name, help, value) in figures {
        if let Some(value) = value {
            registry.register_with_unit(name, help, Unit::Bytes, ConstGauge::new(value as f64));
        }
    }
}

fn register_traffic(registry: &mut Registry, status: &Status) {
    let family = ByPurpose::default();
    for (direction, bytes) in [
        ("sent", status.traffic.sent),
        ("received", status.traffic.received),
    ] {
        for (purpose, value) in purposes(bytes) {
            family
                .get_or_create(&[("direction", direction), ("purpose", purpose)])
                .set(value as f64);
        }
    }
    registry.register_with_unit(
        "traffic",
        "Traffic since the start of the process, or since the last end of rounds",
        Unit::Bytes,
        family,
    );
}

const fn purposes(bytes: Bytes) -> [(&'static str, u64); 5] {
    [
        ("aggregator", bytes.aggregator),
        ("peer_to_peer", bytes.peer_to_peer),
        ("gossip", bytes.gossip),
        ("control", bytes.control),
        ("wire", bytes.wire),
    ]
}
