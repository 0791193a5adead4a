//! The simulation against the chains where both can speak, and against what the policies are for.

use baton_plan::{
    Rates, shared,
    simulation::{Class, Length, Policy, Runs, Times, first_come, share},
};

use crate::{CLASS, close};

const HOUR: f64 = 3600.0;

#[test]
fn with_exponential_times_it_is_the_chain() {
    let slow_hand_over = Rates {
        hand_over: 0.05,
        ..CLASS
    };
    for (rates, people, gpus) in [(CLASS, 2, 1), (CLASS, 12, 2), (slow_hand_over, 5, 1)] {
        let exact = shared::solve(&rates, people, gpus).unwrap();
        let length = Length {
            warm_up: 20.0 * HOUR,
            measured: 2000.0 * HOUR,
        };
        let runs = Runs { count: 10, seed: 1 };
        let simulated = first_come(&rates.life(), people, gpus, length, runs);
        let percentiles = [0.5, 0.9, 0.99].map(|part| exact.waits.percentile(part));
        for (estimate, exact) in [
            (simulated.utilisation, exact.utilisation),
            (simulated.throughput, exact.throughput),
            (simulated.wait, exact.wait),
            (simulated.response, exact.response),
            (simulated.at_once, exact.waits.none()),
        ] {
            assert!(estimate.contains(exact), "{estimate:?} {exact}");
        }
        for (estimate, exact) in simulated.waits.iter().zip(percentiles) {
            // Kept to a thousandth.
            let distance = (estimate.mean - exact).abs();
            assert!(
                distance <= estimate.margin + 0.002 * exact + 1e-6,
                "{estimate:?} {exact}"
            );
        }
    }
}

#[test]
fn a_seed_says_it_all() {
    let length = Length {
        warm_up: 0.0,
        measured: HOUR,
    };
    let runs = Runs { count: 3, seed: 7 };
    let told = || format!("{:?}", first_come(&CLASS.life(), 5, 1, length, runs));
    assert_eq!(told(), told());
}

/// 88 % of cells are short, and 1.5 % long, which are two thirds of the work.
fn class() -> Class {
    let cells = [(0.88, 0.7, 0.7), (0.105, 15.0, 0.6), (0.015, 400.0, 0.5)];
    Class {
        people: 30,
        edit: Times::Exponential(90.0),
        run: Times::Mix(
            cells
                .map(|(weight, median, spread)| (weight, Times::LogNormal { median, spread }))
                .to_vec(),
        ),
        session_bytes: 4_000_000_000,
        gpu_bytes: 140_000_000_000,
        bandwidth: 50e9,
        drain: 0.02,
    }
}

#[test]
fn short_cells_feel_instant_only_under_our_policy() {
    let length = Length {
        warm_up: HOUR,
        measured: 4.0 * HOUR,
    };
    let runs = Runs { count: 6, seed: 1 };
    let short = |policy| {
        let seen = share(&class(), policy, length, runs);
        eprintln!("{policy:?} {seen:#?}");
        [seen.short[0].mean, seen.short[3].mean]
    };
    let [ours, ours_at_worst] = short(Policy::Baton);
    let [in_turn, _] = short(Policy::RoundRobin(20.0));
    let [in_order, _] = short(Policy::FirstCome);
    assert!(ours <= 2.0 && ours_at_worst <= 12.0);
    assert!(in_turn > 40.0 * ours, "{in_turn}");
    assert!(in_order > 40.0 * ours, "{in_order}");
}

#[test]
fn means_are_those_of_their_distributions() {
    close(class().run.mean(), 9.8, 0.1);
    close(Times::Measured(vec![1.0, 2.0, 6.0]).mean(), 3.0, 1e-12);
}
