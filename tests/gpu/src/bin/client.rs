//! A program that computes on a GPU, as commands tell it.
//!
//! Each line on standard input is a command, and each line on standard output is the answer to one: `ok …`, or
//! `error` with the driver's code. Buffers are named arrays of 64-bit numbers.

use baton_gpu_tests::sys::{
    Answer, Driver, Kernel, Refusal, at_exit, beside_child, call_loaded, in_child,
    when_asked_to_trim,
};
#[path = "client/mapping.rs"]
mod mapping;

use std::{
    collections::HashMap,
    ffi::{CString, c_void},
    fs::File,
    io::{self, BufRead as _, Write as _},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

struct Client {
    driver: Driver,
    add: Kernel,
    buffers: HashMap<String, Buffer>,
    stream: usize,
    /// A second stream that waits for the first.
    joined: usize,
    graph: usize,
    events: HashMap<String, usize>,
    /// Contexts, each with the context in which it was created.
    contexts: Vec<(usize, usize)>,
    green: usize,
    /// The handles of the pieces of a buffer that was mapped, by its name.
    pieces: HashMap<String, Vec<u64>>,
}

struct Buffer {
    address: u64,
    numbers: usize,
    /// The expected value of all its numbers.
    value: u64,
}

/// Whether the exit of this process waits for the end of standard input.
static EXITS_SLOWLY: AtomicBool = AtomicBool::new(false);

/// Pieces to release while this process exits.
static RELEASED_AT_EXIT: Mutex<Vec<(Driver, u64)>> = Mutex::new(Vec::new());

extern "C" fn exit() {
    let released = RELEASED_AT_EXIT
        .lock()
        .map(|mut all| std::mem::take(&mut *all));
    for (driver, piece) in released.unwrap_or_default() {
        let released = driver.release_piece(piece);
        let _ = answer(&released.map_or_else(|no| format!("error {}", no.0), |()| "ok".to_owned()));
    }
    if EXITS_SLOWLY.load(SeqCst) {
        let _ = answer("ok exiting");
        let _ = std::fs::read("/dev/stdin");
    }
}

/// How many launches aside were submitted.
static ASIDE: AtomicU64 = AtomicU64::new(0);

/// A host function that waits for a launch aside.
extern "C" fn wait_for_launch_aside(_: *mut c_void) {
    while ASIDE.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
}

fn main() -> io::Result<()> {
    at_exit(exit);
    let mut client = match Client::open() {
        Ok(client) => client,
        Err(Refusal(code)) => return answer(&format!("error {code}")),
    };
    answer("ok ready")?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(&match client.execute(&words) {
            Ok(answer) => format!("ok {answer}"),
            Err(Refusal(code)) => format!("error {code}"),
        })?;
        if EXITS_SLOWLY.load(SeqCst) {
            break;
        }
    }
    Ok(())
}

fn answer(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", line.trim_end())?;
    output.flush()
}

const INVALID: Refusal = Refusal(1);

impl Client {
    fn open() -> Answer<Self> {
        let driver = Driver::open()?;
        Ok(Self {
            add: driver.kernel("add")?,
            stream: driver.stream()?,
            driver,
            buffers: HashMap::new(),
            joined: 0,
            graph: 0,
            events: HashMap::new(),
            contexts: Vec::new(),
            green: 0,
            pieces: HashMap::new(),
        })
    }

    fn execute(&mut self, words: &[&str]) -> Answer<String> {
        let driver = self.driver;
        match *words {
            ["allocate", name, bytes] => self.keep(name, bytes, Driver::allocate),
            ["allocate-in-order", name, bytes] => self.keep(name, bytes, |driver, bytes| {
                driver.allocate_in_order(bytes, 0)
            }),
            ["captured-allocate", name, bytes] => {
                let stream = self.stream;
                self.keep(name, bytes, |driver, bytes| {
                    driver.allocate_in_order(bytes, stream)
                })
            }
            ["fork-stream"] => {
                self.joined = driver.stream()?;
                nothing(driver.fork_stream(self.stream, self.joined))
            }
            ["joined-allocate", name, bytes] => {
                let stream = self.joined;
                self.keep(name, bytes, |driver, bytes| {
                    driver.allocate_in_order(bytes, stream)
                })
            }
            ["synchronize-copies", name] => {
                nothing(driver.synchronize_copies(self.buffer(name)?.address))
            }
            ["allocate-managed", name, bytes] => self.keep(name, bytes, Driver::allocate_managed),
            ["allocate-from-pool", which, kind, place, name, bytes] => {
                let (kind, place) = (number(kind)? as i32, number(place)? as i32);
                let pool = match which {
                    "new" => driver.new_pool(kind, place)?,
                    _ => driver.default_pool(kind, place)?,
                };
                self.keep(name, bytes, |driver, bytes| {
                    driver.allocate_from_pool(pool, bytes)
                })
            }
            ["pool-bytes", kind, place] => {
                let pool = driver.default_pool(number(kind)? as i32, number(place)? as i32)?;
                driver.pool_bytes(pool).map(|bytes| format!("{bytes:?}"))
            }
            ["reset-pool", kind, place] => {
                let pool = driver.default_pool(number(kind)? as i32, number(place)? as i32)?;
                nothing(driver.reset_pool(pool))
            }
            ["import", bytes] => driver
                .import(number(bytes)?)
                .map(|memory| memory.to_string()),
            ["destroy-import", memory] => nothing(driver.destroy_import(number(memory)? as usize)),
            ["make-graph", bytes] => nothing(driver.make_graph(number(bytes)?)),
            ["is-on-host", name] => {
                let address = self.buffer(name)?.address;
                self.driver
                    .is_on_host(address)
                    .map(|is_on_host| is_on_host.to_string())
            }
            ["free", name] => nothing(driver.free(self.take(name)?)),
            ["free-in-order", name] => nothing(driver.free_in_order(self.take(name)?, 0)),
            ["free-twice", name] => self.free_twice(name),
            // In a stream other than the default stream.
            ["free-in-stream", name] => {
                nothing(driver.free_in_order(self.take(name)?, self.stream))
            }
            ["swap-streams"] => {
                if self.joined == 0 {
                    self.joined = driver.stream()?;
                }
                std::mem::swap(&mut self.stream, &mut self.joined);
                Ok(String::new())
            }
            ["renew-stream"] => {
                driver.end_stream(self.stream)?;
                self.stream = driver.stream()?;
                Ok(String::new())
            }
            ["free-when-asked", name] => self.free_when_asked(name),
            ["pairs", bytes, count] => self.pairs(number(bytes)? as usize, number(count)?),
            ["set", name, value] => self.set(name, number(value)?),
            ["add", name, value] => self.add(name, number(value)?, 0),
            ["check", name] => self.check(name),
            ["rounds", name, count] => self.rounds(name, number(count)?),
            ["launch", kernel, count] => self.launch(kernel, number(count)?),
            ["launch-in-streams", kernel, streams, count] => {
                self.launch_in_streams(kernel, number(streams)?, number(count)?)
            }
            ["calls-of-launches", count] => self.calls_of_launches(number(count)?),
            ["launch-aside", kernel, count] => self.launch_aside(kernel, number(count)?),
            ["launched-aside"] => Ok(ASIDE.load(SeqCst).to_string()),
            ["wait-for-value", name, value] => nothing(driver.wait_for_value(
                self.stream,
                self.buffer(name)?.address,
                number(value)?,
            )),
            ["write-value-aside", name, value] => self.write_aside(name, number(value)?),
            ["wait-for-launch-aside"] => {
                nothing(driver.call_on_host(self.stream, wait_for_launch_aside))
            }
            ["allocate-pinned", bytes] => {
                nothing(driver.allocate_pinned(number(bytes)? as usize).map(drop))
            }
            ["exit-slowly"] => {
                EXITS_SLOWLY.store(true, SeqCst);
                Ok(String::new())
            }
            ["time-submissions", batches] => self.time_submissions(number(batches)?),
            ["synchronize"] => nothing(self.driver.synchronize()),
            ["is-done"] => driver.is_done().map(|is_done| is_done.to_string()),
            ["create-event", name, flags] => {
                let event = driver.event(number(flags)? as u32)?;
                self.events.insert(name.to_owned(), event);
                Ok(String::new())
            }
            ["record", event] => nothing(driver.record(self.event(event)?, 0)),
            ["elapsed", start, end] => driver
                .elapsed(self.event(start)?, self.event(end)?)
                .map(|milliseconds| milliseconds.to_string()),
            ["call", name] => nothing(call_loaded(&CString::new(name).map_err(|_| INVALID)?)),
            ["memory"] => self
                .driver
                .memory()
                .map(|(free, total)| format!("{free} {total}")),
            ["card-bytes"] => driver.total_bytes().map(|bytes| bytes.to_string()),
            ["range", name] => self.range(name),
            ["is-of-context", name] => {
                let context = driver.context_of(self.buffer(name)?.address)?;
                Ok((context == driver.context()?).to_string())
            }
            ["share", name] => nothing(self.driver.share(self.buffer(name)?.address)),
            ["begin-capture"] => nothing(self.driver.begin_capture(self.stream)),
            ["begin-own-capture"] => nothing(driver.begin_own_capture()),
            ["end-own-capture"] => nothing(driver.end_own_capture()),
            ["capture-aside"] => nothing(driver.capture_aside()),
            ["captured-add", name, value] => self.add(name, number(value)?, self.stream),
            ["end-capture"] => {
                self.graph = self.driver.end_capture(self.stream)?;
                Ok(String::new())
            }
            ["launch-graph", name, value] => {
                self.driver.launch_graph(self.graph)?;
                self.buffers.get_mut(name).ok_or(INVALID)?.value += number(value)?;
                Ok(String::new())
            }
            ["fork"] => Ok(in_child(|| {
                self.driver
                    .allocate(512)
                    .map_or_else(|no| no.0 as u8, |_| 0)
            })
            .to_string()),
            ["fork-twice"] => Ok(files_lost_in_grandchild().to_string()),
            ["fork-and-stay"] => {
                // Until the test closes standard input.
                beside_child(|| {
                    let _ = std::fs::read("/dev/stdin");
                });
                Ok(String::new())
            }
            ["reset"] => nothing(driver.reset()),
            ["retain"] => {
                driver.retain()?;
                (self.add, self.stream) = (driver.kernel("add")?, driver.stream()?);
                Ok(String::new())
            }
            ["create-context", call] => {
                let primary = driver.context()?;
                self.contexts.push((primary, driver.create_context(call)?));
                Ok(String::new())
            }
            ["attach-context"] => nothing(driver.attach_context()),
            ["detach-context"] => {
                let context = self.contexts.last().ok_or(INVALID)?.1;
                nothing(driver.detach_context(context))
            }
            ["leave-context"] => {
                nothing(driver.set_context(self.contexts.last().ok_or(INVALID)?.0))
            }
            ["destroy-context"] => {
                let (primary, context) = self.contexts.pop().ok_or(INVALID)?;
                driver.destroy_context(context)?;
                nothing(driver.set_context(primary))
            }
            ["create-green-context"] => {
                let primary = driver.context()?;
                let (green, context) = driver.create_green_context()?;
                self.green = green;
                self.contexts.push((primary, context));
                Ok(String::new())
            }
            ["destroy-green-context"] => {
                self.contexts.pop();
                nothing(driver.destroy_green_context(self.green))
            }
            ["create-piece", place, bytes] => nothing(
                driver
                    .create_piece(number(place)? as i32, number(bytes)? as usize)
                    .map(drop),
            ),
            ["create-piece-without-context", bytes] => {
                let bytes = number(bytes)? as usize;
                let thread = std::thread::spawn(move || driver.create_shareable_piece(bytes));
                nothing(thread.join().map_err(|_| INVALID)?.map(drop))
            }
            ["map", name, bytes, count] => self.map(name, number(bytes)? as usize, number(count)?),
            ["map-again", name, other] => self.map_again(name, other),
            ["unmap", name] => self.unmap(name),
            ["unmap-half", name] => {
                let buffer = self.buffer(name)?;
                nothing(driver.unmap(buffer.address, buffer.numbers * 8 / 4))
            }
            ["permit", name, device] => {
                let buffer = self.buffer(name)?;
                nothing(driver.permit(buffer.address, buffer.numbers * 8, number(device)? as i32))
            }
            ["map-half-over", name] => {
                let (buffer, piece) =
                    (self.buffer(name)?, self.pieces.get(name).ok_or(INVALID)?[0]);
                nothing(driver.map(buffer.address, buffer.numbers * 8 / 4, piece))
            }
            ["map-over", name] => {
                let (buffer, pieces) = (self.buffer(name)?, self.pieces.get(name).ok_or(INVALID)?);
                nothing(driver.map(buffer.address, buffer.numbers * 8 / pieces.len(), pieces[0]))
            }
            ["unreserve", name] => {
                let buffer = self.buffers.remove(name).ok_or(INVALID)?;
                nothing(driver.unreserve(buffer.address, buffer.numbers * 8))
            }
            ["release", name] => self.release(name),
            ["release-at-exit", name] => {
                let piece = self.pieces.get(name).ok_or(INVALID)?[0];
                RELEASED_AT_EXIT
                    .lock()
                    .map_err(|_| INVALID)?
                    .push((driver, piece));
                Ok(String::new())
            }
            ["may-write", name] => driver
                .may_write(self.buffer(name)?.address)
                .map(|may_write| may_write.to_string()),
            ["hold", name] => self.hold(name),
            ["export", name] => {
                let pieces = self.pieces.get(name).ok_or(INVALID)?;
                nothing(driver.export_piece(pieces[0]))
            }
            ["look-up", name, version, flags, export] => self.look_up(name, version, flags, export),
            _ => Err(INVALID),
        }
    }

    fn keep(
        &mut self,
        name: &str,
        bytes: &str,
        allocate: impl Fn(&Driver, usize) -> Answer<u64>,
    ) -> Answer<String> {
        let bytes = number(bytes)? as usize;
        let address = allocate(&self.driver, bytes)?;
        let buffer = Buffer {
            address,
            numbers: bytes / 8,
            value: 0,
        };
        self.buffers.insert(name.to_owned(), buffer);
        Ok(address.to_string())
    }

    fn take(&mut self, name: &str) -> Answer<u64> {
        let buffer = self.buffers.remove(name);
        buffer.map(|buffer| buffer.address).ok_or(INVALID)
    }

    fn buffer(&self, name: &str) -> Answer<&Buffer> {
        self.buffers.get(name).ok_or(INVALID)
    }

    fn event(&self, name: &str) -> Answer<usize> {
        self.events.get(name).copied().ok_or(INVALID)
    }

    /// As a session does with memory that its libraries hold without using it.
    fn free_when_asked(&mut self, name: &str) -> Answer<String> {
        let (driver, address) = (self.driver, self.take(name)?);
        let context = driver.context()?;
        nothing(when_asked_to_trim(move || {
            let freed = driver
                .set_context(context)
                .and_then(|()| driver.free(address));
            freed.unwrap_or_else(|Refusal(code)| eprintln!("A free was refused: {code}"));
        }))
    }

    /// Frees memory in order, and returns the codes of further attempts.
    fn free_twice(&mut self, name: &str) -> Answer<String> {
        let (driver, address) = (self.driver, self.take(name)?);
        driver.free_in_order(address, 0)?;
        let again = [driver.free_in_order(address, 0), driver.free(address)];
        let codes = again.map(|answer| answer.err().map_or(0, |Refusal(code)| code));
        Ok(format!("{codes:?}"))
    }

    fn set(&mut self, name: &str, value: u64) -> Answer<String> {
        let buffer = self.buffers.get_mut(name).ok_or(INVALID)?;
        buffer.value = value;
        nothing(
            self.driver
                .write(buffer.address, &vec![value; buffer.numbers]),
        )
    }

    fn add(&mut self, name: &str, value: u64, stream: usize) -> Answer<String> {
        let buffer = self.buffers.get_mut(name).ok_or(INVALID)?;
        // Work in a capture is done only when the graph runs.
        buffer.value += if stream == 0 { value } else { 0 };
        nothing(
            self.add
                .launch(stream, &[buffer.address, buffer.numbers as u64, value]),
        )
    }

    fn check(&self, name: &str) -> Answer<String> {
        let buffer = self.buffer(name)?;
        let mut numbers = vec![0; buffer.numbers];
        self.driver.read(buffer.address, &mut numbers)?;
        let wrong = numbers.iter().position(|number| *number != buffer.value);
        Ok(match wrong {
            None => "right".to_owned(),
            Some(place) => format!(
                "wrong: {} and not {} at {place}",
                numbers[place], buffer.value
            ),
        })
    }

    /// Computes and checks the results repeatedly.
    fn rounds(&mut self, name: &str, count: u64) -> Answer<String> {
        let sleep = self.driver.kernel("sleep_20ms")?;
        for round in 1..=count {
            self.add(name, round, 0)?;
            for _ in 0..3 {
                sleep.launch(0, &[])?;
            }
            self.driver.synchronize()?;
            let checked = self.check(name)?;
            if checked != "right" {
                return Ok(format!("{checked} in round {round}"));
            }
        }
        Ok("right".to_owned())
    }

    fn launch(&self, kernel: &str, count: u64) -> Answer<String> {
        let kernel = self.driver.kernel(kernel)?;
        for _ in 0..count {
            kernel.launch(0, &[])?;
        }
        Ok(String::new())
    }

    /// Launches the kernel this many times in each of new streams.
    fn launch_in_streams(&self, kernel: &str, streams: u64, count: u64) -> Answer<String> {
        let kernel = self.driver.kernel(kernel)?;
        for _ in 0..streams {
            let stream = self.driver.stream()?;
            (0..count).try_for_each(|_| kernel.launch(stream, &[]))?;
        }
        Ok(String::new())
    }

    /// How many calls to the driver this many launches in a row made.
    fn calls_of_launches(&self, count: u64) -> Answer<String> {
        let before = self.driver.calls();
        for _ in 0..count {
            self.add.launch(0, &[0, 0, 0])?;
            self.driver.synchronize()?;
        }
        Ok((self.driver.calls() - before - count).to_string())
    }

    /// Repeatedly allocates memory in order, uses it and frees it. Returns how many calls to the driver
    /// allocated or freed, in total.
    fn pairs(&self, bytes: usize, count: u64) -> Answer<String> {
        let (driver, mut calls) = (self.driver, 0);
        for _ in 0..count {
            let before = driver.calls();
            let address = driver.allocate_in_order(bytes, self.stream)?;
            calls += driver.calls() - before;
            driver.set_in_order(address, 8, self.stream)?;
            let before = driver.calls();
            driver.free_in_order(address, self.stream)?;
            calls += driver.calls() - before;
        }
        Ok(calls.to_string())
    }

    /// Launches in a separate thread, without waiting for it.
    fn launch_aside(&self, kernel: &str, count: u64) -> Answer<String> {
        let (driver, kernel) = (self.driver, self.driver.kernel(kernel)?);
        let context = driver.context()?;
        std::thread::spawn(move || {
            let launches = driver.set_context(context).and_then(|()| {
                (0..count).try_for_each(|_| {
                    kernel.launch(0, &[])?;
                    ASIDE.fetch_add(1, SeqCst);
                    Ok(())
                })
            });
            launches
                .unwrap_or_else(|Refusal(code)| eprintln!("A launch aside was refused: {code}"));
        });
        Ok(String::new())
    }

    /// Writes to the buffer's first number in a separate thread and stream, without waiting for it.
    fn write_aside(&self, name: &str, value: u64) -> Answer<String> {
        let (driver, address) = (self.driver, self.buffer(name)?.address);
        let (context, stream) = (driver.context()?, driver.stream()?);
        std::thread::spawn(move || {
            let written = driver
                .set_context(context)
                .and_then(|()| driver.write_value(stream, address, value));
            written.unwrap_or_else(|Refusal(code)| eprintln!("A write aside was refused: {code}"));
        });
        Ok(String::new())
    }

    /// Nanoseconds for each submission, in the fastest of many batches.
    fn time_submissions(&self, batches: u64) -> Answer<String> {
        const BATCH: u32 = 4096;
        let address = self.driver.allocate(512)?;
        let mut fastest = f64::MAX;
        for _ in 0..batches {
            let since = Instant::now();
            self.driver.submit_nothing(address, BATCH)?;
            fastest = fastest.min(since.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
        }
        Ok(format!("{fastest:.1}"))
    }

    /// Checks that an address in the middle of the buffer is known to belong to it.
    fn range(&self, name: &str) -> Answer<String> {
        let buffer = self.buffer(name)?;
        let [base, start, bytes] = self
            .driver
            .range_of(buffer.address + buffer.numbers as u64 * 4)?;
        let is_right =
            base == buffer.address && start == base && bytes >= buffer.numbers as u64 * 8;
        Ok(is_right.to_string())
    }

    /// Whether a look-up finds what the loader finds under the name of an export.
    fn look_up(&self, name: &str, version: &str, flags: &str, export: &str) -> Answer<String> {
        let found = self
            .driver
            .address_of(name, number(version)? as i32, number(flags)?)?;
        Ok((found != 0 && found == self.driver.export(export)).to_string())
    }
}

/// How many files that a forked child has opened are closed in its own child.
fn files_lost_in_grandchild() -> i32 {
    in_child(|| {
        let files: Vec<File> = (0..64).flat_map(|_| File::open("/dev/null")).collect();
        let is_lost = |file: &&File| file.metadata().is_err();
        in_child(|| files.iter().filter(is_lost).count() as u8) as u8
    })
}

fn number(word: &str) -> Answer<u64> {
    word.parse().map_err(|_| INVALID)
}

fn nothing(answer: Answer) -> Answer<String> {
    answer.map(|()| String::new())
}
