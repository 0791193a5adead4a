//! Charts as SVG. Each is next to a table or a sentence with the same data.

use super::time::Zone;
use crate::words;
use baton_broker_store::Span;
use maud::{Markup, html};

const DAY_MS: i64 = 24 * 3_600_000;
const STEP_MS: i64 = 10 * 60_000;
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 30.0;
const BOTTOM: f64 = 20.0;
/// The width of a duration's text.
const WORDS_WIDTH: f64 = 80.0;

/// Running and waiting cells of the last day.
pub(super) fn day(spans: &[Span], now_ms: i64, zone: &Zone) -> Markup {
    let most = |span: &Span| span.running.max(span.waiting as f64).max(span.slots as f64);
    let top = round_up(spans.iter().map(most).fold(1.0, f64::max));
    let x = |ms: i64| LEFT + (WIDTH - LEFT) * (ms - (now_ms - DAY_MS)) as f64 / DAY_MS as f64;
    let y = |value: f64| 8.0 + (HEIGHT - BOTTOM - 8.0) * (1.0 - value / top);
    let line =
        |value: fn(&Span) -> f64| path(spans, |span| (x(span.start_ms).max(LEFT), y(value(span))));
    let running = line(|span| span.running);
    let waiting = line(|span| span.waiting as f64);
    let slots = line(|span| span.slots as f64);
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label="Waiting and running cells of the last 24 hours; the table below has the same data" {
            @for share in [0.0, 0.5, 1.0] {
                line.grid x1=(LEFT) x2=(WIDTH) y1=(y(top * share)) y2=(y(top * share)) {}
                text x=(LEFT - 6.0) y=(y(top * share) + 4.0) text-anchor="end" { (top * share) }
            }
            @for hours in [24, 18, 12, 6] {
                @let at = now_ms - i64::from(hours) * 3_600_000;
                text x=(x(at)) y=(HEIGHT - 4.0) data-clock=[zone.for_browsers(at)] { (zone.clock_text(at)) }
            }
            text x=(WIDTH) y=(HEIGHT - 4.0) text-anchor="end" { "now" }
            path.area d=(closed(spans, &running, x, y(0.0))) {}
            path."line wait" d=(waiting) {}
            path.line d=(running) {}
            path.limit fill="none" d=(slots) {}
        }
        ul.key {
            li { svg viewBox="0 0 12 12" aria-hidden="true" { rect.run width="12" height="12" rx="3" {} } "running" }
            li { svg viewBox="0 0 12 12" aria-hidden="true" { rect.wait width="12" height="12" rx="3" {} } "waiting" }
            li { svg viewBox="0 0 12 12" aria-hidden="true" { path.limit d="M0 6H12" {} } "slots" }
        }
    }
}

/// An SVG path. Each piece without a gap begins with `M`.
fn path(spans: &[Span], point: impl Fn(&Span) -> (f64, f64)) -> String {
    let mut path = String::new();
    let mut before: Option<i64> = None;
    for span in spans {
        let joined = before.is_some_and(|before| span.start_ms - before <= 2 * STEP_MS);
        let (x, y) = point(span);
        path.push_str(&format!("{}{x:.1} {y:.1}", if joined { 'L' } else { 'M' }));
        before = Some(span.start_ms);
    }
    path
}

fn closed(spans: &[Span], line: &str, x: impl Fn(i64) -> f64, base: f64) -> String {
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
        return String::new();
    };
    // Connects the pieces directly, because a gap is hardly visible in the area.
    let line = line.replacen('M', "L", usize::MAX);
    let (first, last) = (x(first.start_ms).max(LEFT), x(last.start_ms).max(LEFT));
    format!("M{first:.1} {base:.1}{line}L{last:.1} {base:.1}Z")
}

fn round_up(value: f64) -> f64 {
    let steps = [2.0, 4.0, 6.0, 8.0, 10.0, 16.0, 20.0, 30.0, 40.0, 60.0, 80.0];
    let found = steps.into_iter().find(|step| *step >= value);
    found.unwrap_or_else(|| (value / 100.0).ceil() * 100.0)
}

/// A bar that shows parts of a whole, each with its class and its text.
pub(super) fn parts(parts: &[(&'static str, u64, String)], whole: u64, label: &str) -> Markup {
    let whole = whole.max(1) as f64;
    let mut at = 0.0;
    let mut bars = Vec::new();
    for (class, size, words) in parts {
        let width = (*size as f64 / whole * 100.0).min(100.0 - at);
        bars.push((*class, at, width, words));
        at += width;
    }
    html! {
        svg viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.track width="100" height="4" {}
            @for (class, x, width, words) in bars {
                rect.(class) x=(format!("{x:.2}")) width=(format!("{width:.2}")) height="4" { title { (words) } }
            }
        }
    }
}

/// The memory of a session while a cell ran.
pub(super) fn memory(points: &[(i64, u64)]) -> Markup {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return html! {};
    };
    let peak = points.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let span = (last.0 - first.0).max(1) as f64;
    let x = |ms: i64| (ms - first.0) as f64 / span * WIDTH;
    let y = |bytes: u64| 8.0 + (100.0 - 8.0) * (1.0 - bytes as f64 / peak.max(1) as f64);
    let line: Vec<String> = points
        .iter()
        .map(|(ms, bytes)| format!("{:.1} {:.1}", x(*ms), y(*bytes)))
        .collect();
    let line = line.join("L");
    let words = format!(
        "Memory of the session, from {} to {}, {} at most",
        baton_humanize::bytes(first.1),
        baton_humanize::bytes(last.1),
        baton_humanize::bytes(peak)
    );
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " 104" } preserveAspectRatio="none" role="img" aria-label=(words) {
            path.area d={ "M0 100L" (line) "L" (format!("{:.1}", x(last.0))) " 100Z" } {}
            path.line d={ "M" (line) } {}
        }
        p."quiet small" { (words) }
    }
}

/// One bar for each day, with its duration.
pub(super) fn days(days: &[(String, u64)]) -> Markup {
    let top = days.iter().map(|(_, ms)| *ms).max().unwrap_or(0).max(1) as f64;
    let each = WIDTH / days.len().max(1) as f64;
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label="GPU time by day; the table has the same data" {
            line.grid x1="0" x2=(WIDTH) y1=(HEIGHT - BOTTOM) y2=(HEIGHT - BOTTOM) {}
            @for (index, (day, ms)) in days.iter().enumerate() {
                @let height = (HEIGHT - BOTTOM - 18.0) * *ms as f64 / top;
                @let x = each * index as f64;
                @let words = words::span(*ms);
                rect.run x=(format!("{:.1}", x + each * 0.2)) y=(format!("{:.1}", HEIGHT - BOTTOM - height)) width=(format!("{:.1}", each * 0.6)) height=(format!("{height:.1}")) rx="3" {}
                @if each >= WORDS_WIDTH {
                    text x=(format!("{:.1}", x + each / 2.0)) y=(format!("{:.1}", HEIGHT - BOTTOM - height - 5.0)) text-anchor="middle" { (words) }
                }
                text x=(format!("{:.1}", x + each / 2.0)) y=(HEIGHT - 4.0) text-anchor="middle" { (day) }
            }
        }
    }
}
