//! What the driver's monitoring reports to a worker about its GPU.

use crate::world::{Client, MIB, World, eventually};
use baton_gpu_tests::layout::RESERVED_BYTES;
use baton_gpu_worker::gpu::{
    Hardware, MONITORING, ProgramMemory, Reading, Slice, each, gpus, monitor, slices,
};
use baton_interposer::wire::{DEVICE, TOKEN};
use std::process::Command;
use tokio::sync::watch;

const NOTEBOOK: &str = "0193f2a4c5d67e8f9a0b1c2d3e4f5061";
const GPU_IS_LOST: u64 = 15;

impl World {
    fn monitor(&self, visible: Option<&str>) -> watch::Receiver<Reading> {
        let library = self.machine.folder().join(MONITORING);
        self.block_on(monitor(library.as_os_str(), visible.map(str::to_owned)))
    }

    /// Starts the worker again, with monitoring.
    pub(crate) fn start_monitored(&mut self) {
        self.monitored = each(&self.monitor(None)).pop();
        self.stop_worker();
        self.start_worker();
    }

    fn read(
        &self,
        reading: &mut watch::Receiver<Reading>,
        until: impl Fn(&Reading) -> bool,
    ) -> Reading {
        self.block_on(async {
            reading
                .wait_for(|reading| until(reading))
                .await
                .unwrap()
                .clone()
        })
    }
}

#[test]
fn a_worker_knows_what_its_gpu_does_and_for_whom() {
    let mut world = World::new(64 * MIB);
    let mut reading = world.monitor(None);
    let gpus = reading.borrow().gpus.clone();
    assert_eq!(gpus[0].name, "GPU of host memory");
    assert_eq!(gpus[0].memory_total_bytes, 64 * MIB + RESERVED_BYTES);
    assert_eq!((gpus[0].memory_used_bytes, &gpus[0].sessions), (0, &vec![]));
    let memory = |free_bytes| ProgramMemory {
        total_bytes: 64 * MIB,
        free_bytes,
    };
    assert_eq!(reading.borrow().memory, [memory(64 * MIB)]);

    let token = world.admit(None);
    let mark = format!("{NOTEBOOK}-1");
    let mut client = world.client_of(token, &[("BATON_SESSION", &mark)]);
    client.does(&format!("allocate a {}", 8 * MIB));
    let used = world.read(&mut reading, |reading| {
        reading.gpus[0].memory_used_bytes > 0
    });
    let gpu = &used.gpus[0];
    assert!(gpu.memory_used_bytes >= 8 * MIB);
    assert_eq!(used.memory, [memory(64 * MIB - gpu.memory_used_bytes)]);
    let of_sessions = |reading: &Reading| -> Vec<_> {
        let sessions = reading.gpus[0].sessions.iter();
        let told = sessions.map(|one| (one.notebook, one.memory_bytes, one.utilisation_percent));
        told.collect()
    };
    let told = |percent| {
        [(
            NOTEBOOK.parse().unwrap(),
            gpu.memory_used_bytes,
            Some(percent),
        )]
    };
    assert_eq!(of_sessions(&used), told(0));

    client.does("launch forever 1");
    let is_busy = |reading: &Reading| reading.gpus[0].utilisation_percent == Some(100);
    let busy = world.read(&mut reading, is_busy);
    assert_eq!(of_sessions(&busy), told(100));
    drop(client);
    world.read(&mut reading, |reading| {
        reading.gpus[0].memory_used_bytes == 0
    });
}

#[test]
fn a_worker_notices_a_process_that_never_connects() {
    let mut world = World::new(64 * MIB);
    world.start_monitored();
    let [honest, other] = [(); 2].map(|()| world.admit(None));
    let _connected = world.client_of(honest, &[]);
    let mut alone = world.command_of(other);
    alone.env_remove("LD_PRELOAD");
    let _alone = Client::start(alone);
    let is_noticed = || world.usage(other).bypassed;
    assert!(eventually(is_noticed));
    assert!(!world.usage(honest).bypassed);
}

#[test]
fn a_worker_knows_only_of_gpus_that_its_sessions_see() {
    let world = World::new(64 * MIB);
    let count = |visible| world.monitor(Some(visible)).borrow().gpus.len();
    assert_eq!(count("0"), 1);
    assert_eq!(count("GPU-00000000-0000-0000-0000-000000000000"), 1);
    for none in ["", "7", "GPU-of-somebody-else"] {
        assert_eq!(count(none), 0, "{none}");
    }
}

#[test]
fn each_of_several_gpus_is_told_of() {
    let mut world = World::new(64 * MIB);
    world.machine.add_card(1, 32 * MIB).unwrap();
    let mut reading = world.monitor(None);
    let bytes = |reading: &Reading| -> Vec<u64> {
        reading
            .gpus
            .iter()
            .map(|gpu| gpu.memory_used_bytes)
            .collect()
    };
    let library = world.machine.folder().join(MONITORING);
    let all = gpus(library.as_os_str(), None);
    assert_eq!(reading.borrow().hardware, all);
    let sizes: Vec<u64> = reading
        .borrow()
        .gpus
        .iter()
        .map(|gpu| gpu.memory_total_bytes)
        .collect();
    assert_eq!(sizes, [64, 32].map(|size| size * MIB + RESERVED_BYTES));

    let second = all[1].name.as_str();
    let token = world.admit(None);
    let mut client = world.client_of(token, &[("CUDA_VISIBLE_DEVICES", second)]);
    client.does(&format!("allocate a {}", 8 * MIB));
    let used = world.read(&mut reading, |reading| bytes(reading)[1] > 0);
    assert_eq!(bytes(&used)[0], 0);
    assert_eq!(world.monitor(Some(second)).borrow().gpus.len(), 1);
}

#[test]
fn a_session_keeps_its_gpu_whatever_its_notebook_says_of_visible_devices() {
    let mut world = World::new(64 * MIB);
    world.machine.add_card(1, 32 * MIB).unwrap();
    let library = world.machine.folder().join(MONITORING);
    let second = gpus(library.as_os_str(), None)[1].name.clone();
    let second = second.as_str();
    let token = world.admit(None);
    for visible in ["0", "0,1", second] {
        let variables = [("CUDA_VISIBLE_DEVICES", visible), (DEVICE, second)];
        let mut client = world.client_of(token, &variables);
        assert_eq!(client.does("card-bytes"), (32 * MIB).to_string());
    }
    // A program that wants no GPU gets none.
    for visible in ["", "-1"] {
        let mut command = world.command_of(token);
        command
            .env("CUDA_VISIBLE_DEVICES", visible)
            .env(DEVICE, second);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "error 100\n");
    }
}

#[test]
fn a_gpu_that_is_lost_is_said_to_be() {
    let world = World::new(64 * MIB);
    let mut reading = world.monitor(None);
    world.machine.lose(GPU_IS_LOST).unwrap();
    let lost = world.read(&mut reading, |reading| reading.lost.is_some());
    assert!(
        lost.lost
            .unwrap()
            .starts_with("GPU 0: device fell off the bus")
    );
}

#[test]
fn a_machine_without_a_driver_has_no_gpu() {
    let world = World::new(64 * MIB);
    let reading = world.block_on(monitor("no-such-library.so".as_ref(), None));
    assert_eq!(*reading.borrow(), Reading::default());
}

#[test]
fn sessions_can_have_a_gpu_or_a_slice_for_themselves() {
    const GPU: &str = "GPU-00000000-0000-0000-0000-000000000000";
    const SLICES: [&str; 2] = [
        "MIG-00000000-0000-0000-0000-000000000002",
        "MIG-00000000-0000-0000-0000-000000000003",
    ];
    let world = World::new(64 * MIB);
    let library = world.machine.folder().join(MONITORING);
    let library = library.as_os_str();
    let gpu = Hardware {
        name: GPU.to_owned(),
        gpu: Some(GPU.to_owned()),
        slice: None,
    };
    let of_gpu = [7, 8].map(|gpu_instance| Hardware {
        name: SLICES[gpu_instance as usize - 7].to_owned(),
        slice: Some(Slice {
            gpu_instance,
            compute_instance: 0,
        }),
        ..gpu.clone()
    });
    assert_eq!(gpus(library, None), [gpu]);
    assert!(slices(library, None).is_empty());
    world.machine.cut(2).unwrap();
    assert_eq!(slices(library, None), of_gpu);
    assert_eq!(slices(library, Some("0")), of_gpu);
    let visible = world.monitor(Some(SLICES[1]));
    assert_eq!(visible.borrow().hardware, of_gpu[1..]);
    assert_eq!(slices(library, Some(SLICES[1])), of_gpu[1..]);
}

/// What a program in the session of this token reads about the GPU.
fn shown(world: &World, token: u128, variables: &[(&str, &str)]) -> Vec<u64> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-monitor"));
    command.envs(world.environment(token));
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers = text.split_whitespace().map(|word| word.parse().unwrap());
    numbers.collect()
}

fn process(client: &Client) -> u64 {
    client.child.id().into()
}

#[test]
fn a_session_is_shown_its_own_memory_and_processes() {
    let mut world = World::new(64 * MIB);
    let tokens = [world.admit(Some(16 * MIB)), world.admit(None)];
    assert_eq!(shown(&world, tokens[0], &[])[1..], [0, 64 * MIB]);
    let mut first = world.client_of(tokens[0], &[]);
    let mut second = world.client_of(tokens[0], &[]);
    let mut others = world.client_of(tokens[1], &[]);
    first.does(&format!("allocate a {}", 4 * MIB));
    second.does(&format!("allocate a {}", 6 * MIB));
    others.does(&format!("allocate a {}", 8 * MIB));
    let own = [
        [16 * MIB, 10 * MIB, 6 * MIB],
        [process(&first), 4 * MIB, process(&second)],
    ];
    let expected = [own.concat(), vec![6 * MIB]].concat();
    assert_eq!(shown(&world, tokens[0], &[]), expected);
    let of_others = [64 * MIB, 8 * MIB, 56 * MIB, process(&others), 8 * MIB];
    assert_eq!(shown(&world, tokens[1], &[]), of_others);

    // For another GPU, outside of sessions and for an unknown session, the driver's own answers pass.
    let another = shown(&world, tokens[0], &[(DEVICE, "GPU-of-another-session")]);
    let outside = shown(&world, tokens[0], &[("LD_PRELOAD", "")]);
    let unknown = shown(&world, tokens[0], &[(TOKEN, "no token")]);
    for all in [another, outside, unknown] {
        assert_eq!(all[0], 64 * MIB + RESERVED_BYTES);
        assert!(all[1] >= 18 * MIB, "{all:?}");
        assert_eq!(all.len(), 9, "{all:?}");
    }
    first.does("free a");
    // The process reports what it freed, and does not wait for an answer.
    let left = [16 * MIB, 6 * MIB];
    assert!(eventually(|| shown(&world, tokens[0], &[])[..2] == left));
}
