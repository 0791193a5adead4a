//! `baton plan --pool`: a pool whose machines come and go, in a simulated class.

use std::time::Duration;

use baton_humanize::approximate;
use baton_plan::{
    PoolTerms,
    simulation::{Elastic, Estimate, Length, Runs, Times, elastic},
};
use clap::ArgMatches;
use serde_json::json;

use crate::settings::Value;

/// How few and how many machines a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolSize {
    min: u32,
    max: u32,
}

impl Value for PoolSize {
    const EXPECTED: &'static str = "two numbers such as 0-4";

    fn parse(text: &str) -> Option<Self> {
        let (min, max) = text.split_once('-')?;
        let (min, max) = (min.parse().ok()?, max.parse().ok()?);
        (min <= max && max > 0).then_some(Self { min, max })
    }
}

const HOUR: f64 = 3600.0;
/// As the broker takes it without a setting.
const TARGET_WAIT_MS: u64 = 60_000;

pub(super) fn simulate(matches: &ArgMatches) -> anyhow::Result<String> {
    let time = |name| -> f64 {
        let time: &Duration = matches.get_one(name).expect("it has a default");
        time.as_secs_f64()
    };
    let size: &PoolSize = matches.get_one("pool").expect("it was given");
    let people: u16 = *matches.get_one("users").expect("it has a default");
    let pool = Elastic {
        people: people.into(),
        edit: Times::Exponential(time("edit")),
        run: Times::Exponential(time("run")),
        terms: PoolTerms {
            min: size.min,
            max: size.max,
            target_wait_ms: TARGET_WAIT_MS,
        },
        // A machine with one GPU on which one cell computes at a time.
        slots: 1,
        start: Times::Fixed(time("start")),
        idle: time("idle"),
    };
    let length = Length {
        warm_up: HOUR,
        measured: 8.0 * HOUR,
    };
    let answer = elastic(&pool, length, Runs { count: 8, seed: 1 });
    if matches.get_flag("json") {
        let json = json!({
            "people": people,
            "min": size.min,
            "max": size.max,
            "cells": answer.cells,
            "wait": answer.wait.mean,
            "at_once": answer.at_once.mean,
            "waits": answer.waits.map(|wait| wait.mean),
            "machines": answer.machines.mean,
            "utilisation": answer.utilisation.mean,
            "starts_an_hour": answer.starts.mean,
        });
        return Ok(format!("{json}\n"));
    }
    let [half, nine, most] = answer.waits;
    let percent = |part: Estimate| format!("{:.0} %", 100.0 * part.mean);
    Ok(format!(
        "{people} people on a pool of {} to {} machines\n\n\
         cells that start at once     {}\n\
         mean wait                    {}\n\
         50, 90 and 99 of 100 within  {}, {}, {}\n\
         machines on average          {:.2}, busy {}\n\
         machines started in an hour  {:.1}\n",
        size.min,
        size.max,
        percent(answer.at_once),
        approximate(answer.wait.mean),
        approximate(half.mean),
        approximate(nine.mean),
        approximate(most.mean),
        answer.machines.mean,
        percent(answer.utilisation),
        answer.starts.mean,
    ))
}
