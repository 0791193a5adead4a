//! Calls of a program at a particular moment of a hand-over.

use crate::{
    hand::Hand,
    world::{Client, MIB, World, eventually},
};
use baton_gpu_tests::FAULTS;
use baton_interposer::wire::{FromSession, ToSession};
use std::time::Instant;

#[test]
fn memory_that_is_freed_while_the_lease_ends_stays_until_the_kernels_that_use_it_have_ended() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does(&format!("allocate a {}", 8 * MIB));
    world.machine.hold().unwrap();
    client.does("launch held 1");
    client.does("add a 1");
    hand.close_gate(&world, &mut client);
    client.send("free a");
    // The thread that frees, and the agent, which returns the lease.
    assert!(eventually(|| world.machine.waiting().unwrap() == 2));
    world.machine.let_go().unwrap();
    assert_eq!(client.answer().unwrap(), "ok");
    hand.until_yielded();
    assert_eq!(client.does("synchronize"), "");
}

#[test]
fn memory_is_freed_only_after_a_wait_for_the_gpu_that_succeeded() {
    let mut world = World::new(64 * MIB);
    // As if another thread had just begun a capture (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED).
    let faults = [(FAULTS, "cuCtxSynchronize:1:900")];
    let (mut hand, mut client) = Hand::with_client(&mut world, &faults);
    client.does(&format!("allocate a {}", 8 * MIB));
    world.machine.hold().unwrap();
    hand.grant();
    client.does("launch held 1");
    client.does("add a 1");
    client.does("free a");
    world.machine.let_go().unwrap();
    assert_eq!(client.does("synchronize"), "");
    hand.drop_lease();
    hand.until_yielded();
}

#[test]
fn a_lease_ends_only_after_a_wait_for_the_gpu_that_succeeded() {
    let mut world = World::new(64 * MIB);
    let faults = [(FAULTS, "cuCtxSynchronize:1:900")];
    let (mut hand, mut client) = Hand::with_client(&mut world, &faults);
    world.machine.hold().unwrap();
    hand.grant();
    client.does("launch held 1");
    hand.drop_lease();
    assert!(eventually(|| world.machine.waiting().unwrap() == 1));
    let is_over = |message: &FromSession| matches!(message, FromSession::Yielded { epoch: 1, .. });
    assert!(!hand.said().iter().any(is_over));
    world.machine.let_go().unwrap();
    hand.until_yielded();
}

#[test]
fn an_allocation_does_not_wait_for_kernels() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    world.machine.hold().unwrap();
    client.does("launch held 1");
    client.does(&format!("allocate a {}", 8 * MIB));
    hand.drop_lease();
    // The agent waits at the end of the lease, and the allocation does not.
    assert!(eventually(|| world.machine.waiting().unwrap() == 1));
    client.does(&format!("allocate b {}", 8 * MIB));
    world.machine.let_go().unwrap();
    hand.until_yielded();
}

#[test]
fn a_lease_ends_though_its_work_waits_for_a_thread_at_the_gate() {
    for (wait, goes_on) in [
        ("wait-for-value a 1", "write-value-aside a 1"),
        ("wait-for-launch-aside", "launch-aside nothing 1"),
    ] {
        let mut world = World::new(64 * MIB);
        let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
        hand.grant();
        client.does("allocate a 512");
        client.does("set a 0");
        client.does(wait);
        hand.drop_lease();
        // The agent waits for the GPU behind the closed gate.
        assert!(eventually(|| world.machine.waiting().unwrap() == 1));
        client.does(goes_on);
        hand.until_yielded();
    }
}

#[test]
fn a_thread_that_is_ahead_of_work_that_waits_for_it_goes_on() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does("allocate a 512");
    client.does("set a 0");
    client.does("wait-for-value a 1");
    client.does("launch nothing 200");
    client.does("write-value-aside a 1");
    client.does("synchronize");
}

#[test]
fn a_thread_waits_only_for_the_stream_to_which_it_submits() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    world.machine.hold().unwrap();
    client.does("launch held 1");
    // So few in each stream that none of them is far ahead.
    client.does("launch-in-streams nothing 200 20");
    world.machine.let_go().unwrap();
    client.does("synchronize");
}

#[test]
fn threads_that_wait_for_the_gpu_do_not_disturb_a_capture_that_begins_meanwhile() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    world.machine.hold().unwrap();
    client.does("launch held 1");
    for _ in 0..4 {
        client.does("launch-aside nothing 1000");
    }
    // At most 48 launches get through before the first of the threads waits.
    let launched = |client: &mut Client| client.does("launched-aside").parse::<u64>().unwrap();
    assert!(eventually(|| launched(&mut client) >= 64));
    client.does("begin-capture");
    world.machine.let_go().unwrap();
    assert!(eventually(|| client.does("launched-aside") == "4000"));
    client.does("end-capture");
}

#[test]
fn a_process_that_exits_reports_no_fault() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does(&format!("allocate a {}", 8 * MIB));
    client.does("exit-slowly");
    assert_eq!(client.answer().unwrap(), "ok exiting");
    hand.try_say(ToSession::SwapOut { bytes: 8 * MIB });
    let last = hand.until_left();
    let faults = last
        .iter()
        .filter(|message| matches!(message, FromSession::Fault { .. }));
    assert_eq!(faults.count(), 0, "{last:?}");
}

#[test]
fn pinned_memory_counts_as_used() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    let process = client.child.id();
    let resident = || {
        // Some kernels update the numbers in other files late.
        let path = format!("/proc/{process}/smaps_rollup");
        kilobytes_in(&path, "Rss:") << 10
    };
    let before = resident();
    client.does(&format!("allocate-pinned {}", 32 * MIB));
    assert!(resident() >= before + 32 * MIB);
}

#[test]
fn allocating_in_order_costs_no_more_than_twice_what_the_driver_s_pool_costs() {
    for bytes in [4 * MIB, 1024] {
        // So few that the program does not wait for the GPU while that is busy.
        let pairs = format!("pairs {bytes} 20");
        let mut world = World::new(64 * MIB);
        let mut alone = world.client_alone();
        let of_driver: u64 = alone.does(&pairs).parse().unwrap();
        let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
        hand.grant();
        // The memory would go back with the lease, which a busy GPU keeps.
        world.machine.hold().unwrap();
        client.does("launch held 1");
        // The first run warms up.
        client.does(&pairs);
        hand.said();
        let calls: u64 = client.does(&pairs).parse().unwrap();
        assert!(
            calls <= 2 * of_driver,
            "{calls} calls, {of_driver} of the driver"
        );
        let said = hand.said();
        let asks = |message: &&FromSession| {
            matches!(
                message,
                FromSession::Grew { .. } | FromSession::Shrank { .. }
            )
        };
        assert_eq!(said.iter().find(asks), None);
        world.machine.let_go().unwrap();
    }
}

#[test]
fn memory_that_was_freed_in_order_is_taken_again_only_in_that_order() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    for bytes in [4 * MIB, 1024] {
        let first = client.does(&format!("allocate-in-order a {bytes}"));
        world.machine.hold().unwrap();
        client.does("launch held 1");
        client.does("add a 1");
        client.does("free-in-order a");
        // Allocations in another stream and without order: they must not reuse memory that waits for the
        // kernel.
        for (verb, name) in [("captured-allocate", "b"), ("allocate", "c")] {
            assert_ne!(client.does(&format!("{verb} {name} {bytes}")), first);
        }
        // A slightly smaller allocation takes the same room.
        let again = client.does(&format!("allocate-in-order a {}", bytes - 256));
        assert_eq!(again, first);
        assert_eq!(client.does("range a"), "true");
        world.machine.let_go().unwrap();
        client.does("set a 3");
        assert_eq!(client.does("check a"), "right");
        // A new stream may have the handle of one that ended.
        client.does("free-in-stream b");
        client.does("renew-stream");
        client.does(&format!("captured-allocate b {bytes}"));
        for name in ["a", "b", "c"] {
            client.does(&format!("free {name}"));
        }
    }
    hand.drop_lease();
    hand.until_yielded();
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
    let freed: u64 = client
        .does("memory")
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(freed, 1 << 40, "all of it went back");
}

#[test]
fn memory_that_is_freed_twice_is_taken_again_only_once() {
    let mut world = World::new(64 * MIB);
    let mut client = world.client();
    for bytes in [4 * MIB, 1024] {
        let first = client.does(&format!("allocate-in-order a {bytes}"));
        assert_eq!(client.does("free-twice a"), "[1, 1]");
        assert_eq!(client.does(&format!("allocate-in-order a {bytes}")), first);
        assert_ne!(client.does(&format!("allocate-in-order b {bytes}")), first);
        client.does("free a");
    }
}

#[test]
fn no_more_moves_than_others_need_and_each_part_is_given_back_at_once() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        client.does(&format!("allocate {name} {}", 4 * MIB));
        client.does(&format!("set {name} {value}"));
    }
    hand.drop_lease();
    hand.until_yielded();
    hand.said();
    hand.send(ToSession::SwapOut { bytes: 5 * MIB });
    for _ in 0..2 {
        let parts = |message| matches!(message, FromSession::Left { .. });
        let bytes = 4 * MIB;
        assert_eq!(hand.until(parts), FromSession::Left { bytes });
    }
    let is_over = |message| matches!(message, FromSession::SwappedOut { .. });
    let FromSession::SwappedOut { bytes, .. } = hand.until(is_over) else {
        unreachable!()
    };
    assert_eq!(bytes, 8 * MIB);
    assert_eq!(world.machine.used_bytes().unwrap(), 4 * MIB);
    // Memory that is allocated and freed meanwhile exists only on the host.
    client.does(&format!("allocate d {}", 4 * MIB));
    client.does("free d");
    let freed = |message| matches!(message, FromSession::Shrank { .. });
    let (bytes, away_bytes) = (4 * MIB, 4 * MIB);
    assert_eq!(hand.until(freed), FromSession::Shrank { bytes, away_bytes });
    hand.send(ToSession::SwapIn);
    let is_back = |message| matches!(message, FromSession::SwappedIn { .. });
    let FromSession::SwappedIn { bytes, .. } = hand.until(is_back) else {
        unreachable!()
    };
    assert_eq!(bytes, 8 * MIB);
    hand.grant();
    for name in ["a", "b", "c"] {
        assert_eq!(client.does(&format!("check {name}")), "right");
    }
}

#[test]
fn a_fork_copies_nothing_of_what_memory_that_moved_left_on_the_host() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    client.does(&format!("allocate a {}", 8 * MIB));
    hand.send(ToSession::SwapOut { bytes: u64::MAX });
    hand.until(|message| matches!(message, FromSession::SwappedOut { .. }));
    client.does("fork");
    hand.send(ToSession::SwapIn);
    hand.until(|message| matches!(message, FromSession::SwappedIn { .. }));
    client.does("fork");
    assert_eq!(world.machine.copied_at_forks().unwrap(), 0);
}

#[test]
fn empty_places_on_the_host_go_back_when_others_need_them_and_full_ones_stay() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    for name in ["a", "b"] {
        client.does(&format!("allocate {name} {}", 16 * MIB));
    }
    hand.grant();
    client.does("set a 1");
    client.does("set b 2");
    hand.drop_lease();
    hand.until_yielded();
    let before = private_bytes(&client);
    swap(&mut hand);
    assert!(private_bytes(&client) >= before + 30 * MIB);
    // One of them leaves again, so only the other's place is empty.
    hand.send(ToSession::SwapOut { bytes: 16 * MIB });
    hand.until(|message| matches!(message, FromSession::SwappedOut { .. }));
    unpin(&mut hand);
    let left = private_bytes(&client) - before;
    assert!((15 * MIB..20 * MIB).contains(&left), "{left}");
    hand.send(ToSession::SwapIn);
    hand.until(|message| matches!(message, FromSession::SwappedIn { .. }));
    unpin(&mut hand);
    assert!(private_bytes(&client) < before + 2 * MIB);
    swap(&mut hand);
    hand.grant();
    for name in ["a", "b"] {
        assert_eq!(client.does(&format!("check {name}")), "right");
    }
}

/// Returns when it is done, because messages are handled in order.
fn unpin(hand: &mut Hand) {
    hand.send(ToSession::Unpin { bytes: u64::MAX });
    hand.grant();
    hand.drop_lease();
    hand.until_yielded();
}

/// The size of the process's private pages.
fn private_bytes(client: &Client) -> u64 {
    let path = format!("/proc/{}/status", client.child.id());
    kilobytes_in(&path, "RssAnon:") << 10
}

fn kilobytes_in(path: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.unwrap().split_whitespace().next().unwrap();
    kilobytes.parse().unwrap()
}

/// Moves the memory off the GPU and back.
pub(crate) fn swap(hand: &mut Hand) {
    hand.send(ToSession::SwapOut { bytes: u64::MAX });
    let swapped = |message| {
        matches!(
            message,
            FromSession::SwappedOut { .. } | FromSession::Fault { .. }
        )
    };
    assert!(matches!(
        hand.until(swapped),
        FromSession::SwappedOut { .. }
    ));
    hand.send(ToSession::SwapIn);
    hand.until(|message| matches!(message, FromSession::SwappedIn { .. }));
}

#[test]
fn memory_moves_after_its_device_was_reset() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    for round in 1..=3 {
        client.does(&format!("allocate a {}", 8 * MIB));
        hand.grant();
        client.does(&format!("set a {round}"));
        hand.drop_lease();
        hand.until_yielded();
        swap(&mut hand);
        hand.grant();
        assert_eq!(client.does("check a"), "right");
        client.does("reset");
        client.does("retain");
    }
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
}

#[test]
fn nothing_of_a_context_that_ended_is_used_again() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    for end in ["reset", "destroy-context"] {
        if end == "destroy-context" {
            client.does("create-context cuCtxCreate_v2");
        }
        hand.grant();
        // Records marks in streams, by submissions and by memory that is freed in order.
        client.does("launch nothing 200");
        client.does("allocate-in-order a 1024");
        client.does("free-in-order a");
        client.does(end);
        hand.drop_lease();
        hand.until_yielded();
        hand.grant();
        client.does("retain");
        client.does("launch nothing 200");
        client.does("allocate-in-order a 1024");
    }
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
}

#[test]
fn a_lease_ends_when_the_work_of_all_contexts_has_ended() {
    for call in [
        "cuCtxCreate",
        "cuCtxCreate_v2",
        "cuCtxCreate_v3",
        "cuCtxCreate_v4",
        "cuCtxSetCurrent",
        "cuCtxPushCurrent_v2",
    ] {
        let mut world = World::new(64 * MIB);
        let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
        hand.grant();
        client.does("launch nothing 1");
        client.does(&format!("create-context {call}"));
        world.machine.hold().unwrap();
        client.does("launch held 1");
        client.does("leave-context");
        hand.drop_lease();
        assert!(
            eventually(|| world.machine.waiting().unwrap() == 1),
            "{call}"
        );
        world.machine.let_go().unwrap();
        hand.until_yielded();
        client.does("destroy-context");
    }
}

#[test]
fn a_context_ends_when_it_is_detached_for_the_last_time() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    hand.grant();
    client.does("create-context cuCtxCreate_v2");
    client.does("attach-context");
    client.does("launch nothing 200");
    let bytes = 8 * MIB;
    client.does(&format!("allocate a {bytes}"));
    client.does("set a 1");
    client.does("detach-context");
    assert_eq!(client.does("check a"), "right");
    hand.said();
    client.does("detach-context");
    let freed = |message| matches!(message, FromSession::Shrank { .. });
    let away_bytes = 0;
    assert_eq!(hand.until(freed), FromSession::Shrank { bytes, away_bytes });
    client.does("leave-context");
    // The last lease may have been returned already.
    hand.grant();
    hand.drop_lease();
    hand.until_yielded();
    assert_eq!(world.machine.stale_handles().unwrap(), 0);
}

#[test]
fn memory_of_another_interface_is_counted_until_it_is_destroyed() {
    let mut world = World::new(64 * MIB);
    let (hand, mut client) = Hand::with_client(&mut world, &[]);
    let is_fixed = |message| matches!(message, FromSession::Fixed { .. });
    let bytes = 8 * MIB;
    let memory = client.does(&format!("import {bytes}"));
    assert_eq!(hand.until(is_fixed), FromSession::Fixed { bytes });
    client.does(&format!("destroy-import {memory}"));
    assert_eq!(hand.until(is_fixed), FromSession::Fixed { bytes: 0 });
}

#[test]
fn calls_whose_pointers_the_driver_checks_wait_for_the_memory() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    client.does(&format!("allocate a {}", 8 * MIB));
    hand.send(ToSession::SwapOut { bytes: u64::MAX });
    hand.until(|message| matches!(message, FromSession::SwappedOut { .. }));
    client.send("synchronize-copies a");
    hand.until(|message| message == FromSession::Want);
    hand.send(ToSession::SwapIn);
    hand.until(|message| matches!(message, FromSession::SwappedIn { .. }));
    hand.grant();
    assert_eq!(client.answer().unwrap(), "ok");
}

/// The names in a table of the interposer.
fn names_in(table: &str) -> impl Iterator<Item = &'static str> {
    const TABLES: &str =
        include_str!("../../../../gpu-worker/interposer/src/library/sys/word_calls.rs");
    let (_, from_there) = TABLES.split_once(&format!("words! {{ {table}:")).unwrap();
    let (_, names) = from_there.split_once("=>\n").unwrap();
    names.split_once("\n}").unwrap().0.split_whitespace()
}

#[test]
fn each_of_these_calls_waits_for_a_lease() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    let tables = ["ASKED", "GRAPH_MEMORY", "INSTANTIATED"];
    let names: Vec<&str> = tables.into_iter().flat_map(names_in).collect();
    assert!(names.contains(&"cuMemAdvise") && names.contains(&"cuGraphAddNode"));
    for name in names {
        client.send(&format!("call {name}"));
        hand.until(|message| message == FromSession::Want);
        hand.grant();
        // The driver refuses the arguments, or does not have the function.
        let answer = client.answer().unwrap();
        assert!(
            matches!(&answer[..], "error 1" | "error 400" | "error 801"),
            "{name}: {answer}"
        );
        hand.drop_lease();
        hand.until_yielded();
    }
}

#[test]
fn a_mark_that_measures_time_waits_for_the_lease_and_others_do_not() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    for event in ["start 0", "end 0", "without-time 2"] {
        client.does(&format!("create-event {event}"));
    }
    client.does("record without-time");
    client.send("record start");
    hand.until(|message| message == FromSession::Want);
    hand.grant();
    assert_eq!(client.answer().unwrap(), "ok");
    client.does("launch sleep_20ms 1");
    client.does("record end");
    client.does("synchronize");
    let elapsed: f32 = client.does("elapsed start end").parse().unwrap();
    assert!(elapsed >= 20.0, "{elapsed}");
}

#[test]
fn a_hand_over_between_two_marks_is_measured_with_them() {
    let mut world = World::new(64 * MIB);
    let (mut hand, mut client) = Hand::with_client(&mut world, &[]);
    for event in ["start 0", "end 0"] {
        client.does(&format!("create-event {event}"));
    }
    hand.grant();
    client.does("record start");
    client.does("synchronize");
    let since = Instant::now();
    hand.drop_lease();
    hand.until_yielded();
    client.send("record end");
    hand.until(|message| message == FromSession::Want);
    let away = since.elapsed();
    hand.grant();
    assert_eq!(client.answer().unwrap(), "ok");
    let elapsed: f32 = client.does("elapsed start end").parse().unwrap();
    assert!(
        elapsed >= 1e3 * away.as_secs_f32(),
        "{elapsed} ms, {away:?}"
    );
}

#[test]
fn memory_that_cannot_be_unmapped_is_reported() {
    let mut world = World::new(64 * MIB);
    let faults = [(FAULTS, "cuMemUnmap:1:999")];
    let (mut hand, mut client) = Hand::with_client(&mut world, &faults);
    client.does(&format!("allocate a {}", 8 * MIB));
    hand.send(ToSession::SwapOut { bytes: u64::MAX });
    hand.until(|message| message == FromSession::Fault { code: 999 });
}
