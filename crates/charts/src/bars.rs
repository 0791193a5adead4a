//! Amounts as bars.

use crate::{BOTTOM, HEIGHT, WIDTH};
use maud::{Markup, html};

/// The width of the text above a column.
const WORDS_WIDTH: f64 = 80.0;
/// The height of the text above a column.
const WORDS_HEIGHT: f64 = 18.0;

/// A bar that shows parts of a whole, each with its class, its size and its text.
#[must_use]
pub fn parts(parts: &[(&'static str, u64, String)], whole: u64, label: &str) -> Markup {
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

/// A column for each name and size. Its text is above it if there is room.
#[must_use]
pub fn columns(columns: &[(&str, u64, String)], label: &str) -> Markup {
    let sizes = columns.iter().map(|(_, size, _)| *size);
    let top = sizes.max().unwrap_or(0).max(1) as f64;
    let each = WIDTH / columns.len().max(1) as f64;
    let base = HEIGHT - BOTTOM;
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(label) {
            line.grid x1="0" x2=(WIDTH) y1=(base) y2=(base) {}
            @for (index, (name, size, words)) in columns.iter().enumerate() {
                @let height = (base - WORDS_HEIGHT) * *size as f64 / top;
                @let x = each * index as f64;
                @let middle = format!("{:.1}", x + each / 2.0);
                rect.run x=(format!("{:.1}", x + each * 0.2)) y=(format!("{:.1}", base - height)) width=(format!("{:.1}", each * 0.6)) height=(format!("{height:.1}")) rx="3" {}
                @if each >= WORDS_WIDTH {
                    text x=(middle) y=(format!("{:.1}", base - height - 5.0)) text-anchor="middle" { (words) }
                }
                text x=(middle) y=(HEIGHT - 4.0) text-anchor="middle" { (name) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn parts_never_exceed_the_whole() {
        let bars = [("run", 30, "a < b".to_owned()), ("wait", 90, String::new())];
        let svg = parts(&bars, 100, "two").into_string();
        assert!(svg.contains("x=\"0.00\" width=\"30.00\""), "{svg}");
        assert!(svg.contains("x=\"30.00\" width=\"70.00\""), "{svg}");
        assert!(svg.contains("<title>a &lt; b</title>"), "{svg}");
    }
}
