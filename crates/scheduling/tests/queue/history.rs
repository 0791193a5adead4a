//! What is known of the past, and what an estimate gets from it.

use baton_protocol::CellKey;
use baton_scheduling::queue::{
    Account, History, MOST_RUNS, Open, PastRun, Precedence, Progress, Run, Times,
};

const CELL: CellKey = CellKey([1; 16]);
const MINUTE: i64 = 60_000;

fn account(owner: &str, course: &str) -> Account {
    let (owner, course) = (owner.to_owned(), course.to_owned());
    Account { owner, course }
}

fn run(cell: Option<CellKey>, owner: &str, course: &str, run_ms: u64) -> Run {
    let account = account(owner, course);
    Run {
        cell,
        account,
        run_ms,
    }
}

fn of(runs: impl IntoIterator<Item = Run>) -> History {
    History::of(runs.into_iter().map(|run| PastRun {
        run,
        submitted_ms: 0,
        finished_ms: 0,
    }))
}

fn middle(times: Option<Times>) -> Option<u64> {
    times.map(|times| times.middle())
}

fn precedence(_: &Account) -> Precedence {
    Precedence {
        used_ms: 0.0,
        weight: 1.0,
        boost: 1.0,
        low_priority: false,
        waited_ms: 0,
        since_run_ms: None,
    }
}

#[test]
fn the_nearest_kin_counts_most() {
    let runs = (0..10).flat_map(|_| {
        [
            run(Some(CELL), "ada", "ml", 1000),
            run(None, "bob", "ml", 30_000),
        ]
    });
    let history = of(runs);
    let middle =
        |cell, owner, course| middle(history.takes(cell, &account(owner, course), 0, None));
    assert_eq!(middle(Some(CELL), "eve", "x"), Some(1000));
    assert_eq!(middle(None, "bob", "ml"), Some(30_000));
    assert!(middle(None, "ada", "ml").is_some_and(|ms| ms < 2000));
    assert_eq!(middle(None, "ada", "x"), None);
}

#[test]
fn few_runs_of_others_say_nothing() {
    let history = of((0..4).map(|_| run(Some(CELL), "ada", "ml", 1000)));
    assert_eq!(history.takes(None, &account("bob", "ml"), 0, None), None);
    // Runs of the same cell do.
    assert!(
        history
            .takes(Some(CELL), &account("ada", "ml"), 0, None)
            .is_some()
    );
}

#[test]
fn a_run_that_goes_on_is_one_of_the_longer_ones_and_ends_with_its_limit() {
    let history = of((1..=24).map(|number| run(Some(CELL), "ada", "ml", number * 1000)));
    let takes = |already, limit| history.takes(Some(CELL), &account("ada", "ml"), already, limit);
    let fresh = takes(0, None).unwrap();
    assert!((2000..4000).contains(&fresh.at(0.1)) && (20_000..27_000).contains(&fresh.at(0.9)));
    assert!(takes(20_000, None).unwrap().middle() < 6000);
    assert!(takes(0, Some(5000)).unwrap().at(1.0) <= 5000);
    // Longer than any run before: it may take as long again.
    let long = takes(600_000, None).unwrap();
    assert!(long.at(0.0) > 0 && long.at(1.0) >= 600_000);
    assert_eq!(takes(600_000, Some(600_000)).unwrap().at(1.0), 0);
}

#[test]
fn old_runs_are_forgotten() {
    let first = (0..9).map(|_| run(Some(CELL), "ada", "ml", 1));
    let others = (0..MOST_RUNS).map(|_| run(None, "bob", "x", 2));
    let history = of(first.chain(others));
    assert_eq!(
        history.takes(Some(CELL), &account("ada", "ml"), 0, None),
        None
    );
}

/// Ada returns after a minute, Bob has left, and Eve works for the first time.
#[test]
fn the_outlook_knows_who_may_come() {
    let mut history = History::default();
    let (ada, bob, eve) = (
        account("ada", "ml"),
        account("bob", "ml"),
        account("eve", "ml"),
    );
    history.submitted(&bob, 0);
    history.ended(&bob, MINUTE);
    history.submitted(&ada, 55 * MINUTE);
    history.ended(&ada, 56 * MINUTE);
    history.submitted(&ada, 57 * MINUTE);
    history.ended(&ada, 58 * MINUTE);
    history.submitted(&eve, 58 * MINUTE);
    history.started(true, 8000);
    let open = [Open {
        cell: None,
        account: &eve,
        progress: Progress::Starts {
            cold: true,
            already_ms: 3000,
        },
        limit_ms: None,
    }];
    let outlook = history.outlook(&open, 60 * MINUTE, precedence);
    let returning: Vec<(&str, u64)> = outlook
        .returning
        .iter()
        .map(|returning| (&*returning.owner, returning.absent_ms))
        .collect();
    assert_eq!(returning, [("ada", 120_000)]);
    let [course] = &outlook.courses[..] else {
        panic!("{outlook:?}");
    };
    assert_eq!(course.pauses.ended(), 1);
    assert_eq!(course.pauses.percentile(0.3), Some(60.0));
    // Eve came five minutes after Ada.
    let in_five_minutes = course.newcomers * 300_000.0;
    assert!((in_five_minutes - 1.0).abs() < 1e-9, "{course:?}");
    assert_eq!(outlook.jobs[0].starting, Some(Times::exactly(5000)));
    assert_eq!(outlook.jobs[0].takes, None);
}
