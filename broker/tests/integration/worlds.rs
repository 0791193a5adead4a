//! Compares pages with counts from the API, in situations in which every number differs.

mod counted;

use crate::{
    actions::done,
    api::{every, get},
    harness::{Broker, FakeProxy, FakeWorker, Rules, started, submission},
};
use baton_broker::{Person, Role};
use baton_protocol::{
    api::{Act, Course, Job, JobState, Page, Usage, Worker, WorkerState},
    proxy::FromProxy,
};
use counted::Counted;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

const COURSES: &str =
    "[course.ml]\n[course.vision]\nweight = 2\n[course.thesis]\npaused = \"Back on Monday\"\n";
const STAFF: &str = "tia-token";
const ADMIN: &str = "root-token";

/// How many there are of each kind. All numbers of cells differ.
#[derive(Clone, Copy)]
struct World {
    /// On the first worker.
    running: u32,
    /// On the first worker, while their state is being sent.
    starting: u32,
    /// Free slots of the first worker.
    free: u32,
    /// On the second worker, which exists only if this is not 0.
    running_there: u32,
    waiting_ml: u32,
    waiting_vision: u32,
    held: u32,
    /// In a course that is paused.
    paused: u32,
    finished: u32,
    /// The slots of a drained worker.
    drained_slots: u32,
}

const WORLDS: [World; 4] = [
    World {
        running: 3,
        starting: 2,
        free: 0,
        running_there: 4,
        waiting_ml: 6,
        waiting_vision: 5,
        held: 1,
        paused: 7,
        finished: 8,
        drained_slots: 11,
    },
    World {
        running: 5,
        starting: 1,
        free: 0,
        running_there: 2,
        waiting_ml: 3,
        waiting_vision: 7,
        held: 4,
        paused: 6,
        finished: 12,
        drained_slots: 9,
    },
    World {
        running: 4,
        starting: 3,
        free: 5,
        running_there: 0,
        waiting_ml: 0,
        waiting_vision: 0,
        held: 0,
        paused: 2,
        finished: 1,
        drained_slots: 6,
    },
    World {
        running: 1,
        starting: 0,
        free: 0,
        running_there: 2,
        waiting_ml: 0,
        waiting_vision: 4,
        held: 3,
        paused: 0,
        finished: 5,
        drained_slots: 7,
    },
];

/// A situation, with all peers that must stay connected.
struct Made {
    broker: Broker,
    proxies: Vec<FakeProxy>,
    /// The number of the next person.
    next: u32,
    workers: Vec<FakeWorker>,
}

impl Made {
    async fn of(world: World) -> Self {
        let broker = Broker::start_with(Rules {
            token: Some("sesame"),
            tcp: true,
            people: Some(people()),
            courses: Some(COURSES.to_owned()),
            ..Rules::default()
        })
        .await;
        let slots = world.running + world.starting + world.free;
        let mut first = FakeWorker::named(&broker.dial, "gpu-a", slots).await;
        let mut made = Self {
            broker,
            proxies: Vec::new(),
            next: 0,
            workers: Vec::new(),
        };
        for _ in 0..world.finished {
            let job = made.submit("ml").await;
            assert_eq!(first.run_to_end().await.to_string(), job);
            made.proxies.pop();
        }
        let dial = made.broker.dial.clone();
        let drained = FakeWorker::named(&dial, "gpu-b", world.drained_slots).await;
        let why = json!({"reason": "A new fan"});
        done(&made.broker, ADMIN, "/v1/workers/gpu-b/drain", why).await;
        made.fill(&mut first, world.running, world.starting).await;
        made.workers.extend([first, drained]);
        if world.running_there > 0 {
            let mut second = FakeWorker::named(&dial, "gpu-c", world.running_there).await;
            made.fill(&mut second, world.running_there, 0).await;
            made.workers.push(second);
        }
        for number in 0..world.held + world.waiting_ml {
            let job = made.submit("ml").await;
            if number < world.held {
                let why = json!({"reason": "Come to room 5"});
                done(&made.broker, STAFF, &format!("/v1/jobs/{job}/hold"), why).await;
            }
        }
        for _ in 0..world.waiting_vision {
            made.submit("vision").await;
        }
        for _ in 0..world.paused {
            made.submit("thesis").await;
        }
        made
    }

    /// Starts cells on the worker, and then cells whose state is still being sent.
    async fn fill(&mut self, worker: &mut FakeWorker, running: u32, starting: u32) {
        for number in 0..running + starting {
            self.submit(if number % 3 == 1 { "vision" } else { "ml" })
                .await;
            let (fencing, submission) = worker.assignment().await;
            if number < running {
                let begins = vec![started()];
                worker.report(submission.job, fencing, 1, begins).await;
            }
        }
    }

    /// Submits a cell of the next person in this course, and waits until the broker knows it.
    async fn submit(&mut self, course: &str) -> String {
        let person = format!("{course}-{}", self.next);
        self.next += 1;
        let dial = self.broker.dial_as(&format!("{person}-token"));
        let mut proxy = FakeProxy::new(&dial).await;
        let mut cell = submission(proxy.notebook);
        cell.notebook_name = format!("{person}.ipynb");
        let job = cell.job.to_string();
        proxy.send(FromProxy::Submit(cell)).await;
        proxy.expect_news().await;
        self.proxies.push(proxy);
        job
    }

    async fn page(&self, token: &str, path: &str) -> String {
        self.broker.get_as(token, path).await
    }
}

/// Each person has a different number, so no one has two cells.
fn people() -> String {
    let of = |name: String, admin, course: Option<(&str, Role)>| {
        let courses = course.map(|(course, role)| (course.to_owned(), role));
        let token = format!("{name}-token");
        Person::new(name, &token, admin, courses.into_iter().collect()).entry()
    };
    let student = |course, number| {
        of(
            format!("{course}-{number}"),
            false,
            Some((course, Role::Student)),
        )
    };
    let students = ["ml", "vision", "thesis"]
        .into_iter()
        .flat_map(|course| (0..60).map(move |number| student(course, number)));
    let staff = [
        of("tia".to_owned(), false, Some(("ml", Role::Staff))),
        of("root".to_owned(), true, None),
    ];
    students.chain(staff).collect()
}

/// The text of a part of a page.
fn words(html: &str) -> String {
    let mut words = String::new();
    for piece in html.split('<') {
        words.push_str(piece.split_once('>').map_or(piece, |(_, text)| text));
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The rows of the table with this caption.
fn rows(page: &str, caption: &str) -> Vec<Vec<String>> {
    let (_, table) = page
        .split_once(&format!("<caption>{caption}</caption>"))
        .unwrap_or_else(|| panic!("no table {caption} in {page}"));
    let (_, body) = table.split_once("<tbody>").unwrap();
    let (body, _) = body.split_once("</tbody>").unwrap();
    let row = |row: &str| {
        let cells = row.replace("<th", "<td");
        let cells = cells.split("<td").skip(1);
        cells.map(|cell| words(&format!("<td{cell}"))).collect()
    };
    body.split("<tr").skip(1).map(row).collect()
}

fn columns<const COUNT: usize>(
    rows: &[Vec<String>],
    which: [usize; COUNT],
) -> Vec<[String; COUNT]> {
    let pick = |row: &Vec<String>| which.map(|column| row[column].clone());
    rows.iter().map(pick).collect()
}

fn title(job: &Job) -> String {
    format!("{} [{}]", job.notebook, job.execution_count.unwrap())
}

fn course(name: Option<&String>) -> String {
    name.map_or_else(|| "–".to_owned(), String::clone)
}

/// The same as `words::duration`, for less than a minute.
fn seconds(ms: i64) -> String {
    format!("{} s", ms / 1000)
}

#[tokio::test]
async fn the_first_page_counts_what_the_api_has() {
    for world in WORLDS {
        let made = Made::of(world).await;
        let all = Counted::by(&made.broker, ADMIN).await;
        for token in [ADMIN, STAFF, "ml-0-token", "vision-59-token"] {
            let page = made.page(token, "/").await;
            let seen = Counted::by(&made.broker, token).await;
            check_sentences(&page, &all);
            check_machines(&page, &all, &seen);
            check_queue(&page, &all, &seen);
            check_finished(&page, &seen);
        }
    }
}

fn check_sentences(page: &str, all: &Counted) {
    let (_, now) = page.split_once("id=\"now\"").unwrap();
    let (now, _) = now.split_once("id=\"machines\"").unwrap();
    let expected = format!("{}{}", all.sentence(), all.of_workers());
    assert!(words(now).contains(&expected), "{expected}\n{}", words(now));
}

fn check_machines(page: &str, all: &Counted, seen: &Counted) {
    for worker in &all.workers {
        let (_, card) = page
            .split_once(&format!("<h2>{}</h2>", worker.name))
            .unwrap();
        let (card, _) = card.split_once("</ul>").unwrap();
        let busy = format!("{} of {} slots busy", worker.jobs, worker.slots);
        assert!(words(card).contains(&busy), "{busy}\n{}", words(card));
        let slots: Vec<String> = card
            .split("<li")
            .skip(1)
            .map(|slot| words(&format!("<li{slot}")))
            .collect();
        assert_eq!(slots.len(), worker.slots as usize);
        let count = |text: &str| slots.iter().filter(|slot| slot.starts_with(text)).count();
        let free = if worker.state == WorkerState::Connected {
            "free"
        } else {
            "closed"
        };
        assert_eq!(count(free), (worker.slots - worker.jobs) as usize);
        let here = |job: &&Job| {
            let runs = matches!(job.state, JobState::Assigned | JobState::Started);
            runs && job.worker.as_ref() == Some(&worker.name)
        };
        for job in seen.jobs.iter().filter(here) {
            assert_eq!(count(&job.person), 1, "{} in {slots:?}", job.person);
        }
        let others = all.jobs.iter().filter(here).count() - seen.jobs.iter().filter(here).count();
        assert_eq!(
            count("another person in ml")
                + count("a person in another course")
                + count("another person in vision"),
            others
        );
    }
}

fn check_queue(page: &str, all: &Counted, seen: &Counted) {
    let waiting = |counted: &Counted| counted.in_state(JobState::Queued).count();
    let others = waiting(all) - waiting(seen);
    let mut found = rows(page, "Waiting");
    if waiting(all) == 0 {
        assert!(found[0][0].starts_with("No one is waiting"), "{found:?}");
        return;
    }
    if others > 0 {
        let said = found.pop().unwrap().concat();
        let said = said.trim_start_matches("and ");
        let noun = if others == 1 {
            "cell of another person"
        } else {
            "cells of other people"
        };
        assert_eq!(said, format!("{others} {noun}"));
    }
    let mut expected: Vec<(u32, [String; 4])> = seen
        .in_state(JobState::Queued)
        .map(|job| {
            let place = job.waiting.as_ref().unwrap().position;
            let cells = [
                place.to_string(),
                job.person.clone(),
                title(job),
                course(job.course.as_ref()),
            ];
            (place, cells)
        })
        .collect();
    expected.sort();
    let expected: Vec<_> = expected.into_iter().map(|(_, cells)| cells).collect();
    assert_eq!(columns(&found, [0, 1, 2, 3]), expected);
}

fn check_finished(page: &str, seen: &Counted) {
    let mut ended: Vec<&Job> = seen.in_state(JobState::Finished).collect();
    ended.sort_by_key(|job| std::cmp::Reverse(job.finished_ms));
    let found = rows(page, "Last cells");
    if ended.is_empty() {
        assert!(
            found[0][0].starts_with("No cell that you can see has ended yet"),
            "{found:?}"
        );
        return;
    }
    let expected: Vec<_> = ended
        .iter()
        .map(|job| {
            let (started, finished) = (job.started_ms.unwrap(), job.finished_ms.unwrap());
            [
                job.person.clone(),
                title(job),
                course(job.course.as_ref()),
                job.worker.clone().unwrap(),
                seconds(started - job.submitted_ms),
                seconds(finished - started),
            ]
        })
        .collect();
    assert_eq!(columns(&found, [1, 2, 3, 4, 5, 6]), expected);
}

#[tokio::test]
async fn the_other_pages_count_what_the_api_has() {
    for world in WORLDS {
        let made = Made::of(world).await;
        let all = Counted::by(&made.broker, ADMIN).await;
        for token in [ADMIN, STAFF, "ml-0-token", "vision-59-token"] {
            let seen = Counted::by(&made.broker, token).await;
            check_workers(&made.page(token, "/workers").await, &all);
            let courses: Page<Course> = get(&made.broker, token, "/v1/courses").await;
            check_courses(&made.page(token, "/courses").await, &courses.items, &all);
            let used = every(&made.broker, token, "/v1/usage?limit=500").await;
            check_people(&made.page(token, "/people").await, &used, &seen);
            let acts = every(&made.broker, token, "/v1/audit?limit=500").await;
            check_audit(&made.page(token, "/audit").await, &acts, token);
            let job = seen.in_state(JobState::Finished).next();
            if let Some(job) = job {
                let page = made.page(token, &format!("/job?id={}", job.job)).await;
                assert!(!page.contains("action=\"act\""), "it is over: {page}");
            }
        }
    }
}

#[tokio::test]
async fn the_capacity_page_counts_what_the_api_has() {
    for world in WORLDS {
        let made = Made::of(world).await;
        for token in [ADMIN, STAFF] {
            let seen = Counted::by(&made.broker, token).await;
            let page = words(&made.page(token, "/capacity").await);
            let expected = match seen.in_state(JobState::Finished).count() {
                1 => "Only 1 cell of the history ran to its end".to_owned(),
                ended => format!("Only {ended} cells of the history ran to their end"),
            };
            assert!(page.contains(&expected), "{expected}\n{page}");
        }
    }
    for (people, cells_each) in [(3, 7), (4, 8)] {
        check_capacity(people, cells_each).await;
    }
}

/// Checks a course that has worked for a while, with one open worker and one drained worker.
async fn check_capacity(people: u32, cells_each: u32) {
    let idle = World {
        running: 0,
        starting: 0,
        free: 1,
        running_there: 0,
        waiting_ml: 0,
        waiting_vision: 0,
        held: 0,
        paused: 0,
        finished: 0,
        drained_slots: 5,
    };
    let mut made = Made::of(idle).await;
    for person in 0..people {
        let dial = made.broker.dial_as(&format!("ml-{person}-token"));
        let mut proxy = FakeProxy::new(&dial).await;
        for _ in 0..cells_each {
            let job = proxy.submit().await;
            assert_eq!(made.workers[0].run_to_end().await, job);
            proxy.events_after(job, 0).await;
        }
    }
    let seen = Counted::by(&made.broker, STAFF).await;
    let takes_cells = |worker: &&Worker| worker.state == WorkerState::Connected;
    let gpus: usize = seen
        .workers
        .iter()
        .filter(takes_cells)
        .map(|worker| worker.devices.len())
        .sum();
    let here: BTreeSet<_> = seen.jobs.iter().map(|job| &job.person).collect();
    let page = words(&made.page(STAFF, "/capacity").await);
    for expected in [
        format!("{} cells of the last hour waited", seen.jobs.len()),
        format!("{} people are here.", here.len()),
        format!("With {gpus} GPU, {} people are predicted", here.len()),
    ] {
        assert!(page.contains(&expected), "{expected}\n{page}");
    }
}

fn check_workers(page: &str, all: &Counted) {
    let expected: Vec<_> = all
        .workers
        .iter()
        .map(|worker| {
            let state = match worker.state {
                WorkerState::Connected => "● connected",
                WorkerState::Drained => "◇ drained",
                other => panic!("{other:?}"),
            };
            [
                worker.name.clone(),
                state.to_owned(),
                worker.reason.clone().unwrap_or_else(|| "–".to_owned()),
                format!("{} of {}", worker.jobs, worker.slots),
                worker.warm_sessions.to_string(),
            ]
        })
        .collect();
    assert_eq!(columns(&rows(page, "Workers"), [0, 1, 2, 4, 5]), expected);
}

fn check_courses(page: &str, courses: &[Course], all: &Counted) {
    let count = |name: &String, states: &[JobState]| {
        let jobs = all
            .jobs
            .iter()
            .filter(|job| job.course.as_ref() == Some(name));
        jobs.filter(|job| states.contains(&job.state))
            .count()
            .to_string()
    };
    let expected: Vec<_> = courses
        .iter()
        .map(|course| {
            let name = course.course.clone();
            let running = count(&name, &[JobState::Assigned, JobState::Started]);
            let waiting = count(&name, &[JobState::Queued]);
            [name, running, waiting, course.weight.to_string()]
        })
        .collect();
    assert_eq!(columns(&rows(page, "Courses"), [0, 2, 3, 4]), expected);
}

/// Finished and running cells: a person whose first cell is still running is also listed.
fn check_people(page: &str, used: &[Usage], seen: &Counted) {
    let mut cells: BTreeMap<(String, String), u64> = BTreeMap::new();
    for row in used {
        let account = (row.person.clone(), course(row.course.as_ref()));
        *cells.entry(account).or_default() += row.runs;
    }
    for job in seen.in_state(JobState::Started) {
        let account = (job.person.clone(), course(job.course.as_ref()));
        *cells.entry(account).or_default() += 1;
    }
    let found = rows(page, "By person, largest first");
    if cells.is_empty() {
        assert_eq!(found.concat(), ["No one used a GPU in this time."]);
        return;
    }
    let found: BTreeSet<_> = columns(&found, [0, 1, 4]).into_iter().collect();
    let row = |((person, course), cells): (&(String, String), &u64)| {
        [person.clone(), course.clone(), cells.to_string()]
    };
    assert_eq!(found, cells.iter().map(row).collect());
    let sum: u64 = cells.values().sum();
    assert!(
        page.contains(&format!("<dt>Cells</dt><dd class=\"big\">{sum}</dd>")),
        "{sum}"
    );
    let now = match seen.in_state(JobState::Started).count() {
        0 => "TotalGPU time",
        1 => "With 1 running cell, up to now",
        _ => &format!(
            "With {} running cells, up to now",
            seen.in_state(JobState::Started).count()
        ),
    };
    assert!(words(page).contains(now), "{now}\n{}", words(page));
}

fn check_audit(page: &str, acts: &[Act], token: &str) {
    let found = rows(page, "Acts");
    if acts.is_empty() {
        let staff = [ADMIN, STAFF].contains(&token);
        let said = match staff {
            true => "No actions yet",
            false => "Only the staff of a course can see its actions",
        };
        assert!(found[0][0].starts_with(said), "{found:?}");
        return;
    }
    let expected: Vec<_> = acts
        .iter()
        .map(|act| [course(act.course.as_ref()), course(act.detail.as_ref())])
        .collect();
    assert_eq!(columns(&found, [3, 5]), expected);
}
