//! The thread that predicts, and the requests that wait for it.
//!
//! ```text
//! request: 1 row       ┐                     ┌► 1
//! request: 9,000 rows  ├─► queue ─► turn of 64 samples ─► 62 ─► next turn …
//! request: 1 row       ┘                     └► 1
//! ```
//!
//! Every turn takes samples of all requests that wait, in equal shares as far as they have any. Small requests are
//! answered after one turn, and large ones get all the room that is left.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use tokio::sync::oneshot;

use crate::model::{Answer, Piece, Predictor};

/// Samples that are predicted at once: enough to fill a processor, few enough to wait for.
const TURN: usize = 64;

/// Requests that may wait. Fewer than a turn has samples, so that each has a share.
pub(crate) const WAITING: usize = TURN / 2;

/// Tells why samples were not predicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Too many wait.
    Full,
    /// The thread has ended.
    Stopped,
    /// The model could not.
    Failed(String),
}

type Reply = Result<Vec<Answer>, Lost>;

/// Samples that wait, and what was said of the first of them.
struct Job<S> {
    samples: S,
    len: usize,
    answers: Vec<Answer>,
    reply: oneshot::Sender<Reply>,
}

/// A handle on the thread. The thread ends when this is dropped and what waited is done.
#[derive(Debug)]
pub(crate) struct Queue<S> {
    jobs: SyncSender<Job<S>>,
}

impl<S: Send + 'static> Queue<S> {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the system refuses a thread.
    pub(crate) fn start(mut predictor: impl Predictor<S>) -> std::io::Result<Self> {
        let (jobs, waiting) = sync_channel(WAITING);
        std::thread::Builder::new()
            .name("predict".into())
            .spawn(move || work(&mut predictor, &waiting))?;
        Ok(Self { jobs })
    }

    /// Predicts samples. If the answer is no longer waited for, what is left of them is not predicted.
    ///
    /// # Errors
    /// Fails if too many wait, or if the model does.
    pub(crate) async fn predict(&self, samples: S, len: usize) -> Reply {
        self.submit(samples, len)?
            .await
            .unwrap_or(Err(Lost::Stopped))
    }

    fn submit(&self, samples: S, len: usize) -> Result<oneshot::Receiver<Reply>, Lost> {
        let (reply, answered) = oneshot::channel();
        let job = Job {
            samples,
            len,
            answers: Vec::new(),
            reply,
        };
        match self.jobs.try_send(job) {
            Ok(()) => Ok(answered),
            Err(TrySendError::Full(_)) => Err(Lost::Full),
            Err(TrySendError::Disconnected(_)) => Err(Lost::Stopped),
        }
    }
}

/// Predicts until nobody can ask any more.
fn work<S>(predictor: &mut impl Predictor<S>, waiting: &Receiver<Job<S>>) {
    let mut open: Vec<Job<S>> = Vec::new();
    loop {
        if open.is_empty() {
            let Ok(job) = waiting.recv() else {
                return;
            };
            open.push(job);
        }
        let room = WAITING - open.len();
        open.extend(waiting.try_iter().take(room));
        open.retain(|job| !job.reply.is_closed());
        turn(predictor, &mut open);
        for job in open.extract_if(.., |job| job.answers.len() == job.len) {
            // Whoever asked may have gone; then nobody is told.
            let _ = job.reply.send(Ok(job.answers));
        }
    }
}

/// Predicts a share of each job. If the model fails, so do all jobs that took part.
fn turn<S>(predictor: &mut impl Predictor<S>, open: &mut Vec<Job<S>>) {
    let left: Vec<usize> = open.iter().map(|job| job.len - job.answers.len()).collect();
    let shares = shares(&left, TURN);
    let waiting = open.iter().zip(&shares);
    let pieces: Vec<Piece<'_, S>> = waiting
        .map(|(job, share)| Piece {
            samples: &job.samples,
            range: job.answers.len()..job.answers.len() + share,
        })
        .collect();
    let wanted: usize = shares.iter().sum();
    if wanted == 0 {
        return;
    }
    let answers = predictor.predict(&pieces).and_then(|answers| {
        let got = answers.len();
        let is_whole = got == wanted;
        is_whole
            .then_some(answers)
            .ok_or_else(|| format!("{got} answers for {wanted} samples"))
    });
    match answers {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for (job, share) in open.iter_mut().zip(shares) {
                job.answers.extend(answers.by_ref().take(share));
            }
        }
        Err(cause) => {
            for job in open.drain(..) {
                let _ = job.reply.send(Err(Lost::Failed(cause.clone())));
            }
        }
    }
}

/// Divides room among those who want some: equal shares, and what one does not want goes to the others.
fn shares(wanted: &[usize], mut room: usize) -> Vec<usize> {
    let mut shares = vec![0; wanted.len()];
    loop {
        let unmet = wanted.iter().zip(&shares).filter(|(want, has)| has < want);
        let n = unmet.count();
        if n == 0 || room == 0 {
            return shares;
        }
        let each = (room / n).max(1);
        for (share, want) in shares.iter_mut().zip(wanted) {
            let more = each.min(want - *share).min(room);
            *share += more;
            room -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn room_is_shared_equally_as_far_as_it_is_wanted() {
        assert_eq!(shares(&[1, 9000, 1], 64), [1, 62, 1]);
        assert_eq!(shares(&[100, 100, 100], 64), [22, 21, 21]);
        assert_eq!(shares(&[3, 0, 2], 64), [3, 0, 2]);
        assert_eq!(shares(&[1, 1, 1], 2), [1, 1, 0]);
        assert_eq!(shares(&[], 64), [0; 0]);
    }

    /// Says which sample of which batch it is; waits before each turn until it may go on.
    struct Gated {
        turns: mpsc::SyncSender<Vec<(u16, usize)>>,
        gate: mpsc::Receiver<Result<(), String>>,
    }

    impl Predictor<u16> for Gated {
        fn predict(&mut self, pieces: &[Piece<'_, u16>]) -> Result<Vec<Answer>, String> {
            let seen = pieces
                .iter()
                .map(|piece| (*piece.samples, piece.range.len()));
            self.turns.send(seen.collect()).unwrap();
            self.gate.recv().unwrap()?;
            let answer = |piece: &Piece<'_, u16>| {
                let class = *piece.samples;
                piece.range.clone().map(move |at| Answer {
                    class,
                    probabilities: vec![at as f32],
                    number: None,
                    expert: None,
                })
            };
            Ok(pieces
                .iter()
                .flat_map(|piece| answer(piece).collect::<Vec<_>>())
                .collect())
        }
    }

    type Turns = mpsc::Receiver<Vec<(u16, usize)>>;

    fn gated() -> (Queue<u16>, Turns, mpsc::SyncSender<Result<(), String>>) {
        let ((turns, seen), (open, gate)) = (sync_channel(1000), sync_channel(1000));
        (Queue::start(Gated { turns, gate }).unwrap(), seen, open)
    }

    #[test]
    fn those_who_wait_together_are_predicted_together() {
        let (queue, turns, gate) = gated();
        let first = queue.submit(1, 100).unwrap();
        assert_eq!(turns.recv().unwrap(), [(1, 64)]);
        // While the first turn runs, others come; one of them goes again.
        let second = queue.submit(2, 1).unwrap();
        drop(queue.submit(3, 5).unwrap());
        let fourth = queue.submit(4, 2).unwrap();
        gate.send(Ok(())).unwrap();
        assert_eq!(turns.recv().unwrap(), [(1, 36), (2, 1), (4, 2)]);
        gate.send(Ok(())).unwrap();
        let said = |answers: Reply| -> Vec<(u16, f32)> {
            let answers = answers.unwrap().into_iter();
            answers
                .map(|answer| (answer.class, answer.probabilities[0]))
                .collect()
        };
        assert_eq!(said(second.blocking_recv().unwrap()), [(2, 0.0)]);
        assert_eq!(said(fourth.blocking_recv().unwrap()), [(4, 0.0), (4, 1.0)]);
        let all: Vec<(u16, f32)> = (0..100).map(|at| (1, at as f32)).collect();
        assert_eq!(said(first.blocking_recv().unwrap()), all);
    }

    #[test]
    fn who_comes_when_all_places_are_taken_is_told() {
        let (queue, turns, gate) = gated();
        let first = queue.submit(0, 1).unwrap();
        turns.recv().unwrap();
        let waiting: Vec<_> = (0..WAITING).map(|_| queue.submit(1, 1).unwrap()).collect();
        assert_eq!(queue.submit(2, 1).unwrap_err(), Lost::Full);
        gate.send(Ok(())).unwrap();
        first.blocking_recv().unwrap().unwrap();
        gate.send(Ok(())).unwrap();
        for answered in waiting {
            assert_eq!(answered.blocking_recv().unwrap().unwrap().len(), 1);
        }
    }

    #[test]
    fn a_failure_is_told_and_ends_nothing() {
        let (queue, turns, gate) = gated();
        let failed = queue.submit(1, 1).unwrap();
        turns.recv().unwrap();
        gate.send(Err("no memory".into())).unwrap();
        let failed = failed.blocking_recv().unwrap();
        assert_eq!(failed, Err(Lost::Failed("no memory".into())));
        gate.send(Ok(())).unwrap();
        let next = queue.submit(1, 1).unwrap();
        assert_eq!(next.blocking_recv().unwrap().unwrap().len(), 1);
        let nothing = queue.submit(1, 0).unwrap();
        assert_eq!(nothing.blocking_recv().unwrap().unwrap(), []);
    }
}
