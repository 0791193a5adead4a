//! A report as one self-contained file: sentences, a table, plots.

use baton_plan::Plot;
use std::fmt::Write;

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
        let title = self.title;
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        for sentence in &self.sentences {
            let _ = writeln!(out, "<p>{}</p>", escaped(sentence));
        }
        out.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
        for head in &self.heads {
            let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(head));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for cell in row {
                let _ = write!(out, "<td>{}</td>", escaped(cell));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody>\n</table></div>\n");
        for plot in &self.plots {
            let _ = writeln!(out, "<h2>{}</h2>\n{}", escaped(&plot.title), plot.svg());
        }
        out.push_str("</body>\n</html>\n");
        out
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
