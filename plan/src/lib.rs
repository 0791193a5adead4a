//! How many people share GPUs well, and how long each of them waits.
//!
//! In: how often people come, go, submit and how long their cells run ([`Rates`]), how many there are and how many
//! GPUs. Out: utilisation, throughput and the distribution of waits.
//!
//! Each person is *asleep*, *editing*, or *ready* (a cell waits or runs), and moves at exponential rates.
//! A GPU is held by one person, also while that person edits or sleeps: the state stays resident. A ready person takes
//! a free or the own GPU at once, and otherwise queues in order of arrival; a holder who is not ready hands over, at a
//! rate of its own, as soon as somebody waits.
//!
//! [`states`] is that model person by person, for few; [`shared`] the same with people who are alike counted
//! (an exact lump), for hundreds; [`exclusive`] a GPU per person from coming to going, for comparison.
//!
//! [`simulation`] is for what no chain can say, and [`fit`] says which rates a course had; [`forecast`] takes the chain
//! where it can. [`Capacity`] holds a course against what it was to be, and [`Plot`] draws all of it.
//!
//! **Invariant:** pure; no I/O, no clock, no randomness but from a seed that is given.

mod answer;
mod capacity;
mod cores;
pub mod exclusive;
mod fit;
mod forecast;
mod lesson;
mod past;
mod plot;
mod rates;
mod repairman;
pub mod shared;
pub mod simulation;
mod solve;
pub mod states;
mod wait;

pub use baton_scheduling::pools::Terms as PoolTerms;
pub use baton_scheduling::queue::{Seen, Survival};

pub use answer::Answer;
pub use capacity::{Capacity, Row};
pub use cores::on_all_cores;
pub use fit::{AWAY, Fit, TooLittle, fit, people_here};
pub use forecast::{
    Effort, Forecast, Method, PARTS, Solution, fewest_gpus, forecast, p99_wait, simulated, solution,
};
pub use lesson::{expected_wait, lesson_sentence};
pub use past::{PastCell, seconds};
pub use plot::{Axis, Line, Plot};
pub use rates::{BadRate, Rates};
pub use repairman::{Repairman, repairman};
pub use wait::Waits;
