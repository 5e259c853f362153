//! From folders to pages: what is in the files is in the report.

use super::page::{self, Shown};
use super::{compare, figures, fixtures, load};

#[test]
fn a_report_holds_the_numbers_of_its_runs() {
    let folder = tempfile::tempdir().unwrap();
    for seed in [1, 2] {
        let path = folder.path().join(format!("a&b-seed{seed}"));
        fixtures::write(&path, &fixtures::summary(seed), &fixtures::records(seed));
    }
    let runs = load::runs(&[folder.path().to_owned()]).unwrap().learned;
    let shown: Vec<Shown<'_>> = runs
        .iter()
        .map(|run| Shown {
            run,
            plots: figures::all(run),
            pools: compare::pools(&run.name, std::iter::once(run)),
        })
        .collect();
    let comparison = compare::compare(&runs, Some(0.7));
    let page = page::page(&shown, Some(&comparison), (0, ""));
    // Seed 1: (10 · 0.501 + 20 · 0.751 + 30 · 0.901) / 60, and the plain mean.
    for number in ["78.4 %", "71.8 %", "50.1 %", "25.0 %", "65.9 %"] {
        assert!(
            page.contains(&format!("<dd class=\"value\">{number}</dd>")),
            "{number}: {page}"
        );
    }
    assert!(page.contains("78.5 ± 0.1 %"), "mean over seeds: {page}");
    assert!(
        page.contains("the pool’s choice − own module") && page.contains("sign test, n = 6"),
        "{page}"
    );
    assert!(
        page.contains("&lt;b&gt;digits &amp; co&lt;/b&gt;") && !page.contains("<b>digits"),
        "{page}"
    );
    assert!(page.contains("None but the seed.") && page.contains("a&amp;b-seed1"));
    assert!(!page.contains("NaN") && !page.contains("<script"), "{page}");
    let foreign = page.replace("http://www.w3.org/2000/svg", "");
    assert!(
        !foreign.contains("http://") && !foreign.contains("https://"),
        "{page}"
    );
    assert_eq!(
        page.matches("<svg").count(),
        19,
        "nine plots of each run, one of both"
    );
}

#[test]
fn a_run_under_way_says_so() {
    let folder = tempfile::tempdir().unwrap();
    fixtures::write(
        folder.path(),
        &fixtures::summary(1),
        &fixtures::records(1)[..4],
    );
    std::fs::remove_file(folder.path().join("summary.json")).unwrap();
    let runs = load::runs(&[folder.path().to_owned()]).unwrap().learned;
    let shown = [Shown {
        run: &runs[0],
        plots: figures::all(&runs[0]),
        pools: vec![],
    }];
    let page = page::page(&shown, None, (0, ""));
    assert!(
        page.contains("Under way")
            && page.contains("Majority-class floor</dt><dd class=\"value\">–</dd>"),
        "{page}"
    );
}
