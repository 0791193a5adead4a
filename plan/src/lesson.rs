//! A lesson: how many cells must run at once for its people, and whether there are enough GPUs.

use crate::{
    forecast::{Effort, fewest_gpus},
    rates::Rates,
    simulation::{Course, Fleet, FleetAnswer, Group, Runs, lesson},
};
use baton_humanize::{approximate, people};
use baton_protocol::api::{LessonOutlook, LessonWait};
use std::time::Duration;

/// How many cells must run at once so that 99 of 100 cells of these people start `within` this many
/// seconds.
#[must_use]
pub fn lesson_slots(rates: &Rates, people: usize, within: f64) -> u32 {
    let slots = fewest_gpus(rates, people, within, Effort::LIGHT);
    u32::try_from(slots).unwrap_or(u32::MAX)
}

/// Simulates a lesson of this many seconds on machines and pools. Pools start as many machines for it as
/// the broker's do.
#[must_use]
pub fn simulated_lesson(fleet: &Fleet, seconds: f64, runs: Runs) -> FleetAnswer {
    let slots = |group: &Group| match (&group.course, fleet.pools_of(group).next()) {
        (Course::Drawn { people, edit, run }, Some((_, pool))) => {
            let rates = Rates {
                submission: 1.0 / edit.mean(),
                execution: 1.0 / run.mean(),
                ..Rates::USUAL
            };
            let within_ms = pool.scaling.target_wait_ms;
            lesson_slots(&rates, *people, within_ms as f64 / 1e3)
        }
        // A past is not planned, and no pool can be ready for people whose cells it cannot run.
        _ => 0,
    };
    let slots: Vec<u32> = fleet.groups.iter().map(slots).collect();
    lesson(fleet, seconds, &slots, runs)
}

/// The predicted wait that one in a hundred cells exceeds, with the slots that are ready when the lesson
/// begins: at least the present ones. `None` if there is nothing that could run a cell.
#[must_use]
pub fn expected_wait(lesson: &LessonOutlook) -> Option<Duration> {
    wait_on(lesson, lesson.slots_now.max(lesson.ready_slots))
        .map(|wait| Duration::from_millis(wait.wait_99_ms))
}

/// `350 people: with the present 8 slots 1 in 100 cells waits longer than 4 min; with the 10 slots ready at its start:
/// 52 s; with all 24 that the pools may start: 2.0 s.`
#[must_use]
pub fn lesson_sentence(lesson: &LessonOutlook) -> String {
    let people = match lesson.other_people {
        0 => people(lesson.people),
        others => format!(
            "{}, beside {others} of other lessons",
            people(lesson.people)
        ),
    };
    let mut parts = Vec::new();
    for wait in &lesson.waits {
        let wait_99 = approximate(Duration::from_millis(wait.wait_99_ms).as_secs_f64());
        let slots = match wait.slots {
            1 => "1 slot".to_owned(),
            slots => format!("{slots} slots"),
        };
        let on = match wait.slots {
            all if all == lesson.most_slots && all > lesson.slots_now => {
                format!("all {all} that the pools may start")
            }
            now if now == lesson.slots_now => format!("the present {slots}"),
            ready if ready == lesson.ready_slots => format!("the {slots} ready at its start"),
            _ => slots,
        };
        parts.push(match parts.is_empty() {
            true => format!("with {on} 1 in 100 cells waits longer than {wait_99}"),
            false => format!("with {on}: {wait_99}"),
        });
    }
    let lack = match lesson.enough_slots > lesson.most_slots {
        true => format!(
            " {} slots would be enough for a wait of at most a minute.",
            lesson.enough_slots
        ),
        false => String::new(),
    };
    match parts.is_empty() {
        true => format!("{people}, and no worker for them.{lack}"),
        false => format!("{people}: {}.{lack}", parts.join("; ")),
    }
}

fn wait_on(lesson: &LessonOutlook, slots: u32) -> Option<&LessonWait> {
    lesson.waits.iter().find(|wait| wait.slots == slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lesson(slots_now: u32, most_slots: u32) -> LessonOutlook {
        let wait = |slots, wait_99_ms| LessonWait { slots, wait_99_ms };
        let mut waits = vec![wait(8, 241_000), wait(10, 52_000), wait(24, 2_000)];
        waits.retain(|wait| [slots_now, 10, most_slots].contains(&wait.slots));
        LessonOutlook {
            course: "ml101".to_owned(),
            when: "Mon 17:00-18:30".to_owned(),
            people: 350,
            other_people: 0,
            starts_ms: 0,
            ends_ms: 1,
            slots_now,
            ready_slots: most_slots.min(10),
            enough_slots: 10,
            most_slots,
            waits,
            week: Vec::new(),
            last: None,
        }
    }

    #[test]
    fn other_lessons_at_the_same_time_are_named() {
        let lesson = LessonOutlook {
            other_people: 120,
            ..lesson(8, 24)
        };
        let sentence = lesson_sentence(&lesson);
        assert!(sentence.starts_with("350 people, beside 120 of other lessons: with the present"));
    }

    #[test]
    fn a_lesson_is_told_with_what_there_is_and_what_would_be_enough() {
        assert_eq!(
            lesson_sentence(&lesson(8, 24)),
            "350 people: with the present 8 slots 1 in 100 cells waits longer than 4 min; with the 10 slots \
             ready at its start: 52 s; with all 24 that the pools may start: 2.0 s."
        );
        assert_eq!(expected_wait(&lesson(8, 24)), Some(Duration::from_secs(52)));
        assert_eq!(
            lesson_sentence(&lesson(8, 8)),
            "350 people: with the present 8 slots 1 in 100 cells waits longer than 4 min; with 10 slots: 52 s. \
             10 slots would be enough for a wait of at most a minute."
        );
        assert_eq!(expected_wait(&lesson(8, 8)), Some(Duration::from_secs(241)));
        // The present workers of a pool may be more than it starts for the lesson.
        assert_eq!(expected_wait(&lesson(24, 24)), Some(Duration::from_secs(2)));
        assert_eq!(expected_wait(&lesson(0, 0)), None);
        let mut none = lesson(0, 0);
        none.waits.clear();
        assert_eq!(
            lesson_sentence(&none),
            "350 people, and no worker for them. 10 slots would be enough for a wait of at most a minute."
        );
    }
}
