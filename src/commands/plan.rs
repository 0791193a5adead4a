//! `baton plan`: how many people share GPUs well, and how long each of them waits.

pub(crate) mod policies;
mod report;

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use baton_plan::{Answer, Rates, exclusive, shared, states};
use clap::ArgMatches;

/// What is asked.
struct Question {
    users: usize,
    gpus: usize,
    rates: Rates,
    exclusive: bool,
    /// The wait in seconds that 99 of 100 may have at most.
    limit: f64,
}

/// The most people that some GPUs serve within the limit.
struct Most {
    gpus: usize,
    /// `None` when not even one person more than GPUs is served so.
    served: Option<Answer>,
    /// One person more; `None` when that is more than can be solved.
    over: Option<Answer>,
}

pub(crate) fn main(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    if matches.get_flag("policies") {
        print!("{}", policies::compare(matches)?);
        return Ok(ExitCode::SUCCESS);
    }
    let question = Question::read(matches)?;
    let json = matches.get_flag("json");
    if matches.get_flag("states") {
        let states = states::solve(&question.rates, question.users).with_context(|| {
            format!(
                "There are too many states of {} people to list\nhint: --states lists those of up to {} people, for example --users 2",
                question.users,
                states::MAX_PEOPLE
            )
        })?;
        print!("{}", report::states(&states, json));
        return Ok(ExitCode::SUCCESS);
    }
    question.check_size()?;
    let mut answers = Vec::new();
    for gpus in 1..=question.gpus {
        for users in rows(question.users) {
            answers.push(question.solve(users, gpus)?);
        }
    }
    let most = (1..=question.gpus)
        .map(|gpus| question.most(gpus))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if json {
        println!("{}", report::json(&question, &answers, &most));
    } else {
        print!("{}", report::text(&question, &answers, &most));
    }
    Ok(ExitCode::SUCCESS)
}

/// 1, 2, 5, 10, 20, 30 and so on: about a dozen numbers, the last of them `users`.
fn rows(users: usize) -> Vec<usize> {
    let step = (users / 80 + 1) * 10;
    let mut rows: Vec<_> = [1, 2, 5]
        .into_iter()
        .chain((step..).step_by(step).take_while(|row| *row < users))
        .collect();
    rows.retain(|row| *row < users);
    rows.push(users);
    rows
}

impl Question {
    fn read(matches: &ArgMatches) -> anyhow::Result<Self> {
        let count = |name| usize::from(*matches.get_one::<u16>(name).expect("it has a default"));
        let seconds = |name| matches.get_one::<Duration>(name).map(Duration::as_secs_f64);
        let rate = |name| 1.0 / seconds(name).expect("it has a default");
        let rates = Rates {
            arrival: rate("away"),
            departure: seconds("stay").map_or(0.0, |stay| 1.0 / stay),
            submission: rate("edit"),
            execution: rate("run"),
            hand_over: rate("hand-over"),
        };
        Ok(Self {
            users: count("users"),
            gpus: count("gpus"),
            rates: rates
                .checked()
                .context("A time of zero has no rate; the shortest is 1 ms")?,
            exclusive: matches.get_flag("exclusive"),
            limit: seconds("wait").expect("it has a default"),
        })
    }

    fn check_size(&self) -> anyhow::Result<()> {
        for gpus in 1..=self.gpus {
            let states = shared::states(self.users, gpus);
            anyhow::ensure!(
                self.exclusive || states <= shared::MAX_STATES,
                "{} people and {gpus} GPUs have {states} states; up to {} can be solved exactly\nhint: ask for fewer people \
                 or GPUs; {gpus} GPUs serve at least {gpus} times as many people as one",
                self.users,
                shared::MAX_STATES
            );
        }
        Ok(())
    }

    fn solve(&self, users: usize, gpus: usize) -> anyhow::Result<Answer> {
        if self.exclusive {
            return exclusive::solve(&self.rates, users, gpus).context(
                "With exclusive GPUs and people who never leave, all the others wait for ever\nhint: say how long people stay, for example --stay 90m",
            );
        }
        shared::solve(&self.rates, users, gpus).context(
            "The chain was not solved to twelve digits\nhint: rates that are many orders of magnitude apart make it hard",
        )
    }

    /// By doubling and then halving: more people never wait less.
    fn most(&self, gpus: usize) -> anyhow::Result<Most> {
        let fits = |users| {
            (self.exclusive && self.rates.departure > 0.0)
                || shared::states(users, gpus) <= shared::MAX_STATES
        };
        let is_served = |answer: &Answer| answer.waits.percentile(0.99) <= self.limit;
        let mut served = None;
        let (mut low, mut high, mut over) = (0, gpus, None);
        while over.is_none() && fits(high) && high < 10_000 {
            match self.solve(high, gpus) {
                Ok(answer) if is_served(&answer) => {
                    (low, high) = (high, high * 2);
                    served = Some(answer);
                }
                Ok(answer) => over = Some(answer),
                Err(_) if self.exclusive => break,
                Err(error) => return Err(error),
            }
        }
        if over.is_some() {
            while high - low > 1 {
                let middle = low.midpoint(high);
                let answer = self.solve(middle, gpus)?;
                if is_served(&answer) {
                    (low, served) = (middle, Some(answer));
                } else {
                    (high, over) = (middle, Some(answer));
                }
            }
        }
        Ok(Most { gpus, served, over })
    }
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn a_table_has_about_a_dozen_rows_and_ends_with_what_was_asked() {
        assert_eq!(rows(1), [1]);
        assert_eq!(rows(7), [1, 2, 5, 7]);
        assert_eq!(rows(40), [1, 2, 5, 10, 20, 30, 40]);
        assert_eq!(rows(500).len(), 11);
    }
}
