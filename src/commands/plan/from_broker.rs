//! `baton plan --from-broker`: predicts waits from a course's own past, also with one GPU fewer or more.

use super::{Plan, html::Report, report::PERCENTILES};
use crate::{
    commands::ask::{shown, text},
    service,
    settings::Settings,
};
use anyhow::Context;
use baton_humanize::approximate;
use baton_plan::{Capacity, Effort, PastCell, Row, fit, seconds};
use baton_protocol::api::{History, LessonOutlook, Page};
use baton_transport::Api;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Write;

pub(super) struct Findings {
    days: u32,
    cells: usize,
    capacity: Capacity,
}

pub(super) fn ask(settings: &Settings, plan: &Plan) -> anyhow::Result<Findings> {
    let history = history(settings, plan)?;
    let (gpus, places) = places(&history, plan)?;
    let cells: Vec<_> = history.cells.iter().map(PastCell::from).collect();
    let fit = fit(&cells, places, seconds(history.now_ms)).context(
        "The broker's history is too short\nhint: use more --days, or --edit and --run instead of --from-broker",
    )?;
    Ok(Findings {
        days: plan.days,
        cells: cells.len(),
        capacity: Capacity::of(fit, gpus, places, Effort::THOROUGH),
    })
}

/// The lessons of courses, and whether each has enough GPUs.
pub(super) fn timetable(settings: &Settings, json: bool) -> anyhow::Result<String> {
    let lessons: Page<LessonOutlook> = answer(settings, "/v1/timetable", &[])?;
    shown(&lessons.items, json, |lessons| match lessons.is_empty() {
        true => {
            "No course has a lesson\nhint: baton course COURSE --lesson \"Mon 17:00-18:30 350\"\n"
                .to_owned()
        }
        false => text::lessons(lessons),
    })
}

pub(super) fn history(settings: &Settings, plan: &Plan) -> anyhow::Result<History> {
    let mut query = vec![("days", plan.days.to_string())];
    query.extend(plan.course.iter().map(|course| ("course", course.clone())));
    answer(settings, "/v1/history", &query)
}

fn answer<Answer: DeserializeOwned>(
    settings: &Settings,
    path: &str,
    query: &[(&str, String)],
) -> anyhow::Result<Answer> {
    let api = Api::new(&service::dial(settings)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("Failed to prepare requests to the broker")?;
    Ok(runtime.block_on(api.ask(path, query))?)
}

/// The number of GPUs, and of cells that run on them at once.
fn places(history: &History, plan: &Plan) -> anyhow::Result<(usize, usize)> {
    if let Some(gpus) = plan.gpus {
        return Ok((gpus.into(), gpus.into()));
    }
    anyhow::ensure!(
        history.slots > 0,
        "No worker is connected, so it is not known how many GPUs there are\n\
         hint: give it with --gpus, for GPUs that run one cell at a time"
    );
    Ok((history.gpus as usize, history.slots as usize))
}

impl Findings {
    pub(super) fn text(&self) -> String {
        let mut out = self.assumptions().join("\n") + "\n\n";
        let _ = writeln!(
            out,
            "{:<33}{:>10}{:>11}{:>10}{:>10}{:>10}{:>7}{:>9}",
            "", "within 1 s", "mean wait", "p50", "p90", "p99", "busy", "cells/h"
        );
        for row in self.capacity.rows() {
            let [name, at_once, wait, p50, p90, p99, busy, cells] = cells(&row);
            let _ = writeln!(
                out,
                "{name:<33}{at_once:>10}{wait:>11}{p50:>10}{p90:>10}{p99:>10}{busy:>7}{cells:>9}"
            );
        }
        out.push('\n');
        for sentence in self.capacity.sentences() {
            let _ = writeln!(out, "{sentence}");
        }
        out
    }

    fn assumptions(&self) -> Vec<String> {
        let Capacity {
            fit, gpus, places, ..
        } = &self.capacity;
        let rates = &fit.rates;
        let mut lines = vec![
            format!(
                "From the last {} days: {} cells of {} people; {gpus} {} with room for {places} {} at once.",
                self.days,
                self.cells,
                fit.people,
                if *gpus == 1 { "GPU" } else { "GPUs" },
                if *places == 1 { "cell" } else { "cells" },
            ),
            format!(
                "A person edits for {} between cells of {}, on average; a hand-over takes {}.",
                approximate(1.0 / rates.submission),
                approximate(1.0 / rates.execution),
                approximate(1.0 / rates.hand_over),
            ),
        ];
        if rates.departure > 0.0 {
            lines.push(format!(
                "A person stays for {} and is away for {}.",
                approximate(1.0 / rates.departure),
                approximate(1.0 / rates.arrival)
            ));
        }
        lines
    }

    pub(super) fn json(&self) -> String {
        let Capacity {
            fit, gpus, places, ..
        } = &self.capacity;
        let rates = &fit.rates;
        let rows = self.capacity.rows().into_iter().map(|row| {
            let mut value = json!({
                "what": row.name,
                "within_a_second": row.at_once,
                "wait_mean_seconds": row.wait,
                "busy": row.busy,
                "cells_per_hour": row.cells_per_hour,
            });
            for (name, wait) in PERCENTILES.iter().zip(row.waits) {
                value[format!("wait_{name}_seconds")] = json!(wait);
            }
            value
        });
        let value = json!({
            "days": self.days,
            "cells": self.cells,
            "people": fit.people,
            "gpus": gpus,
            "places": places,
            "mean_seconds": {
                "edit": 1.0 / rates.submission,
                "run": 1.0 / rates.execution,
                "hand_over": 1.0 / rates.hand_over,
                "stay": (rates.departure > 0.0).then(|| 1.0 / rates.departure),
                "away": 1.0 / rates.arrival,
            },
            "distance_from_exponential": fit.distance(),
            "rows": rows.collect::<Vec<_>>(),
        });
        format!(
            "{value}
"
        )
    }

    pub(super) fn html(&self) -> String {
        let heads = [
            "",
            "within 1 s",
            "mean wait",
            "p50",
            "p90",
            "p99",
            "busy",
            "cells/h",
        ];
        let rows = self.capacity.rows();
        Report {
            title: "Are there enough GPUs?",
            sentences: [self.capacity.sentences(), self.assumptions()].concat(),
            heads: heads.map(str::to_owned).to_vec(),
            rows: rows.iter().map(|row| cells(row).to_vec()).collect(),
            plots: vec![self.capacity.plot_of_waits(), self.capacity.plot_of_runs()],
        }
        .html()
    }
}

fn cells(row: &Row) -> [String; 8] {
    let [p50, p90, p99] = row
        .waits
        .map(|wait| wait.map_or_else(|| "-".to_owned(), approximate));
    [
        row.name.clone(),
        format!("{:.1}%", 100.0 * row.at_once),
        approximate(row.wait),
        p50,
        p90,
        p99,
        format!("{:.1}%", 100.0 * row.busy),
        format!("{:.1}", row.cells_per_hour),
    ]
}
