//! The commands that act on the broker: on jobs, workers and courses.

use super::{job, number, switch, with_flags};
use crate::settings::Value;
use clap::{Arg, ArgAction, ArgGroup, Command, value_parser};
use std::{path::PathBuf, time::Duration};

/// For example `Mon 17:00-18:30 350`.
fn lesson(text: &str) -> Result<(String, u32), String> {
    let lesson = text.trim().rsplit_once(' ');
    let lesson = lesson.and_then(|(when, people)| Some((when.to_owned(), people.parse().ok()?)));
    lesson.ok_or_else(|| {
        "a time and a number of people are expected, such as \"Mon 17:00-18:30 350\"".to_owned()
    })
}

pub(super) fn actions() -> [Command; 8] {
    let worker = || {
        Arg::new("worker")
            .value_name("WORKER")
            .required(true)
            .help("The name of the worker, as `baton workers` shows it")
    };
    let why = |help: &'static str| {
        Arg::new("reason")
            .long("reason")
            .value_name("TEXT")
            .help(help)
    };
    let actions = [
        Command::new("cancel")
            .about("Stop a job: your own, or one of a course that you are staff of")
            .arg(job())
            .arg(why("The reason; the owner of the job reads it")),
        Command::new("hold")
            .about("Put a waiting job on hold")
            .arg(job())
            .arg(why("The reason; the owner of the job reads it").required(true)),
        Command::new("release")
            .about("Release a job that is on hold")
            .arg(job()),
        Command::new("front")
            .about("Move a waiting job to the front")
            .arg(job())
            .arg(why("The reason; it is recorded").required(true)),
        Command::new("drain")
            .about("Drain a worker: it accepts no new jobs and finishes the running ones")
            .arg(worker())
            .arg(why("The reason; waiting people read it").required(true)),
        Command::new("resume")
            .about("Let a drained worker accept jobs again (for a job: `baton run --resume`)")
            .arg(worker()),
        course(),
        Command::new("audit")
            .about("List the actions of staff")
            .arg(
                Arg::new("course")
                    .long("course")
                    .value_name("NAME")
                    .help("Only for this course"),
            )
            .arg(number("limit", "20", "The largest number of entries")),
    ];
    actions.map(|action| with_flags(action.arg(switch("json", "Print JSON"))))
}

pub(super) fn publish() -> Command {
    let publish = Command::new("publish")
        .about("Make data public in a course that you are staff of, so that its cells need not upload it")
        .arg(Arg::new("course").value_name("COURSE").required(true).help("The name of the course"))
        .arg(
            Arg::new("files")
                .value_name("FILE")
                .num_args(1..)
                .value_parser(value_parser!(PathBuf))
                .help("Replace a file of the same name"),
        )
        .arg(switch("list", "List public files"))
        .arg(
            Arg::new("withdraw")
                .long("withdraw")
                .value_name("NAME")
                .help("Withdraw this public file"),
        )
        .arg(switch("json", "Print JSON"))
        .group(
            ArgGroup::new("what")
                .args(["files", "list", "withdraw"])
                .required(true),
        );
    with_flags(publish)
}

pub(super) fn grant() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let grant = Command::new("grant")
        .about("Grant GPU time beyond the budget of a course that you are staff of, for a while")
        .arg(
            Arg::new("person")
                .value_name("PERSON")
                .requires("time")
                .help("Who gets it"),
        )
        .arg(
            Arg::new("time")
                .value_name("TIME")
                .value_parser(time_or_none)
                .requires("person")
                .help("How much more in each period of the budget, such as 2h, in place of an earlier grant; none revokes it"),
        )
        .arg(
            option("everyone", "TIME", "The same for each person in the course")
                .value_parser(time_or_none),
        )
        .arg(switch("list", "List what is granted"))
        .arg(option(
            "course",
            "COURSE",
            "The course; not needed if you are in only one",
        ))
        .arg(option(
            "until",
            "WHEN",
            "When it ends, such as 2026-11-20T23:59; by default with the present period of the budget",
        ))
        .arg(switch("json", "Print JSON"))
        .group(
            ArgGroup::new("what")
                .args(["person", "everyone", "list"])
                .required(true),
        );
    with_flags(grant)
}

fn time_or_none(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "none" => Ok(None),
        text => Duration::from_text(text).map(Some),
    }
}

fn course() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let time = |name, help| {
        // `none` removes the limit.
        option(name, "TIME", help).value_parser(time_or_none)
    };
    Command::new("course")
        .about("Change the settings of a course; others stay unchanged")
        .arg(Arg::new("course").value_name("COURSE").required(true).help("The name of the course"))
        .arg(
            option("weight", "NUMBER", "Twice the weight means twice the share")
                .value_parser(value_parser!(f64)),
        )
        .arg(time(
            "limit",
            "The time limit of cells without --timeout, or none",
        ))
        .arg(time("longest", "The longest time limit that a cell may ask for, or none"))
        .arg(option(
            "deadline",
            "WHEN",
            "The course has priority until this time, such as 2026-11-20T23:59; replaces all other deadlines",
        ))
        .arg(
            option(
                "deadline-weight",
                "NUMBER",
                "The factor by which the deadline multiplies the weight",
            )
            .value_parser(value_parser!(f64))
            .default_value("3"),
        )
        .arg(
            option("before", "TIME", "How long before the deadline the priority begins")
                .value_parser(Duration::from_text)
                .default_value("24h"),
        )
        .arg(switch("no-deadline", "Remove all deadlines"))
        .arg(option(
            "pause",
            "WHY",
            "Pause the course: its cells do not start, and waiting people read this reason",
        ))
        .arg(switch("unpause", "End the pause"))
        .arg(option(
            "message",
            "TEXT",
            "A message for waiting people",
        ))
        .arg(switch("no-message", "Remove the message"))
        .arg(
            option(
                "staff-see-outputs",
                "YES",
                "Whether staff can read the output of students' cells",
            )
            .value_parser(value_parser!(bool))
            .action(ArgAction::Set),
        )
        .arg(
            option(
                "lesson",
                "WHEN PEOPLE",
                "When people of the course work together, and how many: \"Mon 17:00-18:30 350\"; repeat it for several lessons; they replace the earlier ones",
            )
            .value_parser(lesson)
            .action(ArgAction::Append),
        )
        .arg(switch("no-lessons", "Remove all lessons"))
        .group(ArgGroup::new("lessons").args(["lesson", "no-lessons"]))
        .group(ArgGroup::new("deadlines").args(["deadline", "no-deadline"]))
        .group(ArgGroup::new("pausing").args(["pause", "unpause"]))
        .group(ArgGroup::new("telling").args(["message", "no-message"]))
}
