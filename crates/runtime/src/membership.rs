//! Who may take part, for a running member: its book of members, the file that keeps it, and the organiser's folder.
//!
//! ```text
//!   state/members ───┐ read once                        ┌──► state/members (at every change)
//!   organiser/ ──────┴──────► MemberBook ◄── network ───┼──► names, for every line that people read
//!        └── looked at every other second ──┘           └──► fednode-net: who is let in
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fednode_core::{Absence, NodeId, Role, Timestamp, names};
use fednode_net::{Admitted, JoinAsk, JoinRefusal, MemberBook, MembershipError, Registrar};
use tokio_util::task::AbortOnDropHandle;

use crate::base::on_worker;
use crate::config::MemberConfig;
use crate::error::RunError;
use crate::organiser::{MEMBERS_FILE, Organiser, OrganiserError};

/// How often the organiser's folder is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The membership of a running member.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) book: Arc<MemberBook>,
    /// Where the statements are kept.
    file: PathBuf,
    /// The organiser's folder, on the process that was given it.
    organiser: Option<Arc<Organiser>>,
}

/// Looks whether a spec goes with the membership in a state folder, before anything is written. A folder that was bound
/// to the federation of another file, one that was cut off perhaps, would refuse the right one. Blocks.
///
/// # Errors
/// Fails if this node cannot be a member, whatever else is found out of it.
pub(crate) fn check(config: &MemberConfig) -> Result<(), RunError> {
    let file = config.state.join(MEMBERS_FILE);
    if config.spec.organiser.is_none() {
        let kept = MemberBook::load_any(&file);
        let kept = kept.map_err(|error| RunError::StateContent(error.to_string()))?;
        return kept.map_or(Ok(()), |_| {
            Err(RunError::Configuration(format!(
                "`{}` is of a federation with an organiser, and this spec names none: put the federation.toml of that federation \
                 back",
                file.display()
            )))
        });
    }
    // Where a member has run before, what is missing has a line of its own.
    let is_new = !config.state.join("federation").exists();
    if is_new && config.organiser.is_none() && !file.exists() {
        return Err(RunError::Membership(Absence::Unknown));
    }
    Ok(())
}

/// Opens the membership of a member; `None` in a federation without an organiser. Blocks.
///
/// # Errors
/// Fails if this node is no member, or if what is kept cannot be read.
pub(crate) fn open(
    config: &MemberConfig,
    me: NodeId,
    role: Role,
    now: Timestamp,
) -> Result<Option<Membership>, RunError> {
    let Some(id) = config.spec.organiser else {
        if config.organiser.is_some() {
            return Err(RunError::Configuration(
                "`organiser` is set, and the spec names no organiser: `fednode init` makes both"
                    .into(),
            ));
        }
        return Ok(None);
    };
    let unusable = |error: OrganiserError| RunError::StateContent(error.to_string());
    let file = config.state.join(MEMBERS_FILE);
    let book =
        MemberBook::load(&file, id).map_err(|error| RunError::StateContent(error.to_string()))?;
    let organiser = match &config.organiser {
        None => None,
        Some(folder) => Some(organiser(folder, id)?),
    };
    if let Some(organiser) = &organiser {
        organiser.exchange(&book).map_err(unusable)?;
        // Nobody else: a key that was revoked must not admit itself again.
        if book.role(&me, now) == Err(Absence::Unknown) {
            let name = config.name.clone().unwrap_or_else(|| default_name(role));
            organiser.admit(me, name, role, now).map_err(unusable)?;
            organiser.exchange(&book).map_err(unusable)?;
        }
    }
    call_by_name(&book);
    match book.role(&me, now) {
        Ok(certified) if certified == role => {}
        Ok(_) => return Err(RunError::Membership(Absence::Role)),
        Err(absence) => return Err(RunError::Membership(absence)),
    }
    // After the check: a start that is refused because of its membership changes no file of it.
    book.save(&file)
        .map_err(|error| RunError::StateContent(error.to_string()))?;
    Ok(Some(Membership {
        book: Arc::new(book),
        file,
        organiser: organiser.map(Arc::new),
    }))
}

/// Reads what the organiser has said from a state folder, for people who look at it; nothing if there is nothing. Calls
/// members by their names from then on.
///
/// # Errors
/// Fails if it is damaged or cannot be read.
pub fn look(state: &Path) -> Result<Option<MemberBook>, MembershipError> {
    let book = MemberBook::load_any(&state.join(MEMBERS_FILE))?;
    if let Some(book) = &book {
        call_by_name(book);
    }
    Ok(book)
}

fn default_name(role: Role) -> fednode_core::MemberName {
    let name = match role {
        Role::Node => "organiser",
        Role::Aggregator => "fedboot",
    };
    name.parse().expect("letters")
}

fn organiser(folder: &Path, id: NodeId) -> Result<Organiser, RunError> {
    let organiser =
        Organiser::open(folder).map_err(|error| RunError::StateContent(error.to_string()))?;
    if organiser.id() != id {
        return Err(RunError::Configuration(format!(
            "the key in `{}` is not that of the organiser whom the spec names: use the folder that `fednode init` made with this federation.toml",
            folder.display()
        )));
    }
    Ok(organiser)
}

pub(crate) fn call_by_name(book: &MemberBook) {
    // Whatever the time is: former members keep their names, too.
    for (certificate, _) in book.all(Timestamp(0)) {
        names::call(certificate.node, certificate.name);
    }
}

impl Membership {
    /// Returns what answers tickets, where the organiser's folder is.
    pub(crate) fn registrar(&self, spec: String) -> Option<Arc<dyn Registrar>> {
        let organiser = Arc::clone(self.organiser.as_ref()?);
        Some(Arc::new(Desk {
            organiser,
            book: Arc::clone(&self.book),
            spec,
        }))
    }

    /// Keeps the file in the state folder like the book, and the book like the organiser's folder, until dropped. Returns the book,
    /// too.
    pub(crate) fn keep(self) -> (Arc<MemberBook>, AbortOnDropHandle<()>) {
        let Self {
            book,
            file,
            organiser,
        } = self;
        let mut changes = book.watch();
        let kept = Arc::clone(&book);
        let keeping = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut seen = None;
            loop {
                let changed = tokio::time::timeout(LOOK_EVERY, changes.changed()).await;
                // This never spins: the sender is in the book, which this task holds.
                let is_news = matches!(changed, Ok(Ok(())));
                if let Some(organiser) = &organiser {
                    look_at(organiser, &book, &mut seen, is_news).await;
                }
                if is_news {
                    call_by_name(&book);
                    save(&book, &file).await;
                }
            }
        }));
        (kept, keeping)
    }
}

/// Exchanges news with the organiser's folder, if there is any on either side.
async fn look_at(
    organiser: &Arc<Organiser>,
    book: &Arc<MemberBook>,
    seen: &mut Option<SystemTime>,
    is_news: bool,
) {
    let (organiser, book, before) = (Arc::clone(organiser), Arc::clone(book), *seen);
    let looked = on_worker(move || {
        let changed = || std::fs::metadata(organiser.members_file())?.modified();
        if is_news || changed().ok() != before {
            organiser.exchange(&book)?;
        }
        // The exchange may have written the file.
        Ok::<_, OrganiserError>(changed().ok())
    });
    match looked.await {
        Ok(changed) => *seen = changed,
        Err(error) => tracing::warn!(%error, "the organiser's folder cannot be used"),
    }
}

async fn save(book: &Arc<MemberBook>, file: &Path) {
    let (book, file) = (Arc::clone(book), file.to_owned());
    let saved = on_worker(move || {
        book.save(&file)
            .map_err(|error| RunError::StateContent(error.to_string()))
    });
    if let Err(error) = saved.await {
        // What others know can be had again.
        tracing::warn!(%error, "the list of members was not kept");
    }
}

/// Answers tickets from the organiser's folder.
#[derive(Debug)]
struct Desk {
    organiser: Arc<Organiser>,
    book: Arc<MemberBook>,
    spec: String,
}

impl Registrar for Desk {
    fn admit(
        &self,
        ask: &JoinAsk,
        joiner: NodeId,
        responder: NodeId,
    ) -> Result<Admitted, JoinRefusal> {
        let now = fednode_net::now();
        let statements = self.organiser.answer(ask, joiner, responder, now)?;
        // At once and not at the next look: the new member says hello in a moment.
        for signed in &statements {
            if let Err(error) = self.book.take(signed) {
                tracing::error!(%error, "the organiser's own statement");
            }
        }
        Ok(Admitted {
            spec: self.spec.clone(),
            statements,
        })
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::FederationSpec;
    use fednode_core::membership::{Certificate, Ruling};
    use fednode_net::Identity;

    use super::*;

    fn config(state: &Path, organiser: Option<NodeId>) -> MemberConfig {
        let spec = FederationSpec {
            organiser,
            ..FederationSpec::default()
        };
        MemberConfig::new(Arc::new(spec), state)
    }

    #[test]
    fn a_state_folder_is_not_bound_to_a_spec_that_does_not_go_with_it() {
        let (joined, fresh) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let organiser = Identity::generate();
        let id = organiser.node_id();
        let certificate = Certificate {
            node: NodeId::from_bytes([1; 32]),
            name: "hub".parse().unwrap(),
            role: Role::Aggregator,
            not_after: Timestamp(2),
        };
        let book = MemberBook::new(id);
        book.say(&organiser, Timestamp(1), Ruling::Admit(certificate))
            .unwrap();
        book.save(&joined.path().join(MEMBERS_FILE)).unwrap();
        let joined = |organiser| check(&config(joined.path(), organiser));
        assert!(joined(Some(id)).is_ok());
        let error = joined(None).unwrap_err().to_string();
        assert!(error.contains("this spec names none"), "{error}");
        let of_fresh = |organiser| check(&config(fresh.path(), organiser));
        assert!(of_fresh(None).is_ok());
        let error = of_fresh(Some(id)).unwrap_err();
        assert!(
            matches!(error, RunError::Membership(Absence::Unknown)),
            "{error}"
        );
        let answers = MemberConfig {
            organiser: Some("organiser".into()),
            ..config(fresh.path(), Some(id))
        };
        assert!(check(&answers).is_ok());
        assert_eq!(std::fs::read_dir(fresh.path()).unwrap().count(), 0);
    }
}
