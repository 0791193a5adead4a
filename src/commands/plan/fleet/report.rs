//! What is told about simulated machines and their people, as text and as JSON.

use baton_humanize::approximate;
use baton_plan::simulation::{Estimate, FleetAnswer, PastWaits, Used, Waited};
use serde_json::{Value, json};
use std::fmt::Write;

/// The names of the parts of a fleet.
pub(super) struct Names {
    pub(super) groups: Vec<String>,
    /// Of the machines that are always there, then of the pools.
    pub(super) machines: Vec<String>,
}

/// A table of waits: of everyone, then of each group if there are several.
pub(super) fn waits(names: &Names, everyone: &str, answer: &FleetAnswer) -> String {
    let mut out = format!(
        "{:<30}{:>9}{:>20}{:>9}{:>9}{:>20}\n",
        "", "at once", "mean wait", "p50", "p90", "p99"
    );
    let mut row = |name: &str, waited: &Waited| {
        let [half, nine, most] = waited.waits;
        let _ = writeln!(
            out,
            "{name:<30}{:>9}{:>20}{:>9}{:>9}{:>20}",
            percent(waited.at_once),
            with_margin(waited.wait),
            approximate(half.mean),
            approximate(nine.mean),
            with_margin(most),
        );
    };
    row(everyone, &answer.all);
    if names.groups.len() > 1 {
        for (name, waited) in names.groups.iter().zip(&answer.groups) {
            row(&format!("  {name}"), waited);
        }
    }
    out
}

/// A table of machines: how busy they are, their mean number, and their part of all cells.
pub(super) fn machines(names: &Names, answer: &FleetAnswer) -> String {
    let mut out = format!(
        "{:<30}{:>9}{:>20}{:>10}{:>15}{:>20}\n",
        "", "busy", "machines", "cells", "machine hours", "starts per hour"
    );
    for (name, used) in names.machines.iter().zip(&answer.kinds) {
        let _ = writeln!(
            out,
            "{name:<30}{:>9}{:>20.2}{:>10}{:>15.1}{:>20.1}",
            percent(used.utilisation),
            used.machines.mean,
            percent(used.cells),
            used.machine_hours.mean,
            used.starts.mean,
        );
    }
    out
}

pub(super) fn beside_the_past(was: &PastWaits, answer: &Waited) -> String {
    let [was_50, was_90, was_99] = was.waits;
    let [on_50, on_90, on_99] = answer.waits;
    let rows = [
        ("mean wait", was.mean, answer.wait),
        ("50 of 100 within", was_50, on_50),
        ("90 of 100 within", was_90, on_90),
        ("99 of 100 within", was_99, on_99),
    ];
    let rows = rows.map(|(name, was, on)| {
        let (was, on) = (approximate(was), approximate(on.mean));
        format!("{name:<30}{was:>9}{on:>20}\n")
    });
    format!(
        "{:<30}{:>9}{:>20}\n{}",
        "",
        "it was",
        "simulated",
        rows.concat()
    )
}

/// `machines`, `machine_hours` and so on at the top are those of all pools together.
pub(super) fn json(names: &Names, answer: &FleetAnswer) -> Value {
    let groups = names.groups.iter().zip(&answer.groups);
    let kinds = names.machines.iter().zip(&answer.kinds);
    let mut all = waited(&answer.all);
    add(&mut all, used(&answer.pools));
    all["groups"] = groups.map(|(name, of)| named(name, waited(of))).collect();
    all["kinds"] = kinds.map(|(name, of)| named(name, used(of))).collect();
    all
}

fn named(name: &str, mut part: Value) -> Value {
    part["name"] = name.into();
    part
}

fn add(all: &mut Value, more: Value) {
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
}

fn waited(answer: &Waited) -> Value {
    json!({
        "cells": answer.cells,
        "wait": answer.wait.mean,
        "wait_margin": margin(answer.wait),
        "at_once": answer.at_once.mean,
        "waits": answer.waits.map(|wait| wait.mean),
        "waits_margins": answer.waits.map(margin),
    })
}

fn used(answer: &Used) -> Value {
    json!({
        "part_of_cells": answer.cells.mean,
        "machines": answer.machines.mean,
        "machine_hours": answer.machine_hours.mean,
        "utilisation": answer.utilisation.mean,
        "starts_an_hour": answer.starts.mean,
    })
}

/// `None` for a single run.
fn margin(estimate: Estimate) -> Option<f64> {
    Some(estimate.margin).filter(|margin| margin.is_finite())
}

fn with_margin(estimate: Estimate) -> String {
    format!(
        "{} ± {}",
        approximate(estimate.mean),
        approximate(estimate.margin)
    )
}

fn percent(part: Estimate) -> String {
    format!("{:.0}%", 100.0 * part.mean)
}
