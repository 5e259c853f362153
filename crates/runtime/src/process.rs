//! What a member's process keeps while it goes on after an end: who may stop it, what answers for it, and who watches it.
//!
//! ```text
//! Process ──► run ──► end ──► answer_while(read settings and data anew) ──► run ──► …
//!    └── the control API, the word to the service manager, the token that stops all
//! ```
//!
//! A member whose federation goes on is put together anew after an end ([`Outcome::Extended`](crate::Outcome::Extended)). Its
//! control API stays meanwhile. So `status` and `stop` are answered, and a watchdog hears that the process lives.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fednode_engine::Phase;
use tokio_util::sync::CancellationToken;

use crate::config::{Control, MemberConfig};
use crate::control::{Request, Server};
use crate::driver::Driver;
use crate::ending::Finished;
use crate::error::RunError;
use crate::machine::Machine;
use crate::opened::Assembled;
use crate::service::Manager;
use crate::status::{Experts, Status, WaitingFor};

/// How often a service manager hears that the process lives.
const TICK: Duration = Duration::from_secs(1);

/// A process that runs a member, again and again if its federation goes on.
#[derive(Debug)]
pub struct Process {
    stop: CancellationToken,
    since: Instant,
    pub(crate) manager: Manager,
    control: Option<Server>,
    /// What the member said of itself before it was put together anew.
    last: Option<Status>,
}

impl Process {
    /// Makes one that ends when `stop` is cancelled.
    pub fn new(stop: &CancellationToken) -> Self {
        Self {
            // Who asks the process to stop sends no signal: the next one is the first.
            stop: stop.child_token(),
            since: Instant::now(),
            manager: Manager::find(),
            control: None,
            last: None,
        }
    }

    /// Returns what stops it. It is cancelled, too, if somebody asks for that while no member runs.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Does some work between an end and the next start, and answers for the member meanwhile. `waits` says what it waits for.
    /// Returns nothing once somebody stops the process.
    pub async fn answer_while<T>(
        &mut self,
        waits: WaitingFor,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let stop = self.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            done = self.answer_through(waits, work) => Some(done),
        }
    }

    /// As [`Self::answer_while`], and does the work to its end whoever stops the process.
    pub(crate) async fn answer_through<T>(
        &mut self,
        waits: WaitingFor,
        work: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            biased;
            // First, so that people who ask all the time cannot hold the work up.
            done = work => done,
            never = self.answer(waits) => match never {},
        }
    }

    /// Answers for a member that does not run.
    async fn answer(&mut self, mut waits: WaitingFor) -> Infallible {
        let (begun, before) = (Instant::now(), waits.seconds);
        loop {
            // Each time: no member's loop tells a watchdog meanwhile that the process lives.
            self.manager.waits(&waits.what);
            let Ok(request) = tokio::time::timeout(TICK, self.next()).await else {
                continue;
            };
            waits.seconds = before + begun.elapsed().as_secs_f64();
            // Whoever asked may be gone, which is no error. Who gets no answer is told to ask again.
            match request {
                Request::Status(answer) => {
                    if let Some(last) = self.last.clone() {
                        let _ = answer.send(Status {
                            waiting_for: vec![waits.clone()],
                            training: None,
                            peers: 0,
                            uptime_seconds: self.uptime_seconds(),
                            ..last
                        });
                    }
                }
                Request::Peers(answer) => drop(answer.send(Vec::new())),
                Request::Experts(answer) => drop(answer.send(Experts::default())),
                Request::Stop(answer) => {
                    let _ = answer.send(());
                    self.stop.cancel();
                }
                // A goodbye needs the network, which is not there between two runs.
                Request::Leave(answer) | Request::Withdraw(answer) => drop(answer),
            }
        }
    }

    /// Returns where the control API is to be opened: nowhere if that is not wanted, or if it is open from an earlier run.
    pub(crate) fn to_bind(&self, config: &MemberConfig) -> Option<SocketAddr> {
        match config.control {
            Control::At(address) if self.control.is_none() => Some(address),
            _ => None,
        }
    }

    /// Runs a member until it ends.
    ///
    /// # Errors
    /// Why it could not go on.
    pub(crate) async fn run<M: Machine>(
        &mut self,
        member: Assembled<M>,
    ) -> Result<Finished, RunError> {
        let Assembled {
            parts,
            past,
            control,
        } = member;
        // One that is open stays: its address and token are in the hands of those who ask.
        self.control = control.or(self.control.take());
        Driver::new(parts, self).run(past).await
    }

    /// Closes the control API after its last answers. A process that ends without this may leave somebody without one.
    pub async fn close(&mut self) {
        self.manager.stopping();
        if let Some(server) = self.control.take() {
            server.close().await;
        }
    }

    /// Returns the next request; never returns where there is no control API. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Request {
        match &mut self.control {
            Some(server) => server.next().await,
            None => std::future::pending().await,
        }
    }

    /// Remembers what to say of the member until it is put together anew.
    pub(crate) fn remember(&mut self, status: Status) {
        self.last = Some(Status {
            // Who has missed an end is not finished.
            finished: status.phase == Phase::Serving,
            ..status
        });
    }

    pub(crate) fn uptime_seconds(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fednode_core::FederationSpec;

    use super::*;
    use crate::control::{self, Client, ClientError};

    /// Waits for something that never comes, while somebody asks the process something.
    async fn asked(ask: fn(&Client) -> Result<(), ClientError>) -> (Process, Option<()>) {
        let folder = tempfile::tempdir().unwrap();
        let spec = Arc::new(FederationSpec::default());
        let config = MemberConfig::new(spec, folder.path().to_owned());
        let mut process = Process::new(&CancellationToken::new());
        let address = process.to_bind(&config).unwrap();
        let control = control::start(address, &config.state).await;
        process.control = Some(control.unwrap());
        let client = Client::of(folder.path()).unwrap();
        let asking = tokio::task::spawn_blocking(move || ask(&client));
        let answered = async { asking.await.unwrap().unwrap() };
        let work = async {
            answered.await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let waits = WaitingFor::of_nobody("nothing");
        let done = process.answer_while(waits, work).await;
        (process, done)
    }

    #[tokio::test]
    async fn between_two_runs_a_process_can_be_stopped() {
        let (process, done) = asked(Client::stop).await;
        assert_eq!(done, None);
        assert!(process.stop().is_cancelled());
    }

    #[tokio::test]
    async fn between_two_runs_nobody_can_leave_who_is_not_there() {
        let leave = |client: &Client| match client.leave() {
            Err(ClientError::Busy(_)) => Ok(()),
            other => panic!("{other:?}"),
        };
        let (process, done) = asked(leave).await;
        assert_eq!(done, Some(()));
        assert!(!process.stop().is_cancelled());
    }
}
