//! Measures the cost of a submission for a program that is alone on a card: without the interposer, with the
//! interposer but no worker, and with both.
//!
//! Prints the nanoseconds for each submission of an empty kernel, as one JSON object. The worker and the driver
//! are the same in all three cases, so the differences are due to the interposer.
#![allow(clippy::unwrap_used, dead_code)]

#[path = "../tests/integration/world.rs"]
mod world;

use world::{Client, World};

const BATCHES: u32 = 2000;
const REPEATS: usize = 5;

fn main() {
    let mut world = World::new(64 << 20);
    let token = world.admit(None);
    let fastest = |variables: &[(&str, &str)]| {
        let clients = (0..REPEATS).map(|_| world.client_of(token, variables));
        let times = clients.map(|mut client: Client| {
            let time = client.does(&format!("time-submissions {BATCHES}"));
            time.parse::<f64>().unwrap()
        });
        times.fold(f64::MAX, f64::min)
    };
    let bare = fastest(&[("LD_PRELOAD", "")]);
    let without_worker = fastest(&[("BATON_GPU_SOCKET", "/nowhere")]);
    let gated = fastest(&[]);
    println!(
        "{{\"bare_ns\": {bare:.1}, \"without_a_worker_ns\": {without_worker:.1}, \"gated_ns\": {gated:.1}}}"
    );
}
