//! `baton plan --policies`: compares the ways to share GPUs in a simulated class.

use super::{Latency, report::gpus};
use crate::{arguments::Cells, settings::Size};
use baton_humanize::approximate;
use baton_plan::simulation::{
    Class, Estimate, Length, PINNING, Policy, Runs, Shared, Times, share,
};
use clap::ArgMatches;
use serde_json::{Value as Json, json};
use std::{fmt::Write, time::Duration};

const POLICIES: [(&str, Policy); 3] = [
    ("first come, first served", Policy::FirstCome),
    ("in turn, 20 s each", Policy::RoundRobin(20.0)),
    ("Baton's own rules", Policy::Baton),
];

const HOUR: f64 = 3600.0;

/// The duration of a drain: the work that a session may queue on the GPU, and a little more.
const DRAIN: f64 = 0.06;

pub(super) fn compare(matches: &ArgMatches) -> anyhow::Result<String> {
    let class = read(matches)?;
    let length = Length {
        warm_up: HOUR,
        measured: 4.0 * HOUR,
    };
    let runs = Runs {
        count: 8,
        seed: *matches.get_one("seed").expect("it has a default"),
    };
    let shares = POLICIES.map(|(name, policy)| (name, share(&class, policy, length, runs)));
    if matches.get_flag("json") {
        return Ok(format!(
            "{}\n",
            Json::from(shares.iter().map(row).collect::<Vec<_>>())
        ));
    }
    Ok(text(&class, runs, length, &shares))
}

fn read(matches: &ArgMatches) -> anyhow::Result<Class> {
    let size = |name| {
        matches
            .get_one::<Size>(name)
            .expect("it has a default")
            .bytes
    };
    let time = |name| -> f64 {
        let time: &Duration = matches.get_one(name).expect("it has a default");
        time.as_secs_f64()
    };
    let count = |name| matches.get_one::<u16>(name).copied();
    let measured = Latency::read(matches)?;
    let people = count("users").expect("it has a default");
    let class = Class {
        people: people.into(),
        gpus: count("gpus").expect("it has a default").into(),
        slots: count("slots").unwrap_or(people).into(),
        edit: Times::Exponential(time("edit")),
        cold: measured.map_or_else(|| time("cold"), |measured| measured.cold_seconds),
        run: matches
            .get_one::<Cells>("cells")
            .expect("it has a default")
            .0
            .clone(),
        session_bytes: size("session-memory"),
        gpu_bytes: size("gpu-memory"),
        bandwidth: size("link") as f64,
        pinning: PINNING,
        drain: DRAIN,
    };
    anyhow::ensure!(
        class.session_bytes <= class.gpu_bytes,
        "A session cannot run if it needs more memory than the GPU has\nhint: --session-memory is for one session, --gpu-memory for the whole GPU"
    );
    anyhow::ensure!(
        class.bandwidth > 0.0 && time("edit") > 0.0,
        "--link and --edit must be above zero"
    );
    Ok(class)
}

fn text(class: &Class, runs: Runs, length: Length, shares: &[(&str, Shared)]) -> String {
    let mut out = format!(
        "{} people share {}; cells compute {} on average.{}\n\
         Simulated: {} courses of {}; ± is half the 99 % confidence interval.\n\n\
         {:<26}{:>22}{:>9}{:>9}{:>9}{:>12}{:>10}{:>8}{:>8}\n",
        class.people,
        gpus(class.gpus),
        approximate(class.run.mean()),
        turns(class),
        runs.count,
        approximate(length.measured),
        "",
        "short cells: mean",
        "p50",
        "p95",
        "p99",
        "medium",
        "long",
        "busy",
        "moved",
    );
    for (name, shared) in shares {
        let [mean, p50, p95, p99] = shared.short;
        let _ = writeln!(
            out,
            "{name:<26}{:>22}{:>9}{:>9}{:>9}{:>12}{:>10}{:>7.0}%{:>7.1}%",
            format!("{} ± {}", approximate(mean.mean), approximate(mean.margin)),
            approximate(p50.mean),
            approximate(p95.mean),
            approximate(p99.mean),
            slowdown(shared.medium_slowdown),
            slowdown(shared.long_slowdown),
            100.0 * shared.utilisation.mean,
            100.0 * shared.moved.mean,
        );
    }
    out.push_str(
        "\nShort cells compute up to 5 s, and long ones over 60 s. Times are from submission to end; 2x means twice as \
         long as alone on the GPU.\nMoved cells ran on another GPU than the previous cell of their notebook.\n",
    );
    out
}

/// A dash if there were no such cells.
fn slowdown(estimate: Estimate) -> String {
    if estimate.mean == 0.0 {
        return "-".to_owned();
    }
    format!("{:.1}x", estimate.mean)
}

fn turns(class: &Class) -> String {
    if class.slots as usize >= class.people {
        return String::new();
    }
    format!(" {} time-share each GPU.", class.slots)
}

fn row((name, shared): &(&str, Shared)) -> Json {
    let estimate = |estimate: Estimate| json!({"mean": estimate.mean, "margin": estimate.margin});
    json!({
        "policy": name,
        "cells": shared.cells,
        "short_mean_seconds": estimate(shared.short[0]),
        "short_p50_seconds": estimate(shared.short[1]),
        "short_p95_seconds": estimate(shared.short[2]),
        "short_p99_seconds": estimate(shared.short[3]),
        "medium_slowdown": estimate(shared.medium_slowdown),
        "long_slowdown": estimate(shared.long_slowdown),
        "moved": estimate(shared.moved),
        "utilisation": estimate(shared.utilisation),
    })
}
