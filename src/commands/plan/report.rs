//! Answers of the model as a table with sentences, and as JSON.

use std::fmt::Write;

use baton_plan::{Answer, states::State};
use serde_json::{Value, json};

use super::{Most, Question};

const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

pub(super) fn text(question: &Question, answers: &[Answer], most: &[Most]) -> String {
    let mut out = assumptions(question);
    out.push_str(
        "GPUs  people  GPU busy  cells/h  at once  mean wait       p50       p90       p99\n",
    );
    for answer in answers {
        let [p50, p90, p99] = PERCENTILES.map(|(_, part)| duration(answer.waits.percentile(part)));
        let _ = writeln!(
            out,
            "{:>4}  {:>6}  {:>7.1}%  {:>7.1}  {:>6.1}%  {:>9}  {p50:>8}  {p90:>8}  {p99:>8}",
            answer.gpus,
            answer.people,
            100.0 * answer.utilisation,
            3600.0 * answer.throughput,
            100.0 * answer.waits.none(),
            duration(answer.wait),
        );
    }
    out.push('\n');
    for most in most {
        out.push_str(&sentence(most, question));
    }
    out
}

fn assumptions(question: &Question) -> String {
    let rates = &question.rates;
    let mut out = format!(
        "Everybody edits {} between cells of {}, on average; a hand-over takes {}.\n",
        duration(1.0 / rates.submission),
        duration(1.0 / rates.execution),
        duration(1.0 / rates.hand_over),
    );
    if rates.departure > 0.0 {
        let (stay, away) = (
            duration(1.0 / rates.departure),
            duration(1.0 / rates.arrival),
        );
        let _ = writeln!(
            out,
            "Who edits leaves after {stay} and comes back {away} later."
        );
    }
    if question.exclusive {
        out.push_str(
            "A GPU belongs to one person from coming to going; the waits are those for it.\n",
        );
    }
    out.push('\n');
    out
}

fn sentence(most: &Most, question: &Question) -> String {
    let gpus = if most.gpus == 1 {
        "1 GPU".to_owned()
    } else {
        format!("{} GPUs", most.gpus)
    };
    let served = match &most.served {
        None => {
            return format!(
                "With {gpus}, nobody is served within {}.\n",
                duration(question.limit)
            );
        }
        Some(Answer { people: 1, .. }) => "1 person never waits".to_owned(),
        Some(answer) if answer.people <= most.gpus => {
            format!("{} people never wait", answer.people)
        }
        Some(answer) => format!("{} people wait {}", answer.people, mean_and_longest(answer)),
    };
    let over = match &most.over {
        None => "more were not looked at".to_owned(),
        Some(answer) => format!("{} people wait {}", answer.people, mean_and_longest(answer)),
    };
    format!("With {gpus}, {served}; {over}.\n")
}

fn mean_and_longest(answer: &Answer) -> String {
    let longest = duration(answer.waits.percentile(0.99));
    format!(
        "{} on average, and 1 in 100 longer than {longest}",
        duration(answer.wait)
    )
}

pub(super) fn json(question: &Question, answers: &[Answer], most: &[Most]) -> Value {
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
        })).collect::<Vec<_>>(),
    })
}

fn answer(answer: &Answer) -> Value {
    let mut value = json!({
        "gpus": answer.gpus,
        "people": answer.people,
        "utilisation": answer.utilisation,
        "cells_per_hour": 3600.0 * answer.throughput,
        "at_once": answer.waits.none(),
        "wait_mean_seconds": answer.wait,
        "response_mean_seconds": answer.response,
    });
    for (name, part) in PERCENTILES {
        value[format!("wait_{name}_seconds")] = json!(answer.waits.percentile(part));
    }
    value
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

/// Two to three digits of a time in seconds, in the unit that a person would use.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        _ if seconds < 1.0 => format!("{:.0} ms", 1000.0 * seconds),
        _ if seconds < 10.0 => format!("{seconds:.1} s"),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn times_have_the_unit_of_their_size() {
        let said = [0.0, 0.25, 4.04, 31.2, 150.0, 9000.0, 1e6].map(duration);
        assert_eq!(
            said,
            [
                "0 s",
                "250 ms",
                "4.0 s",
                "31 s",
                "2 min",
                "2.5 h",
                "11.6 days"
            ]
        );
    }
}
