//! Charts as SVG, for pages and reports.
//!
//! Data flows in, markup flows out. A chart is next to a table or a sentence with the same data, and
//! carries a label for people who cannot see it. The page sets colours and letter sizes.
//!
//! **Invariant:** every text passes through `maud`, which escapes it.

mod area;
mod bars;
mod plot;
mod timeline;

pub use area::area;
pub use bars::{columns, parts};
pub use plot::{Axis, Curve, Plot};
pub use timeline::{Mark, Series, Timeline};

/// The size of the charts of one measure, in units of their coordinates.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
/// The height of the texts below a chart.
const BOTTOM: f64 = 20.0;
/// The space above the largest value.
const TOP: f64 = 8.0;
