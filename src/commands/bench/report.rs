//! What was measured, for people and for `baton plan --latency`.

use super::{CHANGED, COLD, WARM};
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;

/// The size of a course's usual cells when a GPU is handed over to the next person.
const HAND_OVER_MB: u64 = 100;

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) megabytes: u64,
    pub(super) state: &'static str,
    pub(super) runs: usize,
    #[serde(flatten)]
    pub(super) seconds: Parts,
}

/// The parts of a cell's time in the notebook, in seconds.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Parts {
    pub(super) snapshot: f64,
    #[serde(rename = "move")]
    pub(super) move_: f64,
    pub(super) wait: f64,
    pub(super) run: f64,
    #[serde(rename = "return")]
    pub(super) return_: f64,
    pub(super) total: f64,
    /// All but the run.
    pub(super) adds: f64,
}

type Part = fn(&Parts) -> f64;

const COLUMNS: [(&str, Part); 7] = [
    ("snapshot", |parts| parts.snapshot),
    ("move", |parts| parts.move_),
    ("wait", |parts| parts.wait),
    ("run", |parts| parts.run),
    ("return", |parts| parts.return_),
    ("total", |parts| parts.total),
    ("adds", |parts| parts.adds),
];

/// The median of each part.
pub(super) fn medians(cells: impl Iterator<Item = Parts>) -> Parts {
    let cells: Vec<Parts> = cells.collect();
    let [snapshot, move_, wait, run, return_, total, adds] =
        COLUMNS.map(|(_, part)| median(cells.iter().map(part)));
    Parts {
        snapshot,
        move_,
        wait,
        run,
        return_,
        total,
        adds,
    }
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    f64::midpoint(values[last / 2], values[last.div_ceil(2)])
}

pub(super) fn json(rows: &[Row]) -> String {
    let answer = json!({
        "rows": rows,
        "hand_over_seconds": hand_over(rows),
        "cold_seconds": cold(rows),
    });
    format!("{answer}\n")
}

pub(super) fn text(rows: &[Row]) -> String {
    let heads = COLUMNS.map(|(name, _)| format!("{name:>11}")).concat();
    let mut out = format!("{:>7}  {:<12}{heads}\n", "data", "state");
    for row in rows {
        let size = match row.megabytes {
            0 => "none".to_owned(),
            megabytes => format!("{megabytes} MB"),
        };
        let cells = COLUMNS.map(|(_, part)| format!("{:>11}", shown(part(&row.seconds))));
        let _ = writeln!(out, "{size:>7}  {:<12}{}", row.state, cells.concat());
    }
    let hand_over_ms = (hand_over(rows) * 1e3).round().max(1.0);
    let _ = writeln!(
        out,
        "\nCold: the first cell of a notebook, including the start of its session. All other rows show medians.\n\
         What a cell adds: its total time without its run time.\n\
         hint: baton plan --hand-over {hand_over_ms}ms"
    );
    out
}

/// The seconds for which a GPU waits for the next person's cell: what moves if 1 % of the usual data changed.
fn hand_over(rows: &[Row]) -> f64 {
    let changed = usual(rows, CHANGED).or_else(|| usual(rows, WARM));
    changed.map_or(0.0, |row| row.seconds.move_ + row.seconds.return_)
}

/// The seconds that a notebook's first cell adds if its session has not started.
fn cold(rows: &[Row]) -> f64 {
    usual(rows, COLD).map_or(0.0, |row| row.seconds.adds)
}

/// The largest usual cell in this state.
fn usual<'rows>(rows: &'rows [Row], state: &str) -> Option<&'rows Row> {
    let rows = rows.iter();
    rows.filter(|row| row.state == state && row.megabytes <= HAND_OVER_MB)
        .max_by_key(|row| row.megabytes)
}

fn shown(seconds: f64) -> String {
    match seconds < 1.0 {
        true => format!("{:.1} ms", seconds * 1e3),
        false => format!("{seconds:.2} s"),
    }
}
