//! `baton plan --policies`: compares the ways to share GPUs in a simulated class.

use super::{Latency, Plan, report::gpus};
use baton_humanize::approximate;
use baton_plan::simulation::{
    Class, Estimate, Length, PINNING, Policy, Runs, Shared, Times, share,
};
use serde_json::{Value as Json, json};
use std::fmt::Write;

const POLICIES: [(&str, Policy); 3] = [
    ("first come, first served", Policy::FirstCome),
    ("in turn, 20 s each", Policy::RoundRobin(20.0)),
    ("Baton's own rules", Policy::Baton),
];

const HOUR: f64 = 3600.0;

/// The duration of a drain: the work that a session may queue on the GPU, and a little more.
const DRAIN: f64 = 0.06;

pub(super) fn compare(plan: &Plan) -> anyhow::Result<String> {
    let class = read(plan)?;
    let length = Length {
        warm_up: HOUR,
        measured: 4.0 * HOUR,
    };
    let runs = Runs {
        count: 8,
        seed: plan.seed,
    };
    let shares = POLICIES.map(|(name, policy)| (name, share(&class, policy, length, runs)));
    if plan.json {
        return Ok(format!(
            "{}\n",
            Json::from(shares.iter().map(row).collect::<Vec<_>>())
        ));
    }
    Ok(text(&class, runs, length, &shares))
}

fn read(plan: &Plan) -> anyhow::Result<Class> {
    let measured = Latency::read(plan)?;
    let class = Class {
        people: plan.users.into(),
        gpus: plan.gpus(),
        slots: plan.slots.unwrap_or(plan.users).into(),
        edit: Times::Exponential(plan.edit.as_secs_f64()),
        cold: measured.map_or(plan.cold.as_secs_f64(), |measured| measured.cold_seconds),
        run: plan.cells.0.clone(),
        session_bytes: plan.session_memory.bytes,
        gpu_bytes: plan.gpu_memory.bytes,
        bandwidth: plan.link.bytes as f64,
        pinning: PINNING,
        drain: DRAIN,
    };
    anyhow::ensure!(
        class.session_bytes <= class.gpu_bytes,
        "A session cannot run if it needs more memory than the GPU has\nhint: --session-memory is for one session, --gpu-memory for the whole GPU"
    );
    anyhow::ensure!(
        class.bandwidth > 0.0 && !plan.edit.is_zero(),
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
