//! Finding a device that works, without trusting any driver.
//!
//! A Vulkan driver may crash or hang while it is merely looked at. So the process that wants a device never touches
//! Vulkan first: it starts itself again as a child with a hidden subcommand, and the child does what may go wrong and
//! prints one line.
//!
//! ```text
//! parent: select(choice)                          child: answer("list" | "vulkan:<i>")
//!   ── program args… list      ──────────────►      enumerates adapters
//!   ◄─ {"adapters":[…]}        ───────────────
//!   ── program args… vulkan:0  ──────────────►      a convolution forward and backward, against the CPU's numbers
//!   ◄─ {"works":{…}} | {"fails":"…"} ─────────
//! ```
//!
//! A child that dies or says nothing in time is a finding like any other: it names the adapter and what to do.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::device::{self, Adapter, DeviceChoice, Selected};
use crate::model::{Cut, Net};
use crate::train::cross_entropy;
use crate::vulkan;
use crate::weights::{self, Weights};

/// Longest answer of a child; a list of adapters is far below.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// How long a driver may take: the first kernels of a cold driver take seconds, software drivers some tens.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest accepted difference of a probe's numbers from the CPU's.
const TOLERANCE: f32 = 1e-3;

/// How to start a child that answers: this program with its hidden subcommand.
#[derive(Debug, Clone)]
pub struct ProbeCommand {
    /// The program, usually the running one.
    pub program: PathBuf,
    /// Arguments before the question, for example `__probe-device`.
    pub arguments: Vec<String>,
    /// How long the child may take; [`TIMEOUT`] if nothing speaks against it.
    pub timeout: Duration,
}

/// What was found out about one adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// The adapter.
    pub adapter: Adapter,
    /// Seconds until its first result was there.
    pub seconds: f64,
}

/// What a child says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Adapters(Vec<Adapter>),
    Works(ProbeReport),
    Fails(String),
}

/// Tells why no device could be had.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The program is one for the CPU alone.
    #[error(
        "this program was built for the CPU alone: install the one with the GPU path, or choose device `cpu`"
    )]
    NotBuilt,
    /// Vulkan offers no hardware.
    #[error("no GPU found: install its Vulkan driver and libvulkan1, or choose device `cpu`{}", software_hint(.software))]
    NoHardware {
        /// Software drivers that could be named.
        software: Vec<String>,
    },
    /// There is no adapter of that number.
    #[error("there is no Vulkan adapter {index}: {}; choose another one, or device `cpu`", listed(.adapters))]
    NoSuchAdapter {
        /// The number asked for.
        index: usize,
        /// What there is.
        adapters: Vec<String>,
    },
    /// The driver took the child with it.
    #[error(
        "the Vulkan driver of {what} crashed ({status}): update or remove the driver, or choose device `cpu`"
    )]
    Crashed {
        /// The adapter, or what was being done.
        what: String,
        /// How the child ended.
        status: ExitStatus,
    },
    /// The driver did not come back.
    #[error(
        "the Vulkan driver of {what} gave no answer within {timeout:?}: update or remove the driver, or choose device `cpu`"
    )]
    Hung {
        /// The adapter, or what was being done.
        what: String,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The adapter works wrongly.
    #[error("{what} cannot be used: {reason}; choose another device, or `cpu`")]
    Unusable {
        /// The adapter.
        what: String,
        /// What it did.
        reason: String,
    },
    /// The child could not be started.
    #[error("cannot start the device probe `{0}`")]
    Start(PathBuf, #[source] std::io::Error),
    /// The child said something else than an answer.
    #[error("the device probe of {what} answered nonsense: `{line}`")]
    Nonsense {
        /// The adapter, or what was being done.
        what: String,
        /// What it said.
        line: String,
    },
}

fn software_hint(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(
        " (software drivers can be named, but are slower than `cpu`: {})",
        names.join(", ")
    )
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        "none was found".to_owned()
    } else {
        format!("there are {}", names.join(", "))
    }
}

/// Lists the Vulkan adapters, in a child.
///
/// # Errors
/// Fails if the child cannot be started, dies or hangs.
pub fn adapters(command: &ProbeCommand) -> Result<Vec<Adapter>, ProbeError> {
    let what = "this machine";
    match ask(command, "list", what)? {
        Answer::Adapters(adapters) if adapters.is_empty() && !vulkan::IS_BUILT => {
            Err(ProbeError::NotBuilt)
        }
        Answer::Adapters(adapters) => Ok(adapters),
        Answer::Fails(reason) => Err(ProbeError::Unusable {
            what: what.into(),
            reason,
        }),
        Answer::Works(_) => Err(ProbeError::Nonsense {
            what: what.into(),
            line: "works".into(),
        }),
    }
}

/// Finds out in a child whether an adapter works.
///
/// # Errors
/// Says what it did instead.
pub fn probe(command: &ProbeCommand, adapter: &Adapter) -> Result<ProbeReport, ProbeError> {
    let what = title(adapter);
    match ask(
        command,
        &DeviceChoice::VulkanAdapter(adapter.index).to_string(),
        &what,
    )? {
        Answer::Works(report) => Ok(report),
        Answer::Fails(reason) => Err(ProbeError::Unusable { what, reason }),
        Answer::Adapters(_) => Err(ProbeError::Nonsense {
            what,
            line: "adapters".into(),
        }),
    }
}

/// Finds the device for a choice. `auto` never fails: what keeps it from the GPU is returned beside the CPU.
///
/// # Errors
/// Says why the chosen device cannot be had, and what to do.
pub fn select(
    choice: DeviceChoice,
    command: &ProbeCommand,
) -> Result<(Selected, Option<ProbeError>), ProbeError> {
    match choice {
        DeviceChoice::Cpu => Ok((Selected::Cpu, None)),
        DeviceChoice::Auto => match first_hardware(command) {
            Ok(adapter) => Ok((Selected::Vulkan(adapter), None)),
            Err(reason) => Ok((Selected::Cpu, Some(reason))),
        },
        DeviceChoice::Vulkan => Ok((Selected::Vulkan(first_hardware(command)?), None)),
        DeviceChoice::VulkanAdapter(index) => {
            let adapters = adapters(command)?;
            let Some(adapter) = adapters.iter().find(|adapter| adapter.index == index) else {
                return Err(ProbeError::NoSuchAdapter {
                    index,
                    adapters: adapters.iter().map(title).collect(),
                });
            };
            Ok((Selected::Vulkan(probe(command, adapter)?.adapter), None))
        }
    }
}

/// Returns the first hardware adapter that works, else what the last one did.
fn first_hardware(command: &ProbeCommand) -> Result<Adapter, ProbeError> {
    let (hardware, software): (Vec<_>, Vec<_>) = adapters(command)?
        .into_iter()
        .partition(Adapter::is_hardware);
    let mut failure = ProbeError::NoHardware {
        software: software.iter().map(title).collect(),
    };
    for adapter in hardware {
        match probe(command, &adapter) {
            Ok(report) => return Ok(report.adapter),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn title(adapter: &Adapter) -> String {
    format!("`{}` (vulkan:{})", adapter.name, adapter.index)
}

/// Starts a child and waits for its line.
fn ask(command: &ProbeCommand, question: &str, what: &str) -> Result<Answer, ProbeError> {
    let mut child = Command::new(&command.program)
        .args(&command.arguments)
        .arg(question)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Drivers chatter; what matters is in the answer.
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| ProbeError::Start(command.program.clone(), error))?;
    let line = read_answer(&mut child, command.timeout);
    if line.is_none() {
        // A child that is already gone cannot be killed, which is as good.
        let _ = child.kill();
    }
    let status = child
        .wait()
        .map_err(|error| ProbeError::Start(command.program.clone(), error))?;
    let what = what.to_owned();
    match line {
        None => Err(ProbeError::Hung {
            what,
            timeout: command.timeout,
        }),
        Some(_) if !status.success() => Err(ProbeError::Crashed { what, status }),
        Some(line) => {
            // Drivers write to standard output too; the answer is the line that is one.
            let answer = line
                .lines()
                .find_map(|line| serde_json::from_str(line).ok());
            answer.ok_or_else(|| ProbeError::Nonsense {
                what,
                line: line.chars().take(200).collect(),
            })
        }
    }
}

/// Reads until the child closes its output; nothing if that takes too long.
fn read_answer(child: &mut Child, timeout: Duration) -> Option<String> {
    let output = child.stdout.take()?;
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut line = Vec::new();
        let _ = output.take(MAX_ANSWER_BYTES).read_to_end(&mut line);
        // The receiver is gone when the time was up.
        let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
    });
    receiver.recv_timeout(timeout).ok()
}

/// Answers a parent's question; what the hidden subcommand prints as one line.
pub fn answer(question: &str) -> String {
    let answer = match question.parse() {
        _ if question == "list" => Answer::Adapters(adapters_in_process()),
        Ok(choice) => probe_in_process(choice).map_or_else(Answer::Fails, Answer::Works),
        Err(error) => Answer::Fails(error.to_string()),
    };
    serde_json::to_string(&answer).expect("answers are plain structs")
}

/// Lists the Vulkan adapters of this machine. May crash with a bad driver: call it in a child only.
pub fn adapters_in_process() -> Vec<Adapter> {
    vulkan::adapters()
}

/// Computes on a device and compares with the CPU. May crash or hang with a bad driver: call it in a child only.
///
/// # Errors
/// Says in words what is wrong.
pub fn probe_in_process(choice: DeviceChoice) -> Result<ProbeReport, String> {
    let adapters = adapters_in_process();
    let adapter = match choice {
        DeviceChoice::VulkanAdapter(index) => adapters.into_iter().nth(index),
        _ => adapters.into_iter().find(Adapter::is_hardware),
    };
    let adapter = adapter.ok_or("there is no such adapter")?;
    let started = Instant::now();
    let expected = worked_example(&Device::flex());
    let got = worked_example(&device::open_adapter(&adapter).map_err(|error| error.to_string())?);
    // A result that is not a number is near nothing.
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE;
    let n_right = expected
        .iter()
        .zip(&got)
        .filter(|pair| is_near(*pair))
        .count();
    if n_right < expected.len() {
        return Err(format!(
            "it computes wrong results ({n_right} of {} are right)",
            expected.len()
        ));
    }
    Ok(ProbeReport {
        adapter,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Returns the loss and all gradients of a small convolutional network on one batch.
fn worked_example(device: &Device) -> Vec<f32> {
    let spec = fednode_core::spec::Architecture {
        name: "cnn".into(),
        input: [1, 8, 8],
        classes: 4,
        ..Default::default()
    };
    let net = crate::model::build(&spec).expect("the model takes 8x8 images");
    let (features, _) = net.split(Cut::Classifier);
    let head = Net::new(vec![crate::model::leaf(crate::model::Linear {
        name: "head",
        inputs: features.n_outputs(),
        outputs: 4,
        activation: crate::model::Activation::Identity,
        bias: true,
    })]);
    let load = |net: &Net| {
        let weights = Weights::load(net, &weights::initial(net, 1, 0), device);
        weights
            .expect("initial parameters fit their net")
            .recorded()
    };
    let (base, top) = (load(&features), load(&head));
    let pixels: Vec<f32> = (0..3 * 64)
        .map(|i| ((i * 37) % 64) as f32 / 32.0 - 1.0)
        .collect();
    let input = Tensor::<2>::from_data(TensorData::new(pixels, [3, 64]), device);
    let logits = head.forward(&top, features.forward(&base, input));
    let loss = cross_entropy(logits, crate::gate::one_hot(&[0, 2, 3], 4, device));
    let mut numbers = weights::values(&loss);
    let mut gradients = loss.backward();
    for weights in [base, top] {
        let taken = weights.take_gradients(&mut gradients).into_iter().flatten();
        numbers.extend(taken.flat_map(|gradient| weights::values(&gradient)));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, milliseconds: u64) -> ProbeCommand {
        let arguments = vec!["-c".into(), script.into(), "probe".into()];
        ProbeCommand {
            program: "/bin/sh".into(),
            arguments,
            timeout: Duration::from_millis(milliseconds),
        }
    }

    const LIST: &str = r#"if [ "$1" = list ]; then
        echo 'driver chatter'
        echo '{"adapters":[{"index":0,"name":"Bad","driver":"d","kind":{"discrete":0}},
              {"index":1,"name":"Soft","driver":"d","kind":"software"}]}' | tr -d '\n'; exit 0; fi;"#;

    #[test]
    fn a_crashing_driver_is_named_and_survived() {
        let command = shell(&format!("{LIST} kill -SEGV $$"), 10_000);
        let error = select(DeviceChoice::Vulkan, &command)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`Bad` (vulkan:0) crashed (signal: 11"),
            "{error}"
        );
        assert!(error.contains("choose device `cpu`"), "{error}");
        let (selected, reason) = select(DeviceChoice::Auto, &command).unwrap();
        assert_eq!(selected, Selected::Cpu);
        assert!(matches!(reason, Some(ProbeError::Crashed { .. })));
    }

    #[test]
    fn a_hanging_driver_is_given_up() {
        let command = shell(&format!("{LIST} exec sleep 60"), 300);
        let error = select(DeviceChoice::Vulkan, &command).unwrap_err();
        assert!(matches!(error, ProbeError::Hung { .. }), "{error}");
    }

    #[test]
    fn software_drivers_are_only_taken_by_name() {
        let works = r#"echo '{"works":{"adapter":{"index":1,"name":"Soft","driver":"d","kind":"software"},"seconds":1.0}}'"#;
        let list = LIST.replace(r#"{"discrete":0}"#, r#""software""#);
        let command = shell(&format!("{list} {works}"), 10_000);
        let error = select(DeviceChoice::Vulkan, &command).unwrap_err();
        assert!(
            matches!(&error, ProbeError::NoHardware { software } if software.len() == 2),
            "{error}"
        );
        let (selected, _) = select(DeviceChoice::VulkanAdapter(1), &command).unwrap();
        assert!(matches!(selected, Selected::Vulkan(adapter) if adapter.name == "Soft"));
        let error = select(DeviceChoice::VulkanAdapter(7), &command)
            .unwrap_err()
            .to_string();
        assert!(error.contains("`Soft` (vulkan:1)"), "{error}");
    }

    #[test]
    fn a_missing_program_and_nonsense_are_errors() {
        let command = ProbeCommand {
            program: "/nonexistent".into(),
            arguments: vec![],
            timeout: TIMEOUT,
        };
        assert!(matches!(adapters(&command), Err(ProbeError::Start(..))));
        assert!(matches!(
            adapters(&shell("echo hello", 10_000)),
            Err(ProbeError::Nonsense { .. })
        ));
    }

    #[test]
    fn the_worked_example_is_the_same_every_time() {
        assert_eq!(
            worked_example(&Device::flex()),
            worked_example(&Device::flex())
        );
    }
}
