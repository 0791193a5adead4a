//! The worker's side for programs that time-share this machine's GPU, without notebooks; for `benches/gpu/`.
//!
//! `gpu-timeshare [--no-pins-ahead] FOLDER SESSIONS CAP_BYTES HOST_BYTES [QUANTUM_MS [SEED]]` listens in FOLDER.
//! With a quantum, all programs are equal; without one, they are cells, as in a worker. With a seed, memory
//! moves at every opportunity, needed or not. Commands on standard input: `started N` and `ended N` begin and
//! end a cell of session N, and `usage N` prints its usage since the last such command, as JSON. The program
//! ends with its input.

use baton_gpu_worker::gpu::{Admission, Cell, Gpu, Token, Usage};
use baton_scheduling::arbiter::{Memory, Settings};
use std::{
    io::{self, BufRead as _},
    path::PathBuf,
    time::Duration,
};

/// With this flag, places on the host are made only while memory moves.
const NO_PINS_AHEAD: &str = "--no-pins-ahead";

fn main() -> io::Result<()> {
    let (options, arguments): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|argument| argument == NO_PINS_AHEAD);
    let (folder, numbers) = match &arguments[..] {
        [folder, numbers @ ..] if (3..=5).contains(&numbers.len()) => (folder, numbers),
        _ => {
            return Err(io::Error::other(
                "usage: gpu-timeshare [--no-pins-ahead] FOLDER SESSIONS CAP_BYTES HOST_BYTES [QUANTUM_MS [SEED]]",
            ));
        }
    };
    let numbers: Result<Vec<u64>, _> = numbers.iter().map(|number| number.parse()).collect();
    let numbers = numbers.map_err(io::Error::other)?;
    let (sessions, cap_bytes, host_bytes) = (numbers[0], numbers[1], numbers[2]);
    let quantum = numbers.get(3).copied().map(Duration::from_millis);
    let torture = numbers.get(4).copied();

    let pins_ahead = options.is_empty();

    let folder = PathBuf::from(folder);
    let interposer = baton_interposer::install(&folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let entered = runtime.enter();
    let settings = move |total_bytes: u64| Settings {
        torture,
        ..settings(total_bytes.min(cap_bytes), host_bytes, quantum, pins_ahead)
    };
    let gpu = Gpu::start(settings, None);
    let _listener = gpu.listen(&folder.join("gpu"))?;
    for token in 1..=sessions {
        gpu.admit(Admission {
            token: Token::from(token),
            user: token,
            cap_bytes: None,
        });
    }
    println!("{}", interposer.display());
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (verb, session) = line.split_once(' ').unwrap_or((&line, "0"));
        let token = session.parse().map_err(io::Error::other)?;
        match verb {
            "started" => gpu.cell(token, Cell::Started),
            "ended" => gpu.cell(token, Cell::Ended),
            "usage" => println!("{}", json(runtime.block_on(gpu.usage(token)))),
            _ => return Err(io::Error::other(format!("{line}: unknown"))),
        }
    }
    drop(entered);
    Ok(())
}

fn settings(
    usable_bytes: u64,
    host_bytes: u64,
    quantum: Option<Duration>,
    pins_ahead: bool,
) -> Settings {
    let mut settings = Settings::new(Memory {
        usable_bytes,
        reserve_bytes: 0,
        host_bytes,
    });
    if !pins_ahead {
        settings.pin_bytes = 0;
    }
    if let Some(quantum) = quantum {
        settings.levels = [Duration::ZERO; 3];
        settings.slice = quantum;
        settings.guaranteed_share = 0.0;
        settings.swap_floor = 0.0;
        settings.together = 1;
        // On a busy machine, sessions return what their libraries hold late, and it does not move meanwhile.
        settings.trim_limit = Duration::from_secs(60);
    }
    settings
}

fn json(usage: Usage) -> String {
    let seconds = |time: Duration| time.as_secs_f64();
    format!(
        "{{\"held_s\": {:.6}, \"waited_s\": {:.9}, \"moving_s\": {:.6}, \"moved_bytes\": {}, \"swaps\": {}, \
         \"peak_bytes\": {}, \"pinned_in_moves_bytes\": {}, \"pinned_ahead_bytes\": {}}}",
        seconds(usage.held),
        seconds(usage.waited),
        seconds(usage.moving),
        usage.moved_bytes,
        usage.swaps,
        usage.peak_bytes,
        usage.pinned_in_moves_bytes,
        usage.pinned_ahead_bytes
    )
}
