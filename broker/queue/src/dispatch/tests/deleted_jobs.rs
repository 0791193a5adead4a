//! What is kept of jobs in memory ends with their rows.

use super::*;

#[test]
fn a_job_whose_row_is_deleted_is_forgotten_and_its_notebook_when_it_has_gone() {
    let mut world = World::after([
        Step::WorkerConnects(0),
        Step::ProxyConnects(0),
        Step::Submit(0, 0),
        Step::Work(0, 1),
        Step::Work(0, 4),
        Step::Applied(0, 0),
    ]);
    let known = |world: &World| {
        let owners = world.dispatch.peers.owners.len();
        (world.dispatch.jobs.count_closed(), owners)
    };
    assert_eq!(known(&world), (1, 1));
    world.dispatch.on_jobs_deleted(&[job_id(0, 0)]);
    assert_eq!(known(&world), (0, 1));
    world.take(Step::ProxyGoes(0));
    world.take(Step::Seconds(5));
    world.dispatch.on_jobs_deleted(&[]);
    assert_eq!(known(&world), (0, 0));
}
