//! The only file, beside the list of operators, that knows the library which runs the graph.
//!
//! The library promises memory safety for hostile files, and no bound on time or memory. Those bounds are worked out
//! before. What is left is a panic within the library. So its calls are made on threads whose end is looked at.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueView};

use crate::error::{BackboneError, on_one_line, shown};
use crate::operators;

/// Stack of the threads on which the library plans: it recurses as deep as the longest chain of nodes.
const STACK: usize = 64 << 20;

/// Most characters of what the library says.
const SAID: usize = 300;

/// A graph that is ready to run.
#[derive(Debug)]
pub(crate) struct Runtime {
    path: PathBuf,
    model: Model,
    input: NodeId,
    output: NodeId,
    shape: [usize; 4],
    features: usize,
    /// One for each worker, of one thread each: images are computed in parallel, layers are not.
    pools: Vec<Arc<ThreadPool>>,
}

/// What to load: a file that was written here, and what was worked out of it.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) path: &'a Path,
    pub(crate) file: Vec<u8>,
    pub(crate) input: &'a str,
    pub(crate) output: &'a str,
    pub(crate) shape: [usize; 4],
    pub(crate) features: usize,
}

impl Runtime {
    /// Loads a graph for a number of workers.
    ///
    /// # Errors
    ///
    /// What the library says, on one line.
    pub(crate) fn load(source: Source, threads: usize) -> Result<Self, BackboneError> {
        let fault = |cause: &str| fault(source.path, cause);
        let file = source.file;
        let load = move || {
            let mut options = ModelOptions::with_ops(operators::registry());
            options.prepack_weights(true).load(file)
        };
        let model = thread::scope(|scope| joined(spawn(scope, load)))
            .map_err(fault_of(source.path))?
            .map_err(|error| fault(&error.to_string()))?;
        let id = |name: &str| {
            let lost = || {
                fault(&format!(
                    "the value `{}` was lost while it was loaded",
                    shown(name)
                ))
            };
            model.find_node(name).ok_or_else(lost)
        };
        let (input, output) = (id(source.input)?, id(source.output)?);
        Ok(Self {
            path: source.path.to_owned(),
            model,
            input,
            output,
            shape: source.shape,
            features: source.features,
            pools: (0..threads)
                .map(|_| Arc::new(ThreadPool::with_num_threads(1)))
                .collect(),
        })
    }

    /// Computes `n` samples, each alone, and returns their features in order.
    ///
    /// # Errors
    ///
    /// The error of the first sample that has one.
    pub(crate) fn run(
        &self,
        n: usize,
        prepare: impl Fn(usize) -> Result<Vec<f32>, BackboneError> + Sync,
    ) -> Result<Vec<f32>, BackboneError> {
        let share = n.div_ceil(self.pools.len()).max(1);
        let work = |first: usize, pool: &Arc<ThreadPool>| {
            let mut features = Vec::new();
            for sample in first..(first + share).min(n) {
                features.extend(self.one(sample, &prepare(sample)?, pool)?);
            }
            Ok(features)
        };
        let shares = (0..n).step_by(share).zip(&self.pools);
        thread::scope(|scope| {
            let start = |(first, pool)| spawn(scope, move || work(first, pool));
            let workers: Vec<_> = shares.map(start).collect();
            let mut features = Vec::with_capacity(n.saturating_mul(self.features));
            // All are waited for, and errors are told in the order of the samples.
            let parts: Vec<_> = workers.into_iter().map(joined).collect();
            for part in parts {
                features.extend(part.map_err(fault_of(&self.path))??);
            }
            Ok(features)
        })
    }

    fn one(
        &self,
        sample: usize,
        input: &[f32],
        pool: &Arc<ThreadPool>,
    ) -> Result<Vec<f32>, BackboneError> {
        let view = ValueView::from_shape(self.shape, input)
            .map_err(|error| fault(&self.path, &error.to_string()))?;
        let options = RunOptions::default().with_thread_pool(Some(Arc::clone(pool)));
        let [output] = self
            .model
            .run_n(
                vec![(self.input, view.into())],
                [self.output],
                Some(options),
            )
            .map_err(|error| fault(&self.path, &error.to_string()))?;
        let Value::FloatTensor(tensor) = output else {
            return Err(fault(&self.path, "its output is not of 32-bit floats"));
        };
        let features = tensor.into_data();
        if features.len() != self.features {
            let (found, expected) = (features.len(), self.features);
            return Err(fault(
                &self.path,
                &format!("it gives {found} features, not {expected}"),
            ));
        }
        if !features.iter().all(|feature| feature.is_finite()) {
            return Err(BackboneError::NotFinite {
                path: self.path.clone(),
                image: sample,
            });
        }
        Ok(features)
    }
}

/// Why a thread gave no result.
enum Lost {
    Unstarted(io::Error),
    Panicked,
}

type Worker<'scope, T> = io::Result<ScopedJoinHandle<'scope, T>>;

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Worker<'scope, T> {
    let name = "backbone".to_owned();
    thread::Builder::new()
        .name(name)
        .stack_size(STACK)
        .spawn_scoped(scope, work)
}

fn joined<T>(worker: Worker<T>) -> Result<T, Lost> {
    worker
        .map_err(Lost::Unstarted)?
        .join()
        .map_err(|_| Lost::Panicked)
}

fn fault_of(path: &Path) -> impl Fn(Lost) -> BackboneError {
    move |lost| match lost {
        Lost::Unstarted(error) => fault(path, &format!("no thread could be started ({error})")),
        Lost::Panicked => fault(path, "the library that runs it gave up"),
    }
}

fn fault(path: &Path, said: &str) -> BackboneError {
    let cause = on_one_line(said, SAID);
    BackboneError::Runtime {
        path: path.to_owned(),
        cause,
    }
}
