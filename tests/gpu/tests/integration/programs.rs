//! How a single program behaves with the interposer.

use crate::world::{Client, MIB, World, eventually};
use baton_gpu_tests::FAULTS;
use std::{cell::RefCell, process::Command};

#[test]
fn a_program_computes_as_without_it() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    for (name, bytes) in [("large", 5 * MIB), ("small", 512), ("other", 512)] {
        client.does(&format!("allocate {name} {bytes}"));
        client.does(&format!("set {name} 7"));
        client.does(&format!("add {name} 5"));
        assert_eq!(client.does(&format!("check {name}")), "right");
        assert_eq!(client.does(&format!("range {name}")), "true");
        assert_eq!(client.does(&format!("is-of-context {name}")), "true");
    }
    client.does("free small");
    assert_eq!(client.does("check other"), "right");
    assert!(world.machine.kernels().unwrap() >= 3);
}

#[test]
fn look_ups_find_the_function_of_their_version_and_stream() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    for look_up in [
        "cuMemAlloc 12000 0 cuMemAlloc_v2",
        "cuLaunchKernel 12000 0 cuLaunchKernel",
        "cuLaunchKernel 12000 2 cuLaunchKernel_ptsz",
        "cuGetProcAddress 11030 0 cuGetProcAddress",
        "cuGetProcAddress 12000 0 cuGetProcAddress_v2",
        "cuMemcpyHtoDAsync 12000 0 cuMemcpyHtoDAsync_v2",
        "cuDeviceGetCount 12000 0 cuDeviceGetCount",
        // Newer than the interposer.
        "cuMemFree 99000 0 cuMemFree_v9",
    ] {
        assert_eq!(
            client.does(&format!("look-up {look_up}")),
            "true",
            "{look_up}"
        );
    }
    assert_eq!(
        client.says("look-up cuMemAlloc 2000 0 cuMemAlloc"),
        "error 500"
    );
    assert_eq!(
        client.says("look-up cuThatThereIsNot 12000 0 cuMemAlloc"),
        "error 500"
    );
}

#[test]
fn a_session_sees_its_own_memory_and_its_cap() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(Some(16 * MIB));
    let mut client = world.client_of(token, &[]);
    let memory = |free: u64| format!("{} {}", free * MIB, 16 * MIB);
    assert_eq!(client.does("memory"), memory(16));
    client.does(&format!("allocate a {}", 10 * MIB));
    assert_eq!(client.does("memory"), memory(6));
    assert_eq!(client.says(&format!("allocate b {}", 8 * MIB)), "error 2");
    client.does("free a");
    assert_eq!(client.does("memory"), memory(16));
    client.does(&format!("allocate b {}", 8 * MIB));
    assert!(world.usage(token).peak_bytes >= 10 * MIB);
}

#[test]
fn a_process_sees_what_the_others_of_its_session_leave() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(Some(16 * MIB));
    let clients = [(); 2].map(|()| RefCell::new(world.client_of(token, &[])));
    let does = |which: usize, command: &str| clients[which].borrow_mut().does(command);
    // A process reports what cannot move, and what it freed, without waiting for an answer.
    let both_see = |free: u64| {
        let expected = format!("{} {}", free * MIB, 16 * MIB);
        eventually(|| [0, 1].iter().all(|one| does(*one, "memory") == expected))
    };
    assert!(both_see(16));
    does(0, &format!("allocate a {}", 6 * MIB));
    does(1, &format!("allocate-managed a {}", 4 * MIB));
    assert!(both_see(6));
    for client in &clients {
        let answer = client.borrow_mut().says(&format!("allocate b {}", 8 * MIB));
        assert_eq!(answer, "error 2");
    }
    does(0, "free a");
    assert!(both_see(12));
}

#[test]
fn a_session_goes_by_a_new_cap_at_once() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    let mut clients = [(); 2].map(|()| world.client_of(token, &[]));
    for round in 0..100 {
        let cap = 16 + round % 3 * 16;
        world.limit(token, Some(cap * MIB));
        for client in &mut clients {
            let memory = format!("{} {}", cap * MIB, cap * MIB);
            assert_eq!(client.does("memory"), memory, "round {round}");
        }
    }
}

#[test]
fn memory_that_is_freed_in_order_is_free_after_what_was_submitted() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    client.does(&format!("allocate-in-order a {}", 8 * MIB));
    client.does("set a 1");
    client.does("launch sleep_20ms 5");
    client.does("add a 1");
    client.does("free-in-order a");
    client.does("synchronize");
    client.does(&format!("allocate-in-order a {}", 60 * MIB));
    client.does("set a 3");
    assert_eq!(client.does("check a"), "right");
}

#[test]
fn what_cannot_leave_the_gpu_is_counted_and_what_would_keep_it_there_refused() {
    let mut world = World::new(64 * MIB);
    let folder = tempfile::tempdir().unwrap();
    let errors = folder.path().join("errors");
    let token = world.admit(None);
    let mut command = world.command_of(token);
    command.stderr(std::fs::File::create(&errors).unwrap());
    let mut client = Client::start(command);
    client.does(&format!("allocate a {}", 2 * MIB));
    // Libraries probe, so the reason is printed once.
    for _ in 0..3 {
        assert_eq!(client.says("share a"), "error 801");
    }
    let printed = std::fs::read_to_string(errors).unwrap();
    assert_eq!(printed.matches("cannot be shared").count(), 1, "{printed}");
    client.does(&format!("allocate-managed m {}", 8 * MIB));
    assert_eq!(client.does("memory"), format!("{} {}", 54 * MIB, 64 * MIB));
    client.does("free m");
    assert_eq!(client.does("memory"), format!("{} {}", 62 * MIB, 64 * MIB));
}

#[test]
fn a_pool_s_memory_lies_where_the_pool_says() {
    const PINNED: i32 = 1;
    const MANAGED: i32 = 2;
    const DEVICE: i32 = 1;
    const HOST: i32 = 2;
    for pool in ["new", "default"] {
        let mut world = World::new(64 * MIB);
        let mut client = world.client();
        let mut allocate = |kind: i32, place: i32, name: &str| {
            client.does(&format!(
                "allocate-from-pool {pool} {kind} {place} {name} {}",
                8 * MIB
            ));
            let is_on_host = client.does(&format!("is-on-host {name}"));
            (is_on_host, client.does("memory"))
        };
        let free = |bytes: u64| format!("{} {}", bytes * MIB, 64 * MIB);
        assert_eq!(allocate(PINNED, HOST, "h"), ("true".to_owned(), free(64)));
        assert_eq!(
            allocate(PINNED, DEVICE, "d"),
            ("false".to_owned(), free(56))
        );
        assert_eq!(
            allocate(MANAGED, DEVICE, "m"),
            ("false".to_owned(), free(48))
        );
        // Memory from the plain pool moves, managed memory stays.
        let mut other = world.client();
        other.does(&format!("allocate a {}", 56 * MIB));
        assert_eq!(other.says("allocate b 512"), "error 2");
        for (name, bytes) in [("h", 48), ("m", 56)] {
            client.does(&format!("free-in-order {name}"));
            assert_eq!(client.does("memory"), free(bytes), "{pool} {name}");
        }
    }
}

#[test]
fn a_program_reads_how_much_of_a_pool_it_uses() {
    const DEFAULT: &str = "1 1";
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    let mut uses = |commands: &[&str], now: u64, most: u64| {
        for command in commands {
            client.does(command);
        }
        let used = client.does(&format!("pool-bytes {DEFAULT}"));
        let expected = [now, most, now, most].map(|number| number * MIB);
        assert_eq!(used, format!("{expected:?}"), "{commands:?}");
    };
    let bytes = 8 * MIB;
    uses(&[&format!("allocate other {bytes}")], 0, 0);
    let from_pool = format!("allocate-from-pool default {DEFAULT} a {bytes}");
    uses(&[&from_pool], 8, 8);
    uses(&[&format!("allocate-in-order b {bytes}")], 16, 16);
    uses(&["free-in-order a"], 8, 16);
    uses(&[&format!("allocate-in-order c {bytes}")], 16, 16);
    uses(&["free b", "free other"], 8, 16);
    uses(&[&format!("reset-pool {DEFAULT}")], 8, 8);
    uses(&["free-in-order c"], 0, 8);
}

#[test]
fn an_error_of_the_driver_is_the_allocation_s_and_memory_that_comes_late_is_waited_for() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    let faults = [(FAULTS, "cuMemAddressReserve:2:999,cuMemCreate:2:2")];
    let mut client = world.client_of(token, &faults);
    client.does(&format!("allocate a {}", 2 * MIB));
    assert_eq!(client.says(&format!("allocate b {}", 2 * MIB)), "error 999");
    client.does(&format!("allocate b {}", 2 * MIB));
    assert_eq!(client.does("memory"), format!("{} {}", 60 * MIB, 64 * MIB));
}

#[test]
fn an_allocation_of_nothing_or_of_too_much_fails_at_once() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    assert_eq!(client.says("allocate-managed a 0"), "error 1");
    for bytes in [u64::MAX, u64::MAX - 2 * MIB + 2, 1 << 63] {
        for call in ["allocate", "allocate-in-order", "allocate-managed"] {
            assert_eq!(client.says(&format!("{call} a {bytes}")), "error 2");
        }
    }
    client.does(&format!("allocate a {}", 2 * MIB));
}

#[test]
fn a_fatal_error_is_told_to_the_worker() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    client.does("launch touch_what_is_not_there 1");
    assert_eq!(client.says("synchronize"), "error 700");
    assert_eq!(client.says("launch nothing 1"), "error 700");
    assert_eq!(client.says(&format!("allocate a {MIB}")), "error 700");
    let told = || world.usage(world.tokens[0]).fault == Some(700);
    assert!(eventually(told));
}

#[test]
fn errors_that_end_the_use_of_the_gpu_are_told_to_the_worker() {
    // `CUDA_ERROR_CONTAINED` and `CUDA_ERROR_TENSOR_MEMORY_LEAK`: "any further CUDA work will return the same error".
    for code in [226, 721] {
        let mut world = World::new(64 * MIB);
        let fault = format!("cuLaunchKernel:1:{code}");
        let token = world.admit(None);
        let mut client = world.client_of(token, &[(FAULTS, &fault)]);
        assert_eq!(client.says("launch nothing 1"), format!("error {code}"));
        assert!(eventually(|| world.usage(token).fault == Some(code)));
    }
}

#[test]
fn a_context_that_ended_is_no_fault_of_the_gpu() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    client.does(&format!("allocate a {MIB}"));
    client.does("reset");
    assert_eq!(client.says("add a 1"), "error 709");
    client.does("retain");
    client.does(&format!("allocate a {MIB}"));
    client.does("set a 1");
    assert_eq!(client.does("check a"), "right");
    assert_eq!(world.usage(world.tokens[0]).fault, None);
}

#[test]
fn a_forked_child_hears_from_the_driver_and_its_parent_goes_on() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    client.does(&format!("allocate a {MIB}"));
    client.does("set a 1");
    assert_eq!(client.does("fork"), "3", "not initialised");
    assert_eq!(
        client.does("fork-twice"),
        "0",
        "files of others were closed"
    );
    client.does("add a 1");
    assert_eq!(client.does("check a"), "right");
}

#[test]
fn without_a_worker_calls_pass() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    world.stop_worker();
    let mut client = world.client_of(token, &[]);
    client.does(&format!("allocate a {MIB}"));
    client.does("set a 1");
    assert_eq!(client.does("check a"), "right");
}

#[test]
fn programs_without_cuda_do_not_notice_it() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("hello.c");
    std::fs::write(&source, HELLO).unwrap();
    let program = folder.path().join("hello");
    let paths = [&source, &program].map(|path| path.to_str().unwrap());
    let commands: [(&str, &[&str], &str); 5] = [
        ("bash", &["-c", "echo $((6 * 7)) | cat"], "42\n"),
        ("git", &["--version"], "git version"),
        ("gcc", &["-pthread", "-o", paths[1], paths[0], "-ldl"], ""),
        (paths[1], &[], "1 thread, no socket\n"),
        (env!("CARGO_BIN_EXE_gpu-client"), &[], "error 100\n"),
    ];
    for (program, arguments, expected) in commands {
        let mut command = Command::new(program);
        command.args(arguments).envs(world.environment(token));
        // There is no driver.
        command.env("LD_LIBRARY_PATH", "");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{program}: {output:?}");
        assert!(said.starts_with(expected), "{program}: {said}");
        assert!(output.stderr.is_empty(), "{program}: {output:?}");
    }
}

/// Counts its threads and sockets, and makes look-ups that depend on the calling library.
const HELLO: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Hides the C library's; the next one is that. */
int puts(const char *text) {
    int (*next)(const char *) = dlsym(RTLD_NEXT, "puts");
    return next == puts ? -1 : next(text);
}

char *cuserid(char *name) { return name; }

static int count(const char *path, const char *kind) {
    char link[64], target[256];
    int found = 0;
    DIR *folder = opendir(path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        found += entry->d_name[0] != '.' && (!kind || strstr(target, kind));
    }
    closedir(folder);
    return found;
}

int main(void) {
    void *next = dlsym(RTLD_NEXT, "cuserid");
    if (!next || next == (void *)cuserid)
        return 3;
    if (dlsym(RTLD_DEFAULT, "cuInit2") || dlsym(RTLD_DEFAULT, "c") || dlopen("libcuda.so.1", RTLD_LAZY))
        return 1;
    if (count("/proc/self/task", 0) != 1 || count("/proc/self/fd", "socket:"))
        return 2;
    return puts("1 thread, no socket") < 0;
}
"#;
