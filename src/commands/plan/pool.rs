//! `baton plan --pool`: a pool whose machines start and stop, in a simulated class.

use std::time::Duration;

use baton_humanize::approximate;
use baton_plan::{
    PastCell, PoolTerms,
    simulation::{
        Course, Elastic, ElasticAnswer, Estimate, Length, PastWaits, Runs, Times, elastic,
    },
};
use baton_protocol::api::History;
use clap::ArgMatches;
use serde_json::json;

use super::from_broker;
use crate::arguments::PoolSize;

const HOUR: f64 = 3600.0;

/// Simulates people with these mean times.
pub(super) fn simulate(matches: &ArgMatches) -> anyhow::Result<String> {
    let people: u16 = *matches.get_one("users").expect("it has a default");
    let course = Course::Drawn {
        people: people.into(),
        edit: Times::Exponential(seconds(matches, "edit")),
        run: Times::Exponential(seconds(matches, "run")),
    };
    let length = Length {
        warm_up: HOUR,
        measured: 8.0 * HOUR,
    };
    let (size, pool) = pool(matches, course)?;
    let answer = elastic(&pool, length, Runs { count: 8, seed: 1 });
    if matches.get_flag("json") {
        let mut json = json(size, &answer);
        json["people"] = people.into();
        return Ok(format!("{json}\n"));
    }
    let [half, nine, most] = answer.waits;
    Ok(format!(
        "{people} people on a pool of {} to {} machines\n\n\
         cells that start at once     {}\n\
         mean wait                    {}\n\
         50, 90 and 99 of 100 within  {}, {}, {}\n\
         {}",
        size.min,
        size.max,
        percent(answer.at_once),
        approximate(answer.wait.mean),
        approximate(half.mean),
        approximate(nine.mean),
        approximate(most.mean),
        machines(&answer),
    ))
}

/// Replays the cells of a course's past.
pub(super) fn replay(matches: &ArgMatches, past: &History) -> anyhow::Result<String> {
    let cells: Vec<_> = past.cells.iter().map(PastCell::from).collect();
    let (size, pool) = pool(matches, Course::replayed(&cells))?;
    // Run until the last cell has ended, because there is only one past.
    let length = Length {
        warm_up: 0.0,
        measured: f64::INFINITY,
    };
    let answer = elastic(&pool, length, Runs { count: 1, seed: 1 });
    anyhow::ensure!(
        answer.cells > 0,
        "The broker's history has no cell that ended\n\
         hint: use more --days, or --users, --edit and --run instead of --from-broker"
    );
    let was = PastWaits::of(&cells);
    let days = from_broker::days(matches);
    if matches.get_flag("json") {
        let mut json = json(size, &answer);
        json["days"] = days.into();
        json["was"] = json!({ "wait": was.mean, "waits": was.waits });
        return Ok(format!("{json}\n"));
    }
    Ok(beside_the_past(days, size, &was, &answer))
}

fn pool(matches: &ArgMatches, course: Course) -> anyhow::Result<(&PoolSize, Elastic)> {
    let size: &PoolSize = matches.get_one("pool").expect("it was given");
    let pool = Elastic {
        course,
        terms: PoolTerms {
            min: size.min,
            max: size.max,
            target_wait_ms: u64::try_from(duration(matches, "target-wait").as_millis())?,
        },
        // A machine with one GPU that runs one cell at a time.
        slots: 1,
        start: Times::Fixed(seconds(matches, "start")),
        idle: seconds(matches, "idle"),
        walltime: seconds(matches, "walltime"),
    };
    Ok((size, pool))
}

fn duration(matches: &ArgMatches, name: &str) -> Duration {
    *matches.get_one(name).expect("it has a default")
}

fn seconds(matches: &ArgMatches, name: &str) -> f64 {
    duration(matches, name).as_secs_f64()
}

fn beside_the_past(days: u32, size: &PoolSize, was: &PastWaits, answer: &ElasticAnswer) -> String {
    let [was_50, was_90, was_99] = was.waits;
    let [on_50, on_90, on_99] = answer.waits;
    let rows = [
        ("mean wait", was.mean, answer.wait),
        ("50 of 100 within", was_50, on_50),
        ("90 of 100 within", was_90, on_90),
        ("99 of 100 within", was_99, on_99),
    ];
    let rows: String = rows
        .map(|(name, was, on)| {
            format!(
                "{name:<29}{:<12}{}\n",
                approximate(was),
                approximate(on.mean)
            )
        })
        .concat();
    format!(
        "The {} cells of the last {days} days, on a pool of {} to {} machines\n\n\
         {:<29}{:<12}on the pool\n{rows}\n{}",
        answer.cells,
        size.min,
        size.max,
        "",
        "as it was",
        machines(answer),
    )
}

fn machines(answer: &ElasticAnswer) -> String {
    format!(
        "machines on average          {:.2}, busy {}\n\
         machine hours                {:.1}\n\
         machines started in an hour  {:.1}\n",
        answer.machines.mean,
        percent(answer.utilisation),
        answer.machine_hours.mean,
        answer.starts.mean,
    )
}

fn json(size: &PoolSize, answer: &ElasticAnswer) -> serde_json::Value {
    json!({
        "min": size.min,
        "max": size.max,
        "cells": answer.cells,
        "wait": answer.wait.mean,
        "at_once": answer.at_once.mean,
        "waits": answer.waits.map(|wait| wait.mean),
        "machines": answer.machines.mean,
        "machine_hours": answer.machine_hours.mean,
        "utilisation": answer.utilisation.mean,
        "starts_an_hour": answer.starts.mean,
    })
}

fn percent(part: Estimate) -> String {
    format!("{:.0} %", 100.0 * part.mean)
}
