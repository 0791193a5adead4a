//! The workers that have connected.

use super::statement::{Statement, sql};
use baton_protocol::{WorkerId, encode, worker::Device};

pub(super) fn see(
    worker: WorkerId,
    name: &str,
    (devices, slots): (&Vec<Device>, u32),
    at_ms: i64,
) -> Statement {
    sql(
        "INSERT INTO workers (worker, name, devices, slots, seen_ms) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT (worker) DO UPDATE SET name = excluded.name, devices = excluded.devices,
         slots = excluded.slots, seen_ms = excluded.seen_ms, gone_ms = NULL",
    )
    .bind(worker.0)
    .bind(name)
    .bind(encode(devices))
    .bind(slots)
    .bind(at_ms)
}

pub(super) fn lose(worker: WorkerId, at_ms: i64) -> Statement {
    sql("UPDATE workers SET gone_ms = ? WHERE worker = ?")
        .bind(at_ms)
        .bind(worker.0)
}

/// No worker is connected.
pub(super) fn lose_all(at_ms: i64) -> Statement {
    sql("UPDATE workers SET gone_ms = ? WHERE gone_ms IS NULL").bind(at_ms)
}

pub(super) fn delete_lost(gone_before_ms: i64) -> Statement {
    sql("DELETE FROM workers WHERE gone_ms < ?").bind(gone_before_ms)
}
