//! A notebook that sends what no proxy sends. It harms its own cells only.

use super::*;
use baton_protocol::proxy::ToProxy;

/// A notebook with a cell on a worker.
fn with_a_cell(number: u8) -> World {
    World::after([
        Step::WorkerConnects(0),
        Step::WorkerConnects(1),
        Step::ProxyConnects(0),
        Step::Submit(0, number),
    ])
}

/// What a message of the first notebook leads to.
fn says(world: &mut World, message: FromProxy) -> Vec<Action> {
    let mut batch = Batch::new(world.now());
    world.proxy_says(0, message, &mut batch);
    world.dispatch.assign_and_notify(&mut batch);
    batch.actions
}

/// How many frames they send to workers.
fn to_workers(actions: &[Action]) -> usize {
    let is_sent = |action: &&Action| {
        matches!(
            action,
            Action::ToWorker(..) | Action::Relay { .. } | Action::Assign(..)
        )
    };
    actions.iter().filter(is_sent).count()
}

fn is_end_of_session(action: &&Action) -> bool {
    matches!(action, Action::ToWorker(_, ToWorker::EndSession { .. }))
}

#[test]
fn a_goodbye_counts_once_and_reaches_only_the_worker_with_the_session() {
    let mut world = with_a_cell(0);
    let connection = world.proxies[&0];
    let actions = says(&mut world, FromProxy::Goodbye {});
    assert_eq!(actions.iter().filter(is_end_of_session).count(), 1);
    let is_closed = |action: &Action| matches!(action, Action::Close(of) if *of == connection);
    assert!(actions.iter().any(is_closed));
    assert!(says(&mut world, FromProxy::Goodbye {}).is_empty());

    // Neither does another connection of the notebook repeat it.
    world.take(Step::ProxyConnects(0));
    let actions = says(&mut world, FromProxy::Goodbye {});
    assert_eq!(to_workers(&actions), 0, "{actions:?}");
}

#[test]
fn a_session_that_its_worker_reported_ends_with_its_notebook() {
    let mut world = with_a_cell(0);
    let connection = world.workers[&1].connection.unwrap();
    let sessions = FromWorker::Sessions {
        warm: vec![notebook(0)],
        keeping: Vec::new(),
    };
    let mut batch = Batch::new(world.now());
    world
        .dispatch
        .on_worker_message(connection, sessions, &mut batch);
    let actions = says(&mut world, FromProxy::Goodbye {});
    assert_eq!(actions.iter().filter(is_end_of_session).count(), 2);
}

#[test]
fn only_an_open_question_is_answered_and_only_once() {
    let mut world = with_a_cell(0);
    world.take(Step::Work(0, 1));
    world.take(Step::Work(1, 1));
    let answer = |question| FromProxy::Answer {
        job: job_id(0, 0),
        question,
        answer: Answer::Names(naming(ChunkHash([1; 32]))),
    };
    assert!(says(&mut world, answer(2)).is_empty());
    world.take(Step::Work(0, 2));
    world.take(Step::Work(1, 2));
    assert!(says(&mut world, answer(7)).is_empty());
    let actions = says(&mut world, answer(2));
    let [Action::Relay { message, .. }] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert!(says(&mut world, answer(2)).is_empty());
    // There was no room for it, so it is sent again.
    world.dispatch.on_not_relayed(message);
    assert_eq!(to_workers(&says(&mut world, answer(2))), 1);
}

#[test]
fn a_sign_that_an_answer_is_prepared_leaves_its_question_open() {
    let mut world = with_a_cell(0);
    world.take(Step::Work(0, 1));
    world.take(Step::Work(1, 1));
    world.take(Step::Work(0, 2));
    world.take(Step::Work(1, 2));
    let answer = |answer| FromProxy::Answer {
        job: job_id(0, 0),
        question: 2,
        answer,
    };
    let sign = answer(Answer::Preparing {});
    let given = answer(Answer::Names(naming(ChunkHash([1; 32]))));
    assert_eq!(to_workers(&says(&mut world, sign.clone())), 1);
    for _ in 0..100 {
        assert_eq!(to_workers(&says(&mut world, sign.clone())), 0);
    }
    assert_eq!(to_workers(&says(&mut world, given.clone())), 1);
    assert_eq!(to_workers(&says(&mut world, sign)), 0);
    assert_eq!(to_workers(&says(&mut world, given)), 0);
}

#[test]
fn a_job_that_its_notebook_let_go_reaches_its_worker_no_more() {
    let mut world = with_a_cell(1);
    world.take(Step::Work(0, 1));
    world.take(Step::Work(1, 1));
    let job = job_id(0, 1);
    let mut frames = 0;
    for _ in 0..100 {
        frames += to_workers(&says(&mut world, FromProxy::Detach { job }));
        frames += to_workers(&says(&mut world, FromProxy::Resume { job, after: 0 }));
    }
    assert_eq!(frames, 1, "only `Salvage`");
}

/// What is logged if a notebook claims again and again to know a later event of its job.
fn check_ahead(world: &mut World, says_to_worker: &ToWorker) {
    let job = job_id(0, 0);
    let after = 1_000_000_000;
    let actions = says(world, FromProxy::Resume { job, after });
    let logged = actions.iter().filter_map(|action| match action {
        Action::Log(observation) => Some(observation),
        _ => None,
    });
    let logged: Vec<&Observation> = logged.collect();
    let [observation @ Observation::NotebookIsAhead { .. }] = logged[..] else {
        panic!("{logged:?}");
    };
    assert_eq!(observation.severity(), Severity::Warning);
    assert!(observation.to_string().contains("notebook of \"mallory\""));
    let sent: Vec<&ToWorker> = actions
        .iter()
        .filter_map(|action| match action {
            Action::ToWorker(_, message) => Some(message),
            _ => None,
        })
        .collect();
    assert_eq!(sent, [says_to_worker]);
    let refused =
        |action: &Action| matches!(action, Action::ToProxy(_, ToProxy::UnknownJob { .. }));
    assert!(actions.iter().any(refused));
    // The cell may ignore that it is interrupted.
    let again = says(world, FromProxy::Resume { job, after });
    assert!(again.iter().all(refused), "{again:?}");
}

#[test]
fn a_notebook_that_claims_to_know_more_ends_its_own_job_only() {
    let mut world = World::new();
    world.take(Step::WorkerConnects(0));
    let mallory = Account {
        owner: "mallory".to_owned(),
        ..Account::default()
    };
    let connection = world.connection();
    world.proxies.insert(0, connection);
    let mut batch = Batch::new(world.now());
    world
        .dispatch
        .on_proxy_connected(connection, notebook(0), mallory, &mut batch);
    world.take(Step::Submit(0, 0));
    // It was submitted since this broker's start, so its worker stops it like any other.
    let job = job_id(0, 0);
    check_ahead(&mut world, &ToWorker::Cancel { job });
    assert!(says(&mut world, FromProxy::Cancel { job }).len() <= 2);
}

#[test]
fn no_text_of_a_cell_reaches_a_terminal_as_an_escape_sequence() {
    let mut world = with_a_cell(0);
    let mut submission = submission(job_id(0, 2), naming(ChunkHash([0; 32])));
    submission.notebook = notebook(0);
    let escape = "\u{1b}[31m\n\u{202e}";
    submission.notebook_name = escape.to_owned();
    submission.cell.python_version = escape.to_owned();
    submission.cell.gpu = Some(escape.to_owned());
    submission.cell.environment = Some(escape.repeat(1000));
    let actions = says(&mut world, FromProxy::Submit(submission));
    let stored = actions.iter().find_map(|action| match action {
        Action::Write(Write::Submit { submission, .. }) => Some(submission),
        _ => None,
    });
    let stored = stored.unwrap();
    let error = actions.iter().find_map(|action| match action {
        Action::Write(Write::Finish { error, .. }) => error.as_ref(),
        _ => None,
    });
    let cell = &stored.cell;
    let texts = [
        &stored.notebook_name,
        &cell.python_version,
        cell.gpu.as_ref().unwrap(),
        cell.environment.as_ref().unwrap(),
        &error.unwrap().value,
    ];
    for text in texts {
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert!(text.contains('\u{fffd}') && text.chars().count() < 500);
    }
}

#[test]
fn stopping_a_cell_again_adds_nothing_to_the_audit_log() {
    let mut world = World::after([
        Step::WorkerConnects(0),
        Step::ProxyConnects(0),
        Step::Submit(0, 0),
        Step::Work(0, 1),
    ]);
    let mut recorded = |who: &Identity, reason: &str| {
        let mut batch = Batch::new(world.now());
        let command = Command::Cancel {
            job: job_id(0, 0),
            reason: Some(reason.to_owned()),
        };
        world.dispatch.act(who, command, &mut batch).unwrap();
        let is_entry = |action: &&Action| matches!(action, Action::Write(Write::Audit(_)));
        batch.actions.iter().filter(is_entry).count()
    };
    let owner = Identity::of_person(String::new(), false, BTreeMap::new());
    let staff = Identity::operator();
    for (who, reason, entries) in [
        (&owner, "mine", 1),
        (&owner, "mine", 0),
        (&owner, "another reason", 0),
        (&staff, "too long", 1),
        (&staff, "too long", 0),
        (&staff, "much too long", 1),
        (&owner, "mine", 0),
    ] {
        assert_eq!(recorded(who, reason), entries, "{reason}");
    }
}
