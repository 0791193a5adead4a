//! Several values of the last hours, as lines.

use crate::{BOTTOM, HEIGHT, TOP, WIDTH};
use maud::{Markup, html};

/// The least room for the numbers at the left, and that of each digit, at the font size of the pages.
const LEFT: f64 = 30.0;
const DIGIT: f64 = 9.0;

pub struct Timeline<'a> {
    /// Describes the chart for people who cannot see it.
    pub label: &'a str,
    /// The right end.
    pub now_ms: i64,
    pub span_ms: i64,
    /// A longer time without a value interrupts a line.
    pub gap_ms: i64,
    pub marks: Vec<Mark>,
    /// Later ones cover earlier ones.
    pub series: Vec<Series>,
}

/// A text below the lines, which begins at its time.
pub struct Mark {
    pub at_ms: i64,
    pub text: String,
    /// The time that the page's script writes in the browser's zone.
    pub clock: Option<i64>,
}

pub struct Series {
    pub class: &'static str,
    /// Whether the area below the line is filled.
    pub filled: bool,
    /// Times and values.
    pub points: Vec<(i64, f64)>,
}

impl Timeline<'_> {
    #[must_use]
    pub fn svg(&self) -> Markup {
        let points = self.series.iter().flat_map(|series| &series.points);
        let top = round_up(points.map(|(_, value)| *value).fold(1.0, f64::max));
        let left = LEFT.max(12.0 + DIGIT * top.to_string().len() as f64);
        let from_ms = self.now_ms - self.span_ms;
        let x = |ms: i64| left + (WIDTH - left) * (ms - from_ms) as f64 / self.span_ms as f64;
        let y = |value: f64| TOP + (HEIGHT - BOTTOM - TOP) * (1.0 - value / top);
        let lines = self.series.iter().map(|series| {
            let points = series.points.iter();
            let points = points.map(|(ms, value)| (*ms, x(*ms).max(left), y(*value)));
            (series, points.collect::<Vec<_>>())
        });
        let lines: Vec<_> = lines.collect();
        html! {
            svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.label) {
                @for share in [0.0, 0.5, 1.0] {
                    line.grid x1=(left) x2=(WIDTH) y1=(y(top * share)) y2=(y(top * share)) {}
                    text x=(left - 6.0) y=(y(top * share) + 4.0) text-anchor="end" { (top * share) }
                }
                @for mark in &self.marks {
                    text x=(x(mark.at_ms)) y=(HEIGHT - 4.0) data-clock=[mark.clock] { (mark.text) }
                }
                text x=(WIDTH) y=(HEIGHT - 4.0) text-anchor="end" { "now" }
                @for (_, points) in lines.iter().filter(|(series, _)| series.filled) {
                    path.area d=(closed(points, y(0.0))) {}
                }
                @for (series, points) in &lines {
                    path class=(series.class) fill="none" d=(self.path(points)) {}
                }
            }
        }
    }

    /// An SVG path. Each piece without a gap begins with `M`.
    fn path(&self, points: &[(i64, f64, f64)]) -> String {
        let mut path = String::new();
        let mut before: Option<i64> = None;
        for (ms, x, y) in points {
            let joined = before.is_some_and(|before| ms - before <= self.gap_ms);
            path.push_str(&format!("{}{x:.1} {y:.1}", if joined { 'L' } else { 'M' }));
            before = Some(*ms);
        }
        path
    }
}

/// The area between a line and the base, also across gaps, which are hardly visible in it.
fn closed(points: &[(i64, f64, f64)], base: f64) -> String {
    let (Some((_, first, _)), Some((_, last, _))) = (points.first(), points.last()) else {
        return String::new();
    };
    let line = points.iter().map(|(_, x, y)| format!("L{x:.1} {y:.1}"));
    let line: String = line.collect();
    format!("M{first:.1} {base:.1}{line}L{last:.1} {base:.1}Z")
}

fn round_up(value: f64) -> f64 {
    let steps = [2.0, 4.0, 6.0, 8.0, 10.0, 16.0, 20.0, 30.0, 40.0, 60.0, 80.0];
    let found = steps.into_iter().find(|step| *step >= value);
    found.unwrap_or_else(|| (value / 100.0).ceil() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::{Series, Timeline};

    #[test]
    fn long_numbers_have_room_at_the_left() {
        for (value, left) in [(8.0, "30"), (80.0, "30"), (120.0, "39"), (2000.0, "48")] {
            let chart = Timeline {
                label: "cells",
                now_ms: 100,
                span_ms: 100,
                gap_ms: 20,
                marks: Vec::new(),
                series: vec![Series {
                    class: "run",
                    filled: false,
                    points: vec![(0, value)],
                }],
            };
            let svg = chart.svg().into_string();
            assert!(svg.contains(&format!("x1=\"{left}\"")), "{svg}");
        }
    }

    #[test]
    fn a_gap_interrupts_the_line_but_not_its_area() {
        let series = |class, filled, points| Series {
            class,
            filled,
            points,
        };
        let chart = Timeline {
            label: "cells",
            now_ms: 100,
            span_ms: 100,
            gap_ms: 20,
            marks: Vec::new(),
            series: vec![
                series("wait", false, Vec::new()),
                series("run", true, vec![(-5, 0.0), (10, 1.0), (100, 2.0)]),
            ],
        };
        let svg = chart.svg().into_string();
        assert!(
            svg.contains("d=\"M30.0 130.0L99.0 69.0M720.0 8.0\""),
            "{svg}"
        );
        assert!(
            svg.contains("d=\"M30.0 130.0L30.0 130.0L99.0 69.0L720.0 8.0L720.0 130.0Z\""),
            "{svg}"
        );
    }
}
