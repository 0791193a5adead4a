//! The Tokio runtime of commands that serve.

use anyhow::Context;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Keeps at least one thread for blocking work: if the system has no memory for a new thread, the
/// work waits for this one. Without any thread, Tokio panics in the task that asks.
pub(crate) fn start(mut builder: Builder) -> anyhow::Result<Runtime> {
    const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);
    let runtime = builder
        .enable_all()
        .thread_keep_alive(FOR_EVER)
        .build()
        .context("Failed to start the threads of this program")?;
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}

/// Enough for all connections, and for the system calls of sessions that wait for a worker. The children of a worker
/// inherit the limit, and some programs close every descriptor up to it, so it is not higher.
const OPEN_FILES: rlim_t = 1 << 16;

/// A service is usually limited to 1024 open files unless it asks for more.
pub(crate) fn allow_many_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(now, most)| {
        let wanted = most.min(OPEN_FILES).max(now);
        setrlimit(Resource::RLIMIT_NOFILE, wanted, most)
    });
    if let Err(error) = raised {
        tracing::warn!("Failed to raise the limit of open files: {error}");
    }
}

/// Runs the work on the runtime's threads. `block_on` alone would run it on the main thread, and
/// every message would be handed over to that. A cell would wait for that about ten times.
pub(crate) async fn on_its_threads<T: Send + 'static>(
    work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::spawn(work).await?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use super::*;

    #[test]
    fn a_low_limit_of_open_files_is_raised() {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 256, most).unwrap();
        allow_many_open_files();
        let raised = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(raised, (most.min(OPEN_FILES), most));
    }

    #[test]
    fn work_that_blocks_runs_where_no_thread_can_start() {
        let own_process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "runtime::tests::it_runs_without_memory",
            ])
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&own_process.stdout);
        assert!(
            own_process.status.success() && output.contains("1 passed"),
            "{output}{}",
            String::from_utf8_lossy(&own_process.stderr)
        );
    }

    #[test]
    #[ignore = "takes the memory of its whole process: the test above starts it in one of its own"]
    fn it_runs_without_memory() {
        const STACK: usize = 1 << 30;
        let mut builder = Builder::new_current_thread();
        builder.thread_stack_size(STACK);
        let runtime = start(builder).unwrap();
        let (_, most) = getrlimit(Resource::RLIMIT_AS).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let (_, after) = status.split_once("VmSize:").unwrap();
        let kilobytes = after.split_whitespace().next().unwrap();
        let used = kilobytes.parse::<u64>().unwrap() * 1024;
        let room = used + STACK as u64 / 2;
        setrlimit(Resource::RLIMIT_AS, room, most).unwrap();
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(|| ())
            .expect_err("no memory for a stack");
        let ran = runtime.block_on(async { tokio::task::spawn_blocking(|| 7).await });
        setrlimit(Resource::RLIMIT_AS, most, most).unwrap();
        assert_eq!(ran.unwrap(), 7);
    }
}
