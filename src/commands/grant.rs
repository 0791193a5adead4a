//! `baton grant`: GPU time beyond the budget of a course, for one person or for everyone.

use super::{
    act::{local_ms, segment},
    ask::{client, run, shown, text},
};
use crate::settings::Settings;
use baton_protocol::api::{Allowance, Course, NewAllowance, Page, Revocation};
use baton_transport::Api;
use clap::ArgMatches;
use std::{process::ExitCode, time::Duration};

pub(crate) fn main(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(async {
        let course = match matches
            .get_one::<String>("course")
            .or(settings.course.as_ref())
        {
            Some(course) => course.clone(),
            None => only_course(&api).await?,
        };
        let allowances = answer(&api, &course, matches).await?;
        shown(&allowances, matches.get_flag("json"), |allowances| {
            text::allowances(allowances)
        })
    })
}

async fn answer(api: &Api, course: &str, matches: &ArgMatches) -> anyhow::Result<Vec<Allowance>> {
    let path = format!("/v1/courses/{}/allowances", segment(course));
    let person = matches.get_one::<String>("person").cloned();
    let time: Option<&Option<Duration>> = matches
        .get_one("time")
        .or_else(|| matches.get_one("everyone"));
    let answer: Page<Allowance> = match time {
        None => api.ask(&path, &[]).await?,
        Some(None) => {
            let revocation = Revocation { person };
            api.act(&format!("{path}/revoke"), &revocation).await?
        }
        Some(Some(time)) => {
            let until = matches.get_one::<String>("until");
            let new = NewAllowance {
                person,
                gpu_time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
                until_ms: until.map(|when| local_ms(when)).transpose()?,
            };
            api.act(&path, &new).await?
        }
    };
    Ok(answer.items)
}

async fn only_course(api: &Api) -> anyhow::Result<String> {
    let courses: Page<Course> = api.ask("/v1/courses", &[]).await?;
    let names: Vec<String> = courses
        .items
        .into_iter()
        .map(|found| found.course)
        .collect();
    match <[String; 1]>::try_from(names) {
        Ok([course]) => Ok(course),
        Err(names) => Err(anyhow::anyhow!(
            "Which course?\nhint: name it with --course; yours: {}",
            names.join(", ")
        )),
    }
}
