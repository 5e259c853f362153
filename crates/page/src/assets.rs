//! The page itself: every file of `assets/`, inside the binary.

/// One row per file of `assets/`, by its path there.
macro_rules! table {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!("../assets/", $path)))),*]
    };
}

const ASSETS: &[(&str, &[u8])] = table![
    "app.css",
    "app.js",
    "bars.js",
    "bundle-worker.js",
    "bundle.js",
    "charts.js",
    "curves.js",
    "dom.js",
    "format.js",
    "frame.js",
    "graph.js",
    "header.js",
    "heat.js",
    "icon.svg",
    "index.html",
    "main.js",
    "nav.js",
    "rounds.js",
    "sources.js",
    "state.js",
    "stream-worker.js",
    "stream.js",
    "tiles.js",
    "vendor/uplot/LICENSE",
    "vendor/uplot/uPlot.esm.js",
    "vendor/uplot/uPlot.min.css",
    "views/log.js",
    "views/members.js",
    "views/now.js",
    "views/privacy.js",
    "views/traffic.js",
    "views/who.js",
    "views/worth.js",
    "waits.js",
    "words.js",
];

/// Kinds of files, by the end of their names.
const KINDS: [(&str, &str); 5] = [
    (".html", "text/html; charset=utf-8"),
    (".css", "text/css; charset=utf-8"),
    (".js", "text/javascript; charset=utf-8"),
    (".svg", "image/svg+xml"),
    ("LICENSE", "text/plain; charset=utf-8"),
];

/// Returns a file and what kind it is.
pub(crate) fn find(path: &str) -> Option<(&'static str, &'static [u8])> {
    let (_, bytes) = ASSETS.iter().find(|(name, _)| *name == path)?;
    let (_, kind) = KINDS.iter().find(|(end, _)| path.ends_with(end))?;
    Some((kind, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn files(folder: &Path, below: &str, into: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path(), &format!("{name}/"), into);
            } else {
                into.insert(name);
            }
        }
    }

    #[test]
    fn every_file_is_in_the_table_and_has_a_kind() {
        let mut there = BTreeSet::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
        files(&folder, "", &mut there);
        let table: BTreeSet<String> = ASSETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(table, there);
        for (name, _) in ASSETS {
            assert!(find(name).is_some(), "{name} is of no known kind");
        }
        assert_eq!(find("../Cargo.toml"), None);
    }

    #[test]
    fn nothing_is_fetched_from_elsewhere_or_written_inline() {
        for (name, bytes) in ASSETS
            .iter()
            .filter(|(name, _)| !name.starts_with("vendor/"))
        {
            let text = std::str::from_utf8(bytes).unwrap();
            for forbidden in [
                "http://",
                "https://",
                "innerHTML",
                "outerHTML",
                "eval(",
                "document.write",
            ] {
                let allowed = "http://www.w3.org/";
                let found = text.replace(allowed, "").contains(forbidden);
                assert!(!found, "{name} has {forbidden}");
            }
            let is_markup = name.ends_with(".html");
            let inline = [" style=\"", "<style", " onclick=", "<script>"];
            assert!(
                !is_markup || inline.iter().all(|part| !text.contains(part)),
                "{name}"
            );
        }
    }
}
