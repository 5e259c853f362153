//! How fast local updates are: samples per second of training, model by batch size, on random 1×28×28 images.
//!
//! ```text
//! cargo run --release -p fednode-learn --example speed -- [--threads 1] [--seconds 3] [--model cnn] [--batch 10]
//! ```
//!
//! `scripts/bench-torch.py` measures the same in PyTorch. On a machine that does other work too, compare the samples per
//! second of processor time (which counts all threads of the process).
#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use fednode_core::{FederationSpec, Round};
use fednode_data::{Pixels, Samples, Split};
use fednode_learn::{ComputeDevice, Learner, algorithm};

/// Samples of a local update.
const SAMPLES: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut threads, mut seconds) = (1, 3.0);
    let (mut model, mut batch) = (None, None);
    let mut algorithm = "local".to_owned();
    let mut arguments = std::env::args().skip(1);
    while let Some(key) = arguments.next() {
        let value = arguments.next().ok_or("every option takes a value")?;
        match key.as_str() {
            "--threads" => threads = value.parse()?,
            "--seconds" => seconds = value.parse()?,
            "--model" => model = Some(value),
            "--batch" => batch = Some(value.parse()?),
            "--algorithm" => algorithm = value,
            _ => return Err(format!("unknown option {key}").into()),
        }
    }
    let device = ComputeDevice::cpu(threads)?;
    for name in model.as_deref().map_or(vec!["cnn", "lenet5", "mlp"], |name| vec![name]) {
        for size in batch.map_or(vec![10, 64, 256], |size| vec![size]) {
            let (wall, processor) = measure(&algorithm, name, size, seconds, &device)?;
            println!("ours  {name:7} batch {size:4}: {wall:8.0} samples/s, {processor:8.0} per processor second");
        }
    }
    Ok(())
}

/// Returns samples per second of wall time and of processor time.
fn measure(
    algorithm: &str,
    model: &str,
    batch: usize,
    seconds: f64,
    device: &ComputeDevice,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let mut spec = FederationSpec { algorithm: algorithm.into(), ..FederationSpec::default() };
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
    Ok((n_samples / start.elapsed().as_secs_f64(), n_samples / (processor_seconds()? - processor)))
}

/// Makes random images of ten classes.
fn split() -> Result<Split, Box<dyn std::error::Error>> {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let pixels = (0..SAMPLES * 784).map(|_| random() as f32 / 16_777_216.0).collect();
    let labels = (0..SAMPLES).map(|_| (random() % 10) as u16).collect();
    let names: Arc<[String]> = (0..10).map(|class| class.to_string()).collect();
    let samples = Samples::new([1, 28, 28], Pixels::Floats(pixels), labels, names)?;
    Ok(Split { train: samples.clone(), validation: samples.clone(), test: samples })
}

/// Returns the user and system time of this process; from Linux' `/proc`, in ticks of a hundredth of a second.
fn processor_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().ok_or("no fields")?.split_whitespace();
    let ticks: Result<Vec<f64>, _> = fields.skip(11).take(2).map(str::parse).collect();
    Ok(ticks?.iter().sum::<f64>() / 100.0)
}
