//! XXH3-128 of one whole block, written so that the compiler turns it into vector instructions.
//!
//! The scanner is compiled without the standard library and without any other crate, so it has its
//! own implementation.
//!
//! **Invariant:** the result equals that of `twox_hash` for the same bytes.

pub(crate) const BLOCK_BYTES: usize = 4096;

const STRIPE: usize = 64;
/// The accumulators are scrambled after this many stripes.
const STRIPES: usize = (SECRET.len() - STRIPE) / 8;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const PRIME_MX1: u64 = 0x1656_6791_9E37_79F9;

type Accumulators = [u64; 8];

#[inline]
pub(crate) fn digest(block: &[u8; BLOCK_BYTES]) -> u128 {
    let mut accumulators: Accumulators = [
        PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
    ];
    let (stripes, _) = block.as_chunks::<STRIPE>();
    let (last, whole) = match stripes {
        [whole @ .., last] => (last, whole),
        [] => return 0,
    };
    let mut parts = whole.chunks_exact(STRIPES);
    for part in parts.by_ref() {
        accumulate(&mut accumulators, part);
        scramble(&mut accumulators);
    }
    accumulate(&mut accumulators, parts.remainder());
    mix(&mut accumulators, last, SECRET.len() - STRIPE - 7);

    let bytes = BLOCK_BYTES as u64;
    let low = merge(&accumulators, 11, bytes.wrapping_mul(PRIME64_1));
    let high = merge(
        &accumulators,
        SECRET.len() - STRIPE - 11,
        !bytes.wrapping_mul(PRIME64_2),
    );
    u128::from(high) << 64 | u128::from(low)
}

#[inline]
fn accumulate(accumulators: &mut Accumulators, stripes: &[[u8; STRIPE]]) {
    for (index, stripe) in stripes.iter().enumerate() {
        mix(accumulators, stripe, 8 * index);
    }
}

#[inline]
fn mix(accumulators: &mut Accumulators, stripe: &[u8; STRIPE], secret_from: usize) {
    let mut data = [0; 8];
    let mut products = [0; 8];
    for lane in 0..8 {
        data[lane] = word(stripe, 8 * lane);
        let key = data[lane] ^ word(&SECRET, secret_from + 8 * lane);
        products[lane] = (key & 0xFFFF_FFFF) * (key >> 32);
    }
    for lane in 0..8 {
        accumulators[lane] = accumulators[lane]
            .wrapping_add(products[lane])
            .wrapping_add(data[lane ^ 1]);
    }
}

#[inline]
fn scramble(accumulators: &mut Accumulators) {
    for (lane, accumulator) in accumulators.iter_mut().enumerate() {
        let key = word(&SECRET, SECRET.len() - STRIPE + 8 * lane);
        *accumulator = ((*accumulator ^ (*accumulator >> 47)) ^ key).wrapping_mul(PRIME32_1);
    }
}

#[inline]
fn merge(accumulators: &Accumulators, secret_from: usize, start: u64) -> u64 {
    let mut result = start;
    for pair in 0..4 {
        let left = accumulators[2 * pair] ^ word(&SECRET, secret_from + 16 * pair);
        let right = accumulators[2 * pair + 1] ^ word(&SECRET, secret_from + 16 * pair + 8);
        let product = u128::from(left) * u128::from(right);
        result = result.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    result ^= result >> 37;
    result = result.wrapping_mul(PRIME_MX1);
    result ^ (result >> 32)
}

#[inline]
fn word(bytes: &[u8], from: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[from..from + 8]);
    u64::from_le_bytes(word)
}

/// The algorithm's default secret.
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];
