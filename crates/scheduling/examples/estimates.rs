//! The quality of estimates in twenty simulated lectures. Prints one JSON object, which
//! `benches/estimates.py` reports.
#![allow(clippy::unwrap_used)]

#[path = "../tests/queue/lecture/mod.rs"]
mod lecture;

use lecture::score::{Held, Score};

fn main() {
    let score = Score::of(0..20, None, 9);
    let (told, best) = score.width();
    let back = &score.back;
    println!(
        "{{\"cells\": {}, \"first\": {}, \"later\": {}, \"best\": {}, \"width_ms\": {told}, \"best_width_ms\": {best}, \
         \"back\": {{\"cells\": {}, \"tellings\": {}, \"beyond\": {}, \"without_reason\": {}}}}}",
        score.cells,
        held(&score.first),
        held(&score.later),
        held(&score.best),
        back.cells,
        back.tellings,
        back.beyond,
        back.without_reason,
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
