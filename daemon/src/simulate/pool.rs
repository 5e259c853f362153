//! The threads of a simulation, each with a learner of each model, which become one node after the other.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fednode_core::Timestamp;
use fednode_learn::{Learner, PoolSettings};

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
type Order = (
    Box<Job>,
    Arc<Mutex<Option<Task>>>,
    SyncSender<Result<Done, String>>,
);

/// The threads; they end when it is dropped and its jobs are done.
#[derive(Debug)]
pub(super) struct Pool {
    queue: Arc<Queue>,
}

/// Jobs that wait for a thread. Those that are asked for first are done first: what is done and not yet asked for needs
/// memory.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By when they are asked for, then in the order in which they came.
    jobs: BTreeMap<(Timestamp, u64), Order>,
    came: u64,
    /// Threads that are left.
    threads: usize,
    /// No more will come.
    closed: bool,
}

/// A thread's share in the queue: with the last one all jobs go that nobody will do.
struct Share(Arc<Queue>);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job; nothing if no more will come.
    fn next(&self) -> Option<Order> {
        let mut waiting = self.lock();
        loop {
            if let Some((_, order)) = waiting.jobs.pop_first() {
                return Some(order);
            }
            if waiting.closed {
                return None;
            }
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.threads -= 1;
        if waiting.threads == 0 {
            waiting.jobs.clear();
        }
    }
}

impl Pool {
    /// Starts one thread per list of learners, one learner for each model. Jobs are given up when the user interrupts.
    ///
    /// # Errors
    /// Fails if the system has no threads left.
    pub(super) fn start(
        learners: Vec<Vec<Learner>>,
        pool: &PoolSettings,
        interrupts: &Interrupts,
    ) -> std::io::Result<Self> {
        let this = Self {
            queue: Arc::default(),
        };
        this.queue.lock().threads = learners.len();
        for mut learners in learners {
            let (share, pool, interrupts) = (
                Share(Arc::clone(&this.queue)),
                pool.clone(),
                interrupts.clone(),
            );
            thread::Builder::new()
                .name("learner".into())
                .spawn(move || {
                    while let Some((job, task, answer)) = share.0.next() {
                        let done = job
                            .run(&mut learners, &pool, &interrupts)
                            .map_err(|error| error.to_string());
                        if interrupts.count() > 0 {
                            continue; // It was given up, or nobody waits for it any more: it is still to be done.
                        }
                        let _ = answer.send(done);
                        *task.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    }
                })?;
        }
        Ok(this)
    }

    /// Hands in a job that is asked for at a virtual time.
    pub(super) fn submit(&self, job: Job, wanted: Timestamp) -> Pending {
        let (answer, pending) = sync_channel(1);
        let task = Arc::new(Mutex::new(Some(job.task.clone())));
        let mut waiting = self.queue.lock();
        // If no thread is left, nobody answers, and whoever waits sees that.
        if waiting.threads > 0 {
            waiting.came += 1;
            let place = (wanted, waiting.came);
            waiting
                .jobs
                .insert(place, (Box::new(job), Arc::clone(&task), answer));
            self.queue.changed.notify_one();
        }
        Pending {
            task,
            answer: pending,
            done: None,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
    }
}

impl Pending {
    /// Returns a job that was done before the run was interrupted.
    pub(super) fn done(done: Done) -> Self {
        let (_, answer) = sync_channel(1);
        Self {
            task: Arc::default(),
            answer,
            done: Some(Ok(done)),
        }
    }

    /// Waits for some time; tells whether the answer is there.
    pub(super) fn is_done(&mut self, time: Duration) -> bool {
        if self.done.is_none() {
            self.done = match self.answer.recv_timeout(time) {
                Ok(done) => Some(done),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    Some(Err("a learner's thread ended unexpectedly".into()))
                }
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
        let task = self
            .task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
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
