//! `fedboot dashboard`: a page in a browser of what this aggregator does.

use fednode_page::{Page, Settings, Watched, warning};
use fednode_runtime::streams::say;
use fednode_runtime::{ExitCode as Cause, signals};

use crate::cli::DashboardArgs;
use crate::{Failure, print};

/// Serves the page until somebody stops it.
pub(crate) fn dashboard(args: &DashboardArgs, json: bool) -> Result<(), Failure> {
    let state = args.state.folder()?;
    if !state.is_dir() {
        let text = format!(
            "there is no state folder `{}`: start fedboot first, or name its folder with --state",
            state.display()
        );
        return Err(Failure::new(Cause::State, text));
    }
    // A fedboot that has not started yet has its key, perhaps.
    if !["layout", "key"]
        .iter()
        .any(|name| state.join(name).exists())
    {
        let text = format!(
            "`{}` is no state folder, or no fedboot has run with it yet: start one with `fedboot start`, or name its folder with --state",
            state.display()
        );
        return Err(Failure::new(Cause::State, text));
    }
    if let Some(warning) = warning(args.bind) {
        say(warning);
    }
    let settings = Settings {
        bind: args.bind,
        // Whoever has closed the output does not want the link.
        on_link: Box::new(move |link| _ = print::link(link, json)),
    };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Cause::Internal, error))?;
    let served = runtime.block_on(async {
        let stop = signals::install().map_err(|error| Failure::new(Cause::Internal, error))?;
        let page = Page::start(Watched::aggregator(state), settings).await;
        let page = page.map_err(|error| Failure::new(Cause::Network, error))?;
        stop.cancelled().await;
        page.stop().await;
        Ok(())
    });
    // A process that hangs while it is asked must not hold up the end.
    runtime.shutdown_background();
    served
}
