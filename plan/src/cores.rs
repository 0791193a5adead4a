//! Answers independent questions on all cores.

use std::{
    iter,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Returns the answers in the order of the questions, however many cores there are. Questions may
/// take different times: each core takes the next one when it has finished its last.
pub fn on_all_cores<Q: Sync, A: Send>(questions: &[Q], answer: impl Fn(&Q) -> A + Sync) -> Vec<A> {
    let next = AtomicUsize::new(0);
    let answer_some = || {
        let answered = iter::from_fn(|| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let question = questions.get(number)?;
            Some((number, answer(question)))
        });
        answered.collect::<Vec<_>>()
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let mut answers: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores.min(questions.len()))
            .map(|_| scope.spawn(answer_some))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("an answer does not panic"))
            .collect()
    });
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
