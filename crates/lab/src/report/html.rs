//! The pieces of a page: frame, style, tables and figures. [`super::page`] fills them.

use super::svg::{self, Plot};
use super::words::{ABSENT, escape};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--paper:#fff;--card:#f6f8fa;--rule:#d8dee4;--warn:#8a4600;--link:#0059a8}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--paper:#0d1117;--card:#161b22;\
--rule:#2a313a;--warn:#f0b060;--link:#6cb6ff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1060px;padding:24px 20px 60px;background:var(--paper);color:var(--ink);\
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:21px;margin:44px 0 4px;padding-top:14px;border-top:2px solid var(--rule)}
h3{font-size:16px;margin:28px 0 8px}p{margin:6px 0 12px}a{color:var(--link)}.soft,figcaption{color:var(--soft)}
.warn{color:var(--warn);font-weight:600}
dl.numbers{display:grid;grid-template-columns:repeat(auto-fill,minmax(230px,1fr));gap:10px;margin:14px 0}
dl.numbers div{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 14px}
dl.numbers dt{font-size:13px;font-weight:600}dl.numbers dd{margin:0}
dl.numbers dd.value{font-size:25px;font-weight:600;font-variant-numeric:tabular-nums}
dl.numbers dd.means{font-size:12.5px;line-height:1.35;color:var(--soft)}
figure{margin:22px 0;break-inside:avoid}figure svg{display:block;width:100%;height:auto}figcaption{font-size:13px;margin:4px 0 0 8px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;margin:6px 0}
th,td{padding:4px 10px;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
th{font-weight:600;vertical-align:bottom}td.n,th.n{text-align:right}td.n,td a{white-space:nowrap}
details{margin:12px 0}summary{cursor:pointer;font-weight:600}
pre,code{font:13px/1.45 ui-monospace,'DejaVu Sans Mono',monospace}pre{background:var(--card);border:1px solid var(--rule);\
border-radius:8px;padding:10px 14px;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
@media print{details::details-content{content-visibility:visible;block-size:auto}}
@media print{body{max-width:none;padding:0}h2{break-before:page}h2.first{break-before:auto}\
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
";

/// Returns a whole page. The content-security policy is a promise: nothing is fetched, no script runs.
pub(crate) fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"generator\" content=\"fednode {}\">\n<title>{title}</title>\n<style>\n{STYLE}{}</style>\n</head>\n\
         <body>\n{body}</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
        svg::STYLE
    )
}

/// A column of a table.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    heading: String,
    class: &'static str,
}

/// Returns a column of words; the heading is text.
pub(crate) fn words(heading: &str) -> Column {
    Column {
        heading: escape(heading),
        class: "",
    }
}

/// Returns a column of numbers; the heading is text.
pub(crate) fn numbers(heading: &str) -> Column {
    Column {
        heading: escape(heading),
        class: " class=\"n\"",
    }
}

/// Returns a table; the cells are markup.
pub(crate) fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let cells = |kind: &str, texts: Vec<&str>| -> String {
        let cell =
            |(column, text): (&Column, &str)| format!("<{kind}{}>{text}</{kind}>", column.class);
        format!(
            "<tr>{}</tr>\n",
            columns.iter().zip(texts).map(cell).collect::<String>()
        )
    };
    let head = cells(
        "th",
        columns
            .iter()
            .map(|column| column.heading.as_str())
            .collect(),
    );
    let body: String = rows
        .iter()
        .map(|row| cells("td", row.iter().map(String::as_str).collect()))
        .collect();
    format!(
        "<div class=\"wide\"><table>\n<thead>{head}</thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )
}

/// Returns a table without its empty columns.
pub(crate) fn table_of_known(columns: &[Column], rows: &[Vec<String>]) -> String {
    let is_known = |at: &usize| {
        rows.iter()
            .any(|row| row.get(*at).is_some_and(|cell| cell != ABSENT))
    };
    let kept: Vec<usize> = (0..columns.len()).filter(is_known).collect();
    let pick = |row: &Vec<String>| kept.iter().filter_map(|at| row.get(*at).cloned()).collect();
    let columns: Vec<Column> = kept.iter().map(|at| columns[*at].clone()).collect();
    table(&columns, &rows.iter().map(pick).collect::<Vec<_>>())
}

/// Returns a number that stands out, with its name and meaning.
pub(crate) fn number(name: &str, value: &str, means: &str) -> String {
    format!(
        "<div><dt>{}</dt><dd class=\"value\">{value}</dd><dd class=\"means\">{}</dd></div>\n",
        escape(name),
        escape(means)
    )
}

/// Returns a plot with its caption.
pub(crate) fn figure(plot: &Plot) -> String {
    format!(
        "<figure>{}<figcaption>{}</figcaption></figure>\n",
        plot.inline(),
        escape(&plot.description)
    )
}

/// Returns a section that a click opens.
pub(crate) fn details(summary: &str, body: &str) -> String {
    format!(
        "<details><summary>{}</summary>\n{body}</details>\n",
        escape(summary)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fetches_nothing_and_its_headings_are_text() {
        let page = page(
            "<runs>",
            &table(
                &[words("a<b"), numbers("n")],
                &[vec!["x".into(), "1".into()]],
            ),
        );
        assert!(
            page.contains("<title>&lt;runs&gt;</title>")
                && page.contains("<th>a&lt;b</th><th class=\"n\">n</th>")
        );
        assert!(page.contains("<td>x</td><td class=\"n\">1</td>"), "{page}");
        let columns = [words("a"), numbers("b"), numbers("c")];
        let rows =
            [["x", ABSENT, "1"], ["y", ABSENT, ABSENT]].map(|row| row.map(str::to_owned).to_vec());
        let table = table_of_known(&columns, &rows);
        assert!(
            table.contains("<th>a</th><th class=\"n\">c</th>")
                && table.contains("<td>y</td><td class=\"n\">–</td>")
        );
        for foreign in ["<script", "http://", "https://", "src="] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}
