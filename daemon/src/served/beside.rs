//! The model of a running node, served by the node itself.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use fednode_cli::failure::fail;
use fednode_cli::model::ModelArgs;
use fednode_learn::ComputeDevice;
use fednode_runtime::Control;
use fednode_runtime::exit::ExitCode;
use fednode_serve::{Server, Settings, StartError};

use super::{ACCESS_FILE, Predicting, Served, open};

/// How often is looked for the first model.
const EVERY: Duration = Duration::from_secs(1);

/// Checks before the node starts that its model can be served at an address.
///
/// # Errors
/// Fails if the address cannot be had, or is that of the control API.
pub(crate) fn check(bind: SocketAddr, control: Control) -> anyhow::Result<()> {
    if bind.port() != 0 && control == Control::At(bind) {
        let text =
            format!("`serve` and `network.control` are both {bind}: give one of them another port");
        return Err(fail(ExitCode::Configuration, text));
    }
    let bound = TcpListener::bind(bind).map(drop);
    bound.map_err(|error| {
        let free = SocketAddr::new(bind.ip(), 0);
        let text = format!(
            "cannot serve the model at {bind}: {error}. Choose another `serve`: `--set serve={free}` takes a port that is free"
        );
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
        Err(StartError::Bind { address, source }) => tracing::warn!(
            "the model is not served: cannot listen at {address}: {source}; choose another `serve`"
        ),
        Err(error) => tracing::warn!("the model is not served: {error}"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_had_names_the_setting() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let bind = taken.local_addr().unwrap();
        let refused = |control| check(bind, control).unwrap_err().to_string();
        let text = refused(Control::Off);
        assert!(text.contains("`--set serve=127.0.0.1:0`"), "{text}");
        let text = refused(Control::At(bind));
        assert!(
            text.starts_with("`serve` and `network.control` are both"),
            "{text}"
        );
        drop(taken);
        assert!(check(bind, Control::Off).is_ok());
        let any = SocketAddr::new(bind.ip(), 0);
        assert!(check(any, Control::At(any)).is_ok(), "each has its own");
    }
}
