//! `baton grant`: GPU time beyond the budget of a course, for one person or for everyone.

use super::{
    act::segment,
    ask::{client, run, shown, text},
    when::read_end,
};
use crate::{arguments::Limit, settings::Settings};
use baton_protocol::api::{Allowance, Course, NewAllowance, Page, Revocation};
use baton_transport::Api;
use clap::{ArgGroup, Args};
use std::process::ExitCode;

/// Grant GPU time beyond the budget of a course that you are staff of, for a while
#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub(crate) struct Grant {
    /// Who gets it
    #[arg(requires = "time", group = "what")]
    person: Option<String>,
    /// Additional GPU time in each period of the budget, such as 2h; replaces an earlier grant, and none revokes it
    #[arg(requires = "person")]
    time: Option<Limit>,
    /// The same for each person in the course
    #[arg(long, value_name = "TIME", group = "what")]
    everyone: Option<Limit>,
    /// List what is granted
    #[arg(long, group = "what")]
    list: bool,
    /// The course; not needed if you are in only one
    #[arg(long)]
    course: Option<String>,
    /// When it ends, such as 2026-11-20T23:59; by default with the present period of the budget
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(settings: &Settings, of: &Grant) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(async {
        let courses: Page<Course> = api.ask("/v1/courses", &[]).await?;
        let course = match of.course.as_ref().or(settings.course.as_ref()) {
            Some(course) => course,
            None => only(&courses.items)?,
        };
        let allowances = of.answer(&api, course, &courses.items).await?;
        shown(&allowances, of.json, |allowances| {
            text::allowances(allowances)
        })
    })
}

impl Grant {
    async fn answer(
        &self,
        api: &Api,
        course: &str,
        courses: &[Course],
    ) -> anyhow::Result<Vec<Allowance>> {
        let path = format!("/v1/courses/{}/allowances", segment(course));
        let person = self.person.clone();
        let answer: Page<Allowance> = match self.time.or(self.everyone).map(Limit::ms) {
            None => api.ask(&path, &[]).await?,
            Some(None) => {
                let revocation = Revocation { person };
                api.act(&format!("{path}/revoke"), &revocation).await?
            }
            Some(Some(gpu_time_ms)) => {
                let until = self.until.as_deref();
                let until = until.map(|when| read_end(courses, "--until", when));
                let new = NewAllowance {
                    person,
                    gpu_time_ms,
                    until_ms: until.transpose()?,
                };
                api.act(&path, &new).await?
            }
        };
        Ok(answer.items)
    }
}

fn only(courses: &[Course]) -> anyhow::Result<&String> {
    match courses {
        [only] => Ok(&only.course),
        courses => {
            let names: Vec<&str> = courses.iter().map(|known| known.course.as_str()).collect();
            anyhow::bail!(
                "Which course?\nhint: name it with --course; yours: {}",
                names.join(", ")
            )
        }
    }
}
