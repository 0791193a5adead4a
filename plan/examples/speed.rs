//! How fast answers are computed. Prints one JSON object, which `benches/plan.py` compares with the targets.

use baton_plan::{
    Rates, shared,
    simulation::{Class, Length, Life, Policy, Runs, Times, first_come, share},
};
use std::time::Instant;

const HOUR: f64 = 3600.0;
const PEOPLE: usize = 30;
/// Mean run times in seconds with which 500 people leave a GPU half idle, nearly saturate it, and
/// wait in a long queue.
const RUNS: [f64; 3] = [0.2, 0.35, 2.0];

fn main() {
    let chain = RUNS.map(|run| {
        let begin = Instant::now();
        let answer = shared::solve(&rates(run), 500, 1).expect("a solution");
        let percentiles = [0.5, 0.9, 0.99].map(|part| answer.waits.percentile(part));
        assert!(percentiles.is_sorted());
        (answer.utilisation, begin.elapsed().as_secs_f64())
    });

    let runs = Runs { count: 8, seed: 1 };
    let begin = Instant::now();
    let told = first_come(&life(), PEOPLE, 1, hours(400.0), runs);
    let first_come_cells = told.cells as f64 / begin.elapsed().as_secs_f64();

    let [in_order, in_turn, ours] = [Policy::FirstCome, Policy::RoundRobin(20.0), Policy::Baton]
        .map(|policy| {
            let begin = Instant::now();
            let told = share(&Class::practical(), policy, hours(240.0), runs);
            told.cells as f64 / begin.elapsed().as_secs_f64()
        });
    let chain = chain.map(|(busy, seconds)| format!("[{busy:.3}, {seconds:.3}]"));
    println!(
        "{{\"chain\": [{}], \"first_come\": {first_come_cells:.0}, \"arbiter_in_order\": {in_order:.0}, \
         \"arbiter_in_turn\": {in_turn:.0}, \"arbiter\": {ours:.0}}}",
        chain.join(", ")
    );
}

fn hours(measured: f64) -> Length {
    Length {
        warm_up: HOUR,
        measured: measured * HOUR,
    }
}

fn rates(run: f64) -> Rates {
    Rates {
        arrival: 1.0 / HOUR,
        departure: 1.0 / 5400.0,
        submission: 1.0 / 120.0,
        execution: 1.0 / run,
        hand_over: 10.0,
    }
}

fn life() -> Life {
    Life {
        edit: Times::Exponential(120.0),
        run: Times::Exponential(2.0),
        hand_over: Times::Exponential(0.5),
        stay: Times::Exponential(5400.0),
        away: Times::Exponential(HOUR),
    }
}
