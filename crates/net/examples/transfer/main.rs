//! Measures a blob transfer between two processes on loopback against raw TCP.
//!
//! ```text
//! cargo run --release -p fednode-net --example transfer -- [MIB]
//! cargo run --release -p fednode-net --example transfer -- packed MIB
//!
//! transfer serve MIB ADDRESS       serves over a network, says where, and ends with its input (scripts/netlab)
//! transfer fetch MIB ADDRESS…      fetches from all of these at once
//! ```
//!
//! The server process makes the bytes up, and the client throws them away after verification. So neither disk nor memory
//! is measured. Both report the CPU time per GB (10^9 bytes) and their peak resident memory. Raw TCP is measured in the
//! same way, so that a busy machine can be told from a slow program. With `packed` both sides hold a version of the blob in
//! which the lower half of every number is different.
#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{FederationSpec, NodeId, Role, SEGMENT_BYTES};
use fednode_net::{
    Compression, Config, Event, Fetched, Identity, Multiaddr, Network, Packing, Width, start,
};

mod synthetic;

use synthetic::Synthetic;

const LOOPBACK: &str = "/ip4/127.0.0.1/tcp/0";
const PATIENCE: Duration = Duration::from_secs(600);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", mib] => serve(mib.parse()?, LOOPBACK.parse()?).await,
        ["serve", mib, address] => serve(mib.parse()?, address.parse()?).await,
        ["fetch", mib, addresses @ ..] if !addresses.is_empty() => {
            fetch_from(mib.parse()?, addresses).await
        }
        ["raw", mib] => raw_serve(mib.parse()?),
        ["packed", mib] => measure(mib.parse()?, Compression::Zstd).await,
        [mib] => measure(mib.parse()?, Compression::Off).await,
        _ => measure(100, Compression::Off).await,
    }
}

async fn measure(mib: u64, compression: Compression) -> Outcome {
    let raw = raw(mib)?;
    let gb = (mib * SEGMENT_BYTES) as f64 / 1e9;
    let (mut server, address) = child("serve", mib)?;
    let client = join(mib, &[address.parse()?], compression).await?;
    let cpu = cpu_seconds()?;
    let Transfer { rate, fetched } = client.fetch().await?;
    let cpu = (cpu_seconds()? - cpu) / gb;
    println!(
        "raw TCP      {:8.0} MiB/s, {:.2} + {:.2} CPU s/GB",
        raw.rate,
        raw.client_cpu / gb,
        raw.server_cpu / gb
    );
    println!(
        "blob         {rate:8.0} MiB/s  (ratio {:.2})",
        rate / raw.rate
    );
    let received: u64 = fetched.bytes_received.values().sum();
    println!(
        "received     {:8.1} % of its bytes",
        100.0 * received as f64 / (mib * SEGMENT_BYTES) as f64
    );
    println!(
        "client       {cpu:8.2} CPU s/GB, peak RSS {:.1} MB",
        peak_memory()?
    );
    client.network.handle.shutdown().await;
    drop(server.stdin.take());
    let mut rest = String::new();
    server
        .stdout
        .take()
        .ok_or("no output")?
        .read_to_string(&mut rest)?;
    print!("{rest}");
    server.wait()?;
    Ok(())
}

/// Fetches from several providers and says how fast it went.
async fn fetch_from(mib: u64, addresses: &[&str]) -> Outcome {
    let addresses = addresses
        .iter()
        .map(|address| address.parse())
        .collect::<Result<Vec<Multiaddr>, _>>()?;
    let client = join(mib, &addresses, Compression::Off).await?;
    let Transfer { rate, fetched } = client.fetch().await?;
    let shares: Vec<String> = fetched
        .bytes_received
        .values()
        .map(|bytes| (bytes >> 20).to_string())
        .collect();
    println!(
        "{rate:.3} MiB/s from {} providers ({} MiB)",
        shares.len(),
        shares.join(" + ")
    );
    client.network.handle.shutdown().await;
    Ok(())
}

/// A client that is connected with all its providers.
struct Client {
    network: Network,
    store: Arc<Synthetic>,
    providers: Vec<NodeId>,
    mib: u64,
}

/// What came of a fetch.
struct Transfer {
    /// MiB per second.
    rate: f64,
    fetched: Fetched,
}

async fn join(mib: u64, addresses: &[Multiaddr], compression: Compression) -> Outcome<Client> {
    let mut config = Config::new(FederationSpec::default().into(), Role::Node);
    config.listen.clear();
    config.compression = compression;
    config.peers = addresses.to_vec();
    let store = Arc::new(Synthetic::new(mib, false));
    let mut network = start(config, Identity::generate(), store.clone()).await?;
    let mut providers = Vec::new();
    while providers.len() < addresses.len() {
        if let Event::PeerUp { node, .. } =
            network.events.recv().await.ok_or("the network ended")?
        {
            providers.push(node);
        }
    }
    Ok(Client {
        network,
        store,
        providers,
        mib,
    })
}

impl Client {
    async fn fetch(&self) -> Outcome<Transfer> {
        let started = Instant::now();
        let packing = Packing {
            width: Width::Four,
            base: Some(self.store.before()),
        };
        let (blob, providers) = (self.store.blob(), self.providers.clone());
        let fetched = self
            .network
            .handle
            .fetch_packed(blob, providers, PATIENCE, packing)
            .await?;
        Ok(Transfer {
            rate: self.mib as f64 / started.elapsed().as_secs_f64(),
            fetched,
        })
    }
}

async fn serve(mib: u64, address: Multiaddr) -> Outcome {
    let mut config = Config::new(FederationSpec::default().into(), Role::Node);
    config.listen = vec![address];
    let network = start(
        config,
        Identity::generate(),
        Arc::new(Synthetic::new(mib, true)),
    )
    .await?;
    let address: Multiaddr = network.handle.listeners().remove(0);
    println!("{address}");
    let cpu = cpu_seconds()?;
    // The parent closes our input when it is done.
    tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new())).await??;
    let cpu = (cpu_seconds()? - cpu) / ((mib * SEGMENT_BYTES) as f64 / 1e9);
    println!(
        "server       {cpu:8.2} CPU s/GB, peak RSS {:.1} MB",
        peak_memory()?
    );
    network.handle.shutdown().await;
    Ok(())
}

/// Starts this program again in another role and reads the first line it says.
fn child(role: &str, mib: u64) -> Outcome<(Child, String)> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg(role)
        .arg(mib.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut line = String::new();
    let mut output = BufReader::with_capacity(1, child.stdout.take().ok_or("no output")?);
    output.read_line(&mut line)?;
    child.stdout = Some(output.into_inner());
    Ok((child, line.trim().to_owned()))
}

/// What raw TCP does on this machine now.
struct Raw {
    /// MiB per second.
    rate: f64,
    /// CPU seconds of the receiving process.
    client_cpu: f64,
    /// CPU seconds of the sending process.
    server_cpu: f64,
}

fn raw(mib: u64) -> Outcome<Raw> {
    let (mut server, address) = child("raw", mib)?;
    let mut stream = TcpStream::connect(address)?;
    let mut buffer = vec![0; 256 << 10];
    let (mut received, started, cpu) = (0, Instant::now(), cpu_seconds()?);
    while let n @ 1.. = stream.read(&mut buffer)? {
        received += n as u64;
    }
    let rate = received as f64 / f64::from(1 << 20) / started.elapsed().as_secs_f64();
    let client_cpu = cpu_seconds()? - cpu;
    let mut said = String::new();
    server
        .stdout
        .take()
        .ok_or("no output")?
        .read_to_string(&mut said)?;
    server.wait()?;
    Ok(Raw {
        rate,
        client_cpu,
        server_cpu: said.trim().parse()?,
    })
}

fn raw_serve(mib: u64) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let buffer = vec![1; SEGMENT_BYTES as usize];
    let (mut stream, _) = listener.accept()?;
    let cpu = cpu_seconds()?;
    for _ in 0..mib {
        stream.write_all(&buffer)?;
    }
    println!("{}", cpu_seconds()? - cpu);
    Ok(())
}

/// CPU seconds of this process so far, user and system, in steps of 10 ms (Linux).
fn cpu_seconds() -> Outcome<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in brackets, may contain anything; the fields after it are numbered from 3.
    let fields = stat.rsplit(')').next().ok_or("no fields")?;
    let ticks: Vec<f64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

/// Peak resident memory of this process in MB (Linux).
fn peak_memory() -> Outcome<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .ok_or("no VmHWM")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kib * 1024.0 / 1e6)
}
