//! Limits the bytes of messages that the broker holds: of each person, and of all people together.
//!
//! In: what connections and requests receive. Out: whether they may receive more. A message counts
//! until it has been handled, and one that is passed on counts until it has been sent to its worker.
//! Workers are not counted, so no notebook can take the room that they need.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Two messages of the largest size.
pub(crate) const MOST_OF_PERSON: u64 = 128 << 20;
const MOST_OF_ALL: u64 = 1 << 30;

#[derive(Debug, thiserror::Error)]
#[error("Too many bytes of one person, or of all, are pending in messages")]
pub(crate) struct TooMuch;

/// The bytes of messages to the broker that are incomplete or not handled yet.
#[derive(Default)]
pub(crate) struct InFlight(Mutex<Booked>);

#[derive(Default)]
struct Booked {
    all: u64,
    of: HashMap<String, u64>,
}

impl InFlight {
    /// Returns `false`, and changes nothing, if that would be too much.
    pub(crate) fn change(&self, person: &str, before: u64, after: u64) -> bool {
        let mut booked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_person = booked.of.get(person).copied().unwrap_or(0) - before + after;
        let of_all = booked.all - before + after;
        if after > before && (of_person > MOST_OF_PERSON || of_all > MOST_OF_ALL) {
            return false;
        }
        booked.all = of_all;
        match of_person {
            0 => drop(booked.of.remove(person)),
            bytes => drop(booked.of.insert(person.to_owned(), bytes)),
        }
        true
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let booked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        booked.all == 0 && booked.of.is_empty()
    }
}

/// The bytes of a complete message that the broker has not handled or passed on yet.
#[must_use]
pub(crate) struct Booking {
    account: Option<(String, Arc<InFlight>)>,
    bytes: u64,
}

impl Booking {
    /// Takes over bytes that are counted for this person, if there is one.
    pub(crate) fn new(account: Option<(String, Arc<InFlight>)>, bytes: u64) -> Self {
        Self { account, bytes }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        if let Some((person, in_flight)) = &self.account {
            in_flight.change(person, self.bytes, 0);
        }
    }
}
