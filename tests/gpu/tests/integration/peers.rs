//! Processes at the worker's socket that are not interposers, or that end in the middle of an exchange.

use crate::{
    sharing::check_that_each_may_use_the_whole_card,
    world::{Client, MIB, PATIENCE, World, eventually},
};
use baton_gpu_worker::gpu::Token;
use baton_interposer::wire::{FRAME_BYTES, FromSession, Hello, ToSession};
use std::{
    fs::Permissions,
    io::{Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    process::{Command, Stdio},
};

/// A test process that uses the interposers' protocol.
struct Peer(UnixStream);

impl Peer {
    fn connect(world: &World) -> Self {
        let stream = UnixStream::connect(world.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn of(world: &World, token: Token) -> Self {
        let mut peer = Self::connect(world);
        peer.greet(token);
        assert!(matches!(peer.receive(), ToSession::Welcome { .. }));
        peer
    }

    fn greet(&mut self, token: Token) {
        self.greet_from(token, 0);
    }

    fn greet_from(&mut self, token: Token, device: u128) {
        self.send(FromSession::Hello(Hello {
            token,
            total_bytes: 64 * MIB,
            bytes: 0,
            fixed_bytes: 0,
            is_away: false,
            device,
        }));
    }

    fn send(&mut self, message: FromSession) {
        self.0.write_all(&message.encode()).unwrap();
    }

    /// Receives the next message, and answers requests to make places with none made.
    fn receive(&mut self) -> ToSession {
        loop {
            match self.receive_any() {
                ToSession::Pin { .. } => self.send(FromSession::Pinned { bytes: 0 }),
                message => return message,
            }
        }
    }

    fn receive_any(&mut self) -> ToSession {
        let mut frame = [0; FRAME_BYTES];
        self.0.read_exact(&mut frame).unwrap();
        ToSession::decode(&frame).unwrap()
    }

    fn hold(&mut self) {
        self.send(FromSession::Want);
        assert!(matches!(self.receive(), ToSession::Grant { .. }));
    }

    fn grow(&mut self, bytes: u64) {
        self.send(FromSession::Grew { bytes });
        assert_eq!(self.receive(), ToSession::Grow { bytes });
    }

    /// Lets another program request room, so that this peer is asked to move its memory.
    fn is_to_make_room(&mut self, world: &mut World) -> Client {
        self.grow(60 * MIB);
        let mut other = world.client();
        other.send(&format!("allocate a {}", 60 * MIB));
        assert_eq!(self.receive(), ToSession::SwapOut { bytes: 56 * MIB });
        other
    }
}

#[test]
fn garbage_and_untrue_numbers_harm_nobody_else() {
    let mut world = World::new(64 * MIB);
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    // Some stay connected and send nothing more.
    let mut silent = vec![Peer::connect(&world)];
    for length in [1, 8, 63, 64, 65, 1 << 16] {
        let mut peer = Peer::connect(&world);
        let bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        let _ = peer.0.write_all(&bytes);
        silent.push(peer);
    }
    let numbers = [0, 1, 64 * MIB, 1 << 63, u64::MAX];
    for number in numbers {
        for is_away in [false, true] {
            let token = world.admit(None);
            let mut peer = Peer::connect(&world);
            peer.send(FromSession::Hello(Hello {
                token,
                total_bytes: number,
                bytes: number,
                fixed_bytes: number,
                is_away,
                device: 0,
            }));
        }
    }
    for _ in 0..20 {
        let token = world.admit(None);
        let mut peer = Peer::of(&world, token);
        for _ in 0..50 {
            let (kind, number) = (next() % 16, numbers[(next() % 5) as usize]);
            let message = match kind {
                0 => FromSession::Want,
                1 => FromSession::Yielded {
                    epoch: number,
                    submissions: number,
                },
                2 => FromSession::Grew { bytes: number },
                3 => FromSession::Shrank {
                    bytes: number,
                    away_bytes: numbers[(next() % 5) as usize],
                },
                11 => FromSession::Left { bytes: number },
                12 => FromSession::CanTrim,
                13 => FromSession::Trimmed,
                4 => FromSession::Fixed { bytes: number },
                5 => FromSession::SwappedOut {
                    bytes: number,
                    nanoseconds: number,
                    new_place_bytes: number,
                },
                14 => FromSession::Pinned { bytes: number },
                15 => FromSession::NeedsRoom { bytes: number },
                6 => FromSession::SwappedIn {
                    bytes: number,
                    nanoseconds: number,
                },
                7 => FromSession::NotSwappedIn,
                8 => FromSession::NoRoom {
                    bytes: number,
                    free_bytes: numbers[(next() % 5) as usize],
                },
                9 => FromSession::NotGrown {
                    bytes: number,
                    away_bytes: numbers[(next() % 5) as usize],
                    free_bytes: numbers[(next() % 5) as usize],
                },
                _ => FromSession::Fault {
                    code: number as u32,
                },
            };
            peer.send(message);
        }
        world.usage(token);
    }
    check_that_each_may_use_the_whole_card(&mut world);
}

#[test]
fn who_asks_without_end_and_does_not_listen_is_cut_off() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    let mut deaf = Peer::of(&world, token);
    deaf.grow(60 * MIB);
    let question = FromSession::Grew { bytes: u64::MAX }.encode();
    // It asks slowly until the connection is full, then causes far more answers than may be queued for a
    // process that reads none.
    let mut written = 0;
    for number in 0..10_000 {
        written += usize::from(deaf.0.write_all(&question).is_ok());
        if number < 1000 {
            world.usage(token);
        }
    }
    check_that_each_may_use_the_whole_card(&mut world);
    let mut answers = Vec::new();
    let _ = deaf.0.read_to_end(&mut answers);
    assert!(answers.len() / FRAME_BYTES < written);
}

#[test]
fn who_ends_at_any_step_leaves_nothing_behind() {
    let mut world = World::new(64 * MIB);
    let steps: [fn(&mut World, &mut Peer) -> Option<Client>; 9] = [
        |_, _| None,
        |_, peer| {
            peer.send(FromSession::Want);
            None
        },
        |_, peer| {
            peer.hold();
            None
        },
        |_, peer| {
            peer.send(FromSession::Grew { bytes: 60 * MIB });
            None
        },
        |_, peer| {
            peer.grow(60 * MIB);
            peer.send(FromSession::Fixed { bytes: 2 * MIB });
            None
        },
        // It is asked to return the lease.
        |world, peer| {
            peer.hold();
            let mut other = world.client();
            other.send("launch nothing 1");
            assert!(matches!(peer.receive(), ToSession::Preempt { .. }));
            Some(other)
        },
        // It is asked to make room.
        |world, peer| Some(peer.is_to_make_room(world)),
        // It is asked to make places on the host for the rest of its memory.
        |world, peer| {
            let mut other = peer.is_to_make_room(world);
            peer.send(FromSession::SwappedOut {
                bytes: 56 * MIB,
                nanoseconds: 1,
                new_place_bytes: 56 * MIB,
            });
            assert!(other.answer().unwrap().starts_with("ok"));
            assert_eq!(peer.receive_any(), ToSession::Pin { bytes: 4 * MIB });
            other.send("launch nothing 1");
            Some(other)
        },
        // Its memory is on the way back to the GPU.
        |world, peer| {
            let mut other = peer.is_to_make_room(world);
            peer.send(FromSession::SwappedOut {
                bytes: 60 * MIB,
                nanoseconds: 1,
                new_place_bytes: 60 * MIB,
            });
            assert!(other.answer().unwrap().starts_with("ok"));
            peer.send(FromSession::Want);
            assert_eq!(peer.receive(), ToSession::SwapIn);
            other.send("launch nothing 1");
            Some(other)
        },
    ];
    for step in steps {
        let token = world.admit(None);
        let mut peer = Peer::of(&world, token);
        let other = step(&mut world, &mut peer);
        drop(peer);
        if let Some(mut other) = other {
            assert!(other.answer().unwrap().starts_with("ok"));
        }
        check_that_each_may_use_the_whole_card(&mut world);
    }
}

#[test]
fn a_request_for_nothing_is_answered_at_once() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    Peer::of(&world, token).grow(0);
}

#[test]
fn a_session_cannot_report_more_fixed_memory_than_its_limit_allows() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(Some(8 * MIB));
    let mut peer = Peer::of(&world, token);
    let bytes = u64::MAX;
    peer.send(FromSession::Fixed { bytes });
    peer.send(FromSession::NeedsRoom { bytes });
    assert_eq!(peer.receive(), ToSession::Refuse { bytes });
    // An eighth of the GPU is for memory that the limit does not bound.
    assert_eq!(world.usage(token).peak_bytes, 16 * MIB);
    world.client().does(&format!("allocate a {}", 48 * MIB));
}

#[test]
fn a_session_that_is_over_is_cut_off() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    let mut peer = Peer::of(&world, token);
    peer.hold();
    world.dismiss(token);
    assert_eq!(peer.0.read(&mut [0; FRAME_BYTES]).unwrap(), 0);
    drop(peer);
    check_that_each_may_use_the_whole_card(&mut world);
}

#[test]
fn a_hundred_sessions_leave_no_connection_open() {
    let mut world = World::new(64 * MIB);
    for _ in 0..10 {
        let mut clients: Vec<Client> = (0..10).map(|_| world.client()).collect();
        for client in &mut clients {
            client.does("allocate a 512");
        }
    }
    // Only the listener's own socket is left.
    assert!(eventually(|| open_ends(&world) == 1));
}

/// How many sockets the worker has open for sessions, with the listener's own.
fn open_ends(world: &World) -> usize {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = world.socket();
    let path = path.to_str().unwrap();
    sockets.lines().filter(|line| line.ends_with(path)).count()
}

#[test]
fn a_session_has_a_limited_number_of_connections() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    let mut peers: Vec<Peer> = (0..64).map(|_| Peer::of(&world, token)).collect();
    let mut refused = Peer::connect(&world);
    refused.greet(token);
    assert_eq!(refused.receive(), ToSession::Refuse { bytes: 0 });
    assert_eq!(refused.0.read(&mut [0; FRAME_BYTES]).unwrap(), 0);
    assert_eq!(first_launch(world.command_of(token)), "error 802");
    check_that_each_may_use_the_whole_card(&mut world);
    peers.pop();
    let is_accepted = || {
        let mut peer = Peer::connect(&world);
        peer.greet(token);
        matches!(peer.receive(), ToSession::Welcome { .. })
    };
    assert!(eventually(is_accepted));
}

#[test]
fn a_process_on_another_gpu_than_its_session_s_is_cut_off() {
    const OWN: u128 = 0;
    let mut world = World::new(64 * MIB);
    world.start_monitored();
    let token = world.admit(None);
    let mut peer = Peer::connect(&world);
    peer.greet_from(token, OWN + 1);
    assert_eq!(peer.0.read(&mut [0; FRAME_BYTES]).unwrap(), 0);
    check_that_each_may_use_the_whole_card(&mut world);
}

#[test]
fn connections_without_a_session_do_not_pile_up() {
    let mut world = World::new(64 * MIB);
    let _silent: Vec<Peer> = (0..300).map(|_| Peer::connect(&world)).collect();
    check_that_each_may_use_the_whole_card(&mut world);
    assert!(open_ends(&world) < 100, "{}", open_ends(&world));
    let _unknown: Vec<Peer> = (0..300)
        .map(|_| {
            let mut peer = Peer::connect(&world);
            peer.greet(Token::MAX);
            peer
        })
        .collect();
    assert!(eventually(|| open_ends(&world) < 100));
}

/// Otherwise, another session could make this one compute without time-sharing by changing the mode of the socket.
#[test]
fn a_process_that_may_not_connect_does_not_compute() {
    let mut world = World::new(64 * MIB);
    let token = world.admit(None);
    std::fs::set_permissions(world.socket(), Permissions::from_mode(0o000)).unwrap();
    let client = world.command_of(token);
    let mut command = Command::new("setpriv");
    // Otherwise root could connect.
    command.args(["--bounding-set=-all", "--inh-caps=-all"]);
    if !nix::unistd::geteuid().is_root() {
        command = Command::new("env");
    }
    command
        .arg(client.get_program())
        .envs(world.environment(token));
    assert_eq!(first_launch(command), "error 802");
}

/// The answer to the first launch, or the error before it.
fn first_launch(mut command: Command) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"launch nothing 1\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().last().unwrap().to_owned()
}
