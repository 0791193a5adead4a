//! The model's answers as a table with sentences, as JSON, and as a report with plots.

use super::{Most, Question, html::Report};
use baton_charts::{Axis, Curve, Plot};
use baton_humanize::approximate;
use baton_plan::{Forecast, Method, states::State};
use serde_json::{Value, json};
use std::fmt::Write;

pub(super) const PERCENTILES: [&str; 3] = ["p50", "p90", "p99"];

pub(super) fn text(question: &Question, answers: &[Forecast], most: &[Most]) -> String {
    let mut out = assumptions(question).join("\n") + "\n\n";
    out.push_str(
        "GPUs  people  GPU busy  cells/h  at once  mean wait       p50       p90       p99\n",
    );
    for answer in answers {
        let [gpus, people, busy, cells, at_once, wait, p50, p90, p99] = cells(answer);
        let _ = writeln!(
            out,
            "{gpus:>4}  {people:>6}  {busy:>8}  {cells:>7}  {at_once:>7}  {wait:>9}  {p50:>8}  {p90:>8}  {p99:>8}"
        );
    }
    out.push('\n');
    for sentence in sentences(question, answers, most) {
        out.push_str(&sentence);
        out.push('\n');
    }
    out
}

/// One row of the table.
fn cells(answer: &Forecast) -> [String; 9] {
    let [p50, p90, p99] = answer.waits.map(approximate);
    [
        answer.gpus.to_string(),
        answer.people.to_string(),
        format!("{:.1}%", 100.0 * answer.utilisation),
        format!("{:.1}", 3600.0 * answer.throughput),
        format!("{:.1}%", 100.0 * answer.at_once),
        approximate(answer.wait),
        p50,
        p90,
        p99,
    ]
}

fn assumptions(question: &Question) -> Vec<String> {
    let rates = &question.rates;
    let mut lines = vec![format!(
        "A person edits for {} between cells of {}, on average; a hand-over takes {}.",
        approximate(1.0 / rates.submission),
        approximate(1.0 / rates.execution),
        approximate(1.0 / rates.hand_over),
    )];
    if rates.departure > 0.0 {
        let (stay, away) = (
            approximate(1.0 / rates.departure),
            approximate(1.0 / rates.arrival),
        );
        lines.push(format!("A person stays for {stay} and is away for {away}."));
    }
    if question.exclusive {
        lines.push("Each person keeps a GPU for a whole visit; waits are for a GPU.".to_owned());
    }
    lines
}

fn sentences(question: &Question, answers: &[Forecast], most: &[Most]) -> Vec<String> {
    let mut lines: Vec<_> = most.iter().map(|most| sentence(most, question)).collect();
    let is_simulated = |answer: &&Forecast| answer.method == Method::Simulated;
    let simulated = answers.iter().filter(is_simulated).count();
    if simulated > 0 {
        lines.push(format!(
            "{simulated} of the {} rows are simulated, because their chain is too large for an exact solution; they are accurate to a few per cent.",
            answers.len()
        ));
    }
    lines
}

fn sentence(most: &Most, question: &Question) -> String {
    let gpus = gpus(most.gpus);
    let minutes = |beyond: usize| match most.minutes {
        Some(people) if people > beyond => format!(
            "; from the {} on, the mean wait is a minute or more",
            nth(people)
        ),
        _ => String::new(),
    };
    let served = match &most.served {
        None => {
            return format!(
                "With {gpus}, no one is served within {}.",
                approximate(question.limit)
            );
        }
        Some(Forecast { people: 1, .. }) => "1 person never waits".to_owned(),
        Some(answer) if answer.people <= most.gpus => {
            format!("{} people never wait", answer.people)
        }
        Some(answer) => format!("{} people wait {}", answer.people, mean_and_longest(answer)),
    };
    match &most.over {
        None => format!("With {gpus}, {served}; larger numbers were not computed."),
        Some(answer) => format!(
            "With {gpus}, {served}; {} people wait {}{}.",
            answer.people,
            mean_and_longest(answer),
            minutes(answer.people)
        ),
    }
}

pub(super) fn gpus(count: usize) -> String {
    if count == 1 {
        "1 GPU".to_owned()
    } else {
        format!("{count} GPUs")
    }
}

/// For example `61st person`.
fn nth(number: usize) -> String {
    let end = match (number % 10, number % 100) {
        (1, last) if last != 11 => "st",
        (2, last) if last != 12 => "nd",
        (3, last) if last != 13 => "rd",
        _ => "th",
    };
    format!("{number}{end} person")
}

fn mean_and_longest(answer: &Forecast) -> String {
    format!(
        "{} on average, and 1 in 100 longer than {}",
        approximate(answer.wait),
        approximate(answer.waits[2])
    )
}

pub(super) fn json(question: &Question, answers: &[Forecast], most: &[Most]) -> Value {
    let rates = &question.rates;
    json!({
        "mean_seconds": {
            "edit": 1.0 / rates.submission,
            "run": 1.0 / rates.execution,
            "hand_over": 1.0 / rates.hand_over,
            "stay": (rates.departure > 0.0).then(|| 1.0 / rates.departure),
            "away": 1.0 / rates.arrival,
        },
        "exclusive": question.exclusive,
        "limit_seconds": question.limit,
        "answers": answers.iter().map(answer).collect::<Vec<_>>(),
        "most": most.iter().map(|most| json!({
            "gpus": most.gpus,
            "served": most.served.as_ref().map(answer),
            "over": most.over.as_ref().map(answer),
            "minutes": most.minutes,
        })).collect::<Vec<_>>(),
    })
}

pub(super) fn answer(answer: &Forecast) -> Value {
    let mut value = json!({
        "gpus": answer.gpus,
        "people": answer.people,
        "method": match answer.method {
            Method::Exact => "exact",
            Method::Simulated => "simulated",
        },
        "utilisation": answer.utilisation,
        "cells_per_hour": 3600.0 * answer.throughput,
        "at_once": answer.at_once,
        "wait_mean_seconds": answer.wait,
        "response_mean_seconds": answer.response,
    });
    for (name, wait) in PERCENTILES.iter().zip(answer.waits) {
        value[format!("wait_{name}_seconds")] = json!(wait);
    }
    value
}

pub(super) fn html(question: &Question, answers: &[Forecast], most: &[Most]) -> String {
    let heads = [
        "GPUs",
        "people",
        "GPU busy",
        "cells/h",
        "at once",
        "mean wait",
        "p50",
        "p90",
        "p99",
    ];
    Report {
        title: "How many GPUs?",
        sentences: [sentences(question, answers, most), assumptions(question)].concat(),
        heads: heads.map(str::to_owned).to_vec(),
        rows: answers
            .iter()
            .map(|answer| cells(answer).to_vec())
            .collect(),
        plots: plots(question, answers),
    }
    .html()
}

fn plots(question: &Question, answers: &[Forecast]) -> Vec<Plot> {
    let of_gpus = |value: fn(&Forecast) -> f64| -> Vec<Curve> {
        let curve = |count: usize| Curve {
            name: gpus(count),
            points: (answers.iter().filter(|answer| answer.gpus == count))
                .map(|answer| (answer.people as f64, value(answer)))
                .collect(),
        };
        question.gpu_counts().into_iter().map(curve).collect()
    };
    let people = Axis::even("people", question.users as f64);
    let waits = |title: &str, value: fn(&Forecast) -> f64| {
        let curves = of_gpus(value);
        let points = curves.iter().flat_map(|curve| &curve.points);
        Plot {
            title: title.to_owned(),
            across: people.clone(),
            up: times(points.map(|(_, wait)| *wait)),
            curves,
        }
    };
    let distribution: Vec<_> = answers
        .iter()
        .filter(|answer| answer.people == question.users)
        .map(|answer| Curve {
            name: gpus(answer.gpus),
            points: answer.curve(),
        })
        .collect();
    let points = distribution.iter().flat_map(|curve| &curve.points);
    vec![
        waits("How long a cell waits on average", |answer| answer.wait),
        waits("How long 1 cell in 100 waits at least", |answer| {
            answer.waits[2]
        }),
        Plot {
            title: "How busy a GPU is".to_owned(),
            across: people.clone(),
            up: Axis::even("part of the time", 1.0),
            curves: of_gpus(|answer| answer.utilisation),
        },
        Plot {
            title: format!("How long cells of {} people wait", question.users),
            across: times(points.map(|(wait, _)| *wait)),
            up: Axis::even("part of cells that wait longer", 1.0),
            curves: distribution,
        },
    ]
}

/// An axis of waits. With one GPU too few they are hours, with one too many fractions of a second.
fn times(waits: impl Iterator<Item = f64>) -> Axis {
    Axis::times("wait", waits.fold(1.0, f64::max))
}

pub(super) fn states(states: &[(State, f64)], json: bool) -> String {
    if json {
        let rows: Vec<_> = states
            .iter()
            .map(|(state, p)| json!({"state": state.to_string(), "probability": p}))
            .collect();
        return format!("{}\n", Value::from(rows));
    }
    let mut out = String::from("state       probability\n");
    for (state, probability) in states {
        let _ = writeln!(out, "{:<10}  {probability:.9}", state.to_string());
    }
    let _ = writeln!(out, "{} states", states.len());
    out
}

#[cfg(test)]
mod tests {
    use super::nth;

    #[test]
    fn people_are_numbered_as_people_do() {
        let said = [1, 2, 3, 4, 11, 12, 13, 21, 61, 112].map(nth);
        let ends = said.map(|person| person.split(' ').next().map(str::to_owned));
        let ends: Vec<_> = ends.into_iter().flatten().collect();
        assert_eq!(
            ends.join(" "),
            "1st 2nd 3rd 4th 11th 12th 13th 21st 61st 112th"
        );
    }
}
