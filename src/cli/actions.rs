//! The commands that act on the broker: on jobs, workers and courses.

use clap::{Arg, ArgAction, ArgGroup, Command, value_parser};

use super::{number, switch, with_flags};
use crate::settings::Value;
use std::{path::PathBuf, time::Duration};

pub(super) fn actions() -> [Command; 8] {
    let job = || {
        Arg::new("job")
            .value_name("JOB")
            .required(true)
            .help("The last digits of the job, as errors, pages and `baton jobs` show them")
    };
    let worker = || Arg::new("worker").value_name("WORKER").required(true);
    let why = |help: &'static str| {
        Arg::new("reason")
            .long("reason")
            .value_name("TEXT")
            .help(help)
    };
    let actions = [
        Command::new("cancel")
            .about("Stop a job: your own, or one of a course of whose staff you are")
            .arg(job())
            .arg(why("Why; its owner reads it")),
        Command::new("hold")
            .about("Hold a waiting job back")
            .arg(job())
            .arg(why("Why; its owner reads it").required(true)),
        Command::new("release")
            .about("Let a job go that is held back")
            .arg(job()),
        Command::new("front")
            .about("Let a waiting job go first")
            .arg(job())
            .arg(why("Why; it is recorded").required(true)),
        Command::new("drain")
            .about("Let a worker take nothing new; what it runs goes on")
            .arg(worker())
            .arg(why("Why; those who wait read it").required(true)),
        Command::new("resume")
            .about("Let a worker take jobs again")
            .arg(worker()),
        course(),
        Command::new("audit")
            .about("Say who of the staff did what")
            .arg(
                Arg::new("course")
                    .long("course")
                    .value_name("NAME")
                    .help("Only for this course"),
            )
            .arg(number("limit", "20", "How many at most")),
    ];
    actions.map(|action| with_flags(action.arg(switch("json", "Print JSON"))))
}

pub(super) fn publish() -> Command {
    let publish = Command::new("publish")
        .about("Make data public in a course of whose staff you are, so that its cells need not bring it")
        .arg(Arg::new("course").value_name("COURSE").required(true))
        .arg(
            Arg::new("files")
                .value_name("FILE")
                .num_args(1..)
                .value_parser(value_parser!(PathBuf))
                .help("In place of one of the same name"),
        )
        .arg(switch("list", "List what is public"))
        .arg(
            Arg::new("withdraw")
                .long("withdraw")
                .value_name("NAME")
                .help("Make this file public no longer"),
        )
        .arg(switch("json", "Print JSON"))
        .group(
            ArgGroup::new("what")
                .args(["files", "list", "withdraw"])
                .required(true),
        );
    with_flags(publish)
}

fn course() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let time = |name, help| {
        option(name, "TIME", help).value_parser(|text: &str| {
            // `none` is no limit.
            match text {
                "none" => Ok(None),
                text => Duration::from_text(text).map(Some),
            }
        })
    };
    Command::new("course")
        .about("Change what a course may use; what is not named stays as it is")
        .arg(Arg::new("course").value_name("COURSE").required(true))
        .arg(
            option("weight", "NUMBER", "Twice the weight is twice the share")
                .value_parser(value_parser!(f64)),
        )
        .arg(time(
            "limit",
            "How long a cell may run that asks for nothing, or none",
        ))
        .arg(time("longest", "How long a cell may ask for, or none"))
        .arg(option(
            "deadline",
            "WHEN",
            "Its cells go first before this time, such as 2026-11-20T23:59; instead of all others",
        ))
        .arg(
            option(
                "deadline-weight",
                "NUMBER",
                "By how much the deadline multiplies the weight",
            )
            .value_parser(value_parser!(f64))
            .default_value("3"),
        )
        .arg(
            option("before", "TIME", "How long before the deadline it counts")
                .value_parser(Duration::from_text)
                .default_value("24h"),
        )
        .arg(switch("no-deadline", "No deadline counts any more"))
        .arg(option(
            "pause",
            "WHY",
            "Start none of its cells; those who wait read why",
        ))
        .arg(switch("unpause", "Start its cells again"))
        .arg(option(
            "message",
            "TEXT",
            "What those who wait read besides",
        ))
        .arg(switch("no-message", "Nothing besides"))
        .arg(
            option(
                "staff-see-outputs",
                "YES",
                "Whether staff may read what its students' cells print",
            )
            .value_parser(value_parser!(bool))
            .action(ArgAction::Set),
        )
        .group(ArgGroup::new("deadlines").args(["deadline", "no-deadline"]))
        .group(ArgGroup::new("pausing").args(["pause", "unpause"]))
        .group(ArgGroup::new("telling").args(["message", "no-message"]))
}
