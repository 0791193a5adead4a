//! The cost of estimates for hundreds of waiting cells. Prints one JSON object, which
//! `benches/estimates.py` reports.
#![allow(clippy::unwrap_used)]

use baton_protocol::{CellKey, JobId, NotebookId, WorkerId};
use baton_scheduling::queue::{
    Account, Estimation, History, Job, Open, Precedence, Progress, Run, Worker,
};
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};
use uuid::Uuid;

const WORKERS: u128 = 4;

fn main() {
    let costs = [30, 100, 300, 1000].map(cost);
    println!("[{}]", costs.join(", "));
}

fn cost(waiting: u128) -> String {
    let people = waiting + WORKERS;
    // The other people have no job at the moment.
    let accounts: Vec<Account> = (0..people * 3 / 2).map(account).collect();
    let history = history(&accounts);
    let jobs: Vec<Job> = (0..people).map(job).collect();
    let workers: Vec<Worker> = (0..WORKERS).map(worker).collect();
    let open: Vec<Open<'_>> = jobs
        .iter()
        .zip(&accounts)
        .map(|(job, account)| Open {
            cell: Some(cell(account, 5)),
            account,
            progress: match job.worker {
                None => Progress::Waits,
                Some(_) => Progress::Runs { already_ms: 3000 },
            },
            limit_ms: None,
        })
        .collect();
    // Everything that the first decision does.
    let (first, (mut estimation, mut is_finished)) = timed(|| {
        let outlook = history.outlook(&open, NOW_MS, |_| precedence(0));
        let mut estimation = Estimation::new(&jobs, &workers, 1, outlook);
        let is_finished = estimation.play();
        (estimation, is_finished)
    });
    let mut steps = vec![first];
    while !is_finished {
        let (step, is_last) = timed(|| estimation.play());
        steps.push(step);
        is_finished = is_last;
    }
    assert!(estimation.finish().iter().all(|(_, said)| said.is_some()));
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    format!(
        "{{\"waiting\": {waiting}, \"steps\": {}, \"longest_step_ms\": {:.2}, \"all_ms\": {:.2}}}",
        steps.len(),
        ms(steps.iter().copied().max().unwrap()),
        ms(steps.iter().sum()),
    )
}

const NOW_MS: i64 = 3_600_000;

/// Each person ran five cells.
fn history(accounts: &[Account]) -> History {
    let mut history = History::default();
    for of_each in 0..5_u64 {
        for (person, account) in (0_u64..).zip(accounts) {
            let submitted = NOW_MS - 1_500_000 + (of_each * 250_000 + person * 11) as i64;
            let run_ms = 2000 + person * 7919 % 30_000;
            history.submitted(account, submitted);
            history.started(of_each == 0, 300 + person % 4000);
            history.ended(account, submitted + run_ms as i64);
            history.add(Run {
                cell: Some(cell(account, of_each)),
                account: account.clone(),
                run_ms,
            });
        }
    }
    for account in &accounts[..accounts.len() * 2 / 3] {
        history.submitted(account, NOW_MS);
    }
    history
}

fn account(person: u128) -> Account {
    Account {
        owner: format!("student{person}"),
        course: "course".to_owned(),
    }
}

/// The first of these jobs are running.
fn job(number: u128) -> Job {
    Job {
        job: JobId(Uuid::from_u128(number)),
        notebook: NotebookId(Uuid::from_u128(number)),
        owner: account(number).owner.into(),
        worker: (number < WORKERS).then(|| WorkerId(Uuid::from_u128(number))),
        precedence: precedence(number as u64),
        held: false,
        paused: false,
        front: None,
        needs: Arc::default(),
        takes_ms: None,
    }
}

fn precedence(seconds: u64) -> Precedence {
    Precedence {
        used_ms: (seconds * 1000) as f64,
        weight: 1.0,
        boost: 1.0,
        low_priority: false,
        waited_ms: seconds * 500,
        since_run_ms: None,
    }
}

fn worker(number: u128) -> Worker {
    Worker {
        worker: WorkerId(Uuid::from_u128(number)),
        slots: 1,
        warm: HashSet::new(),
        keeping: HashSet::new(),
        open: true,
        offer: Arc::default(),
        leaves_in_ms: None,
    }
}

fn cell(account: &Account, number: u64) -> CellKey {
    let person = account
        .owner
        .bytes()
        .fold(number, |key, byte| key * 31 + u64::from(byte));
    CellKey(u128::from(person).to_le_bytes())
}

fn timed<Done>(what: impl FnOnce() -> Done) -> (Duration, Done) {
    let begun = Instant::now();
    let done = what();
    (begun.elapsed(), done)
}
