//! The interposer's own thread, the agent: it carries out the worker's requests.
//!
//! It opens the gate when a lease is granted. To end a lease it closes the gate and waits until nothing is in
//! flight and the GPU is idle (if that takes long: `drains.rs`). It returns a lease that the session does not use.
//! While there is no connection to the worker, the gate is closed. A second thread reads from the connection, so
//! that an allocation gets its answer even while the agent waits for the GPU at the end of a lease.
//!
//! **Invariant:** a lease ends only while no stream is being captured.

use super::{
    Process,
    ahead::{self, Ahead, Made},
    connection::{Frames, Introduction, WELCOME, introduction},
    sys::{
        driver::{self, Event, OUT_OF_MEMORY},
        host,
    },
    wire::{Epoch, FromSession, Hello, ToSession},
};
use std::{
    collections::VecDeque,
    io,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// A lease that was not used for this long is returned.
const IDLE: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long to try to reconnect to the worker.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(50);

/// How often to check whether a capture has ended.
const CAPTURE: Duration = Duration::from_millis(2);

/// How often to check whether work in flight waits for a thread at the gate.
const EASE_EVERY: Duration = Duration::from_millis(250);

/// Connects this process to its worker, if it has one, and starts the agent's thread.
pub(super) fn start(process: &'static Process) {
    let Some(introduction) = introduction() else {
        return;
    };
    process.gate.close();
    let first = connect(process, &introduction);
    let started = first.and_then(|frames| {
        let agent = thread::Builder::new().name("baton-gpu".to_owned());
        host::without_signals(|| agent.spawn(move || run(process, &introduction, frames)))
    });
    match started {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            refuse_all(process);
            eprintln!("Baton: this process cannot use the GPU: {error}");
        }
        Err(error) => {
            process.gate.give_up();
            eprintln!("Baton: this process uses the GPU without time-sharing: {error}");
        }
        Ok(_) => {}
    }
}

/// From now on, all calls fail.
fn refuse_all(process: &Process) {
    process.connection.give_up();
    process.gate.break_down();
}

fn connect(process: &Process, introduction: &Introduction) -> io::Result<Frames> {
    let stream = Arc::new(UnixStream::connect(&introduction.socket)?);
    // The lock is held so that nothing changes between the hello and the messages after the welcome.
    let memory = process.memory();
    let hello = FromSession::Hello(Hello {
        token: introduction.token,
        total_bytes: driver::total_bytes(0),
        bytes: memory.bytes(),
        fixed_bytes: memory.fixed_bytes(),
        is_away: memory.is_away(),
        device: driver::uuid(0),
    });
    io::Write::write_all(&mut stream.as_ref(), &hello.encode())?;
    stream.set_read_timeout(Some(WELCOME))?;
    let mut frames = Frames::new(stream.clone());
    match frames.next() {
        Ok(Some(ToSession::Welcome { cap_bytes })) => {
            process.welcome(cap_bytes, frames.descriptor());
            process.connection.open(stream);
            drop(memory);
            if process.trims.are_possible() {
                process.connection.send(&FromSession::CanTrim);
            }
            Ok(frames)
        }
        Ok(Some(ToSession::Refuse { .. })) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "too many processes of this session already use it",
        )),
        other => Err(other.err().unwrap_or(io::ErrorKind::TimedOut.into())),
    }
}

fn run(process: &'static Process, introduction: &Introduction, mut frames: Frames) {
    driver::relax_captures();
    loop {
        let (sender, heard) = channel();
        let mut agent = Agent {
            process,
            lease: None,
            looked_at: Instant::now(),
            heard: sender.clone(),
            ahead: None,
            made: VecDeque::new(),
            orders: 0,
        };
        let end = match listen(process, frames, sender) {
            Ok(()) => agent.serve(&heard),
            Err(error) => {
                // The system starts no thread now; a new connection would not change that.
                thread::sleep(RETRY);
                Err(error)
            }
        };
        process.disconnect();
        let driver = process.driver.begin();
        agent.ahead = None;
        agent.made.clear();
        // The next connection does not know about places on the host.
        ahead::unpin(process, u64::MAX);
        drop(driver);
        let lost_at = Instant::now();
        let mut is_drained = false;
        frames = loop {
            let driver = process.driver.begin();
            is_drained = is_drained || agent.drain();
            // A hello cannot describe memory that is only partly on the host.
            if is_drained && process.memory().is_away() {
                process.swap_out(u64::MAX);
            }
            match connect(process, introduction) {
                Ok(frames) => break frames,
                Err(_) if lost_at.elapsed() < PATIENCE => {
                    drop(driver);
                    thread::sleep(RETRY);
                }
                Err(_) => {
                    refuse_all(process);
                    let reason = end.err().map(|error| error.to_string());
                    let reason = reason.unwrap_or_default();
                    eprintln!(
                        "Baton: this process can no longer use the GPU, because its worker is gone: {reason}"
                    );
                    return;
                }
            }
        };
        process.gate.close();
        if process.gate.somebody_waits() {
            process.connection.send(&FromSession::Want);
        }
    }
}

/// What the agent's loop reacts to.
enum Heard {
    Said(ToSession),
    /// The connection ended.
    Ended(io::Error),
    Made(Made),
}

impl From<Made> for Heard {
    fn from(made: Made) -> Self {
        Self::Made(made)
    }
}

/// Reads the worker's messages until the connection ends. Answers to requests for memory go to the thread that
/// asked.
fn listen(process: &'static Process, mut frames: Frames, heard: Sender<Heard>) -> io::Result<()> {
    frames.stream().set_read_timeout(Some(EASE_EVERY))?;
    let reader = thread::Builder::new().name("baton-gpu-read".to_owned());
    let read = move || {
        loop {
            let message = match frames.next() {
                Ok(Some(ToSession::Grow { .. })) => {
                    process.connection.answer(true);
                    continue;
                }
                Ok(Some(ToSession::Refuse { .. })) => {
                    process.connection.answer(false);
                    continue;
                }
                Ok(Some(message)) => Heard::Said(message),
                Ok(None) => {
                    process.drains.ease(&process.gate);
                    continue;
                }
                Err(error) => Heard::Ended(error),
            };
            let is_over = matches!(message, Heard::Ended(_));
            if heard.send(message).is_err() || is_over {
                return;
            }
        }
    };
    host::without_signals(|| reader.spawn(read))?;
    Ok(())
}

struct Agent {
    process: &'static Process,
    lease: Option<Lease>,
    /// When the use of the lease was last checked.
    looked_at: Instant,
    /// Given to the threads that make places.
    heard: Sender<Heard>,
    ahead: Option<Ahead>,
    /// Places that are made but not pinned yet.
    made: VecDeque<Made>,
    /// How many requests to pin there have been.
    orders: u64,
}

struct Lease {
    epoch: Epoch,
    /// It must be returned as soon as no stream is being captured.
    is_over: bool,
    submissions: u32,
    used_at: Instant,
    /// Marks were recorded behind its work, and it is not over until they are reached.
    is_marked: bool,
}

impl Agent {
    fn serve(&mut self, heard: &Receiver<Heard>) -> io::Result<()> {
        loop {
            let heard = self.next(heard);
            let _driver = self.process.driver.begin();
            match heard {
                Ok(Heard::Said(message)) => self.handle(message),
                Ok(Heard::Ended(error)) => return Err(error),
                Ok(Heard::Made(made)) => self.made.push_back(made),
                Err(RecvTimeoutError::Timeout) => self.pin_next(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            if self.looked_at.elapsed() >= LOOK_EVERY {
                self.looked_at = Instant::now();
                self.look();
            }
            if self.lease.as_ref().is_some_and(|lease| lease.is_over) {
                self.give_back();
            }
        }
    }

    /// Does not wait while there are places to pin; the worker's messages come first.
    fn next(&self, heard: &Receiver<Heard>) -> Result<Heard, RecvTimeoutError> {
        let patience = match &self.lease {
            _ if !self.made.is_empty() => Duration::ZERO,
            Some(lease) if lease.is_over => CAPTURE,
            Some(_) => LOOK_EVERY.saturating_sub(self.looked_at.elapsed()),
            None => return heard.recv().map_err(RecvTimeoutError::from),
        };
        heard.recv_timeout(patience)
    }

    fn handle(&mut self, message: ToSession) {
        let process = self.process;
        match message {
            ToSession::Welcome { cap_bytes } => {
                process.cap_bytes.store(cap_bytes, Relaxed);
                process.connection.send(&FromSession::Capped { cap_bytes });
            }
            ToSession::Grant { epoch } => {
                self.lease = Some(Lease {
                    epoch,
                    is_over: false,
                    submissions: process.gate.submissions(),
                    used_at: Instant::now(),
                    is_marked: false,
                });
                process.gate.open();
            }
            ToSession::Preempt { epoch } => {
                if let Some(lease) = &mut self.lease {
                    lease.is_over |= lease.epoch == epoch;
                }
            }
            ToSession::SwapOut { bytes } => {
                let since = Instant::now();
                self.end_pinning();
                let left = process.swap_out(bytes);
                let nanoseconds = since.elapsed().as_nanos() as u64;
                process.connection.send(&FromSession::SwappedOut {
                    bytes: left.bytes,
                    nanoseconds,
                    new_place_bytes: left.new_place_bytes,
                });
            }
            ToSession::SwapIn => {
                self.end_pinning();
                self.swap_in();
            }
            ToSession::Pin { bytes } => self.begin_to_pin(bytes),
            // This thread moves the memory itself, so no move is under way now.
            ToSession::Unpin { bytes } => {
                let missing = self.end_pinning();
                ahead::unpin(process, bytes.saturating_sub(missing));
            }
            ToSession::Trim => process.trims.ask(),
            // The reading thread has passed answers on to the thread that asked.
            ToSession::Grow { .. }
            | ToSession::Refuse { .. }
            | ToSession::Has { .. }
            | ToSession::ProcessHas { .. } => {}
        }
    }

    fn begin_to_pin(&mut self, bytes: u64) {
        self.end_pinning();
        self.orders += 1;
        let sizes = self.process.memory().sizes_without_place(bytes);
        self.ahead = Ahead::begin(self.orders, bytes, sizes, self.heard.clone());
        if self.ahead.is_none() {
            self.process
                .connection
                .send(&FromSession::Pinned { bytes: 0 });
        }
    }

    fn pin_next(&mut self) {
        let process = self.process;
        if let Some(made) = self.made.pop_front()
            && let Some(ahead) = &mut self.ahead
            && ahead.take_in(made, |place| ahead::pin_place(process, place))
        {
            self.end_pinning();
        }
    }

    /// Answers the request to pin, if there is one. Returns how many of its bytes got no place. Places that are
    /// made but not pinned yet are pinned when the memory leaves.
    fn end_pinning(&mut self) -> u64 {
        let process = self.process;
        let Some(mut ahead) = self.ahead.take() else {
            return 0;
        };
        for made in self.made.drain(..) {
            ahead.take_in(made, |place| ahead::give_place(process, place));
        }
        let bytes = ahead.bytes();
        process.connection.send(&FromSession::Pinned { bytes });
        ahead.missing_bytes()
    }

    fn swap_in(&self) {
        let since = Instant::now();
        let _held = self.process.contexts.stay();
        let swapped = self.process.memory().swap_in();
        let nanoseconds = since.elapsed().as_nanos() as u64;
        self.process.connection.send(&match swapped {
            Ok(bytes) => FromSession::SwappedIn { bytes, nanoseconds },
            Err(OUT_OF_MEMORY) => {
                let memory = self.process.memory();
                let (bytes, free_bytes) = (memory.away_bytes(), memory.free_bytes());
                FromSession::NoRoom { bytes, free_bytes }
            }
            Err(code) => {
                self.process.look_at(code);
                FromSession::NotSwappedIn
            }
        });
    }

    /// Ends the lease if it has not been used for a while and the GPU has no work for it.
    fn look(&mut self) {
        let process = self.process;
        let Some(lease) = &mut self.lease else { return };
        let submissions = process.gate.submissions();
        if submissions != lease.submissions || process.gate.in_flight() > 0 {
            lease.submissions = submissions;
            lease.used_at = Instant::now();
            lease.is_marked = false;
            return;
        }
        if lease.used_at.elapsed() < IDLE {
            return;
        }
        // A mark behind the work of a context would invalidate a capture in it.
        let Some(_none) = process.captures.none() else {
            return;
        };
        if !std::mem::replace(&mut lease.is_marked, true) {
            mark_contexts(process);
        }
        lease.is_over = is_idle(process) && process.gate.submissions() == submissions;
    }

    /// Returns the lease, unless a capture is under way.
    fn give_back(&mut self) {
        if !self.drain() {
            return;
        }
        let Some(lease) = self.lease.take() else {
            return;
        };
        let submissions = u64::from(self.process.gate.submissions());
        self.process.connection.send(&FromSession::Yielded {
            epoch: lease.epoch,
            submissions,
        });
        // A request from a thread that came to the gate before this message was ignored.
        if self.process.gate.somebody_waits() {
            self.process.connection.send(&FromSession::Want);
        }
    }

    /// Closes the gate and waits until the GPU has no work for the session. Returns `false` while a stream is
    /// being captured, also if only the driver knows that: work submitted to that stream is not computed, and the
    /// call that ends the capture must pass the gate.
    fn drain(&self) -> bool {
        let process = self.process;
        if process.captures.any() {
            return false;
        }
        process.drains.begin();
        loop {
            process.gate.close();
            process.gate.wait_until_nothing_is_in_flight();
            let is_idle = !process.captures.any() && process.synchronize();
            if !process.drains.end() {
                continue;
            }
            if !is_idle {
                process.gate.open();
                return false;
            }
            break;
        }
        process.reap(true);
        process.count_graphs();
        true
    }
}

/// Records marks for [`is_idle`] behind all work that was submitted until now.
fn mark_contexts(process: &Process) {
    let held = process.contexts.stay();
    let contexts = process.contexts.all().into_iter();
    let marks: Option<Vec<Event>> = contexts.map(Event::record_in).collect();
    match marks {
        Some(marks) => *process.marks() = marks,
        None => {
            process.marks().clear();
            drop(held);
            process.synchronize();
        }
    }
}

/// Whether the GPU has reached all marks. Does not wait.
fn is_idle(process: &Process) -> bool {
    process.marks().iter().all(|mark| match mark.outcome() {
        Some(code) => {
            process.look_at(code);
            true
        }
        None => false,
    })
}
