//! How well estimates hold in twenty simulated lectures: prints one JSON object, which `benches/estimates.py` reports.
#![allow(clippy::unwrap_used)]

#[path = "../tests/integration/lecture/mod.rs"]
mod lecture;

use lecture::score::{Held, Score};

fn main() {
    let score = Score::of(0..20, None, 9);
    let (told, best) = score.width();
    println!(
        "{{\"cells\": {}, \"first\": {}, \"later\": {}, \"best\": {}, \"width_ms\": {told}, \"best_width_ms\": {best}, \
         \"compared\": {}, \"moved_back\": {}, \"cells_moved_back\": {}}}",
        score.cells,
        held(&score.first),
        held(&score.later),
        held(&score.best),
        score.widths.len(),
        score.back,
        score.cells_moved_back,
    );
}

fn held(held: &Held) -> String {
    let Held {
        none,
        before,
        within,
        after,
    } = held;
    format!(
        "{{\"none\": {none}, \"before\": {before}, \"within\": {within}, \"after\": {after}, \"part\": {:.3}}}",
        held.part()
    )
}
