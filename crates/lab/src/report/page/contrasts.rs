//! The part of a page about differences over pairs: their table, and how they are tested.

use crate::report::compare::Contrast;
use crate::report::html::{self, numbers, words};
use crate::report::stats::{FEWEST_FOR_WILCOXON, Paired, RankTest};
use crate::report::words::{ABSENT, decimal, escape, points, probability};

/// Writes a table of contrasts.
pub(super) fn table(all: &[Contrast]) -> String {
    let columns = [
        words(""),
        words("difference of"),
        numbers("pairs"),
        numbers("mean ± s (points)"),
        numbers("better"),
        numbers("worse"),
        numbers("equal"),
        numbers("t (df)"),
        numbers("p of t"),
        words("by ranks"),
        numbers("p"),
    ];
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let note = "<p class=\"soft\">Every node counts the same; see <a href=\"#tests\">about the tests</a>.</p>\n";
    html::table(&columns, &rows) + note
}

/// Explains how the contrasts are tested.
pub(super) fn about_the_tests() -> String {
    format!(
        "<h2 id=\"tests\">About the tests</h2>\n<p>The t-test is paired and two-sided. The second test is Wilcoxon’s signed \
         ranks (normal approximation, corrected for ties, differences of 0 dropped). With fewer than {FEWEST_FOR_WILCOXON} \
         differences other than 0 it is the exact sign test. No p is corrected for the number of tests. The nodes of one run \
         learn from each other, so their differences are not quite independent. Read a p near a threshold with that in \
         mind.</p>\n"
    )
}

fn row(contrast: &Contrast) -> Vec<String> {
    let mut cells = vec![escape(&contrast.group), escape(&contrast.what)];
    let Some(paired) = &contrast.paired else {
        cells.push("no pairs".into());
        cells.resize(11, ABSENT.into());
        return cells;
    };
    let Paired {
        pairs,
        mean,
        deviation,
        better,
        worse,
        equal,
        t_test,
        rank_test,
    } = paired;
    let deviation = deviation.map_or(String::new(), |deviation| {
        format!(" ± {:.2}", 100.0 * deviation)
    });
    cells.extend([pairs.to_string(), points(*mean) + &deviation]);
    cells.extend([better, worse, equal].map(usize::to_string));
    cells.extend([
        t_test.map_or(ABSENT.into(), |test| {
            format!("{} ({})", decimal(test.t, 2), test.degrees_of_freedom)
        }),
        probability(t_test.map(|test| test.p)),
        match rank_test {
            None => ABSENT.into(),
            Some(RankTest::Wilcoxon { n, w, z, .. }) => {
                format!("Wilcoxon W = {w:.1}, z = {}, n = {n}", decimal(*z, 2))
            }
            Some(RankTest::Sign { n, .. }) => format!("sign test, n = {n}"),
        },
        probability(rank_test.map(RankTest::p)),
    ]);
    cells
}
