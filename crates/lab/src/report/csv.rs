//! The numbers of runs as CSV (RFC 4180). The header has names and units; an absent number is an empty field.

use std::collections::BTreeMap;

use fednode_core::Judged;
use fednode_runtime::status::{Bytes, RoundRecord};

use super::run::{Comparator, Run};
use super::words::known;

/// Returns the files' names and contents.
pub(crate) fn files(runs: &[Run]) -> [(&'static str, String); 4] {
    [
        ("rounds.csv", rounds(runs)),
        ("nodes.csv", nodes(runs)),
        ("pool.csv", pool(runs)),
        ("modules.csv", modules(runs)),
    ]
}

/// One line per run, node and round.
fn rounds(runs: &[Run]) -> String {
    let header = "run,node,node id,round,train loss (nats),accuracy after exchange (0 to 1),loss after exchange (nats),\
                  accuracy before exchange (0 to 1),loss before exchange (nats),measure,by the measure after exchange,\
                  by the measure before exchange,train samples,test samples,multiply-adds,training (s),round (s),waited for experts (s),waited for mean (s),merge (s),evaluate (s),save (s),\
                  publish (s),sources used,members,sent with aggregator (bytes),sent peer to peer (bytes),\
                  sent gossip (bytes),sent control (bytes),sent on the wire (bytes),received from aggregator (bytes),\
                  received peer to peer (bytes),received gossip (bytes),received control (bytes),\
                  received on the wire (bytes),memory (bytes)\n";
    let mut text = header.to_owned();
    for run in runs {
        let labels: BTreeMap<&str, &str> = run
            .nodes
            .iter()
            .map(|node| (node.node_id.as_str(), node.label.as_str()))
            .collect();
        for record in &run.records {
            let id = record.node_id.to_string();
            let label = labels.get(id.as_str()).copied().unwrap_or_default();
            let mut fields = vec![run.name.clone(), label.to_owned(), id];
            fields.extend(learned(record));
            fields.extend(seconds(record));
            fields.extend(exchanged(record));
            text += &line(&fields);
        }
    }
    text
}

/// What a node learned in a round, and from how many samples.
fn learned(record: &RoundRecord) -> [String; 12] {
    let (after, before) = (&record.judged, &record.judged_after_local_training);
    let named = after.as_ref().or(before.as_ref());
    let value = |judged: &Option<Judged>| number(judged.as_ref().and_then(|it| it.value));
    [
        record.round.0.to_string(),
        number(record.train_loss),
        number(record.accuracy),
        number(record.loss),
        number(record.accuracy_after_local_training),
        number(record.loss_after_local_training),
        named.map_or_else(String::new, |judged| judged.measure.clone()),
        value(after),
        value(before),
        record.n_samples.to_string(),
        record.test_samples.to_string(),
        count(record.multiply_adds),
    ]
}

/// Where the time of a node's round went.
fn seconds(record: &RoundRecord) -> [String; 8] {
    let waited = record.waited_seconds;
    [
        record.train_seconds,
        record.round_seconds,
        waited.experts,
        waited.global,
        waited.merge,
        waited.evaluate,
        waited.save,
        waited.publish,
    ]
    .map(number)
}

/// Whom a node's round joined, and the bytes and the memory that it took.
fn exchanged(record: &RoundRecord) -> Vec<String> {
    let mut fields = vec![
        record.n_sources_used.to_string(),
        record.members.to_string(),
    ];
    let moved = [record.bytes_sent, record.bytes_received];
    fields.extend(moved.into_iter().flat_map(kinds));
    fields.push(count(record.rss_bytes));
    fields
}

fn count(value: Option<u64>) -> String {
    value.map_or(String::new(), |count| count.to_string())
}

fn kinds(bytes: Bytes) -> [String; 5] {
    [
        bytes.aggregator,
        bytes.peer_to_peer,
        bytes.gossip,
        bytes.control,
        bytes.wire,
    ]
    .map(|bytes| bytes.to_string())
}

/// One line per run and node.
fn nodes(runs: &[Run]) -> String {
    let header = "run,algorithm,seed,node,node id,last round,train samples,test samples,classes,\
                  accuracy after exchange (0 to 1),accuracy before exchange (0 to 1),accuracy after last stage (0 to 1),\
                  global test (0 to 1),local test (0 to 1),majority-class floor (0 to 1),sent (bytes),received (bytes),peak memory (bytes)\n";
    let mut text = header.to_owned();
    for run in runs {
        for node in &run.nodes {
            let classes: Vec<String> = node.classes.iter().map(u32::to_string).collect();
            let seed = run.seed.map_or(String::new(), |seed| seed.to_string());
            let mut fields = vec![
                run.name.clone(),
                run.algorithm.clone(),
                seed,
                node.label.clone(),
                node.node_id.clone(),
            ];
            fields.extend(
                [node.last_round, node.train_samples, node.test_samples]
                    .map(|count| count.to_string()),
            );
            fields.push(classes.join(" "));
            fields.extend([node.accuracy, node.before_exchange, node.after_last_stage].map(number));
            fields.extend([node.on_everyone, node.on_own_classes, node.floor].map(number));
            fields.extend([node.bytes_sent, node.bytes_received, node.peak_rss_bytes].map(number));
            text += &line(&fields);
        }
    }
    text
}

/// One line per run, node and comparator.
///
/// The served accuracy is that of the model that the node ends with. Its loss is that of the mixture or of the own module
/// alone, because no other is known.
fn pool(runs: &[Run]) -> String {
    let header = "run,seed,node,node id,comparator,accuracy (0 to 1),loss without the statistics expert (nats),\
                  test samples\n";
    let mut text = header.to_owned();
    for run in runs {
        let seed = run.seed.map_or(String::new(), |seed| seed.to_string());
        for node in &run.nodes {
            let Some(pool) = &node.pool else { continue };
            for comparator in Comparator::ALL {
                let score = comparator.score_without_statistics(pool);
                let samples = score.map_or(String::new(), |score| score.n_samples.to_string());
                let mut fields = vec![
                    run.name.clone(),
                    seed.clone(),
                    node.label.clone(),
                    node.node_id.clone(),
                ];
                fields.push(comparator.name().to_owned());
                fields.extend([
                    number(node.pool_accuracy(comparator)),
                    number(score.map(|score| score.loss)),
                    samples,
                ]);
                text += &line(&fields);
            }
        }
    }
    text
}

/// One line per run, node and member of its pool.
fn modules(runs: &[Run]) -> String {
    let mut text = "run,node,node id,module of,score,kept,gate mass (0 to 1)\n".to_owned();
    for run in runs {
        for node in &run.nodes {
            for member in node.pool.iter().flat_map(|pool| &pool.members) {
                let owner = member
                    .node
                    .map_or_else(|| "own".to_owned(), |node| node.to_string());
                let mut fields = vec![
                    run.name.clone(),
                    node.label.clone(),
                    node.node_id.clone(),
                    owner,
                ];
                fields.extend([
                    number(member.score),
                    member.kept.to_string(),
                    number(member.gate_mass),
                ]);
                text += &line(&fields);
            }
        }
    }
    text
}

fn number(value: impl Into<Option<f64>>) -> String {
    known(value).map_or(String::new(), |value| value.to_string())
}

fn line(fields: &[String]) -> String {
    fields
        .iter()
        .map(|text| field(text))
        .collect::<Vec<_>>()
        .join(",")
        + "\n"
}

/// Quotes a field that a reader would take for several.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn commas_quotes_and_line_breaks_are_quoted() {
        assert_eq!(
            line(&[
                "plain".into(),
                "a,b".into(),
                "say \"x\"".into(),
                "1\n2".into()
            ]),
            "plain,\"a,b\",\"say \"\"x\"\"\",\"1\n2\"\n"
        );
    }

    #[test]
    fn as_many_fields_as_headings_and_no_line_missing() {
        let run = Run::finished(
            std::path::Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            fixtures::records(1),
        );
        let lines = [6, 3, 18, 9];
        for ((name, text), want) in files(&[run]).into_iter().zip(lines) {
            let fields: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
            assert_eq!(fields.len(), want + 1, "{name}");
            assert!(
                fields.iter().all(|count| *count == fields[0]),
                "{name}: {fields:?}"
            );
            assert!(!text.contains("NaN"), "{name}");
        }
    }

    #[test]
    fn served_accuracy_is_the_nodes_final_accuracy() {
        let run = Run::finished(
            std::path::Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            fixtures::records(1),
        );
        let end = run.nodes[0].after_last_stage.unwrap();
        let mixture = run.nodes[0].pool_accuracy(Comparator::Mixture).unwrap();
        let text = pool(&[run]);
        assert!(
            text.contains(&format!(",served,{end},"))
                && text.contains(&format!(",mixture,{mixture},")),
            "{text}"
        );
    }

    #[test]
    fn absent_number_is_an_empty_cell() {
        assert_eq!(
            [number(None), number(f64::NAN), number(0.0), number(0.25)],
            ["", "", "0", "0.25"]
        );
        let run = Run::finished(
            std::path::Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            fixtures::records(1),
        );
        let text = pool(&[run]);
        assert!(
            text.lines()
                .any(|line| line.ends_with(",without denoising,,,")),
            "{text}"
        );
        assert!(
            text.lines()
                .any(|line| line.starts_with("x,1,1,") && line.contains(",own module,0.501,")),
            "{text}"
        );
    }
}
