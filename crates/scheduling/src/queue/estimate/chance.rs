//! Random numbers that are always the same.

/// The random numbers of one object, a different one in each play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn of_id(id: u128) -> Self {
        Self(mixed(id as u64 ^ mixed((id >> 64) as u64)))
    }

    pub(super) fn of_name(name: &str) -> Self {
        Self(
            name.bytes()
                .fold(1, |hash, byte| mixed(hash ^ u64::from(byte))),
        )
    }

    /// The random numbers of another property of the same object.
    pub(super) fn and(self, what: u64) -> Self {
        Self(mixed(self.0 ^ mixed(what)))
    }

    /// A number from 0 (included) to 1 (excluded).
    pub(super) fn in_play(self, play: u64) -> f64 {
        (self.and(play).0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A factor with median 1. Its logarithm is normally distributed with this standard deviation.
    pub(super) fn factor_in_play(self, play: u64, spread: f64) -> f64 {
        let (one, other) = (self.in_play(play), self.and(1).in_play(play));
        // The Box-Muller transform.
        let normal = (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos();
        (spread * normal).exp()
    }
}

/// The finaliser of SplitMix64.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
