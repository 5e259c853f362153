//! `fednode doctor`: one line per thing that a node needs of its machine.

mod folder;
mod running;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fednode_core::FederationSpec;
use fednode_data::DataSource;
use fednode_learn::probe;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::status::{Route, ways};
use serde::Serialize;

use self::running::{Running, port, running};
use crate::command::start::{read_spec, with_own_model};
use fednode_cli::backbone;
use fednode_cli::clock;
use fednode_cli::config::Config;
use fednode_cli::data::{self, Mine, units};
use fednode_cli::device::{Choice, probe_command};
use fednode_cli::failure::{fail, one_line};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::StateArgs;
use fednode_cli::table::bytes;

/// Below this a node's disk is as good as full.
const LITTLE_SPACE: u64 = 1 << 30;
/// No node of this software ran before this: 2026-01-01. A clock that shows less was never set.
const NO_EARLIER_THAN: Duration = Duration::from_secs(1_767_225_600);
/// Exists while systemd's time service is synchronised.
const SYNCHRONISED: &str = "/run/systemd/timesync/synchronized";

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    state: StateArgs,
    /// Check this data too, beside the node's own.
    #[arg(long, value_name = "SOURCE")]
    data: Vec<String>,
}

/// Checks everything; the exit code is that of the worst finding.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let config = args.state.config_of_node()?;
    let mut findings = vec![processor()];
    findings.extend(gpus());
    let node = running(config.state());
    findings.extend(node.as_ref().map(Running::finding));
    let ports = config.network.listen.iter();
    findings.extend(ports.map(|address| port(address, node.as_ref())));
    findings.extend(reach(&args.state, &config));
    findings.push(now());
    let folder = folder::look(&config);
    let is_usable = folder.code.is_none();
    findings.push(folder);
    if is_usable {
        findings.extend(folder::keys(&config));
        findings.push(disk(&config));
    }
    // A table is read as the node would read it, by the names of its federation.
    let spec = read_spec(&config).ok();
    findings.push(readable(&config.data, spec.as_ref()));
    findings.extend(spec.as_ref().and_then(|spec| backbone(&config, spec)));
    findings.extend(spec.as_ref().and_then(|spec| trained(&config, spec)));
    findings.extend(args.data.iter().map(|text| match data::source(text) {
        Ok(source) => readable(&source, spec.as_ref()),
        Err(error) => Finding::failed("data", ExitCode::Data, one_line(&error)),
    }));
    let failed: Vec<(&str, ExitCode)> = findings
        .iter()
        .filter_map(|found| Some((found.what, found.code?)))
        .collect();
    output::print(
        &Findings(findings.iter().map(Finding::clone).collect()),
        form,
    )?;
    match failed.first() {
        Some((what, code)) => Err(fail(
            *code,
            format!("{} check(s) failed, first: {what}", failed.len()),
        )),
        None => Ok(()),
    }
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One line.
#[derive(Debug, Clone, Serialize)]
struct Finding {
    verdict: Verdict,
    what: &'static str,
    detail: String,
    #[serde(skip)]
    code: Option<ExitCode>,
}

impl Finding {
    fn new(verdict: Verdict, what: &'static str, detail: impl Into<String>) -> Self {
        Self {
            verdict,
            what,
            detail: detail.into(),
            code: None,
        }
    }

    fn failed(what: &'static str, code: ExitCode, detail: impl Into<String>) -> Self {
        Self {
            code: Some(code),
            ..Self::new(Verdict::Fail, what, detail)
        }
    }
}

#[derive(Debug, Serialize)]
struct Findings(Vec<Finding>);

impl Report for Findings {
    fn human(&self) -> String {
        let line = |found: &Finding| {
            let verdict = match found.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warn => "warn",
                Verdict::Fail => "fail",
            };
            format!("{verdict}  {:<8}  {}\n", found.what, found.detail)
        };
        self.0.iter().map(line).collect()
    }
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Finding::new(
        Verdict::Ok,
        "cpu",
        format!("{cores} cores; `--device cpu` always works"),
    )
}

/// Finds and probes every adapter. No GPU is a warning only: the CPU does the same, slower.
fn gpus() -> Vec<Finding> {
    let warn = |detail: String| Finding::new(Verdict::Warn, "gpu", detail);
    let found = probe_command()
        .map_err(|error| one_line(&error))
        .and_then(|command| {
            let adapters = probe::adapters(&command).map_err(|error| error.to_string())?;
            Ok((command, adapters))
        });
    let (command, adapters) = match found {
        Err(error) => return vec![warn(error)],
        Ok((_, adapters)) if adapters.is_empty() => {
            return vec![warn(
                "no Vulkan adapter: install the GPU's driver and libvulkan1, or train on the CPU"
                    .into(),
            )];
        }
        Ok(found) => found,
    };
    let examine = |adapter| match probe::probe(&command, adapter) {
        Ok(report) => {
            let (name, index) = (&report.adapter.name, report.adapter.index);
            let detail = format!(
                "`{name}` (vulkan:{index}) works, first result after {:.1} s",
                report.seconds
            );
            let software = "; it is a software driver, slower than `--device cpu`";
            if adapter.is_hardware() {
                Finding::new(Verdict::Ok, "gpu", detail)
            } else {
                warn(detail + software)
            }
        }
        Err(error) => warn(error.to_string()),
    };
    adapters.iter().map(examine).collect()
}

/// Tells which device this federation's model is trained on; nothing without a GPU, and where the data cannot be read.
fn trained(config: &Config, spec: &FederationSpec) -> Option<Finding> {
    let choice = Choice::find(&config.device).ok()?;
    if choice.is_cpu() {
        return None;
    }
    let mine = Mine::load(config, spec).ok()?;
    let own = with_own_model(spec, config, &mine).ok()?;
    let choice = match choice.for_model(&own, &mine.split, (1, config.threads)) {
        Ok(choice) => choice,
        Err(error) => {
            return Some(Finding::failed("model", ExitCode::Device, one_line(&error)));
        }
    };
    let detail = match (choice.reason, choice.rates) {
        (Some(reason), _) => format!("{reason}: the CPU is used"),
        (None, Some(rates)) => format!("{rates}: the GPU is used"),
        (None, None) => format!(
            "the GPU learns `{}` as the CPU does, and is used because it was named",
            own.model.name.first()
        ),
    };
    Some(Finding::new(Verdict::Ok, "model", detail))
}

/// Tells how this node is reached, or how it reaches each member if it runs.
fn reach(state: &StateArgs, config: &Config) -> Vec<Finding> {
    let running = state.client().ok();
    let Some(members) = running.and_then(|client| client.peers().ok()) else {
        return vec![prospect(config)];
    };
    let mut findings = vec![Finding::new(Verdict::Ok, "reach", ways(&members))];
    let distant = members
        .iter()
        .filter(|peer| !matches!(peer.route, Route::Tcp | Route::Quic));
    findings.extend(distant.map(|peer| {
        let verdict = match peer.route {
            Route::None => Verdict::Warn,
            _ => Verdict::Ok,
        };
        let detail = format!("{} {}", peer.node_id.short(), peer.reached());
        Finding::new(verdict, "reach", detail)
    }));
    findings
}

/// Tells how a node that does not run will be reached.
fn prospect(config: &Config) -> Finding {
    let network = &config.network;
    let detail = match () {
        () if network.peers.is_empty() && !network.mdns && network.listen.is_empty() => {
            let detail = "no listener and no `peers`: nobody can meet this node";
            return Finding::new(Verdict::Warn, "reach", detail);
        }
        () if network.listen.is_empty() => {
            "no listener: others reach this node through the members that it dials"
        }
        () if network.upnp => {
            "the router is asked to forward the port; until it does, others reach this node through the members that it dials"
        }
        () if network.external.is_empty() => {
            "no `external` address: behind a router, others reach this node through the members that it dials"
        }
        () => "others are told the addresses in `external`",
    };
    Finding::new(Verdict::Ok, "reach", detail)
}

fn now() -> Finding {
    let now = SystemTime::now();
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let name = clock::utc_text(since.map_or(0, |since| since.as_millis() as u64));
    let is_set = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .is_ok_and(|since| since > NO_EARLIER_THAN);
    match () {
        () if !is_set => Finding::failed(
            "clock",
            ExitCode::Configuration,
            format!("{name} cannot be: set it by NTP"),
        ),
        () if Path::new(SYNCHRONISED).exists() => {
            Finding::new(Verdict::Ok, "clock", format!("{name}, synchronised"))
        }
        () => Finding::new(
            Verdict::Ok,
            "clock",
            format!("{name}; it is compared with every peer's at the first word"),
        ),
    }
}

fn disk(config: &Config) -> Finding {
    let state = config.state();
    let existing = state
        .ancestors()
        .find(|folder| folder.is_dir())
        .unwrap_or(Path::new("."));
    let Ok(free) = fednode_store::disk_free(existing) else {
        let detail = format!("cannot tell how much space `{}` has", existing.display());
        return Finding::new(Verdict::Warn, "disk", detail);
    };
    if let Err(error) = can_write(existing) {
        let detail = format!(
            "cannot write to `{}`: {error}; give it to the user that runs the node, or name another folder with --state",
            existing.display()
        );
        return Finding::failed("disk", ExitCode::State, detail);
    }
    let wanted = config.storage.quota_mib.saturating_mul(1 << 20);
    let detail = format!(
        "{} free for `{}`, quota {}",
        bytes(free),
        state.display(),
        bytes(wanted)
    );
    match () {
        () if free < LITTLE_SPACE => Finding::failed(
            "disk",
            ExitCode::State,
            format!("{detail}: free some space"),
        ),
        () if free < wanted => Finding::new(
            Verdict::Warn,
            "disk",
            format!("{detail}: lower `storage.quota_mib`"),
        ),
        () => Finding::new(Verdict::Ok, "disk", detail),
    }
}

/// Tries to make a file in a folder.
fn can_write(folder: &Path) -> io::Result<()> {
    let file = folder.join(format!(".doctor-{}", std::process::id()));
    File::create_new(&file)?;
    fs::remove_file(file)
}

fn readable(source: &DataSource, spec: Option<&FederationSpec>) -> Finding {
    let looked = data::look_at(source.clone(), spec).and_then(|facts| {
        let odd = spec.map(|spec| units::oddities(source, spec)).transpose()?;
        Ok((facts, odd.unwrap_or_default()))
    });
    match looked {
        Ok((facts, odd)) => {
            let [channels, height, width] = facts.input;
            let predicted = match facts.target {
                None => format!("{} classes", facts.classes),
                Some(target) => format!("the number `{}`", target.name),
            };
            let detail = format!("`{source}`: {channels}x{height}x{width}, {predicted}");
            match odd.first() {
                Some((column, what)) => {
                    let detail = format!("{detail}; column `{column}` {what}");
                    Finding::new(Verdict::Warn, "data", detail)
                }
                None => Finding::new(Verdict::Ok, "data", detail),
            }
        }
        Err(error) => Finding::failed("data", ExitCode::Data, one_line(&error)),
    }
}

/// Opens what the federation looks at images through, and runs it once; nothing if there is none.
fn backbone(config: &Config, spec: &FederationSpec) -> Option<Finding> {
    let failed = |error| Finding::failed("backbone", ExitCode::Configuration, one_line(&error));
    match backbone::of(spec, config.backbone.as_deref(), config.threads) {
        Ok(extractor) => extractor.map(|extractor| {
            let detail = format!("{} features of an image", extractor.width());
            Finding::new(Verdict::Ok, "backbone", detail)
        }),
        Err(error) => Some(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_nobody_can_meet_is_warned() {
        let mut config = Config::default();
        assert_eq!(prospect(&config).verdict, Verdict::Ok);
        config.network.listen.clear();
        assert_eq!(prospect(&config).verdict, Verdict::Warn);
        config.network.peers.push("/ip4/192.0.2.7/tcp/4001".into());
        assert_eq!(prospect(&config).verdict, Verdict::Ok);
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_found() {
        let mut config = Config::default();
        // Not even root may make files here.
        config.storage.state = "/proc/self".into();
        let found = disk(&config);
        assert_eq!(found.verdict, Verdict::Fail, "{found:?}");
        assert!(
            found.detail.contains("cannot write to `/proc/self`"),
            "{found:?}"
        );
        let folder = tempfile::tempdir().unwrap();
        config.storage.state = folder.path().join("state");
        assert_eq!(disk(&config).code, None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn missing_data_is_a_failure_and_the_built_in_data_never_is() {
        assert_eq!(
            readable(&"digits".parse().unwrap(), None).verdict,
            Verdict::Ok
        );
        assert_eq!(
            readable(&"idx:/nowhere/at/all".parse().unwrap(), None).verdict,
            Verdict::Fail
        );
    }
}
