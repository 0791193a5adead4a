//! Streams, events, launches, captures and graphs.

use super::{api, put};
use crate::{
    CAPTURE_INVALIDATED, CAPTURE_MODE, CAPTURE_UNSUPPORTED, CAPTURED_EVENT, Capture, Code, Event,
    ILLEGAL_STATE, INVALID_HANDLE, Mark, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, PER_THREAD, SUCCESS, Stream,
    captured, card::card,
    context,
    engine::{self, Kernel, Work},
    host::{self, HostFunction},
    is_default, objects, spoils_captures, stale, submit,
};
use std::{
    ffi::{c_int, c_uint, c_void},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

/// Memory of instantiated graphs.
pub(crate) static GRAPH_BYTES: AtomicU64 = AtomicU64::new(0);

/// The kernel of this name, for example `add` or `sleep_20ms`; those of libraries do nothing. `words` points to its
/// arguments, as in a launch.
unsafe fn kernel(name: &str, words: *const *const u64) -> Kernel {
    let word = |index: usize| unsafe { **words.add(index) };
    let time = name.strip_prefix("sleep_");
    let milliseconds = time.and_then(|time| time.strip_suffix("ms")?.parse().ok());
    match name {
        "add" => Kernel::Add {
            to: word(0),
            count: word(1),
            value: word(2),
        },
        "touch_what_is_not_there" => Kernel::Fail(700),
        "forever" => Kernel::Forever,
        "held" => Kernel::Held,
        _ => milliseconds.map_or(Kernel::Nothing, |time| {
            Kernel::Sleep(Duration::from_millis(time))
        }),
    }
}

unsafe fn launch(function: usize, stream: usize, words: *const *const u64) -> Code {
    if let Err(code) = context() {
        return code;
    }
    let Some(name) = objects().functions.get(&function).cloned() else {
        return INVALID_HANDLE;
    };
    let kernel = unsafe { kernel(&name, words) };
    if !objects().loaded.contains(&function) {
        if !card().load_code() {
            return OUT_OF_MEMORY;
        }
        objects().loaded.insert(function);
    }
    submit(stream, Work::Kernel(kernel))
}

/// The number of a stream's last work.
pub(crate) fn last_of(stream: usize) -> Result<u64, Code> {
    let known = objects().streams.get(&stream).map(|known| known.last);
    known.or(is_default(stream).then_some(0)).ok_or_else(stale)
}

/// The number of the work that an event waits for; 0 if it was never recorded.
fn reached_at(event: usize) -> Result<u64, Code> {
    Ok(mark_of(event)?.map_or(0, |mark| mark.last))
}

pub(crate) fn mark_of(event: usize) -> Result<Option<Mark>, Code> {
    let known = objects().events.get(&event).map(|known| known.mark.clone());
    known.ok_or_else(stale)
}

fn record(event: usize, last: u64) -> Code {
    match objects().events.get_mut(&event) {
        Some(known) => known.mark = Some(engine::mark(last)),
        None => return stale(),
    }
    SUCCESS
}

/// For functions for which stream 0 is the thread's own.
fn own_default(stream: usize) -> usize {
    if stream == 0 { PER_THREAD } else { stream }
}

api! {
    fn cuLaunchKernel(
        function: usize, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint, stream: usize, words: *const *const u64, _extra: *const c_void,
    ) { launch(function, stream, words) }

    fn cuLaunchKernel_ptsz(
        function: usize, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint, stream: usize, words: *const *const u64, _extra: *const c_void,
    ) { launch(function, own_default(stream), words) }

    fn cuLaunchKernelEx(
        configuration: *const usize, function: usize, words: *const *const u64, _extra: *const c_void,
    ) { launch(function, *configuration.add(4), words) }

    fn cuStreamCreate(stream: *mut usize, _flags: c_uint) {
        let context = match context() {
            Ok(context) => context,
            Err(code) => return code,
        };
        let mut objects = objects();
        let number = objects.ended_stream.take().unwrap_or_else(|| objects.number());
        objects.streams.insert(number, Stream { context, last: 0 });
        put(stream, number)
    }

    fn cuStreamDestroy_v2(stream: usize) {
        let mut objects = objects();
        if objects.streams.remove(&stream).is_none() {
            drop(objects);
            return stale();
        }
        objects.captures.remove(&stream);
        objects.joined.retain(|joined, origin| *joined != stream && *origin != stream);
        objects.ended_stream = Some(stream);
        SUCCESS
    }

    fn cuStreamSynchronize(stream: usize) {
        if spoils_captures(false) {
            return CAPTURE_UNSUPPORTED;
        }
        match last_of(stream) {
            Ok(number) => engine::wait_for(number),
            Err(code) => return code,
        }
        crate::STICKY.load(SeqCst)
    }

    fn cuStreamQuery(stream: usize) {
        match last_of(stream) {
            Ok(number) if engine::is_done(number) => SUCCESS,
            Ok(_) => NOT_READY,
            Err(code) => code,
        }
    }

    // The function runs after all earlier work in the stream.
    fn cuLaunchHostFunc(stream: usize, function: HostFunction, data: *mut c_void) {
        submit(stream, Work::Call { function, data: data as usize })
    }

    // Later work in the stream waits for the number. 0 (CU_STREAM_WAIT_VALUE_GEQ): until it is at least the value.
    fn cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: c_uint) {
        match flags {
            0 => submit(stream, Work::Wait { address, value }),
            _ => NOT_SUPPORTED,
        }
    }

    // Other streams do not delay it.
    fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, _flags: c_uint) {
        let code = cuStreamSynchronize(stream);
        host::fill(address, &value.to_le_bytes(), 1);
        code
    }

    // ---- events

    fn cuEventCreate(event: *mut usize, _flags: c_uint) {
        let context = match context() {
            Ok(context) => context,
            Err(code) => return code,
        };
        let mut objects = objects();
        let number = objects.number();
        objects.events.insert(number, Event { context, mark: None });
        put(event, number)
    }

    fn cuEventDestroy_v2(event: usize) {
        let known = objects().events.remove(&event);
        if known.is_some() { SUCCESS } else { stale() }
    }

    fn cuEventRecord(event: usize, stream: usize) {
        let capture = objects().capture_of(stream);
        if let Some(origin) = capture {
            objects().captured_events.insert(event, origin);
            return SUCCESS;
        }
        objects().captured_events.remove(&event);
        match last_of(stream) {
            Ok(last) => record(event, last),
            Err(code) => code,
        }
    }

    // cuCtxRecordEvent: captures in an event all the activities of the context at the time of this call.
    fn cuCtxRecordEvent(context: usize, event: usize) {
        let last = objects().last_in(context);
        match last {
            Some(last) => record(event, last),
            None => stale(),
        }
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        let mut objects = objects();
        if let Some(origin) = objects.captured_events.get(&event).copied()
            && stream != origin
        {
            objects.joined.insert(stream, origin);
        }
        SUCCESS
    }

    fn cuEventQuery(event: usize) {
        if objects().captured_events.contains_key(&event) {
            return CAPTURED_EVENT;
        }
        if spoils_captures(false) {
            return CAPTURE_UNSUPPORTED;
        }
        match reached_at(event) {
            Ok(number) if engine::is_done(number) => SUCCESS,
            Ok(_) => NOT_READY,
            Err(code) => code,
        }
    }

    fn cuEventSynchronize(event: usize) {
        match reached_at(event) {
            Ok(number) => engine::wait_for(number),
            Err(code) => return code,
        }
        SUCCESS
    }

    // ---- captures and graphs

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        let before = CAPTURE_MODE.replace(*mode);
        put(mode, before)
    }

    fn cuStreamBeginCapture_v2(stream: usize, _mode: c_int) {
        let mut objects = objects();
        let graph = objects.number();
        objects.captures.insert(captured(stream), Capture { graph, ..Capture::default() });
        SUCCESS
    }

    fn cuStreamBeginCapture_v2_ptsz(stream: usize, mode: c_int) { cuStreamBeginCapture_v2(own_default(stream), mode) }

    fn cuStreamIsCapturing(stream: usize, status: *mut c_int) {
        put(status, c_int::from(objects().capture_of(stream).is_some()))
    }

    fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        let mut objects = objects();
        let Some(capture) = objects.captures.remove(&captured(stream)) else { return ILLEGAL_STATE };
        objects.joined.retain(|_, origin| *origin != stream);
        if capture.is_invalid {
            return CAPTURE_INVALIDATED;
        }
        objects.graphs.insert(capture.graph, capture.nodes);
        put(graph, capture.graph)
    }

    fn cuStreamEndCapture_ptsz(stream: usize, graph: *mut usize) { cuStreamEndCapture(own_default(stream), graph) }

    fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: u64) {
        let mut objects = objects();
        let Some(nodes) = objects.graphs.get(&graph).cloned() else { return INVALID_HANDLE };
        if !card().take(nodes.bytes) {
            return OUT_OF_MEMORY;
        }
        GRAPH_BYTES.fetch_add(nodes.bytes, SeqCst);
        let number = objects.number();
        objects.graphs.insert(number, nodes);
        put(executable, number)
    }

    fn cuGraphLaunch(executable: usize, stream: usize) {
        let Some(nodes) = objects().graphs.get(&executable).cloned() else { return INVALID_HANDLE };
        nodes.works.into_iter().map(|work| submit(stream, work)).max().unwrap_or(SUCCESS)
    }

    fn cuGraphExecDestroy(executable: usize) { objects().graphs.remove(&executable); SUCCESS }

    fn cuGraphDestroy(graph: usize) { objects().graphs.remove(&graph); SUCCESS }
}
