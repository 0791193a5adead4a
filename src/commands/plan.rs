//! `baton plan`: how many people can share GPUs well, and how long each of them waits.

mod arguments;
mod fleet;
mod from_broker;
mod html;
pub(crate) mod policies;
mod report;

use crate::settings::{Settings, SettingsError};
use anyhow::Context;
use baton_plan::{Effort, Forecast, Rates, Solution, exclusive, on_all_cores, solution, states};
use std::{fs, process::ExitCode, time::Duration};

pub(crate) use arguments::Plan;

/// The parameters of the question.
struct Question {
    users: usize,
    gpus: usize,
    rates: Rates,
    exclusive: bool,
    /// The longest wait in seconds for 99 of 100 cells.
    limit: f64,
}

/// The most people that a number of GPUs serve within the limit.
struct Most {
    gpus: usize,
    /// `None` if even one person per GPU is too many.
    served: Option<Forecast>,
    /// The answer for one person more; `None` if that exceeds the largest number tried.
    over: Option<Forecast>,
    /// The number of people at which the mean wait reaches a minute.
    minutes: Option<usize>,
}

/// The largest number of people to try.
const MOST_PEOPLE: usize = 10_000;

/// Above this, only some numbers of GPUs are listed.
const MANY_GPUS: usize = 9;

/// A mean wait in seconds that is clearly noticeable.
const MINUTE: f64 = 60.0;

pub(crate) fn main(
    plan: &Plan,
    settings: impl Fn() -> Result<Settings, SettingsError>,
) -> anyhow::Result<ExitCode> {
    if !plan.pool.is_empty() || !plan.machines.is_empty() {
        let said = match plan.from_broker {
            true => {
                let past = from_broker::history(&settings()?, plan)?;
                fleet::replay(plan, &past, settings)?
            }
            false => fleet::simulate(plan, settings)?,
        };
        out!("{said}");
        return Ok(ExitCode::SUCCESS);
    }
    if plan.timetable {
        out!("{}", from_broker::timetable(&settings()?, plan.json)?);
        return Ok(ExitCode::SUCCESS);
    }
    if plan.policies {
        out!("{}", policies::compare(plan)?);
        return Ok(ExitCode::SUCCESS);
    }
    if plan.from_broker {
        let findings = from_broker::ask(&settings()?, plan)?;
        out!(
            "{}",
            if plan.json {
                findings.json()
            } else {
                findings.text()
            }
        );
        write_report(plan, || findings.html())?;
        return Ok(ExitCode::SUCCESS);
    }
    let question = Question::read(plan)?;
    if plan.states {
        let states = states::solve(&question.rates, question.users).with_context(|| {
            format!(
                "The states of {} people are too many to list\nhint: --states lists those of up to {} people, for example --users 2",
                question.users,
                states::MAX_PEOPLE
            )
        })?;
        out!("{}", report::states(&states, plan.json));
        return Ok(ExitCode::SUCCESS);
    }
    let gpu_counts = question.gpu_counts();
    let rows: Vec<_> = (gpu_counts.iter())
        .flat_map(|&gpus| {
            steps(question.users)
                .into_iter()
                .map(move |users| (users, gpus))
        })
        .collect();
    let answers = on_all_cores(&rows, |&(users, gpus)| {
        let answer = question.solve(users, gpus, Effort::THOROUGH)?;
        Ok(Forecast::from(answer))
    });
    let answers = answers.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let most = on_all_cores(&gpu_counts, |&gpus| question.most(gpus));
    let most = most.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    if plan.json {
        outln!("{}", report::json(&question, &answers, &most));
    } else {
        out!("{}", report::text(&question, &answers, &most));
    }
    write_report(plan, || report::html(&question, &answers, &most))?;
    Ok(ExitCode::SUCCESS)
}

fn write_report(plan: &Plan, html: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(path) = &plan.report else {
        return Ok(());
    };
    fs::write(path, html())
        .with_context(|| format!("Failed to write the report {}", path.display()))
}

/// At most about a dozen numbers (1, 2, 5, 10, 20, 30 and so on, or five large steps), ending with `most`.
fn steps(most: usize) -> Vec<usize> {
    let steps: Vec<usize> = match most {
        ..=80 => [1, 2, 5]
            .into_iter()
            .chain((10..most).step_by(10))
            .collect(),
        _ => [1]
            .into_iter()
            .chain((1..5).map(|step| most * step / 5))
            .collect(),
    };
    let smaller = steps.into_iter().filter(|step| *step < most);
    smaller.chain([most]).collect()
}

/// Reads mean times in seconds, as rates.
fn read_rates(plan: &Plan) -> anyhow::Result<Rates> {
    let rate = |mean: Duration| 1.0 / mean.as_secs_f64();
    let measured = Latency::read(plan)?;
    let rates = Rates {
        arrival: rate(plan.away),
        departure: plan.stay.map_or(0.0, rate),
        submission: rate(plan.edit),
        execution: rate(plan.run),
        hand_over: measured.map_or_else(
            || rate(plan.hand_over),
            |measured| 1.0 / measured.hand_over_seconds,
        ),
    };
    rates
        .checked()
        .context("A time cannot be zero; the shortest is 1 ms")
}

/// The output of `baton bench latency --json`.
#[derive(serde::Deserialize)]
struct Latency {
    hand_over_seconds: f64,
    cold_seconds: f64,
}

impl Latency {
    /// `None` if it was not measured.
    fn read(plan: &Plan) -> anyhow::Result<Option<Self>> {
        let Some(path) = &plan.latency else {
            return Ok(None);
        };
        let text = fs::read_to_string(path)
            .with_context(|| format!("Failed to read {}", path.display()))?;
        let measured: Self = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} does not contain the hand-over time\nhint: baton bench latency --json > {0}",
                path.display()
            )
        })?;
        anyhow::ensure!(
            measured.hand_over_seconds > 0.0 && measured.cold_seconds >= 0.0,
            "{} says that a hand-over takes {} s and a cold start {} s, which is impossible\nhint: baton bench latency --json > {0}",
            path.display(),
            measured.hand_over_seconds,
            measured.cold_seconds
        );
        Ok(Some(measured))
    }
}

impl Question {
    fn read(plan: &Plan) -> anyhow::Result<Self> {
        Ok(Self {
            users: plan.users.into(),
            gpus: plan.gpus(),
            rates: read_rates(plan)?,
            exclusive: plan.exclusive,
            limit: plan.wait.as_secs_f64(),
        })
    }

    /// Every number if there are few GPUs; with many, one more or less is not worth a line.
    fn gpu_counts(&self) -> Vec<usize> {
        match self.gpus {
            ..=MANY_GPUS => (1..=self.gpus).collect(),
            _ => steps(self.gpus),
        }
    }

    /// Solves the model, or simulates it if the Markov chain is too large to solve.
    fn solve(&self, users: usize, gpus: usize, effort: Effort) -> anyhow::Result<Solution> {
        if self.exclusive {
            let answer = exclusive::solve(&self.rates, users, gpus).context(
                "With exclusive GPUs and people who never leave, all other people wait forever\nhint: say how long people stay, for example --stay 90m",
            )?;
            return Ok(Solution::Exact(answer));
        }
        Ok(solution(&self.rates, users, gpus, effort))
    }

    /// Doubles, then bisects: more people never wait less.
    fn most(&self, gpus: usize) -> anyhow::Result<Most> {
        let (served, over) = self.last(gpus, gpus, |answer| answer.starts_within(self.limit))?;
        let from = served.as_ref().map_or(gpus, Solution::people);
        let (_, minutes) = self.last(gpus, from, |answer| answer.wait() < MINUTE)?;
        Ok(Most {
            gpus,
            minutes: minutes.map(|answer| answer.people()),
            served: served.map(Forecast::from),
            over: over.map(Forecast::from),
        })
    }

    /// The last good answer from `first` people on, and the next one.
    fn last(
        &self,
        gpus: usize,
        first: usize,
        is_good: impl Fn(&Solution) -> bool,
    ) -> anyhow::Result<(Option<Solution>, Option<Solution>)> {
        let mut good = None;
        let (mut low, mut high, mut bad) = (0, first, None);
        while bad.is_none() && high < MOST_PEOPLE {
            match self.solve(high, gpus, Effort::QUICK) {
                Ok(answer) if is_good(&answer) => {
                    (low, high) = (high, high * 2);
                    good = Some(answer);
                }
                Ok(answer) => bad = Some(answer),
                Err(_) if self.exclusive => break,
                Err(error) => return Err(error),
            }
        }
        if bad.is_some() {
            while high - low > 1 {
                let middle = low.midpoint(high);
                let answer = self.solve(middle, gpus, Effort::QUICK)?;
                if is_good(&answer) {
                    (low, good) = (middle, Some(answer));
                } else {
                    (high, bad) = (middle, Some(answer));
                }
            }
        }
        Ok((good, bad))
    }
}

#[cfg(test)]
mod tests {
    use super::steps;

    #[test]
    fn a_table_has_about_a_dozen_rows_and_ends_with_what_was_asked() {
        assert_eq!(steps(1), [1]);
        assert_eq!(steps(7), [1, 2, 5, 7]);
        assert_eq!(steps(40), [1, 2, 5, 10, 20, 30, 40]);
        assert_eq!(steps(500), [1, 100, 200, 300, 400, 500]);
    }
}
