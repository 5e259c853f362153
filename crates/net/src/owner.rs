//! Whose the secret files are that are written here.
//!
//! An administrator runs commands as root in the folder of a service that runs as another user. The service must still
//! be able to read what such a command has written. `fednode-store` has the same for its own files, since neither of
//! the two crates uses the other.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

/// The user who may give files away.
const ROOT: u32 = 0;

/// Gives a draft the owner and the group of the file whose place it is to take. Of a new file they are those of its
/// folder, if root makes it. The draft stays where that is not allowed, and a line says what to do.
pub(crate) fn keep(draft: &File, place: &Path) {
    let Ok(made) = draft.metadata() else { return };
    let Some(model) = model(&made, place) else {
        return;
    };
    let (user, group) = (model.uid(), model.gid());
    if (made.uid(), made.gid()) == (user, group) {
        return;
    }
    let Err(error) = fchown(draft, Some(user), Some(group)) else {
        return;
    };
    let path = place.display();
    let line = format!(
        "`{path}` cannot be given to its owner ({error}): if a service needs it, run `chown {user}:{group} {path}`"
    );
    // A command without a log says it to whoever has typed it.
    if tracing::enabled!(tracing::Level::WARN) {
        tracing::warn!("{line}");
    } else {
        _ = writeln!(io::stderr(), "warning: {line}");
    }
}

/// Returns the file or the folder whose owner a draft gets; nothing if it is to stay that of whoever writes it.
fn model(made: &Metadata, place: &Path) -> Option<Metadata> {
    if let Ok(before) = fs::metadata(place) {
        // Nobody but root could give it back.
        let may_give = made.uid() == ROOT || made.uid() == before.uid();
        return may_give.then_some(before);
    }
    let above = place.parent().filter(|path| !path.as_os_str().is_empty());
    let folder = fs::metadata(above.unwrap_or(Path::new("."))).ok()?;
    (made.uid() == ROOT && folder.uid() != ROOT).then_some(folder)
}
