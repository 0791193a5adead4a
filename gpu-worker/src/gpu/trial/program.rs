//! The program that a trial starts twice: for each line that it reads, it computes and reports what it found.

use super::{
    super::{
        program::answer_lines,
        sys::driver::{Address, Driver, DriverError, Kernel},
    },
    MEMORY_BYTES,
};
use std::io;

/// The answer when its numbers are correct.
pub(super) const RIGHT: &str = "right";

const WRONG: &str = "the GPU returned wrong data";

/// Adds `value` to each of `count` numbers. Drivers can translate it for any GPU from Maxwell on.
const ADD: &std::ffi::CStr = c"
.version 6.0
.target sm_50
.address_size 64

.visible .entry add(.param .u64 numbers, .param .u64 count, .param .u64 value)
{
    .reg .pred %over;
    .reg .b32 %block, %threads, %thread;
    .reg .b64 %place, %count, %value, %index, %number;

    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %thread, %block, %threads, %thread;
    cvt.u64.u32 %index, %thread;
    ld.param.u64 %count, [count];
    setp.ge.u64 %over, %index, %count;
    @%over bra DONE;
    ld.param.u64 %value, [value];
    ld.param.u64 %place, [numbers];
    cvta.to.global.u64 %place, %place;
    shl.b64 %index, %index, 3;
    add.u64 %place, %place, %index;
    ld.global.u64 %number, [%place];
    add.u64 %number, %number, %value;
    st.global.u64 [%place], %number;
DONE:
    ret;
}
";

/// Runs until its input ends.
///
/// # Errors
/// If its input or output breaks. What the GPU does wrong is reported as an answer.
pub fn run() -> io::Result<()> {
    let mut numbers = None;
    answer_lines(|_| match compute(&mut numbers) {
        Ok(true) => RIGHT.to_owned(),
        Ok(false) => WRONG.to_owned(),
        Err(error) => error.to_string(),
    })
}

/// Numbers that are on the GPU since the first line.
struct Numbers {
    driver: Driver,
    add: Kernel,
    address: Address,
    expected: Vec<u64>,
}

/// Returns whether all numbers were correct.
fn compute(numbers: &mut Option<Numbers>) -> Result<bool, DriverError> {
    let numbers = match numbers {
        Some(numbers) => numbers,
        None => numbers.insert(Numbers::new()?),
    };
    let mut found = numbers.read()?;
    if found != numbers.expected {
        return Ok(false);
    }
    numbers.add(1)?;
    found = numbers.read()?;
    Ok(found == numbers.expected)
}

impl Numbers {
    fn new() -> Result<Self, DriverError> {
        // All numbers differ, also between the two programs.
        let first = u64::from(std::process::id()) << 32;
        let expected: Vec<u64> = (first..).take(MEMORY_BYTES / size_of::<u64>()).collect();
        let driver = Driver::open()?;
        driver.enter_context()?;
        Ok(Self {
            add: driver.kernel(ADD, c"add")?,
            address: driver.allocate(&expected)?,
            driver,
            expected,
        })
    }

    fn read(&self) -> Result<Vec<u64>, DriverError> {
        let mut found = vec![0; self.expected.len()];
        self.driver.read(&self.address, &mut found)?;
        Ok(found)
    }

    fn add(&mut self, value: u64) -> Result<(), DriverError> {
        self.driver
            .launch(&self.add, &self.address, self.expected.len(), value)?;
        self.expected.iter_mut().for_each(|number| *number += value);
        Ok(())
    }
}
