//! The GPU path on a software Vulkan driver: found, probed, and training to the same losses as the CPU path.
//!
//! The driver is SwiftShader as Debian's `chromium-common` installs it, or whatever `VK_DRIVER_FILES` names. Without
//! one the tests say that they were skipped, past the capture of the test harness. Drivers are chosen by environment,
//! so everything that touches Vulkan runs in a child: this very test program with one test selected.
#![cfg(feature = "vulkan")]
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::spec::Preset;
use fednode_core::{HyperValue, NodeId, Round, Served};
use fednode_data::{Pixels, Samples, Split, Vocabulary};
use fednode_learn::device::{AdapterKind, Selected};
use fednode_learn::probe::{self, ProbeCommand};
use fednode_learn::{ComputeDevice, DeviceChoice, Learner, PoolSettings, Subset};

/// Where Debian puts SwiftShader.
const SWIFTSHADER: &str = "/usr/lib/chromium/vk_swiftshader_icd.json";
/// Set in children: the question that the child answers.
const QUESTION: &str = "FEDNODE_TEST_QUESTION";

/// Returns the driver to test with, or says that the test is skipped.
fn driver(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("VK_DRIVER_FILES").map(PathBuf::from);
    let driver = named.unwrap_or_else(|| SWIFTSHADER.into());
    if driver.exists() {
        return Some(driver);
    }
    let reason = format!(
        "{test} SKIPPED: no Vulkan driver at {} (Debian: chromium-common)\n",
        driver.display()
    );
    // Not `eprintln`, which the test harness swallows: that a test was skipped must be seen.
    std::io::stderr().write_all(reason.as_bytes()).unwrap();
    None
}

/// Returns how to start this program so that it answers questions about devices.
fn command(driver: &std::path::Path) -> ProbeCommand {
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "{QUESTION}=$1 VK_DRIVER_FILES='{}' exec '{}' --exact child_answers --nocapture",
        driver.display(),
        program.display()
    );
    let arguments = vec!["-c".into(), script, "probe".into()];
    ProbeCommand {
        program: "/bin/sh".into(),
        arguments,
        timeout: Duration::from_secs(300),
    }
}

/// Not a test of its own: the child's side of the probe.
#[test]
fn child_answers() {
    if let Ok(question) = std::env::var(QUESTION) {
        // A line of its own, whatever the harness has written before it.
        writeln!(std::io::stdout(), "\n{}", probe::answer(&question)).unwrap();
    }
}

#[test]
fn a_software_driver_is_listed_probed_and_taken_only_by_name() {
    let Some(driver) = driver("a_software_driver_is_listed_probed_and_taken_only_by_name") else {
        return;
    };
    let command = command(&driver);
    let adapters = probe::adapters(&command).unwrap();
    let software = adapters
        .iter()
        .find(|adapter| adapter.kind == AdapterKind::Software)
        .unwrap();
    let report = probe::probe(&command, software).unwrap();
    assert_eq!(&report.adapter, software);
    if adapters.iter().all(|adapter| !adapter.is_hardware()) {
        assert_eq!(
            probe::select(DeviceChoice::Auto, &command).unwrap().0,
            Selected::Cpu
        );
        assert!(
            probe::select(DeviceChoice::Vulkan, &command)
                .unwrap_err()
                .to_string()
                .starts_with("no GPU found")
        );
    }
}

#[test]
fn trains_to_the_same_losses_as_the_cpu() {
    in_child("trains_to_the_same_losses_as_the_cpu", compare_with_cpu);
}

#[test]
fn assembles_the_same_pool_as_the_cpu() {
    in_child("assembles_the_same_pool_as_the_cpu", compare_pools_with_cpu);
}

#[test]
fn learns_texts_as_the_cpu_does() {
    in_child("learns_texts_as_the_cpu_does", compare_texts_with_cpu);
}

/// Runs a test again in a child with the driver, where `compare` does the work.
fn in_child(name: &str, compare: fn()) {
    if std::env::var(QUESTION).is_ok() {
        return compare();
    }
    let Some(driver) = driver(name) else { return };
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(QUESTION, "train")
        .env("VK_DRIVER_FILES", driver)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

fn compare_with_cpu() {
    let samples = common::small_fashion();
    let adapter = probe::adapters_in_process().into_iter().next().unwrap();
    let gpu = ComputeDevice::open(&Selected::Vulkan(adapter), 1).unwrap();
    let cpu = ComputeDevice::cpu(1).unwrap();
    let plain = [
        "fedprox", "scaffold", "moon", "fedproto", "fd", "pfl-mfe", "pfedmoe", "fml", "fedkd",
        "fedapen",
    ];
    let rivals = ["fedgen", "fedpac", "fedmix", "fedjets"];
    let table = [
        ("fedmoe-da", "cnn"),
        ("fedavg", "mlp"),
        ("fedbn", "resnet-8"),
        ("gpfl", "mlp"),
        ("fedcp", "mlp"),
    ];
    for (algorithm, model) in table.into_iter().chain(
        plain
            .into_iter()
            .chain(rivals)
            .map(|algorithm| (algorithm, "mlp")),
    ) {
        let mut spec = common::spec(algorithm, model, &samples);
        spec.training.local_epochs = 1;
        if algorithm.starts_with("pfl-") {
            spec.hyper.extend(
                ["personal_epochs", "gate_epochs"]
                    .map(|key| (key.to_owned(), HyperValue::Integer(2))),
            );
        }
        let run = |device: &ComputeDevice| {
            let mut learner = Learner::new(&spec, 0, common::split(&samples, 100), device).unwrap();
            let watch = &mut |_| ControlFlow::Continue(());
            let report = learner.local_update(Round(1), watch).unwrap();
            let state = learner.state();
            let mut losses = vec![report.train_loss];
            losses.push(learner.evaluate(Subset::Test).score.loss);
            learner
                .finish(Round(1), &mut |_| ControlFlow::Continue(()))
                .unwrap();
            losses.push(learner.evaluate(Subset::Test).score.loss);
            (losses, report.expert_share, state)
        };
        let ((on_gpu, gpu_share, gpu_state), (on_cpu, cpu_share, cpu_state)) =
            (run(&gpu), run(&cpu));
        for (gpu, cpu) in on_gpu.iter().zip(&on_cpu) {
            assert!(
                (gpu - cpu).abs() < 1e-3 * cpu,
                "{algorithm} {model}: {on_gpu:?} and {on_cpu:?}"
            );
        }
        assert_eq!(gpu_share, cpu_share);
        let farthest = gpu_state
            .values()
            .zip(cpu_state.values())
            .map(|(gpu, cpu)| (gpu - cpu).abs() / cpu.abs().max(1.0))
            .fold(0.0, f32::max);
        // Batch normalisation divides by the spread of a batch, which magnifies what two devices round otherwise.
        let bound = if model == "resnet-8" { 1e-2 } else { 1e-3 };
        assert!(farthest < bound, "{algorithm} {model}: {farthest}");
    }
}

/// Twenty texts of up to nine of thirty words, some unknown; the embedding's gradient is scattered over its table.
fn compare_texts_with_cpu() {
    let words: Vec<String> = (0..30).map(|word| format!("word{word}")).collect();
    let words =
        Arc::new(Vocabulary::new(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap());
    let token = |text: u32, place: u32| {
        if place < text % 10 {
            1 + (7 * text + place * place) % 31
        } else {
            0
        }
    };
    let ids = (0..20)
        .flat_map(|text| (0..12).map(move |place| token(text, place)))
        .collect();
    let names = (0..10).map(|class| class.to_string()).collect();
    let labels = (0..20).map(|text| text % 10).collect();
    let train = Samples::new(
        [1, 1, 12],
        Pixels::Tokens {
            ids,
            vocabulary: words,
        },
        labels,
        names,
    )
    .unwrap();
    let split = Arc::new(Split {
        validation: train.clone(),
        test: train.clone(),
        train,
    });
    let adapter = probe::adapters_in_process().into_iter().next().unwrap();
    let gpu = ComputeDevice::open(&Selected::Vulkan(adapter), 1).unwrap();
    let cpu = ComputeDevice::cpu(1).unwrap();
    for model in ["fasttext", "fasttext-pfllib"] {
        let mut spec = common::spec("fedavg", model, &split.train);
        spec.fingerprints.vocabulary_size = 32;
        let [on_gpu, on_cpu] = [&gpu, &cpu].map(|device| {
            let mut learner = Learner::new(&spec, 0, Arc::clone(&split), device).unwrap();
            learner
                .local_update(Round(1), &mut |_| ControlFlow::Continue(()))
                .unwrap();
            learner.state()
        });
        let close = on_gpu
            .values()
            .zip(on_cpu.values())
            .all(|(gpu, cpu)| (gpu - cpu).abs() < 1e-4);
        assert!(close, "{model}");
        let table = on_gpu.get("embedding.weight").unwrap().values();
        assert!(
            table[..2 * 32].iter().all(|value| *value == 0.0),
            "padding and unknown words have no row"
        );
    }
}

fn compare_pools_with_cpu() {
    let samples = common::small_fashion();
    let adapter = probe::adapters_in_process().into_iter().next().unwrap();
    let gpu = ComputeDevice::open(&Selected::Vulkan(adapter), 1).unwrap();
    let cpu = ComputeDevice::cpu(1).unwrap();
    for algorithm in ["fedrod", "lg-fedavg", "dbe"] {
        let spec = common::spec(algorithm, "mlp", &samples);
        let trained = |seed| {
            let mut learner =
                Learner::new(&spec, seed, common::split(&samples, 100), &cpu).unwrap();
            for round in 1..=2 {
                learner
                    .local_update(Round(round), &mut |_| ControlFlow::Continue(()))
                    .unwrap();
            }
            learner
        };
        let module = |seed: u8| {
            let params = trained(u64::from(seed)).module().unwrap().params;
            (NodeId::from_bytes([seed; 32]), params)
        };
        let (state, members) = (trained(0).state(), [1, 2, 3].map(module));
        let pool = PoolSettings {
            epochs: 1,
            top_k: 2,
            guard: false,
            ..PoolSettings::preset(Preset::Fixed)
        };
        let run = |device: &ComputeDevice| {
            let mut learner = Learner::new(&spec, 0, common::split(&samples, 100), device).unwrap();
            learner.restore(&state).unwrap();
            let outcome = learner
                .assemble_pool(&pool, members.to_vec(), &mut |_| ControlFlow::Continue(()))
                .unwrap();
            assert_eq!(outcome.served, Served::Mixture);
            let numbers = outcome
                .members
                .iter()
                .flat_map(|member| [member.score.unwrap_or(0.0), member.gate_mass]);
            numbers
                .chain([learner.evaluate(Subset::Test).score.loss])
                .collect::<Vec<f64>>()
        };
        let (on_gpu, on_cpu) = (run(&gpu), run(&cpu));
        let close = on_gpu
            .iter()
            .zip(&on_cpu)
            .all(|(gpu, cpu)| (gpu - cpu).abs() < 1e-3 * cpu.max(1.0));
        assert!(close, "{algorithm}: {on_gpu:?} and {on_cpu:?}");
    }
}
