//! Room on the GPU for what the driver makes by itself: memory that cannot leave the GPU, contexts and code.
//!
//! In: calls for which the driver may have no room. Out: the same calls, once other sessions have made room.

use super::{
    Memory, Process, RETRY,
    connection::Answer,
    heap::GRANULE_BYTES,
    sys::driver::{Code, Context, OUT_OF_MEMORY, SUCCESS},
    wire::FromSession,
};
use std::sync::{MutexGuard, PoisonError, atomic::Ordering::Relaxed};

/// For memory that is in no ledger, others make room in steps of one part in this many of the GPU, but at most
/// `ROOM_BYTES`.
const ROOM_PART: u64 = 20;
const ROOM_BYTES: u64 = 512 << 20;

/// Room on the GPU that the worker has granted over one connection.
struct Room<'process> {
    bytes: u64,
    generation: u64,
    _one_at_a_time: MutexGuard<'process, ()>,
}

/// Lets the driver allocate memory that cannot leave the GPU and is freed with `context`. `make` returns
/// the handle that frees it.
pub(super) fn make_fixed(
    process: &Process,
    bytes: u64,
    context: Option<Context>,
    make: impl Fn() -> Result<u64, Code>,
) -> Code {
    loop {
        let room = match ask_for_room(process, bytes, &FromSession::Grew { bytes }) {
            Ok(room) => room,
            Err(code) => return code,
        };
        let made = make();
        let mut memory = process.memory();
        let code = made.err().unwrap_or(SUCCESS);
        report_made(process, &memory, &room, code);
        if let Ok(key) = made {
            memory.fix(key, bytes, context);
            process.report_fixed(&memory);
        }
        if code != OUT_OF_MEMORY {
            return code;
        }
        drop(memory);
        std::thread::sleep(RETRY);
    }
}

/// Asks for room until the driver can create something that is in no ledger: a context, or loaded code. How
/// much room it needs is not known in advance. May be called while the memory is on the host, and then waits
/// for a lease.
pub(super) fn with_room(process: &Process, make: impl Fn() -> Code) -> Code {
    let part = process.cap_bytes.load(Relaxed) / ROOM_PART;
    let part = part.clamp(GRANULE_BYTES, ROOM_BYTES);
    let mut bytes = part;
    loop {
        let room = match ask_for_room(process, bytes, &FromSession::NeedsRoom { bytes }) {
            Ok(room) => room,
            Err(code) => return code,
        };
        let code = make();
        let memory = process.memory();
        report_made(process, &memory, &room, code);
        if code != OUT_OF_MEMORY {
            return code;
        }
        drop(memory);
        bytes += part;
        std::thread::sleep(RETRY);
    }
}

/// Sends `request`, and waits until others have made this much room on the GPU. While the memory is on the host,
/// the worker grants allocations without room for them, so the memory returns first, with a lease.
fn ask_for_room<'process>(
    process: &'process Process,
    bytes: u64,
    request: &FromSession,
) -> Result<Room<'process>, Code> {
    loop {
        if process.memory().is_away() {
            match process.ask(|| SUCCESS) {
                SUCCESS => {}
                code => return Err(code),
            }
        }
        let one_at_a_time = process
            .growing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Answer::Yes { generation } = process.connection.ask_to_grow(request) else {
            return Err(OUT_OF_MEMORY);
        };
        let room = Room {
            bytes,
            generation,
            _one_at_a_time: one_at_a_time,
        };
        let memory = process.memory();
        if !memory.is_away() {
            return Ok(room);
        }
        report_made(process, &memory, &room, SUCCESS);
    }
}

/// Gives granted room back after the driver returned `code`. What it has made is counted elsewhere. Must be called
/// while the memory is locked, so that this is sent before the next hello.
fn report_made(process: &Process, memory: &Memory, room: &Room<'_>, code: Code) {
    if process.connection.generation() != room.generation {
        return;
    }
    match code {
        OUT_OF_MEMORY => process.report_not_grown(memory, room.bytes),
        _ => process.report_not_used(memory, room.bytes),
    }
}
