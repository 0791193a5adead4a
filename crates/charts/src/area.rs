//! One value over time, as a filled area without axes.

use crate::{TOP, WIDTH};
use maud::{Markup, html};

const BASE: f64 = 100.0;

/// Draws times and values. A chart without points is empty.
#[must_use]
pub fn area(points: &[(i64, u64)], label: &str) -> Markup {
    let (Some((first_ms, _)), Some((last_ms, _))) = (points.first(), points.last()) else {
        return html! {};
    };
    let peak = points.iter().map(|(_, value)| *value).max().unwrap_or(0);
    let span_ms = (last_ms - first_ms).max(1) as f64;
    let x = |ms: i64| (ms - first_ms) as f64 / span_ms * WIDTH;
    let y = |value: u64| TOP + (BASE - TOP) * (1.0 - value as f64 / peak.max(1) as f64);
    let line: Vec<String> = points
        .iter()
        .map(|(ms, value)| format!("{:.1} {:.1}", x(*ms), y(*value)))
        .collect();
    let line = line.join("L");
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " 104" } preserveAspectRatio="none" role="img" aria-label=(label) {
            path.area d={ "M0 100L" (line) "L" (format!("{:.1}", x(*last_ms))) " 100Z" } {}
            path.line d={ "M" (line) } {}
        }
    }
}
