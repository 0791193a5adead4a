//! Curves over two axes.
//!
//! Curves have the classes `line-1` to `line-6` and different dashes, so that they can be
//! distinguished without colours. Their names are below the plot, where they do not cover any curve.

use maud::{Markup, html};

#[derive(Debug, Clone)]
pub struct Plot {
    /// Describes the plot for people who cannot see it.
    pub title: String,
    pub across: Axis,
    pub up: Axis,
    pub curves: Vec<Curve>,
}

#[derive(Debug, Clone)]
pub struct Axis {
    label: String,
    end: f64,
    scale: Scale,
}

#[derive(Debug, Clone, Copy)]
enum Scale {
    Even,
    Times,
}

#[derive(Debug, Clone)]
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 48.0;
const COLOURS: usize = 6;
const DASHES: [&str; 4] = ["none", "8 4", "2 3", "10 3 2 3"];
const LEGEND_COLUMNS: usize = 2;
const LEGEND_STEP: f64 = 22.0;

const SHORTEST: f64 = 0.1;
const TIMES: [(f64, &str); 8] = [
    (SHORTEST, "0.1 s"),
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (36_000.0, "10 h"),
    (864_000.0, "10 days"),
];

impl Plot {
    #[must_use]
    pub fn svg(&self) -> Markup {
        let height = HEIGHT + LEGEND_STEP * self.curves.len().div_ceil(LEGEND_COLUMNS) as f64;
        html! {
            svg.plot viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label=(self.title) {
                title { (self.title) }
                (self.grid())
                @for (index, curve) in self.curves.iter().enumerate() { (self.curve(index, curve)) }
            }
        }
    }

    fn grid(&self) -> Markup {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let (middle, centre) = ((LEFT + right) / 2.0, (TOP + bottom) / 2.0);
        html! {
            @for (value, name) in self.across.ticks() {
                @let x = tenths(self.x(value));
                line.grid x1=(x) y1=(TOP) x2=(x) y2=(bottom) {}
                text x=(x) y=(tenths(bottom + 18.0)) text-anchor="middle" { (name) }
            }
            @for (value, name) in self.up.ticks() {
                @let y = self.y(value);
                line.grid x1=(LEFT) y1=(tenths(y)) x2=(right) y2=(tenths(y)) {}
                text x=(tenths(LEFT - 6.0)) y=(tenths(y + 4.0)) text-anchor="end" { (name) }
            }
            text x=(middle) y=(tenths(HEIGHT - 10.0)) text-anchor="middle" { (self.across.label) }
            text x="14" y=(centre) text-anchor="middle" transform={ "rotate(-90 14 " (centre) ")" } { (self.up.label) }
        }
    }

    /// A curve, and its entry in the legend.
    fn curve(&self, index: usize, curve: &Curve) -> Markup {
        let class = format!("line-{}", index % COLOURS + 1);
        let dashes = DASHES[index % DASHES.len()];
        let points = self.visible(&curve.points).into_iter();
        let points = points.map(|(x, y)| format!("{:.1},{:.1}", self.x(x), self.y(y)));
        let points: Vec<_> = points.collect();
        let column = (WIDTH - LEFT - RIGHT) / LEGEND_COLUMNS as f64;
        let begin = LEFT + column * (index % LEGEND_COLUMNS) as f64;
        let end = begin + 28.0;
        let y = HEIGHT + 8.0 + LEGEND_STEP * (index / LEGEND_COLUMNS) as f64;
        html! {
            polyline class=(class) fill="none" stroke-width="2" stroke-dasharray=(dashes) points=(points.join(" ")) {}
            line class=(class) stroke-width="2" stroke-dasharray=(dashes) x1=(begin) y1=(y) x2=(end) y2=(y) {}
            text x=(tenths(end + 6.0)) y=(tenths(y + 4.0)) { (curve.name) }
        }
    }

    /// Clips a curve where it leaves the plot.
    fn visible(&self, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let mut visible = Vec::new();
        for &(x, y) in points {
            if let Some(&(before_x, before_y)) = visible.last()
                && (x > self.across.end || y > self.up.end)
            {
                let part = |from: f64, to: f64, end: f64| {
                    if to > end {
                        (end - from) / (to - from)
                    } else {
                        1.0
                    }
                };
                let part = part(before_x, x, self.across.end).min(part(before_y, y, self.up.end));
                visible.push((
                    before_x + part * (x - before_x),
                    before_y + part * (y - before_y),
                ));
                break;
            }
            visible.push((x, y.min(self.up.end)));
        }
        visible
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.across.part(value) * (WIDTH - RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.up.part(value) * (HEIGHT - BOTTOM - TOP)
    }
}

impl Axis {
    /// A linear axis from zero to `end`.
    #[must_use]
    pub fn even(label: &str, end: f64) -> Self {
        Self {
            label: label.to_owned(),
            end,
            scale: Scale::Even,
        }
    }

    /// An axis of seconds, from a tenth of a second to `end`, on a logarithmic scale.
    #[must_use]
    pub fn times(label: &str, end: f64) -> Self {
        Self {
            label: label.to_owned(),
            end,
            scale: Scale::Times,
        }
    }

    /// The position of a value on the axis: 0 at the beginning, 1 at the end.
    fn part(&self, value: f64) -> f64 {
        let decades = |value: f64| (value.max(SHORTEST) / SHORTEST).log10();
        match self.scale {
            Scale::Even => value / self.end,
            Scale::Times => decades(value) / decades(self.end),
        }
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Even => {
                let named = |value: f64| (value, number(value));
                ticks(self.end).into_iter().map(named).collect()
            }
            Scale::Times => {
                let times = TIMES.iter().filter(|(time, _)| *time <= self.end);
                times
                    .map(|(time, name)| (*time, (*name).to_owned()))
                    .collect()
            }
        }
    }
}

/// Four to ten round numbers from zero to the end.
fn ticks(end: f64) -> Vec<f64> {
    let size = 10.0_f64.powf((end / 4.0).log10().floor());
    let step = [5.0, 2.0, 1.0]
        .map(|times| times * size)
        .into_iter()
        .find(|step| end / step >= 4.0)
        .unwrap_or(size);
    let count = (end / step + 1e-9).floor() as usize;
    (0..=count).map(|tick| tick as f64 * step).collect()
}

fn number(value: f64) -> String {
    let rounded = format!("{value:.3}");
    rounded
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

fn tenths(coordinate: f64) -> String {
    format!("{coordinate:.1}")
}

#[cfg(test)]
mod tests {
    use super::{Axis, Curve, Plot, number, ticks};

    #[test]
    fn axes_have_round_numbers() {
        let shown = |end: f64| {
            ticks(end)
                .into_iter()
                .map(number)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(1.0), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(shown(40.0), "0 10 20 30 40");
        assert_eq!(shown(137.0), "0 20 40 60 80 100 120");
    }

    #[test]
    fn waits_of_seconds_and_of_hours_are_seen_on_one_axis() {
        let axis = Axis::times("wait", 1000.0);
        let parts = [0.0, 0.1, 1.0, 10.0, 1000.0].map(|time| axis.part(time));
        assert_eq!(parts, [0.0, 0.0, 0.25, 0.5, 1.0]);
        let names: Vec<_> = axis.ticks().into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["0.1 s", "1 s", "10 s", "1 min", "10 min"]);
    }

    #[test]
    fn a_curve_ends_where_it_leaves_the_plot() {
        let points = vec![(0.0, 0.0), (5.0, 5.0), (10.0, 25.0), (11.0, 30.0)];
        let curve = Curve {
            name: "\"steep\"".to_owned(),
            points,
        };
        let plot = Plot {
            title: "steep".to_owned(),
            across: Axis::even("a < b", 20.0),
            up: Axis::even("c", 10.0),
            curves: vec![curve],
        };
        assert_eq!(
            plot.visible(&plot.curves[0].points),
            [(0.0, 0.0), (5.0, 5.0), (6.25, 10.0)]
        );
        let svg = plot.svg().into_string();
        assert!(
            svg.contains("a &lt; b") && svg.contains("&quot;steep&quot;"),
            "{svg}"
        );
    }
}
