//! How fast local updates are: samples per second of training, model by batch size, on random 1×28×28 images.
//!
//! ```text
//! cargo run --release -p fednode-learn --example speed -- [--threads 1] [--seconds 3] [--model cnn] [--batch 10]
//!     [--device cpu|vulkan|vulkan:I] [--algorithm local] [--requests] [--name]
//! ```
//!
//! With `--name` it says what the device is called, and measures nothing.
//! With `--requests` it measures what standard input asks for, a line `MODEL BATCH SECONDS` each, until that ends.
//! `scripts/bench-torch.py` measures the same in PyTorch, and is asked in the same way. On a machine that does other work
//! too, compare the samples per second of processor time (which counts all threads of the process).
#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use fednode_core::{FederationSpec, Round};
use fednode_data::{Pixels, Samples, Split};
use fednode_learn::device::Selected;
use fednode_learn::probe::probe_in_process;
use fednode_learn::{ComputeDevice, DeviceChoice, Learner, algorithm};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Samples of a local update.
const SAMPLES: usize = 1024;
/// What is measured if nothing else is asked for.
const MODELS: [&str; 8] = [
    "cnn", "lenet5", "mlp", "cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5",
];
const BATCHES: [usize; 3] = [10, 64, 256];

/// What is typed.
struct Options {
    threads: usize,
    seconds: f64,
    model: Option<String>,
    batch: Option<usize>,
    algorithm: String,
    device: DeviceChoice,
    requests: bool,
    name: bool,
}

impl Options {
    fn typed() -> Outcome<Self> {
        let (algorithm, device) = ("local".to_owned(), DeviceChoice::Cpu);
        let mut options = Self {
            threads: 1,
            seconds: 3.0,
            model: None,
            batch: None,
            algorithm,
            device,
            requests: false,
            name: false,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(key) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{key} takes a value"));
            match key.as_str() {
                "--threads" => options.threads = value()?.parse()?,
                "--seconds" => options.seconds = value()?.parse()?,
                "--model" => options.model = Some(value()?),
                "--batch" => options.batch = Some(value()?.parse()?),
                "--algorithm" => options.algorithm = value()?,
                "--device" => options.device = value()?.parse()?,
                "--requests" => options.requests = true,
                "--name" => options.name = true,
                _ => return Err(format!("unknown option {key}").into()),
            }
        }
        Ok(options)
    }

    /// Opens the device, a GPU only after a trial.
    fn open(&self) -> Outcome<ComputeDevice> {
        if self.device == DeviceChoice::Cpu {
            return Ok(ComputeDevice::cpu(self.threads)?);
        }
        let found = probe_in_process(self.device)
            .map_err(|reason| format!("no GPU to train on: {reason}"))?;
        Ok(ComputeDevice::open(
            &Selected::Vulkan(found.adapter),
            self.threads,
        )?)
    }
}

fn main() -> Outcome {
    let options = Options::typed()?;
    let device = options.open()?;
    if options.name {
        println!("{}", device.name());
        return Ok(());
    }
    if options.requests {
        return serve(&options, &device);
    }
    for name in options
        .model
        .as_deref()
        .map_or(MODELS.to_vec(), |name| vec![name])
    {
        for size in options.batch.map_or(BATCHES.to_vec(), |size| vec![size]) {
            report(&options.algorithm, name, size, options.seconds, &device)?;
        }
    }
    Ok(())
}

/// Answers each line of standard input.
fn serve(options: &Options, device: &ComputeDevice) -> Outcome {
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [model, batch, seconds] = words.as_slice() else {
            return Err("expected MODEL BATCH SECONDS".into());
        };
        report(
            &options.algorithm,
            model,
            batch.parse()?,
            seconds.parse()?,
            device,
        )?;
    }
    Ok(())
}

fn report(
    algorithm: &str,
    model: &str,
    batch: usize,
    seconds: f64,
    device: &ComputeDevice,
) -> Outcome {
    let (wall, processor) = measure(algorithm, model, batch, seconds, device)?;
    println!(
        "ours  {model:7} batch {batch:4}: {wall:8.0} samples/s, {processor:8.0} per processor second"
    );
    Ok(())
}

/// Returns samples per second of wall time and of processor time.
fn measure(
    algorithm: &str,
    model: &str,
    batch: usize,
    seconds: f64,
    device: &ComputeDevice,
) -> Outcome<(f64, f64)> {
    let mut spec = FederationSpec {
        algorithm: algorithm.into(),
        ..FederationSpec::default()
    };
    spec.model.name = model.into();
    spec.training.batch_size = batch;
    spec.training.local_epochs = 1;
    spec.training.learning_rate = 0.005;
    algorithm::fill_exchange(&mut spec)?;
    let mut learner = Learner::new(&spec, 0, Arc::new(split()?), device)?;
    let mut update = |round| learner.local_update(Round(round), &mut |_| ControlFlow::Continue(()));
    update(1)?;
    let (start, processor) = (Instant::now(), processor_seconds()?);
    let mut rounds = 0;
    while start.elapsed().as_secs_f64() < seconds {
        rounds += 1;
        update(1 + rounds)?;
    }
    let n_samples = f64::from(rounds) * SAMPLES as f64;
    Ok((
        n_samples / start.elapsed().as_secs_f64(),
        n_samples / (processor_seconds()? - processor),
    ))
}

/// Makes random images of ten classes.
fn split() -> Outcome<Split> {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let pixels = (0..SAMPLES * 784)
        .map(|_| random() as f32 / 16_777_216.0)
        .collect();
    let labels = (0..SAMPLES).map(|_| (random() % 10) as u16).collect();
    let names: Arc<[String]> = (0..10).map(|class| class.to_string()).collect();
    let samples = Samples::new([1, 28, 28], Pixels::Floats(pixels), labels, names)?;
    Ok(Split {
        train: samples.clone(),
        validation: samples.clone(),
        test: samples,
    })
}

/// Returns the user and system time of this process; from Linux' `/proc`, in ticks of a hundredth of a second.
fn processor_seconds() -> Outcome<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat
        .rsplit(')')
        .next()
        .ok_or("no fields")?
        .split_whitespace();
    let ticks: Result<Vec<f64>, _> = fields.skip(11).take(2).map(str::parse).collect();
    Ok(ticks?.iter().sum::<f64>() / 100.0)
}
