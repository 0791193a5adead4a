//! The API's answers as tables and sentences.

use baton_humanize::{approximate, bytes, one_line, people};
use baton_plan::lesson_sentence;
use baton_protocol::{
    Outcome,
    api::{
        Act, Ahead, AheadBecause, Allowance, Budget, Course, Explanation, Job, JobState,
        LessonOutlook, PublicFile, QueueDetails, SavedState, Usage, Waiting, Worker, WorkerState,
    },
    proxy::Estimate,
};
use std::{collections::BTreeMap, time::Duration};

const NOTHING: &str = "-";

pub(in crate::commands) fn jobs(jobs: &[Job], now_ms: i64) -> String {
    let rows = jobs.iter().map(|job| {
        let until_ms = job.started_ms.or(job.finished_ms).unwrap_or(now_ms);
        [
            job.job.short(),
            state(job).to_owned(),
            job.person.clone(),
            course(job.course.as_deref()),
            job.notebook.clone(),
            job.kind.name().to_owned(),
            job.worker.clone().unwrap_or_else(|| NOTHING.to_owned()),
            duration(until_ms - job.submitted_ms),
            ran(job, now_ms).map_or_else(|| NOTHING.to_owned(), duration),
            job.waiting.as_ref().map_or_else(String::new, why),
        ]
    });
    let titles = [
        "JOB", "STATE", "PERSON", "COURSE", "NOTEBOOK", "KIND", "WORKER", "WAITED", "RAN", "WHY",
    ];
    table(titles, rows, "No jobs")
}

pub(in crate::commands) fn workers(workers: &[Worker]) -> String {
    let rows = workers.iter().map(|worker| {
        let state = match worker.state {
            WorkerState::Connected => "connected",
            WorkerState::Failing => "failing",
            WorkerState::Drained => "drained",
            WorkerState::Leaving => "leaving",
            WorkerState::Disconnected => "disconnected",
        };
        let devices: Vec<&str> = worker
            .devices
            .iter()
            .map(|device| device.model.as_str())
            .collect();
        let environments = worker.machine.environments.iter();
        let environments: Vec<String> = environments.map(ToString::to_string).collect();
        [
            worker.name.clone(),
            state.to_owned(),
            devices.join(", "),
            worker.machine.labels.join(", "),
            environments.join(", "),
            format!("{} of {}", worker.jobs, worker.slots),
            worker.warm_sessions.to_string(),
            match (worker.memory_used_bytes, worker.memory_bytes) {
                (Some(used), Some(whole)) => {
                    format!("{} of {}", bytes(used), bytes(whole))
                }
                _ => NOTHING.to_owned(),
            },
            worker.reason.clone().unwrap_or_default(),
        ]
    });
    let titles = [
        "WORKER",
        "STATE",
        "DEVICES",
        "LABELS",
        "ENVIRONMENTS",
        "CELLS",
        "WARM",
        "MEMORY",
        "REASON",
    ];
    table(titles, rows, "No worker is connected")
}

pub(in crate::commands) fn courses(courses: &[Course]) -> String {
    let limit = |ms: Option<u64>| ms.map_or_else(|| NOTHING.to_owned(), positive);
    let rows = courses.iter().map(|course| {
        [
            course.course.clone(),
            format!("{}", course.weight * course.boost),
            limit(course.timeout_ms),
            limit(course.longest_timeout_ms),
            course
                .budget
                .as_ref()
                .map_or_else(|| NOTHING.to_owned(), budget),
            course.running.to_string(),
            course.waiting.to_string(),
            match &course.paused {
                Some(why) => format!("paused: {why}"),
                None => course.message.clone().unwrap_or_default(),
            },
        ]
    });
    let titles = [
        "COURSE", "WEIGHT", "LIMIT", "LONGEST", "LEFT", "RUNNING", "WAITING", "NOTE",
    ];
    table(titles, rows, "No courses")
}

pub(in crate::commands) fn allowances(allowances: &[Allowance]) -> String {
    let rows = allowances.iter().map(|allowance| {
        let person = allowance.person.as_deref();
        let left = allowance.budget.as_ref();
        [
            person.unwrap_or("(everyone)").to_owned(),
            positive(allowance.gpu_time_ms),
            time(allowance.until_ms),
            left.map_or_else(|| NOTHING.to_owned(), budget),
            who(allowance.by.as_ref()),
        ]
    });
    let titles = ["PERSON", "MORE", "UNTIL (UTC)", "LEFT", "GRANTED BY"];
    table(titles, rows, "No additional GPU time is granted")
}

pub(in crate::commands) fn acts(acts: &[Act]) -> String {
    let rows = acts.iter().map(|act| {
        [
            time(act.at_ms),
            who(act.person.as_ref()),
            act.action.name().to_owned(),
            course(act.course.as_deref()),
            act.subject.clone(),
            act.detail.clone().unwrap_or_default(),
        ]
    });
    let titles = ["WHEN (UTC)", "WHO", "WHAT", "COURSE", "OF", "WHY"];
    table(titles, rows, "No actions yet")
}

pub(in crate::commands) fn public_files(files: &[PublicFile]) -> String {
    let rows = files.iter().map(|file| {
        [
            file.name.clone(),
            format!("{:.1} MiB", file.bytes as f64 / f64::from(1 << 20)),
            who(file.person.as_ref()),
            time(file.published_ms),
        ]
    });
    let titles = ["FILE", "SIZE", "WHO", "WHEN (UTC)"];
    table(titles, rows, "There are no public files")
}

pub(in crate::commands) fn saved_states(states: &[SavedState]) -> String {
    let rows = states.iter().map(|state| {
        [
            state.name.clone(),
            state.variables.to_string(),
            bytes(state.bytes),
            time(state.saved_ms),
            state.notebook.clone().unwrap_or_default(),
        ]
    });
    let titles = ["STATE", "VARIABLES", "SIZE", "SAVED (UTC)", "NOTEBOOK"];
    table(titles, rows, "No saved states")
}

/// The totals of each person in each course, the largest first.
pub(super) fn usage(rows: &[Usage], days: u32) -> String {
    let mut sums: BTreeMap<(&str, Option<&str>), (u64, u64)> = BTreeMap::new();
    for row in rows {
        let account = (row.person.as_str(), row.course.as_deref());
        let (run_ms, runs) = sums.entry(account).or_default();
        *run_ms += row.run_ms;
        *runs += row.runs;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, (run_ms, _))| std::cmp::Reverse(*run_ms));
    let rows = sums.into_iter().map(|((person, of), (run_ms, runs))| {
        [
            person.to_owned(),
            course(of),
            positive(run_ms),
            runs.to_string(),
        ]
    });
    let titles = ["PERSON", "COURSE", "GPU TIME", "CELLS"];
    let nothing = format!("No one has used a GPU in {days} days");
    table(titles, rows, &nothing)
}

pub(super) fn explanation(explanation: &Explanation, now_ms: i64) -> String {
    let job = &explanation.job;
    let mut lines = vec![
        format!(
            "Job {} of {} ({}, {})",
            job.job.short(),
            job.person,
            course(job.course.as_deref()),
            job.notebook
        ),
        format!("{}.", explanation.sentence),
    ];
    if let Some(waiting) = &job.waiting {
        let estimate = waiting.estimate.as_ref();
        lines.push(match estimate {
            Some(estimate) => format!("It is likely to start in {}.", range(estimate)),
            None => "No estimate yet: too little is known about the cells ahead.".to_owned(),
        });
        let waited = duration(now_ms - job.submitted_ms);
        lines.push(format!("It has waited for {waited}."));
    }
    if let Some(queue) = &explanation.queue {
        lines.extend(facts(queue));
    }
    lines.iter().map(|line| one_line(line) + "\n").collect()
}

fn facts(queue: &QueueDetails) -> Vec<String> {
    let mut facts: Vec<String> = queue.ahead.iter().map(ahead).collect();
    facts.push(format!(
        "Workers run {} and take {} at once.",
        count(queue.running, "cell"),
        queue.slots
    ));
    let precedence = &queue.precedence;
    let boost = match precedence.boost {
        1.0 => String::new(),
        boost => format!(", times {boost} because a deadline is near"),
    };
    facts.push(format!(
        "Its owner recently used {} of GPU time (half of it counts after {}); the course has weight {}{boost}.",
        positive(precedence.used_ms),
        positive(precedence.half_life_ms),
        precedence.weight
    ));
    if let Some(left) = &queue.budget {
        facts.push(format!("Budget: {}.", budget(left)));
    }
    facts
}

fn ahead(ahead: &Ahead) -> String {
    let because = match ahead.because {
        AheadBecause::Held => "staff hold this one back",
        AheadBecause::MovedToFront => "staff moved it to the front",
        AheadBecause::CoursePaused => "the course of this one is paused",
        AheadBecause::Deadline => "a deadline is near",
        AheadBecause::LowPriority => "this one has low priority",
        AheadBecause::UsedLess => "other people recently used less GPU time",
        AheadBecause::WaitedLonger => "it was submitted earlier, or its owner has waited longer",
    };
    match ahead.jobs {
        1 => format!("1 job is ahead because {because}."),
        jobs => format!("{jobs} jobs are ahead because {because}."),
    }
}

fn state(job: &Job) -> &'static str {
    match (job.state, job.outcome) {
        (JobState::Queued, _) => "waiting",
        (JobState::Assigned, _) => "sending",
        (JobState::Started, _) => "running",
        (JobState::Finished, outcome) => outcome.map_or("ended", Outcome::name),
    }
}

/// How long the job ran, or has been running.
fn ran(job: &Job, now_ms: i64) -> Option<i64> {
    let run_ms = job.run_ms.and_then(|ms| i64::try_from(ms).ok());
    run_ms.or_else(|| job.started_ms.map(|started| now_ms - started))
}

fn why(waiting: &Waiting) -> String {
    let estimate = waiting.estimate.as_ref();
    let starts = estimate.map_or_else(String::new, |estimate| format!("; in {}", range(estimate)));
    format!("{}{starts}", waiting.sentence)
}

fn range(estimate: &Estimate) -> String {
    format!(
        "{} ({} to {})",
        positive(estimate.middle_ms),
        positive(estimate.lower_ms),
        positive(estimate.upper_ms)
    )
}

fn budget(budget: &Budget) -> String {
    let period = budget.period.words();
    let granted = match budget.granted_ms {
        0 => String::new(),
        granted_ms => format!(" ({} of it granted)", positive(granted_ms)),
    };
    format!(
        "{} of {} left {period}{granted}",
        positive(budget.left_ms),
        positive(budget.of_ms)
    )
}

fn course(name: Option<&str>) -> String {
    name.unwrap_or(NOTHING).to_owned()
}

fn count(number: u32, noun: &str) -> String {
    match number {
        0 => format!("no {noun}"),
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

pub(in crate::commands) fn positive(ms: u64) -> String {
    baton_humanize::whole_seconds(Duration::from_millis(ms))
}

fn duration(ms: i64) -> String {
    positive(ms.max(0).unsigned_abs())
}

fn time(unix_ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(unix_ms);
    at.map_or_else(
        |_| NOTHING.to_owned(),
        |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// No person stands for the broker's own token.
fn who(person: Option<&String>) -> String {
    person.map_or_else(|| "(operator)".to_owned(), String::clone)
}

/// Columns as wide as their widest text. Each row is one line, whatever a broker has stored.
pub(in crate::commands) fn table<const COLUMNS: usize>(
    titles: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
    nothing: &str,
) -> String {
    let rows: Vec<[String; COLUMNS]> = rows.map(|row| row.map(|text| one_line(&text))).collect();
    if rows.is_empty() {
        return format!("{nothing}\n");
    }
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let texts = rows.iter().map(|row| row[column].chars().count());
        texts.chain([titles[column].len()]).max().unwrap_or(0)
    });
    let line = |texts: [&str; COLUMNS]| {
        let padded = texts.iter().zip(widths);
        let padded: Vec<String> = padded
            .map(|(text, width)| format!("{text:width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let lines = rows
        .iter()
        .map(|row| line(row.each_ref().map(String::as_str)));
    std::iter::once(line(titles)).chain(lines).collect()
}

/// Whether each lesson has enough GPUs, and how long cells waited the last time.
pub(in crate::commands) fn lessons(lessons: &[LessonOutlook]) -> String {
    let lines = lessons.iter().map(|lesson| {
        let last = lesson.last.map_or_else(String::new, |last| {
            let wait = approximate(Duration::from_millis(last.wait_99_ms).as_secs_f64());
            format!(
                " Last time: {}; 1 in 100 cells waited longer than {wait}.",
                people(last.people)
            )
        });
        format!(
            "{}, {}: {}{last}\n",
            lesson.course,
            lesson.when,
            lesson_sentence(lesson)
        )
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["ä", "1"], ["long", ""]].map(|row| row.map(str::to_owned));
        let found = table(["A", "B"], rows.into_iter(), "nothing");
        assert_eq!(found, "A     B\nä     1\nlong\n");
        assert_eq!(table(["A"], std::iter::empty(), "nothing"), "nothing\n");
        let forged = [["name\n1  forged \u{1b}[2J".to_owned()]];
        let found = table(["A"], forged.into_iter(), "nothing");
        assert_eq!(found, "A\nname\u{fffd}1  forged \u{fffd}[2J\n");
    }
}
