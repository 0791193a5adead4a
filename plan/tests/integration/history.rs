//! The rates of a simulated course are estimated from its history alone.

use crate::{CLASS, close};
use baton_plan::{
    Effort, Fit, Method, PastCell, Rates, TooLittle, fewest_gpus, fit, forecast, shared, simulated,
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::{Distribution, Exp1};

/// People who do not share GPUs, so that every cell starts at once. Each cell is stopped after
/// `patience` seconds.
fn lived(rates: &Rates, people: u64, until: f64, patience: f64) -> Vec<PastCell> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut draw = |rate: f64| -> f64 {
        let one: f64 = Exp1.sample(&mut random);
        one / rate
    };
    let mut cells = Vec::new();
    for person in 0..people {
        let mut now = draw(rates.submission);
        while now < until {
            let run = draw(rates.execution);
            let finished = now + run.min(patience);
            cells.push(PastCell {
                person,
                submitted: now,
                assigned: Some(now),
                started: Some(now),
                finished: (finished < until).then_some(finished),
                ended_itself: run < patience,
            });
            now = finished + draw(rates.submission);
        }
    }
    cells
}

#[test]
fn rates_are_found_again_although_every_second_cell_is_stopped() {
    let stay = Rates {
        departure: 0.0,
        ..CLASS
    };
    let until = 100.0 * 3600.0;
    let cells = lived(&stay, 40, until, 20.0);
    let stopped = cells.iter().filter(|cell| !cell.ended_itself).count();
    assert!(2 * stopped > cells.len(), "{stopped} of {}", cells.len());
    let fit = fit(&cells, 40, until).unwrap();
    close(fit.rates.execution, stay.execution, 0.02);
    close(fit.rates.submission, stay.submission, 0.02);
    assert!(fit.distance() < 0.02, "{}", fit.distance());
    assert_eq!(fit.people, 40);
}

#[test]
fn who_is_gone_for_half_an_hour_has_left() {
    let cells: Vec<_> = (0..40)
        .map(|number| {
            let submitted = f64::from(number) * 100.0 + if number < 20 { 0.0 } else { 7200.0 };
            cell(submitted, 0.0, 40.0)
        })
        .collect();
    let fit = fit(&cells, 1, cells[39].finished.unwrap()).unwrap();
    close(1.0 / fit.rates.submission, 60.0, 1e-9);
    close(1.0 / fit.rates.arrival, 7260.0 * 38.0 / 39.0, 1e-9);
    close(fit.rates.departure / fit.rates.submission, 1.0 / 38.0, 1e-9);
}

/// Most of their visits consist of one cell, so visits without any are equally likely, and they are
/// not observed.
#[test]
fn people_who_come_now_and_then_are_predicted_to_come_as_often() {
    let seldom = Rates {
        submission: 1.0 / 16.0 / 3600.0,
        ..CLASS
    };
    let until = 14.0 * 24.0 * 3600.0;
    let cells = lived(&seldom, 200, until, f64::INFINITY);
    let fit = fit(&cells, 8, until).unwrap();
    let predicted = forecast(&fit.rates, fit.people, 8, Effort::QUICK);
    close(predicted.throughput, cells.len() as f64 / fit.span, 0.1);
    assert!(fit.people_at_once() < 20.0, "{}", fit.people_at_once());
}

#[test]
fn cells_that_still_wait_make_the_waits_longer() {
    let mut cells: Vec<_> = (0..40)
        .map(|number| cell(f64::from(number) * 10.0, 1.0, 5.0))
        .collect();
    let median = |fit: &Fit| fit.waits.percentile(0.9);
    let before = fit(&cells, 1, 400.0).unwrap();
    assert_eq!(median(&before), Some(1.0));
    cells.extend((0..40).map(|_| PastCell {
        person: 2,
        submitted: 300.0,
        assigned: None,
        started: None,
        finished: None,
        ended_itself: false,
    }));
    assert_eq!(
        median(&fit(&cells, 1, 400.0).unwrap()),
        None,
        "nobody knows how long they will wait"
    );
}

fn cell(submitted: f64, wait: f64, run: f64) -> PastCell {
    PastCell {
        person: 1,
        submitted,
        assigned: Some(submitted),
        started: Some(submitted + wait),
        finished: Some(submitted + wait + run),
        ended_itself: true,
    }
}

#[test]
fn too_little_history_is_said() {
    assert_eq!(fit(&[], 1, 0.0).unwrap_err(), TooLittle::Nothing);
    let few = vec![cell(0.0, 0.0, 1.0); 19];
    assert_eq!(fit(&few, 1, 9.0).unwrap_err(), TooLittle::Few { cells: 19 });
    let each_once: Vec<_> = (0..30)
        .map(|person| PastCell {
            person,
            finished: None,
            ..cell(f64::from(u32::try_from(person).unwrap()), 0.0, 1.0)
        })
        .collect();
    assert_eq!(
        fit(&each_once, 1, 99.0).unwrap_err(),
        TooLittle::Few { cells: 0 }
    );
}

#[test]
fn a_chain_that_is_too_large_is_simulated_instead() {
    let exact = forecast(&CLASS, 12, 2, Effort::THOROUGH);
    let quick = Effort {
        most_work: 1,
        ..Effort::THOROUGH
    };
    let simulated = forecast(&CLASS, 12, 2, quick);
    assert_eq!(
        (exact.method, simulated.method),
        (Method::Exact, Method::Simulated)
    );
    close(simulated.wait, exact.wait, 0.05);
    close(simulated.waits[2], exact.waits[2], 0.05);
    close(simulated.at_once, exact.at_once, 0.05);
    let many_gpus = forecast(&CLASS, 33, 30, Effort::THOROUGH);
    assert_eq!(many_gpus.method, Method::Simulated);
    let solved = shared::solve(&CLASS, 12, 2).unwrap();
    for (seconds, longer) in simulated.curve() {
        assert!((solved.waits.longer_than(seconds) - longer).abs() < 0.03);
    }
}

#[test]
fn the_fewest_gpus_are_enough_and_one_less_is_not() {
    for (people, within) in [(1, 1.0), (12, 30.0), (40, 60.0)] {
        let gpus = fewest_gpus(&CLASS, people, within, Effort::QUICK);
        let wait = |gpus| forecast(&CLASS, people, gpus, Effort::QUICK).waits[2];
        assert!(wait(gpus) <= within, "{people}: {gpus}");
        assert!(gpus == 1 || wait(gpus - 1) > within, "{people}: {gpus}");
    }
    assert_eq!(fewest_gpus(&CLASS, 3, 0.0, Effort::QUICK), 3);
}

#[test]
fn times_as_they_were_are_not_taken_for_exponential() {
    let cells: Vec<_> = (0..4000)
        .map(|number| PastCell {
            person: number % 20,
            ..cell(
                number as f64 * 40.0,
                0.0,
                if number % 50 == 0 { 1000.0 } else { 4.0 },
            )
        })
        .collect();
    let fit = fit(&cells, 1, 200_000.0).unwrap();
    assert!(fit.distance() > 0.5, "{}", fit.distance());
    let as_exponential = forecast(&fit.rates, 10, 1, Effort::QUICK);
    let as_they_were = simulated(&fit.life(), 10, 1, Effort::QUICK);
    assert!(as_they_were.waits[2] > 2.0 * as_exponential.waits[2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_history_makes_a_rate_that_is_none(seed in any::<u64>(), count in 0..60_usize, places in 1..5_usize) {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let cells: Vec<_> = (0..count).map(|_| {
            let submitted = random.random_range(0.0..5000.0);
            let started = random.random_bool(0.9).then(|| submitted + random.random_range(0.0..50.0));
            let finished = random.random_bool(0.9).then(|| started.unwrap_or(submitted) + random.random_range(0.0..500.0));
            PastCell { person: random.random_range(0..5), submitted, assigned: started, started, finished, ended_itself: started.is_some() }
        }).collect();
        if let Ok(fit) = fit(&cells, places, 6000.0) {
            prop_assert!(fit.rates.checked().is_ok(), "{:?}", fit.rates);
            prop_assert!((0.0..=1.0).contains(&fit.distance()));
        }
    }
}
