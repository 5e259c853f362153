//! How fast the simulator is: `cargo run --release -p fednode-engine --example scale -- NODES ROUNDS`.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that times itself and prints")]

use std::time::Instant;

use fednode_engine::sim::{self, Scenario};

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().expect("two numbers"));
    let (nodes, rounds) = (numbers.next().unwrap_or(1000), numbers.next().unwrap_or(20));
    let observe = numbers.next().is_some();
    let scenario = Scenario { observe, ..Scenario::new(1, nodes, rounds as u32) };
    let started = Instant::now();
    let outcome = sim::run(&scenario);
    let seconds = started.elapsed().as_secs_f64();
    let unfinished = outcome.unfinished().len();
    println!(
        "{nodes} nodes, {rounds} rounds: {seconds:.1} s, {} adverts delivered, {unfinished} unfinished",
        outcome.deliveries
    );
    if let Some(experts) = scenario.spec.exchange.experts.as_ref().filter(|_| observe) {
        for (round, agreement) in outcome.agreement(experts, nodes / 200) {
            println!(
                "plans of round {round}: recall {:.3}, similarity lost {:.4}",
                agreement.recall, agreement.similarity_lost
            );
        }
    }
}
