//! How evenly equal students share a saturated hour. Prints one JSON object, which
//! `benches/broker_load.py` reports.
#![allow(clippy::unwrap_used)]

#[path = "../tests/queue/class.rs"]
mod class;

use class::{Class, HOUR, SECOND, jain, student};

/// Students and slots: the class of the tests, and that of the load test.
const CLASSES: [(u32, u32); 2] = [(60, 4), (500, 32)];

fn main() {
    let told = CLASSES.map(|(students, slots)| {
        let all = (0..students).map(|_| student((10 * SECOND, 90 * SECOND)));
        let mut class = Class::new(all.collect(), slots);
        class.run_until(HOUR);
        let index = jain(&class.shares());
        format!("\"{students} students on {slots} slots\": {index:.4}")
    });
    println!("{{{}}}", told.join(", "));
}
