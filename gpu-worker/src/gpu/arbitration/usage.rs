//! How much each session used the GPU.

use super::{Arbitration, Process};
use crate::gpu::{Token, Usage};
use baton_interposer::wire::ToSession;
use nix::unistd::Pid;
use std::{fs, iter, time::Duration};
use tokio::time::Instant;

impl Arbitration {
    /// Returns the usage until now, and starts a new count.
    pub(super) fn usage(&mut self, token: Token) -> Usage {
        for number in self.processes_of(token) {
            self.charge(number);
        }
        let bytes = self.allocated_bytes(token);
        let Some(session) = self.sessions.get_mut(&token) else {
            return Usage::default();
        };
        let next = Usage {
            peak_bytes: bytes,
            fault: session.usage.fault,
            ..Usage::default()
        };
        std::mem::replace(&mut session.usage, next)
    }

    /// The answer to a process that asks what its session has.
    pub(super) fn has(&self, token: Token) -> Vec<ToSession> {
        let of_it = || self.processes.values().filter(|one| one.token == token);
        let has = ToSession::Has {
            cap_bytes: self.cap_bytes(token),
            bytes: self.allocated_bytes(token),
            processes: of_it().count() as u32,
        };
        let process = |one: &Process| ToSession::ProcessHas {
            process: number_within(one.process),
            bytes: one.total_bytes(),
        };
        iter::once(has).chain(of_it().map(process)).collect()
    }

    /// Adds the time that the process has waited for or held the GPU until now.
    pub(super) fn charge(&mut self, number: u64) {
        let now = Instant::now();
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let until_now = |since: &mut Option<Instant>| match since {
            Some(since) => now - std::mem::replace(since, now),
            None => Duration::ZERO,
        };
        let held = until_now(&mut process.holds_since);
        let waited = until_now(&mut process.waits_since);
        self.note(number, |usage| {
            usage.held += held;
            usage.waited += waited;
        });
    }

    pub(super) fn note_peak(&mut self, number: u64) {
        let Some(process) = self.processes.get(&number) else {
            return;
        };
        let bytes = self.allocated_bytes(process.token);
        self.note(number, |usage| {
            usage.peak_bytes = usage.peak_bytes.max(bytes)
        });
    }

    pub(super) fn allocated_bytes(&self, token: Token) -> u64 {
        let of_it = self.processes.values();
        of_it
            .filter(|process| process.token == token)
            .map(Process::total_bytes)
            .sum()
    }

    pub(super) fn note(&mut self, number: u64, change: impl FnOnce(&mut Usage)) {
        let token = self.processes.get(&number).map(|process| process.token);
        if let Some(session) = token.and_then(|token| self.sessions.get_mut(&token)) {
            change(&mut session.usage);
        }
    }
}

/// The process id in the innermost namespace of the process, which is its session's.
fn number_within(process: Pid) -> u32 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let innermost = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    innermost.unwrap_or(process.as_raw().cast_unsigned())
}
