//! The protocol between a session's interposer and the worker: frames of 72 bytes over a Unix stream socket.
//!
//! A frame holds a mark with the version, a kind, and eight numbers, little endian. Both ends always have the
//! same version, because the worker ships the library.

/// The environment variables with the path of the worker's socket and with the session's token.
pub const SOCKET: &str = "BATON_GPU_SOCKET";
pub const TOKEN: &str = "BATON_GPU_TOKEN";

/// The environment variable with the session's GPU, as `CUDA_VISIBLE_DEVICES` names it, if the worker knows it.
pub const DEVICE: &str = "BATON_GPU_DEVICE";

pub const FRAME_BYTES: usize = 72;
pub type Frame = [u8; FRAME_BYTES];

/// A lease's number; see the arbiter.
pub type Epoch = u64;

const MARK: u32 = u32::from_le_bytes(*b"BtG7");
const WORDS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub token: u128,
    /// The GPU's memory; 0 if there is no GPU.
    pub total_bytes: u64,
    /// Movable memory that the process has already allocated. Nonzero only after a reconnect.
    pub bytes: u64,
    pub fixed_bytes: u64,
    /// Whether `bytes` are all on the host.
    pub is_away: bool,
    /// The UUID of the GPU that the process found; 0 if the driver does not report it.
    pub device: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromSession {
    Hello(Hello),
    /// Sent instead of a hello, to ask what the session has. The connection ends after the answer.
    Look {
        token: u128,
    },
    /// A thread waits at the gate.
    Want,
    /// The gate is closed, and nothing is in flight any more.
    Yielded {
        epoch: Epoch,
        submissions: u64,
    },
    /// The process allocates memory, and waits for the answer.
    Grew {
        bytes: u64,
    },
    /// The driver has no room for something that is in no ledger, such as loaded code. The answer is that to
    /// [`FromSession::Grew`], and so is what follows.
    NeedsRoom {
        bytes: u64,
    },
    /// The process freed memory. Of these bytes, `away_bytes` were on the host.
    Shrank {
        bytes: u64,
        away_bytes: u64,
    },
    /// The total of the memory that cannot leave the GPU, after it changed.
    Fixed {
        bytes: u64,
    },
    /// Part of a swap-out: the driver has these bytes back.
    Left {
        bytes: u64,
    },
    /// The swap-out is complete, with this many bytes in total. Of these, `new_place_bytes` had no place on the
    /// host before.
    SwappedOut {
        bytes: u64,
        nanoseconds: u64,
        new_place_bytes: u64,
    },
    SwappedIn {
        bytes: u64,
        nanoseconds: u64,
    },
    NotSwappedIn,
    /// The swap-in of `bytes` failed, because the driver has only `free_bytes` left.
    NoRoom {
        bytes: u64,
        free_bytes: u64,
    },
    /// What [`FromSession::Grew`] or [`FromSession::NeedsRoom`] asked for was granted and could not be made, because
    /// the driver has only `free_bytes` left. Of the granted bytes, `away_bytes` counted as on the host.
    NotGrown {
        bytes: u64,
        away_bytes: u64,
        free_bytes: u64,
    },
    /// From now on, the driver answers every call with this error until the process ends.
    Fault {
        code: u32,
    },
    /// The process can free memory that libraries hold without using it.
    CanTrim,
    /// The process has done so, as [`ToSession::Trim`] asked.
    Trimmed,
    /// The answer to [`ToSession::Pin`]: this many bytes have got a place.
    Pinned {
        bytes: u64,
    },
    /// The process has adopted the new cap of a repeated [`ToSession::Welcome`].
    Capped {
        cap_bytes: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToSession {
    /// How much the session may allocate; programs see it as the GPU's total memory. A repeated welcome changes
    /// the cap.
    Welcome {
        cap_bytes: u64,
    },
    Grant {
        epoch: Epoch,
    },
    Preempt {
        epoch: Epoch,
    },
    /// Move at least this many bytes off the GPU, or all.
    SwapOut {
        bytes: u64,
    },
    /// Move all memory that is on the host back to the GPU.
    SwapIn,
    /// Make and pin places on the host for at most this many bytes that are on the GPU. The one answer,
    /// [`FromSession::Pinned`], comes early if a move or [`ToSession::Unpin`] interrupts the work.
    Pin {
        bytes: u64,
    },
    /// Other sessions need room on the host: stop pinning ahead, and return empty places to the system.
    /// Together with the bytes that were still to be pinned, give up at least this many bytes, or all.
    Unpin {
        bytes: u64,
    },
    /// Other sessions need room: return to the driver the memory that libraries hold without using it.
    Trim,
    Grow {
        bytes: u64,
    },
    /// The answer to [`FromSession::Grew`]. Instead of the first welcome: the process may not use the GPU.
    Refuse {
        bytes: u64,
    },
    /// How much the session has allocated, and its cap (0: not known yet). A frame for each of its processes
    /// follows.
    Has {
        cap_bytes: u64,
        bytes: u64,
        processes: u32,
    },
    ProcessHas {
        /// The process id inside the session's namespace.
        process: u32,
        bytes: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAFrame;

impl FromSession {
    #[must_use]
    pub fn encode(&self) -> Frame {
        match *self {
            Self::Hello(hello) => frame(
                0,
                &[
                    hello.token as u64,
                    (hello.token >> 64) as u64,
                    hello.total_bytes,
                    hello.bytes,
                    hello.fixed_bytes,
                    u64::from(hello.is_away),
                    hello.device as u64,
                    (hello.device >> 64) as u64,
                ],
            ),
            Self::Look { token } => frame(16, &[token as u64, (token >> 64) as u64]),
            Self::Want => frame(1, &[]),
            Self::Yielded { epoch, submissions } => frame(2, &[epoch, submissions]),
            Self::Grew { bytes } => frame(3, &[bytes]),
            Self::Shrank { bytes, away_bytes } => frame(4, &[bytes, away_bytes]),
            Self::Fixed { bytes } => frame(5, &[bytes]),
            Self::SwappedOut {
                bytes,
                nanoseconds,
                new_place_bytes,
            } => frame(6, &[bytes, nanoseconds, new_place_bytes]),
            Self::SwappedIn { bytes, nanoseconds } => frame(7, &[bytes, nanoseconds]),
            Self::NotSwappedIn => frame(8, &[]),
            Self::Fault { code } => frame(9, &[u64::from(code)]),
            Self::Capped { cap_bytes } => frame(10, &[cap_bytes]),
            Self::NoRoom { bytes, free_bytes } => frame(11, &[bytes, free_bytes]),
            Self::NotGrown {
                bytes,
                away_bytes,
                free_bytes,
            } => frame(12, &[bytes, away_bytes, free_bytes]),
            Self::Left { bytes } => frame(13, &[bytes]),
            Self::CanTrim => frame(14, &[]),
            Self::Trimmed => frame(15, &[]),
            Self::Pinned { bytes } => frame(17, &[bytes]),
            Self::NeedsRoom { bytes } => frame(18, &[bytes]),
        }
    }

    pub fn decode(frame: &Frame) -> Result<Self, NotAFrame> {
        let (kind, words) = parts(frame)?;
        Ok(match kind {
            0 => Self::Hello(Hello {
                token: wide(words[0], words[1]),
                total_bytes: words[2],
                bytes: words[3],
                fixed_bytes: words[4],
                is_away: words[5] != 0,
                device: wide(words[6], words[7]),
            }),
            1 => Self::Want,
            2 => Self::Yielded {
                epoch: words[0],
                submissions: words[1],
            },
            3 => Self::Grew { bytes: words[0] },
            4 => Self::Shrank {
                bytes: words[0],
                away_bytes: words[1],
            },
            5 => Self::Fixed { bytes: words[0] },
            6 => Self::SwappedOut {
                bytes: words[0],
                nanoseconds: words[1],
                new_place_bytes: words[2],
            },
            7 => Self::SwappedIn {
                bytes: words[0],
                nanoseconds: words[1],
            },
            8 => Self::NotSwappedIn,
            9 => Self::Fault {
                code: words[0] as u32,
            },
            10 => Self::Capped {
                cap_bytes: words[0],
            },
            11 => Self::NoRoom {
                bytes: words[0],
                free_bytes: words[1],
            },
            12 => Self::NotGrown {
                bytes: words[0],
                away_bytes: words[1],
                free_bytes: words[2],
            },
            13 => Self::Left { bytes: words[0] },
            14 => Self::CanTrim,
            15 => Self::Trimmed,
            16 => Self::Look {
                token: wide(words[0], words[1]),
            },
            17 => Self::Pinned { bytes: words[0] },
            18 => Self::NeedsRoom { bytes: words[0] },
            _ => return Err(NotAFrame),
        })
    }
}

impl ToSession {
    #[must_use]
    pub fn encode(&self) -> Frame {
        match *self {
            Self::Welcome { cap_bytes } => frame(0, &[cap_bytes]),
            Self::Grant { epoch } => frame(1, &[epoch]),
            Self::Preempt { epoch } => frame(2, &[epoch]),
            Self::SwapOut { bytes } => frame(3, &[bytes]),
            Self::SwapIn => frame(4, &[]),
            Self::Grow { bytes } => frame(5, &[bytes]),
            Self::Refuse { bytes } => frame(6, &[bytes]),
            Self::Trim => frame(7, &[]),
            Self::Has {
                cap_bytes,
                bytes,
                processes,
            } => frame(8, &[cap_bytes, bytes, processes.into()]),
            Self::ProcessHas { process, bytes } => frame(9, &[process.into(), bytes]),
            Self::Unpin { bytes } => frame(10, &[bytes]),
            Self::Pin { bytes } => frame(11, &[bytes]),
        }
    }

    pub fn decode(frame: &Frame) -> Result<Self, NotAFrame> {
        let (kind, words) = parts(frame)?;
        Ok(match kind {
            0 => Self::Welcome {
                cap_bytes: words[0],
            },
            1 => Self::Grant { epoch: words[0] },
            2 => Self::Preempt { epoch: words[0] },
            3 => Self::SwapOut { bytes: words[0] },
            4 => Self::SwapIn,
            5 => Self::Grow { bytes: words[0] },
            6 => Self::Refuse { bytes: words[0] },
            7 => Self::Trim,
            8 => Self::Has {
                cap_bytes: words[0],
                bytes: words[1],
                processes: words[2] as u32,
            },
            9 => Self::ProcessHas {
                process: words[0] as u32,
                bytes: words[1],
            },
            10 => Self::Unpin { bytes: words[0] },
            11 => Self::Pin { bytes: words[0] },
            _ => return Err(NotAFrame),
        })
    }
}

fn wide(low: u64, high: u64) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

fn frame(kind: u32, words: &[u64]) -> Frame {
    let mut frame = [0; FRAME_BYTES];
    frame[..4].copy_from_slice(&MARK.to_le_bytes());
    frame[4..8].copy_from_slice(&kind.to_le_bytes());
    for (place, word) in frame[8..].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    frame
}

fn parts(frame: &Frame) -> Result<(u32, [u64; WORDS]), NotAFrame> {
    let number = |from: usize| {
        let bytes = frame[from..from + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    };
    if number(0) != MARK {
        return Err(NotAFrame);
    }
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(frame[8..].chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    Ok((number(4), words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let hello = Hello {
            token: u128::MAX - 7,
            total_bytes: 1,
            bytes: 2,
            fixed_bytes: 3,
            is_away: true,
            device: u128::MAX - 9,
        };
        for message in [
            FromSession::Hello(hello),
            FromSession::Look {
                token: u128::MAX - 5,
            },
            FromSession::Want,
            FromSession::Yielded {
                epoch: 4,
                submissions: 5,
            },
            FromSession::Grew { bytes: 6 },
            FromSession::Shrank {
                bytes: 7,
                away_bytes: 3,
            },
            FromSession::Left { bytes: 18 },
            FromSession::CanTrim,
            FromSession::Trimmed,
            FromSession::Fixed { bytes: 8 },
            FromSession::SwappedOut {
                bytes: 9,
                nanoseconds: 10,
                new_place_bytes: 19,
            },
            FromSession::Pinned { bytes: 20 },
            FromSession::SwappedIn {
                bytes: 11,
                nanoseconds: 12,
            },
            FromSession::NotSwappedIn,
            FromSession::Fault { code: 700 },
            FromSession::Capped { cap_bytes: 13 },
            FromSession::NoRoom {
                bytes: 14,
                free_bytes: 15,
            },
            FromSession::NotGrown {
                bytes: 16,
                away_bytes: 21,
                free_bytes: 17,
            },
            FromSession::NeedsRoom { bytes: 22 },
        ] {
            assert_eq!(FromSession::decode(&message.encode()), Ok(message));
        }
        for message in [
            ToSession::Welcome { cap_bytes: 1 },
            ToSession::Grant { epoch: 2 },
            ToSession::Preempt { epoch: 3 },
            ToSession::SwapOut { bytes: 6 },
            ToSession::SwapIn,
            ToSession::Grow { bytes: 4 },
            ToSession::Refuse { bytes: 5 },
            ToSession::Trim,
            ToSession::Pin { bytes: 12 },
            ToSession::Unpin { bytes: 13 },
            ToSession::Has {
                cap_bytes: 7,
                bytes: 8,
                processes: 9,
            },
            ToSession::ProcessHas {
                process: 10,
                bytes: 11,
            },
        ] {
            assert_eq!(ToSession::decode(&message.encode()), Ok(message));
        }
        assert_eq!(ToSession::decode(&[0; FRAME_BYTES]), Err(NotAFrame));
        assert_eq!(ToSession::decode(&frame(99, &[])), Err(NotAFrame));
    }
}
