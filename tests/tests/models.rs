//! Nodes of different models in one federation (pFedMoE), with the real binaries.
#![allow(clippy::unwrap_used)]

use fednode_e2e::{Federation, Process, fednode, is_finished, json_of, run};

const MODELS: &str = "cnn-1,cnn-2,cnn-3,cnn-4,cnn-5";

#[test]
fn five_models_train_together_while_one_node_dies_and_another_comes() {
    let settings = ["--algorithm", "pfedmoe", "--model", MODELS, "--set", "small_model=cnn-5"];
    let slow = ["--samples-per-node", "100", "--local-epochs", "4", "--set", "round.grace_seconds=1"];
    let federation = Federation::new(5, 6, &[&settings[..], &slow[..]].concat());
    let (_fedboot, address) = federation.start_aggregator();
    let mut nodes: Vec<Process> = (1..=4).map(|shard| federation.start_node(shard, &[&address], &[])).collect();
    nodes[0].wait_for_records(2);
    nodes[1].kill();
    nodes.push(federation.start_node(5, &[&address], &[]));
    for (shard, node) in (1..).zip(&nodes).filter(|(shard, _)| *shard != 2) {
        let status = node.wait_for("the last round", is_finished);
        assert_eq!(status["trainer"]["model"], format!("cnn-{shard}"), "{status}");
        let mut evaluate = fednode();
        evaluate
            .args(["evaluate", "--json", "--data", "digits", "--shard", &format!("{shard}/5"), "--state"])
            .arg(&node.state);
        let told = &status["last_record"]["accuracy"];
        assert_eq!(json_of(&run(evaluate))["score"]["accuracy"], *told, "the model on the disk is node {shard}'s own");
    }
}

#[test]
fn models_that_do_not_go_together_are_refused_before_anything_starts() {
    let federation = Federation::new(2, 2, &["--algorithm", "fedper"]);
    let mut node = federation.start_node(1, &[], &["--model", "lenet5"]);
    assert_eq!(node.wait().code(), Some(3));
    assert!(node.log().contains("a node cannot have model `lenet5` where others have `cnn`"), "{}", node.log());
}
