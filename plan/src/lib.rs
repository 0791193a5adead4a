//! How many people can share GPUs well, and how long each of them waits.
//!
//! In: how often people arrive, leave and submit, how long their cells run ([`Rates`]), and the
//! numbers of people and GPUs. Out: utilisation, throughput and the distribution of waits.
//!
//! Each person is *asleep*, *editing*, or *ready* (a cell waits or runs), and changes state at exponential
//! rates. A GPU is held by one person, even while that person edits or sleeps, because the state stays
//! resident. A ready person takes a free GPU or the own one at once, and otherwise queues in order of arrival.
//! A holder who is not ready hands the GPU over, at a separate rate, as soon as another person waits.
//!
//! [`states`] is that model with individual people, for a few of them. [`shared`] is the same model
//! with identical people counted (an exact lumping), for hundreds. [`exclusive`] gives each person
//! a GPU from arrival to departure, for comparison.
//!
//! [`simulation`] covers what no chain can express, and [`fit`] estimates a course's rates.
//! [`forecast`] uses the chain where that is possible. [`Capacity`] compares a course with the
//! predictions, also as plots.
//!
//! **Invariant:** pure; no I/O, no clock, and no randomness except from a given seed.

mod answer;
mod capacity;
mod cores;
pub mod exclusive;
mod fit;
mod forecast;
mod lesson;
mod past;
mod rates;
mod repairman;
pub mod shared;
pub mod simulation;
mod solve;
pub mod states;
mod wait;

pub use baton_scheduling::pools::Scaling as PoolScaling;
pub use baton_scheduling::queue::{Declared, Seen, Survival};

pub use answer::Answer;
pub use capacity::{Capacity, Row};
pub use cores::on_all_cores;
pub use fit::{AWAY, Fit, TooLittle, fit, people_here};
pub use forecast::{
    Effort, Forecast, Method, PARTS, Solution, fewest_gpus, forecast, p99_wait, simulated, solution,
};
pub use lesson::{expected_wait, lesson_sentence, lesson_slots, simulated_lesson};
pub use past::{PastCell, seconds};
pub use rates::{BadRate, Rates};
pub use repairman::{Repairman, repairman};
pub use wait::Waits;
