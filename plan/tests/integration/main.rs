//! Compares the chains with each other, with closed forms, and with properties that hold for any rates.

#![allow(clippy::unwrap_used)]

use baton_plan::{BadRate, Rates, Waits, exclusive, repairman, shared, states};
use proptest::prelude::*;

mod fleet;
mod history;
mod simulation;

const CLASS: Rates = Rates {
    arrival: 1.0 / 3600.0,
    departure: 1.0 / 5400.0,
    submission: 1.0 / 120.0,
    execution: 1.0 / 30.0,
    hand_over: 2.0,
};

/// People never sleep, and a hand-over takes practically no time.
const REPAIRMAN: Rates = Rates {
    departure: 0.0,
    hand_over: 1e11,
    ..CLASS
};

#[track_caller]
fn close(left: f64, right: f64, tolerance: f64) {
    assert!(
        (left - right).abs() <= tolerance * right.abs().max(1e-3),
        "{left} is not {right}"
    );
}

#[test]
fn two_people_have_twenty_two_states() {
    let solved = states::solve(&CLASS, 2).unwrap();
    let names: Vec<_> = solved.iter().map(|(state, _)| state.to_string()).collect();
    assert_eq!(
        names.join(" "),
        "eeQG0 esQG0 seQG0 ssQG0 eeQG1 erQ2G1 esQG1 reQG1 rrQ2G1 rsQG1 seQG1 srQ2G1 ssQG1 \
         eeQG2 erQG2 esQG2 reQ1G2 rrQ1G2 rsQ1G2 seQG2 srQG2 ssQG2"
    );
    close(
        solved.iter().map(|(_, probability)| probability).sum(),
        1.0,
        1e-12,
    );
    assert!(
        solved
            .iter()
            .all(|(state, probability)| state.holder.is_some() == (*probability > 0.0))
    );
}

#[test]
fn counting_people_changes_no_answer() {
    for people in 1..=states::MAX_PEOPLE {
        let solved = states::solve(&CLASS, people).unwrap();
        let mean = |what: &dyn Fn(&states::State) -> f64| -> f64 {
            solved
                .iter()
                .map(|(state, probability)| probability * what(state))
                .sum()
        };
        let answer = shared::solve(&CLASS, people, 1).unwrap();
        close(
            answer.utilisation,
            mean(&|state| f64::from(state.runs())),
            1e-9,
        );
        for (waiting, likely) in answer.line.iter().enumerate() {
            let counted = mean(&|state| f64::from(state.line.len() == waiting));
            close(*likely, counted, 1e-9);
        }
    }
}

#[test]
fn who_never_sleeps_has_fewer_states() {
    let solved = states::solve(&REPAIRMAN, 2).unwrap();
    let awake = |state: &states::State| !state.doing.contains(&states::Doing::Asleep);
    assert!(
        solved
            .iter()
            .all(|(state, probability)| awake(state) || *probability == 0.0)
    );
}

#[test]
fn too_many_people_have_no_list_of_states() {
    assert!(states::solve(&CLASS, 0).is_none());
    assert!(states::solve(&CLASS, states::MAX_PEOPLE + 1).is_none());
}

#[test]
fn without_sleep_and_with_instant_hand_over_it_is_the_machine_repairman() {
    let cases = [
        (1, 1),
        (2, 1),
        (5, 1),
        (40, 1),
        (300, 1),
        (10, 2),
        (30, 3),
        (4, 8),
    ];
    for (people, gpus) in cases {
        let answer = shared::solve(&REPAIRMAN, people, gpus).unwrap();
        let expected = repairman(&REPAIRMAN, people, gpus);
        close(answer.utilisation, expected.utilisation, 1e-9);
        close(answer.throughput, expected.throughput, 1e-9);
        close(answer.wait, expected.wait, 1e-9);
        assert_eq!(answer.line.len(), expected.line.len());
        for (seen, expected) in answer.line.iter().zip(&expected.line) {
            assert!((seen - expected).abs() < 1e-9, "{seen} {expected}");
        }
        for times_mean in [0.05, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0] {
            let seconds = times_mean * answer.wait;
            let off = answer.waits.longer_than(seconds) - expected.longer_than(seconds);
            assert!(
                off.abs() < 1e-9,
                "{people} people, {gpus} GPUs, {seconds} s: off by {off:e}"
            );
        }
    }
}

#[test]
fn five_hundred_people_wait_in_a_steep_distribution() {
    let answer = shared::solve(&CLASS, 500, 1).unwrap();
    close(mean(&answer.waits), answer.wait, 1e-4);
    let percentiles = [0.5, 0.9, 0.99].map(|part| answer.waits.percentile(part));
    assert!(percentiles.is_sorted(), "{percentiles:?}");
    assert!(
        percentiles[2] < 1.25 * answer.wait,
        "{percentiles:?}, on average {}",
        answer.wait
    );
}

#[test]
fn exclusive_gpus_serve_fewer() {
    let shared = shared::solve(&CLASS, 12, 4).unwrap();
    let exclusive = exclusive::solve(&CLASS, 12, 4).unwrap();
    assert!(
        exclusive.throughput < 0.9 * shared.throughput,
        "{exclusive:?}"
    );
    assert!(exclusive.wait > 10.0 * shared.wait, "{exclusive:?}");
    close(mean(&exclusive.waits), exclusive.wait, 1e-4);
}

#[test]
fn with_a_gpu_each_sharing_and_keeping_are_the_same() {
    for people in [1, 3] {
        let shared = shared::solve(&CLASS, people, 3).unwrap();
        let exclusive = exclusive::solve(&CLASS, people, 3).unwrap();
        close(shared.throughput, exclusive.throughput, 1e-9);
        assert_eq!((shared.wait, exclusive.wait), (0.0, 0.0));
        assert_eq!(
            (
                shared.waits.percentile(0.99),
                exclusive.waits.percentile(0.99)
            ),
            (0.0, 0.0)
        );
    }
}

#[test]
fn exclusive_gpus_that_nobody_leaves_are_waited_for_for_ever() {
    assert!(exclusive::solve(&REPAIRMAN, 3, 2).is_none());
    assert!(exclusive::solve(&REPAIRMAN, 2, 2).is_some());
}

#[test]
fn rates_that_are_none_are_refused() {
    let refused = |rates: Rates| rates.checked().unwrap_err();
    assert_eq!(
        refused(Rates {
            execution: 0.0,
            ..CLASS
        }),
        BadRate::NotPositive {
            what: "executions",
            rate: 0.0
        }
    );
    assert!(matches!(
        refused(Rates {
            hand_over: f64::NAN,
            ..CLASS
        }),
        BadRate::NotPositive { .. }
    ));
    assert_eq!(
        refused(Rates {
            departure: -1.0,
            ..CLASS
        }),
        BadRate::Departure { rate: -1.0 }
    );
    assert_eq!(CLASS.checked(), Ok(CLASS));
}

/// The area under the tail, by Simpson's rule.
fn mean(waits: &Waits) -> f64 {
    let end = 1.5 * waits.percentile(1.0 - 1e-6);
    let steps = 400;
    let width = end / f64::from(steps);
    let weight = |step: i32| {
        if step == 0 || step == steps {
            1.0
        } else if step % 2 == 0 {
            2.0
        } else {
            4.0
        }
    };
    (0..=steps)
        .map(|step| weight(step) * waits.longer_than(f64::from(step) * width))
        .sum::<f64>()
        * width
        / 3.0
}

fn rates() -> impl Strategy<Value = Rates> {
    let mean_seconds =
        |low: f64, high: f64| (low.ln()..high.ln()).prop_map(|log| 1.0 / f64::exp(log));
    (
        mean_seconds(60.0, 1e5),
        mean_seconds(60.0, 1e5),
        mean_seconds(1.0, 1e3),
        mean_seconds(0.1, 1e3),
        mean_seconds(1e-3, 10.0),
    )
        .prop_map(
            |(arrival, departure, submission, execution, hand_over)| Rates {
                arrival,
                departure,
                submission,
                execution,
                hand_over,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_class_has_an_answer(rates in rates(), people in 1..60_usize, gpus in 1..4_usize) {
        let answer = shared::solve(&rates, people, gpus).expect("a solution");
        prop_assert!((0.0..=1.0).contains(&answer.utilisation));
        let response = answer.wait + 1.0 / rates.execution;
        prop_assert!((answer.response - response).abs() < 1e-9 * response);
        let percentiles = [0.5, 0.9, 0.99].map(|part| answer.waits.percentile(part));
        prop_assert!(percentiles.is_sorted(), "{percentiles:?}");
    }

    #[test]
    fn one_more_person_makes_the_others_wait_longer(rates in rates(), people in 1..30_usize, gpus in 1..3_usize) {
        let fewer = shared::solve(&rates, people, gpus).expect("a solution");
        let more = shared::solve(&rates, people + 1, gpus).expect("a solution");
        prop_assert!(more.wait >= fewer.wait * (1.0 - 1e-9));
        prop_assert!(more.throughput >= fewer.throughput * (1.0 - 1e-9));
    }
}
