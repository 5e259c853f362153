//! What a round costs that only averages: real processes over loopback, one shared vector, no training.
//!
//! ```text
//! cargo run --release -p fednode-runtime --example averaging -- [NODES] [FLOATS] [ROUNDS]
//! ```
//!
//! With `SLICES=4` before it, the nodes average in slices (`round.slices`).
//!
//! An aggregator and the nodes are processes of their own, as in a live federation. A node publishes its vector as a
//! blob. The aggregator fetches and averages them. Every node fetches and verifies the mean and writes a checkpoint.
//! Each node adds its number every round, so that no round's bytes are known from another.
#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{self, Evaluations, Order, Update, Watch, WorkError, Worker};
use fednode_core::{Averaging, Exchange, FederationSpec, ParamSet, Rule, Weighting};
use fednode_runtime::records::{path_in as records_path, read as read_records};
use fednode_runtime::{MemberConfig, Process, Trainer, TrainerCard, run_aggregator, run_node};
use tokio_util::sync::CancellationToken;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Name of the one tensor.
const TENSOR: &str = "w";
/// The variable that says in how many slices nodes average.
const SLICES: &str = "SLICES";

fn main() -> Outcome {
    fednode_runtime::allocator::settle();
    run()
}

#[tokio::main]
async fn run() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["aggregator", nodes, rounds, state] => {
            aggregate(spec(nodes.parse()?, rounds.parse()?), state).await
        }
        ["node", nodes, rounds, state, number, floats, address] => {
            let vector = Vector {
                number: number.parse()?,
                values: vec![1.0; floats.parse()?],
            };
            let config = MemberConfig {
                peers: vec![(*address).into()],
                ..config(spec(nodes.parse()?, rounds.parse()?), state)
            };
            let card = TrainerCard {
                device: "none".into(),
                model: "vector".into(),
                ..TrainerCard::default()
            };
            let trainer = Trainer::of(Box::new(vector), card);
            run_node(config, trainer, &mut process()).await?;
            Ok(())
        }
        words => {
            let number =
                |at: usize, default| words.get(at).map_or(Ok(default), |word| word.parse());
            measure(number(0, 4)?, number(1, 10_000_000)?, number(2, 6)?)
        }
    }
}

/// Runs all processes and tells how long a round took.
fn measure(nodes: u32, floats: u32, rounds: u32) -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = |name: String| folder.path().join(name);
    let [n, r, f] = [nodes, rounds, floats].map(|number| number.to_string());
    let mut aggregator = child(&["aggregator", &n, &r, &text(&state("aggregator".into()))])?;
    let mut address = String::new();
    let mut output = BufReader::new(aggregator.stdout.take().ok_or("no output")?);
    output.read_line(&mut address)?;
    let start = |number: u32| {
        child(&[
            "node",
            &n,
            &r,
            &text(&state(number.to_string())),
            &number.to_string(),
            &f,
            address.trim(),
        ])
    };
    let members: Vec<Child> = (1..=nodes).map(start).collect::<Outcome<_>>()?;
    for mut member in members.into_iter().chain([aggregator]) {
        if !member.wait()?.success() {
            return Err("a member ended early".into());
        }
    }
    output.read_to_string(&mut address)?;
    let seconds = (1..=nodes).map(|number| seconds_per_round(&state(number.to_string())));
    let slowest = seconds
        .collect::<Outcome<Vec<f64>>>()?
        .into_iter()
        .fold(0.0, f64::max);
    println!(
        "{nodes} nodes, {floats} floats: {slowest:.4} s per round over {} rounds",
        rounds - 1
    );
    Ok(())
}

/// Returns the time from one round's start to the next one's, the first round not counted: there nodes meet.
fn seconds_per_round(state: &Path) -> Outcome<f64> {
    let records = read_records(&records_path(state))?;
    let [first, second, .., last] = records.as_slice() else {
        return Err("too few rounds".into());
    };
    if records
        .iter()
        .any(|record| record.members != first.members || record.closed_by.is_none())
    {
        return Err("a round was closed without everybody".into());
    }
    let end = last.started_at.0 as f64 / 1e3 + last.round_seconds;
    Ok((end - second.started_at.0 as f64 / 1e3) / (records.len() - 1) as f64)
}

/// Starts this program in another role.
fn child(arguments: &[&str]) -> Outcome<Child> {
    Ok(Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()?)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

async fn aggregate(spec: FederationSpec, state: &str) -> Outcome {
    let (told, mut addresses) = tokio::sync::mpsc::channel(8);
    let config = MemberConfig {
        on_listening: Some(told),
        ..config(spec, state)
    };
    let says = async {
        if let Some(address) = addresses.recv().await {
            println!("{address}");
        }
        std::future::pending::<()>().await;
    };
    let mut process = process();
    tokio::select! {
        finished = run_aggregator(config, &mut process) => Ok(finished.map(|_| ())?),
        () = says => Ok(()),
    }
}

/// A process that nobody stops.
fn process() -> Process {
    Process::new(&CancellationToken::new())
}

fn config(spec: FederationSpec, state: &str) -> MemberConfig {
    MemberConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".into()],
        exit_when_finished: true,
        linger: Duration::from_secs(2),
        ..MemberConfig::new(Arc::new(spec), PathBuf::from(state))
    }
}

/// A federation that averages one part, and closes a round when everybody is in.
fn spec(nodes: u32, rounds: u32) -> FederationSpec {
    let averaging = Averaging {
        weighting: Weighting::Uniform,
        rule: Rule::default(),
    };
    let exchange = Exchange {
        averaging: Some(averaging),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    };
    let mut spec = FederationSpec {
        nodes,
        rounds,
        exchange,
        ..FederationSpec::default()
    };
    spec.round.quorum = 1.0;
    // All processes inherit it.
    let slices = std::env::var(SLICES).ok();
    spec.round.slices = slices.and_then(|text| text.parse().ok()).unwrap_or(1);
    spec
}

/// A model that is one vector; its training adds the node's number.
struct Vector {
    number: u8,
    values: Vec<f32>,
}

impl Vector {
    fn params(&self) -> ParamSet {
        params(self.values.clone())
    }

    fn take(&mut self, params: &ParamSet) -> Result<(), WorkError> {
        let tensor = params
            .get(TENSOR)
            .ok_or_else(|| WorkError::Misfit(format!("`{TENSOR}` is missing")))?;
        self.values.copy_from_slice(tensor.values());
        Ok(())
    }
}

fn params(values: Vec<f32>) -> ParamSet {
    let mut params = ParamSet::new();
    params
        .insert(TENSOR, &[values.len()], values)
        .expect("a vector of its own length");
    params
}

impl Worker for Vector {
    fn perform(&mut self, order: Order, _: &mut Watch<'_>) -> Result<work::Outcome, WorkError> {
        Ok(match order {
            Order::TrainAhead(_) => work::Outcome::TrainedAhead,
            Order::Train(_) => {
                let step = f32::from(self.number) * 0.01;
                self.values.iter_mut().for_each(|value| *value += step);
                work::Outcome::Trained(Update {
                    shared: Some(Arc::new(self.params())),
                    experts: Vec::new(),
                    proxies: None,
                    n_samples: 1,
                    train_loss: 0.0,
                    expert_share: Vec::new(),
                    steps: 1,
                    multiply_adds: 0,
                })
            }
            Order::Adopt(received) => {
                received
                    .shared
                    .map_or(Ok(()), |shared| self.take(&shared))?;
                work::Outcome::Adopted
            }
            Order::Evaluate(_) => work::Outcome::Evaluated(Evaluations::default()),
            Order::FineTune(_) => work::Outcome::FineTuned(None),
            Order::MakeModule => work::Outcome::Module(None),
            Order::AssemblePool(_) => {
                return Err(WorkError::Misfit("a vector has no private module".into()));
            }
            Order::GoOn => work::Outcome::WentOn,
            Order::ForgetPeers => work::Outcome::Adopted,
        })
    }

    fn initial_shared(&self) -> Option<ParamSet> {
        Some(params(vec![1.0; self.values.len()]))
    }

    fn shared(&self) -> Option<ParamSet> {
        Some(self.params())
    }

    fn state(&self) -> ParamSet {
        self.params()
    }

    /// A vector draws nothing.
    fn take_secret(&mut self, _: &[u8; 32]) {}

    fn restore(&mut self, state: &ParamSet) -> Result<(), WorkError> {
        self.take(state)
    }
}
