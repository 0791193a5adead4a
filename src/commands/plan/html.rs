//! A report as one self-contained file: sentences, a table, plots.

use baton_charts::Plot;
use maud::{DOCTYPE, PreEscaped, html};

pub(super) struct Report {
    pub(super) title: &'static str,
    pub(super) sentences: Vec<String>,
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    pub(super) plots: Vec<Plot>,
}

const STYLE: &str = "\
:root { color-scheme: light dark; --text: light-dark(#1b1f24, #e6e8eb); --ground: light-dark(#fff, #16181d);
  --quiet: light-dark(#57606a, #9aa4b1); --line: light-dark(#d5d9de, #343a43); }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 52rem; background: var(--ground); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.125rem; margin: 2rem 0 .5rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: .25rem 1rem .25rem 0; border-top: 1px solid var(--line); text-align: right; font-weight: 400;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--quiet); font-size: .875rem; }
.plot { display: block; width: 100%; height: auto; } .plot text { fill: var(--text); font: 12px system-ui, sans-serif; }
.plot .grid { stroke: var(--line); }
.plot .line-1 { stroke: light-dark(#0550ae, #79c0ff); } .plot .line-2 { stroke: light-dark(#7a4d00, #e8b34b); }
.plot .line-3 { stroke: light-dark(#116329, #6fdd8b); } .plot .line-4 { stroke: light-dark(#a40e26, #ff8182); }
.plot .line-5 { stroke: light-dark(#6639ba, #c297ff); } .plot .line-6 { stroke: light-dark(#1b7c83, #5fd7dd); }
@media (max-width: 40rem) { .plot text { font-size: 18px; } }
";

impl Report {
    pub(super) fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (self.title) }
                    @for sentence in &self.sentences { p { (sentence) } }
                    div.scroll { table {
                        thead { tr { @for head in &self.heads { th scope="col" { (head) } } } }
                        tbody { @for row in &self.rows { tr { @for cell in row { td { (cell) } } } } }
                    } }
                    @for plot in &self.plots {
                        h2 { (plot.title) }
                        (plot.svg())
                    }
                }
            }
        };
        page.into_string()
    }
}
