//! Connections that end or are replaced.

use super::*;

fn with_an_assigned_cell() -> World {
    World::after([
        Step::WorkerConnects(0),
        Step::ProxyConnects(0),
        Step::Submit(0, 0),
    ])
}

/// Checks when a running job is cancelled after the connection of its proxy has ended.
fn check_stopped(ending: Ending, after_seconds: u8) {
    let mut world = with_an_assigned_cell();
    let connection = world.proxies.remove(&0).unwrap();
    world.dispatch.on_closed(connection, ending, world.now());
    world.take(Step::Seconds(after_seconds - 1));
    assert!(
        !world
            .dispatch
            .jobs
            .get(job_id(0, 0))
            .unwrap()
            .is_cancel_wanted()
    );
    world.take(Step::Seconds(1));
    assert!(
        world
            .dispatch
            .jobs
            .get(job_id(0, 0))
            .unwrap()
            .is_cancel_wanted()
    );
}

#[test]
fn a_killed_proxy_leaves_its_cells_for_5_s_and_one_behind_a_cut_network_longer() {
    check_stopped(Ending::PeerClosed, 5);
    check_stopped(Ending::BrokerClosed, 30);
    check_stopped(Ending::PersonRemoved, 5);
}

#[test]
fn a_waiting_cell_whose_notebook_is_away_is_cancelled_without_blaming_staff() {
    let mut world = World::new();
    world.take(Step::ProxyConnects(0));
    world.take(Step::Submit(0, 0));
    let connection = world.proxies.remove(&0).unwrap();
    let ending = Ending::BrokerClosed;
    world.dispatch.on_closed(connection, ending, world.now());
    world.seconds += 30;
    let mut batch = Batch::new(world.now());
    world.dispatch.on_time_passed(&mut batch);
    let end = batch.actions.iter().find_map(|action| match action {
        Action::Write(Write::Finish { outcome, error, .. }) => Some((*outcome, error.clone())),
        _ => None,
    });
    let (outcome, error) = end.unwrap();
    let error = error.unwrap();
    assert_eq!(outcome, Outcome::Cancelled);
    assert_eq!(error.name, "NotebookAway");
    assert_eq!(error.hint.as_deref(), Some("run the cell again"));
}

#[test]
fn stored_events_are_read_once_however_often_a_notebook_resumes() {
    let mut world = with_an_assigned_cell();
    let (connection, job) = (world.proxies[&0], job_id(0, 0));
    let mut reads = 0;
    for _ in 0..3000 {
        let mut batch = Batch::new(world.now());
        let resume = FromProxy::Resume { job, after: 0 };
        world
            .dispatch
            .on_proxy_message(connection, resume, &mut batch);
        let is_read = |action: &&Action| matches!(action, Action::CatchUp { .. });
        reads += batch.actions.iter().filter(is_read).count();
    }
    assert_eq!(reads, 1);
}

#[test]
fn the_reader_of_a_replaced_connection_changes_nothing_for_the_newer_one() {
    let mut world = with_an_assigned_cell();
    let job = job_id(0, 0);
    let last_event = world.dispatch.jobs.get(job).unwrap().last_event();
    assert!(last_event > 0);
    let older = world.proxies[&0];
    world.take(Step::ProxyConnects(0));
    world.take(Step::Resume(0, 0, last_event));
    let mut batch = Batch::new(world.now());
    let through = last_event - 1;
    world.dispatch.on_caught_up(older, job, through, &mut batch);
    assert!(batch.actions.is_empty(), "{:?}", batch.actions);
    let job = world.dispatch.jobs.get(job).unwrap();
    let subscriber = world.dispatch.peers.subscriber(job);
    assert_eq!(subscriber, Some(world.proxies[&0]));
}

/// Both messages are in one batch: the worker reconnects without the cell, and then drains.
#[test]
fn an_assignment_that_ends_at_once_is_not_repeated() {
    let assignments = |drains: bool| {
        let mut world = with_an_assigned_cell();
        world.take(Step::WorkerGoes(0));
        world.workers.clear();
        let mut batch = Batch::new(world.now());
        world.worker_connects(0, &mut batch);
        if drains {
            let connection = world.workers[&0].connection.unwrap();
            let drain = FromWorker::Drain {};
            world
                .dispatch
                .on_worker_message(connection, drain, &mut batch);
        }
        world.dispatch.assign_and_notify(&mut batch);
        let is_assignment = |action: &&Action| matches!(action, Action::Assign(..));
        batch.actions.iter().filter(is_assignment).count()
    };
    assert_eq!(assignments(false), 1);
    assert_eq!(assignments(true), 0);
}

/// Checks how much an account is charged for a cell that began 60 s before the last sign of the broker, if both
/// broker and worker were then without power for days.
fn check_charged(timeout_ms: Option<u64>, charged_ms: u64) {
    let mut world = with_an_assigned_cell();
    world.take(Step::Work(0, 1));
    let mut loaded = world.stored.load();
    loaded.last_alive_ms = Some(1_060_000);
    loaded.jobs[0].started_ms = Some(1_000_000);
    loaded.jobs[0].timeout_ms = timeout_ms;
    let now = |after: Duration| Now {
        instant: world.start + after,
        unix_ms: 300_000_000,
    };
    let mut dispatch = Dispatch::new(loaded, GRACES, courses(), now(Duration::ZERO));
    let mut batch = Batch::new(now(GRACES.restart));
    dispatch.on_time_passed(&mut batch);
    let charged = batch.actions.iter().find_map(|action| match action {
        Action::Write(Write::Charge { run_ms, .. }) => Some(*run_ms),
        _ => None,
    });
    assert_eq!(charged, Some(charged_ms));
}

#[test]
fn the_time_without_a_broker_is_not_charged_nor_more_than_the_time_limit() {
    check_charged(None, 60_000);
    check_charged(Some(30_000), 30_000);
}
