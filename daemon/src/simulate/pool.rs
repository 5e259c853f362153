//! The threads of a simulation, each with a learner of each model, which become one node after the other.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fednode_core::spec::PoolSpec;
use fednode_learn::Learner;

use super::job::{Done, Job, Task, Work};
use crate::swarm::interrupt::Interrupts;

/// A job under way.
#[derive(Debug)]
pub(super) struct Pending {
    /// What is to be done, until it is.
    task: Arc<Mutex<Option<Task>>>,
    answer: Receiver<Result<Done, String>>,
    done: Option<Result<Done, String>>,
}

/// A job, what it leaves to be done if it is given up, and where its answer goes.
type Order = (Box<Job>, Arc<Mutex<Option<Task>>>, SyncSender<Result<Done, String>>);

/// The threads; they end when it is dropped and its jobs are done.
#[derive(Debug)]
pub(super) struct Pool {
    jobs: SyncSender<Order>,
}

impl Pool {
    /// Starts one thread per list of learners, one learner for each model. Each of `nodes` has at
    /// most one job at a time. Jobs are given up when the user
    /// interrupts.
    ///
    /// # Errors
    /// Fails if the system has no threads left.
    pub(super) fn start(
        learners: Vec<Vec<Learner>>,
        nodes: usize,
        pool: &PoolSpec,
        interrupts: &Interrupts,
    ) -> std::io::Result<Self> {
        let (jobs, queue) = sync_channel(nodes);
        let queue: Arc<Mutex<Receiver<Order>>> = Arc::new(Mutex::new(queue));
        for mut learners in learners {
            let (queue, pool, interrupts) = (Arc::clone(&queue), pool.clone(), interrupts.clone());
            thread::Builder::new().name("learner".into()).spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((job, task, answer)) = next else { return };
                    let done = job.run(&mut learners, &pool, &interrupts).map_err(|error| error.to_string());
                    if interrupts.count() > 0 {
                        continue; // It was given up, or nobody waits for it any more: it is still to be done.
                    }
                    let _ = answer.send(done);
                    *task.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
            })?;
        }
        Ok(Self { jobs })
    }

    /// Hands in a job.
    pub(super) fn submit(&self, job: Job) -> Pending {
        let (answer, pending) = sync_channel(1);
        let task = Arc::new(Mutex::new(Some(job.task.clone())));
        // If no thread is left, nobody answers, and whoever waits sees that.
        let _ = self.jobs.send((Box::new(job), Arc::clone(&task), answer));
        Pending { task, answer: pending, done: None }
    }
}

impl Pending {
    /// Returns a job that was done before the run was interrupted.
    pub(super) fn done(done: Done) -> Self {
        let (_, answer) = sync_channel(1);
        Self { task: Arc::default(), answer, done: Some(Ok(done)) }
    }

    /// Waits for some time; tells whether the answer is there.
    pub(super) fn is_done(&mut self, time: Duration) -> bool {
        if self.done.is_none() {
            self.done = match self.answer.recv_timeout(time) {
                Ok(done) => Some(done),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Err("a learner's thread ended unexpectedly".into())),
            };
        }
        self.done.is_some()
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// Says why the job failed.
    pub(super) fn wait(mut self) -> Result<Done, String> {
        while !self.is_done(Duration::from_secs(1)) {}
        self.done.expect("it was waited for")
    }

    /// Returns what is still to be done, or what came of it.
    pub(super) fn work(&mut self) -> Option<Work> {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // An answer is sent before the task is forgotten, so one of the two is there.
        match task {
            Some(task) => Some(Work::Asked(task)),
            None if self.is_done(Duration::ZERO) => {
                let done = self.done.as_ref()?.as_ref().ok()?;
                Some(Work::Done(Box::new(done.clone())))
            }
            None => None,
        }
    }
}
