//! Running a swarm: start the children, watch them, know when it is over.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use fednode_runtime::exit::ExitCode;
use fednode_runtime::settings::Network;
use fednode_runtime::status::Status;

use crate::swarm::child::{self, Child};
use crate::swarm::folder::Folder;
use crate::swarm::progress::{Progress, View};
use crate::swarm::stop;
use crate::swarm::summary::Failed;
use crate::swarm::watcher::Watcher;
use fednode_cli::config::{Config, Privacy};
use fednode_cli::data::Sources;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::interrupt::Interrupts;
use fednode_cli::shard::Shard;

/// How often what is known is looked at and shown.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long the first process may take until others can reach it.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// Lines of a dead child's log that are shown.
const LAST_LINES: usize = 3;
/// Where everybody listens.
const LOOPBACK: &str = "/ip4/127.0.0.1/tcp/0";

/// What is run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where everything is written.
    pub(crate) folder: Folder,
    /// Settings that all nodes share; each gets its own shard, state and peers.
    pub(crate) node: Config,
    /// Where their samples come from.
    pub(crate) sources: Sources,
    /// How many nodes.
    pub(crate) nodes: u32,
    /// How many rounds, for the progress.
    pub(crate) rounds: u32,
    /// The aggregator's binary, if there is to be one.
    pub(crate) aggregator: Option<PathBuf>,
    /// Whether the others go on when one dies.
    pub(crate) keep_going: bool,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What each node said last, by shard.
    pub(crate) statuses: Vec<Option<Box<Status>>>,
    /// Who died.
    pub(crate) failed: Vec<Failed>,
    /// Seconds from the start of the first process to the end of the last round.
    pub(crate) wall_seconds: f64,
}

/// A process and who asks it how it is.
struct Node {
    child: Child,
    watcher: Watcher,
}

/// The children and what is known of them.
struct Swarm<'a> {
    plan: &'a Plan,
    interrupts: &'a Interrupts,
    aggregator: Option<Node>,
    nodes: Vec<Node>,
    views: Vec<View>,
    failed: Vec<Failed>,
}

/// Runs a swarm to its end. No child is left when this returns, however it returns.
///
/// # Errors
/// Names the child that died and its last lines; or says that the user interrupted.
pub(crate) fn run(plan: &Plan, interrupts: &Interrupts) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let mut swarm = Swarm {
        plan,
        interrupts,
        aggregator: None,
        nodes: Vec::new(),
        views: Vec::new(),
        failed: Vec::new(),
    };
    let result = swarm.start().and_then(|()| swarm.watch());
    let wall_seconds = started.elapsed().as_secs_f64();
    let everybody = swarm.nodes.drain(..).chain(swarm.aggregator.take());
    let mut children: Vec<Child> = everybody.map(|node| node.child).collect();
    stop::all(&mut children, interrupts);
    result?;
    let statuses = swarm.views.into_iter().map(|view| view.status).collect();
    Ok(Outcome {
        statuses,
        failed: swarm.failed,
        wall_seconds,
    })
}

impl Swarm<'_> {
    /// Starts everybody. The first process is the one that the others join through.
    fn start(&mut self) -> anyhow::Result<()> {
        let mut peers = Vec::new();
        if let Some(program) = &self.plan.aggregator {
            let mut child = self.start_aggregator(program.clone())?;
            let watcher = Watcher::start(&child.spec.state);
            let listeners = self.wait_for_listeners(&mut child, &watcher);
            self.aggregator = Some(Node { child, watcher });
            peers = listeners?;
        }
        for shard in 1..=self.plan.nodes {
            let mut child = self.start_node(shard, &peers)?;
            let watcher = Watcher::start(&child.spec.state);
            let is_first = peers.is_empty();
            let listeners = if is_first {
                self.wait_for_listeners(&mut child, &watcher)
            } else {
                Ok(Vec::new())
            };
            self.views.push(View {
                name: child.spec.name.clone(),
                ..View::default()
            });
            self.nodes.push(Node { child, watcher });
            peers.extend(listeners?);
        }
        Ok(())
    }

    fn start_aggregator(&self, program: PathBuf) -> anyhow::Result<Child> {
        let folder = &self.plan.folder;
        let state = folder.aggregator_state();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let arguments = [
            "start",
            "--spec",
            &text(folder.spec()),
            "--listen",
            LOOPBACK,
            "--state",
            &text(state.clone()),
        ]
        .map(str::to_owned)
        .into_iter()
        .chain([
            "--compression".to_owned(),
            self.plan.node.network.compression.name().to_owned(),
        ])
        .chain(["--stop-when-stdin-closes".to_owned()])
        .collect();
        let name = "fedboot".to_owned();
        start(child::Spec {
            log: folder.log(&name),
            name,
            program,
            arguments,
            state,
        })
    }

    fn start_node(&self, shard: u32, peers: &[String]) -> anyhow::Result<Child> {
        let folder = &self.plan.folder;
        let config = Config {
            spec: "../../federation.toml".into(),
            data: self.plan.sources.of_node(shard as usize - 1).clone(),
            shard: Some(Shard {
                index: shard,
                of: self.plan.nodes,
            })
            .filter(|_| !self.plan.sources.are_own()),
            network: Network {
                listen: vec![LOOPBACK.to_owned()],
                peers: peers.to_vec(),
                ..self.plan.node.network.clone()
            },
            // All nodes are here, on one machine of one owner.
            privacy: Privacy {
                accept_exposure: true,
                ..self.plan.node.privacy.clone()
            },
            ..self.plan.node.clone()
        };
        let path = folder.write_node(shard, &config)?;
        let program = std::env::current_exe().or_fail(ExitCode::Internal)?;
        let path = path.to_string_lossy().into_owned();
        let arguments = ["start", "--config", &path, "--stop-when-stdin-closes"]
            .map(str::to_owned)
            .to_vec();
        let name = format!("node {shard}");
        start(child::Spec {
            log: folder.log(&name),
            name,
            program,
            arguments,
            state: folder.node_state(shard),
        })
    }

    /// Waits until a process says where it can be reached.
    fn wait_for_listeners(
        &self,
        child: &mut Child,
        watcher: &Watcher,
    ) -> anyhow::Result<Vec<String>> {
        let started = Instant::now();
        loop {
            if let Some(status) = child.ended() {
                return Err(died(child, status));
            }
            let listeners = watcher
                .latest()
                .map(|status| status.listeners)
                .unwrap_or_default();
            if !listeners.is_empty() {
                return Ok(listeners);
            }
            if started.elapsed() > START_DEADLINE {
                let (name, log) = (&child.spec.name, child.spec.log.display());
                let waited =
                    format!("{name} said no address to reach it at within {START_DEADLINE:?}");
                return Err(fail(ExitCode::Child, format!("{waited}: see `{log}`")));
            }
            self.pause(Duration::from_millis(20))?;
        }
    }

    /// Watches until all nodes have finished.
    fn watch(&mut self) -> anyhow::Result<()> {
        let mut progress = Progress::new(self.nodes.len(), self.plan.rounds);
        loop {
            let result = self.look();
            progress.update(&self.views);
            self.tell_troubles(&mut progress);
            if result.is_err() || self.is_over() {
                progress.finish();
                return result;
            }
            self.pause(LOOK_EVERY)?;
        }
    }

    /// Looks at every node; a death is an error unless the others go on.
    fn look(&mut self) -> anyhow::Result<()> {
        for (node, view) in self
            .nodes
            .iter_mut()
            .zip(&mut self.views)
            .filter(|(_, view)| view.failed.is_none())
        {
            if let Some(status) = node.child.ended() {
                view.failed = Some(reason(&node.child, status));
                self.failed
                    .push(bury(&node.child, status, self.plan.keep_going)?);
            } else if let Some(status) = node.watcher.latest() {
                view.status = Some(Box::new(status));
            }
        }
        if let Some(aggregator) = &mut self.aggregator
            && let Some(status) = aggregator.child.ended()
        {
            self.failed
                .push(bury(&aggregator.child, status, self.plan.keep_going)?);
            self.aggregator = None;
        }
        if self.views.iter().all(|view| view.failed.is_some()) {
            let last = self
                .failed
                .last()
                .map(|failed| format!(": {}: {}", failed.name, failed.reason));
            return Err(fail(
                ExitCode::Child,
                format!("every node failed{}", last.unwrap_or_default()),
            ));
        }
        Ok(())
    }

    /// Says what anybody has to see to, a full disk for example: else it would stand in a log that nobody reads.
    fn tell_troubles(&self, progress: &mut Progress) {
        for Node { child, watcher } in self.nodes.iter().chain(&self.aggregator) {
            let notes = watcher
                .latest()
                .map(|status| status.notes)
                .unwrap_or_default();
            notes
                .iter()
                .filter(|note| note.is_trouble)
                .for_each(|note| progress.trouble(&child.spec.name, &note.text));
        }
    }

    fn is_over(&self) -> bool {
        let finished = |view: &View| view.status.as_ref().is_some_and(|status| status.finished);
        self.views
            .iter()
            .all(|view| view.failed.is_some() || finished(view))
    }

    /// Sleeps unless the user wants to stop.
    fn pause(&self, time: Duration) -> anyhow::Result<()> {
        if self.interrupts.count() == 0 && self.interrupts.sleep(time) {
            return Ok(());
        }
        let folder = self.plan.folder.root().display();
        Err(fail(
            ExitCode::Interrupted,
            format!("interrupted: every child is stopped, what there is lies in `{folder}`"),
        ))
    }
}

fn start(spec: child::Spec) -> anyhow::Result<Child> {
    let (name, program) = (spec.name.clone(), spec.program.display().to_string());
    Child::start(spec).map_err(|error| {
        fail(
            ExitCode::Child,
            format!("cannot start {name} (`{program}`): {error}"),
        )
    })
}

/// Notes a death if the others go on.
fn bury(child: &Child, status: ExitStatus, keep_going: bool) -> anyhow::Result<Failed> {
    if keep_going {
        Ok(Failed {
            name: child.spec.name.clone(),
            reason: reason(child, status),
        })
    } else {
        Err(died(child, status))
    }
}

fn died(child: &Child, status: ExitStatus) -> anyhow::Error {
    let (name, log) = (&child.spec.name, child.spec.log.display());
    fail(
        ExitCode::Child,
        format!(
            "{name} died ({}); its log is `{log}`",
            reason(child, status)
        ),
    )
}

/// Says how a child ended: in its own last words, else with its last lines.
fn reason(child: &Child, status: ExitStatus) -> String {
    let lines = child.last_lines(LAST_LINES);
    match lines.last() {
        None => status.to_string(),
        Some(last) if last.starts_with("error: ") => {
            format!("{status}: {}", &last["error: ".len()..])
        }
        Some(_) => format!("{status}: {}", lines.join(" | ")),
    }
}
