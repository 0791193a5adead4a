//! The workers and the proxy of the model: how they handle messages, and what they send.

use super::*;
use baton_protocol::Finished;

impl World {
    pub(super) fn arrive_at_peer(&mut self, line: usize) {
        let message = self.lines[line].to_peer.pop_front().unwrap();
        match self.lines[line].peer {
            Peer::Proxy => self.send_to_proxy(message),
            Peer::Worker(number) => {
                self.send_to_worker(number, message);
                self.flush(number);
            }
        }
    }

    pub(super) fn send_to_worker(&mut self, number: u8, message: Down) {
        let worker = &mut self.workers[usize::from(number)];
        match (message, &mut worker.held) {
            (Down::Welcome, held) => {
                worker.welcomed = true;
                if let Some(held) = held {
                    held.outbox.rewind();
                    let is_open = held.state == Some(false) && !held.outbox.is_complete();
                    if is_open && self.rules.asks_again {
                        let question = held.fencing;
                        held.outbox.push(event(Event::StateWanted(question)));
                    }
                }
            }
            (Down::Assign(fencing), held)
                if held.as_ref().is_none_or(|held| held.fencing < fencing) =>
            {
                *held = Some(Assignment {
                    fencing,
                    outbox: Outbox::default(),
                    state: None,
                    cancelled: false,
                    begun: false,
                });
            }
            (Down::Acknowledge(fencing, number), Some(held)) if held.fencing == fencing => {
                held.outbox.acknowledge(number);
                if held.outbox.is_done() {
                    worker.held = None;
                }
            }
            (Down::Revoke(fencing), Some(held)) if held.fencing <= fencing => worker.held = None,
            (Down::CancelJob, Some(held)) => held.cancelled = true,
            (Down::Answer(question), Some(held)) if held.fencing == question => {
                held.state = Some(true);
            }
            _ => {}
        }
    }

    pub(super) fn held_mut(&mut self, worker: u8) -> &mut Assignment {
        self.workers[usize::from(worker)].held.as_mut().unwrap()
    }

    pub(super) fn push(&mut self, worker: u8, what: Event) {
        self.held_mut(worker).outbox.push(event(what));
        self.flush(worker);
    }

    pub(super) fn flush(&mut self, number: u8) {
        let worker = &mut self.workers[usize::from(number)];
        let Some(held) = worker.held.as_mut().filter(|_| worker.welcomed) else {
            return;
        };
        let fencing = held.fencing;
        while let Some((first, events)) = self.workers[usize::from(number)]
            .held
            .as_mut()
            .and_then(|held| held.outbox.next_batch())
        {
            let events = events.iter().map(kind).collect();
            let message = Up::Events {
                fencing,
                first,
                events,
            };
            self.send(Peer::Worker(number), message);
        }
    }

    /// The same logic as in the proxy's link.
    pub(super) fn send_to_proxy(&mut self, message: Down) {
        match message {
            Down::Welcome => {
                self.proxy.welcomed = true;
                if self.proxy.over {
                    self.send(Peer::Proxy, Up::Applied);
                } else if self.proxy.submitted {
                    self.send(Peer::Proxy, Up::Resume(self.proxy.seen));
                    if let Some(question) = self.proxy.answered {
                        self.send(Peer::Proxy, Up::Answer(question));
                    }
                }
            }
            Down::Closed | Down::UnknownJob if self.proxy.over => self.proxy.closed = true,
            Down::UnknownJob if self.proxy.seen == 0 => self.send(Peer::Proxy, Up::Submit),
            Down::UnknownJob => self.end(),
            Down::Events(events) => {
                for Numbered {
                    number,
                    question,
                    is_last,
                } in events
                {
                    if number <= self.proxy.seen || self.proxy.over {
                        continue;
                    }
                    if number > self.proxy.seen + 1 {
                        return self.send(Peer::Proxy, Up::Resume(self.proxy.seen));
                    }
                    self.proxy.seen = number;
                    if let Some(question) = question {
                        self.proxy.answered = Some(question);
                        self.send(Peer::Proxy, Up::Answer(question));
                    }
                    if is_last {
                        self.end();
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn end(&mut self) {
        self.proxy.over = true;
        self.send(Peer::Proxy, Up::Applied);
    }
}

pub(super) fn down_to_worker(message: &ToWorker) -> Option<Down> {
    match message {
        ToWorker::Welcome { .. } => Some(Down::Welcome),
        ToWorker::Cancel { .. } => Some(Down::CancelJob),
        ToWorker::Answer { question, .. } => Some(Down::Answer(*question)),
        ToWorker::Revoke { fencing, .. } => Some(Down::Revoke(*fencing)),
        ToWorker::Acknowledge {
            fencing, number, ..
        } => Some(Down::Acknowledge(*fencing, *number)),
        _ => None,
    }
}

pub(super) fn number_of(event: &NumberedEvent) -> Numbered {
    Numbered {
        number: event.number,
        question: event.event.question(),
        is_last: event.event.is_last(),
    }
}

pub(super) fn kind(event: &JobEvent) -> Event {
    match event.question() {
        Some(question) => Event::StateWanted(question),
        None if event.is_last() => Event::Finished,
        None => Event::Started,
    }
}

pub(super) fn event(kind: Event) -> JobEvent {
    match kind {
        Event::StateWanted(question) => JobEvent::StateWanted { question },
        Event::Started => JobEvent::Started {
            worker: String::new(),
        },
        Event::Finished => JobEvent::Finished(Finished::without_state(Outcome::Ok, None)),
    }
}
