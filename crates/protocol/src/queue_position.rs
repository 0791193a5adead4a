//! Sentences about queue positions, for notebooks, pages and commands. They name no person.

use crate::api::{AheadBecause, MovedBack};
use std::fmt;

/// `2nd in line`, `2nd to 5th in line`
#[must_use]
pub fn in_line(position: u32, last_position: u32) -> String {
    match last_position > position {
        true => format!(
            "{} to {} in line",
            ordinal(position),
            ordinal(last_position)
        ),
        false => format!("{} in line", ordinal(position)),
    }
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// A sentence without its full stop.
impl fmt::Display for MovedBack {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let people = match self.people {
            1 => "One person".to_owned(),
            count => format!("{} people", counted(count)),
        };
        match self.because {
            AheadBecause::UsedLess => write!(text, "{people} with less recent use moved ahead"),
            AheadBecause::Deadline => write!(
                text,
                "{people} moved ahead because their course has a deadline"
            ),
            AheadBecause::MovedToFront => {
                write!(text, "{people} moved ahead at the request of course staff")
            }
            AheadBecause::LowPriority => {
                write!(
                    text,
                    "{people} moved ahead because this cell has low priority"
                )
            }
            AheadBecause::WaitedLonger => {
                write!(text, "{people} who had waited longer returned to the queue")
            }
            AheadBecause::Held => {
                write!(text, "{people} moved ahead while this cell was held back")
            }
            AheadBecause::CoursePaused => {
                write!(text, "{people} moved ahead while the course was paused")
            }
        }
    }
}

fn counted(number: u32) -> String {
    const WORDS: [&str; 10] = [
        "No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine",
    ];
    let word = WORDS.get(number as usize).copied();
    word.map_or_else(|| number.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_range_where_others_may_overtake() {
        for (position, last, expected) in [
            (1, 1, "1st in line"),
            (2, 5, "2nd to 5th in line"),
            (11, 23, "11th to 23rd in line"),
        ] {
            assert_eq!(in_line(position, last), expected);
        }
    }

    #[test]
    fn ordinals_have_their_endings() {
        let ordinals = [1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(ordinal);
        assert_eq!(
            ordinals.join(" "),
            "1st 2nd 3rd 4th 11th 12th 13th 21st 102nd 111th"
        );
    }

    #[test]
    fn who_came_is_counted() {
        let said = |people| {
            let because = AheadBecause::UsedLess;
            MovedBack { people, because }.to_string()
        };
        assert_eq!(said(1), "One person with less recent use moved ahead");
        assert_eq!(said(2), "Two people with less recent use moved ahead");
        assert_eq!(said(14), "14 people with less recent use moved ahead");
    }
}
