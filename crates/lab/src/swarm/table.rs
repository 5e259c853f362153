//! The result of a swarm as a newcomer reads it.

use std::collections::BTreeMap;

use crate::swarm::summary::{Node, Summary};
use fednode_cli::output::Report;
use fednode_cli::table::{Column, bytes, duration, number, percent, render, text};

/// From which share of the samples on one expert decides nearly everything.
const COLLAPSED: f64 = 0.95;
/// How many different compositions of models are listed, and how many nodes of each are named.
const COMPOSITIONS: usize = 4;
const NODES_NAMED: usize = 12;
/// How many classes are listed before "and so on".
const CLASSES_SHOWN: usize = 10;
/// Where classes and floor stand in the table of nodes.
const CLASSES: usize = 4;
const FLOOR: usize = 5;

impl Report for Summary {
    fn human(&self) -> String {
        [
            self.title(),
            self.worth
                .as_ref()
                .map_or_else(String::new, |worth| format!("{}\n\n", worth.sentence())),
            self.nodes_table(),
            self.without_tests(),
            self.conclusions(),
            self.use_of_experts(),
            self.compositions(),
            self.shortcomings(),
            self.failures(),
        ]
        .concat()
    }
}

impl Summary {
    fn title(&self) -> String {
        format!(
            "\n{} on {} ({}), {} nodes, {} rounds, {}, privacy {}\n\n",
            self.algorithm,
            self.data,
            self.partition,
            self.nodes,
            self.rounds,
            self.device,
            self.privacy.mode
        )
    }

    /// Says so where no node has a test sample: accuracies of nothing are 0 here.
    fn without_tests(&self) -> String {
        if self.per_node.iter().any(|node| node.test_samples > 0) {
            return String::new();
        }
        "\nno node has test samples: nothing tells how good the models are, and every accuracy below is 0\n".to_owned()
    }

    fn nodes_table(&self) -> String {
        let columns = [
            number("node"),
            text("id"),
            number("train"),
            number("test"),
            text("classes"),
            number("floor"),
            number("before exchange"),
            number("after exchange"),
            number("sent"),
            number("received"),
            number("memory"),
        ];
        // Where a number is predicted there are no classes, and no commonest one.
        let are_shown = |at: &usize| self.target.is_none() || ![CLASSES, FLOOR].contains(at);
        let shown: Vec<usize> = (0..columns.len()).filter(are_shown).collect();
        let columns: Vec<Column> = shown.iter().map(|at| columns[*at]).collect();
        let pick = |cells: Vec<String>| shown.iter().map(|at| cells[*at].clone()).collect();
        let rows: Vec<Vec<String>> = self.per_node.iter().map(row).map(pick).collect();
        render(&columns, &rows)
    }

    fn conclusions(&self) -> String {
        let traffic = self.bytes_per_round;
        let whole = |bytes_per_round: f64| bytes(bytes_per_round.round() as u64);
        let finished = self.accuracy_after_finishing().map(|accuracy| match self.pools() {
            (0, _) => format!("after the rounds {} once every node has tuned its model for itself\n", percent(accuracy)),
            (pools, serving) => format!(
                "with the pool  {}; {serving} of {pools} nodes serve a mixture of private modules, the others their own\n",
                percent(accuracy)
            ),
        });
        let everyones = self.everyones_test().map(|test| {
            let (all, own) = (percent(test.accuracy), percent(test.accuracy_on_own_classes));
            format!("global test    {all} on everyone's test samples; {own} with classes weighted as a node has them (local test)\n")
        });
        let finished = [finished, everyones]
            .into_iter()
            .flatten()
            .collect::<String>();
        format!(
            "\n{:<15}{} after the last exchange ({} before it{}), weighted by {}\n{}\
             worst tenth    {} of the nodes' {} after the last exchange{}\n{}\
             traffic        per node and round: {} with the aggregator, {} from peer to peer, {} gossip\n\
             time           {} in all, {} of it training; {} of the rounds' time was not training{}\n{}",
            format!("mean {}", self.measure()),
            percent(self.mean_accuracy),
            percent(self.accuracy_before_exchange()),
            self.who_trained_last(),
            if self.target.is_some() { "how much its tests vary" } else { "test samples" },
            finished,
            percent(self.worst_tenth_accuracy),
            if self.target.is_some() { "R²" } else { "accuracies" },
            self.worst_tenth_after_finishing()
                .map_or_else(String::new, |worst| format!(", {} in the end", percent(worst))),
            self.floor(),
            whole(traffic.aggregator),
            whole(traffic.peer_to_peer),
            whole(traffic.gossip),
            duration(self.wall_seconds),
            duration(self.train_seconds),
            percent(self.overhead.share),
            self.causes(),
            self.overhead.idle_core_share.map_or_else(String::new, |share| format!(
                "               {} of the processor cores' time in which nobody trained on them\n",
                percent(share)
            )),
        )
    }

    /// Says what a constant answer would reach; of a number the mean reaches nothing.
    fn floor(&self) -> String {
        if self.target.is_some() {
            return String::new();
        }
        format!(
            "floor          {} is what always saying the commonest class of each node would reach\n",
            percent(self.majority_class_accuracy)
        )
    }

    /// Says whose accuracy before the exchange is known, where only some nodes trained in the last round.
    fn who_trained_last(&self) -> String {
        let trained = self
            .per_node
            .iter()
            .filter(|node| node.accuracy_after_local_training.is_some())
            .count();
        if trained < self.per_node.len() {
            format!(", of the {trained} nodes that trained in the last round")
        } else {
            String::new()
        }
    }

    /// Names the three largest causes of overhead.
    fn causes(&self) -> String {
        let rounds = self.overhead.round_seconds;
        let mut causes: Vec<(&String, f64)> = self
            .overhead
            .seconds_by_cause
            .iter()
            .map(|(cause, seconds)| (cause, seconds / rounds))
            .collect();
        causes.retain(|(_, share)| *share >= 0.001);
        causes.sort_by(|a, b| b.1.total_cmp(&a.1));
        let named: Vec<String> = causes
            .iter()
            .take(3)
            .map(|(cause, share)| format!("{cause} {}", percent(*share)))
            .collect();
        if named.is_empty() {
            String::new()
        } else {
            format!(" ({})", named.join(", "))
        }
    }

    /// Says of how many nodes one expert decides nearly everything, and what the choice of the expert knows.
    fn use_of_experts(&self) -> String {
        let share = |node: &&Node| node.expert_share.iter().copied().fold(0.0, f64::max);
        let gates: Vec<&Node> = self
            .per_node
            .iter()
            .filter(|node| node.expert_share.len() > 1)
            .collect();
        let n_collapsed = gates.iter().filter(|node| share(node) >= COLLAPSED).count();
        let collapsed = (n_collapsed > 0).then(|| {
            format!(
                "experts        collapsed at {n_collapsed} of {} nodes: one of several decides {} or more of the test samples\n",
                gates.len(),
                percent(COLLAPSED)
            )
        });
        let known: Vec<f64> = gates
            .iter()
            .filter_map(|node| node.domain_information)
            .collect();
        let information = (!known.is_empty()).then(|| {
            let mean = known.iter().sum::<f64>() / known.len() as f64;
            format!(
                "domains        the choice of the expert tells {} of what there is to know of a sample's hidden domain\n",
                percent(mean)
            )
        });
        [collapsed, information].into_iter().flatten().collect()
    }

    /// Says what models are made of, the commonest first.
    fn compositions(&self) -> String {
        let mut alike: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for node in &self.per_node {
            let made_of = node.composition.as_ref();
            let made_of =
                made_of.map_or_else(|| "the algorithm's model".into(), ToString::to_string);
            alike.entry(made_of).or_default().push(node.shard);
        }
        if self.per_node.iter().all(|node| node.composition.is_none()) {
            return String::new();
        }
        let mut alike: Vec<(String, Vec<u32>)> = alike.into_iter().collect();
        alike.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
        let lines = alike.iter().take(COMPOSITIONS).map(|(made_of, nodes)| {
            let mut named: Vec<String> =
                nodes.iter().take(NODES_NAMED).map(u32::to_string).collect();
            if nodes.len() > NODES_NAMED {
                named.push(format!("{} more", nodes.len() - NODES_NAMED));
            }
            let word = if nodes.len() == 1 { "node" } else { "nodes" };
            format!("made of        {made_of} ({word} {})\n", named.join(", "))
        });
        let more = alike.iter().skip(COMPOSITIONS);
        let more: usize = more.map(|(_, nodes)| nodes.len()).sum();
        let more = (more > 0)
            .then(|| format!("               `fednode report` says it of {more} nodes more\n"));
        lines.chain(more).collect()
    }

    /// Says which nodes have a model of no use, and what models lack of what the spec asks for.
    fn shortcomings(&self) -> String {
        let useless = self.per_node.iter().filter_map(|node| {
            let useless = node.useless.as_ref()?;
            Some(format!("no use         node {}: {useless}\n", node.shard))
        });
        let mut lacking: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for node in &self.per_node {
            if let Some(lacks) = &node.lacks {
                lacking
                    .entry(lacks)
                    .or_default()
                    .push(node.shard.to_string());
            }
        }
        let lacking = lacking
            .into_iter()
            .map(|(lacks, nodes)| format!("lacking        nodes {}: {lacks}\n", nodes.join(", ")));
        useless.chain(lacking).collect()
    }

    fn failures(&self) -> String {
        let failed = self.failed_nodes.iter();
        let failed = failed.map(|it| format!("failed         {}: {}\n", it.name, it.reason));
        let banned = self.banned.iter();
        let banned =
            banned.map(|node| format!("banned         node {node}, by others that are honest\n"));
        failed.chain(banned).collect()
    }
}

fn row(node: &Node) -> Vec<String> {
    let short = node
        .node_id
        .chars()
        .rev()
        .take(8)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect();
    vec![
        node.shard.to_string(),
        short,
        node.train_samples.to_string(),
        node.test_samples.to_string(),
        classes(&node.classes),
        percent(node.majority_class_accuracy),
        node.accuracy_after_local_training
            .map_or("-".into(), percent),
        percent(node.accuracy),
        bytes(node.bytes_sent),
        bytes(node.bytes_received),
        bytes(node.peak_rss_bytes),
    ]
}

fn classes(classes: &[u32]) -> String {
    let shown: Vec<String> = classes
        .iter()
        .take(CLASSES_SHOWN)
        .map(u32::to_string)
        .collect();
    let more = classes.len().saturating_sub(CLASSES_SHOWN);
    if more == 0 {
        shown.join(" ")
    } else {
        format!("{} +{more}", shown.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{Component, Composition};

    use crate::swarm::summary::{BytesPerRound, Overhead, Privacy};

    fn node(shard: u32, accuracy: f64) -> Node {
        Node {
            shard,
            node_id: format!("12D3KooWabcdefg{shard}"),
            last_round: 3,
            train_samples: 100,
            test_samples: 25 * shard,
            variation: None,
            classes: vec![0, 3],
            accuracy,
            accuracy_after_local_training: Some(0.5),
            accuracy_after_finishing: None,
            pool: None,
            served: None,
            alone: None,
            everyones_test: None,
            parameters_hash: None,
            majority_class_accuracy: 0.25,
            expert_share: vec![],
            domain_information: None,
            lacks: None,
            useless: None,
            composition: None,
            bytes_sent: 1500,
            bytes_received: 20,
            peak_rss_bytes: 50_000_000,
        }
    }

    /// A run of two nodes.
    fn summary() -> Summary {
        Summary {
            algorithm: "fedmoe-da".into(),
            data: "digits".into(),
            partition: "iid".into(),
            partition_hash: String::new(),
            seed: 1,
            nodes: 2,
            rounds: 3,
            device: "cpu".into(),
            privacy: Privacy::default(),
            target: None,
            worth: None,
            mean_accuracy: 0.8,
            unweighted_mean_accuracy: 0.8,
            worst_tenth_accuracy: 0.75,
            best_round_accuracy: None,
            majority_class_accuracy: 0.25,
            per_node: vec![node(1, 0.75), node(2, 0.825)],
            failed_nodes: vec![],
            banned: vec![],
            bytes_per_round: BytesPerRound {
                aggregator: 1e3,
                peer_to_peer: 2e6,
                gossip: 30.0,
            },
            wall_seconds: 12.0,
            train_seconds: 9.0,
            overhead: Overhead {
                share: 0.25,
                round_seconds: 12.0,
                train_seconds: 9.0,
                idle_core_share: Some(0.125),
                seconds_by_cause: [("experts".into(), 3.0), ("save".into(), 0.0)].into(),
            },
            effective_config: serde_json::Value::Null,
        }
    }

    #[test]
    fn says_in_words_what_the_numbers_mean() {
        let text = summary().human();
        for part in [
            "   1  abcdefg1    100    25  0 3      25.0 %           50.0 %          75.0 %",
            "mean accuracy  80.0 % after the last exchange (50.0 % before it)",
            "time           12 s in all, 9.0 s of it training",
            "25.0 % of the rounds' time was not training (experts 25.0 %)\n",
            "12.5 % of the processor cores' time in which nobody trained on them\n",
            "1.0 kB with the aggregator, 2.0 MB from peer to peer, 30 B gossip",
        ] {
            assert!(text.contains(part), "`{part}` is not in {text}");
        }
    }

    #[test]
    fn what_models_are_made_of_is_said_of_nodes_together() {
        let mut summary = summary();
        let own = Composition::of(Component::OwnModel);
        let joined = own.joined(Component::PeersStatistics, 0.75);
        for node in &mut summary.per_node {
            node.composition = Some(joined.clone());
        }
        let text = summary.human();
        let line = "made of        75 % peers' statistics, 25 % own model (nodes 1, 2)\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn what_models_lack_and_which_are_of_no_use_is_said() {
        let mut summary = summary();
        let lacks = "no statistics expert: there are no samples to take statistics of";
        for node in &mut summary.per_node {
            node.lacks = Some(lacks.into());
        }
        summary.per_node[0].useless = Some("the model's loss is not a number".into());
        let text = summary.human();
        for line in [
            format!("\nlacking        nodes 1, 2: {lacks}\n"),
            "\nno use         node 1: the model's loss is not a number\n".to_owned(),
        ] {
            assert!(text.contains(&line), "`{line}` is not in {text}");
        }
        assert_eq!(summary.why_useless(), None, "the other one is of use");
        summary.per_node[1].useless = Some("it says the same of all".into());
        assert!(summary.why_useless().is_some());
    }

    #[test]
    fn a_collapsed_gate_is_said_in_one_line() {
        let mut summary = summary();
        assert!(!summary.human().contains("\nexperts "), "without experts");
        summary.per_node[0].expert_share = vec![0.5, 0.5];
        summary.per_node[1].expert_share = vec![0.0, 1.0];
        summary.per_node[0].domain_information = Some(0.5);
        summary.per_node[1].domain_information = Some(0.0);
        let text = summary.human();
        for line in [
            "\nexperts        collapsed at 1 of 2 nodes: one of several decides 95.0 % or more of the test samples\n",
            "\ndomains        the choice of the expert tells 25.0 % of what there is to know of a sample's hidden domain\n",
        ] {
            assert!(text.contains(line), "`{line}` is not in {text}");
        }
    }

    #[test]
    fn long_class_lists_are_cut() {
        assert_eq!(
            classes(&(0..12).collect::<Vec<_>>()),
            "0 1 2 3 4 5 6 7 8 9 +2"
        );
    }
}
