//! Connections that end or are replaced.

use super::*;

fn with_an_assigned_cell() -> World {
    let mut world = World::new();
    for step in [
        Step::WorkerConnects(0),
        Step::ProxyConnects(0),
        Step::Submit(0, 0),
    ] {
        world.take(step);
    }
    world
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
