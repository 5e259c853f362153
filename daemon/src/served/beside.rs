//! The model of a running node, served by the node itself.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use fednode_cli::failure::fail;
use fednode_cli::model::ModelArgs;
use fednode_learn::ComputeDevice;
use fednode_runtime::exit::ExitCode;
use fednode_serve::{Server, Settings};

use super::{ACCESS_FILE, Predicting, Served, open};

/// How often is looked for the first model.
const EVERY: Duration = Duration::from_secs(1);

/// Checks before the node starts that its model can be served at an address.
///
/// # Errors
/// Fails if the address cannot be had.
pub(crate) fn check(bind: SocketAddr) -> anyhow::Result<()> {
    let bound = TcpListener::bind(bind).map(drop);
    bound.map_err(|error| {
        let text = format!("cannot serve the model at {bind}: {error}; choose another `serve`");
        fail(ExitCode::Network, text)
    })
}

/// Serves a node's model as soon as there is one. The server ends when this future is dropped.
pub(crate) async fn serve(bind: SocketAddr, args: ModelArgs) {
    let (served, predicting) = first(&args).await;
    let access_file = match args.beside(ACCESS_FILE) {
        Ok(path) => path,
        Err(error) => return tracing::warn!("the model is not served: {error:#}"),
    };
    let settings = Settings { bind, access_file };
    match Server::start(served, predicting, &settings).await {
        Err(error) => tracing::warn!("the model is not served: {error}; choose another `serve`"),
        Ok(server) => {
            let (address, file) = (server.address(), settings.access_file.display());
            tracing::info!("the model is served at http://{address}, with the token in {file}");
            std::future::pending::<()>().await;
            drop(server);
        }
    }
}

/// Waits for the first model.
async fn first(args: &ModelArgs) -> (Served, Predicting) {
    let mut told = String::new();
    loop {
        let args = args.clone();
        let opening = tokio::task::spawn_blocking(move || {
            // Others train on the other threads. One is quickest for single rows.
            open(&args, &ComputeDevice::cpu(1)?)
        });
        let text = match opening.await {
            Ok(Ok(opened)) => return opened,
            Ok(Err(error)) => format!("{error:#}"),
            Err(error) => error.to_string(),
        };
        if text != told {
            tracing::info!("the model is not served yet: {text}");
            told = text;
        }
        tokio::time::sleep(EVERY).await;
    }
}
