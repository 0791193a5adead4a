#![allow(clippy::unwrap_used)]

use super::*;
use baton_protocol::{Period, Requirement, api::AheadBecause};

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn text(line: Option<Output>) -> Option<(String, String)> {
    let line = line?;
    let content: serde_json::Value = serde_json::from_slice(&line.content).ok()?;
    Some((
        line.kind,
        content["data"]["text/plain"].as_str()?.to_owned(),
    ))
}

fn position(reason: WaitingReason) -> ShownQueuePosition {
    ShownQueuePosition {
        position: 3,
        last_position: 3,
        moved_back: None,
        reason,
        gpu: true,
        estimate: None,
        message: None,
        other: OtherJob::Any,
    }
}

fn queued(number: u32) -> Waiting {
    let estimate = Estimate {
        lower_ms: 25_000,
        middle_ms: 40_000,
        upper_ms: 90_000,
    };
    Waiting::Queued {
        position: ShownQueuePosition {
            position: number,
            last_position: number,
            estimate: Some(estimate),
            ..position(WaitingReason::JobsAhead)
        },
        since: at(0.0),
    }
}

fn usage(run_ms: u64, peak_memory_bytes: u64) -> Usage {
    Usage {
        run_ms,
        peak_memory_bytes,
        gpu: None,
    }
}

#[test]
fn a_short_cell_shows_the_summary_alone() {
    let mut status_line = StatusLine::new("d".into(), JobKind::Cell, false);
    status_line.waits(queued(1));
    assert_eq!(status_line.refresh(at(1.9)), None);
    status_line.assigned("cpu-0".into(), false, None, at(0.4));
    status_line.starts(at(0.5));
    assert_eq!(status_line.refresh(at(1.4)), None);
    status_line.output_shown();
    assert_eq!(status_line.refresh(at(3.0)), None);
    assert_eq!(
        status_line.summary(at(3.5), usage(3100, 0)).unwrap(),
        "CPU: 3.1 s on cpu-0, waited 0.4 s"
    );
}

#[test]
fn a_cell_that_shows_nothing_is_said_to_run() {
    let mut status_line = StatusLine::new("d".into(), JobKind::Cell, false);
    status_line.assigned("gpu-2".into(), true, Some(300_000), at(0.1));
    status_line.starts(at(0.2));
    assert_eq!(status_line.next_refresh(at(0.2)), SOON);
    let line = text(status_line.refresh(at(1.3))).unwrap();
    let running = "Running on gpu-2 for 1 s of at most 5 min".to_owned();
    assert_eq!(line, ("display_data".to_owned(), running));
    status_line.output_shown();
    status_line.cleared();
    assert_eq!(status_line.refresh(at(9.0)), None);
}

#[test]
fn a_long_wait_is_one_line_that_changes_once_a_second_at_most() {
    let mut status_line = StatusLine::new("d".into(), JobKind::Cell, false);
    status_line.waits(queued(2));
    let line = |kind: &str, text: &str| Some((kind.to_owned(), text.to_owned()));
    assert_eq!(
        text(status_line.refresh(at(2.0))),
        line(
            "display_data",
            "Waiting for a GPU: 2nd in line, about 40 s (25 s to 1 min 30 s)"
        )
    );
    status_line.waits(queued(1));
    assert_eq!(status_line.refresh(at(2.5)), None);
    assert_eq!(
        text(status_line.refresh(at(10.0))),
        line(
            "update_display_data",
            "Waiting for a GPU: 1st in line, about 30 s (15 s to 1 min 20 s)"
        )
    );
    status_line.assigned("gpu-2".into(), true, Some(300_000), at(11.0));
    assert_eq!(
        text(status_line.refresh(at(11.5))),
        line("update_display_data", "Starting on gpu-2")
    );
    status_line.starts(at(13.1));
    assert_eq!(
        text(status_line.refresh(at(25.5))),
        line(
            "update_display_data",
            "Running on gpu-2 for 12 s of at most 5 min"
        )
    );
}

#[test]
fn every_reason_has_its_words() {
    let check = |position: ShownQueuePosition, expected: &str| {
        let waiting = Waiting::Queued {
            position,
            since: at(0.0),
        };
        assert_eq!(waiting.text(JobKind::Cell, at(2.0)), expected);
    };
    let why = || "back at two".to_owned();
    check(
        position(WaitingReason::JobsAhead),
        "Waiting for a GPU: 3rd in line. No estimate yet: too little is known about the cells ahead",
    );
    check(
        ShownQueuePosition {
            last_position: 5,
            moved_back: Some(MovedBack {
                people: 2,
                because: AheadBecause::UsedLess,
            }),
            ..position(WaitingReason::JobsAhead)
        },
        "Waiting for a GPU: 3rd to 5th in line. No estimate yet: too little is known about the cells ahead. Two people with less recent use moved ahead",
    );
    check(
        position(WaitingReason::OwnJobRuns {
            notebook: "a.ipynb".into(),
        }),
        "Waiting for your other %%gpu cell (a.ipynb) to finish",
    );
    let own = |other| ShownQueuePosition {
        other,
        ..position(WaitingReason::OwnJobRuns {
            notebook: "a.ipynb".into(),
        })
    };
    check(
        own(OtherJob::Stopped),
        "Waiting until the cell that you stopped has ended",
    );
    check(
        own(OtherJob::SameRun),
        "Waiting for a GPU: you already run as many cells at once as one person may",
    );
    check(
        position(WaitingReason::BehindDeadline {
            course: "ml101".into(),
        }),
        "Waiting for a GPU: 3rd in line. No estimate yet: too little is known about the cells ahead. ml101 has a deadline and runs first",
    );
    check(
        position(WaitingReason::Held { why: why() }),
        "Waiting for a GPU: your course staff hold this cell back (back at two)",
    );
    check(
        position(WaitingReason::BehindMoved {}),
        "Waiting for a GPU: 3rd in line. No estimate yet: too little is known about the cells ahead. Your course staff moved another cell to the front",
    );
    check(
        position(WaitingReason::NoWorker),
        "Waiting for a GPU: no GPU worker is connected at the moment",
    );
    check(
        ShownQueuePosition {
            gpu: false,
            ..position(WaitingReason::NoWorker)
        },
        "Waiting for a worker: no worker is connected at the moment",
    );
    check(
        position(WaitingReason::WorkersPaused { why: Some(why()) }),
        "Waiting for a GPU: the GPU workers accept no new cells (back at two)",
    );
    check(
        position(WaitingReason::WorkersFail {
            worker: "gpu-2".to_owned(),
            why: "no disk".to_owned(),
        }),
        "Waiting for a GPU: sessions cannot start on gpu-2 (no disk)",
    );
    check(
        ShownQueuePosition {
            message: Some("Ask in room 5".to_owned()),
            ..position(WaitingReason::CoursePaused { why: why() })
        },
        "Waiting for a GPU: your course is paused (back at two)\nAsk in room 5",
    );
}

#[test]
fn texts_for_a_run_mention_neither_cells_nor_variables() {
    let why = || "back at two".to_owned();
    let requirement = || Requirement::Gpu {
        model: "a100".to_owned(),
    };
    let reasons = [
        WaitingReason::JobsAhead,
        WaitingReason::NoWorker,
        WaitingReason::WorkersPaused { why: None },
        WaitingReason::WorkersPaused { why: Some(why()) },
        WaitingReason::CoursePaused { why: why() },
        WaitingReason::OwnJobRuns { notebook: why() },
        WaitingReason::BehindDeadline { course: why() },
        WaitingReason::Held { why: why() },
        WaitingReason::BehindMoved {},
        WaitingReason::WorkersFail {
            worker: why(),
            why: why(),
        },
        WaitingReason::FittingWorkersBusy {
            requirement: requirement(),
        },
        WaitingReason::NoWorkerFits {
            requirement: requirement(),
            connected: vec!["L4".to_owned()],
        },
    ];
    let queued = reasons.map(|reason| Waiting::Queued {
        position: ShownQueuePosition {
            other: OtherJob::SameRun,
            ..position(reason)
        },
        since: at(0.0),
    });
    let others = [Waiting::Connecting, Waiting::Sending];
    for kind in [JobKind::Notebook, JobKind::Script] {
        let waiting = queued.iter().chain(&others);
        let texts = waiting.map(|waiting| waiting.text(kind, at(60.0)));
        for text in texts.chain([stopping(kind)]) {
            assert!(!text.contains("cell"), "{text}");
            assert!(!text.contains("variables"), "{text}");
        }
    }
}

#[test]
fn a_long_wait_for_workers_says_what_to_do() {
    let said = |reason, seconds| position(reason).text(JobKind::Cell, Duration::ZERO, at(seconds));
    let no_worker = "Waiting for a GPU: no GPU worker is connected at the moment";
    assert_eq!(said(WaitingReason::NoWorker, 29.0), no_worker);
    assert_eq!(
        said(WaitingReason::NoWorker, 30.0),
        format!(
            "{no_worker}. Your course staff can see this; stop the cell if you do not want to wait"
        )
    );
}

#[test]
fn a_budget_is_told_in_seconds_at_its_end() {
    let left = |left_ms, granted_ms| {
        budget(&BudgetLeft {
            left_ms,
            of_ms: 60_000,
            granted_ms,
            period: Period::Day,
        })
    };
    assert_eq!(left(40_900, 0), "40 s of 1 min left today");
    assert_eq!(
        left(0, 30_000),
        "0 s of 1 min left today (30 s of it granted)"
    );
}

#[test]
fn the_summary_says_what_is_known() {
    let mut status_line = StatusLine::new("d".into(), JobKind::Cell, false);
    status_line.assigned("gpu-2".into(), true, None, at(12.0));
    status_line.starts(at(12.4));
    status_line.charged(BudgetLeft {
        left_ms: 6_179_000,
        of_ms: 7_200_000,
        granted_ms: 0,
        period: Period::Week,
    });
    let mut used = usage(41_000, 3_435_973_836);
    assert_eq!(
        status_line.summary(at(60.0), used).unwrap(),
        "GPU: 41.0 s on gpu-2, waited 12.0 s, peak 3.1 GiB of main memory. 1 h 42 min of 2 h left this week"
    );
    used.gpu = Some(GpuUsage {
        held_ms: 30_000,
        waited_ms: 2000,
        swaps: 1,
        peak_memory_bytes: 1 << 30,
    });
    let mut slow = StatusLine::new("d".into(), JobKind::Cell, false);
    slow.assigned("gpu-2".into(), true, None, at(0.3));
    slow.starts(at(2.4));
    assert_eq!(
        slow.summary(at(60.0), used).unwrap(),
        "GPU: 41.0 s on gpu-2, waited 0.3 s, started in 2.1 s, peak 1 GiB of GPU memory, held the GPU for 30.0 s and waited 2.0 s for it"
    );
}

#[test]
fn what_staff_write_is_no_markup() {
    let mut status_line = StatusLine::new("d".into(), JobKind::Cell, false);
    let position = ShownQueuePosition {
        message: Some("<b>now</b>".to_owned()),
        ..position(WaitingReason::NoWorker)
    };
    status_line.waits(Waiting::Queued {
        position,
        since: at(0.0),
    });
    let line = status_line.refresh(at(2.0)).unwrap();
    let content = String::from_utf8_lossy(&line.content);
    assert!(content.contains("moment<br>&lt;b&gt;now&lt;/b&gt;"));
}

#[test]
fn a_quiet_cell_says_nothing() {
    let mut status_line = StatusLine::new("d".into(), JobKind::Cell, true);
    status_line.assigned("cpu-0".into(), false, None, at(0.1));
    assert_eq!(status_line.refresh(at(60.0)), None);
    assert_eq!(status_line.summary(at(61.0), usage(5, 6)), None);
}

#[test]
fn words_for_numbers_and_times() {
    assert_eq!(seconds(at(0.04)), "0.0 s");
    assert_eq!(seconds(at(75.0)), "1 min 15 s");
    assert_eq!(seconds(at(7500.0)), "2 h 5 min");
    assert_eq!(roughly(at(0.0)), "1 s");
    assert_eq!(roughly(at(61.0)), "1 min 5 s");
    assert_eq!(roughly(at(7500.0)), "2 h 5 min");
    assert_eq!(since(at(59.9)), "59 s");
    assert_eq!(since(at(125.0)), "2 min");
    assert_eq!([900, 3_435_973_836].map(bytes), ["900 bytes", "3.1 GiB"]);
}

#[test]
fn a_cell_that_needs_a_machine_names_it() {
    let requirement = Requirement::Gpu {
        model: "a100".to_owned(),
    };
    let said = |reason| position(reason).text(JobKind::Cell, Duration::ZERO, Duration::ZERO);
    assert_eq!(
        said(WaitingReason::FittingWorkersBusy {
            requirement: requirement.clone()
        }),
        "Waiting for a worker with the GPU a100: 3rd in line. No estimate yet: too little is known about the cells ahead"
    );
    let connected = vec!["NVIDIA T4 (16 GiB, 7.5)".to_owned()];
    assert_eq!(
        said(WaitingReason::NoWorkerFits {
            requirement,
            connected
        }),
        "Waiting for a worker with the GPU a100: there is none. Available: NVIDIA T4 (16 GiB, 7.5). \
         Interrupt the cell to change what it asks for"
    );
}

#[test]
fn a_machine_that_is_being_started_says_how_long_that_takes() {
    let said = |usual, expected_in_ms| {
        let reason = WaitingReason::MachineStarting {
            usual,
            expected_in_ms,
        };
        position(reason).text(JobKind::Cell, Duration::ZERO, Duration::ZERO)
    };
    let usual = |lower_ms, middle_ms, upper_ms| {
        Some(Estimate {
            lower_ms,
            middle_ms,
            upper_ms,
        })
    };
    assert_eq!(
        said(usual(20_000, 40_000, 120_000), None),
        "A GPU machine is being started, usually 40 s (20 s to 2 min)"
    );
    assert_eq!(
        said(usual(40_000, 40_000, 40_000), Some(720_000)),
        "A GPU machine is being started, usually 40 s. The batch system expects it to begin within 12 min"
    );
    assert_eq!(said(None, None), "A GPU machine is being started");
}

#[test]
fn a_stopped_cell_says_that_it_has_not_ended() {
    let mut status_line = StatusLine::new("d".into(), JobKind::Cell, false);
    status_line.assigned("gpu-0".into(), true, None, at(0.0));
    status_line.starts(at(0.1));
    status_line.output_shown();
    assert_eq!(text(status_line.refresh(at(5.0))), None);
    status_line.stops(at(5.0));
    assert_eq!(text(status_line.refresh(at(5.9))), None);
    let shown = text(status_line.refresh(at(6.0))).unwrap().1;
    assert_eq!(
        shown,
        "Interrupted, but the cell has not ended yet. Press stop again to end it without its changes"
    );
}

#[test]
fn a_line_returns_to_what_it_said_when_the_connection_is_back() {
    let mut status_line = StatusLine::new("d".into(), JobKind::Cell, false);
    status_line.assigned("gpu-0".into(), true, None, at(0.0));
    status_line.is_offline(true);
    let offline = text(status_line.refresh(at(3.0))).unwrap().1;
    assert!(offline.contains("to answer"), "{offline}");
    status_line.is_offline(false);
    let back = text(status_line.refresh(at(5.0))).unwrap().1;
    assert_eq!(back, "Starting on gpu-0");
}
