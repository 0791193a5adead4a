//! Changes: the statements of a batch of [`Write`]s, which is one transaction.

use super::{
    StoreError, accounts, audit_log, environments, events,
    job_changes::{self, JobEnd},
    pools, staff_changes,
    statement::Statement,
    workers,
};
use baton_broker_queue::Write;

pub(super) fn statements(writes: &[Write]) -> Result<Vec<Statement>, StoreError> {
    let mut statements = Vec::with_capacity(2 * writes.len());
    for write in writes {
        add_statements(write, &mut statements)?;
    }
    Ok(statements)
}

/// Each kind of record makes its statements in its own file.
fn add_statements(write: &Write, statements: &mut Vec<Statement>) -> Result<(), StoreError> {
    let mut add = |statement| statements.push(statement);
    match write {
        Write::Submit {
            sequence,
            account,
            submission,
            at_ms,
        } => add(job_changes::submit(*sequence, account, submission, *at_ms)),
        Write::Assign {
            job,
            worker,
            worker_name,
            fencing,
            timeout_ms,
            at_ms,
        } => {
            let worker = (*worker, worker_name.as_str());
            add(job_changes::assign(
                *job,
                worker,
                *fencing,
                *timeout_ms,
                *at_ms,
            ));
        }
        Write::Requeue { job, fencing } => add(job_changes::requeue(*job, *fencing)),
        Write::Start {
            job,
            fencing,
            at_ms,
        } => add(job_changes::start(*job, *fencing, *at_ms)),
        Write::Events {
            job,
            acknowledged,
            events,
        } => {
            events::insert(*job, events).for_each(&mut add);
            if let Some(acknowledged) = acknowledged {
                add(job_changes::acknowledge(*job, *acknowledged));
            }
        }
        Write::DropOutputs { job, through } => add(events::drop_outputs(*job, *through)),
        Write::ReplaceState { job, state } => add(job_changes::replace_state(*job, state)),
        Write::WantCancel { job, stopped } => add(job_changes::want_cancel(*job, stopped.as_ref())),
        Write::Orphan { job, at_ms } => add(job_changes::orphan(*job, *at_ms)),
        Write::Steer {
            job,
            held,
            front_ms,
        } => add(job_changes::steer(*job, held, *front_ms)),
        Write::Finish {
            job,
            fencing,
            outcome,
            usage,
            error,
            returned_bytes,
            memory,
            at_ms,
        } => {
            let end = JobEnd {
                outcome: *outcome,
                usage,
                error: error.as_ref(),
                returned_bytes: *returned_bytes,
                memory,
            };
            add(job_changes::finish(*job, *fencing, &end, *at_ms));
        }
        Write::Charge {
            account,
            spent,
            run_ms,
            at_ms,
        } => {
            add(accounts::set_spent(account, spent));
            add(accounts::add_usage(account, *run_ms, *at_ms));
        }
        Write::GiveUp { job, outcome } => add(job_changes::give_up(*job, *outcome)),
        Write::Close { job } => {
            add(events::forget(*job));
            add(job_changes::close(*job));
        }
        Write::Remove { job } => {
            add(events::delete(*job));
            add(job_changes::remove(*job));
        }
        Write::SeeWorker {
            worker,
            name,
            devices,
            slots,
            at_ms,
        } => {
            add(pools::connected(name, *at_ms));
            add(workers::see(*worker, name, (devices, *slots), *at_ms));
        }
        Write::LoseWorker { worker, at_ms } => add(workers::lose(*worker, *at_ms)),
        Write::ChangeWorker { name, paused } => add(staff_changes::change_worker(name, paused)),
        Write::ChangeCourse { course, change } => {
            add(staff_changes::change_course(course, change)?);
        }
        Write::Allow {
            account,
            allowance,
            at_ms,
        } => {
            add(staff_changes::forget_allowances(account, *at_ms));
            if let Some(allowance) = allowance {
                add(staff_changes::allow(account, allowance));
            }
        }
        Write::KeepLock {
            environment,
            digest,
            lock,
            at_ms,
        } => add(environments::keep(environment, digest, lock, *at_ms)),
        Write::Audit(entry) => add(audit_log::record(entry)),
    }
    Ok(())
}
