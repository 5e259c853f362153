//! Whose the files are that are written here.
//!
//! An administrator runs commands as root in the folder of a service that runs as another user. The service must still be able
//! to read what such a command has written. Whatever takes the place of a file keeps its owner. What root makes in somebody
//! else's folder is that one's.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

/// The user who may give files away.
const ROOT: u32 = 0;

/// Gives a draft the owner and the group of the file whose place it is to take. Of a new file they are those of its
/// folder, if root makes it.
pub fn keep(draft: &File, place: &Path) {
    let Ok(made) = draft.metadata() else { return };
    match fs::metadata(place) {
        // Nobody but root could give it back.
        Ok(before) if made.uid() == ROOT || made.uid() == before.uid() => {
            hand_over(draft, &made, &before, place);
        }
        Ok(_) => {}
        Err(_) => of_its_folder(draft, place),
    }
}

/// Gives what root has made, or left behind, in the folder of somebody else to the owner of that folder.
pub fn of_its_folder(file: &File, place: &Path) {
    let Ok(made) = file.metadata() else { return };
    let above = place.parent().filter(|path| !path.as_os_str().is_empty());
    let Ok(folder) = fs::metadata(above.unwrap_or(Path::new("."))) else {
        return;
    };
    if made.uid() == ROOT && folder.uid() != ROOT {
        hand_over(file, &made, &folder, place);
    }
}

/// Makes a folder, and those above it that are missing. In the folder of somebody else root makes them for that one.
///
/// # Errors
/// As the disk does.
pub fn make_folders(folder: &Path) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(folder)?;
    // The outermost first: the owner of each is that of the one around it.
    for path in missing.into_iter().rev() {
        if let Ok(made) = File::open(path) {
            of_its_folder(&made, path);
        }
    }
    Ok(())
}

/// Gives a file the owner of another one. The file stays where that is not allowed, and a line says what to do.
fn hand_over(file: &File, made: &Metadata, model: &Metadata, place: &Path) {
    let (user, group) = (model.uid(), model.gid());
    if (made.uid(), made.gid()) == (user, group) {
        return;
    }
    let Err(error) = fchown(file, Some(user), Some(group)) else {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;
    use crate::whole_file;

    /// A user and a group that need not exist.
    const SERVICE: (u32, u32) = (4711, 4712);

    fn owner(path: &Path) -> (u32, u32) {
        let metadata = fs::metadata(path).unwrap();
        (metadata.uid(), metadata.gid())
    }

    /// Nobody but root can give files away, so others see nothing of this.
    fn given_away(path: &Path) -> bool {
        chown(path, Some(SERVICE.0), Some(SERVICE.1)).is_ok()
    }

    #[test]
    fn a_file_that_root_rewrites_stays_that_of_its_service() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.toml");
        whole_file::write(&path, b"first").unwrap();
        let own = owner(&path);
        if given_away(&path) {
            whole_file::write(&path, b"second").unwrap();
            assert_eq!(owner(&path), SERVICE);
        }
        let new = folder.path().join("new");
        whole_file::write(&new, b"in a folder of one's own").unwrap();
        assert_eq!(owner(&new), own);
    }

    #[test]
    fn what_root_makes_in_the_folder_of_a_service_is_for_the_service() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("ward/state");
        let is_given = given_away(folder.path());
        make_folders(&inner).unwrap();
        let path = inner.join("port");
        whole_file::write(&path, b"4001").unwrap();
        make_folders(&inner).unwrap();
        if is_given {
            for path in [&folder.path().join("ward"), &inner, &path] {
                assert_eq!(owner(path), SERVICE, "{}", path.display());
            }
        }
        assert_eq!(fs::read(&path).unwrap(), b"4001");
    }
}
