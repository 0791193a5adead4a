//! Compares the simulation with the chains where both apply, and checks that the policies have
//! their intended effect.

use crate::{CLASS, close};
use baton_plan::{
    PastCell, Rates, repairman, shared,
    simulation::{
        Class, Course, Length, OwnCell, PastWaits, Policy, Runs, Times, first_come, share,
    },
};

pub(crate) const HOUR: f64 = 3600.0;

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
            // Times are kept with a precision of a thousandth.
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

#[test]
fn short_cells_feel_instant_only_under_our_policy() {
    let length = Length {
        warm_up: HOUR,
        measured: 4.0 * HOUR,
    };
    let runs = Runs { count: 6, seed: 1 };
    let short = |policy| {
        let seen = share(&Class::practical(), policy, length, runs);
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

/// If the broker's queue and the arbiter serve cells in order of arrival, they are the machine repairman model.
#[test]
fn the_real_rules_are_the_closed_form_where_it_holds() {
    let (people, gpus) = (12, 3);
    let class = Class {
        people,
        gpus,
        slots: 1,
        edit: Times::Exponential(40.0),
        run: Times::Exponential(10.0),
        drain: 0.0,
        cold: 0.0,
        ..Class::practical()
    };
    let rates = Rates {
        submission: 1.0 / 40.0,
        execution: 1.0 / 10.0,
        ..CLASS
    };
    let length = Length {
        warm_up: HOUR,
        measured: 25.0 * HOUR,
    };
    let runs = Runs { count: 10, seed: 1 };
    let exact = repairman(&rates, people, gpus);
    let told = share(&class, Policy::FirstCome, length, runs);
    let utilisation = told.utilisation;
    assert!(
        utilisation.contains(exact.utilisation),
        "{utilisation:?} {exact:?}"
    );
    assert!(told.moved.mean > 0.1 && told.moved.mean < 0.7, "{told:?}");
}

/// Two people on a GPU that has not room for both: their sessions leave it in turn.
#[test]
fn places_on_the_host_are_made_ahead_where_there_is_time() {
    let response = |edit: f64, pinning: f64| {
        let class = Class {
            people: 2,
            slots: 2,
            edit: Times::Fixed(edit),
            run: Times::Fixed(1.0),
            session_bytes: 60_000_000_000,
            gpu_bytes: 80_000_000_000,
            pinning,
            ..Class::practical()
        };
        let length = Length {
            warm_up: 0.0,
            measured: 600.0,
        };
        let runs = Runs { count: 1, seed: 1 };
        share(&class, Policy::FirstCome, length, runs).short[0].mean
    };
    // 40 GB take 40 s; the second session's leave when the first one's come back.
    for (edit, is_enough) in [(2.0, false), (30.0, false), (100.0, true)] {
        let at_once = response(edit, f64::INFINITY);
        let slowly = response(edit, 1e9);
        assert_eq!(
            slowly < at_once + 0.1,
            is_enough,
            "{edit}: {slowly} {at_once}"
        );
    }
}

#[test]
fn a_notebook_stays_on_its_gpu_while_that_takes_its_cells() {
    let length = Length {
        warm_up: HOUR,
        measured: 8.0 * HOUR,
    };
    let runs = Runs { count: 6, seed: 1 };
    let of = |people, gpus, slots| {
        let class = Class {
            people,
            gpus,
            slots,
            ..Class::practical()
        };
        share(&class, Policy::Baton, length, runs)
    };
    let (alone, pair) = (of(15, 1, 15), of(30, 2, 30));
    assert_eq!(pair.moved.mean, 0.0);
    let margin = alone.utilisation.margin + pair.utilisation.margin;
    let distance = (alone.utilisation.mean - pair.utilisation.mean).abs();
    assert!(distance <= margin, "{alone:?} {pair:?}");

    let few = of(30, 2, 4);
    assert!(few.moved.mean > 0.0, "{few:?}");
    // If long cells fill all slots, short ones wait at the broker.
    assert!(few.short[3].mean > pair.short[3].mean, "{few:?} {pair:?}");
}

#[test]
fn means_are_those_of_their_distributions() {
    close(Class::practical().run.mean(), 9.8, 0.1);
    close(Times::Measured(vec![1.0, 2.0, 6.0]).mean(), 3.0, 1e-12);
}

pub(crate) fn past(person: u64, submitted: f64, assigned: f64, finished: f64) -> PastCell {
    PastCell {
        person,
        submitted,
        assigned: Some(assigned),
        started: Some(assigned),
        finished: Some(finished),
        ended_itself: true,
    }
}

#[test]
fn a_past_is_replayed_by_notebook_and_without_what_never_ran() {
    let cells = [
        past(1, 130.0, 130.0, 140.0),
        past(1, 100.0, 101.0, 110.0),
        // It overlaps the first cell, so it is from another notebook.
        past(1, 105.0, 106.0, 109.0),
        past(2, 102.0, 102.0, 112.0),
        PastCell {
            assigned: None,
            finished: None,
            ..past(2, 120.0, 0.0, 0.0)
        },
    ];
    let Course::Replayed(notebooks) = Course::replayed(&cells) else {
        panic!("a past is replayed");
    };
    let cell = |edit, run| OwnCell { edit, run };
    assert_eq!(
        notebooks,
        [
            vec![cell(0.0, 9.0), cell(20.0, 10.0)],
            vec![cell(5.0, 3.0)],
            vec![cell(2.0, 10.0)]
        ]
    );
    close(PastWaits::of(&cells).mean, 0.5, 1e-3);
}
