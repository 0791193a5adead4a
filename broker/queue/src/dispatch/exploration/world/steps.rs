//! The possible next steps in a world, and the fingerprint of its state.

use super::*;

impl World {
    pub(in crate::dispatch::exploration) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, line) in self.lines.iter().enumerate() {
            let breaks = 0 < match line.peer {
                Peer::Proxy => self.faults.proxy_breaks,
                Peer::Worker(_) => self.faults.breaks,
            };
            if line.open_at_broker {
                if !line.to_broker.is_empty() {
                    steps.push(Step::ArriveAtBroker(number));
                }
                if breaks || !line.open_at_peer {
                    steps.push(Step::BreakAtBroker(number));
                }
            }
            if line.open_at_peer {
                if !line.to_peer.is_empty() {
                    steps.push(Step::ArriveAtPeer(number));
                }
                if breaks || !line.open_at_broker {
                    steps.push(Step::BreakAtPeer(number));
                }
            }
        }
        for peer in [Peer::Proxy, Peer::Worker(0), Peer::Worker(1)] {
            let ends = peer == Peer::Proxy && self.proxy.closed;
            if self.line_of(peer).is_none() && !ends {
                steps.push(Step::Connect(peer));
            }
        }
        if self.faults.cancels > 0 && self.proxy.welcomed && !self.proxy.over {
            steps.push(Step::Cancel);
        }
        for number in [0, 1] {
            let worker = &self.workers[usize::from(number)];
            if let Some(held) = &worker.held {
                let may_begin = match self.rules.waits_for_its_start {
                    true => held.outbox.start_is_stored(),
                    false => held.outbox.has_start(),
                };
                let complete = held.outbox.is_complete();
                if !held.outbox.has_start() && !complete {
                    match held.state {
                        None if self.rules.wants_state => steps.push(Step::AskForState(number)),
                        None | Some(true) => steps.push(Step::Ask(number)),
                        Some(false) => {}
                    }
                }
                if may_begin && !held.begun && !complete {
                    steps.push(Step::Begin(number));
                }
                if (held.begun || held.cancelled) && !complete {
                    steps.push(Step::End(number));
                }
            }
            if self.faults.deaths > 0 && self.line_of(Peer::Worker(number)).is_some() {
                steps.push(Step::Die(number));
            }
        }
        if self.faults.restarts > 0 {
            steps.push(Step::Restart);
        }
        if self.faults.losses > 0 {
            steps.push(match self.remembered {
                None => Step::Remember,
                Some(_) => Step::RestartBehind,
            });
        }
        if self.dispatch.next_deadline().is_some() {
            steps.push(Step::Wait);
        }
        steps
    }

    /// Equal for two worlds with the same possible futures. Connections and times are relative.
    pub(in crate::dispatch::exploration) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let state = &mut hasher;
        let place = |id: ConnectionId| self.lines.iter().position(|line| line.id == id);
        let left = |deadline: Option<Instant>| {
            deadline.map(|at_| at_.saturating_duration_since(at(self.seconds).instant))
        };
        (self.faults, &self.proxy, self.begun).hash(state);
        for line in &self.lines {
            (line.peer, line.open_at_broker, line.open_at_peer).hash(state);
            (&line.to_broker, &line.to_peer).hash(state);
        }
        for worker in &self.workers {
            (worker.life, worker.welcomed).hash(state);
            if let Some(held) = &worker.held {
                (held.fencing, held.state, held.cancelled, held.begun).hash(state);
                (held.outbox.acknowledged(), held.outbox.has_start()).hash(state);
                (held.outbox.start_is_stored(), held.outbox.is_complete()).hash(state);
            }
            0.hash(state);
        }
        let dispatch = &self.dispatch;
        for job in dispatch.jobs.iter() {
            (
                job.phase() as u8,
                job.worker(),
                job.fencing(),
                job.acknowledged(),
            )
                .hash(state);
            (
                job.last_event(),
                job.is_cancel_wanted(),
                job.abandoned.is_some(),
            )
                .hash(state);
            job.state_wanted.hash(state);
            let unclaimed = job.unclaimed.as_ref();
            unclaimed
                .map(|stored| (left(Some(stored.until)), stored.last_event))
                .hash(state);
            (
                job.waiting.is_some(),
                left(job.shown.as_ref().map(|shown| shown.1)),
            )
                .hash(state);
        }
        for known in dispatch.peers.notebooks.values() {
            (known.connection.map(place), left(known.deadline)).hash(state);
            let subscriptions = known.subscriptions.values();
            let live: Vec<bool> = subscriptions
                .map(|subscription| *subscription == Subscription::Live)
                .collect();
            live.hash(state);
        }
        let mut workers: Vec<_> = dispatch.peers.workers.iter().collect();
        workers.sort_unstable_by_key(|(id, _)| **id);
        for (id, worker) in workers {
            (
                id,
                worker.life,
                worker.connection.map(place),
                left(worker.deadline),
            )
                .hash(state);
        }
        let mut missed: Vec<_> = dispatch
            .peers
            .missed
            .iter()
            .map(|(id, missed)| (*id, left(Some(missed.deadline))))
            .collect();
        missed.sort_unstable();
        missed.hash(state);
        let mut peers: Vec<_> = dispatch
            .peers
            .by_connection
            .keys()
            .map(|id| place(*id))
            .collect();
        peers.sort_unstable();
        (
            peers,
            dispatch.jobs.count_closed(),
            left(dispatch.replan_at),
        )
            .hash(state);
        if let Some(disk) = &self.remembered {
            disk.events.hash(state);
            for job in disk.stored.jobs.values() {
                (job.phase as u8, job.worker, job.fencing, job.acknowledged).hash(state);
            }
            disk.stored.closed.len().hash(state);
        }
        hasher.finish()
    }
}
